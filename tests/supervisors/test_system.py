"""Embedding: systems in programs, threads, signals, deadlines; and seeing inside."""

import asyncio
import io
import math
import os
import signal
import threading
from typing import Any

import anyio
import anyio.from_thread
import pytest
import trio

from supervisors import (
    NO_REPLY,
    Actor,
    ActorSystem,
    ChildSpec,
    Crash,
    DynamicSupervisor,
    Killed,
    MailboxFull,
    Shutdown,
    Supervisor,
    SupervisorsError,
    WrongTask,
)
from supervisors.events import Exited, Started
from supervisors.inspect import build_tree, dump, dump_on_signal
from supervisors.testing import Script


class Echo(Actor):
    async def handle_call(self, message, caller):
        return message


async def _program() -> int:
    async with ActorSystem(reports=None) as system:
        ref = await system.start(ChildSpec("echo", Echo))
        return await ref.call(42)


def test_a_system_runs_in_a_plain_asyncio_program():
    assert asyncio.run(_program()) == 42


def test_a_system_runs_in_a_plain_trio_program():
    assert trio.run(_program) == 42


async def test_a_system_is_entered_once(new_system):
    system = new_system()
    async with system:
        ref = await system.start(ChildSpec("echo", Echo))
        with pytest.raises(SupervisorsError, match="make a new one"):
            await system.__aenter__()
        assert await ref.call(1) == 1
    with pytest.raises(SupervisorsError, match="make a new one"):
        await system.__aenter__()


async def test_a_stream_of_events_made_before_the_system_is_entered_has_its_first_events(new_system):
    system = new_system()
    stream = system.events()
    async with system:
        await system.start(ChildSpec("echo", Echo))
    assert [event.spec.id async for event in stream if isinstance(event, Started)] == ["echo"]


async def test_several_systems_run_on_one_event_loop(new_system):
    async with new_system(name="one") as one, new_system(name="two") as two:
        refs = [await system.start(ChildSpec("echo", Echo, name="echo")) for system in (one, two)]
        assert [ref.path for ref in refs] == ["one/echo", "two/echo"]
        assert one.registry.whereis("echo") is not two.registry.whereis("echo")
        assert [await ref.call(n) for n, ref in enumerate(refs)] == [0, 1]


async def test_an_error_in_the_block_is_raised_unchanged_after_the_stop(new_system, recorder):
    with pytest.raises(ValueError, match="mine"):  # noqa: PT012
        async with new_system() as system:
            await system.start(Script("a", stop_takes=1).spec())
            raise ValueError("mine")
    assert recorder.log == ["+a", "-a shutdown"]


async def test_no_task_is_left_behind(new_system, anyio_backend_name):
    def tasks():
        if anyio_backend_name == "asyncio":
            return len(asyncio.all_tasks())
        return trio.lowlevel.current_statistics().tasks_living

    before = tasks()
    async with new_system() as system:
        group = await system.start(ChildSpec("s", lambda: Supervisor([Script(name).spec() for name in "abc"])))
        group.child("a").cast("hang")
        group.child("b").cast("crash")
        await anyio.sleep(1)
    await anyio.sleep(0.1)
    assert tasks() == before


async def test_stop_within_kills_the_remaining_actors(new_system):
    async with new_system(stop_within=10) as system:
        stubborn = await system.start(Script("a", stop_takes=math.inf).spec(shutdown=math.inf))
        prompt = await system.start(Script("b").spec())
        before = anyio.current_time()
    assert anyio.current_time() - before == 10
    assert (stubborn.last_exit, prompt.last_exit) == (Killed(), Shutdown("system"))


@pytest.mark.real_time
async def test_threads_call_actors_through_the_portal(new_system):
    class Small(Actor):
        mailbox_limit = 1

        async def handle_cast(self, message):
            await anyio.sleep_forever()

    async with new_system() as system:
        ref = await system.start(ChildSpec("echo", Echo))
        small = await system.start(ChildSpec("small", Small))
        got = []

        def work():
            got.append(system.portal.call(ref, "from a thread", timeout=5))
            child = system.portal.run(system.start, ChildSpec("late", Echo))
            got.append(system.portal.call(child, 1))
            with pytest.raises(MailboxFull):  # noqa: PT012
                for _ in range(3):
                    system.portal.cast(small, "x")

        await anyio.to_thread.run_sync(work)
        assert got == ["from a thread", 1]


@pytest.mark.real_time
async def test_sigterm_ends_the_service_within_its_deadline(new_system, recorder):
    async with new_system(stop_within=5) as system:
        await system.start(Script("a").spec())
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with anyio.fail_after(5):
            assert await system.terminated() == signal.SIGTERM
    assert recorder.log == ["+a", "-a shutdown"]


async def test_a_cancelled_start_of_a_system_leaves_no_task(anyio_backend_name):
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with ActorSystem(reports=None):
            await anyio.sleep(1)
    assert scope.cancelled_caught


async def test_a_system_may_be_left_by_another_task_once_the_one_that_entered_it_has_ended(
    new_system, recorder, anyio_backend_name
):
    if anyio_backend_name != "asyncio":
        pytest.skip("a task of trio cannot end with an open nursery")
    system = new_system()
    await asyncio.create_task(system.__aenter__())
    await system.start(Script("a").spec())
    await asyncio.create_task(system.__aexit__(None, None, None))
    assert recorder.log == ["+a", "-a shutdown"]


async def test_leaving_a_system_in_another_task_raises_wrong_task_while_the_one_that_entered_it_runs(
    new_system, recorder, anyio_backend_name
):
    if anyio_backend_name != "asyncio":
        pytest.skip("a task of trio cannot end with an open nursery")
    system, is_left = new_system(), anyio.Event()

    async def enter() -> None:
        await system.__aenter__()
        await is_left.wait()

    entering = asyncio.create_task(enter())
    await anyio.sleep(1)
    await system.start(Script("a").spec())
    with pytest.raises(WrongTask, match="leave it in that task"):
        await system.__aexit__(None, None, None)
    assert recorder.log == ["+a", "-a shutdown"]
    is_left.set()
    await entering


# --- seeing inside ------------------------------------------------------------------------------------------------


async def test_the_tree_shows_states_ages_depths_restarts_and_last_exits(new_system):
    specs = [Script("a", hang_on=1).spec(), Script("b").spec(restart="transient"), ChildSpec("d", DynamicSupervisor)]
    async with new_system() as system:
        group = await system.start(ChildSpec("g", lambda: Supervisor(specs, max_restarts=5)))
        await group.child("d").start_child(Script("x").spec())
        group.child("b").kill()
        for n in range(4):
            group.child("a").cast(n)
        await anyio.sleep(10)
        await group.terminate_child("b")
        nodes = {node.path: node for node in build_tree(system).walk()}
        assert list(nodes) == ["root", "root/g", "root/g/a", "root/g/b", "root/g/d", "root/g/d/x"]
        a, b = nodes["root/g/a"], nodes["root/g/b"]
        assert (a.state, a.mailbox, a.age, a.kind) == ("up", 3, 10, "_Scripted")
        assert (b.state, b.restarts, b.last_exit) == ("stopped", 1, Shutdown())
        text = dump(system)
        assert "├─ a  _Scripted  up  10.0s  mailbox 3" in text
        assert "└─ d  DynamicSupervisor  up" in text


async def test_calls_being_handled_are_counted(new_system):
    async with new_system() as system, anyio.create_task_group() as group:
        ref = await system.start(Script("a", hang_on=1).spec())
        group.start_soon(ref.call, 1)
        await anyio.sleep(1)
        assert build_tree(system).children[0].in_hand == 1
        group.cancel_scope.cancel()


async def test_a_call_being_handled_has_an_age(new_system):
    async with new_system() as system, anyio.create_task_group() as group:
        ref = await system.start(Script("a", hang_on=1).spec())
        await anyio.sleep(5)
        assert build_tree(system).children[0].call_age is None
        group.start_soon(ref.call, 1)
        await anyio.sleep(3)
        assert build_tree(system).children[0].call_age == 3
        assert "in hand 1 (int, 3.0s)" in dump(system)
        group.cancel_scope.cancel()


async def test_of_calls_that_are_answered_later_the_oldest_has_the_age(new_system):
    class Later(Actor):
        async def init(self) -> None:
            self.callers: list[Any] = []

        async def handle_call(self, message: object, caller: Any) -> Any:
            self.callers.append(caller)
            if message == "first":
                self.callers[0].reply("done")
            return NO_REPLY

    async with new_system() as system, anyio.create_task_group() as group:
        ref = await system.start(ChildSpec("a", Later))
        for message in ("one", "two"):
            group.start_soon(ref.call, message)
            await anyio.sleep(2)
        (node,) = build_tree(system).children
        assert (node.in_hand, node.call_age) == (2, 4)
        group.start_soon(ref.call, "first")
        await anyio.sleep(1)
        assert build_tree(system).children[0].call_age == 3
        group.cancel_scope.cancel()


@pytest.mark.real_time
async def test_the_tree_is_written_on_a_signal(new_system):
    out = io.StringIO()
    async with new_system() as system, anyio.create_task_group() as group:
        await system.start(ChildSpec("echo", Echo))
        group.start_soon(dump_on_signal, system, signal.SIGUSR1, out)
        await anyio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGUSR1)
        with anyio.fail_after(5):
            while "echo" not in out.getvalue():
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()


async def test_the_stream_of_events_ends_with_the_system_and_drops_the_oldest(new_system):
    seen, small = [], None

    async def read(stream):
        seen.extend([type(event) async for event in stream])

    async with anyio.create_task_group() as group:  # noqa: SIM117 - it outlives the system
        async with new_system() as system:
            small = system.events(buffer=1)
            group.start_soon(read, system.events())
            await system.start(Script("a").spec())
    assert seen == [Started, Exited]
    assert small.dropped == 1
    assert [type(event) async for event in small] == [Exited]


async def test_a_stream_that_is_closed_takes_no_more_events_and_ends(new_system):
    async with new_system() as system:
        before = list(system.sinks)
        stream = system.events()
        await system.start(Script("a").spec())
        stream.close()
        stream.close()
        assert system.sinks == before
        await system.start(Script("b").spec())
        assert [event.spec.id async for event in stream] == ["a"]


# --- what tests of users stand on ---------------------------------------------------------------------------------


async def test_scripted_children_follow_their_script(new_system, recorder):
    slow = Script("slow", slow_start=3)
    never = Script("never", starts=["error"])
    async with new_system(max_restarts=5) as system:
        before = anyio.current_time()
        await system.start(slow.spec())
        assert anyio.current_time() - before == 3
        with pytest.raises(Exception, match="never"):
            await system.start(never.spec())
        ref = await system.start(Script("flaky", crash_on=2).spec())
        ref.cast(1)
        ref.cast(2)
        await anyio.sleep(1)
        assert isinstance(ref.last_exit, Crash)
        assert recorder.take() == ["+slow", "!never", "+flaky", "-flaky crash", "+flaky"]
