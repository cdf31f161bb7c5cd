"""Episodes and errors of casts in another process: a queue of jobs, a pool of processes, a cache."""

import copy
import pickle

import pytest
from pydantic import BaseModel

from cantrip_actors import Cantrip, NoAnswer, Runtime, Truncated, scripted
from tests.runtime.spells import done


class Place(BaseModel):
    city: str


@pytest.mark.rule("Y-11")
async def test_an_episode_reaches_another_process_with_its_answer_its_thread_and_its_usage() -> None:
    places = Cantrip(scripted([done({"city": "Oslo"})]), answer=Place, gates=[], max_turns=3)
    async with Runtime.open() as runtime:
        episode = await runtime.cast(places, "Where?")
        sent = pickle.dumps(episode)
        copied = copy.deepcopy(episode)
    again = pickle.loads(pickle.dumps(pickle.loads(sent)))
    for same in (again, copied):
        assert same.result == episode.result == Place(city="Oslo")
        assert same.thread == episode.thread
        assert (same.entity_id, same.usage, same.reason) == (episode.entity_id, episode.usage, episode.reason)


@pytest.mark.rule("Y-11")
async def test_an_episode_without_an_answer_says_so_in_another_process() -> None:
    places = Cantrip(scripted(lambda _: {"content": "hm"}), answer=Place, gates=[], max_turns=1)
    async with Runtime.open() as runtime:
        again = pickle.loads(pickle.dumps(await runtime.cast(places, "Where?")))
    with pytest.raises(Truncated, match="max_turns"):
        _ = again.result


@pytest.mark.rule("D-011")
async def test_the_error_of_a_late_answer_reaches_another_process() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("desk", Cantrip(scripted([{"content": "Hi."}]), gates=[], max_turns=3))
        with pytest.raises(NoAnswer) as late:
            await entity.send("Hello.", key="k", timeout=0)
        again = pickle.loads(pickle.dumps(late.value))
    assert str(again) == str(late.value)
    assert again.entity_id == entity.id
