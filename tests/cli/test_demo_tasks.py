"""`cantrip demo --backend trio --tasks`: trio's own tree of tasks, beside the tree of the loom."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cantrip_actors.looms import open_loom
from tests.cli.conftest import Said

pytestmark = pytest.mark.real_time


def find_parents(lines: list[str], entities: list[str]) -> dict[str, str | None]:
    """Return the nearest entity above each entity in a tree that is indented by two spaces a level."""
    parents: dict[str, str | None] = {}
    above: list[str] = []
    for line in lines:
        depth = (len(line) - len(line.lstrip())) // 2
        above = [*above[:depth], line.strip()]
        if above[-1] in entities:
            parents[above[-1]] = next((name for name in reversed(above[:-1]) if name in entities), None)
    return parents


@pytest.mark.rule("K-01")
def test_the_tasks_of_the_demo_are_nested_as_its_entities_are_in_the_loom(
    cantrip: Callable[..., Said], place: Path
) -> None:
    (place / "texts").mkdir()
    for name in ("a.md", "b.py"):
        (place / "texts" / name).write_text("milk\n")
    said = cantrip("demo", "texts", "--backend", "trio", "--tasks", "--loom", "sqlite:demo.db", "--json")
    with open_loom("sqlite:demo.db") as loom:
        expected = {entity: loom.header(entity).parent_entity for entity in loom.entities()}
    assert len(expected) == 3
    assert find_parents(said.json["tasks"], list(expected)) == expected


def test_tasks_are_printed_above_the_report(cantrip: Callable[..., Said], place: Path) -> None:
    (place / "texts").mkdir()
    (place / "texts" / "a.md").write_text("milk\n")
    said = cantrip("demo", "texts", "--backend", "trio", "--tasks", "--quiet")
    assert said.code == 0
    assert said.out.index("root") < said.out.index("The folder lists 1 file")


def test_tasks_are_refused_on_asyncio(cantrip: Callable[..., Said]) -> None:
    said = cantrip("demo", "--tasks")
    assert (said.code, "add --backend trio" in said.err) == (2, True)
