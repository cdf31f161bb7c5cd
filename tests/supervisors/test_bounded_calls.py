"""Calls that own what they start: a caller that leaves cancels the callee's work, and waits for its end."""

import math

import anyio
import anyio.lowlevel
import pytest

from supervisors import (
    NO_REPLY,
    Actor,
    CallTimeout,
    ChildSpec,
    Crash,
    Died,
    Killed,
    Shutdown,
    Supervisor,
)
from supervisors.events import Exited, Overrun, Zombie
from supervisors.testing import Boom


class Log(list):
    """What happened, and when."""

    def note(self, what):
        self.append((what, anyio.current_time()))

    @property
    def words(self):
        return [what for what, _ in self]


class Serial(Actor):
    """Handles one call at a time: `work` seconds, then `cleanup` seconds that cannot be cancelled."""

    def __init__(self, log):
        self.log = log

    async def handle_call(self, message, caller):
        return await self.work(*message)

    async def work(self, name, work, cleanup=0.0):
        self.log.note(f"{name} begins")
        try:
            await anyio.sleep(work)
            return name
        except anyio.get_cancelled_exc_class():
            self.log.note(f"{name} cancelled")
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(cleanup)
            self.log.note(f"{name} ended")


class Concurrent(Serial):
    """Answers each call in a task."""

    has_tasks = True

    async def handle_call(self, message, caller):
        return self.answer(caller, self.work, *message)


async def leave(ref, message, after, grace, log):
    """Make a bounded call, and leave it after some seconds."""
    with anyio.move_on_after(after) as scope:
        await ref.call(message, grace=grace)
    log.note("left" if scope.cancelled_caught else "answered")


pytestmark = pytest.mark.rule("K-22")

both = pytest.mark.parametrize("actor", [Serial, Concurrent])


@both
async def test_a_bounded_call_returns_the_reply(new_system, actor):
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", lambda: actor(Log())))
        assert await ref.call(("a", 1), grace=5) == "a"


@both
async def test_a_cancelled_call_cancels_the_work_and_returns_when_it_has_ended(new_system, actor):
    log = Log()
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", lambda: actor(log)))
        began = anyio.current_time()
        await leave(ref, ("a", 100, 3), 1, 10, log)
        assert log.words == ["a begins", "a cancelled", "a ended", "left"]
        assert anyio.current_time() - began == 4
        assert await ref.call(("b", 1), grace=5) == "b"
        assert ref.last_exit is None


@both
async def test_a_call_that_times_out_cancels_the_work_and_raises_when_it_has_ended(new_system, actor):
    log = Log()
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", lambda: actor(log)))
        began = anyio.current_time()
        with pytest.raises(CallTimeout):
            await ref.call(("a", 100, 3), timeout=2, grace=10)
        assert anyio.current_time() - began == 5
        assert log.words == ["a begins", "a cancelled", "a ended"]
        assert await ref.call(("b", 1)) == "b"


async def test_a_call_that_is_cancelled_while_it_waits_in_the_mailbox_is_never_handled(new_system):
    log = Log()
    async with new_system() as system, anyio.create_task_group() as group:
        ref = await system.start(ChildSpec("a", lambda: Serial(log)))
        group.start_soon(ref.call, ("first", 5))
        await anyio.sleep(1)
        await leave(ref, ("second", 1), 1, 10, log)
        assert ref.mailbox_depth == 0
        assert log[-1] == ("left", log[0][1] + 2)
        assert await ref.call(("third", 1)) == "third"
        assert log.words == ["first begins", "left", "first ended", "third begins", "third ended"]


async def test_a_call_that_is_cancelled_while_it_is_stashed_is_never_handled(new_system):
    class Stashes(Serial):
        async def handle_call(self, message, caller):
            self.stash(caller)
            return NO_REPLY

        async def handle_cast(self, message):
            self.unstash()

    log = Log()
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", lambda: Stashes(log)))
        await leave(ref, "question", 1, 10, log)
        ref.cast("unstash")
        await anyio.sleep(1)
        assert ref.mailbox_depth == 0


@both
async def test_a_call_cancelled_twice_returns_once_and_after_the_work(new_system, actor):
    log = Log()
    async with new_system() as system, anyio.create_task_group() as group:
        ref = await system.start(ChildSpec("a", lambda: actor(log)))
        with anyio.CancelScope() as outer:

            async def cancel():
                await anyio.sleep(2)  # during the cleanup
                outer.cancel()

            group.start_soon(cancel)
            await leave(ref, ("a", 100, 3), 1, 10, log)
        log.note("out")
        assert log.words == ["a begins", "a cancelled", "a ended", "out"]
        assert log[-1][1] - log[0][1] == 4
        assert await ref.call(("b", 1)) == "b"


@both
async def test_work_that_ends_although_it_was_cancelled_gives_no_reply(new_system, actor):
    class Stubborn(actor):
        async def work(self, name, work, cleanup=0.0):
            with anyio.CancelScope(shield=True):
                return await super().work(name, work, cleanup)

    log = Log()
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", lambda: Stubborn(log)))
        await leave(ref, ("a", 3), 1, 10, log)
        assert log.words == ["a begins", "a ended", "left"]
        assert await ref.call(("b", 1)) == "b"
        assert ref.last_exit is None


async def test_an_actor_whose_handler_does_not_end_within_the_grace_is_given_up(new_system, recorder):
    log = Log()
    async with new_system() as system:
        group = await system.start(ChildSpec("s", lambda: Supervisor([ChildSpec("a", lambda: Serial(log))])))
        ref = group.child("a")
        began = anyio.current_time()
        await leave(ref, ("a", 100, 50), 1, 2, log)
        assert anyio.current_time() - began == 3
        assert [event.ref for event in recorder.of(Zombie)] == [ref]
        assert ref.last_exit == Killed()
        assert await ref.call(("b", 1), timeout=5) == "b"  # of the next incarnation
        assert log.words == ["a begins", "a cancelled", "left", "b begins", "b ended"]
        await anyio.sleep(60)
        assert log.words[-1] == "a ended"
        assert ref.alive


async def test_mail_that_waits_behind_a_handler_that_refuses_to_end_is_for_the_next_incarnation(new_system):
    log = Log()
    async with new_system() as system, anyio.create_task_group() as group:
        ref = await system.start(ChildSpec("a", lambda: Serial(log)))
        group.start_soon(leave, ref, ("a", 100, 50), 1, 2, log)
        await anyio.sleep(0.5)
        assert await ref.call(("b", 1)) == "b"


async def test_a_task_that_does_not_end_within_the_grace_is_reported_and_left(new_system, recorder):
    log = Log()
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", lambda: Concurrent(log)))
        began = anyio.current_time()
        await leave(ref, ("a", 100, 50), 1, 2, log)
        assert anyio.current_time() - began == 3
        assert [(event.ref, event.call) for event in recorder.of(Overrun)] == [(ref, "tuple")]
        assert await ref.call(("b", 1), grace=5) == "b"
        await anyio.sleep(60)
        assert log.words[-1] == "a ended"
        assert ref.last_exit is None


async def test_an_exception_during_the_cleanup_of_a_cancelled_handler_is_a_crash(new_system, recorder):
    class Fails(Serial):
        async def work(self, name, work, cleanup=0.0):
            try:
                await super().work(name, work, cleanup)
            finally:
                if name == "a":
                    raise Boom(name)

    log = Log()
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", lambda: Fails(log)))
        await leave(ref, ("a", 100, 1), 1, 10, log)
        assert log.words == ["a begins", "a cancelled", "a ended", "left"]
        await anyio.sleep(1)
        assert isinstance(recorder.of(Exited)[0].reason, Crash)
        assert ref.alive


async def test_a_call_returns_at_once_when_the_cleanup_of_its_handler_crashes(new_system):
    class Fails(Actor):
        async def handle_call(self, message, caller):
            try:
                await anyio.sleep_forever()
            finally:
                raise Boom(message)

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Fails))
        with anyio.move_on_after(1):
            await ref.call("a", grace=math.inf)
        assert anyio.current_time() == 1


@both
async def test_a_caller_gets_died_if_the_actor_ends_during_a_bounded_call(new_system, actor):
    async with new_system() as system, anyio.create_task_group() as group:
        ref = await system.start(ChildSpec("a", lambda: actor(Log())))

        async def ask():
            with pytest.raises(Died):
                await ref.call(("a", 100), grace=5)

        group.start_soon(ask)
        await anyio.sleep(1)
        ref.exit(Shutdown("now"))


@both
async def test_a_stop_during_the_cleanup_of_a_cancelled_call_waits_for_it(new_system, actor):
    log = Log()
    async with new_system() as system, anyio.create_task_group() as group:
        ref = await system.start(ChildSpec("a", lambda: actor(log)))
        group.start_soon(leave, ref, ("a", 100, 3), 1, 10, log)
        await anyio.sleep(2)
        await system.root.terminate_child("a")
        assert "a ended" in log.words
        assert ref.last_exit == Shutdown()


async def test_an_answer_in_a_task_is_cancelled_when_an_unbounded_caller_leaves(new_system):
    log = Log()
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", lambda: Concurrent(log)))
        with anyio.move_on_after(1):
            await ref.call(("a", 100, 3))
        assert "a ended" not in log.words  # it does not wait
        await anyio.sleep(5)
        assert log.words == ["a begins", "a cancelled", "a ended"]


async def test_a_handler_goes_on_when_an_unbounded_caller_leaves(new_system):
    log = Log()
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", lambda: Serial(log)))
        with anyio.move_on_after(1):
            await ref.call(("a", 5))
        await anyio.sleep(5)
        assert log.words == ["a begins", "a ended"]


async def test_answers_in_tasks_run_at_the_same_time(new_system):
    async with new_system() as system, anyio.create_task_group() as group:
        ref = await system.start(ChildSpec("a", lambda: Concurrent(Log())))
        began = anyio.current_time()
        for n in range(3):
            group.start_soon(ref.call, (n, 5))
        await anyio.lowlevel.checkpoint()
        assert await ref.call((3, 5)) == 3
        assert anyio.current_time() - began == 5


async def test_an_exception_of_a_task_that_answers_is_raised_in_the_caller(new_system):
    class Fails(Concurrent):
        async def work(self):
            raise Boom("mine")

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", lambda: Fails(Log())))
        with pytest.raises(Boom, match="mine"):
            await ref.call(())
        assert ref.last_exit is None


async def test_an_answer_that_is_cancelled_before_its_task_runs_is_not_begun(new_system):
    log, scopes = Log(), []

    class Cancels(Concurrent):
        async def handle_call(self, message, caller):
            reply = self.answer(caller, self.work, *message)
            scopes.pop().cancel()
            return reply

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", lambda: Cancels(log)))
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await ref.call(("a", 5), grace=5)
        assert scope.cancelled_caught
        assert log.words in ([], ["a begins", "a cancelled", "a ended"])
        assert ref.alive


async def test_an_answer_that_begins_after_its_bounded_caller_has_left_is_cancelled_at_once(new_system, recorder):
    class SlowToBegin(Concurrent):
        async def handle_call(self, message, caller):
            with anyio.CancelScope(shield=True):
                await anyio.sleep(2)
            return await super().handle_call(message, caller)

    log = Log()
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", lambda: SlowToBegin(log)))
        began = anyio.current_time()
        await leave(ref, ("a", 100), 1, 10, log)
        assert log.words[-1] == "left"
        assert log[-1][1] == began + 2
        assert not recorder.of(Overrun)


async def test_answer_needs_tasks(new_system):
    class Wrong(Serial):
        async def handle_call(self, message, caller):
            return self.answer(caller, self.work, *message)

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", lambda: Wrong(Log()), restart="temporary"))
        with pytest.raises(Died) as died:
            await ref.call(("a", 1))
        assert "has_tasks = True" in str(died.value.__cause__)


@pytest.mark.parametrize("grace", ["5", math.nan])
async def test_a_grace_that_is_no_number_is_refused(new_system, grace):
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", lambda: Serial(Log())))
        with pytest.raises(ValueError, match="grace: expected seconds"):
            await ref.call(("a", 1), grace=grace)
        assert ref.mailbox_depth == 0


async def test_a_bounded_call_with_an_unlimited_grace_waits_for_the_end(new_system):
    log = Log()
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", lambda: Serial(log)))
        await leave(ref, ("a", 100, 1000), 1, math.inf, log)
        assert log.words == ["a begins", "a cancelled", "a ended", "left"]
        assert ref.last_exit is None


async def test_a_native_cancellation_twice_still_waits_for_the_end_of_the_work(new_system, anyio_backend_name):
    import asyncio

    if anyio_backend_name != "asyncio":
        pytest.skip("on trio there is no native cancellation")
    log = Log()
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", lambda: Serial(log)))
        caller = asyncio.create_task(ref.call(("a", 100, 3), grace=10))
        await anyio.sleep(1)
        caller.cancel()
        await anyio.sleep(1)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        log.note("left")
        assert log.words == ["a begins", "a cancelled", "a ended", "left"]


class Ender(Actor):
    """Cancels its caller at the moment of its reply, or replies late."""

    has_tasks = True

    def __init__(self, scope):
        self.scope = scope

    async def handle_call(self, message, caller):
        if message == "late":
            return self.answer(caller, self.answer_late)
        caller.reply("reply")
        self.scope.cancel()
        return NO_REPLY

    async def answer_late(self):
        with anyio.CancelScope(shield=True):
            await anyio.sleep(2)
        return "reply"


@pytest.mark.parametrize("message", ["at once", "late"])
async def test_a_reply_that_its_caller_does_not_get_is_reported(new_system, message):
    scope, got, late = anyio.CancelScope(), [], []
    async with new_system() as system:
        actor = await system.start(ChildSpec("ender", lambda: Ender(scope)))
        with scope:
            if message == "late":
                scope.deadline = anyio.current_time() + 1
            got.append(await actor.call(message, grace=5, on_late_reply=late.append))
    assert got + late == ["reply"]
    assert message == "at once" or late == ["reply"]
