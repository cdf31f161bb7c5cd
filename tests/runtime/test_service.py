"""What a service does to a runtime: requests that are cancelled anywhere, many of them, one after the other."""

import anyio
import pytest
from anyio.lowlevel import checkpoint

from cantrip_actors import Runtime
from cantrip_actors.crystal.contract import Query
from cantrip_actors.crystals import fallback, limited
from cantrip_actors.model.messages import Invocation, Message
from tests.runtime.spells import cantrip

QUERY = Query(Invocation([Message("user", "go")]))


class Model:
    """A crystal that has to be waited for."""

    name = "model"

    async def invoke(self, messages):
        await checkpoint()
        return {"content": "here"}


async def cancelled_after(checkpoints, work):
    """Have `work` done in a task that is cancelled after so many checkpoints of ours."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        for _ in range(checkpoints):
            await checkpoint()
        tasks.cancel_scope.cancel()


@pytest.mark.rule("PROD-2")
@pytest.mark.parametrize("checkpoints", range(12))
async def test_a_request_that_is_cancelled_anywhere_is_nothing_to_the_next_one(checkpoints):
    async with Runtime.open() as runtime:
        model = Model()
        for crystal in (model, fallback(model, limited(Model(), concurrency=2))):
            spell = cantrip(crystal)

            async def cast(spell=spell):
                await runtime.cast(spell, "go")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancelled_after, checkpoints, cast)
                for _ in range(checkpoints):
                    await checkpoint()
                assert (await runtime.cast(spell, "go")).result == "here"


@pytest.mark.rule("PROD-2")
@pytest.mark.parametrize("checkpoints", range(8))
async def test_a_question_that_is_cancelled_anywhere_is_nothing_to_the_next_one(checkpoints):
    async with Runtime.open() as runtime:
        model = Model()

        async def ask():
            await runtime.ask(model, QUERY)

        await cancelled_after(checkpoints, ask)
        assert (await runtime.ask(model, QUERY)).content == "here"
        assert runtime._house.services.crystals.find(model).users == 0
