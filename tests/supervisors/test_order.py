"""The order of messages to supervisors and actors, and what is left when one of them ends in between."""

import anyio
import anyio.lowlevel
import pytest

from supervisors import (
    Actor,
    ActorRef,
    Backoff,
    ChildSpec,
    Crash,
    DynamicSupervisor,
    NotRunning,
    Shutdown,
    SpecError,
    StartFailed,
    Supervisor,
    SupervisorsError,
)
from supervisors.events import Exited, StartFailedEvent, Zombie
from supervisors.ref import identify
from supervisors.testing import Script


class _Once:
    """A `start` that works once, and then raises before there is an actor."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.calls > 1:
            raise ValueError(self.calls)
        return Actor()


@pytest.mark.rule("S-32")
@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("made", [Supervisor, DynamicSupervisor])
async def test_a_supervisor_that_is_stopped_in_a_restart_loop_leaves_nothing_in_its_mailbox(new_system, made, steps):
    """Its mailbox outlives it, and a retry of its own is no message for its parent or for the next one."""
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", lambda: made(max_restarts=10**9)))
        ref = await supervisor.start_child(ChildSpec("a", _Once()))
        ref.kill()
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        await system.root.terminate_child("s")
        assert supervisor.mailbox_depth == 0
        assert await system.root.restart_child("s") is supervisor
        assert await supervisor.which_children() == []


@pytest.mark.rule("S-50")
async def test_exits_that_a_supervisor_did_not_handle_do_not_reach_its_next_incarnation(new_system):
    script, slow = Script("a"), Script("slow", slow_start=9)
    async with new_system(max_restarts=9) as system:
        supervisor = await system.start(ChildSpec("s", lambda: Supervisor([script.spec()])))
        async with anyio.create_task_group() as group:

            async def start():
                with pytest.raises(SupervisorsError):
                    await supervisor.start_child(slow.spec())

            group.start_soon(start)
            await anyio.sleep(0.1)
            supervisor.child("a").cast("crash")
            await anyio.sleep(0.1)
            supervisor.kill()
        await anyio.sleep(0.1)
        assert supervisor.alive
        assert supervisor.mailbox_depth == 0
        assert script.incarnations == 2  # of the first supervisor, and of the second


@pytest.mark.rule("S-40")
async def test_a_request_sent_before_an_exit_is_handled_before_it(new_system):
    """As in OTP, whose mailbox has one order: the child has ended when the request is handled, and is not restarted."""
    script = Script("a")
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", lambda: Supervisor([script.spec()], max_restarts=0)))
        async with anyio.create_task_group() as group:
            group.start_soon(supervisor.start_child, Script("slow", slow_start=1).spec())
            await anyio.sleep(0.1)
            group.start_soon(supervisor.terminate_child, "a")
            await anyio.sleep(0.1)
            supervisor.child("a").cast("crash")
        assert supervisor.alive
        assert script.incarnations == 1
        assert [(child.id, child.state) for child in await supervisor.which_children()] == [
            ("a", "stopped"),
            ("slow", "running"),
        ]


@pytest.mark.rule("S-33")
async def test_the_delay_of_a_cancelled_restart_does_not_apply_to_the_next_one(new_system):
    script = Script("a", starts=["ok", "error", "ok", "error", "ok"])
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", lambda: Supervisor(max_restarts=9)))
        ref = await supervisor.start_child(script.spec(backoff=Backoff(first=10, factor=1, jitter=0)))
        ref.cast("crash")
        await anyio.sleep(6)  # 4 of the 10 seconds are left
        await supervisor.terminate_child("a")
        await supervisor.restart_child("a")
        ref.cast("crash")
        await anyio.sleep(6)
        assert not ref.alive
        await anyio.sleep(20)
        assert ref.alive


@pytest.mark.parametrize("made", [Supervisor, DynamicSupervisor])
async def test_a_ref_in_use_is_refused_for_another_child(new_system, recorder, made):
    script, ref = Script("a"), ActorRef()
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", made))
        await supervisor.start_child(ChildSpec("a", script, ref=ref))
        for _ in range(2):
            with pytest.raises(StartFailed) as refused:
                await supervisor.start_child(ChildSpec("b", script, ref=ref))
            assert isinstance(refused.value.reason, Crash)
            assert isinstance(refused.value.reason.exception, SpecError)
        assert ref.alive
        assert [child.id for child in await supervisor.which_children()] == ["a"]
        assert len(recorder.of(StartFailedEvent)) == 2
        await supervisor.terminate_child(ref)
        again = await supervisor.start_child(ChildSpec("b", script, ref=ref))  # it is free now
        assert again is ref


class _Slow(Actor):
    """Notes what it has begun and what it has done; cannot be cancelled while it hangs."""

    def __init__(self, begun, done, release):
        self.begun, self.done, self.release = begun, done, release

    async def handle_cast(self, message):
        self.begun.append(message)
        if message == "hang":
            with anyio.CancelScope(shield=True):
                await self.release.wait()
        await anyio.sleep(0.1)
        self.done.append(message)


async def test_an_actor_asked_to_end_handles_no_further_message(new_system):
    begun, done, release = [], [], anyio.Event()
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", lambda: _Slow(begun, done, release)))
        for message in ("hang", 1, 2):
            ref.cast(message)
        await anyio.sleep(0.1)
        ref.exit(Shutdown("now"))
        await anyio.sleep(0.1)
        release.set()
        await anyio.sleep(1)
        assert (begun, done) == (["hang", 1, 2], [1, 2])  # the next one's, from the beginning to the end


@pytest.mark.rule("S-35")
async def test_a_zombie_that_continues_takes_no_mail_of_the_next_incarnation(new_system, recorder):
    begun, release = [], anyio.Event()

    class Sleeper(_Slow):
        async def handle_cast(self, message):
            begun.append((self, message))
            if message == "hang":
                with anyio.CancelScope(shield=True):
                    await release.wait()

    async with new_system(kill_grace=1) as system:
        ref = await system.start(ChildSpec("a", lambda: Sleeper([], [], release)))
        ref.cast("hang")
        await anyio.sleep(0.1)
        ref.kill()
        await anyio.sleep(2)
        assert len(recorder.of(Zombie)) == 1
        release.set()
        for n in range(3):
            ref.cast(n)
        await anyio.sleep(1)
    zombie = begun[0][0]
    assert [message for who, message in begun if who is zombie] == ["hang"]
    assert [message for who, message in begun if who is not zombie] == [0, 1, 2]


@pytest.mark.rule("S-35")
async def test_a_zombie_that_receives_gets_not_running(new_system):
    release, raised = anyio.Event(), []

    class Reader(Actor):
        async def run(self):
            with anyio.CancelScope(shield=True):
                if not raised:
                    await release.wait()
                try:
                    await self.receive()
                except NotRunning as error:
                    raised.append(error)

    async with new_system(kill_grace=1) as system:
        ref = await system.start(ChildSpec("a", Reader, restart="temporary"))
        ref.kill()
        await anyio.sleep(2)
        release.set()
        await anyio.sleep(1)
        assert len(raised) == 1


@pytest.mark.rule("S-35")
async def test_a_zombie_whose_init_ends_late_changes_nothing(new_system, recorder):
    release, made = anyio.Event(), []

    class Sleeps(Actor):
        async def init(self):
            made.append(self)
            if len(made) == 2:
                with anyio.CancelScope(shield=True):
                    await release.wait()

        async def handle_call(self, message, caller):
            return made.index(self)

    async with new_system(kill_grace=1, max_restarts=9) as system:
        ref = await system.start(ChildSpec("a", Sleeps))
        ref.kill()
        await anyio.sleep(0.1)
        ref.kill()  # the second one, which hangs in its init
        await anyio.sleep(3)
        assert len(recorder.of(Zombie)) == 1
        recorder.take()
        release.set()
        await anyio.sleep(1)
        assert recorder.take() == []
        assert ref.alive
        assert await ref.call("who?") == 2


async def test_a_zombies_snapshot_and_timers_do_not_reach_the_next_incarnation(new_system, recorder):
    release, made, seen = anyio.Event(), [], []

    class Sleeps(Actor):
        async def init(self):
            made.append(self)

        def snapshot(self):
            return made.index(self)

        async def handle_cast(self, message):
            raise ValueError(message)

        async def handle_info(self, message):
            seen.append(message)

        async def terminate(self, reason):
            if self is made[1]:
                with anyio.CancelScope(shield=True):
                    await release.wait()
                self.send_after(0.1, "late")

    async with new_system(kill_grace=1, max_restarts=9) as system:
        ref = await system.start(ChildSpec("a", Sleeps, shutdown=1))
        ref.cast("crash")
        await anyio.sleep(1)
        assert identify(ref).state == 0
        ref.cast("crash")
        await anyio.sleep(5)
        assert len(recorder.of(Zombie)) == 1
        release.set()
        await anyio.sleep(1)
        assert identify(ref).state == 0
        assert seen == []


@pytest.mark.rule("S-03", "S-04")
@pytest.mark.parametrize("made", [Supervisor, DynamicSupervisor])
async def test_a_supervisor_whose_own_init_fails_late_leaves_no_child_behind(new_system, recorder, made):
    class Fails(made):
        async def init(self):
            await super().init()
            await self.begin()
            raise ValueError("late")

        async def begin(self):
            if made is DynamicSupervisor:
                for name in "ab":
                    await self.ref.start_child(Script(name).spec())

    specs = [[Script(name).spec() for name in "ab"]] if made is Supervisor else []
    async with new_system() as system:
        with pytest.raises(StartFailed):
            await system.start(ChildSpec("s", lambda: Fails(*specs)))
        assert recorder.take()[:2] == ["+a", "+b"]
    # leaving the system found no actor to wait for
    assert {event.ref.id for event in recorder.of(Exited)} >= {"a", "b"}
