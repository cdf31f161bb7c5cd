"""`cantrip schedule`: add, ls, pause, resume, rm."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Runtime
from tests.runtime.spells import cantrip as spell
from tests.runtime.spells import done

pytestmark = pytest.mark.real_time

LOOM = "sqlite:.cantrip/loom.db"


@pytest.fixture
def notes(place: Path) -> None:
    """A loom with a long-lived entity called notes."""

    async def work() -> None:
        async with Runtime.open(LOOM) as runtime:
            await (await runtime.invoke(spell([done("x")]), "start", name="notes")).episode()

    anyio.run(work)


def rows(cantrip: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cantrip("schedule", "ls", "--json").out)
    return found


@pytest.mark.usefixtures("notes")
def test_a_schedule_is_added_listed_paused_resumed_and_removed(cantrip: Any) -> None:
    line, zone = "0 9 * * MON", "Europe/Oslo"
    added = cantrip("schedule", "add", "notes", "Summarise.", "--cron", line, "--zone", zone, "--id", "weekly")
    assert (added.code, added.out) == (0, "weekly waiting\n")
    (row,) = rows(cantrip)
    assert (row["id"], row["to"], row["name"], row["rule"], row["zone"]) == (
        "weekly",
        "entity",
        "notes",
        f"cron {line}",
        zone,
    )
    assert cantrip("schedule", "pause", "weekly").out == "weekly paused\n"
    assert rows(cantrip)[0]["next_at"] is None
    assert cantrip("schedule", "resume", "weekly").out == "weekly waiting\n"
    assert "weekly" in cantrip("schedule", "ls").out
    assert cantrip("schedule", "rm", "weekly").out == "weekly removed\n"
    assert rows(cantrip) == []
    assert "has no schedule" in cantrip("schedule", "ls").err


@pytest.mark.usefixtures("place")
def test_a_schedule_of_a_cantrip_needs_only_its_name(cantrip: Any) -> None:
    added = cantrip("schedule", "add", "review", "Look.", "--cantrip", "--every", "600", "--json")
    assert added.code == 0
    assert (added.json["to"], added.json["name"], added.json["rule"]) == ("cantrip", "review", "every 600 s")


@pytest.mark.usefixtures("place")
def test_an_interval_is_a_time_with_a_unit_too(cantrip: Any) -> None:
    added = cantrip("schedule", "add", "review", "Look.", "--cantrip", "--every", "10m", "--json")
    assert added.json["rule"] == "every 600 s"


@pytest.mark.usefixtures("place")
def test_a_submission_that_waits_is_not_listed_as_a_schedule(cantrip: Any) -> None:
    assert cantrip("submit", "desk", "Find the parcel.", "--key", "job-9").code == 0
    assert rows(cantrip) == []


@pytest.mark.usefixtures("notes")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "nobody", "x", "--every", "5"], 'no long-lived entity is called "nobody"'),
        (["add", "notes", "x"], "exactly one of at, every and cron"),
        (["add", "notes", "x", "--cron", "soon"], "five fields"),
        (["add", "notes", "x", "--at", "2027-01-01", "--zone", "Mars"], "IANA"),
        (["add", "notes", "x", "--every", "5", "--overlap", "run"], "overlap: expected one of"),
        (["add", "notes", "x", "--every", "5 weeks"], 'a duration like "90d"'),
        (["rm", "weekly"], 'no schedule "weekly"'),
        (["pause", "job-9"], 'no schedule "job-9"'),
    ],
)
def test_a_mistake_exits_with_2_and_a_message(cantrip: Any, arguments: list[str], message: str) -> None:
    cantrip("submit", "desk", "Find the parcel.", "--key", "job-9")
    said = cantrip("schedule", *arguments)
    assert said.code == 2
    assert message in said.err
