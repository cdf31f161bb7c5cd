"""The texts that a long-lived entity was given, for clients that repeat their conversation with each request."""

import pytest

from cantrip_actors import Loom, Runtime
from cantrip_actors.http import given_texts
from cantrip_actors.http.given_texts import GivenTexts
from tests.http.serving import echo, in_process

pytestmark = pytest.mark.rule("W-21")


@pytest.fixture
def positions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions after which the texts of an entity were read."""
    read: list[int] = []
    texts_since = Loom.texts_since

    def spy(loom: Loom, entity_id: str, position: int = -1) -> tuple[set[str], int]:
        read.append(position)
        return texts_since(loom, entity_id, position)

    monkeypatch.setattr(Loom, "texts_since", spy)
    return read


async def test_a_request_reads_what_the_log_has_grown_by_since_the_one_before(positions: list[int]) -> None:
    async with in_process([echo()]) as on:
        entity = await on.runtime.invoke(on.service.cantrips["echo"], "one", name="bob")
        await entity.episode()
        messages = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "you said: one"}]
        for text in ("two", "three"):
            messages.append({"role": "user", "content": text})
            await on.post("/v1/chat/completions", {"model": "entity:bob", "messages": messages}, 200)
            messages.append({"role": "assistant", "content": f"you said: {text}"})
        assert [intent.history for intent in on.runtime.loom.intents(entity.id)] == [(), (), ()]
        first, second = positions
        assert first == -1
        assert second > 0


async def test_texts_of_a_repeated_request_are_those_before_it() -> None:
    async with Runtime.open("memory:", cantrips=[echo()]) as runtime:
        entity = await runtime.invoke(echo(), "one", name="bob")
        await entity.send("two", key="k")
        texts = GivenTexts()
        assert texts.find(runtime.loom, entity.id, None) == {"one", "two"}
        assert texts.find(runtime.loom, entity.id, "k") == {"one"}
        await entity.steer("three")
        await entity.send("four")
        assert texts.find(runtime.loom, entity.id, None) == {"one", "two", "three", "four"}


async def test_entities_with_many_texts_are_read_each_time(
    monkeypatch: pytest.MonkeyPatch, positions: list[int]
) -> None:
    monkeypatch.setattr(given_texts, "MOST_CHARACTERS", 2)
    async with Runtime.open("memory:", cantrips=[echo()]) as runtime:
        entity = await runtime.invoke(echo(), "one", name="bob")
        texts = GivenTexts()
        for _ in range(2):
            assert texts.find(runtime.loom, entity.id, None) == {"one"}
        assert positions == [-1, -1]
