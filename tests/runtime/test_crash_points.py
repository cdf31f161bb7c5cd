"""Crashes inside gates and queries: what a sweep of all of them finds in users' gates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from crash_points import EffectAfterCancel, LostUpdate, MarkedBefore, NotIdempotent, Shop, find_breaking_crashes

from cantrip_actors import Cantrip, Circle, Runtime, gate, scripted
from cantrip_actors.testing import Crash, Process, every_crash_point, run_with_crashes
from cantrip_actors.wards import max_turns

pytestmark = pytest.mark.rule("Y-40")


class TestPlantedBugs:
    """Each bug is found by the sweep, where the shop breaks and nowhere else."""

    async def test_a_gate_that_is_not_idempotent_is_found(self) -> None:
        breaking = await find_breaking_crashes(NotIdempotent)
        assert Crash(gate="sell", at="inside", wait=2) in breaking
        assert Crash(gate="sell", at="inside", wait=1) not in breaking

    async def test_a_mark_before_the_effect_is_found(self) -> None:
        assert await find_breaking_crashes(MarkedBefore) == [Crash(gate="sell", at="inside", wait=1)]

    async def test_a_lost_update_is_found(self) -> None:
        breaking = await find_breaking_crashes(LostUpdate)
        assert Crash(query=2) in breaking  # the sale is in the loom, and not in the books
        assert Crash(gate="sell", at="end") not in breaking

    async def test_an_effect_after_the_cancellation_is_found(self) -> None:
        assert Crash(gate="sell", at="inside", wait=1) in await find_breaking_crashes(EffectAfterCancel)

    @pytest.mark.rule("Y-44")
    async def test_a_gate_that_keeps_the_rules_is_broken_by_no_crash(self) -> None:
        assert await find_breaking_crashes(Shop) == []


@gate(idempotent=True)
async def look(what: str) -> str:
    """Look something up."""
    await anyio.sleep(1)
    await anyio.sleep(1)
    return what


def make_program(asked: list[str], lives: list[str], loom: str = "memory:") -> Any:
    def answer(context: Any) -> Any:
        asked.append(context[-1].role)
        call = {"tool_calls": [{"gate": "look", "args": {"what": "it"}}]}
        return call if context[-1].role == "user" else "found"

    spell = Cantrip(scripted(answer), circle=Circle(["done", look], [max_turns(4)]), name="looker")

    async def program(process: Process) -> Any:
        lives.append("life")
        async with process.attach(Runtime.open(loom, cantrips=[spell], recover="resume")) as runtime:
            return (await runtime.cast(spell, "go", key="1")).result

    return program


async def test_a_program_lists_its_crash_points_in_the_order_in_which_they_come() -> None:
    points = await every_crash_point(make_program([], []))
    inside = [point for point in points if point.gate is not None]
    assert inside == [
        Crash(gate="look", at="start"),
        Crash(gate="look", wait=1),
        Crash(gate="look", wait=2),
        Crash(gate="look", at="end"),
    ]
    assert {point.query for point in points} == {None, 1, 2}
    writes = [point for point in points if point.write is not None]
    assert writes == [Crash(n, recorded) for n in range(1, len(writes) // 2 + 1) for recorded in (False, True)]


async def test_after_a_crash_at_any_point_the_program_comes_to_the_same_result() -> None:
    for crash in await every_crash_point(make_program([], [])):
        asked: list[str] = []
        survived = await run_with_crashes(make_program(asked, []), [crash])
        assert (survived.value, survived.crashes) == ("found", 1), crash
        paid_twice = crash.query is not None and crash.at != "start"
        assert len(asked) <= 2 + paid_twice + (crash.write is not None), crash


async def test_two_crashes_in_the_same_gate_take_two_lives() -> None:
    lives: list[str] = []
    crashes = [Crash(gate="look", wait=2), Crash(gate="look", wait=1)]
    survived = await run_with_crashes(make_program([], lives), crashes)
    assert (survived.value, survived.crashes, len(lives)) == ("found", 2, 3)


async def test_a_process_dies_after_some_seconds_wherever_it_is() -> None:
    began = anyio.current_time()
    survived = await run_with_crashes(make_program([], []), [Crash(after=1.5)])
    assert (survived.value, survived.crashes) == ("found", 1)
    assert 3.5 <= anyio.current_time() - began < 3.6


async def test_a_process_dies_after_some_seconds_while_threads_write_its_loom(tmp_path: Path) -> None:
    program = make_program([], [], f"jsonl:{tmp_path / 'loom.jsonl'}?durability=power")
    survived = await run_with_crashes(program, [Crash(after=1.5)])
    assert (survived.value, survived.crashes) == ("found", 1)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (Crash, "expected one of write, gate, query and after, got none of them"),
        (lambda: Crash(1, gate="look"), "expected one of write, gate, query and after, got write, gate"),
        (lambda: Crash(gate=""), "gate: expected the name of a gate, got ''"),
        (lambda: Crash(query=0), "query: expected a whole number"),
        (lambda: Crash(gate="look", call=0), "call: expected a whole number"),
        (lambda: Crash(gate="look", wait=0), "wait: expected a whole number"),
        (lambda: Crash(gate="look", at="middle"), "at: expected 'start', 'inside', 'end', got 'middle'"),
        (lambda: Crash(after=-1), "after: expected seconds from 0 on, got -1"),
        (lambda: Crash(gate="look", recorded=True), "recorded: expected it with write only"),
        (lambda: Crash(query=1, call=2), "call: expected it with gate only"),
        (lambda: Crash(1, at="end"), "at: expected it with gate or query only"),
        (lambda: Crash(gate="look", at="end", wait=2), 'wait: expected it with at="inside" of a gate or a query only'),
    ],
)
def test_a_crash_that_cannot_be_is_refused(make: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()
