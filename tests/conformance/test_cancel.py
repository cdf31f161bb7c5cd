"""The campaign of random cancellations finds nothing in the product, and finds what is planted."""

import asyncio
import random
import threading
from itertools import islice
from pathlib import Path

import anyio
import pytest

from cantrip_actors.looms import Committed, IntentGiven
from conformance.cancel.acts import Cast
from conformance.cancel.campaign import NAMES, Example, pick, run
from conformance.cancel.laws import Resources, find_late_effects, find_leaks, find_repetitions
from conformance.cancel.world import Entry
from tests.exhaustive import EXHAUSTIVE

pytestmark = pytest.mark.real_time

EXAMPLES = 100 if EXHAUSTIVE else 2
"""Cancellations of each act."""


@pytest.mark.rule("K-02", "K-23", "LOOM-1")
@pytest.mark.parametrize("act", NAMES)
def test_a_call_that_is_cancelled_at_any_moment_leaks_loses_and_repeats_nothing(act: str) -> None:
    examples = islice(pick(random.Random(0), acts=(act,)), EXAMPLES)
    faults = [(str(example), fault) for example in examples for fault in run(example)]
    assert faults == []


def test_an_example_is_repeated_from_its_text() -> None:
    example = Example("asyncio", "sqlite", "interrupt", "nested", "native", 3.5, 0.0, 12)
    assert Example.of(str(example)) == example


# What is planted is found


def test_an_effect_after_the_end_of_its_episode_is_found() -> None:
    entries = [
        Entry("effect", "x.1", 1.0),
        Entry("end", "x", 2.0),
        Entry("effect", "x.1", 2.5),
        Entry("late", "x", 9.0),
    ]
    assert list(find_late_effects(entries)) == [
        "an effect of x.1 came 0.5 s after the end of x",
        "an effect of x came 7 s after the end of x",
    ]


def test_an_effect_of_a_gate_that_was_reported_and_of_another_episode_is_none() -> None:
    entries = [Entry("zombie", "", 1.0), Entry("end", "x", 2.0), Entry("late", "x", 9.0), Entry("effect", "xy", 9.0)]
    assert list(find_late_effects(entries)) == []


def test_an_effect_between_two_runtimes_is_found_and_one_after_the_second_was_opened_is_not() -> None:
    entries = [
        *(Entry("opened", "", 0.0), Entry("end", "", 1.0), Entry("effect", "x", 2.0)),
        *(Entry("opened", "", 3.0), Entry("effect", "x", 4.0)),
    ]
    assert list(find_late_effects(entries)) == ["an effect of x came 1 s after the end of the runtime"]


def test_a_record_that_is_repeated_is_found() -> None:
    turn = Committed(turn_id="t", entity_id="e", parent_id=None, sequence=1, at="2026-01-01T00:00:00Z", duration_ms=1.0)
    intent = IntentGiven("e", "go", "2026-01-01T00:00:00Z")
    assert list(find_repetitions([[intent, turn], [turn]])) == ["the turn t is recorded 2 times"]


def test_a_thread_and_a_file_that_are_left_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.cancel.laws.PATIENCE", 0.05)
    before, is_over = Resources.read(), threading.Event()
    thread = threading.Thread(target=is_over.wait, name="left")
    with Path("/dev/null").open(encoding="ascii"):
        thread.start()
        leaks = list(find_leaks(before))
    is_over.set()
    thread.join()
    assert leaks == ["the thread left is left", "1 more open: /dev/null"]
    assert list(find_leaks(before)) == []


def test_a_task_that_is_left_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    perform = Cast.perform

    tasks: list[asyncio.Future[None]] = []

    async def leave_a_task(self: Cast) -> None:
        tasks.append(asyncio.ensure_future(anyio.sleep(3600)))
        await perform(self)

    monkeypatch.setattr(Cast, "perform", leave_a_task)
    faults = run(Example("asyncio", "jsonl", "cast", "quick", "scope", 0.0, 8.0, 0))
    assert len(tasks) == len([fault for fault in faults if fault.startswith("the task")]) == 1
