"""A reward with a key is recorded once, whichever processes give it, and however often at the same moment."""

from pathlib import Path

import anyio
import pytest

from cantrip_actors import Episode, Runtime
from cantrip_actors.looms import KeyUsed, Rewarded
from tests.runtime.spells import cantrip, done

ANSWERER = cantrip(lambda _: done("yes"))


def list_rewards(runtime: Runtime, episode: Episode) -> list[float]:
    records = runtime.loom.records(episode.entity_id)
    return [record.reward for record in records if isinstance(record, Rewarded)]


@pytest.mark.parametrize("loom", ["memory:", "jsonl:{}/loom.jsonl", "sqlite:{}/loom.db"])
async def test_a_reward_that_is_given_three_times_at_once_with_its_key_is_recorded_once(
    tmp_path: Path, loom: str
) -> None:
    results: list[bool] = []
    async with Runtime.open(loom.format(tmp_path)) as runtime:
        episode = await runtime.cast(ANSWERER, "Is it so?")
        await runtime.cast(ANSWERER, "Is it still so?")  # else the first reward would be written without a wait

        async def reward() -> None:
            results.append(await runtime.loom.reward(episode.thread[-1].id, 1.0, key="k"))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(reward)
        assert sorted(results) == [False, False, True]
        assert list_rewards(runtime, episode) == [1.0]


async def test_two_processes_cannot_give_different_rewards_with_one_key(tmp_path: Path) -> None:
    results: list[object] = []

    async def reward(runtime: Runtime, turn_id: str, value: float) -> None:
        try:
            results.append(await runtime.loom.reward(turn_id, value, key="k"))
        except KeyUsed as error:
            results.append(type(error))

    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as runtime, Runtime.open(url) as other:
        for _ in range(3):
            episode = await runtime.cast(ANSWERER, "Is it so?")
            await runtime.cast(ANSWERER, "Is it still so?")
            results.clear()
            async with anyio.create_task_group() as tasks:
                for giver, value in ((runtime, 1.0), (other, 2.0), (runtime, 3.0)):
                    tasks.start_soon(reward, giver, episode.thread[-1].id, value)
            assert results.count(True) == 1
            assert results.count(KeyUsed) == 2
            assert len(list_rewards(runtime, episode)) == 1
