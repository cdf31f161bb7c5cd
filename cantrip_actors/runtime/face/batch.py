"""Many casts of one cantrip whose queries go in batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

import anyio

from cantrip_actors.crystal import resolve
from cantrip_actors.crystal.query import PostingCrystal
from cantrip_actors.runtime.face.episode import Episode
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.errors import CantripError
from cantrip_actors.terms.image import Said


async def cast_all(
    cast: Callable[..., Awaitable[Episode]], cantrip: Cantrip, intents: Iterable[Said], key: str, by: str
) -> list[Episode | CantripError]:
    """Return the episode of each intent, or the error of its entity, in the order of `intents`.

    Raises InvalidCantrip for a crystal without batches.
    """
    crystal = resolve(cantrip.crystal)
    if not isinstance(crystal, PostingCrystal):
        from cantrip_actors.crystal.policy.batched import batched  # it needs httpx, which takes long to import

        cantrip = replace(cantrip, crystal=batched(crystal))
    answers: dict[int, Episode | CantripError] = {}

    async def cast_one(index: int, intent: Said) -> None:
        try:
            answers[index] = await cast(cantrip, intent, key=f"{key}-{index}", by=by)
        except CantripError as error:
            answers[index] = error

    async with anyio.create_task_group() as tasks:
        for index, intent in enumerate(intents):
            tasks.start_soon(cast_one, index, intent)
    return [answers[index] for index in range(len(answers))]
