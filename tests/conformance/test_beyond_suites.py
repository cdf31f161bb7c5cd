"""Rules that the SPEC's suite leaves to other tests, because they are not about input and output (ENTITY-1, PROD-1)."""

import inspect

import pytest

from cantrip_actors import Cantrip, CantripError, Circle, Entity, Runtime, scripted
from cantrip_actors.wards import max_turns


def hello() -> Cantrip:
    return Cantrip(crystal=scripted(lambda _: "hello"), circle=Circle(gates=["done"], wards=[max_turns(2)]))


@pytest.mark.rule("ENTITY-1")
async def test_an_entity_is_made_only_of_a_cantrip_and_an_intent():
    async with Runtime.open("memory:") as runtime:
        assert runtime.loom.entities() == []
        for make in (runtime.cast, runtime.start, runtime.invoke):
            names = list(inspect.signature(make).parameters)
            assert names[:2] == ["cantrip", "intent"]
            with pytest.raises(CantripError):
                await make(hello(), "")
            with pytest.raises(CantripError):
                await make(None, "greet")
            with pytest.raises(CantripError):
                await make(Circle(gates=["done"], wards=[max_turns(2)]), "greet")
        assert runtime.loom.entities() == []
        episode = await runtime.cast(hello(), "greet")
        assert runtime.loom.entities() == [episode.entity_id]


@pytest.mark.rule("ENTITY-1")
def test_a_handle_cannot_be_constructed():
    with pytest.raises(TypeError):
        Entity()


@pytest.mark.rule("PROD-1")
def test_a_blocking_and_an_async_runtime_record_the_same_turns():
    with Runtime.blocking("memory:") as blocking:
        episode = blocking.cast(hello(), "greet")
        told = [(t.utterance, t.observation, t.terminated, t.sequence) for t in episode.thread]
    assert episode.result == "hello"
    assert told == [("hello", "", True, 1)]
