"""Two attempts at one answer, of which the first one that speaks counts."""

from collections import deque

import anyio
import pytest
from anyio.lowlevel import checkpoint

from cantrip_actors.crystal.policy.hedge import run_hedged
from cantrip_actors.crystal.policy.limited import Hedge
from cantrip_actors.crystal.query import Query
from cantrip_actors.stream.wire import ItemStart
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.messages import Invocation, Message, Response, Usage


async def run_race(attempts, seen):
    """Run a hedged query, whose attempts are these functions in order; the second begins at once."""
    left = iter(attempts)

    async def through(query, attempt):
        return await attempt(query)

    async def make_attempt(query):
        return await next(left)(query)

    query = Query(Invocation([Message("user", "hello")]), emit=seen.append)
    return await run_hedged(Hedge(after=0.0), deque(), through, query, make_attempt)


async def race_streamed_against_whole(streamed_end):
    """Race an attempt that streams against one that has its whole answer in the same moment."""
    ready, seen, results = anyio.Event(), [], []

    async def stream(query):
        await ready.wait()
        query.emit(ItemStart("streamed", "message"))
        await anyio.sleep(1)
        return streamed_end()

    async def answer_whole(_query):
        await ready.wait()
        return Response("whole", usage=Usage(1, 1))

    async def run():
        try:
            results.append(await run_race([stream, answer_whole], seen))
        except ProviderError as error:
            results.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        ready.set()
    return results[0], seen


@pytest.mark.parametrize("_", range(5))  # trio runs the two attempts in either order
async def test_the_response_is_that_of_the_attempt_that_was_streamed_when_both_are_ready_at_once(_):
    response, seen = await race_streamed_against_whole(lambda: Response("streamed", usage=Usage(1, 1)))
    assert response.content == ("streamed" if seen else "whole")


@pytest.mark.parametrize("_", range(5))
async def test_the_error_of_the_streamed_attempt_counts_with_the_usage_of_both(_):
    def break_off():
        raise ProviderError("it broke off", usage=Usage(5, 5))

    result, seen = await race_streamed_against_whole(break_off)
    assert isinstance(result, ProviderError if seen else Response)
    if seen:
        assert result.usage == Usage(6, 6)


@pytest.mark.parametrize("steps", range(12))
async def test_no_second_attempt_begins_after_the_first_has_spoken(steps):
    order = []

    async def speak(query):
        for _ in range(steps):
            await checkpoint()
        order.append("the first speaks")
        query.emit(ItemStart("0", "message"))
        await anyio.sleep(1)
        return Response("first", usage=Usage(1, 1))

    async def begin(_query):
        order.append("the second begins")
        await anyio.sleep(10)

    await run_race([speak, begin], [])
    assert order in (["the first speaks"], ["the second begins", "the first speaks"])
