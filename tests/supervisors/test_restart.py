"""Which children are restarted, and together with which others."""

import itertools

import anyio
import pytest

from supervisors import (
    Actor,
    ActorRef,
    ChildSpec,
    DynamicSupervisor,
    Killed,
    Normal,
    RestartedWith,
    Shutdown,
    StartFailed,
    Supervisor,
)
from supervisors.testing import Leave, Script

LEAVES = {"normal": Leave(Normal()), "shutdown": Leave(Shutdown()), "detail": Leave(Shutdown("d")), "crash": "crash"}


async def _end(ref: ActorRef, how: str) -> None:
    if how == "kill":
        ref.kill()
    else:
        ref.cast(LEAVES[how])
    await anyio.sleep(0.1)


@pytest.mark.rule("S-14", "S-15", "S-16")
@pytest.mark.parametrize("how", [*LEAVES, "kill"])
@pytest.mark.parametrize("restart", ["permanent", "transient", "temporary"])
@pytest.mark.parametrize("made", [Supervisor, DynamicSupervisor])
async def test_a_child_is_restarted_after_the_ends_that_its_spec_names(new_system, made, restart, how):
    script = Script("a")
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", lambda: made(max_restarts=1)))
        ref = await supervisor.start_child(script.spec(restart=restart))
        await _end(ref, how)
        restarted = restart == "permanent" or (restart == "transient" and how in ("crash", "kill"))
        assert ref.alive is restarted
        assert script.incarnations == 1 + restarted
        counts = await supervisor.count_children()
        assert counts.active == restarted
        kept = restarted or (restart == "transient" and made is Supervisor)
        assert counts.specs == kept


@pytest.mark.rule("S-15")
async def test_a_transient_child_that_ended_can_be_restarted_by_hand(new_system):
    async with new_system() as system:
        ref = await system.start(Script("a").spec(restart="transient"))
        await _end(ref, "normal")
        assert await system.root.restart_child("a") is ref
        assert await ref.call("hello") == "hello"


@pytest.mark.rule("S-16")
async def test_the_id_of_a_temporary_child_is_free_at_once(new_system):
    async with new_system() as system:
        for _ in range(3):
            ref = await system.start(Script("a").spec(restart="temporary"))
            await _end(ref, "crash")


def _group(scripts, **flags):
    return ChildSpec("s", lambda: Supervisor([script.spec() for script in scripts], **flags))


@pytest.mark.rule("S-19")
@pytest.mark.parametrize("made", [Supervisor, DynamicSupervisor])
async def test_a_start_that_returns_the_same_actor_again_fails(new_system, made):
    same = Actor()
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", made))
        ref = await supervisor.start_child(ChildSpec("a", lambda: same))
        with pytest.raises(StartFailed, match="a new actor for each incarnation"):
            await supervisor.start_child(ChildSpec("b", lambda: same))
        assert (same.ref, ref.alive) == (ref, True)


@pytest.mark.rule("S-19")
async def test_one_for_one_restarts_only_the_failed_child(new_system, recorder):
    scripts = [Script(name) for name in "abc"]
    async with new_system() as system:
        group = await system.start(_group(scripts))
        recorder.take()
        group.child("b").kill()
        await anyio.sleep(0.1)
        assert recorder.take() == ["-b killed", "+b"]
        assert [script.incarnations for script in scripts] == [1, 2, 1]


@pytest.mark.rule("S-20")
async def test_one_for_all_stops_in_reverse_and_starts_all_in_order(new_system, recorder):
    async with new_system() as system:
        group = await system.start(_group([Script(name) for name in "abcd"], strategy="one_for_all"))
        recorder.take()
        group.child("b").cast("crash")
        await anyio.sleep(0.1)
        assert recorder.take() == ["-b crash", "-d shutdown", "-c shutdown", "-a shutdown", "+a", "+b", "+c", "+d"]


@pytest.mark.rule("S-21")
async def test_rest_for_one_restarts_the_failed_child_and_later_children(new_system, recorder):
    scripts = [Script(name) for name in "abcd"]
    async with new_system() as system:
        group = await system.start(_group(scripts, strategy="rest_for_one"))
        recorder.take()
        group.child("b").cast("crash")
        await anyio.sleep(0.1)
        assert recorder.take() == ["-b crash", "-d shutdown", "-c shutdown", "+b", "+c", "+d"]
        assert [script.incarnations for script in scripts] == [1, 2, 2, 2]


@pytest.mark.rule("S-17")
@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one"])
async def test_temporary_siblings_are_dropped_and_do_not_count(new_system, recorder, strategy):
    specs = [Script("a").spec(), Script("b").spec(restart="temporary")]
    async with new_system() as system:
        group = await system.start(ChildSpec("s", lambda: Supervisor(specs, strategy=strategy)))
        b = group.child("b")
        group.child("a").kill()
        assert await b.exited() == Shutdown(RestartedWith("a", Killed()))
        await anyio.sleep(0.1)
        assert [child.id for child in await group.which_children()] == ["a"]
        assert group.alive


@pytest.mark.rule("S-22")
async def test_a_group_restart_costs_one_unit(new_system):
    async with new_system() as system:
        group = await system.start(_group([Script(name) for name in "abcdef"], strategy="one_for_all", max_restarts=2))
        for _ in range(2):
            group.child("c").kill()
            await anyio.sleep(0.1)
        assert group.alive


@pytest.mark.rule("S-23")
async def test_one_for_all_tries_the_whole_group_again(new_system, recorder):
    scripts = [Script("a"), Script("b", starts=["ok", "error", "ok"]), Script("c")]
    async with new_system() as system:
        group = await system.start(_group(scripts, strategy="one_for_all", max_restarts=5))
        recorder.take()
        group.child("c").kill()
        await anyio.sleep(0.1)
        assert recorder.take() == [
            *("-c killed", "-b shutdown", "-a shutdown"),
            *("+a", "!b"),
            *("-a shutdown", "+a", "+b", "+c"),
        ]


@pytest.mark.rule("S-24")
async def test_rest_for_one_tries_again_from_the_child_that_failed_to_start(new_system, recorder):
    scripts = [Script("a"), Script("b"), Script("c", starts=["ok", "error", "ok"]), Script("d")]
    async with new_system() as system:
        group = await system.start(_group(scripts, strategy="rest_for_one", max_restarts=5))
        recorder.take()
        group.child("b").kill()
        await anyio.sleep(0.1)
        assert recorder.take() == ["-b killed", "-d shutdown", "-c shutdown", "+b", "!c", "+c", "+d"]
        assert [script.incarnations for script in scripts] == [1, 2, 3, 2]


@pytest.mark.rule("S-25")
async def test_children_have_the_expected_states_between_retries(new_system):
    from supervisors import Backoff

    slow = Backoff(first=10, jitter=0)
    scripts = [Script("a"), Script("b", starts=["ok", "error"]), Script("c")]
    specs = [script.spec(backoff=slow) for script in scripts]
    async with new_system() as system:
        group = await system.start(ChildSpec("s", lambda: Supervisor(specs, strategy="rest_for_one", max_restarts=5)))
        group.child("b").kill()
        await anyio.sleep(1)
        states = [(child.id, child.state) for child in await group.which_children()]
        assert states == [("a", "running"), ("b", "restarting"), ("c", "stopped")]


@pytest.mark.rule("S-49")
async def test_a_restarted_supervisor_has_only_its_static_children(new_system):
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", lambda: Supervisor([Script("a").spec()])))
        await supervisor.start_child(Script("added").spec())
        supervisor.kill()
        await anyio.sleep(0.1)
        assert [(child.id, child.state) for child in await supervisor.which_children()] == [("a", "running")]


async def test_the_ref_of_a_restarted_child_stays_valid(new_system):
    async with new_system() as system:
        ref = await system.start(Script("a", crash_on=2).spec())
        assert await ref.call(1) == 1
        ref.cast(2)
        assert await ref.call(3) == 3


async def test_a_ref_made_beforehand_survives_the_restart_of_its_supervisor(new_system):
    ref = ActorRef()
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", lambda: Supervisor([Script("a").spec(ref=ref)])))
        supervisor.kill()
        await anyio.sleep(0.1)
        assert await ref.call(1) == 1


async def test_backoff_delays_each_restart_longer_and_begins_anew_after_quiet(new_system, recorder):
    from supervisors import Backoff
    from supervisors.events import Started

    backoff = Backoff(first=1, factor=2, jitter=0, reset=100)
    async with new_system(max_restarts=100) as system:
        ref = await system.start(Script("a").spec(backoff=backoff))
        for _ in range(4):
            ref.kill()
            await anyio.sleep(0.001)
            while not ref.alive:
                await anyio.sleep(0.125)
        await anyio.sleep(101)
        ref.kill()
        await anyio.sleep(0.01)
        assert ref.alive
        times = [event.time for event in recorder.of(Started)]
        waits = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert [round(wait) for wait in waits] == [0, 1, 2, 4, 101]


async def test_backoff_delays_retries_of_a_failed_start(new_system, recorder):
    from supervisors import Backoff
    from supervisors.events import StartFailedEvent

    backoff = Backoff(first=1, factor=2, jitter=0)
    async with new_system(max_restarts=100) as system:
        dynamic = await system.start(ChildSpec("d", lambda: DynamicSupervisor(max_restarts=100)))
        for supervisor in (system.root, dynamic):
            script = Script("a", starts=["ok", "error", "error", "error", "ok"])
            ref = await supervisor.start_child(script.spec(backoff=backoff))
            before = anyio.current_time()
            recorder.events.clear()
            ref.kill()
            await anyio.sleep(20)
            assert ref.alive
            assert [event.time - before for event in recorder.of(StartFailedEvent)] == [0, 1, 3]
