"""Stopping: order, time limits, kills, and children that do not end."""

import gc
import math
import time

import anyio
import anyio.lowlevel
import pytest

from supervisors import (
    Actor,
    ActorRef,
    ChildSpec,
    Crash,
    DynamicSupervisor,
    Killed,
    Normal,
    NotRunning,
    Shutdown,
    Stop,
    Supervisor,
)
from supervisors.events import Exited, Zombie
from supervisors.testing import Boom, Script


def _group(specs, **flags):
    return ChildSpec("s", lambda: Supervisor(specs, **flags))


@pytest.mark.rule("S-34")
async def test_static_children_stop_one_after_the_other_last_first(new_system, recorder):
    scripts = [Script(name, stop_takes=1) for name in "abc"]
    async with new_system() as system:
        group = await system.start(_group([script.spec() for script in scripts]))
        recorder.take()
        before = anyio.current_time()
        await system.root.terminate_child(group)
        assert recorder.take() == ["-c shutdown", "-b shutdown", "-a shutdown", "-s shutdown"]
        times = [event.time - before for event in recorder.of(Exited)]
        assert times == [1, 2, 3, 3]


@pytest.mark.rule("S-34")
async def test_a_tree_of_three_levels_stops_in_reverse(new_system, recorder):
    inner = ChildSpec("inner", lambda: Supervisor([Script("c").spec(), Script("d").spec()]))
    middle = ChildSpec("middle", lambda: Supervisor([Script("b").spec(), inner, Script("e").spec()]))
    async with new_system() as system:
        await system.start(_group([Script("a").spec(), middle, Script("f").spec()]))
        recorder.take()
    order = [line.split()[0] for line in recorder.take()]
    assert order == ["-f", "-e", "-d", "-c", "-inner", "-b", "-middle", "-a", "-s"]


@pytest.mark.rule("S-35")
async def test_a_slow_child_is_killed_after_its_grace(new_system):
    script = Script("a", stop_takes=math.inf)
    async with new_system() as system:
        ref = await system.start(script.spec(shutdown=3))
        before = anyio.current_time()
        await system.root.terminate_child("a")
        assert anyio.current_time() - before == 3
        assert ref.last_exit == Killed()
        assert script.ends == [Shutdown()]


@pytest.mark.rule("S-35")
async def test_a_child_with_shutdown_kill_is_not_asked_to_end(new_system, recorder):
    script = Script("a", stop_takes=1)
    async with new_system() as system:
        ref = await system.start(script.spec(shutdown="kill"))
        before = anyio.current_time()
        await system.root.terminate_child("a")
        assert anyio.current_time() == before
        assert ref.last_exit == Killed()
        assert script.ends == []
        assert recorder.of(Exited)[0].expected


@pytest.mark.rule("S-35")
async def test_a_child_with_infinite_shutdown_is_waited_for(new_system):
    async with new_system() as system:
        ref = await system.start(Script("a", stop_takes=86_400).spec(shutdown=math.inf))
        await system.root.terminate_child("a")
        assert ref.last_exit == Shutdown()


@pytest.mark.rule("S-36")
async def test_dynamic_children_are_stopped_at_the_same_time(new_system, recorder):
    async with new_system() as system:
        dynamic = await system.start(ChildSpec("d", DynamicSupervisor))
        for seconds in (1, 4, 2):
            await dynamic.start_child(Script(f"c{seconds}", stop_takes=seconds).spec())
        await dynamic.start_child(Script("stubborn", stop_takes=math.inf).spec(shutdown=3))
        await dynamic.start_child(Script("brutal").spec(shutdown="kill"))
        recorder.take()
        before = anyio.current_time()
        await system.root.terminate_child(dynamic)
        assert anyio.current_time() - before == 4
        log = recorder.take()
        assert log[1:] == ["-c1 shutdown", "-c2 shutdown", "-stubborn killed", "-c4 shutdown", "-d shutdown"]
        assert log[0] == "-brutal killed"


@pytest.mark.rule("S-37")
@pytest.mark.parametrize("restart", ["permanent", "transient", "temporary"])
@pytest.mark.parametrize("made", [Supervisor, DynamicSupervisor])
async def test_a_child_that_dies_while_the_supervisor_stops_is_not_restarted(new_system, recorder, made, restart):
    class Dies(Actor):
        async def terminate(self, reason):
            raise Boom

    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", made))
        ref = await supervisor.start_child(ChildSpec("a", Dies, restart=restart))
        await supervisor.start_child(Script("b", stop_takes=1).spec())
        await system.root.terminate_child(supervisor)
        assert isinstance(ref.last_exit, Crash)
        assert supervisor.last_exit == Shutdown()
        ends = {event.spec.id: event.expected for event in recorder.of(Exited)}
        assert ends == {"a": False, "b": True, "s": True}


@pytest.mark.rule("S-37")
@pytest.mark.parametrize(("restart", "expected"), [("permanent", False), ("transient", True), ("temporary", True)])
async def test_a_normal_end_during_the_stop_is_unexpected_of_a_permanent_child_only(
    new_system, recorder, restart, expected
):
    class Leaves(Actor):
        async def terminate(self, reason):
            raise Stop(Normal())

    async with new_system() as system:
        await system.start(ChildSpec("a", Leaves, restart=restart))
        await system.root.terminate_child("a")
        assert recorder.of(Exited)[0].expected is expected


@pytest.mark.rule("S-38")
async def test_a_child_that_has_ended_already_does_not_delay_the_stop(new_system, recorder):
    async with new_system() as system:
        group = await system.start(_group([Script("a").spec(), Script("b").spec()], strategy="one_for_all"))
        a, b = group.child("a"), group.child("b")
        recorder.take()
        a.kill()
        b.cast("crash")  # both exits wait when the supervisor looks
        await anyio.sleep(0.1)
        log = recorder.take()
        assert sorted(log[:2]) == ["-a killed", "-b crash"]
        assert log[2:] == ["+a", "+b"]
        assert group.alive  # and the second exit cost nothing


@pytest.mark.rule("S-39")
@pytest.mark.parametrize("made", [Supervisor, DynamicSupervisor])
async def test_unexpected_messages_to_a_supervisor_are_reported_and_ignored(new_system, recorder, made):
    from supervisors import Down, SupervisorsError
    from supervisors.events import DeadLetter

    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", made))
        supervisor.cast("nonsense")
        supervisor.send(Down(supervisor, Normal(), final=True))
        with pytest.raises(SupervisorsError):
            await supervisor.call("nonsense", timeout=5)
        assert len(recorder.of(DeadLetter)) == 2
        assert supervisor.alive


class _Linked(Actor):
    """Links to the ref of a cast, and crashes on anything else."""

    async def handle_cast(self, message):
        if not isinstance(message, ActorRef):
            raise Boom
        self.link(message)


@pytest.mark.rule("S-39")
@pytest.mark.parametrize("made", [Supervisor, DynamicSupervisor])
async def test_the_exit_of_a_linked_stranger_is_reported_and_ignored_by_a_supervisor(new_system, recorder, made):
    from supervisors import Exit
    from supervisors.events import DeadLetter

    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", made))
        child = await supervisor.start_child(Script("child").spec())
        stranger = await system.start(ChildSpec("stranger", _Linked, restart="temporary"))
        stranger.cast(supervisor)
        stranger.cast("crash")
        reason = await stranger.exited()
        await supervisor.which_children()
        assert (supervisor.alive, supervisor.last_exit, child.alive) == (True, None, True)
        assert [letter.message for letter in recorder.of(DeadLetter)] == [Exit(stranger, reason)]


@pytest.mark.rule("S-34")
async def test_a_call_to_a_sibling_that_was_stopped_before_fails_at_once(new_system):
    refused = []

    class Calls(Actor):
        async def terminate(self, reason):
            try:
                await sibling.call("are you there?")
            except NotRunning as error:
                refused.append((error.ref, anyio.current_time()))

    async with new_system() as system:
        await system.start(ChildSpec("calls", Calls))
        sibling = await system.start(Script("sibling").spec())
        left = anyio.current_time()
    assert refused == [(sibling, left)]


@pytest.mark.rule("S-50")
async def test_a_killed_supervisor_ends_its_children_and_frees_names_before_its_restart(new_system, recorder):
    scripts = [Script("a", stop_takes=5), Script("b", stop_takes=5)]

    def tree():
        nested = ChildSpec("n", lambda: Supervisor([scripts[1].spec(name="bee")]))
        return Supervisor([scripts[0].spec(name="ay"), nested])

    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", tree))
        old = supervisor.child("a")
        before = anyio.current_time()
        supervisor.kill()
        await anyio.sleep(0.001)
        assert anyio.current_time() - before < 1
        assert old.last_exit == Killed()
        assert scripts[0].ends == scripts[1].ends == []
        assert supervisor.alive
        assert system.registry.whereis("ay") is supervisor.child("a")
        assert system.registry.whereis("ay") is not old


async def test_a_busy_handler_is_cancelled_and_then_terminate_runs(new_system):
    log = []

    class Busy(Actor):
        async def handle_cast(self, message):
            try:
                await anyio.sleep_forever()
            finally:
                log.append("cancelled")

        async def terminate(self, reason):
            await anyio.sleep(1)
            log.append(str(reason))

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Busy))
        ref.cast("go")
        await anyio.sleep(1)
        await system.root.terminate_child("a", Shutdown("parent_ended"))
        assert log == ["cancelled", "shutdown: parent_ended"]


async def test_a_supervisor_passes_its_reason_to_its_children(new_system):
    script, lazy = Script("a"), Script("b")
    async with new_system() as system:
        nested = ChildSpec("n", lambda: Supervisor([script.spec()]))
        supervisor = await system.start(_group([nested, ChildSpec("d", DynamicSupervisor)]))
        await supervisor.child("d").start_child(lazy.spec())
        await system.root.terminate_child("s", Shutdown("budget"))
        assert script.ends == lazy.ends == [Shutdown("budget")]
        assert supervisor.last_exit == Shutdown("budget")


async def test_a_child_that_cannot_be_killed_is_reported_as_a_zombie(new_system, recorder):
    script = Script("z", immortal=True)
    async with new_system(kill_grace=2) as system:
        ref = await system.start(script.spec(shutdown=1, name="zed"))
        ref.cast("hang")
        await anyio.sleep(1)
        ref.cast("never handled")
        before = anyio.current_time()
        await system.root.terminate_child("z")
        script.release()
        assert anyio.current_time() - before == pytest.approx(3)
        assert [event.ref for event in recorder.of(Zombie)] == [ref]
        assert ref.last_exit == Killed()
        assert system.registry.whereis("zed") is None
        assert ref.mailbox_depth == 0
    # leaving the system waited for it: no task is left behind


class _Receives(Actor):
    """Waits for its mailbox, and looks idle; but in a handler of its own, which refuses to end."""

    async def handle_cast(self, message):
        with anyio.CancelScope(shield=True):
            while not message.is_set():
                with anyio.move_on_after(10):
                    await self.receive()


class _Works(Actor):
    """Its loop is idle; a task of its own refuses to end."""

    has_tasks = True

    async def handle_cast(self, message):
        self.tasks.start_soon(self.work, message)

    async def work(self, message):
        with anyio.CancelScope(shield=True):
            await message.wait()


async def test_a_stop_gives_no_more_time_to_a_child_that_is_being_killed(new_system, recorder):
    script = Script("z", immortal=True)
    async with new_system(kill_grace=2) as system:
        ref = await system.start(script.spec(shutdown=10))
        ref.cast("hang")
        await anyio.sleep(1)
        ref.kill()
        before = anyio.current_time()
        await system.root.terminate_child("z")
        script.release()
        assert anyio.current_time() - before == pytest.approx(2)
        assert [event.ref for event in recorder.of(Zombie)] == [ref]


@pytest.mark.rule("S-35")
@pytest.mark.parametrize("actor", [_Receives, _Works])
@pytest.mark.parametrize("shutdown", [1, "kill"])
async def test_a_child_that_only_looks_idle_is_given_up_after_its_grace(new_system, recorder, actor, shutdown):
    release = anyio.Event()
    async with new_system(kill_grace=2) as system:
        ref = await system.start(ChildSpec("a", actor, shutdown=shutdown, restart="temporary"))
        ref.cast(release)
        await anyio.sleep(0.1)
        before = anyio.current_time()
        await system.root.terminate_child("a")
        assert anyio.current_time() - before == pytest.approx(2 if shutdown == "kill" else 3)
        assert [event.ref for event in recorder.of(Zombie)] == [ref]
        release.set()


async def test_zombies_do_not_prevent_their_supervisors_from_ending(new_system):
    script = Script("z", immortal=True)
    async with new_system(kill_grace=1) as system:
        group = await system.start(_group([Script("a").spec(), script.spec(shutdown=1)]))
        group.child("z").cast("hang")
        await anyio.sleep(1)
        await system.root.terminate_child("s")
        script.release()
        assert not group.alive


@pytest.mark.rule("S-44")
@pytest.mark.real_time
@pytest.mark.parametrize("made", [Supervisor, DynamicSupervisor])
async def test_start_and_stop_are_linear(made):
    from supervisors import ActorSystem

    async def cost(n: int) -> float:
        async with ActorSystem(reports=None) as system:
            supervisor = await system.start(ChildSpec("s", made))
            before = time.process_time()
            for at in range(n):
                await supervisor.start_child(ChildSpec(at, Actor))
            await system.root.terminate_child("s")
            return (time.process_time() - before) / n

    gc.disable()  # the cost of collecting the garbage of other tests is not measured here
    try:
        await cost(200)
        small = min([await cost(300) for _ in range(3)])
        assert await cost(3000) < 3 * small
    finally:
        gc.enable()


async def test_terminate_after_a_crash_has_the_same_grace_and_the_reason_stays(new_system):
    async with new_system() as system:
        ref = await system.start(Script("a", stop_takes=math.inf).spec(shutdown=3, restart="temporary"))
        before = anyio.current_time()
        ref.cast("crash")
        assert isinstance(await ref.exited(), Crash)
        assert anyio.current_time() - before == 3
