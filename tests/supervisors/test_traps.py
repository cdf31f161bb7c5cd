"""The traps of specs/supervision.md 3 and 4, one test each: OTP on structured concurrency."""

import asyncio
import contextvars
import gc
import sys
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from supervisors import (
    Actor,
    ActorSystem,
    ChildSpec,
    Crash,
    Died,
    DynamicSupervisor,
    Killed,
    Normal,
    Shutdown,
    StartFailed,
    Supervisor,
    SystemDown,
)
from supervisors.ref import identify
from supervisors.testing import Boom, Recorder, Script, virtual


def _chain(depth, script):
    spec = script.spec()
    for level in range(depth):
        spec = ChildSpec(f"s{level}", lambda spec=spec: Supervisor([spec]))
    return spec


async def test_a_cancellation_from_outside_stops_the_tree_in_order(recorder):
    """3.1: a bare task group cancels its children in any order."""
    for _ in range(20):
        with anyio.CancelScope() as scope:
            async with ActorSystem(reports=None) as system:
                system.sinks.append(recorder)
                inner = ChildSpec("s", lambda: Supervisor([Script("b", stop_takes=0.1).spec(), Script("c").spec()]))
                await system.start(Script("a").spec())
                await system.start(inner)
                await system.start(Script("d").spec())
                recorder.take()
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert recorder.take() == ["-d shutdown", "-c shutdown", "-b shutdown", "-s shutdown", "-a shutdown"]


async def test_a_crash_inside_does_not_cancel_the_siblings(new_system):
    async with new_system(max_restarts=9) as system:
        bystander = await system.start(Script("b").spec())
        ref = await system.start(Script("a").spec(restart="temporary"))
        ref.cast("crash")
        assert isinstance(await ref.exited(), Crash)
        assert await bystander.call(1) == 1


async def test_a_nested_exception_group_is_flattened_for_the_reason(new_system):
    class Nursery(Actor):
        async def handle_cast(self, message):
            async with anyio.create_task_group() as outer:
                outer.start_soon(self.fail, ValueError("first"))
                async with anyio.create_task_group() as inner:
                    inner.start_soon(self.fail, KeyError("second"))

        async def fail(self, error):
            raise error

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Nursery, restart="temporary"))
        ref.cast(1)
        reason = await ref.exited()
        assert isinstance(reason, Crash)
        assert {type(error) for error in (reason.exception, *reason.others)} <= {ValueError, KeyError}
        assert isinstance(reason.exception.__cause__, BaseExceptionGroup)


@pytest.mark.parametrize("where", ["start", "init", "handler", "terminate"])
async def test_a_generator_exit_that_an_actor_raises_is_a_crash_like_any_other(new_system, where):
    class Leaves(Actor):
        async def init(self):
            if where == "init":
                raise GeneratorExit

        async def handle_cast(self, message):
            if where == "handler":
                raise GeneratorExit
            self.stop(Normal())

        async def terminate(self, reason):
            if where == "terminate":
                raise GeneratorExit

    def start():
        if where == "start":
            raise GeneratorExit
        return Leaves()

    async with new_system() as system:
        bystander = await system.start(Script("b").spec())
        if where in ("start", "init"):
            with pytest.raises(StartFailed, match="GeneratorExit"):
                await system.start(ChildSpec("a", start, restart="temporary"))
        else:
            ref = await system.start(ChildSpec("a", start, restart="temporary"))
            ref.cast(1)
            reason = await ref.exited()
            assert isinstance(reason, Crash)
            assert isinstance(reason.exception, GeneratorExit)
        assert await bystander.call(1) == 1


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["handler", "init", "group"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_interrupt_ends_the_system_in_order_and_is_not_a_crash(backend, where, interrupt):
    recorder = Recorder()
    incarnations = []

    class Interrupts(Actor):
        has_tasks = where == "group"

        async def init(self):
            incarnations.append(1)
            if where == "init":
                raise interrupt

        async def handle_cast(self, message):
            if where == "group":
                self.tasks.start_soon(self.fail)
            else:
                raise interrupt

        async def fail(self):
            raise interrupt

    async def main():
        async with ActorSystem(reports=None) as system:
            system.sinks.append(recorder)
            await system.start(Script("a").spec())
            ref = await system.start(ChildSpec("i", Interrupts))
            ref.cast("go")
            await anyio.sleep(10)
            raise AssertionError("the block was not cancelled")

    name, options = virtual(backend)
    with pytest.raises(interrupt):
        anyio.run(main, backend=name, backend_options=options)
    assert len(incarnations) == 1
    # In a task of the actor's own group, asyncio leaves `run()` at once: everybody is cancelled natively.
    if backend == "asyncio" and where == "group":
        assert {line.split()[0] for line in recorder.log} == {"+a", "-a", "+i", "-i"}
    else:
        assert recorder.log[-1] == "-a shutdown"


async def test_a_bare_cancelled_error_is_a_crash(new_system, anyio_backend_name):
    """A library that cancels natively makes a child vanish silently on asyncio."""
    if anyio_backend_name != "asyncio":
        pytest.skip("on trio nobody can make a Cancelled")

    class Cancelled(Actor):
        async def handle_cast(self, message):
            if message == "raise":
                raise asyncio.CancelledError
            asyncio.current_task().cancel()
            await asyncio.sleep(1)

    async with new_system(max_restarts=9) as system:
        for message in ("raise", "native"):
            ref = await system.start(ChildSpec(message, Cancelled))
            ref.cast(message)
            await anyio.sleep(0.1)
            assert isinstance(ref.last_exit, Crash)
            assert isinstance(ref.last_exit.exception, asyncio.CancelledError)
            assert ref.alive


@pytest.mark.rule("K-05")
async def test_context_variables_of_the_starting_task_do_not_leak_in(new_system):
    trace = contextvars.ContextVar("trace", default="clean")
    seen = []

    class Sees(Actor):
        async def init(self):
            seen.append(trace.get())
            trace.set("of the child")

    async with new_system() as system:
        dynamic = await system.start(ChildSpec("d", DynamicSupervisor))
        trace.set("of the starter")
        for supervisor in (system.root, dynamic):
            ref = await supervisor.start_child(ChildSpec("a", Sees))
            ref.kill()
            await anyio.sleep(0.1)
        assert seen == ["clean"] * 4
        assert trace.get() == "of the starter"


async def test_a_callers_deadline_does_not_reach_into_the_child_it_started(new_system):
    async with new_system() as system:
        dynamic = await system.start(ChildSpec("d", DynamicSupervisor))
        with anyio.move_on_after(1):
            ref = await dynamic.start_child(Script("a").spec())
        await anyio.sleep(10)
        assert ref.alive


async def test_a_call_to_a_server_that_crashes_on_it_does_not_wait_for_ever(new_system):
    """triotp P6."""
    async with new_system() as system:
        ref = await system.start(Script("a").spec())
        with pytest.raises(Died):
            await ref.call("crash")


async def test_a_late_reply_does_not_kill_the_server(new_system):
    """triotp P7."""

    class Slow(Actor):
        async def handle_call(self, message, caller):
            await anyio.sleep(2)
            return message

    async with new_system() as system:
        ref = await system.start(ChildSpec("a", Slow))
        with pytest.raises(TimeoutError):
            await ref.call(1, timeout=1)
        assert await ref.call(2) == 2
        assert ref.last_exit is None


async def test_the_crash_of_a_temporary_child_does_not_affect_its_supervisor(new_system):
    """triotp P1, P2: and a permanent child that returns past the limit ends it."""

    class Returns(Actor):
        async def run(self):
            return None

    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", Supervisor, restart="temporary"))
        ref = await supervisor.start_child(Script("a").spec(restart="temporary"))
        ref.cast("crash")
        await ref.exited()
        await anyio.sleep(0.1)
        assert supervisor.alive
        await supervisor.start_child(ChildSpec("r", Returns))
        assert isinstance(await supervisor.exited(), Shutdown)


async def test_a_constructor_that_raises_leaves_no_child(new_system):
    """actor-ts#913."""

    def factory():
        raise Boom

    async with new_system() as system:
        for supervisor in (system.root, await system.start(ChildSpec("d", DynamicSupervisor))):
            for _ in range(3):
                with pytest.raises(Exception, match="failed to start"):
                    await supervisor.start_child(ChildSpec("a", factory))
            assert [child.id for child in await supervisor.which_children()] in (["d"], [])


async def test_an_actor_that_swallows_cancellation_is_reported_and_uses_no_cpu(new_system, recorder):
    from supervisors.events import Zombie

    class Swallows(Actor):
        async def handle_cast(self, message):
            while not released:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(1)

    released = []
    async with new_system(kill_grace=2) as system:
        ref = await system.start(ChildSpec("a", Swallows, shutdown=2))
        ref.cast("go")
        await anyio.sleep(0.1)
        await system.root.terminate_child("a")
        released.append(1)
        assert len(recorder.of(Zombie)) == 1
        assert ref.last_exit == Killed()


async def test_a_cancellation_while_a_message_is_received_loses_no_message(new_system):
    """3.2: a native cancel loses an item that was handed over already."""
    script = Script("a")
    async with new_system(max_restarts=10_000) as system:
        ref = await system.start(script.spec())
        for n in range(300):
            if n % 3 == 0:
                ref.cast(n)
                ref.kill()
            elif n % 3 == 1:
                ref.kill()
                ref.cast(n)
            else:
                ref.cast(n)
                await anyio.lowlevel.checkpoint()
                ref.kill()
            await anyio.sleep(0.01)
        assert script.seen == list(range(300))


async def test_deep_trees_start_and_stop(new_system, recorder):
    async with new_system() as system:
        await system.start(_chain(100, Script("leaf")))
        assert len(recorder.take()) == 101
        await system.root.terminate_child("s99")
        assert recorder.take()[0] == "-leaf shutdown"


@pytest.mark.rule("K-03")
@pytest.mark.real_time
async def test_an_ordered_stop_of_a_cancelled_system_takes_linear_time(anyio_backend_name):
    """3.2: one shield a child is quadratic on asyncio; here all stand under one."""

    async def cost(n):
        with anyio.CancelScope() as scope:
            async with ActorSystem(reports=None) as system:
                specs = [ChildSpec(at, Actor) for at in range(n)]
                await system.start(ChildSpec("s", lambda: Supervisor(specs)))
                before = time.process_time()
                scope.cancel()
                await anyio.lowlevel.checkpoint()
        return (time.process_time() - before) / n

    await cost(100)
    assert await cost(4000) < 4 * min([await cost(400) for _ in range(3)])


async def test_only_incarnation_py_and_the_text_of_an_exception_catch_every_exception():
    """3.5: the sanctioned places. An exception's own `__str__` may raise anything (LOG-04)."""
    import ast

    import supervisors

    found = set()
    for path in Path(supervisors.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler):
                names = (
                    {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else {"all"}
                )
                if names & {"Exception", "BaseException", "all"}:
                    found.add(path.name)
    assert found == {"incarnation.py", "reasons.py"}


async def test_the_package_imports_anyio_and_structlog_only(anyio_backend_name):
    import subprocess

    foreign = ("trio", "hypothesis", "pydantic", "cantrip_actors")
    code = f"import sys, supervisors; print([name for name in {foreign} if name in sys.modules])"
    done = await anyio.to_thread.run_sync(
        lambda: subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    )
    assert done.stdout.strip() == "[]"


async def test_a_dead_actor_leaves_no_garbage_that_only_the_collector_finds(new_system):
    """4: the collector dominates mass spawn; what ends should go by itself."""
    import weakref

    class Light(Actor):
        pass

    async with ActorSystem(reports=None) as system:
        dynamic = await system.start(ChildSpec("d", DynamicSupervisor))
        ref = await dynamic.start_child(ChildSpec("a", Light, restart="temporary"))
        await anyio.lowlevel.checkpoint()
        seen = weakref.ref(identify(ref).incarnation.actor)
        gc.collect()
        gc.disable()
        try:
            ref.exit()
            await ref.exited()
            await anyio.sleep(0.1)
            assert seen() is None
        finally:
            gc.enable()


async def test_a_system_whose_top_supervisor_gives_up_cancels_its_block_and_raises(new_system):
    with pytest.raises(SystemDown) as down:  # noqa: PT012
        async with new_system(max_restarts=0) as system:
            ref = await system.start(Script("a").spec())
            ref.cast("crash")
            await anyio.sleep(100)
            raise AssertionError
    assert isinstance(down.value.reason, Shutdown)
    assert ref.last_exit != Normal()
