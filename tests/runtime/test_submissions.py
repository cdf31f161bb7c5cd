"""Submissions that are withdrawn: before a node reads them, while it does, and when it is too late."""

from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    BlockingRuntime,
    Cantrip,
    Circle,
    KeyUsed,
    NoAnswer,
    Queue,
    Runtime,
    UnfinishedWork,
    Withdrawn,
    gate,
    scripted,
)
from cantrip_actors.wards import max_turns
from tests.loom.test_store import LASTING, SHARED, anywhere
from tests.runtime.test_cluster import DESK, answering, node

pytestmark = pytest.mark.rule("C-19", "N-17")


@gate(idempotent=True)
async def work() -> str:
    """Work for a minute."""
    await anyio.sleep(60)
    return "worked"


@pytest.fixture(params=LASTING)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with anywhere(request.param) as place:
        yield place.url


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest) -> Iterator[str]:
    with anywhere(request.param) as place:
        yield place.url


async def test_a_waiting_submission_is_withdrawn_and_never_begins(url: str) -> None:
    async with Runtime.open(url) as client:
        first, second = await client.submit("desk", "one", key="k"), await client.submit("desk", "two")
        assert [await first.withdraw(), await first.withdraw()] == ["withdrawn", "withdrawn"]
        with pytest.raises(Withdrawn, match="withdrawn before entity"):
            await first.episode()
    async with Runtime.open(url, cantrips=[DESK]) as runtime:
        await anyio.sleep(1)
        assert (runtime.loom.has_begun(first.entity_id), runtime.loom.has_begun(second.entity_id)) == (False, True)
        assert runtime.schedules() == []


async def test_a_submission_is_found_by_its_key_until_it_is_withdrawn(url: str) -> None:
    async with Runtime.open(url) as client:
        made = await client.submit("desk", "one", key="k")
        assert await client.submission("other") is None
    async with Runtime.open(url) as runtime:
        found = await runtime.submission("k")
        assert found is not None
        assert (found.entity_id, found.has_begun) == (made.entity_id, False)
        assert await found.withdraw() == "withdrawn"
        assert await runtime.submission("k") is None


async def test_a_submission_that_has_begun_is_found_by_its_key(url: str) -> None:
    async with Runtime.open(url, cantrips=[DESK]) as runtime:
        made = await runtime.submit("desk", "one", key="k")
        await made.episode()
        found = await runtime.submission("k")
        assert found is not None
        assert (found.entity_id, found.has_begun) == (made.entity_id, True)


async def test_a_submission_that_waits_has_no_requests_and_no_end_to_continue_from(url: str) -> None:
    async with Runtime.open(url) as client:
        submission = await client.submit("desk", "one", key="k")
        assert submission.requests() == []
        for key in (None, "more"):
            with pytest.raises(UnfinishedWork):
                await submission.continue_with("two", key=key)
            with pytest.raises(UnfinishedWork):
                await submission.fork_with("two", key=key)


async def test_the_key_of_a_withdrawn_submission_can_be_used_for_something_else(url: str) -> None:
    async with Runtime.open(url) as client:
        assert await (await client.submit("desk", "one", key="k")).withdraw() == "withdrawn"
        await client.submit("desk", "two", key="k")
    async with Runtime.open(url, cantrips=[DESK]) as runtime:
        assert (await (await runtime.submit("desk", "two", key="k")).episode()).result == "two"


@pytest.mark.rule("N-24")
async def test_a_key_is_refused_with_other_content_and_says_what_differs_before_and_after_the_beginning(
    url: str,
) -> None:
    async def submit_others(client: Runtime) -> None:
        for cantrip, intent, differs in (
            ("desk", "two", "intent"),
            ("scout", "one", "cantrip"),
            ("scout", "two", "cantrip and intent"),
        ):
            with pytest.raises(KeyUsed, match=f"what differs is {differs}: use another key"):
                await client.submit(cantrip, intent, key="k")

    async with Runtime.open(url) as client:
        await client.submit("desk", "one", key="k")
        await submit_others(client)
    async with Runtime.open(url, cantrips=[DESK]) as runtime:
        episode = await (await runtime.get_submission("k")).result()
        await submit_others(runtime)
        await runtime.forget(episode.entity_id)
        with pytest.raises(KeyUsed, match="an entity that is forgotten"):
            await runtime.submit("desk", "one", key="k")


@pytest.mark.rule("N-38")
async def test_a_caller_that_waited_too_long_for_a_submission_can_wait_on_by_its_id(url: str) -> None:
    async with Runtime.open(url) as client:
        with pytest.raises(NoAnswer) as late:
            await (await client.submit("desk", "one", key="k")).result(timeout=1)
        assert str(late.value).endswith("wait on with runtime.work('submission:k').result()")
    async with Runtime.open(url, cantrips=[DESK]) as runtime:
        work = runtime.work("submission:k")
        assert work is not None
        assert (await work.result()).result == "one"


async def test_a_submission_that_has_begun_cannot_be_withdrawn(url: str) -> None:
    async with Runtime.open(url, cantrips=[answering(delay=3)]) as runtime:
        submission = await runtime.submit("desk", "one")
        await anyio.sleep(1)
        assert await submission.withdraw() == "working"
        assert (await submission.episode()).result == "one"
        assert await submission.withdraw() == "settled"


async def test_a_submission_that_a_node_has_read_but_not_begun_is_withdrawn(shared: str) -> None:
    async with Runtime.open(shared) as client, node(shared, "w1") as worker:
        casts = worker._tree.scheduler.casts
        begin = casts.begin_submission

        async def begin_late(*given: Any) -> None:
            await anyio.sleep(2)
            await begin(*given)

        casts.begin_submission = begin_late  # type: ignore[method-assign]
        submission = await client.submit("desk", "one")
        await anyio.sleep(1)
        assert await submission.withdraw() == "withdrawn"
        await anyio.sleep(4)
        assert not submission.has_begun


async def test_a_submission_that_a_node_begins_at_this_moment_is_not_withdrawn(shared: str) -> None:
    async with Runtime.open(shared) as client, node(shared, "w1") as worker:
        casts: Any = worker._tree.scheduler.casts
        launch = casts._launch

        async def launch_late(*given: Any, **options: Any) -> Any:
            await anyio.sleep(2)
            return await launch(*given, **options)

        casts._launch = launch_late
        submission = await client.submit("desk", "one")
        await anyio.sleep(1.5)
        assert await submission.withdraw() != "withdrawn"
        assert (await submission.episode()).result == "one"


async def test_an_entity_that_waits_in_a_queue_is_stopped_and_never_begins(url: str) -> None:
    slow = answering(delay=5)
    async with Runtime.open(url, cantrips=[slow], queues=[Queue("reports", max_running=1)]) as runtime:
        first, second = [await runtime.submit("desk", f"job {n}", queue="reports") for n in range(2)]
        await anyio.sleep(1)
        await second.entity.stop("not needed")
        assert second.state == "withdrawn"
        await first.entity.stop("not needed")
        assert runtime.loom.is_over(first.entity_id)
        await anyio.sleep(10)
        assert not second.has_begun


async def test_an_entity_that_a_node_begins_at_this_moment_is_stopped(shared: str) -> None:
    async with Runtime.open(shared) as client, node(shared, "w1", answering(delay=60)) as worker:
        casts: Any = worker._tree.scheduler.casts
        launch = casts._launch

        async def launch_late(*given: Any, **options: Any) -> Any:
            await anyio.sleep(2)
            return await launch(*given, **options)

        casts._launch = launch_late
        submission = await client.submit("desk", "one")
        await anyio.sleep(1.5)
        await submission.entity.stop("not needed")
        assert client.loom.is_over(submission.entity_id)


async def test_a_caller_that_waits_for_a_submission_learns_that_another_process_withdrew_it(shared: str) -> None:
    async with Runtime.open(shared) as client, Runtime.open(shared) as other, anyio.create_task_group() as tasks:
        waiting, errors = await client.submit("desk", "one", key="k"), list[Withdrawn]()

        async def wait() -> None:
            try:
                await waiting.episode()
            except Withdrawn as error:
                errors.append(error)

        tasks.start_soon(wait)
        await anyio.sleep(1)
        assert await (await other.submit("desk", "one", key="k")).withdraw() == "withdrawn"
        await anyio.sleep(1)
        assert [(one.entity_id, one.key) for one in errors] == [(waiting.entity_id, "k")]


async def test_a_submission_that_waits_in_a_full_queue_is_withdrawn(url: str) -> None:
    slow = answering(delay=5)
    async with Runtime.open(url, cantrips=[slow], queues=[Queue("reports", max_running=1)]) as runtime:
        casts = [await runtime.submit("desk", f"job {n}", queue="reports") for n in range(3)]
        await anyio.sleep(1)
        assert [await one.withdraw() for one in casts] == ["working", "withdrawn", "withdrawn"]
        assert (await runtime.cluster.queues())[0].waiting == 0
        assert (await casts[0].episode()).result == "job 0"


@pytest.mark.real_time
def test_blocking_code_withdraws_a_submission(tmp_path: Any) -> None:
    with BlockingRuntime.open(f"sqlite:{tmp_path}/loom.db") as runtime:
        assert runtime.submit("desk", "one").withdraw() == "withdrawn"


async def test_a_repeated_submission_continues_an_entity_whose_process_has_ended(url: str) -> None:
    desk = Cantrip(
        scripted([{"tool_calls": [{"gate": "work", "args": {}}]}, "done"]),
        circle=Circle(["done", work], [max_turns(5)]),
        name="desk",
    )
    async with Runtime.open(url, cantrips=[desk]) as runtime:
        await runtime.submit("desk", "one", key="k")
        await anyio.sleep(5)
    async with Runtime.open(url, cantrips=[desk]) as runtime:
        with anyio.fail_after(200):
            assert (await (await runtime.submit("desk", "one", key="k")).result()).result == "done"
