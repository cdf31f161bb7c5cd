"""Actors that have children of their own: `children`, and the order in which a host and its children end."""

import contextvars
import math

import anyio
import pytest

from supervisors import (
    Actor,
    ChildNotFound,
    ChildSpec,
    Crash,
    Died,
    GaveUp,
    Killed,
    Normal,
    Outcome,
    ParentEnded,
    Shutdown,
    ShuttingDown,
    SpecError,
    StartFailed,
    Stop,
    Supervisor,
    SupervisorRef,
    task,
)
from supervisors.events import Exited, Zombie
from supervisors.inspect import build_tree
from supervisors.ref import identify
from supervisors.testing import Boom, Leave, Script


class Host(Actor):
    """Starts the scripts that it is given. A call is a function, and the host is its argument."""

    has_children = True

    def __init__(self, *scripts, log=None):
        self.scripts = scripts
        self.log = [] if log is None else log

    async def init(self):
        for script in self.scripts:
            await self.children.start(script.spec())

    async def handle_call(self, message, caller):
        return await message(self)

    async def handle_cast(self, message):
        if isinstance(message, Leave):
            raise Stop(message.reason)
        raise Boom(message)

    async def terminate(self, reason):
        self.log.append(("terminate", reason, len(self.children)))
        await anyio.sleep(1)


def spec(*scripts, log=None, **options):
    return ChildSpec("host", lambda: Host(*scripts, log=log), **options)


def scripts(*names, **options):
    return [Script(name, **options) for name in names]


async def test_children_of_a_host_are_below_it_in_the_tree(new_system):
    async with new_system() as system:
        host = await system.start(spec(*scripts("a", "b")))
        await host.call(lambda me: me.children.start(ChildSpec("s", lambda: Supervisor([Script("x").spec()]))))
        (node,) = build_tree(system).children
        assert [child.path for child in node.walk()] == [
            *("root/host", "root/host/a", "root/host/b"),
            *("root/host/s", "root/host/s/x"),
        ]


async def test_children_are_iterated_in_start_order(new_system):
    async def list_children(me):
        return [ref.id for ref in me.children], len(me.children)

    async with new_system() as system:
        host = await system.start(spec(*scripts("b", "a", "c")))
        assert await host.call(list_children) == (["b", "a", "c"], 3)


async def test_start_returns_the_kind_of_ref_that_the_child_has(new_system):
    async with new_system() as system:
        host = await system.start(spec())
        worker = await host.call(lambda me: me.children.start(Script("a").spec()))
        supervisor = await host.call(lambda me: me.children.start(ChildSpec("s", Supervisor)))
        assert await worker.call("hello") == "hello"
        assert isinstance(supervisor, SupervisorRef)
        assert await supervisor.which_children() == []


@pytest.mark.parametrize(
    ("how", "reason", "seen"),
    [
        (Leave(Normal()), Normal(), Shutdown(ParentEnded(Normal()))),
        (Leave(Shutdown("enough")), Shutdown("enough"), Shutdown("enough")),
        ("terminate", Shutdown("please"), Shutdown("please")),
    ],
    ids=["normal", "own", "asked"],
)
async def test_a_host_terminates_while_its_children_live_and_then_stops_them_last_first(
    new_system, recorder, how, reason, seen
):
    children, log = scripts("a", "b", "c", stop_takes=1), []
    async with new_system() as system:
        host = await system.start(spec(*children, log=log, restart="temporary"))
        recorder.take()
        began = anyio.current_time()
        if how == "terminate":
            await system.root.terminate_child("host", Shutdown("please"))
        else:
            host.cast(how)
        assert await host.exited() == reason
        assert log == [("terminate", reason, 3)]
        assert [event.time - began for event in recorder.of(Exited)] == [2, 3, 4, 4]
        assert [line.split()[0] for line in recorder.take()] == ["-c", "-b", "-a", "-host"]
        assert [script.ends for script in children] == [[seen]] * 3


async def test_the_children_of_a_host_that_crashed_get_its_reason(new_system):
    (script,) = children = scripts("a")
    async with new_system() as system:
        host = await system.start(spec(*children, restart="temporary"))
        host.cast("crash")
        reason = await host.exited()
        assert isinstance(reason.exception, Boom)
        assert script.ends == [Shutdown(ParentEnded(reason))]
        assert str(script.ends[0]) == "shutdown: parent ended: crash: Boom: crash"


async def test_a_killed_host_kills_its_children_at_once(new_system, recorder):
    inner = Script("x", stop_takes=5)
    script = Script("a", stop_takes=5)
    async with new_system() as system:
        host = await system.start(spec(script, restart="temporary"))
        await host.call(lambda me: me.children.start(ChildSpec("s", lambda: Supervisor([inner.spec()]))))
        recorder.take()
        began = anyio.current_time()
        host.kill()
        assert await host.exited() == Killed()
        assert anyio.current_time() == began
        assert script.ends == inner.ends == []
        assert sorted(recorder.take()) == ["-a killed", "-host killed", "-s killed", "-x killed"]


async def test_a_host_may_stop_its_children_in_terminate(new_system, recorder):
    class Tidy(Host):
        async def terminate(self, reason):
            await self.children.stop_all(Shutdown("tidied"))
            self.log.append(len(self.children))

    children, log = scripts("a", "b"), []
    async with new_system() as system:
        await system.start(ChildSpec("host", lambda: Tidy(*children, log=log)))
        recorder.take()
        await system.root.terminate_child("host")
        assert log == [0]
        assert [script.ends for script in children] == [[Shutdown("tidied")]] * 2
        assert recorder.take() == ["-b shutdown", "-a shutdown", "-host shutdown"]


async def test_a_host_that_stops_its_children_at_once_takes_as_long_as_the_slowest(new_system):
    class AtOnce(Host):
        stops_children_at_once = True

        async def terminate(self, reason):
            pass

    children = [Script(f"{seconds}", stop_takes=seconds) for seconds in (3, 1, 2)]
    async with new_system() as system:
        await system.start(ChildSpec("host", lambda: AtOnce(*children)))
        began = anyio.current_time()
        await system.root.terminate_child("host")
        assert anyio.current_time() - began == 3


async def test_the_time_that_a_host_has_to_end_is_unlimited_by_default(new_system):
    script = Script("a", stop_takes=1000)
    async with new_system() as system:
        host = await system.start(spec())
        await host.call(lambda me: me.children.start(script.spec(shutdown=math.inf)))
        await system.root.terminate_child("host")
        assert host.last_exit == Shutdown()
        assert script.ends == [Shutdown()]


async def test_a_host_with_a_grace_is_killed_with_its_children_when_it_is_over(new_system):
    script = Script("a", stop_takes=1000)
    async with new_system() as system:
        host = await system.start(spec(restart="temporary", shutdown=5))
        child = await host.call(lambda me: me.children.start(script.spec(shutdown=math.inf)))
        began = anyio.current_time()
        await system.root.terminate_child(host)
        assert anyio.current_time() - began == 5
        assert (host.last_exit, child.last_exit) == (Killed(), Killed())


@pytest.mark.parametrize("how", ["crash", Leave(Normal())], ids=["crash", "normal"])
async def test_a_child_of_a_host_is_restarted_as_its_spec_says(new_system, how):
    async with new_system() as system:
        host = await system.start(spec())
        transient = await host.call(lambda me: me.children.start(Script("a").spec(restart="transient")))
        transient.cast(how)
        await anyio.sleep(1)
        assert transient.alive is (how == "crash")
        assert await host.call(_count) == transient.alive


async def _count(me):
    return len(me.children)


async def test_a_restarted_child_runs_inside_its_host_again(new_system):
    script = Script("a")
    async with new_system() as system:
        host = await system.start(spec(script, restart="temporary"))
        (child,) = await host.call(_list)
        child.cast("crash")
        await anyio.sleep(1)
        assert child.alive
        host.cast("crash")
        await host.exited()
        assert not child.alive
        assert isinstance(script.ends[-1].detail, ParentEnded)


async def _list(me):
    return list(me.children)


async def test_a_host_ends_when_its_children_were_restarted_too_often(new_system, recorder):
    class Strict(Host):
        max_restarts = 2
        period = 100

    children = scripts("a", "b")
    async with new_system() as system:
        host = await system.start(ChildSpec("host", lambda: Strict(*children), restart="temporary"))
        first, second = await host.call(_list)
        for _ in range(3):
            first.cast("crash")
            await anyio.sleep(1)
        reason = await host.exited()
        assert isinstance(reason.detail, GaveUp)
        assert reason.detail.child == "a"
        assert isinstance(reason.detail.reason.exception, Boom)
        assert second.last_exit == reason


async def test_a_host_without_a_limit_restarts_its_children_for_ever(new_system):
    class Patient(Host):
        max_restarts = math.inf

    async with new_system() as system:
        host = await system.start(ChildSpec("host", lambda: Patient(*scripts("a"))))
        (child,) = await host.call(_list)
        for _ in range(20):
            child.cast("crash")
            await anyio.sleep(0.01)
        assert child.alive
        assert host.last_exit is None


def test_a_host_with_a_wrong_limit_is_refused():
    with pytest.raises(SpecError, match="max_restarts"):
        type("Wrong", (Actor,), {"has_children": True, "max_restarts": -1})


async def test_run_returns_the_outcome_of_a_child_and_raises_no_failure(new_system):
    async def double(n):
        return 2 * n

    async with new_system() as system:
        host = await system.start(spec())
        assert await host.call(lambda me: me.children.run(task("t", double, 21))) == Outcome(Normal(), 42)
        failed = await host.call(lambda me: me.children.run(task("t", double, None)))
        assert isinstance(failed.reason.exception, TypeError)
        refused = await host.call(lambda me: me.children.run(Script("x", starts=["error"]).spec()))
        assert isinstance(refused.reason, Crash)


async def test_run_stops_its_child_when_it_is_cancelled(new_system):
    script = Script("a")

    async def run_for_a_second(me):
        with anyio.move_on_after(1):
            await me.children.run(script.spec(restart="temporary"), cancelled=Shutdown("too late"))

    async with new_system() as system:
        host = await system.start(spec())
        await host.call(run_for_a_second)
        assert script.ends == [Shutdown("too late")]


async def test_a_cancelled_start_ends_the_child_again(new_system, recorder):
    async def start_for_a_second(me):
        with anyio.move_on_after(1):
            await me.children.start(Script("a", slow_start=10).spec())

    async with new_system() as system:
        host = await system.start(spec())
        await host.call(start_for_a_second)
        await anyio.sleep(1)
        assert recorder.take() == ["+host", "!a"]
        assert await host.call(_count) == 0


async def test_stop_takes_the_refs_of_own_children_only(new_system):
    script = Script("a")
    async with new_system(max_restarts=9) as system:
        host = await system.start(spec(script))
        stranger = await system.start(Script("b").spec())
        (child,) = await host.call(_list)
        await host.call(lambda me: me.children.stop(child, Shutdown("done")))
        await host.call(lambda me: me.children.stop(child))
        assert script.ends == [Shutdown("done")]
        for wrong in (stranger, "a", None):
            with pytest.raises(Died, match="during the call") as died:
                await host.call(lambda me, wrong=wrong: me.children.stop(wrong))
            assert isinstance(died.value.__cause__, ChildNotFound)
            await anyio.sleep(1)
        assert stranger.alive


async def test_a_child_whose_start_fails_is_an_error_and_is_not_kept(new_system):
    async with new_system() as system:
        host = await system.start(spec())

        async def start(me):
            with pytest.raises(StartFailed):
                await me.children.start(Script("a", starts=["error"]).spec())
            return len(me.children)

        assert await host.call(start) == 0


async def test_a_host_that_is_ending_starts_no_children(new_system):
    refused = []

    class Late(Host):
        async def terminate(self, reason):
            with pytest.raises(ShuttingDown):
                await self.children.start(Script("late").spec())
            refused.append(reason)

    async with new_system() as system:
        await system.start(ChildSpec("host", Late))
    assert refused == [Shutdown("system")]


async def test_a_host_that_starts_a_child_before_it_learns_that_it_stops_ends_as_it_was_asked(new_system):
    log = []

    class Late(Host):
        has_tasks = False

        async def run(self):
            self.ref.exit(Shutdown("enough"))
            await self.children.start(Script("late").spec())

    class LateInTasks(Late):
        has_tasks = True

    async with new_system() as system:
        for late in (Late, LateInTasks):
            host = await system.start(ChildSpec("host", lambda late=late: late(log=log), restart="temporary"))
            assert await host.exited() == Shutdown("enough")
    assert [entry[:2] for entry in log] == [("terminate", Shutdown("enough"))] * 2


async def test_a_child_that_dies_while_its_host_terminates_is_not_restarted(new_system):
    script = Script("a")
    async with new_system() as system:
        host = await system.start(spec(script, restart="temporary"))
        (child,) = await host.call(_list)
        host.exit()
        await anyio.sleep(0.5)
        child.cast("crash")
        await host.exited()
        assert script.incarnations == 1


async def test_a_host_whose_init_fails_leaves_no_child(new_system, recorder):
    class Fails(Host):
        async def init(self):
            await super().init()
            raise Boom

    async with new_system() as system:
        with pytest.raises(StartFailed):
            await system.start(ChildSpec("host", lambda: Fails(*scripts("a", "b"))))
        assert recorder.take() == ["+a", "+b", "-b shutdown", "-a shutdown", "!host"]


async def test_a_host_waits_neither_for_a_zombie_nor_forgets_its_task(new_system, recorder):
    script = Script("z", immortal=True)
    async with new_system(kill_grace=1) as system:
        host = await system.start(spec(restart="temporary"))
        child = await host.call(lambda me: me.children.start(script.spec(shutdown=1)))
        child.cast("hang")
        await anyio.sleep(1)
        await system.root.terminate_child(host)
        assert [event.ref for event in recorder.of(Zombie)] == [child]
        assert host.last_exit == Shutdown()
        tasks = len(anyio.get_running_tasks())
        script.release()
        await anyio.sleep(1)
        assert len(anyio.get_running_tasks()) == tasks - 2  # the zombie, and its host, which had waited for it


async def test_a_host_that_refuses_to_end_is_given_up_and_its_children_are_killed(new_system, recorder):
    release = anyio.Event()

    class Refuses(Host):
        async def terminate(self, reason):
            with anyio.CancelScope(shield=True):
                await release.wait()

    async with new_system(kill_grace=1) as system:
        host = await system.start(ChildSpec("host", lambda: Refuses(*scripts("a")), shutdown=2, restart="temporary"))
        (child,) = await host.call(_list)
        host.cast("crash")
        await anyio.sleep(4)
        assert [event.ref for event in recorder.of(Zombie)] == [host]
        assert child.last_exit == Killed()
        release.set()


async def test_a_host_may_have_tasks_and_children(new_system, recorder):
    class Both(Host):
        has_tasks = True

        async def init(self):
            await super().init()
            self.tasks.start_soon(anyio.sleep_forever)

    async with new_system() as system:
        await system.start(ChildSpec("host", lambda: Both(*scripts("a"))))
        recorder.take()
        await system.root.terminate_child("host")
        assert recorder.take() == ["-a shutdown", "-host shutdown"]


@pytest.mark.rule("K-05")
async def test_a_child_has_the_context_variables_that_its_host_had_at_its_start(new_system):
    variable = contextvars.ContextVar("variable", default="system")
    seen = []

    class Sees(Actor):
        async def init(self):
            seen.append(variable.get())

    class Sets(Host):
        async def init(self):
            variable.set("of the host's init")
            await self.children.start(ChildSpec("in init", Sees))

    async with new_system() as system:
        variable.set("of the opener")
        host = await system.start(ChildSpec("host", Sets))
        await host.call(lambda me: me.children.start(ChildSpec("in a call", Sees)))
        (child, _) = await host.call(_list)
        child.kill()
        await anyio.sleep(1)
        assert seen == ["system"] * 3


async def test_an_ignored_restart_makes_a_child_disappear_and_keeps_its_last_real_reason(new_system):
    for ignoring in (Script("a", starts=["ok", "ignore"]), _IgnoresBeforeItIsMade()):
        async with new_system() as system:
            host = await system.start(spec())
            child = await host.call(lambda me, start=ignoring: me.children.start(ChildSpec("a", start)))
            child.cast("crash")
            outcome = await child.outcome()
            assert isinstance(outcome.reason, Crash)
            assert await host.call(_count) == 0


class _IgnoresBeforeItIsMade:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        from supervisors import Ignore

        self.calls += 1
        if self.calls > 1:
            raise Ignore
        return Script("a")()


async def test_an_ended_host_is_freed_without_the_collector():
    import gc
    import weakref

    from supervisors import ActorSystem

    async with ActorSystem(reports=None) as system:
        ref = await system.start(spec(*scripts("a"), restart="temporary"))
        seen = weakref.ref(identify(ref).incarnation.actor)
        gc.collect()
        gc.disable()
        try:
            ref.exit()
            await ref.exited()
            await anyio.sleep(1)
            assert seen() is None
        finally:
            gc.enable()
