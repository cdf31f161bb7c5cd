"""The private interfaces of the JavaScript engine: one seam, which names what another version has changed."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("wasmtime")
import wasmtime
from wasmtime import _ffi as ffi

from cantrip_actors import Cantrip, Circle, InvalidCantrip, Runtime, scripted
from cantrip_actors.circle.javascript import engine, private_interface
from cantrip_actors.circle.javascript.private_interface import check_guest, check_host
from cantrip_actors.mediums import medium
from cantrip_actors.wards import max_turns

pytestmark = pytest.mark.rule("B-22")


def test_the_installed_engine_has_the_interfaces_that_are_used() -> None:
    check_host()
    check_guest(engine._read_wasm())


def remove_function(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(ffi, "wasmtime_call_future_poll")


def add_parameter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ffi, "wasmtime_func_call_async", lambda a, b, c, d, e, f, g, h, i: None)


def change_callback(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ffi, "wasmtime_func_async_callback_t", ffi.wasmtime_func_async_continuation_callback_t)


def remove_type(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(ffi, "wasmtime_context_t")


def remove_member(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(wasmtime.Trap, "_from_ptr")


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (remove_function, '"wasmtime_call_future_poll": expected 1 parameters, got nothing'),
        (add_parameter, '"wasmtime_func_call_async": expected 8 parameters, got 9 parameters'),
        (change_callback, '"wasmtime_func_async_callback_t": expected 8 parameters, got 1 parameters'),
        (remove_type, '"wasmtime_context_t": expected a type, got nothing'),
        (remove_member, '"Trap._from_ptr": expected a member, got nothing'),
    ],
)
def test_a_changed_part_of_wasmtime_is_named_when_the_medium_is_loaded(
    monkeypatch: pytest.MonkeyPatch, break_it: Callable[[pytest.MonkeyPatch], None], text: str
) -> None:
    for name in ("private_interface", "engine", "medium"):
        monkeypatch.delitem(sys.modules, f"cantrip_actors.circle.javascript.{name}", raising=False)
    break_it(monkeypatch)
    with pytest.raises(InvalidCantrip) as refused:
        medium("javascript")
    assert text in str(refused.value)
    assert "wasmtime 50" in str(refused.value)
    assert "cantrip-actors[js]" in str(refused.value)


async def test_another_guest_is_refused_by_name_before_an_entity_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_read_wasm", lambda: b"another guest")
    cantrip = Cantrip(scripted([{"code": "1"}]), circle=Circle(["done"], [max_turns(1)], medium="javascript"))
    async with Runtime.open() as runtime:
        with pytest.raises(InvalidCantrip) as refused:
            await runtime.cast(cantrip, "go")
        assert runtime.loom.entities() == []
    assert '"_guest.wasm": expected the digest 647ab11ae29cc6d3, got the digest' in str(refused.value)
    assert "quickjs-rs 0.2.6" in str(refused.value)


def test_no_other_file_uses_private_parts_of_the_engine() -> None:
    folder = Path(private_interface.__file__).parent
    users = [path.name for path in folder.glob("*.py") if "_ffi" in path.read_text() or "SLF001" in path.read_text()]
    assert users == ["private_interface.py"]
