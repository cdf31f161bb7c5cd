"""When a supervisor gives up, and what it does until then."""

import anyio
import anyio.lowlevel
import pytest

from supervisors import (
    ActorRef,
    Backoff,
    ChildNotFound,
    ChildSpec,
    DynamicSupervisor,
    GaveUp,
    Killed,
    Shutdown,
    Supervisor,
)
from supervisors.events import GaveUpEvent
from supervisors.testing import Leave, Script


@pytest.mark.rule("S-26")
@pytest.mark.parametrize("made", [Supervisor, DynamicSupervisor])
async def test_restarts_of_different_children_add_up(new_system, recorder, made):
    async with new_system() as system:
        spec = ChildSpec("s", lambda: made(max_restarts=2, period=10), restart="temporary")
        supervisor = await system.start(spec)
        refs = [await supervisor.start_child(Script(name).spec()) for name in "abc"]
        for ref in refs[:2]:
            ref.kill()
            await anyio.sleep(1)
        assert supervisor.alive
        refs[2].kill()
        reason = await supervisor.exited()
        assert isinstance(reason, Shutdown)
        assert reason.detail == GaveUp("c", Killed())
        assert len(recorder.of(GaveUpEvent)) == 1


@pytest.mark.rule("S-26", "S-27")
@pytest.mark.parametrize(("pause", "survives"), [(4.9, False), (5.0, False), (5.1, True)])
async def test_the_window_slides_and_its_edge_counts(new_system, pause, survives):
    async with new_system() as system:
        supervisor = await system.start(
            ChildSpec("s", lambda: Supervisor([Script("a").spec()], max_restarts=1, period=5), restart="temporary")
        )
        ref = supervisor.child("a")
        ref.kill()
        await anyio.sleep(pause)
        ref.kill()
        await anyio.sleep(0.01)
        assert supervisor.alive is survives


@pytest.mark.rule("S-28")
@pytest.mark.parametrize("made", [Supervisor, DynamicSupervisor])
async def test_each_restart_attempt_counts_even_if_it_fails(new_system, made):
    script = Script("a", starts=["ok", "error"])
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", lambda: made(max_restarts=5), restart="temporary"))
        ref = await supervisor.start_child(script.spec())
        ref.kill()
        await supervisor.exited()
        assert script.incarnations == 1 + 5


@pytest.mark.rule("S-29")
async def test_ends_that_are_not_restarts_do_not_count(new_system):
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", lambda: Supervisor(max_restarts=0)))
        ref = await supervisor.start_child(Script("a").spec(restart="transient"))
        for _ in range(5):
            ref.cast(Leave(Shutdown()))
            await anyio.sleep(0.1)
            await supervisor.restart_child("a")
        await supervisor.terminate_child("a")
        assert supervisor.alive


@pytest.mark.rule("S-30")
async def test_the_first_restart_is_fatal_with_intensity_0(new_system):
    script = Script("a")
    async with new_system() as system:
        supervisor = await system.start(
            ChildSpec("s", lambda: Supervisor([script.spec()], max_restarts=0), restart="temporary")
        )
        supervisor.child("a").kill()
        await supervisor.exited()
        assert script.incarnations == 1


@pytest.mark.rule("S-31")
async def test_giving_up_stops_the_rest_in_reverse_and_is_a_shutdown(new_system, recorder):
    specs = [Script(name).spec() for name in "abc"]
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", lambda: Supervisor(specs, max_restarts=0), restart="transient"))
        recorder.take()
        supervisor.child("b").kill()
        await supervisor.exited()
        assert recorder.take() == ["-b killed", "-c shutdown", "-a shutdown", "-s shutdown"]
        await anyio.sleep(1)
        assert not supervisor.alive  # transient, and shutdown is a normal end


@pytest.mark.rule("S-31")
async def test_the_parent_restarts_a_permanent_supervisor_that_gave_up(new_system):
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", lambda: Supervisor([Script("a").spec()], max_restarts=0)))
        supervisor.child("a").kill()
        await anyio.sleep(0.1)
        assert supervisor.alive
        assert supervisor.child("a").alive


@pytest.mark.rule("S-32")
@pytest.mark.parametrize("made", [Supervisor, DynamicSupervisor])
async def test_a_supervisor_in_a_restart_loop_answers_requests(new_system, made):
    script = Script("a", starts=["ok", "error"])
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", lambda: made(max_restarts=10**9, period=1e9)))
        ref = await supervisor.start_child(script.spec())
        other = await supervisor.start_child(Script("b").spec())
        ref.kill()
        while ref.last_exit is None:  # time stands still: the loop never waits
            await anyio.lowlevel.checkpoint()
        for _ in range(5):
            states = [child.state for child in await supervisor.which_children()]
            assert states == ["restarting", "running"]
            counts = await supervisor.count_children()
            assert (counts.specs, counts.active, counts.workers) == (2, 1, 2)
        await supervisor.terminate_child(other)
        before = script.incarnations
        await system.root.terminate_child("s")
        assert script.incarnations - before < 100


@pytest.mark.rule("S-33")
@pytest.mark.parametrize("made", [Supervisor, DynamicSupervisor])
async def test_terminate_child_cancels_the_retry(new_system, made):
    script = Script("a", starts=["ok", "error"])
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", lambda: made(max_restarts=99)))
        ref = await supervisor.start_child(script.spec(backoff=Backoff(first=1, jitter=0)))
        ref.kill()
        await anyio.sleep(0.5)
        assert (await supervisor.which_children())[0].state == "restarting"
        await supervisor.terminate_child(ref)
        before = script.incarnations
        await anyio.sleep(100)
        assert script.incarnations == before
        if made is Supervisor:
            assert (await supervisor.which_children())[0].state == "stopped"
        else:
            assert await supervisor.which_children() == []
            await supervisor.terminate_child(ref)  # a dead one is fine (S-42)


async def test_max_children_counts_children_that_are_being_restarted(new_system):
    from supervisors import TooManyChildren

    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", lambda: DynamicSupervisor(max_children=1)))
        ref = await supervisor.start_child(Script("a").spec(backoff=Backoff(first=5)))
        ref.kill()
        await anyio.sleep(1)
        ref.kill()
        await anyio.sleep(1)
        assert (await supervisor.which_children())[0].state == "restarting"
        with pytest.raises(TooManyChildren):
            await supervisor.start_child(Script("b").spec())
        await supervisor.terminate_child(ref)
        await supervisor.start_child(Script("b").spec())


async def test_a_live_child_of_another_supervisor_is_not_found_and_a_dead_one_is_done(new_system):
    async with new_system() as system:
        one = await system.start(ChildSpec("one", DynamicSupervisor))
        two = await system.start(ChildSpec("two", DynamicSupervisor))
        ref = await one.start_child(Script("a").spec())
        with pytest.raises(ChildNotFound):
            await two.terminate_child(ref)
        assert ref.alive
        with pytest.raises(ChildNotFound):
            await two.terminate_child(ActorRef("never started"))
        await one.terminate_child(ref)
        await two.terminate_child(ref)  # OTP: ok
