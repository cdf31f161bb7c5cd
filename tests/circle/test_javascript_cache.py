"""The compiled JavaScript engine is cached between processes, and ignored if other users could have written it."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import wasmtime

if sys.platform == "win32":
    pytest.skip("nothing is kept there", allow_module_level=True)

from cantrip_actors.circle.javascript import cache as javascript_cache
from cantrip_actors.circle.javascript.cache import find_path, load_module

WASM = bytes(wasmtime.wat2wasm('(module (func (export "f") (result i32) i32.const 7))'))
OTHER = bytes(wasmtime.wat2wasm('(module (func (export "f") (result i32) i32.const 8))'))


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "cantrip-actors" / "engines"


@pytest.fixture
def engine() -> wasmtime.Engine:
    return wasmtime.Engine()


def says(engine: wasmtime.Engine, module: wasmtime.Module) -> int:
    store = wasmtime.Store(engine)
    function = wasmtime.Instance(store, module, []).exports(store)["f"]
    assert isinstance(function, wasmtime.Func)
    return int(function(store))


def kept(wasm: bytes = WASM) -> Path:
    path = find_path(wasm, "test")
    assert path is not None
    return path


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The modules that are compiled."""
    made: list[bytes] = []
    whole = wasmtime.Module

    class Counting:
        deserialize = staticmethod(whole.deserialize)

        def __new__(cls, engine: wasmtime.Engine, wasm: bytes) -> wasmtime.Module:  # type: ignore[misc]
            made.append(wasm)
            return whole(engine, wasm)

    monkeypatch.setattr(javascript_cache.wasmtime, "Module", Counting)
    return made


def test_the_engine_is_compiled_once(engine: wasmtime.Engine, counted: list[bytes], folder: Path) -> None:
    assert [says(engine, load_module(engine, WASM, "test")) for _ in range(3)] == [7, 7, 7]
    assert counted == [WASM]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert kept().stat().st_mode & 0o777 == 0o600
    assert list(folder.iterdir()) == [kept()]


def test_other_settings_have_their_own_compiled_module(engine: wasmtime.Engine, counted: list[bytes]) -> None:
    for settings in ("test", "else", "test"):
        load_module(engine, WASM, settings)
    assert counted == [WASM, WASM]


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def foreign(path: Path) -> None:
    """Code that is whole, but that another version has written."""
    code = b"\x7fELF of another version" * 100
    path.write_bytes(hashlib.sha256(code).digest() + code)


def linked_folder(path: Path) -> None:
    folder = path.parent
    folder.rename(folder.with_name("moved"))
    folder.symlink_to("moved")


DOUBTS: dict[str, Callable[[Path], object]] = {
    "others may write it": lambda path: path.chmod(0o602),
    "its group may write it": lambda path: path.chmod(0o620),
    "others may write its folder": lambda path: path.parent.chmod(0o777),
    "a link": link,
    "a folder that is a link": linked_folder,
    "a pipe": pipe,
    "damaged": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "empty": lambda path: path.write_bytes(b""),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "another version's": foreign,
}


@pytest.mark.rule("CIRCLE-6")
@pytest.mark.parametrize("doubt", DOUBTS)
def test_an_untrusted_cache_file_is_compiled_again(engine: wasmtime.Engine, counted: list[bytes], doubt: str) -> None:
    load_module(engine, WASM, "test")
    DOUBTS[doubt](kept())
    assert says(engine, load_module(engine, WASM, "test")) == 7
    assert counted == [WASM, WASM]


@pytest.mark.rule("CIRCLE-6")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("whose", ["file", "folder"])
def test_a_cache_file_of_another_user_is_compiled_again(
    engine: wasmtime.Engine, counted: list[bytes], whose: str
) -> None:
    load_module(engine, WASM, "test")
    path = kept() if whose == "file" else kept().parent
    os.chown(path, 65534, 65534)
    assert says(engine, load_module(engine, WASM, "test")) == 7
    assert counted == [WASM, WASM]


def test_a_modules_compiled_code_is_never_used_for_another_module(engine: wasmtime.Engine) -> None:
    load_module(engine, WASM, "test")
    assert says(engine, load_module(engine, OTHER, "test")) == 8


@pytest.mark.parametrize("base", ["/proc/no/such", "/dev/null"])
def test_the_engine_is_compiled_each_time_without_a_cache_folder(
    engine: wasmtime.Engine, counted: list[bytes], base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    assert [says(engine, load_module(engine, WASM, "test")) for _ in range(2)] == [7, 7]
    assert counted == [WASM, WASM]


def test_old_cache_files_are_removed(engine: wasmtime.Engine, folder: Path) -> None:
    for n in range(8):
        load_module(engine, WASM, str(n))
    assert len(list(folder.iterdir())) == javascript_cache.KEPT
