"""The blocking face, for entities that last: whatever async code does with them, code that is not async does too."""

import time

import pytest

from cantrip_actors import EntityEnded, Runtime
from tests.runtime.spells import cantrip, done


@pytest.mark.rule("D-001")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_entity_is_found_again_by_its_name_and_talked_to(tmp_path, backend: str) -> None:
    spell = cantrip(lambda ctx: done([m.content for m in ctx if m.role == "user"]))
    url = f"sqlite:{tmp_path / 'loom.db'}"
    with Runtime.blocking(url, backend=backend) as runtime:
        assert runtime.invoke(spell, "milk", name="notes").episode().result == ["milk"]
    with Runtime.blocking(url, backend=backend) as runtime:
        assert runtime.interrupted() == []
        assert runtime.entity("nobody") is None
        entity = runtime.resume(runtime.entity("notes").id, cantrip=spell)
        assert entity.name == "notes"
        assert entity.send("bread").result == ["milk", "bread"]
        entity.steer("no eggs")
        entity.interrupt()
        assert entity.send("tea").result == ["milk", "bread", "no eggs", "tea"]
        entity.stop("enough")
        assert runtime.entity("notes") is None
        with pytest.raises(EntityEnded):
            entity.send("more")


def test_what_a_crash_cut_short_is_abandoned(tmp_path) -> None:
    async def slow(_: object) -> dict[str, object]:
        return {**done("late"), "delay": 3600.0}

    url = f"sqlite:{tmp_path / 'loom.db'}"
    with Runtime.blocking(url) as runtime:
        entity = runtime.invoke(cantrip(slow), "go", name="x")
        while not runtime.loom.has(entity.id):
            time.sleep(0.01)
    with Runtime.blocking(url) as runtime:
        (header,) = runtime.interrupted()
        runtime.abandon(header.entity_id)
        assert runtime.interrupted() == []
