"""What a crash beside an entity does to it: it is quarantined, and continues by itself when the quarantine is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Cantrip,
    CantripError,
    Circle,
    Companion,
    EntityCrashed,
    Folding,
    Quarantined,
    Runtime,
    scripted,
)
from cantrip_actors.observe import Telemetry
from cantrip_actors.runtime.circles.program_actor import CircleActor
from cantrip_actors.runtime.entity.performer import Performer
from cantrip_actors.wards import max_turns
from tests.runtime.spells import done

pytestmark = pytest.mark.rule("V-10")

DOWN = "the database is down"


class Outside:
    """A part outside the entity that is down for some time; `times` are the seconds at which it was used meanwhile."""

    def __init__(self) -> None:
        self.is_down = False
        self.times: list[float] = []

    def use(self) -> None:
        if self.is_down:
            self.times.append(anyio.current_time())
            raise ConnectionError(DOWN)


class Diary(Companion):
    """A companion that uses the outside in one of its hooks."""

    def __init__(self, outside: Outside, hook: str) -> None:
        self.outside, self.hook = outside, hook

    async def begins(self, here: Any) -> None:
        if self.hook == "begins":
            self.outside.use()

    async def recalls(self, here: Any, last: int) -> None:
        if self.hook == "recalls":
            self.outside.use()

    async def ends(self, here: Any, outcome: Any) -> None:
        if self.hook == "ends":
            self.outside.use()


def count_intents(context: Any) -> Any:
    return done(f"{sum(message.role == 'user' for message in context)} intents")


def use_in(kind: str, outside: Outside, monkeypatch: pytest.MonkeyPatch) -> Cantrip:
    """Return a cantrip whose entities use the outside in that place."""
    target: Any
    target, name = {"sandbox": (CircleActor, "_rebuild"), "bug": (Performer, "_ask")}.get(kind, (None, ""))
    if target is not None:
        original = getattr(target, name)

        def use(self: Any, *args: Any) -> Any:
            outside.use()
            return original(self, *args)

        monkeypatch.setattr(target, name, use)
    if kind == "sandbox":
        return Cantrip(
            scripted(lambda _: {"code": "done('computed')"}),
            circle=Circle(["done"], [max_turns(9)], medium="python"),
        )
    companion = Diary(outside, kind) if target is None else None
    folding = Folding(trigger_after_turns=2) if kind == "recalls" else Folding()
    circle = Circle(["done"], [max_turns(9)], companion=companion)
    return Cantrip(scripted(count_intents), circle=circle, folding=folding, name="agent")


def open_runtime(cantrip: Cantrip, store: str, folder: Path, **settings: Any) -> Runtime:
    url = "memory:" if store == "memory" else f"{store}:{folder / 'loom'}"
    return Runtime.open(url, cantrips=[cantrip], **settings)


@pytest.mark.parametrize(
    ("kind", "store"),
    [
        ("begins", "memory"),
        ("begins", "sqlite"),
        ("begins", "jsonl"),
        ("recalls", "memory"),
        ("sandbox", "memory"),
        ("bug", "memory"),
    ],
)
async def test_a_crash_beside_an_entity_quarantines_it_until_the_cause_is_mended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, store: str
) -> None:
    outside = Outside()
    cantrip = use_in(kind, outside, monkeypatch)
    async with open_runtime(cantrip, store, tmp_path, quarantine_for=60.0, passivate_after=30.0) as runtime:
        entity = await runtime.invoke(cantrip, "one", name="notes")
        await entity.episode()
        for intent in ("two", "three")[: kind == "recalls" and 2]:
            await entity.send(intent)
        await anyio.sleep(40)
        outside.is_down = True
        with pytest.raises(Quarantined, match=DOWN) as raised:
            await entity.send("while it is down", key="a")
        assert isinstance(raised.value, EntityCrashed)
        assert isinstance(raised.value.__cause__, ConnectionError)
        with pytest.raises(Quarantined, match=DOWN):
            await entity.send("also while it is down", key="b")
        assert runtime.entity("notes").id == entity.id
        assert list(runtime.loom.quarantines()) == [entity.id]
        await anyio.sleep(250)
        outside.is_down = False
        times = [time - outside.times[0] for time in outside.times]
        assert times == pytest.approx([0, 0, 60, 60, 180, 180], abs=5), times
        await anyio.sleep(200)
        assert [(await runtime.receipt("notes", key).episode()).terminated for key in "ab"] == [True, True]
        assert not runtime.loom.quarantines()
        await entity.send("well again")


async def test_a_crash_after_the_end_of_an_episode_loses_neither_the_answer_nor_the_entity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside = Outside()
    cantrip = use_in("ends", outside, monkeypatch)
    async with Runtime.open(cantrips=[cantrip]) as runtime:
        outside.is_down = True
        entity = await runtime.invoke(cantrip, "one", name="notes")
        assert (await entity.episode()).result == "1 intents"
        outside.is_down = False
        assert (await entity.send("two")).result == "2 intents"


async def test_a_one_shot_entity_with_a_key_continues_by_itself_after_its_quarantine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside = Outside()
    cantrip = use_in("begins", outside, monkeypatch)
    async with Runtime.open(cantrips=[cantrip]) as runtime:
        outside.is_down = True
        for _ in range(2):
            with pytest.raises(Quarantined, match=DOWN) as raised:
                await runtime.cast(cantrip, "go", key="order-17")
        outside.is_down = False
        await anyio.sleep(700)
        assert raised.value.entity_id is not None
        assert runtime.loom.state(raised.value.entity_id) == "terminated"
        assert (await runtime.cast(cantrip, "go", key="order-17")).result == "1 intents"


@pytest.mark.parametrize("recover", ["list", "resume"])
async def test_a_quarantine_outlives_its_process_and_ends_in_the_next_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recover: Any
) -> None:
    outside = Outside()
    cantrip = use_in("begins", outside, monkeypatch)
    async with open_runtime(cantrip, "sqlite", tmp_path, quarantine_for=60.0) as runtime:
        outside.is_down = True
        entity = await runtime.invoke(cantrip, "go", name="notes")
        with pytest.raises(Quarantined):
            await entity.episode()
        outside.is_down = False
    async with open_runtime(cantrip, "sqlite", tmp_path, recover=recover) as runtime:
        with pytest.raises(Quarantined, match=DOWN):
            await runtime.entity("notes").send("more", key="k")
        await anyio.sleep(70)
        assert (await runtime.receipt("notes", "k").episode()).result == "2 intents"


async def test_without_an_end_only_resume_lifts_a_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    outside = Outside()
    cantrip = use_in("begins", outside, monkeypatch)
    async with Runtime.open(cantrips=[cantrip], quarantine_for=None) as runtime:
        outside.is_down = True
        entity = await runtime.invoke(cantrip, "go", name="notes")
        with pytest.raises(Quarantined, match="not tried again by itself"):
            await entity.episode()
        outside.is_down = False
        await anyio.sleep(80_000)
        assert len(outside.times) == 2
        await runtime.resume(entity.id)
        assert (await entity.send("two")).result == "2 intents"


async def test_a_quarantined_entity_is_counted_until_it_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    outside, telemetry = Outside(), Telemetry()

    def count() -> float:
        return telemetry.counters.read_values("cantrip.entities.quarantined")[()]

    cantrip = use_in("begins", outside, monkeypatch)
    async with Runtime.open(cantrips=[cantrip], telemetry=telemetry) as runtime:
        assert count() == 0
        outside.is_down = True
        entity = await runtime.invoke(cantrip, "go", name="notes")
        with pytest.raises(CantripError):
            await entity.episode()
        assert count() == 1
        outside.is_down = False
        await runtime.resume(entity.id)
        assert count() == 0
