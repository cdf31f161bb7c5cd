"""Laws of the whole runtime: random worlds that are broken at any instant, in virtual time, on both backends.

Each world is checked against the documented guarantees: the loom is whole and in order, no effect happens twice,
events match the records, a broken world reaches the same result as an undisturbed one, and everything ends.
"""

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cantrip_actors import CantripError, LoomError, Runtime
from cantrip_actors.looms import IntentGiven, Steered, Unsure
from cantrip_actors.observe import Upserts, fold
from cantrip_actors.stream.events import StepFailedEvent, StepStartEvent
from cantrip_actors.stream.reading import EventLog
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.wards import Ward, max_tokens, max_turns, timeout
from supervisors.testing import virtual
from tests.exhaustive import part
from tests.runtime.worlds import (
    Blow,
    Children,
    Effect,
    Task,
    Words,
    World,
    alike,
    blows,
    check_loom,
    check_usage,
    instants,
    nothing_left,
    pause,
    story,
    strike,
    tasks,
    tasks_alive,
)

backends = st.sampled_from(["asyncio", "trio"])
ticks = st.integers(0, 40)
law = settings(max_examples=25)

CHILD = Task((Words((Effect(),), 0.5),))
FAMILY = Task((Words((Children((CHILD, CHILD)),)),))
HURRY = "hurry"


def live(backend: str, life: Callable[..., Any], *args: Any) -> Any:
    """Live a life, which takes no more than a day."""

    async def day() -> Any:
        with anyio.fail_after(24 * 3600):
            return await life(*args)

    name, options = virtual(backend)
    return anyio.run(day, backend=name, backend_options=options)


async def cast(task: Task, struck: list[Blow]) -> Any:
    """Return the story of a cast and its error; a cast whose runtime is killed is resumed."""
    world, before = World(task), tasks_alive()
    episode = error = None

    async def wait_for(asked: Awaitable[Any]) -> None:
        nonlocal episode, error
        try:
            episode, error = await asked, None
        except CantripError as failed:
            error = failed

    async with Runtime.open() as runtime, anyio.create_task_group() as group:
        for blow in struck:
            group.start_soon(strike, runtime, blow)
        await wait_for(runtime.cast(world.cantrip(), "root"))
        for header in runtime.interrupted():
            await wait_for((await runtime.resume(header.entity_id)).episode())
        group.cancel_scope.cancel()
    await nothing_left(runtime, before)
    check_loom(runtime.loom, world)
    check_usage(runtime.loom, episode)
    return story(runtime.loom, runtime.loom.entities()[0]), type(error)


def comes_to_the_same(backend: str, task: Task, struck: list[Blow]) -> None:
    found, expected = live(backend, cast, task, struck), live(backend, cast, task, [])
    assert alike(found, expected), f"{found}\n{expected}"


@pytest.mark.rule("D-011", "LOOM-1", "S-21", "COMP-8", "PROD-3")
@law
@given(backends, tasks(), st.lists(blows("entity", "circle", "crystal", "steer"), max_size=3))
def test_an_entity_that_crashes_at_random_reaches_the_same_result(backend: str, task: Task, struck: list[Blow]) -> None:
    comes_to_the_same(backend, task, struck)


@pytest.mark.rule("D-011", "LOOM-1", "S-21")
@law
@given(backends, tasks(), blows("loom", "registry"))
@example("asyncio", FAMILY, Blow(0.25, 0, "registry", 0))
@example("trio", Task((Words((Effect(delay=1.0),)),)), Blow(0.5, 0, "loom", 0))
def test_a_runtime_killed_at_any_point_resumes_to_the_same_result(backend: str, task: Task, struck: Blow) -> None:
    comes_to_the_same(backend, task, [struck])


@pytest.mark.rule("COMP-8", "S-21")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("how", ["circle", "entity", "registry", "loom"])
def test_a_crash_at_any_step_of_a_start_or_an_end_leads_to_the_same_result(backend: str, how: str) -> None:
    """A child is not cancelled when its parent restarts while it starts; every end is delivered."""
    for tick in part(range(0, 30, 2), 3):
        for task in (Task(), Task((Words((Children((Task(),)),)),))):
            comes_to_the_same(backend, task, [Blow(0.0, tick, how, 0)])


# Usage


async def waiting(struck: list[Blow], *wards: Ward) -> Any:
    world = World(Task((Words((Children((Task((Words((), 0.0, 5), Words((), 60.0, 7))),)),), 0.0, 3),)))
    async with Runtime.open() as runtime, anyio.create_task_group() as group:
        for blow in struck:
            group.start_soon(strike, runtime, blow)
        episode = await runtime.cast(world.cantrip(*wards), "root")
        group.cancel_scope.cancel()
    check_usage(runtime.loom, episode)
    return episode


@pytest.mark.rule("PROD-3")
@pytest.mark.parametrize("who", ["entity", "circle"])
async def test_children_are_counted_once_when_their_parent_crashed_while_it_waited(who: str) -> None:
    episode = await waiting([Blow(30.0, 0, who, 0)])
    assert episode.subtree_usage.completion_tokens == 3 + 5 + 7 + 1 + 1


@pytest.mark.rule("PROD-3", "CIRCLE-6")
async def test_children_are_counted_when_their_parent_was_cut_off_while_it_waited() -> None:
    episode = await waiting([], timeout(30))
    assert episode.ward == "timeout"
    assert episode.subtree_usage.completion_tokens == 3 + 5


# Ends from outside


async def ended(task: Task, how: str, at: float, tick: int) -> None:
    world, before = World(task), tasks_alive()
    async with Runtime.open() as runtime, anyio.create_task_group() as group:
        asked = anyio.CancelScope()

        async def end() -> None:
            await pause(at, tick)
            if how == "close":
                group.cancel_scope.cancel()
            elif how == "cancel":
                asked.cancel()
            else:
                for cell in [cell for cell in runtime._tree.living if cell.parent is None]:
                    await runtime._tree.launcher.terminate(cell, "enough")
                over()

        def over() -> None:
            assert all(runtime.loom.is_over(one) for one in runtime.loom.entities())
            assert not len(runtime._tree.living)

        group.start_soon(end)
        with asked:
            try:
                await runtime.cast(world.cantrip(), "root")
            except CantripError as failed:
                assert isinstance(failed, ProviderError) or how == "stop"  # noqa: PT017
        if asked.cancelled_caught:
            over()
        group.cancel_scope.cancel()
    await nothing_left(runtime, before)
    assert all(runtime.loom.is_over(one) for one in runtime.loom.entities())
    check_loom(runtime.loom, world)


@pytest.mark.rule("S-34", "D-011")
@law
@given(backends, tasks(), st.sampled_from(["cancel", "close", "stop"]), instants, ticks)
@example("asyncio", Task(), "cancel", 0.0, 0)
@example("trio", Task(), "cancel", 0.0, 1)
@example("trio", Task(), "stop", 0.0, 1)  # its header was on its way
def test_an_ended_entity_leaves_nothing_behind(backend: str, task: Task, how: str, at: float, tick: int) -> None:
    live(backend, ended, task, how, at, tick)


# Looms that fail


async def unrecorded(task: Task, written: bool, nth: int) -> Any:
    world = World(task)
    async with Runtime.open() as runtime:
        store = runtime._tree.store
        whole, left = store.append, nth

        def append(records: Any, leases: Any, **mail: Any) -> None:
            nonlocal left
            left -= bool(records)
            if records and not left:
                if written:
                    whole(records, leases, **mail)
                    raise Unsure("it may be there")
                raise LoomError("it is not there")
            whole(records, leases, **mail)

        store.append = append
        error = None
        try:
            await runtime.cast(world.cantrip(), "root")
        except CantripError as failed:
            error = failed
        for header in runtime.interrupted():
            error = None
            try:
                await (await runtime.resume(header.entity_id)).episode()
            except CantripError as failed:
                error = failed
    check_loom(runtime.loom, world)
    if not runtime.loom.entities():
        return None  # it was its header
    assert runtime.loom.unfinished() == ()
    return story(runtime.loom, runtime.loom.entities()[0]), None if isinstance(error, Unsure) else type(error)


@pytest.mark.rule("LOOM-1", "LOOM-3", "D-011")
@law
@given(backends, tasks(), st.booleans(), st.integers(1, 20))
@example("trio", Task((Words((Children((CHILD,) * 4),)),)), True, 8)
@example("asyncio", Task((Words((Children((CHILD,) * 4),)),)), True, 10)
def test_a_loom_that_fails_once_loses_and_repeats_nothing(backend: str, task: Task, written: bool, nth: int) -> None:
    found = live(backend, unrecorded, task, written, nth)
    expected = live(backend, unrecorded, task, False, 10_000)
    if found is not None:
        assert alike(found[0], expected[0]), f"{found}\n{expected}"
        assert found[1] in (None, expected[1])


# Long-lived entities


async def lasting(
    given_: list[Task], sends: list[tuple[float, int]], struck: list[Blow], sleeps: float, url: str
) -> None:
    names = ["root", *(f"s{n}" for n in range(len(sends)))]
    world = World(**dict(zip(names, given_, strict=False)), end=Task(), next=Task())
    spell, before = world.cantrip(), tasks_alive()
    asked: list[str] = ["root"]
    said: list[str] = []
    came: dict[str, Any] = {}

    async with (
        Runtime.open(url, cantrips=[spell], passivate_after=sleeps) as runtime,
        anyio.create_task_group() as life,
    ):

        async def answer(name: str, of: Callable[[], Any]) -> None:
            assert name not in came
            try:
                came[name] = (await of()).result
            except CantripError as failed:
                came[name] = failed

        async def send(name: str, at: float = 0.0, tick: int = 0) -> None:
            await pause(at, tick)
            asked.append(name)
            await answer(name, lambda: runtime.entity("me").send(name))

        async def blow(one: Blow) -> None:
            if one.how == "close":
                await pause(one.at, one.ticks)
                life.cancel_scope.cancel()
            elif one.how in ("say", "interrupt"):
                await pause(one.at, one.ticks)
                if one.how == "interrupt":
                    await runtime.entity("me").interrupt()
                else:
                    said.append(f"{HURRY} {len(said)}")
                    await runtime.entity("me").steer(said[-1])
            else:
                await strike(runtime, one)

        entity = await runtime.invoke(spell, "root", name="me")
        async with anyio.create_task_group() as group:
            group.start_soon(answer, "root", entity.episode)
            for n, (at, tick) in enumerate(sends):
                group.start_soon(send, f"s{n}", at, tick)
            for one in struck:
                group.start_soon(blow, one)
        await send("end")
        log = runtime.loom.records(entity.id)
        intents = [record.intent for record in log if isinstance(record, IntentGiven)]
        assert sorted(intents) == sorted(asked)
        assert (
            intents == asked or sleeps < max(at for at, _ in [*sends, (0.0, 0)]) + 1
        )  # else one arrived while it was unloaded
        assert set(came) == set(asked)
        for name, one in came.items():
            assert isinstance(one, ProviderError) or one is None or str(one).split(":")[0] == name
        if not {one.how for one in struck} & {"entity", "circle"}:
            assert [record.text for record in log if isinstance(record, Steered)] == said
    await nothing_left(runtime, before)
    check_loom(runtime.loom, world)
    taken = [record.intent for record in runtime.loom.records(entity.id) if isinstance(record, IntentGiven)]
    async with Runtime.open(url, cantrips=[spell], recover="resume") as runtime:
        again = await runtime.entity("me").send("next")
        log = runtime.loom.records(entity.id)
        check_loom(runtime.loom, world)
        check_usage(runtime.loom, again)
        assert again.result == "next"
        intents = [record.intent for record in log if isinstance(record, IntentGiven)]
        late = intents[len(taken) : -1]  # they were in the inbox when the runtime closed
        assert intents == [*taken, *late, "next"]
        assert late == [name for name in asked if name in late and name not in taken]
        assert runtime.loom.unfinished(idle=False) == ()


FAILS = Task((Words(fails=-1),))


@pytest.mark.rule("D-001", "LOOM-1")
@law
@given(
    backends,
    st.lists(tasks(1), min_size=3, max_size=3),
    st.lists(st.tuples(instants, st.integers(0, 10)), max_size=2),
    st.lists(blows("entity", "circle", "say", "interrupt", "close"), max_size=3),
    st.sampled_from([300.0, 5.0, 0.5, 0.0]),
)
@example("trio", [Task()] * 3, [(1.0, 0)], [], 0.0)  # it unloaded again before it had the intent
@example("trio", [Task()] * 3, [(0.0, 4), (0.0, 4)], [], 300.0)  # the first was being posted
@example("asyncio", [Task()] * 3, [(30.0, 0)], [Blow(2.0, 0, "say", 0)], 5.0)  # it was unloaded meanwhile
@example("trio", [Task((Words((), 5.0),))] * 3, [], [Blow(1.0, 0, "say", 0), Blow(2.0, 0, "interrupt", 0)], 300.0)
def test_a_long_lived_entity_answers_each_send_once_and_in_order(
    backend: str,
    given_: list[Task],
    sends: list[tuple[float, int]],
    struck: list[Blow],
    sleeps: float,
) -> None:
    with TemporaryDirectory() as folder:
        url = f"jsonl:{Path(folder) / 'loom.jsonl'}"
        live(backend, lasting, given_, sends, struck, sleeps, url)


@pytest.mark.rule("D-001")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_mail_that_arrives_while_an_entity_unloads_is_kept(backend: str) -> None:
    """The mail is not lost, and is not answered with the outcome of the previous episode."""
    for tick in range(10):
        with TemporaryDirectory() as folder:
            url, said = f"jsonl:{Path(folder)}/", [Blow(0.5, tick, "say", 0)]
            live(backend, lasting, [Task()], [], said, 0.5, f"{url}said.jsonl")
            live(backend, lasting, [FAILS, Task()], [(0.5, tick)], [], 0.5, f"{url}sent.jsonl")


# Subscribers, wards, forks


async def watched(task: Task, wards: list[Ward], struck: list[Blow], late: float) -> None:
    world = World(task)
    spell = world.cantrip(*wards)
    async with Runtime.open() as runtime, anyio.create_task_group() as group:
        upserts, events = Upserts(), runtime.events()
        runtime.watch(upserts.publish)
        subscribed = [upserts.subscribe()]

        async def come_late() -> None:
            await anyio.sleep(late)
            subscribed.append(upserts.subscribe())

        group.start_soon(come_late)
        for blow in struck:
            group.start_soon(strike, runtime, blow)
        began = anyio.current_time()
        try:
            episode = await runtime.cast(spell, "root")
        except CantripError:
            episode = None
        lived = anyio.current_time() - began
        group.cancel_scope.cancel()
    loom = runtime.loom
    check_loom(loom, world)
    check_usage(loom, episode)
    told = [event async for event in events if not isinstance(event, StepStartEvent | StepFailedEvent)]
    for one in loom.entities():
        recorded = [_timeless(event) for event in EventLog().add_all(loom.records(one))]
        assert [_timeless(event) for event in told if event.entity_id == one] == recorded
        for n, turn in enumerate(turns := loom.turns(one), 1):
            assert [before.id for before in loom.thread(turn.id, own=True)] == [before.id for before in turns[:n]]
        said = [turn for turn in loom.turns(one) if not turn.continues]
        assert len(said) <= (spell.circle.resolved.max_turns or 0)
    assert lived <= (spell.circle.resolved.timeout or lived)
    upserts.close()
    known, *others = [fold([one async for one in subscription]) for subscription in subscribed]
    for other in others:
        assert all(known[key] == upsert for key, upsert in other.items())


def _timeless(event: Any) -> Any:
    return type(event), {**asdict(event), "id": "", "at": 0.0, "outcome": None}


wards_of = st.lists(
    st.one_of(
        st.integers(1, 3).map(max_turns),
        st.sampled_from([0.5, 3.0, 8.0]).map(timeout),
        st.integers(1, 8).map(max_tokens),
    ),
    max_size=2,
)


@pytest.mark.rule("LOOM-1", "LOOM-10", "U-57", "U-60", "LOOP-4", "CIRCLE-6")
@law
@given(backends, tasks(), wards_of, st.lists(blows("entity", "circle", "stop"), max_size=2), instants)
def test_events_match_the_records_and_wards_hold(
    backend: str, task: Task, wards: list[Ward], struck: list[Blow], late: float
) -> None:
    live(backend, watched, task, wards, struck, late)


@pytest.mark.rule("LOOM-1")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_events_match_the_records_when_an_entity_is_stopped_while_it_is_recorded(backend: str) -> None:
    for tick in range(12):
        live(backend, watched, Task(), [], [Blow(0.0, tick, "stop", 0)], 0.0)


async def forked(task: Task, at: int) -> None:
    world = World(task, other=Task((Words((Effect(),)),)))
    async with Runtime.open() as runtime:
        loom, spell = runtime.loom, world.cantrip()
        with contextlib.suppress(ProviderError):
            await runtime.cast(spell, "root")
        turns = [turn for one in loom.entities() for turn in loom.turns(one)]
        if not turns:
            return
        before = {one: story(loom, one) for one in loom.entities()}
        turn = turns[at % len(turns)]
        fork = await runtime.fork(turn.id, intent="other")
        path = [*loom.thread(turn.id, own=True), *loom.turns(fork.entity_id)]
        assert fork.result == "other"
        assert [one.id for one in fork.thread] == [one.id for one in path]
        assert {one: story(loom, one) for one in before} == before
        assert fork.usage == loom.usage(fork.entity_id)


@pytest.mark.rule("LOOM-4")
@law
@given(backends, tasks(), st.integers(0, 50))
@example("asyncio", FAMILY, 1)  # a child's turn
def test_a_fork_continues_from_any_turn_of_any_entity(backend: str, task: Task, at: int) -> None:
    live(backend, forked, task, at)
