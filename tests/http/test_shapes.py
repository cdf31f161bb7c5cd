"""Entities as JSON values: all fields of one are of one moment."""

import pytest

from cantrip_actors import Cantrip, Circle, Loom, Runtime, scripted
from cantrip_actors.http.shapes import entity_shape
from cantrip_actors.loom.reading.view import fold_entity
from cantrip_actors.wards import max_turns
from tests.runtime.spells import done, say


@pytest.mark.rule("HTTP-01")
async def test_the_state_and_the_episode_of_an_entity_are_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    spell = Cantrip(scripted([done(1), say("done"), say("done")]), circle=Circle(["done"], [max_turns(1)]))
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(spell, "one", name="bob")
        await entity.episode()
        earlier = [fold_entity(runtime.loom, entity.id)]
        assert (await entity.send("two")).reason == "truncated"

        def fold_before(loom: Loom, entity_id: str) -> object:
            return earlier.pop() if earlier else fold_entity(loom, entity_id)

        monkeypatch.setattr(
            "cantrip_actors.loom.reading.overview.fold_entity", fold_before
        )  # the second one ends meanwhile
        shape = entity_shape(runtime, entity.id)
    assert (shape["state"], shape["episode"]["reason"]) == ("idle", "terminated")
