"""Calls, mail, and everything that an actor can do."""

import gc
import itertools
import math
import subprocess
import sys
import weakref
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from supervisors import (
    NO_REPLY,
    Actor,
    ActorRef,
    ActorSystem,
    CallTimeout,
    ChildSpec,
    Crash,
    Died,
    Down,
    DynamicSupervisor,
    Exit,
    Failed,
    Killed,
    MailboxFull,
    Normal,
    NotRunning,
    Outcome,
    SelfCall,
    Shutdown,
    Stop,
    Supervisor,
    task,
)
from supervisors.actor import BATCH
from supervisors.events import DeadLetter
from supervisors.ref import identify
from supervisors.testing import Boom, Leave, Script

# --- calls ---------------------------------------------------------------------------------------------------------


class Later(Actor):
    """Answers on request."""

    async def init(self):
        self.callers = []
        self.abandoned = 0

    async def handle_call(self, message, caller):
        self.callers.append(caller)
        caller.on_abandoned(self._count)
        return NO_REPLY

    def _count(self):
        self.abandoned += 1

    async def handle_cast(self, message):
        match message:
            case "fail":
                self.callers.pop(0).fail(ValueError("no"))
            case "crash":
                raise Boom
            case value:
                self.callers.pop(0).reply(value)


def actor_of(ref):
    return identify(ref).incarnation.actor


async def test_a_call_returns_the_result_of_handle_call(new_system):
    async with new_system() as system:
        ref = await system.start(Script("a").spec())
        assert [await ref.call(n) for n in range(100)] == list(range(100))


async def test_a_reply_may_come_later_and_in_any_order(new_system):
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Later))
        got = []

        async def ask(n):
            got.append((n, await ref.call(n)))

        async with anyio.create_task_group() as group:
            for n in range(3):
                group.start_soon(ask, n)
                await anyio.sleep(0.01)
            actor = actor_of(ref)
            for caller in reversed(actor.callers):
                caller.reply(caller.message * 10)
        assert sorted(got) == [(0, 0), (1, 10), (2, 20)]


async def test_fail_raises_only_in_the_caller(new_system):
    async with new_system() as system, anyio.create_task_group() as group:
        ref = await system.start(ChildSpec("a", Later))

        async def ask():
            with pytest.raises(ValueError, match="no"):
                await ref.call(1)

        group.start_soon(ask)
        await anyio.sleep(0.01)
        ref.cast("fail")
        await anyio.sleep(0.01)
        assert ref.alive


async def test_a_call_times_out_and_a_late_reply_is_dropped(new_system):
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Later))
        before = anyio.current_time()
        with pytest.raises(CallTimeout) as late:
            await ref.call("x", timeout=3)
        assert isinstance(late.value, TimeoutError)
        assert anyio.current_time() - before == 3
        caller = actor_of(ref).callers[0]
        assert caller.abandoned
        assert caller.answered
        assert actor_of(ref).abandoned == 1
        ref.cast("late")
        await anyio.sleep(0.01)
        assert ref.alive
        with pytest.raises(CallTimeout):
            await ref.call("y", timeout=1)


async def test_a_cancelled_call_is_abandoned(new_system):
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Later))
        with anyio.move_on_after(1):
            await ref.call("x")
        assert actor_of(ref).abandoned == 1
        assert actor_of(ref).callers[0].abandoned


async def test_on_abandoned_of_a_call_that_is_abandoned_already_runs_at_once(new_system):
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Later))
        with anyio.move_on_after(1):
            await ref.call("x")
        told = []
        actor_of(ref).callers[0].on_abandoned(lambda: told.append(1))
        assert told == [1]


async def test_the_call_being_handled_fails_with_the_incarnation_and_waiting_calls_do_not(new_system):
    async with new_system(max_restarts=5) as system, anyio.create_task_group() as group:
        ref = await system.start(Script("a", crash_on=2).spec())
        got = []

        async def ask(n):
            try:
                got.append(await ref.call(n))
            except Died as died:
                got.append("died" if isinstance(died.reason.exception, Boom) else "?")

        for n in range(4):
            group.start_soon(ask, n)
        await anyio.sleep(0.1)
        assert sorted(map(str, got)).count("died") == 2  # the second message of each incarnation
        assert len(got) == 4


async def test_calls_received_and_not_answered_fail_with_the_incarnation(new_system):
    async with new_system() as system, anyio.create_task_group() as group:
        ref = await system.start(ChildSpec("a", Later))

        async def ask():
            with pytest.raises(Died):
                await ref.call(1)

        group.start_soon(ask)
        await anyio.sleep(0.1)
        ref.cast("crash")


async def test_calls_in_the_mailbox_of_an_actor_that_ends_get_not_running(new_system):
    async with new_system() as system, anyio.create_task_group() as group:
        ref = await system.start(Script("a", hang_on=1).spec(restart="temporary"))
        ref.cast("hangs")
        await anyio.sleep(0.1)

        async def ask():
            with pytest.raises(NotRunning):
                await ref.call(1)

        group.start_soon(ask)
        await anyio.sleep(0.1)
        ref.exit()


async def test_a_call_to_an_actor_that_is_not_running_raises_at_once(new_system):
    with pytest.raises(NotRunning):
        await ActorRef().call(1)
    async with new_system() as system:
        ref = await system.start(Script("a").spec(restart="temporary"))
        ref.exit()
        await ref.exited()
        with pytest.raises(NotRunning) as ended:
            await ref.call(1)
        assert ended.value.reason == Shutdown()


async def test_a_self_call_is_refused(new_system):
    class Selfish(Actor):
        async def handle_call(self, message, caller):
            with pytest.raises(SelfCall):
                await self.ref.call(message)
            return "refused"

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Selfish))
        assert await ref.call(1) == "refused"


# --- mail ---------------------------------------------------------------------------------------------------------


async def test_mail_keeps_its_order(new_system):
    script = Script("a")
    async with new_system() as system:
        ref = await system.start(script.spec())
        for n in range(1000):
            ref.cast(n)
        await ref.call("flush")
        assert script.seen == list(range(1000))


async def test_mail_survives_a_restart_and_the_message_that_crashed_is_not_handled_again(new_system):
    script = Script("a", crash_on=3)
    async with new_system(max_restarts=100) as system:
        ref = await system.start(script.spec())
        for n in range(20):
            ref.cast(n)
        await anyio.sleep(1)
        assert script.seen == list(range(20))
        assert script.incarnations == 7


async def test_mail_sent_before_the_first_start_is_kept(new_system):
    ref, script = ActorRef(), Script("a")
    ref.cast("early")
    async with new_system() as system:
        await system.start(script.spec(ref=ref))
        await ref.call(None)
        assert script.seen == ["early"]


async def test_mail_to_an_ended_actor_and_unhandled_mail_are_dead_letters(new_system, recorder):
    async with new_system() as system:
        ref = await system.start(Script("a", hang_on=1).spec(restart="temporary"))
        for n in range(3):
            ref.cast(n)
        await anyio.sleep(0.1)
        ref.kill()
        await ref.exited()
        ref.cast("late")
        assert [event.message for event in recorder.of(DeadLetter)] == [1, 2, "late"]


def test_an_actor_with_a_mailbox_for_no_message_is_refused():
    with pytest.raises(ValueError, match=r"Small\.mailbox_limit: expected at least 1, or None, got 0"):
        type("Small", (Actor,), {"mailbox_limit": 0})


async def test_a_full_mailbox_refuses_and_offer_waits(new_system):
    class Small(Actor):
        mailbox_limit = 2

        async def handle_cast(self, message):
            await anyio.sleep(1)

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Small))
        ref.cast(0)
        await anyio.sleep(0.1)
        ref.cast(1)
        ref.cast(2)
        for refused in (ref.cast, ref.send):
            with pytest.raises(MailboxFull) as full:
                refused(3)
            assert full.value.limit == 2
        with pytest.raises(MailboxFull):
            await ref.call(3)
        before = anyio.current_time()
        await ref.offer(3)
        assert 0 < anyio.current_time() - before <= 3
        identify(ref).box.put_urgent((1, Down(ref, Normal(), final=True)))  # the system always gets in


@pytest.mark.parametrize("nowait", [False, True])
async def test_an_offer_waits_until_an_actor_with_its_own_loop_takes_a_message(new_system, nowait):
    taken = []

    class Own(Actor):
        mailbox_limit = 1

        async def run(self):
            while len(taken) < 4:
                await anyio.sleep(1)
                taken.append(self.receive_nowait() if nowait else await self.receive())

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Own, restart="temporary"))
        for n in range(4):
            await ref.offer(n)
        await ref.exited()
        assert taken == [0, 1, 2, 3]


async def test_an_offer_that_is_cancelled_leaves_no_message(new_system):
    handled = []

    class Busy(Actor):
        mailbox_limit = 1

        async def handle_cast(self, message):
            await anyio.sleep(10)
            handled.append(message)

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Busy))
        ref.cast(0)
        await anyio.sleep(1)
        ref.cast(1)
        for _ in range(3):
            with anyio.move_on_after(1):
                await ref.offer(2)
        await ref.offer(3)
        await anyio.sleep(100)
        assert handled == [0, 1, 3]


async def test_an_offer_to_an_ended_actor_raises(new_system):
    async with new_system() as system:
        ref = await system.start(Script("a").spec(restart="temporary"))
        ref.exit()
        await ref.exited()
        with pytest.raises(NotRunning):
            await ref.offer(1)


async def test_an_actor_with_a_long_queue_lets_others_run(new_system):
    order = []

    class Quick(Actor):
        async def handle_cast(self, message):
            order.append(message)

    async with new_system() as system:
        one, two = [await system.start(ChildSpec(name, Quick)) for name in "ab"]
        for n in range(10 * BATCH):
            one.cast(("a", n))
        two.cast("b")
        await anyio.sleep(0.1)
        assert order.index("b") <= BATCH


async def test_selective_receive_keeps_the_other_messages_in_order(new_system):
    class Picky(Actor):
        async def run(self):
            last = await self.receive(lambda message: message == "last")
            first = await self.receive()
            caller = await self.receive(lambda message: not isinstance(message, str))
            caller.reply([last, first, caller.message])
            with pytest.raises(anyio.WouldBlock):
                self.receive_nowait()
            return "done"

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Picky, restart="temporary"))
        ref.cast("first")
        ref.cast("last")
        assert await ref.call("question") == ["last", "first", "question"]
        assert await ref.outcome() == Outcome(Normal(), "done")


async def test_receive_raises_timeout_error_when_no_message_comes_in_time(new_system):
    class Patient(Actor):
        async def run(self):
            with pytest.raises(TimeoutError, match="no message came within 2 s"):
                await self.receive(lambda message: message == "never", timeout=2)
            return anyio.current_time(), await self.receive(timeout=2)

    async with new_system() as system:
        began = anyio.current_time()
        ref = await system.start(ChildSpec("a", Patient, restart="temporary"))
        ref.cast("now")
        ended, message = (await ref.outcome()).value
        assert 2 <= ended - began < 3
        assert message == "now"


async def test_receive_returns_a_message_that_comes_before_its_timeout(new_system):
    class Patient(Actor):
        async def run(self):
            early = await self.receive(timeout=5)
            with pytest.raises(TimeoutError):
                await self.receive(timeout=10)
            return early, anyio.current_time()

    async with new_system() as system:
        began = anyio.current_time()
        ref = await system.start(ChildSpec("a", Patient, restart="temporary"))
        await anyio.sleep(1)
        ref.cast("early")
        early, ended = (await ref.outcome()).value
        assert early == "early"
        assert 11 <= ended - began < 12, "the timer of the first receive does not end the second"


async def test_a_handler_is_stopped_at_once_after_a_receive_that_was_cancelled(new_system):
    class Waits(Actor):
        async def handle_cast(self, message):
            with anyio.move_on_after(1):
                await self.receive()
            await anyio.sleep_forever()

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Waits))
        ref.cast("begin")
        await anyio.sleep(2)
        await system.root.terminate_child("a")
        assert anyio.current_time() == 2


async def test_an_actor_with_its_own_run_is_stopped_while_it_receives(new_system):
    class Own(Actor):
        async def run(self):
            while True:
                await self.receive()

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Own))
        ref.cast(1)
        await anyio.sleep(0.1)
        await system.root.terminate_child("a")
        assert ref.last_exit == Shutdown()


async def test_stashed_messages_are_returned_in_order(new_system):
    class Door(Actor):
        async def init(self):
            self.open, self.seen = False, []

        async def handle_cast(self, message):
            if message == "open":
                self.open = True
                self.unstash()
            elif not self.open:
                self.stash(message)
            else:
                self.seen.append(message)

        async def handle_call(self, message, caller):
            if not self.open:
                self.stash(caller)
                return NO_REPLY
            return list(self.seen)

    async with new_system() as system, anyio.create_task_group() as group:
        ref = await system.start(ChildSpec("a", Door))
        got = []

        async def ask():
            got.extend(await ref.call("what was there?"))

        ref.cast(1)
        ref.cast(2)
        await anyio.sleep(0.1)
        group.start_soon(ask)
        await anyio.sleep(0.1)
        ref.cast("open")
        ref.cast(3)
        await anyio.sleep(0.1)
        assert got == [1, 2]


async def test_a_stash_survives_a_restart(new_system):
    class Holds(Actor):
        async def handle_call(self, message, caller):
            if actor_of(self.ref) is first[0]:
                self.stash(caller)
                return NO_REPLY
            return message

    first = [None]
    async with new_system() as system, anyio.create_task_group() as group:
        ref = await system.start(ChildSpec("a", Holds))
        first[0] = actor_of(ref)

        async def ask():
            assert await ref.call("kept") == "kept"

        group.start_soon(ask)
        await anyio.sleep(0.1)
        ref.kill()


# --- state from one incarnation to the next -----------------------------------------------------------------------


async def test_a_snapshot_is_passed_to_the_next_incarnation(new_system):
    class Counter(Actor):
        n = 0

        def snapshot(self):
            return self.n

        def restore(self, state):
            self.n = state

        async def handle_call(self, message, caller):
            self.n += 1
            if message == "crash":
                raise Boom
            return self.n

    async with new_system(max_restarts=5) as system:
        ref = await system.start(ChildSpec("a", Counter))
        assert await ref.call(0) == 1
        with pytest.raises(Died):
            await ref.call("crash")
        assert await ref.call(0) == 3
        ref.kill()
        await anyio.sleep(0.1)
        assert await ref.call(0) == 3  # a kill leaves none, so the one before is the last


async def test_an_exception_of_snapshot_is_the_exit_reason(new_system, recorder):
    class Bad(Actor):
        def snapshot(self):
            raise Boom("snapshot")

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Bad, restart="temporary"))
        ref.exit()
        assert isinstance((await ref.exited()).exception, Boom)


# --- monitors, links, timers --------------------------------------------------------------------------------------


class Watcher(Actor):
    async def init(self):
        self.seen = []

    async def handle_call(self, message, caller):
        verb, *arguments = message
        options = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
        return getattr(self, verb)(*arguments, **options)

    async def handle_info(self, message):
        self.seen.append(message)


class Trapper(Watcher):
    trap_exit = True


async def test_a_monitor_reports_an_end_once(new_system):
    async with new_system(max_restarts=5) as system:
        watcher = await system.start(ChildSpec("w", Watcher))
        ref = await system.start(Script("a").spec())
        await watcher.call(("monitor", ref))
        for _ in range(2):
            ref.cast("crash")
            await anyio.sleep(0.1)
        (down,) = actor_of(watcher).seen
        assert (down.ref, down.final) == (ref, False)
        assert isinstance(down.reason, Crash)


async def test_a_final_monitor_waits_until_it_is_not_restarted(new_system):
    async with new_system(max_restarts=5) as system:
        watcher = await system.start(ChildSpec("w", Watcher))
        ref = await system.start(Script("a").spec())
        await watcher.call(("monitor", ref, {"final": True}))
        ref.kill()
        await anyio.sleep(0.1)
        assert actor_of(watcher).seen == []
        await system.root.terminate_child("a")
        await anyio.sleep(0.1)
        assert actor_of(watcher).seen == [Down(ref, Shutdown(), final=True)]


async def test_a_monitor_on_an_ended_actor_fires_at_once(new_system):
    async with new_system() as system:
        watcher = await system.start(ChildSpec("w", Watcher))
        ref = await system.start(Script("a").spec(restart="temporary"))
        ref.cast(Leave(Normal()))
        await ref.exited()
        await watcher.call(("monitor", ref))
        await anyio.sleep(0.1)
        assert actor_of(watcher).seen == [Down(ref, Normal(), final=True)]


async def test_demonitor_and_the_end_of_the_watcher_remove_a_monitor(new_system):
    async with new_system() as system:
        watcher = await system.start(ChildSpec("w", Watcher))
        ref = await system.start(Script("a").spec(restart="temporary"))
        await watcher.call(("monitor", ref))
        await watcher.call(("demonitor", ref))
        assert identify(ref).count_watches() == 0
        await watcher.call(("monitor", ref))
        watcher.kill()
        await anyio.sleep(0.1)
        assert identify(ref).count_watches() == 0


async def test_a_monitoring_actor_keeps_no_ended_actors(new_system):
    async with new_system(max_restarts=5) as system:
        watcher = await system.start(ChildSpec("w", Watcher))
        for name in ("a", "b"):
            ref = await system.start(Script(name).spec(restart="temporary"))
            await watcher.call(("monitor", ref, {"final": True}))
            await watcher.call(("monitor", ref))
            ref.kill()
            await ref.exited()
        kept = await system.start(Script("c").spec())
        await watcher.call(("monitor", kept))
        await anyio.sleep(0.1)
        assert len(actor_of(watcher).seen) == 4
        assert list(identify(watcher).incarnation.monitored) == [kept]
        await watcher.call(("demonitor", kept))
        assert not identify(watcher).incarnation.monitored


async def test_two_monitors_on_one_actor_are_independent(new_system):
    async with new_system(max_restarts=5) as system:
        watcher = await system.start(ChildSpec("w", Watcher))
        ref = await system.start(Script("a").spec())
        await watcher.call(("monitor", ref))
        await watcher.call(("monitor", ref, {"final": True}))
        ref.kill()
        await anyio.sleep(0.1)
        assert [down.final for down in actor_of(watcher).seen] == [False]
        watcher.kill()
        await anyio.sleep(0.1)
        assert identify(ref).count_watches() == 0


@pytest.mark.parametrize("how", ["crash", Leave(Shutdown("x")), "kill"], ids=["crash", "shutdown", "kill"])
async def test_a_link_passes_an_abnormal_end_both_ways(new_system, how):
    for linker, linked in ((0, 1), (1, 0)):
        async with new_system() as system:
            refs = [
                await system.start(ChildSpec("w", Watcher, restart="temporary")),
                await system.start(Script("a").spec(restart="temporary")),
            ]
            await refs[0].call(("link", refs[1]))
            if linked == 0 or how == "kill":
                refs[linked].kill()
            else:
                refs[linked].cast(how)
            assert await refs[linker].exited() == await refs[linked].exited()


async def test_a_normal_end_does_not_pass_a_link(new_system):
    async with new_system() as system:
        watcher = await system.start(ChildSpec("w", Watcher))
        ref = await system.start(Script("a").spec(restart="temporary"))
        await watcher.call(("link", ref))
        ref.cast(Leave(Normal()))
        await ref.exited()
        await anyio.sleep(0.1)
        assert watcher.alive


async def test_partners_of_a_link_are_notified_in_the_order_of_their_links(new_system, anyio_backend_name):
    if anyio_backend_name == "trio":
        pytest.skip("trio runs the tasks that were woken together in any order")
    notified = []

    class Partner(Watcher):
        trap_exit = True

        async def handle_info(self, message):
            notified.append(self.ref.id)

    async with new_system() as system:
        ref = await system.start(Script("a").spec(restart="temporary"))
        partners = [await system.start(ChildSpec(f"partner {n}", Partner)) for n in range(16)]
        order = partners[::2] + partners[::-2]  # not the order in which they are in memory
        for partner in order:
            await partner.call(("link", ref))
        ref.kill()
        await ref.exited()
        await anyio.sleep(0.1)
        assert notified == [partner.id for partner in order]


async def test_trap_exit_gets_a_message_instead(new_system):
    async with new_system() as system:
        watcher = await system.start(ChildSpec("w", Trapper))
        ref = await system.start(Script("a").spec(restart="temporary"))
        await watcher.call(("link", ref))
        ref.cast(Leave(Normal()))
        await ref.exited()
        watcher.exit(Shutdown("please"))
        await anyio.sleep(0.1)
        assert actor_of(watcher).seen == [Exit(ref, Normal()), Exit(None, Shutdown("please"))]


async def test_unlink_and_a_link_to_an_actor_that_is_not_running(new_system):
    async with new_system() as system:
        watcher = await system.start(ChildSpec("w", Watcher, restart="temporary"))
        ref = await system.start(Script("a").spec(restart="temporary"))
        await watcher.call(("link", ref))
        await watcher.call(("unlink", ref))
        ref.kill()
        await ref.exited()
        await anyio.sleep(0.1)
        assert watcher.alive
        await watcher.call(("link", ref))
        reason = await watcher.exited()
        assert isinstance(reason.exception, NotRunning)


@pytest.mark.rule("S-38")
@pytest.mark.parametrize("seconds", [None, "5", math.nan])
async def test_a_timer_without_seconds_is_refused_and_the_actor_can_end(new_system, seconds):
    async with new_system() as system:
        ref = await system.start(Script("a").spec(restart="temporary"))
        for request in ("send_after", "send_every"):
            with pytest.raises(ValueError, match="expected seconds"):
                getattr(identify(ref).incarnation.actor, request)(seconds, "tick")
        with pytest.raises(ValueError, match="timeout: expected seconds"):
            await ref.call("hello", timeout=seconds or "5")
        assert ref.mailbox_depth == 0
        ref.exit()
        assert isinstance(await ref.exited(), Shutdown)


async def test_timers_send_after_and_every_and_end_with_the_incarnation(new_system):
    async with new_system() as system:
        watcher = await system.start(ChildSpec("w", Watcher))
        await watcher.call(("send_after", 5, "once"))
        await watcher.call(("send_every", 2, "tick"))
        cancelled = await watcher.call(("send_after", 3, "never"))
        cancelled.cancel()
        await anyio.sleep(6.5)
        assert actor_of(watcher).seen == ["tick", "tick", "once", "tick"]
        watcher.kill()
        await anyio.sleep(10)
        assert actor_of(watcher).seen == []
        with pytest.raises(Died):
            await watcher.call(("send_every", 0, "x"))


# --- tasks --------------------------------------------------------------------------------------------------------


async def _double(n):
    await anyio.sleep(1)
    if n < 0:
        raise ValueError(n)
    return 2 * n


async def test_the_outcome_of_a_task_is_a_value(new_system):
    async with new_system() as system:
        dynamic = await system.start(ChildSpec("d", DynamicSupervisor))
        assert await dynamic.run_child(task("t", _double, 21)) == Outcome(Normal(), 42)
        failed = await dynamic.run_child(task("t", _double, -1))
        with pytest.raises(Failed) as error:
            failed.unwrap()
        assert isinstance(error.value.__cause__, ValueError)
        assert isinstance((await dynamic.run_child(Script("x", starts=["error"]).spec())).reason, Crash)
        assert await dynamic.which_children() == []


@pytest.mark.parametrize("kind", [Supervisor, DynamicSupervisor])
async def test_cancelling_run_child_while_its_supervisor_ends_waits_for_the_child(new_system, kind):
    script = Script("a", stop_takes=2)
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", kind, restart="temporary"))
        began = anyio.current_time()
        with anyio.move_on_after(1) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(supervisor.run_child, script.spec(restart="temporary"))
                await anyio.sleep(0.5)
                supervisor.exit()
        assert scope.cancelled_caught
        assert anyio.current_time() - began == 2.5
        assert len(script.ends) == 1


async def test_cancelling_run_child_ends_the_child_with_a_reason(new_system):
    script = Script("t")
    async with new_system() as system:
        dynamic = await system.start(ChildSpec("d", DynamicSupervisor))
        with anyio.move_on_after(0.5):
            await dynamic.run_child(script.spec(restart="temporary"), cancelled=Shutdown("parent_ended"))
        assert script.ends == [Shutdown("parent_ended")]
        assert await dynamic.which_children() == []


async def test_a_transient_task_runs_until_it_succeeds(new_system):
    runs = []

    async def flaky():
        runs.append(1)
        if len(runs) < 3:
            raise Boom
        return "at last"

    async with new_system() as system:
        dynamic = await system.start(ChildSpec("d", lambda: DynamicSupervisor(max_restarts=5)))
        assert (await dynamic.run_child(task("t", flaky, restart="transient"))).unwrap() == "at last"


async def test_tasks_of_an_actor_end_with_it_and_a_failure_is_a_crash(new_system):
    log = []

    class Busy(Actor):
        has_tasks = True

        async def handle_cast(self, message):
            self.tasks.start_soon(self.work, message)

        async def work(self, message):
            if message == "crash":
                raise Boom
            try:
                await anyio.sleep_forever()
            finally:
                log.append("ended")

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Busy))
        ref.cast("work")
        await anyio.sleep(0.1)
        ref.cast("crash")
        await anyio.sleep(0.1)
        assert log == ["ended"]
        assert isinstance(ref.last_exit, Crash)
        assert isinstance(ref.last_exit.exception, Boom)
        assert ref.alive


async def test_an_actor_serves_many_calls_at_once_and_cancels_the_abandoned(new_system):
    running = set()

    class Server(Actor):
        has_tasks = True

        async def handle_call(self, message, caller):
            self.tasks.start_soon(self.work, message, caller)
            return NO_REPLY

        async def work(self, message, caller):
            with anyio.CancelScope() as scope:
                caller.on_abandoned(scope.cancel)
                running.add(message)
                try:
                    await anyio.sleep(message)
                finally:
                    running.discard(message)
                caller.reply(message)

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Server))
        before = anyio.current_time()
        async with anyio.create_task_group() as group:
            for n in (1, 2, 3):
                group.start_soon(ref.call, n)
        assert anyio.current_time() - before == 3
        with anyio.move_on_after(1):
            await ref.call(100)
        await anyio.sleep(0.1)
        assert running == set()


# --- names and groups ---------------------------------------------------------------------------------------------


async def test_a_name_is_registered_as_long_as_the_identity_exists(new_system):
    async with new_system() as system:
        ref = await system.start(Script("a").spec(name="db"))
        ref.kill()
        await anyio.sleep(0.1)
        assert system.registry.whereis("db") is ref
        await system.root.terminate_child("a")
        assert system.registry.whereis("db") is None
        await system.root.restart_child("a")
        assert list(system.registry) == ["db"]
        system.registry.unregister("db")
        assert len(system.registry) == 0


async def test_groups_broadcast_to_their_members(new_system):
    scripts = [Script(name) for name in "abc"]
    async with new_system() as system:
        refs = [await system.start(script.spec(restart="temporary")) for script in scripts]
        for ref in (*refs, refs[0]):
            system.registry.join("all", ref)
        assert system.registry.members("all") == refs
        assert system.registry.broadcast("all", "hello") == 3
        await refs[-1].call(None)
        refs[0].exit()
        await refs[0].exited()
        system.registry.leave("all", refs[1])
        assert system.registry.members("all") == refs[2:]
        assert system.registry.broadcast("nobody", "x") == 0
        await refs[2].call(None)
        assert [script.seen for script in scripts] == [["hello"]] * 3


async def test_an_actor_that_joins_and_leaves_often_is_watched_once(new_system):
    async with new_system() as system:
        ref = await system.start(Script("a").spec())
        for _ in range(1_000):
            system.registry.join("all", ref)
            system.registry.leave("all", ref)
            system.registry.register("a", ref)
            system.registry.unregister("a")
        system.registry.join("all", ref)
        system.registry.register("a", ref)
        assert identify(ref).count_watches() == 2


async def test_an_actor_that_has_ended_gets_no_name_and_joins_no_group(new_system):
    async with new_system() as system:
        ref = await system.start(Script("a").spec(restart="temporary"))
        ref.exit()
        await ref.exited()
        system.registry.join("all", ref)
        assert system.registry.members("all") == []
        with pytest.raises(NotRunning):
            system.registry.register("a", ref)
        assert system.registry.whereis("a") is None


# --- identity -----------------------------------------------------------------------------------------------------


async def test_exited_and_outcome_of_an_unstarted_actor_raise():
    with pytest.raises(NotRunning):
        await ActorRef().exited()


async def test_kill_runs_no_terminate(new_system):
    script = Script("a")
    async with new_system() as system:
        ref = await system.start(script.spec(restart="temporary"))
        ref.kill()
        assert await ref.exited() == Killed()
        assert script.ends == []


@pytest.mark.parametrize("wrong", ["done", None, Normal, ValueError("done")], ids=repr)
async def test_a_reason_that_is_none_of_the_four_is_refused_where_it_is_given(new_system, wrong):
    class Stops(Actor):
        async def handle_cast(self, message):
            self.stop(message)

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Stops))
        with pytest.raises(TypeError, match="expected Normal"):
            ref.exit(wrong)
        with pytest.raises(TypeError, match="expected Normal"):
            await system.root.terminate_child("a", wrong)
        with pytest.raises(TypeError, match="expected Normal"):
            await system.root.run_child(task("b", anyio.sleep, 0), cancelled=wrong)
        assert (ref.alive, ref.last_exit) == (True, None)
        ref.cast(wrong)
        await anyio.sleep(1)
        assert isinstance(ref.last_exit.exception, TypeError)
        assert ref.alive


async def test_stop_ends_an_actor_with_a_reason(new_system):
    class Stops(Actor):
        async def handle_cast(self, message):
            self.stop(Shutdown(message))

        async def handle_call(self, message, caller):
            caller.reply("first")
            raise Stop

    async with new_system() as system:
        for ask, reason in ((False, Shutdown("x")), (True, Normal())):
            ref = await system.start(ChildSpec("a", Stops, restart="temporary"))
            if ask:
                assert await ref.call(1) == "first"
            else:
                ref.cast("x")
            assert await ref.exited() == reason


async def test_an_actor_without_a_handler_crashes_on_a_message(new_system):
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Actor, restart="temporary"))
        ref.send("ignored")
        with pytest.raises(Died) as died:
            await ref.call(1)
        assert isinstance(died.value.reason.exception, NotImplementedError)


async def test_static_children_know_each_other_through_refs_made_beforehand(new_system):
    one, two = ActorRef(), ActorRef()

    class Asks(Actor):
        async def handle_call(self, message, caller):
            return await two.call(message)

    async with new_system() as system:
        specs = [ChildSpec("one", Asks, ref=one), Script("two").spec(ref=two)]
        supervisor = await system.start(ChildSpec("s", lambda: Supervisor(specs, strategy="rest_for_one")))
        assert await one.call("hello") == "hello"
        assert (one.path, repr(two)) == ("root/s/one", "<ActorRef root/s/two>")
        assert supervisor.child("one") is one


async def test_a_cancelled_wait_for_an_end_is_forgotten(new_system):
    async with new_system() as system:
        ref = await system.start(Script("a").spec())
        for _ in range(3):
            with anyio.move_on_after(1):
                await ref.exited()
        assert identify(ref).count_watches() == 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ref.exited)
            await anyio.sleep(1)
            with anyio.move_on_after(1):
                await ref.exited()
            await system.root.terminate_child("a")


# --- ends of idle actors ------------------------------------------------------------------------------------------


class Total(Actor):
    def __init__(self):
        self.total = 0

    async def handle_cast(self, message):
        self.total += message

    async def handle_call(self, message, caller):
        return self.total


async def test_mail_that_arrives_while_an_actor_ends_is_for_the_next_incarnation(new_system):
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Total))
        ref.kill()
        ref.cast(5)
        assert await ref.call("total") == 5
        assert ref.last_exit == Killed()


async def test_a_call_that_arrives_while_an_actor_ends_for_good_gets_not_running(new_system):
    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Total, restart="temporary"))
        ref.kill()
        with pytest.raises(NotRunning):
            await ref.call("total")


async def test_an_actor_that_is_stopped_before_its_first_step_handles_no_message(new_system):
    handled = []

    class Counts(Total):
        async def handle_cast(self, message):
            handled.append(message)

    async with new_system() as system:
        dynamic = await system.start(ChildSpec("d", DynamicSupervisor))
        ref = ActorRef()
        ref.cast("early")
        await dynamic.start_child(ChildSpec("a", Counts, ref=ref, restart="temporary"))
        ref.exit()
        assert await ref.exited() == Shutdown()
        assert handled == []


async def test_a_long_chain_of_links_ends_without_deep_recursion(new_system):
    class Linked(Actor):
        async def handle_cast(self, ref):
            self.link(ref)

    async with new_system() as system:
        group = await system.start(ChildSpec("group", DynamicSupervisor))
        refs = [await group.start_child(ChildSpec(n, Linked, restart="temporary")) for n in range(1500)]
        for ref, partner in itertools.pairwise(refs):
            ref.cast(partner)
        await anyio.sleep(60)
        refs[0].exit(Shutdown("all"))
        for ref in refs:
            assert await ref.exited() == Shutdown("all")


async def test_a_deep_tree_is_killed_without_deep_recursion(new_system):
    spec = ChildSpec("leaf", Total)
    for level in range(300):
        spec = ChildSpec(f"s{level}", lambda spec=spec: Supervisor([spec]), restart="temporary")
    async with new_system() as system:
        ref = await system.start(spec)
        ref.kill()
        assert await ref.exited() == Killed()


async def test_a_monitoring_actor_is_freed_at_its_end_without_the_collector():
    class Watches(Actor):
        async def handle_cast(self, ref):
            self.monitor(ref)
            self.send_after(1000, "later")

    async with ActorSystem(reports=None) as system:
        other = await system.start(ChildSpec("other", Total))
        ref = await system.start(ChildSpec("watcher", Watches, restart="temporary"))
        seen = weakref.ref(actor_of(ref))
        ref.cast(other)
        await anyio.sleep(1)
        gc.collect()
        gc.disable()
        try:
            await system.root.terminate_child(ref)
            await anyio.sleep(1)
            assert seen() is None
        finally:
            gc.enable()


@pytest.mark.rule("K-07")
async def test_the_cause_of_died_is_the_exception_of_the_actor(new_system):
    async with new_system() as system:
        ref = await system.start(Script("a").spec())
        with pytest.raises(Died) as died:
            await ref.call("crash")
        assert isinstance(died.value.__cause__, Boom)
        assert died.value.__cause__ is died.value.reason.exception


async def test_an_actor_finds_others_by_name_and_knows_its_system(new_system):
    class Finds(Actor):
        async def handle_call(self, message, caller):
            return self.whereis(message), self.system

    async with new_system() as system:
        other = await system.start(ChildSpec("other", Total, name="other"))
        ref = await system.start(ChildSpec("finds", Finds))
        assert await ref.call("other") == (other, system)
        assert (await ref.call("nobody"))[0] is None


ROOT = Path(__file__).parent.parent.parent
MEASURED = """
import gc, sys, tracemalloc
import anyio
from supervisors import ActorSystem, ChildSpec, DynamicSupervisor
from tests.supervisors.test_actors import Total

async def main():
    async with ActorSystem(reports=None) as system:
        group = await system.start(ChildSpec("group", lambda: DynamicSupervisor(ChildSpec("a", Total))))
        for _ in range(100):
            await group.start_child()
        await anyio.sleep(0.1)
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(1000):
                await group.start_child()
            await anyio.sleep(0.1)
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        print(taken / 1000)

anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.rule("K-06")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_idle_actor_takes_at_most_7_kilobytes(backend):
    """In a process of its own: what other tests did to classes and caches changes the size of an instance."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, backend], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= 7_000
