"""Queues of submissions: the order in which they begin, their bounds, and places over crashes (N-50)."""

import random
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Cantrip,
    Circle,
    InvalidIntent,
    KeyUsed,
    LoomError,
    Node,
    Queue,
    QueueFull,
    Runtime,
    ask_first,
    gate,
    scripted,
)
from cantrip_actors.machine.queues import PREFIX, RESERVED, Place, declare, decode_account, take
from cantrip_actors.runtime.time.queues import QueueStatus
from cantrip_actors.wards import max_turns
from tests.exhaustive import part
from tests.loom.postgres import fresh
from tests.runtime.spells import cantrip, done, say
from tests.runtime.test_cluster import answering, crashing

# Times here do not count the work of a store's threads, which takes longer on a slower machine.
pytestmark = [pytest.mark.rule("N-50"), pytest.mark.thread_rate(0.01)]

DESK = answering(delay=1)
REPORTS = Queue("reports", max_running=2)
KINDS = ["memory", "jsonl", "sqlite", "postgres"]


def url_of(kind: str, folder: Path) -> str:
    if kind == "postgres":
        return fresh()
    return "memory:" if kind == "memory" else f"{kind}:{folder / kind}"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_of("sqlite", tmp_path)


@pytest.fixture(params=KINDS)
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


def alone(url: str, *queues: Queue, cantrips: Any = (DESK,), **more: Any) -> Runtime:
    return Runtime.open(url, cantrips=cantrips, queues=queues, **more)


def node(url: str, name: str, *queues: Queue, cantrips: Any = (DESK,), **more: Any) -> Runtime:
    return Runtime.open(url, cantrips=cantrips, queues=queues, node=Node(name, **more))


async def submit(runtime: Runtime, many: int, queue: str = "reports", **more: Any) -> list[Any]:
    return [await runtime.submit("desk", f"{queue} {n}", queue=queue, **more) for n in range(many)]


async def results(submissions: Any) -> list[Any]:
    return [(await one.episode()).result for one in submissions]


async def status(runtime: Runtime, name: str = "reports") -> QueueStatus:
    return next(one for one in await runtime.cluster.queues() if one.name == name)


def count_rows(runtime: Runtime, read: list[int]) -> None:
    """Add to `read` how many submissions each later look reads."""
    look = runtime._tree.store.submissions

    def counted(*args: Any, **more: Any) -> Any:
        rows = look(*args, **more)
        read.append(len(rows))
        return rows

    runtime._tree.store.submissions = counted  # type: ignore[method-assign]


def count_loads(runtime: Runtime) -> list[str]:
    """Return a list to which each entity that the runtime tries to load is added."""
    restore, loads = runtime._tree.launcher.restore, []

    async def counted(entity_id: str, *args: Any, **more: Any) -> Any:
        loads.append(entity_id)
        return await restore(entity_id, *args, **more)

    runtime._tree.launcher.restore = counted  # type: ignore[method-assign]
    return loads


class Watch:
    """The most entities that ran at once, on each runtime and on all together."""

    def __init__(self, *runtimes: Runtime) -> None:
        self._runtimes = runtimes
        self.most = [0] * len(runtimes)
        self.most_together = 0

    async def follow(self) -> None:
        while True:
            now = [len(one._tree.living) for one in self._runtimes]
            self.most = list(map(max, self.most, now))
            self.most_together = max(self.most_together, sum(now))
            await anyio.sleep(0.01)


async def watched(watch: Watch, work: Any) -> Any:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.follow)
        found = await work
        tasks.cancel_scope.cancel()
    return found


# Order and bounds


async def test_a_queue_begins_by_priority_and_then_in_the_order_of_submitting(any_url: str) -> None:
    given = [("a", 0), ("b", -100), ("c", 7), ("d", 0), ("e", 100), ("f", 7)]
    async with alone(any_url, Queue("reports", max_running=1)) as runtime:
        first = await runtime.submit("desk", "first", queue="reports", priority=100)
        await anyio.sleep(0.1)
        casts = []
        for text, priority in given:
            casts.append(await runtime.submit("desk", text, queue="reports", priority=priority))
            await anyio.sleep(0.01)
        episodes = [await cast.episode() for cast in (first, *casts)]
        began = sorted(episodes, key=lambda episode: runtime.loom.entities().index(episode.entity_id))
    assert [episode.result for episode in began] == ["first", "e", "c", "f", "a", "d", "b"]


async def test_a_runtime_alone_keeps_to_both_bounds(any_url: str) -> None:
    queues = Queue("reports", max_running=3), Queue("mails", max_running=10, per_node=2)
    async with alone(any_url, *queues) as runtime:
        watch = Watch(runtime)
        for name, most in (("reports", 3), ("mails", 2)):
            watch.most, begun = [0], anyio.current_time()
            casts = await submit(runtime, 8, name)
            assert await watched(watch, results(casts)) == [f"{name} {n}" for n in range(8)]
            assert anyio.current_time() - begun < 8 / most + 1.5  # a place that is free is taken at once
            assert watch.most == [most]


@pytest.mark.parametrize(("bounds", "together", "each"), [({"max_running": 4}, 4, 4), ({"per_node": 2}, 6, 2)])
async def test_three_nodes_together_keep_to_a_bound(url: str, bounds: dict[str, int], together: int, each: int) -> None:
    queue = Queue("reports", **bounds)
    async with node(url, "w1", queue) as one, node(url, "w2") as two, node(url, "w3") as three, Runtime.open(url) as us:
        await anyio.sleep(3)  # each has seen the others
        watch = Watch(one, two, three)
        casts = await submit(us, 24)
        assert await watched(watch, results(casts)) == [f"reports {n}" for n in range(24)]
        assert watch.most_together == together
        assert max(watch.most) <= each
        await anyio.sleep(1)
        assert (await status(us))[1:3] == (0, 0)


@pytest.mark.real_time
async def test_three_nodes_on_a_server_keep_to_both_bounds() -> None:
    url, quick = fresh(), answering(delay=0.5)
    queue = Queue("reports", max_running=5, per_node=2)
    nodes = [node(url, f"w{n}", queue, cantrips=[quick], beat=0.2, ttl=2) for n in range(3)]
    async with nodes[0] as one, nodes[1] as two, nodes[2] as three, Runtime.open(url) as client:
        await anyio.sleep(0.5)
        watch = Watch(one, two, three)
        casts = await submit(client, 30)
        assert await watched(watch, results(casts)) == [f"reports {n}" for n in range(30)]
        assert watch.most_together == 5
        assert max(watch.most) <= 2


async def test_a_node_takes_no_more_of_a_queue_than_it_has_room_for(url: str) -> None:
    async with node(url, "w1", Queue("reports"), capacity=3) as one:
        await anyio.sleep(1)
        watch = Watch(one)
        casts = await submit(one, 10)
        await watched(watch, results(casts))
        assert watch.most == [3]


async def test_submissions_with_and_without_a_queue_begin_alternately_on_a_full_node(url: str) -> None:
    async with node(url, "w1", Queue("reports"), Queue("mails"), capacity=1) as one:
        casts = {name: await submit(one, 20, name) for name in ("", "reports", "mails")}
        await anyio.sleep(30)
        begun = [sum(cast.has_begun for cast in found) for found in casts.values()]
        assert min(begun) >= 2


async def test_other_nodes_get_a_hint_when_a_place_is_free(url: str) -> None:
    async with node(url, "w1", REPORTS) as one:
        (cast,) = await submit(one, 1)
        while not cast.has_begun:
            await anyio.sleep(0.1)
        told: list[bool] = []
        one._tree.inboxes.notify_processes = lambda: told.append(True)  # type: ignore[method-assign]
        await cast.episode()
        await anyio.sleep(1)
        assert told
        assert (await status(one)).running == 0


async def test_nodes_share_the_waiting_submissions_of_a_queue(url: str) -> None:
    slow = answering(delay=5)
    nodes = [node(url, f"w{n}", Queue("reports"), cantrips=[slow]) for n in range(3)]
    async with nodes[0] as one, nodes[1] as two, nodes[2] as three, Runtime.open(url) as client:
        await anyio.sleep(3)  # each has seen the others
        async with anyio.create_task_group() as tasks:  # at once, so that no node sees a few of them first
            for _ in range(30):
                tasks.start_soon(submit, client, 1)
        await anyio.sleep(4)
        running = [len(runtime._tree.living) for runtime in (one, two, three)]
        assert sum(running) == 30
        assert max(running) <= 15  # the mean is ten (N-17)


async def test_a_full_queue_does_not_delay_another_queue_or_submissions_without_a_queue(any_url: str) -> None:
    slow = answering(delay=1000)
    async with alone(any_url, REPORTS, Queue("mails"), cantrips=[slow, answering(name="quick")]) as runtime:
        await submit(runtime, 4)
        for queue in ("", "mails"):
            begun = anyio.current_time()
            cast = await runtime.submit("quick", "go", queue=queue, priority=-100)
            assert (await cast.episode()).result == "go"
            assert anyio.current_time() - begun < 2


async def test_a_submission_whose_cantrip_is_unknown_here_does_not_delay_later_ones(any_url: str) -> None:
    async with alone(any_url, REPORTS) as runtime:
        for n in range(150):
            await runtime.submit("elsewhere", f"{n}", queue="reports", priority=5)
        assert await results(await submit(runtime, 3)) == ["reports 0", "reports 1", "reports 2"]
        assert (await status(runtime)).waiting == 150
        await anyio.sleep(5)
        read: list[int] = []
        count_rows(runtime, read)
        await anyio.sleep(20)
        assert sum(read) == 0


async def test_a_full_queue_reads_no_waiting_submissions(url: str) -> None:
    slow = answering(delay=1000)
    async with alone(url, REPORTS, cantrips=[slow]) as runtime:
        await submit(runtime, 300)
        await anyio.sleep(5)
        read: list[int] = []
        count_rows(runtime, read)
        await anyio.sleep(30)
        assert sum(read) == 0
        assert (await status(runtime))[1:3] == (298, 2)


async def test_a_client_leaves_queues_to_the_nodes(url: str) -> None:
    async with node(url, "w1") as one, alone(url, REPORTS) as client:
        loads = count_loads(client)
        watch = Watch(client, one)
        assert await watched(watch, results(await submit(client, 3))) == ["reports 0", "reports 1", "reports 2"]
        assert watch.most == [0, 2]
        assert loads == []


@pytest.mark.real_time
@pytest.mark.parametrize("operation", ["episode", "result", "interrupt"])
async def test_an_entity_that_ends_while_a_client_looks_who_runs_it_is_not_called_interrupted(
    operation: str,
) -> None:
    url = fresh()  # it is read in threads, and the node works meanwhile
    async with alone(url, REPORTS) as one, Runtime.open(url) as client:
        (submission,) = await submit(client, 1)
        entity, tree, is_held = submission.entity, client._tree, client._tree.is_held

        def look(entity_id: str) -> bool:
            while one._tree.living.get(entity_id) is not None or is_held(entity_id):
                time.sleep(0.01)
            return False

        while not await client.read(lambda: submission.has_begun):
            await anyio.sleep(0.05)
        if operation != "interrupt":
            tree.is_held = look  # type: ignore[method-assign]
            assert (await (entity.episode() if operation == "episode" else submission.result())).result == "reports 0"
        else:
            post = entity._post_control

            async def post_and_look(*args: Any, **more: Any) -> Any:
                posted = await post(*args, **more)
                tree.is_held = look  # type: ignore[method-assign]
                return posted

            entity._post_control = post_and_look  # type: ignore[method-assign]
            await entity.interrupt(now=True)
            assert (await submission.result()).truncated


# Places


async def test_entities_of_a_dead_node_keep_their_places_on_the_node_that_takes_over(url: str) -> None:
    slow = answering(delay=20)
    async with Runtime.open(url, queues=[REPORTS]) as client:
        async with crashing(node(url, "w1", cantrips=[slow])) as dying:
            casts = await submit(client, 5)
            await anyio.sleep(3)
            assert len(dying._tree.living) == 2
        assert (await status(client))[1:3] == (3, 2)
        async with node(url, "w2", cantrips=[slow]) as second:
            watch = Watch(second)
            assert await watched(watch, results(casts)) == [f"reports {n}" for n in range(5)]
            assert watch.most == [2]


async def test_a_place_is_free_if_its_node_died_before_the_entity_began(url: str) -> None:
    async with Runtime.open(url, queues=[REPORTS]) as client:
        async with crashing(node(url, "w1")) as dying:
            await anyio.sleep(1)

            async def die(*_: Any) -> None:
                await anyio.sleep_forever()

            dying._tree.scheduler.casts.begin_submission = die  # type: ignore[method-assign]
            casts = await submit(client, 5)
            await anyio.sleep(3)
            assert (await status(client))[1:3] == (5, 2)
        begun = anyio.current_time()
        async with node(url, "w2"):
            assert await results(casts) == [f"reports {n}" for n in range(5)]
        assert anyio.current_time() - begun < RESERVED / 2  # a process of this machine is known to be gone


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_place_of_an_unknown_process_is_freed_after_a_time_when_no_process_holds_the_entity(
    kind: str, tmp_path: Path
) -> None:
    url = url_of(kind, tmp_path)
    async with Runtime.open(url, queues=[Queue("reports", max_running=1)]) as client:
        (cast,) = await submit(client, 1)

        def took(seconds_ago: float) -> None:
            def change(_: str | None, now: float) -> tuple[str, None]:
                return take([cast.entity_id], "another machine", 1, _fresh(1), now - seconds_ago)[0], None

            client._tree.store.change_account(PREFIX + "reports", change, 0.0)

        took(0)
        async with node(url, "w1"):
            await anyio.sleep(10)
            assert not cast.has_begun
            took(RESERVED)  # the clock of the store is not that of the test
            assert (await cast.episode()).result == "reports 0"


def _fresh(most: int) -> str:
    return declare(Queue("reports", max_running=most), (), "", None, 0.0)[0]


async def test_a_place_of_an_entity_that_is_over_is_free_though_its_node_could_not_free_it(url: str) -> None:
    async with Runtime.open(url, queues=[Queue("reports", max_running=1)]) as client:
        async with node(url, "w1") as one:
            one._tree.scheduler.queues.settle = _nothing  # type: ignore[method-assign]
            (first,) = await submit(client, 1)
            await first.episode()
        places = decode_account(client._tree.store.accounts(PREFIX)[PREFIX + "reports"]).places
        assert list(places) == [first.entity_id]
        second = await client.submit("desk", "second", queue="reports")
        async with node(url, "w2"):
            assert (await second.episode()).result == "second"


async def _nothing() -> bool:
    return False


async def test_an_entity_that_was_interrupted_keeps_its_place_until_it_is_over(tmp_path: Path) -> None:
    slow = answering(delay=20)
    for kind in ("jsonl", "sqlite"):
        url = url_of(kind, tmp_path)
        queue = Queue("reports", max_running=1)
        async with crashing(alone(url, queue, cantrips=[slow])) as dying:
            casts = await submit(dying, 2)
            await anyio.sleep(3)
        async with alone(url, queue, cantrips=[slow]) as runtime:
            await anyio.sleep(60)
            assert not runtime._tree.loom.has_begun(casts[1].entity_id)
            assert (await status(runtime))[1:3] == (1, 1)
            await runtime.abandon(casts[0].entity_id)
            assert (await Again(runtime, casts[1]).episode()).result == "reports 1"


class Again:
    """A submission, as another runtime sees it."""

    def __init__(self, runtime: Runtime, submission: Any) -> None:
        self._runtime, self._id = runtime, submission.entity_id

    async def episode(self) -> Any:
        while not self._runtime.loom.has_begun(self._id):
            await anyio.sleep(1)
        return await self._runtime.get_entity(self._id).episode()


async def test_an_entity_that_waits_for_a_person_keeps_its_place(any_url: str) -> None:
    @gate
    async def pay() -> str:
        """Pay."""
        return "paid"

    def answer(context: Any) -> Any:
        return say("pay") if len(context.messages) < 3 else done("ok")

    asking = Cantrip(scripted(answer), circle=Circle(["done", ask_first(pay)], [max_turns(4)]), name="desk")
    async with alone(any_url, Queue("reports", max_running=1), cantrips=[asking]) as runtime:
        first, second = await submit(runtime, 2)
        await anyio.sleep(60)
        assert (await status(runtime))[1:3] == (1, 1)
        (request,) = runtime.requests()
        await runtime.decide(request.id, "allow")
        await first.episode()
        await anyio.sleep(5)
        (request,) = runtime.requests()
        await runtime.decide(request.id, "allow")
        assert (await second.episode()).result == "ok"


async def test_a_place_is_given_back_if_the_entity_cannot_begin_and_it_is_tried_again_later(any_url: str) -> None:
    async with alone(any_url, Queue("reports", max_running=1)) as runtime:
        begin, failures = runtime._tree.scheduler.casts.begin_submission, 0

        async def fail(cantrip: Cantrip, row: Any) -> None:
            nonlocal failures
            if row.intent == "reports 0" and failures < 2:
                failures += 1
                raise LoomError("not now")
            await begin(cantrip, row)

        runtime._tree.scheduler.casts.begin_submission = fail  # type: ignore[method-assign]
        first, second, third = await submit(runtime, 3)
        assert await results([second, third]) == ["reports 1", "reports 2"]
        assert not first.has_begun
        assert (await first.episode()).result == "reports 0"
        assert failures == 2


async def test_an_outage_while_a_submission_begins_crashes_no_actor(url: str) -> None:
    events: list[Any] = []

    async def fail(*_: Any) -> Any:
        tree.in_store = fail  # type: ignore[method-assign]
        raise LoomError("the loom does not answer")

    async with alone(url, Queue("reports", max_running=1)) as runtime:
        tree = runtime._tree
        run, begin = tree.in_store, tree.scheduler.casts.begin_submission
        runtime.watch_actors(events.append)
        tree.scheduler.casts.begin_submission = fail  # type: ignore[method-assign]
        (submission,) = await submit(runtime, 1)
        await anyio.sleep(5)
        tree.in_store, tree.scheduler.casts.begin_submission = run, begin  # type: ignore[method-assign]
        assert (await submission.episode()).result == "reports 0"
    assert not [event for event in events if "LoomError" in repr(event)]


async def test_places_that_were_taken_are_used_though_the_store_fails_afterwards(url: str) -> None:
    async with alone(url, Queue("mails", max_running=1), Queue("reports", max_running=1)) as runtime:
        scheduler, failures = runtime._tree.scheduler, 0
        change = scheduler.queues._change

        async def fail(name: str, work: Any) -> Any:
            nonlocal failures
            if name == "reports" and failures < 3:
                failures += 1
                raise LoomError("not now")
            return await change(name, work)

        scheduler.queues._change = fail  # type: ignore[method-assign]
        await anyio.sleep(0.6)
        scheduler.wake = lambda: None  # type: ignore[method-assign]  # so that one look finds both
        casts = [*await submit(runtime, 1, "mails"), *await submit(runtime, 1)]
        with anyio.fail_after(100):
            assert await results(casts) == ["mails 0", "reports 0"]
        assert failures == 3


# Submitting


async def test_a_key_finds_the_same_entity_of_the_same_queue_only(any_url: str) -> None:
    async with alone(any_url, REPORTS, Queue("mails")) as runtime:
        first = await runtime.submit("desk", "go", key="job", queue="reports")
        for _ in range(2):
            again = await runtime.submit("desk", "go", key="job", queue="reports", priority=3)
            assert again.entity_id == first.entity_id
            for queue in ("", "mails"):
                with pytest.raises(KeyUsed, match="was used to submit something else"):
                    await runtime.submit("desk", "go", key="job", queue=queue)
            await first.episode()


async def test_a_queue_that_is_not_known_is_refused_with_the_names_of_the_others(any_url: str) -> None:
    async with alone(any_url, REPORTS, Queue("mails")) as runtime:
        for wrong in ("raports", 7, None):
            with pytest.raises(
                InvalidIntent,
                match=r"expected a queue of this loom, got .*(reports|mails).*Opening a runtime with another",
            ):
                await runtime.submit("desk", "go", queue=wrong)  # type: ignore[arg-type]
        assert runtime.schedules() == []


async def test_a_full_queue_refuses_a_submission_that_would_begin_after_the_waiting_ones(any_url: str) -> None:
    async with alone(any_url, Queue("reports", max_waiting=2), Queue("mails"), cantrips=(), max_submitted=4) as runtime:
        casts = [await runtime.submit("desk", f"{n}", key=f"{n}", queue="reports") for n in range(2)]
        with pytest.raises(QueueFull, match=r'2 submissions .* wait in the queue "reports": .* submit it again later'):
            await runtime.submit("desk", "more", key="more", queue="reports")
        assert (await runtime.submit("desk", "1", key="1", queue="reports")).entity_id == casts[1].entity_id
        await runtime.submit("desk", "urgent", queue="reports", priority=1)
        await submit(runtime, 4, "mails")
        await runtime.submit("desk", "another queue", queue="")
        with pytest.raises(QueueFull, match="4 submissions"):
            await submit(runtime, 1, "mails")
        assert [one.waiting for one in await runtime.cluster.queues()] == [4, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": " "},
        {"name": "a\nb"},
        {"name": 7},
        {"name": "x" * 201},
        {"max_running": 0},
        {"per_node": True},
        {"max_waiting": 1.5},
    ],
)
def test_a_queue_refuses_bounds_that_cannot_work(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Queue"):
        Queue(**{"name": "reports", **wrong})


@pytest.mark.parametrize("wrong", [["reports"], [REPORTS, Queue("reports")]])
def test_a_runtime_refuses_an_invalid_or_repeated_queue(wrong: Any) -> None:
    with pytest.raises(ValueError, match="queues: expected"):
        Runtime.open(queues=wrong)


async def test_the_bounds_of_the_runtime_opened_last_hold_for_all(url: str) -> None:
    slow = answering(delay=100)
    async with node(url, "w1", REPORTS, cantrips=[slow]) as one:
        await submit(one, 9)
        await anyio.sleep(3)
        assert len(one._tree.living) == 2
        async with Runtime.open(url, queues=[Queue("reports", max_running=4, per_node=3)]) as client:
            await anyio.sleep(5)
            assert len(one._tree.living) == 3
            assert (await status(client)) == ("reports", 6, 3, 4, 3, None)
        async with Runtime.open(url) as client:  # names no queue, and changes nothing
            assert (await status(client)).max_running == 4


async def test_tenants_share_the_queues_of_their_loom(any_url: str) -> None:
    async with alone(any_url, Queue("reports", max_running=1)) as runtime:
        casts = [
            await runtime.tenant(name).submit("desk", f"of {name}", key="job", queue="reports") for name in ("a", "b")
        ]
        assert await results(casts) == ["of a", "of b"]
        assert [runtime.loom.header(one.entity_id).tenant for one in casts] == ["a", "b"]
        at = [runtime.loom.records(one.entity_id)[0].at for one in casts]
        assert at[0] < at[1]


def test_a_blocking_runtime_has_queues(tmp_path: Path) -> None:
    quick = cantrip([done("ok")] * 3, name="desk")
    with Runtime.blocking(url_of("sqlite", tmp_path), cantrips=[quick], queues=[REPORTS]) as runtime:
        assert runtime.submit("desk", "go", queue="reports", priority=1).episode().result == "ok"
        assert runtime.cluster.queues()[0][::3] == ("reports", 2)


async def test_the_backlog_counts_only_the_submissions_of_a_queue_that_may_begin_now(url: str) -> None:
    queues = [Queue("reports", max_running=3), Queue("mails")]
    async with Runtime.open(url, queues=queues) as client, node(url, "w1", cantrips=()):
        await submit(client, 9)
        await submit(client, 4, "mails")
        assert await client.cluster.backlog() == 3 + 4


# The account


def test_places_are_taken_in_order_up_to_the_bounds() -> None:
    text = _fresh(3)
    text, taken = take(["a", "b"], "one", 9, text, 1.0)
    assert taken == ["a", "b"]
    text, taken = take(["a", "c", "d"], "two", 9, text, 2.0)
    assert taken == ["c"]  # a is another's, and d is one too many
    assert take(["c", "d"], "two", 9, text, 3.0)[1] == ["c"]  # its answer was lost
    assert decode_account(text).places == {"a": Place("one", 1), "b": Place("one", 1), "c": Place("two", 2)}


# Chaos


@pytest.mark.parametrize("seed", part(range(40), 20))
async def test_a_queue_keeps_to_its_bounds_while_nodes_die_and_join(url: str, seed: int) -> None:
    chance = random.Random(seed)
    queue = Queue("reports", max_running=4, per_node=2)
    most = 0

    async def live(name: str) -> None:
        """Run a node again and again, until it dies."""
        while True:
            async with crashing(node(url, name, cantrips=[answering(delay=chance.uniform(0.2, 6))])):
                await anyio.sleep(chance.uniform(1, 20))
            await anyio.sleep(chance.uniform(0, 5))

    async with Runtime.open(url, queues=[queue]) as client:
        casts = [await client.submit("desk", f"{n}", queue="reports", priority=chance.randrange(3)) for n in range(30)]
        loom, left = client.loom, {cast.entity_id for cast in casts}
        async with anyio.create_task_group() as tasks:
            for n in range(3):
                tasks.start_soon(live, f"w{n}")
            with anyio.fail_after(3600):
                while left:
                    left = {one for one in left if not (loom.has_begun(one) and loom.is_over(one))}
                    most = max(most, sum(map(loom.has_begun, left)))
                    await anyio.sleep(0.1)
            tasks.cancel_scope.cancel()
        async with node(url, "last"):
            await anyio.sleep(60)
            assert (await status(client))[1:3] == (0, 0)
        assert await results(casts) == [f"{n}" for n in range(30)]
        assert most == 4
