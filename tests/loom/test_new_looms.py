"""A mistyped path or URL makes no loom."""

from pathlib import Path
from typing import Any

import pytest

from cantrip_actors import LoomError, Runtime, open_loom
from cantrip_actors.loom import open_store

pytestmark = pytest.mark.rule("Y-13")

KINDS = pytest.mark.parametrize("kind", ["sqlite", "jsonl"])


@KINDS
async def test_a_loom_in_a_folder_that_does_not_exist_is_refused_and_makes_nothing(kind: str, tmp_path: Path) -> None:
    url = f"{kind}:{tmp_path}/no-such/folder/loom.db"
    with pytest.raises(LoomError, match=f"there is no folder {tmp_path}/no-such/folder: .* create=True"):
        async with Runtime.open(url):
            pass
    with pytest.raises(LoomError, match="there is no folder"), open_loom(url, read_only=False):
        pass
    assert list(tmp_path.iterdir()) == []


@KINDS
async def test_a_new_loom_is_made_in_a_folder_that_exists_and_with_create_in_any(kind: str, tmp_path: Path) -> None:
    async with Runtime.open(f"{kind}:{tmp_path}/loom.db"):
        pass
    async with Runtime.open(f"{kind}:{tmp_path}/a/b/loom.db", create=True):
        pass
    with open_loom(f"{kind}:{tmp_path}/c/loom.db", read_only=False, create=True) as loom:
        assert loom.entities() == []
    open_store(f"{kind}:{tmp_path}/d/loom.db", create=True, repair=True).close()
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("loom.db")} == {
        "loom.db",
        "a/b/loom.db",
        "c/loom.db",
        "d/loom.db",
    }


@KINDS
def test_the_folder_of_the_library_is_made_where_its_parent_exists(kind: str, tmp_path: Path) -> None:
    open_store(f"{kind}:{tmp_path}/.cantrip/loom.db").close()
    assert (tmp_path / ".cantrip" / "loom.db").is_file()
    with pytest.raises(LoomError, match="there is no folder"):
        open_store(f"{kind}:{tmp_path}/no-such/.cantrip/loom.db")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqllite:loom.db", 'unknown kind of loom "sqllite": did you mean "sqlite"'),
        ("redis://here/0", 'unknown kind of loom "redis"'),
        ("loom.txt", "names no loom"),
        ("sqlite:", "names no file"),
        ("sqlite://host/loom.db", "names a host"),
        ("sqlite:loom.db?durabilty=power", 'unknown option "durabilty": did you mean "durability"'),
        ("sqlite:loom.db?durability=much", 'unknown durability "much"'),
    ],
)
def test_a_url_that_cannot_be_a_looms_is_refused_before_the_runtime_is_entered(url: Any, message: str) -> None:
    with pytest.raises(LoomError, match=message):
        Runtime.open(url)
