"""Lookups of entities and submissions, and the word for the state of an idle entity (Y-22)."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, ProviderError, Runtime, UnknownEntity, scripted
from cantrip_actors.loom.reading.statistics import statistics
from cantrip_actors.observe.overview import Overview
from cantrip_actors.wards import max_turns

pytestmark = pytest.mark.rule("Y-22")


async def test_lookups_of_the_unknown_return_none_and_their_twins_raise() -> None:
    async with Runtime.open("memory:") as runtime:
        for seen in (runtime, runtime.tenant("acme")):
            assert [seen.entity("nobody"), seen.find("nobody"), await seen.submission("none")] == [None] * 3
            with pytest.raises(UnknownEntity, match="entity nobody is not in this loom") as raised:
                seen.get_entity("nobody")
            assert raised.value.entity == "nobody"
            with pytest.raises(UnknownEntity, match="the submission with the key 'none' is not in this loom"):
                await seen.get_submission("none")
            for read in (seen.loom.header, seen.loom.state, seen.loom.turns, seen.loom.facts, seen.loom.outcome):
                with pytest.raises(UnknownEntity):
                    read("nobody")
            for act in (seen.resume, seen.abandon, seen.forget):
                with pytest.raises(UnknownEntity):
                    await act("nobody")


async def test_a_long_lived_entity_is_idle_after_an_episode_however_it_ended(tmp_path: Path) -> None:
    def answer(context: Any) -> Any:
        if context[-1].content == "fail":
            raise ProviderError("it is broken")
        if context[-1].content == "long":
            return {"tool_calls": [{"gate": "unknown", "args": {}}]}
        return "ok"

    url, cantrip = f"sqlite:{tmp_path / 'loom.db'}", Cantrip(scripted(answer), circle=Circle(["done"], [max_turns(1)]))
    async with Runtime.open(url) as runtime:
        entity = await runtime.ensure("notes", cantrip)
        for intent, reason in (("go", "terminated"), ("long", "truncated"), ("fail", "failed")):
            with suppress(ProviderError):
                await entity.send(intent)
            (listed,) = await runtime.entities(state="idle")
            assert (listed.name, listed.state, runtime.loom.state(entity.id)) == ("notes", "idle", "idle")
            assert runtime.loom.outcome(entity.id).reason == reason
            assert [row["state"] for row in Overview(runtime.loom).look()["entities"]] == ["idle"]
            assert statistics(runtime.loom).states == {"idle": 1}
        await entity.stop()
        assert runtime.loom.state(entity.id) == "cancelled"


@pytest.mark.rule("W-01")
async def test_work_is_looked_up_by_few_records_of_a_long_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(context: Any) -> Any:
        return {"content": "ok", "delay": 60.0 if context[-1].content == "wait" else 0.0}

    cantrip = Cantrip(scripted(answer), circle=Circle(["done"], [max_turns(1)]))
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.invoke(cantrip, "go", name="notes")
        for number in range(20):
            await entity.send(f"{number}")
        work = await entity.post("wait", key="k")
        await anyio.sleep(1)
        read, records = [], runtime._tree.store.records

        def count(*args: Any, **options: Any) -> Any:
            read.append(records(*args, **options))
            return read[-1]

        monkeypatch.setattr(runtime._tree.store, "records", count)
        assert work.state == "working"
        assert work.find_outcome() is None
        assert entity.work.is_known
        assert read
        assert max(map(len, read)) <= 3
        assert (await work.result()).result == "ok"
        found = work.find_outcome()
        assert found is not None
        assert found.result == "ok"
