"""Actors without a task: from their start until there is something to do, and again when they hibernate."""

import asyncio
import gc
import itertools
import math
import weakref

import anyio
import anyio.lowlevel
import pytest
import sniffio
import trio

from supervisors import (
    HIBERNATE,
    Actor,
    ActorRef,
    ActorSystem,
    ChildSpec,
    Crash,
    Down,
    DynamicSupervisor,
    Exit,
    Killed,
    Normal,
    NotRunning,
    Shutdown,
    SpecError,
    Supervisor,
)
from supervisors.inspect import build_tree


def tasks() -> int:
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())


class Counter(Actor):
    hibernate_after = 10.0

    def __init__(self, log=None):
        self.total = 0
        self.log = log

    async def handle_cast(self, message):
        self.total += message

    async def handle_call(self, message, caller):
        if message == "crash":
            raise RuntimeError(message)
        return self.total

    async def handle_info(self, message):
        if self.log is not None:
            self.log.append(message)


class Log(list):
    """A list that one can have a weak reference to."""


class Tidy(Counter):
    async def terminate(self, reason):
        await anyio.sleep(1)
        self.log.append(str(reason))


def spec(id, made=Counter, **options):
    return ChildSpec(id, made, **options)


async def test_an_idle_actor_has_no_task(new_system):
    async with new_system() as system:
        before = tasks()
        group = await system.start(spec("group", DynamicSupervisor))
        refs = [await group.start_child(spec(n)) for n in range(100)]
        assert tasks() == before
        assert all(ref.alive for ref in refs)
        assert await refs[7].call("total") == 0
        assert tasks() == before + 1


async def test_an_actor_idle_for_long_ends_its_task_and_keeps_its_state(new_system):
    async with new_system() as system:
        ref = await system.start(spec("counter"))
        before = tasks()
        for total in (1, 2, 3):
            ref.cast(1)
            await anyio.sleep(9.5)
            assert tasks() == before + 1
            await anyio.sleep(1)
            assert tasks() == before
            assert await ref.call("total") == total
            await anyio.sleep(11)
        assert build_tree(system).children[0].restarts == 0


async def test_an_actor_that_is_never_idle_for_long_keeps_its_task(new_system):
    async with new_system() as system:
        ref = await system.start(spec("counter"))
        before = tasks()
        for _ in range(20):
            ref.cast(1)
            await anyio.sleep(6)
            assert tasks() == before + 1


async def test_a_timer_wakes_a_hibernated_actor(new_system):
    class Ticking(Counter):
        async def handle_cast(self, message):
            self.send_after(100, "tick")

    log = []
    async with new_system() as system:
        ref = await system.start(spec("ticking", lambda: Ticking(log)))
        ref.cast("begin")
        await anyio.sleep(99)
        assert log == []
        await anyio.sleep(2)
        assert log == ["tick"]


@pytest.mark.rule("S-35")
@pytest.mark.parametrize("slept", [0, 60])
async def test_a_resting_actor_is_asked_to_end_like_any_other(new_system, slept):
    log = []
    async with new_system() as system:
        ref = await system.start(spec("tidy", lambda: Tidy(log)))
        await anyio.sleep(slept)
        began = anyio.current_time()
        await system.root.terminate_child("tidy", Shutdown("closing"))
        assert anyio.current_time() - began == 1
        assert log == ["shutdown: closing"]
        assert ref.last_exit == Shutdown("closing")


async def test_a_resting_actor_without_cleanup_ends_without_a_task(new_system):
    async with new_system() as system:
        ref = await system.start(spec("counter"))
        before = tasks()
        ref.exit(Shutdown("enough"))
        assert tasks() == before
        await anyio.sleep(0.1)
        assert ref.last_exit == Shutdown("enough")
        assert ref.alive  # and its next incarnation rests as well
        assert tasks() == before


async def test_an_ended_actor_is_not_kept_alive_by_its_idle_timer():
    log = Log()
    kept = weakref.ref(log)

    def group(log):
        return lambda: Supervisor([spec("counter", lambda: Counter(log))], hibernate_after=10.0)

    async with ActorSystem(reports=None) as system:  # and its events are not kept
        ref = await system.start(spec("group", group(log), restart="temporary"))
        del log
        assert await ref.child("counter").call("total") == 0
        await system.root.terminate_child(ref)
        await anyio.sleep(1)
        assert kept() is None


async def test_a_killed_hibernated_actor_does_not_terminate(new_system):
    log = []
    async with new_system() as system:
        ref = await system.start(spec("tidy", lambda: Tidy(log), restart="temporary"))
        ref.kill()
        assert await ref.exited() == Killed()
        assert log == []


async def test_mail_that_arrives_while_an_actor_ends_is_for_the_next_incarnation(new_system):
    async with new_system() as system:
        ref = await system.start(spec("counter"))
        ref.kill()
        ref.cast(5)
        assert await ref.call("total") == 5
        assert ref.last_exit == Killed()


async def test_a_call_that_arrives_while_an_actor_ends_gets_not_running(new_system):
    async with new_system() as system:
        ref = await system.start(spec("counter", restart="temporary"))
        ref.kill()
        with pytest.raises(NotRunning):
            await ref.call("total")


async def test_monitors_and_links_of_a_resting_actor_are_notified(new_system):
    log = []

    class Watcher(Counter):
        trap_exit = True

        async def handle_cast(self, ref):
            self.monitor(ref)
            self.link(ref)

    async with new_system() as system:
        ref = await system.start(spec("counter", restart="temporary"))
        watcher = await system.start(spec("watcher", lambda: Watcher(log)))
        watcher.cast(ref)
        await anyio.sleep(60)
        ref.kill()
        await anyio.sleep(1)
        assert {type(message) for message in log} == {Down, Exit}


async def test_a_long_chain_of_links_ends_without_deep_recursion(new_system):
    class Linked(Counter):
        async def handle_cast(self, ref):
            self.link(ref)

    async with new_system() as system:
        group = await system.start(spec("group", DynamicSupervisor))
        refs: list[ActorRef] = [await group.start_child(spec(n, Linked, restart="temporary")) for n in range(3000)]
        for one, other in itertools.pairwise(refs):
            one.cast(other)
        await anyio.sleep(60)
        refs[0].exit(Shutdown("all"))
        for ref in refs:
            assert await ref.exited() == Shutdown("all")


async def test_a_hibernated_supervisor_restarts_its_children(new_system):
    def made():
        return Supervisor([spec("a"), spec("b")], strategy="rest_for_one", max_restarts=5, hibernate_after=10.0)

    async with new_system() as system:
        before = tasks()
        group = await system.start(spec("group", made))
        first = group.child("a")
        await anyio.sleep(60)
        assert tasks() == before
        for n in range(3):
            first.kill()
            await anyio.sleep(1)
            assert build_tree(system).children[0].children[1].restarts == n + 1
            assert [child.state for child in await group.which_children()] == ["running", "running"]
            await anyio.sleep(60)
            assert tasks() == before
        await system.root.terminate_child("group")
        assert not first.alive


async def test_a_hibernated_dynamic_supervisor_restarts_its_children(new_system):
    async with new_system() as system:
        before = tasks()
        group = await system.start(spec("group", lambda: DynamicSupervisor(hibernate_after=10.0)))
        ref = await group.start_child(spec("a"))
        assert (await group.count_children()).active == 1
        await anyio.sleep(60)
        assert tasks() == before
        ref.kill()
        await anyio.sleep(1)
        assert ref.alive
        await group.terminate_child(ref)
        assert (await group.count_children()).active == 0
        await anyio.sleep(60)
        await system.root.terminate_child("group")
        assert not group.alive


@pytest.mark.rule("S-34")
async def test_a_killed_supervisor_ends_its_hibernated_children(new_system):
    async with new_system() as system:
        group = await system.start(spec("group", lambda: Supervisor([spec("a")], hibernate_after=1.0)))
        child = group.child("a")
        await anyio.sleep(60)
        group.kill()
        await anyio.sleep(1)
        assert child.last_exit == Killed()
        assert group.child("a").alive  # of the next incarnation


async def test_a_crash_after_a_rest_is_a_crash_like_any_other(new_system, recorder):
    async with new_system() as system:
        ref = await system.start(spec("counter"))
        await anyio.sleep(60)
        with pytest.raises(Exception, match="crash"):
            await ref.call("crash")
        await anyio.sleep(math.ulp(1.0))
        assert recorder.take() == ["+counter", "-counter crash", "+counter"]


async def test_an_actor_with_running_work_does_not_rest(new_system):
    class Busy(Counter):
        has_tasks = True

        async def init(self):
            self.log.append("init")
            self.tasks.start_soon(anyio.sleep, 1000)

    class Own(Counter):
        async def run(self):
            try:
                await super().run()
            finally:
                self.log.append("left")

    log = []
    async with new_system() as system:
        busy = await system.start(spec("busy", lambda: Busy(log)))
        own = await system.start(spec("own", lambda: Own(log)))
        for ref in (busy, own):
            ref.cast(1)
        before = tasks()
        await anyio.sleep(60)
        assert tasks() == before
        for ref in (busy, own):
            assert await ref.call("total") == 1
        assert log == ["init"]


@pytest.mark.parametrize("made", [Supervisor, DynamicSupervisor])
@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "10", True])
def test_an_invalid_hibernate_after_is_refused(made, wrong):
    with pytest.raises(SpecError, match="hibernate_after: is seconds, 0 or more"):
        made(hibernate_after=wrong)


class Teller(Actor):
    """Writes down what comes, and hibernates as soon as nothing does."""

    def __init__(self, log):
        self.log = log

    async def run(self):
        self.log.append("run")
        while self.ref.mailbox_depth:
            message = self.receive_nowait()
            if message == "end":
                return "ended"
            if message == "later":
                self.send_after(100, "tick")
            if isinstance(message, ActorRef):
                self.monitor(message)
            self.log.append(message)
        return HIBERNATE

    async def terminate(self, reason):
        await anyio.sleep(1)
        self.log.append(str(reason))


async def test_a_run_that_hibernates_is_called_again_when_there_is_mail(new_system):
    log = []
    async with new_system() as system:
        ref = await system.start(spec("teller", lambda: Teller(log), restart="temporary"))
        await anyio.sleep(1)
        before = tasks()
        ref.cast("a")
        ref.cast("b")
        assert tasks() == before + 1
        await anyio.sleep(1)
        assert tasks() == before
        ref.cast("end")
        outcome = await ref.outcome()
        assert outcome.reason == Normal()
        assert outcome.value == "ended"
        assert log == ["run", "run", "a", "b", "run", "normal"]


async def test_a_run_that_hibernates_with_waiting_mail_is_called_again_without_starving_others(new_system):
    class Lazy(Actor):
        calls = 0

        async def run(self):
            Lazy.calls += 1
            if Lazy.calls == 100:
                self.receive_nowait()
            return HIBERNATE

    async with new_system() as system:
        ref = await system.start(spec("lazy", Lazy))
        ref.cast("a")
        while Lazy.calls < 100:
            await anyio.lowlevel.checkpoint()
        await anyio.sleep(1)
        assert Lazy.calls == 100
        assert not ref.mailbox_depth


async def test_timers_and_ends_of_others_wake_a_run_that_hibernates(new_system):
    log = []
    async with new_system() as system:
        ref = await system.start(spec("teller", lambda: Teller(log)))
        other = await system.start(spec("other", restart="temporary"))
        await anyio.sleep(1)
        ref.cast("later")
        ref.cast(other)
        await anyio.sleep(99)
        assert log == ["run", "run", "later", other]
        await anyio.sleep(2)
        assert log[-1] == "tick"
        other.kill()
        await anyio.sleep(1)
        assert isinstance(log[-1], Down)


@pytest.mark.rule("S-35")
async def test_an_actor_that_hibernates_in_run_is_cancelled_inside_run(new_system):
    class Tidy(Teller):
        async def run(self):
            if (await super().run()) is HIBERNATE and self.log.count("run") == 2:
                try:
                    await anyio.sleep(1000)
                finally:
                    self.log.append("cut off")
            return HIBERNATE

    log = []
    async with new_system() as system:
        ref = await system.start(spec("teller", lambda: Tidy(log)))
        await anyio.sleep(60)
        began = anyio.current_time()
        await system.root.terminate_child("teller", Shutdown("closing"))
        assert anyio.current_time() - began == 1
        assert log == ["run", "run", "cut off", "shutdown: closing"]
        assert ref.last_exit == Shutdown("closing")


async def test_an_actor_killed_while_it_hibernates_does_not_run_again(new_system):
    log = []
    async with new_system() as system:
        ref = await system.start(spec("teller", lambda: Teller(log), restart="temporary"))
        await anyio.sleep(60)
        ref.kill()
        outcome = await ref.outcome()
        assert outcome.reason == Killed()
        assert outcome.value is None
        assert log == ["run"]


async def test_an_actor_with_tasks_cannot_hibernate_and_gets_an_error(new_system):
    class Busy(Teller):
        has_tasks = True

    log = []
    async with new_system() as system:
        ref = await system.start(spec("busy", lambda: Busy(log), restart="temporary"))
        reason = await ref.exited()
        assert isinstance(reason, Crash)
        assert "Busy.run returned HIBERNATE" in str(reason)


async def test_a_monitoring_actor_is_freed_at_its_end_without_the_collector():
    class Watcher(Actor):
        def __init__(self, log):
            self.log = log

        async def handle_cast(self, ref):
            self.monitor(ref)

    log = type("Log", (list,), {})()
    kept = weakref.ref(log)
    async with ActorSystem(reports=None) as system:
        other = await system.start(spec("other"))
        ref = await system.start(ChildSpec("watcher", lambda log=log: Watcher(log), restart="temporary"))
        del log
        ref.cast(other)
        await anyio.sleep(1)
        gc.disable()
        try:
            await system.root.terminate_child(ref)
            await anyio.sleep(1)
            assert kept() is None
        finally:
            gc.enable()
