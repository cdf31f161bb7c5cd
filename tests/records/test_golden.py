"""Looms that earlier versions wrote: every line is read, and would be written with the same bytes."""

import gzip
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from cantrip_actors import Runtime
from cantrip_actors.loom import open_store, verify_loom
from cantrip_actors.records.codec import decode, encode
from cantrip_actors.records.seal import split_link

GOLDEN = Path(__file__).parent / "golden"
LOOMS = sorted(path.name.removesuffix(".gz") for path in GOLDEN.glob("tables?.*.gz") if path.suffixes[-2] != ".images")
WHOLE = [name for name in LOOMS if name.endswith((".jsonl", ".db"))]


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """A folder with all of them."""
    for packed in GOLDEN.glob("*.gz"):
        (tmp_path / packed.name.removesuffix(".gz")).write_bytes(gzip.decompress(packed.read_bytes()))
    return tmp_path


@pytest.fixture
def maker() -> Any:
    """The script that made them."""
    spec = importlib.util.spec_from_file_location("make_loom", GOLDEN / "make_loom.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.path[:]
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


@pytest.mark.rule("C-05")
@pytest.mark.parametrize("name", [name for name in WHOLE if name.endswith(".jsonl")])
def test_a_line_of_an_earlier_version_is_encoded_with_the_same_bytes(name: str, unpacked: Path):
    for line in (unpacked / name).read_bytes().splitlines():
        plain, _ = split_link(line)
        assert encode(decode(plain)) == plain


@pytest.mark.rule("C-05")
@pytest.mark.parametrize("name", WHOLE)
def test_a_loom_of_an_earlier_version_verifies_before_and_after_its_upgrade(name: str, unpacked: Path):
    for read_only in (True, False, False):
        with open_store(unpacked / name, read_only=read_only) as store:
            assert [str(fault) for fault in verify_loom(store).faults] == []


@pytest.mark.real_time
@pytest.mark.rule("C-05")
@pytest.mark.parametrize("name", WHOLE)
async def test_an_entity_of_an_earlier_version_takes_a_further_intent(name: str, unpacked: Path, maker: Any):
    async with Runtime.open(unpacked / name) as runtime:
        notes = runtime.entity("notes", cantrip=maker.keeper())
        assert notes is not None
        turns = len(runtime.loom.turns(notes.id))
        episode = await notes.send("six")
        assert episode.entity_id == notes.id
        assert len(runtime.loom.turns(notes.id)) > turns
