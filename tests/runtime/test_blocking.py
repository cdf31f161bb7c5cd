"""The blocking runtime: synchronous code does everything with long-lived entities that async code does."""

import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    BlockingEntity,
    BlockingRuntime,
    Entity,
    EntityEnded,
    EntityEndedEvent,
    Invocation,
    KeyUsed,
    LoomError,
    Message,
    NoAnswer,
    Runtime,
    RuntimeClosed,
    Subscription,
    gate,
    scripted,
)
from cantrip_actors.crystal import Query
from cantrip_actors.mcp import inproc
from cantrip_actors.runtime import tree
from cantrip_actors.runtime.circles.tool_servers import HeldServer
from cantrip_actors.runtime.face.blocking import BlockingHeldServer, BlockingSubscription, BlockingWork
from cantrip_actors.runtime.face.work import Work
from tests.mcp.prompting import prompting
from tests.runtime.spells import cantrip, done, say

quick = cantrip(scripted(lambda ctx: done(ctx[-1].content), record=False))


@pytest.mark.rule("D-001")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_entity_is_found_by_its_name_and_answers(tmp_path, backend: str) -> None:
    spell = cantrip(lambda ctx: done([m.content for m in ctx if m.role == "user"]))
    url = f"sqlite:{tmp_path / 'loom.db'}"
    with Runtime.blocking(url, backend=backend) as runtime:
        assert runtime.invoke(spell, "milk", name="notes").episode().result == ["milk"]
    with Runtime.blocking(url, backend=backend) as runtime:
        assert runtime.interrupted() == []
        assert runtime.entity("nobody") is None
        entity = runtime.resume(runtime.entity("notes").id, cantrip=spell)
        assert entity.name == "notes"
        assert entity.send("bread").result == ["milk", "bread"]
        entity.steer("no eggs")
        entity.interrupt()
        assert entity.send("tea").result == ["milk", "bread", "no eggs", "tea"]
        entity.stop("enough")
        assert runtime.entity("notes") is None
        with pytest.raises(EntityEnded):
            entity.send("more")


def test_an_entity_cut_short_by_a_crash_can_be_abandoned(tmp_path) -> None:
    async def slow(_: object) -> dict[str, object]:
        return {**done("late"), "delay": 3600.0}

    url = f"sqlite:{tmp_path / 'loom.db'}"
    with Runtime.blocking(url) as runtime:
        entity = runtime.invoke(cantrip(slow), "go", name="x")
        while not runtime.loom.has(entity.id):
            time.sleep(0.01)
    with Runtime.blocking(url) as runtime:
        (header,) = runtime.interrupted()
        runtime.abandon(header.entity_id)
        assert runtime.interrupted() == []


# Opening and closing


@pytest.mark.rule("D-001")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_blocking_runtime_works_without_with_and_closes_on_request(tmp_path, backend: str) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    spell = cantrip(lambda ctx: done([m.content for m in ctx if m.role == "user"]))
    runtime = Runtime.blocking(url, backend=backend)
    assert runtime.invoke(spell, "milk", name="notes").episode().result == ["milk"]
    runtime.close()
    runtime.close()
    with pytest.raises(RuntimeClosed, match="not open"):
        runtime.cast(spell, "more")
    with Runtime.blocking(url, cantrips=[spell], backend=backend) as again:
        assert again.entity("notes").send("tea").result == ["milk", "tea"]
        again.close()


def test_a_blocking_gate_that_closes_its_runtime_is_cancelled() -> None:
    @gate
    def close() -> None:
        """Close the runtime."""
        runtime.close()

    runtime = Runtime.blocking()
    entity = runtime.start(cantrip([say("close"), done(1)], close), "go")
    assert entity.episode().reason == "cancelled"
    runtime.close()


def test_only_the_whole_blocking_runtime_can_be_entered_and_closed() -> None:
    with Runtime.blocking() as runtime:
        tenant = runtime.tenant("acme")
        with pytest.raises(LoomError, match="closing is about the whole loom"):
            tenant.close()
        with pytest.raises(LoomError, match="entering is about the whole loom"), tenant:
            pass
        assert runtime.cast(quick, "go").result == "go"


@pytest.mark.parametrize("backend", ["curio", "", None])
def test_an_unknown_backend_is_refused_and_starts_no_thread(backend: Any) -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match=f"backend: expected one of 'asyncio', 'trio', got {backend!r}"):
        Runtime.blocking(backend=backend)
    assert threading.active_count() == before


@pytest.mark.parametrize("fork", [False, True])
def test_a_process_exits_with_a_blocking_runtime_that_is_still_open(fork: bool) -> None:
    program = (
        "import os, sys\n"
        "from cantrip_actors import Runtime\n"
        "runtime = Runtime.blocking()\n"
        f"child = os.fork() if {fork} else None\n"
        "if child:\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "sys.exit(0)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    process = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_blocking_runtime_is_refused_when_the_process_has_no_descriptor_left(backend: str) -> None:
    program = (
        "import os, resource, sys\n"
        "from cantrip_actors import Runtime\n"
        f"with Runtime.blocking(backend={backend!r}):\n"
        "    pass  # everything is imported\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "held = []\n"
        "try:\n"
        "    while True:\n"
        "        held.append(os.open(os.devnull, os.O_RDONLY))\n"
        "except OSError:\n"
        "    pass\n"
        "try:\n"
        f"    Runtime.blocking(backend={backend!r})\n"
        "except OSError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    process = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (0, "[Errno 24] Too many open files\n")


# The same methods as the async face

ASYNC_ONLY = {"open", "blocking", "aclose"}
"""How a runtime is opened and closed."""


async def slowly(context: object) -> dict[str, object]:
    return {**done(context[-1].content), "delay": 60.0 if context[-1].content == "hang" else 0.2}


slow = cantrip(scripted(slowly, record=False))


@pytest.mark.parametrize(
    ("face", "blocking"),
    [
        (Runtime, BlockingRuntime),
        (Entity, BlockingEntity),
        (Work, BlockingWork),
        (Subscription, BlockingSubscription),
        (HeldServer, BlockingHeldServer),
    ],
)
def test_a_blocking_runtime_has_every_method_of_the_async_one_with_its_docstring(face: type, blocking: type) -> None:
    public = {name for name in vars(face) if not name.startswith("_")} - ASYNC_ONLY
    internal = {"check"}
    assert public - internal <= set(dir(blocking)) | {"entity_id", "key"}
    for name in public - internal:
        assert (getattr(blocking, name).__doc__ or "").strip(), name


def test_blocking_methods_have_the_parameters_of_the_async_ones() -> None:
    for face, blocking in ((Runtime, BlockingRuntime), (Entity, BlockingEntity), (Work, BlockingWork)):
        for name, method in vars(face).items():
            if inspect.isfunction(method) and not name.startswith("_") and name not in {*ASYNC_ONLY, "check"}:
                asks, given = (inspect.signature(one).parameters for one in (method, getattr(blocking, name)))
                assert list(asks) == list(given), name


@pytest.mark.rule("C-18")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_beginnings_with_a_key_happen_once_for_blocking_code(backend: str) -> None:
    with Runtime.blocking(backend=backend) as runtime:
        first = runtime.cast(quick, "go", key="cast")
        assert runtime.cast(quick, "go", key="cast").entity_id == first.entity_id
        with pytest.raises(KeyUsed):
            runtime.cast(quick, "another", key="cast")
        assert len({runtime.start(quick, "go", key="start").id for _ in range(2)}) == 1
        assert len({runtime.invoke(quick, "go", name="x", key="invoke").id for _ in range(2)}) == 1
        turn_id = first.thread[0].id
        assert len({runtime.fork(turn_id, intent="on", key="fork").entity_id for _ in range(2)}) == 1
        assert len(runtime.loom.entities()) == 4


@pytest.mark.rule("C-11")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_blocking_code_posts_and_reads_receipts(backend: str) -> None:
    with Runtime.blocking(backend=backend) as runtime:
        entity = runtime.invoke(slow, "start", name="x")
        receipt = entity.post("order", key="4711")
        assert (receipt.entity_id, receipt.key) == (entity.id, "4711")
        assert receipt.state in ("waiting", "working")
        assert receipt.episode().result == "order"
        assert receipt.state == "settled"
        for address in (entity, "x", entity.id):
            assert runtime.receipt(address, "4711").episode().result == "order"
        assert entity.send("order", key="4711").result == "order"
        with pytest.raises(LoomError):
            runtime.receipt("x", "unknown")


@pytest.mark.rule("Y-52")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_blocking_code_waits_on_with_the_receipt_of_an_answer_that_is_late(backend: str) -> None:
    with Runtime.blocking(backend=backend) as runtime:
        entity = runtime.ensure("slow", slow)
        with pytest.raises(NoAnswer) as late:
            entity.send("rice", timeout=0)
        assert isinstance(late.value.receipt, BlockingWork)
        assert late.value.receipt.result(timeout=10).result == "rice"


def test_blocking_code_calls_an_async_function_that_takes_a_runtime() -> None:
    async def cast_twice(runtime: Runtime, intent: str, *, result: str) -> list[str]:
        spoken = cantrip(scripted([done(result), done(result)]))
        return [(await runtime.cast(spoken, intent)).result for _ in range(2)]

    with Runtime.blocking() as runtime:
        assert runtime.run(cast_twice, "go", result="gone") == ["gone", "gone"]
        tenant = runtime.tenant("acme")
        tenant.run(cast_twice, "go", result="gone")
        assert len(tenant.loom.entities()) == 2
    with pytest.raises(RuntimeClosed):
        runtime.run(cast_twice, "go", result="gone")


@pytest.mark.rule("C-19")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_blocking_code_withdraws_and_cancels(backend: str) -> None:
    with Runtime.blocking(backend=backend) as runtime:
        entity = runtime.invoke(cantrip(scripted([{**done("late"), "delay": 60.0}])), "start", name="x")
        assert entity.post("order", key="4711").withdraw("sold out") == "withdrawn"
        assert runtime.receipt("x", "").cancel(now=True) == "working"
        assert entity.episode().reason == "interrupted"


@pytest.mark.rule("C-17")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_blocking_code_interrupts_a_query_that_hangs(backend: str) -> None:
    with Runtime.blocking(backend=backend) as runtime:
        entity = runtime.invoke(slow, "hang")
        began = time.monotonic()
        entity.interrupt("enough", now=True)
        assert entity.episode().reason == "interrupted"
        assert time.monotonic() - began < 10
        assert entity.loaded
        assert entity.send("next").result == "next"
        assert entity.result().result is None


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_blocking_code_iterates_events_in_a_thread_of_its_own(backend: str) -> None:
    seen: list[object] = []
    with Runtime.blocking(backend=backend) as runtime:
        events = runtime.events(lambda event: isinstance(event, EntityEndedEvent))
        reader = threading.Thread(target=lambda: seen.extend(events))
        reader.start()
        ids = [runtime.cast(quick, f"{n}").entity_id for n in range(5)]
        own = runtime.start(slow, "own")
        assert [type(event) for event in own.events()][-1] is EntityEndedEvent
        assert own.episode().result == "own"
    reader.join(10)
    assert not reader.is_alive()
    assert [event.entity_id for event in seen] == [*ids, own.id]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_blocking_code_reads_earlier_events_after_the_runtime_has_closed(backend: str) -> None:
    with Runtime.blocking(backend=backend) as runtime:
        events = runtime.events(lambda event: isinstance(event, EntityEndedEvent))
        requests = runtime.requests(follow=True)
        ids = [runtime.cast(quick, f"{n}").entity_id for n in range(3)]
    assert [event.entity_id for event in events] == ids
    assert list(requests) == []


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_blocking_code_keeps_a_server_of_tools_and_reads_its_prompts(backend: str) -> None:
    with Runtime.blocking(backend=backend) as runtime, runtime.use_server(inproc("words", prompting())) as held:
        assert {prompt.name for prompt in held.prompts()} >= {"review"}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_blocking_runtime_closes_while_other_threads_follow_episodes(backend: str) -> None:
    results: list[object] = []

    def follow(runtime: BlockingRuntime, begins: threading.Event) -> None:
        with runtime.stream(slow, "hang") as run:
            begins.set()
            results.append(len(list(run.events())) > 0)

    runtime = Runtime.blocking(backend=backend)
    readers = []
    for _ in range(2):
        begins = threading.Event()
        readers.append(threading.Thread(target=follow, args=(runtime, begins), daemon=True))
        readers[-1].start()
        assert begins.wait(10)
    suspended = runtime.stream(slow, "hang")
    suspended.__enter__()
    closing = threading.Thread(target=runtime.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    for reader in readers:
        reader.join(10)
    assert results == [True, True]
    suspended.__exit__(None, None, None)


def test_a_blocking_feed_of_requests_is_closed_by_its_with_also_after_its_runtime() -> None:
    runtime = Runtime.blocking()
    with runtime.requests(follow=True) as requests:
        assert not requests.is_over
    assert list(requests) == []
    with runtime.requests(follow=True) as requests:
        runtime.close()
    requests.close()
    assert list(requests) == []


def test_a_blocking_subscription_that_is_closed_ends() -> None:
    with Runtime.blocking() as runtime:
        events = runtime.events()
        runtime.cast(quick, "go")
        events.close()
        runtime.cast(quick, "go again")
        assert len({event.entity_id for event in events}) == 1


def test_blocking_code_watches_asks_drains_and_sees_crystals() -> None:
    streamed: list[object] = []
    with Runtime.blocking() as runtime:
        end = runtime.watch(streamed.extend)
        runtime.cast(quick, "go")
        assert streamed
        end()
        count = len(streamed)
        runtime.cast(quick, "go")
        assert len(streamed) == count
        assert [status.name for status in runtime.crystals()] == ["scripted"]
        query = Query(Invocation((Message("user", "hello"),), (), None), {})
        assert runtime.ask(quick.crystal, query).tool_calls[0].args == {"answer": "hello"}
        assert runtime.drain(1.0) is True
        with pytest.raises(RuntimeClosed):
            runtime.cast(quick, "too late")


def test_blocking_code_gets_an_error_when_its_runtime_has_closed() -> None:
    with Runtime.blocking() as runtime:
        entity = runtime.invoke(quick, "start")
    for call in (lambda: runtime.cast(quick, "late"), lambda: entity.send("late"), runtime.requests):
        with pytest.raises(RuntimeClosed, match=r"not open: use it inside `with Runtime\.blocking"):
            call()


def test_an_async_gate_that_calls_its_own_blocking_runtime_gets_an_error_with_advice() -> None:
    with Runtime.blocking() as runtime:

        @gate
        async def nested() -> object:
            """Cast."""
            return runtime.cast(quick, "inner").result

        calls = [say("nested"), done("over")]
        episode = runtime.cast(cantrip(calls, nested), "go")
    [observation] = episode.thread[0].observations
    assert observation.is_error
    assert "make the gate a plain function" in str(observation.content)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_gets_an_error_that_says_to_open_its_own_runtime() -> None:
    with Runtime.blocking() as runtime:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                runtime.cast(quick, "in the fork")
            except RuntimeClosed as refused:
                os.write(writer, str(refused).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        with os.fdopen(reader) as told:
            assert "open a runtime here, after the fork" in told.read()
        assert runtime.cast(quick, "in the parent").result == "in the parent"


def test_several_threads_send_to_one_entity() -> None:
    with Runtime.blocking() as runtime:
        entity = runtime.invoke(quick, "start")
        results: list[object] = []
        threads = [threading.Thread(target=lambda n=n: results.append(entity.send(f"{n}").result)) for n in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert sorted(results) == [f"{n}" for n in range(10)]


@pytest.fixture
def usual_handler() -> Iterator[None]:
    """Ctrl-C is handled as in a program that Python has just begun."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


@pytest.mark.rule("Z-12")
@pytest.mark.real_time
@pytest.mark.usefixtures("usual_handler")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_while_a_blocking_runtime_opens_or_closes_leaves_it_closed(tmp_path, backend: str, monkeypatch) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"

    def interrupt(work: Any, *args: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        return work(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(tree, "open_store", partial(interrupt, tree.open_store))
        with pytest.raises(KeyboardInterrupt):
            Runtime.blocking(url, backend=backend)
    runtime = Runtime.blocking(url, backend=backend)
    store = runtime._inner._tree.store
    monkeypatch.setattr(store, "close", partial(interrupt, store.close))
    with pytest.raises(KeyboardInterrupt):
        runtime.close()
    assert not any("cantrip_actors" in thread.name for thread in threading.enumerate())
    with Runtime.blocking(url, backend=backend) as runtime:
        assert runtime.cast(quick, "milk").result == "milk"


@pytest.mark.rule("Z-12")
@pytest.mark.real_time
@pytest.mark.usefixtures("usual_handler")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_cancels_the_blocking_call_that_waits(backend: str) -> None:
    async def interrupt(context: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep(60)

    with Runtime.blocking(backend=backend) as runtime:
        with pytest.raises(KeyboardInterrupt):
            runtime.cast(cantrip(scripted(interrupt, record=False)), "go")
        assert runtime.cast(quick, "milk").result == "milk"
        assert runtime.drain(10)
        (first, _) = runtime.loom.entities()
        assert runtime.loom.state(first) == "cancelled"


@pytest.mark.rule("Z-12")
@pytest.mark.real_time
@pytest.mark.usefixtures("usual_handler")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_blocking_feed_loses_no_event_when_ctrl_c_interrupts_its_reader(backend: str) -> None:
    with Runtime.blocking(backend=backend) as runtime:
        events = runtime.events(lambda event: isinstance(event, EntityEndedEvent))
        interrupt = threading.Timer(0.2, partial(os.kill, os.getpid(), signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            next(events)
        ids = [runtime.cast(quick, f"{n}").entity_id for n in range(3)]
        assert [next(events).entity_id for _ in range(2)] == ids[:2]


@pytest.mark.rule("Z-12")
@pytest.mark.real_time
@pytest.mark.usefixtures("usual_handler")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_while_a_blocking_stream_begins_does_not_stop_the_runtime_from_closing(backend: str) -> None:
    class Slow:
        async def __aenter__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            await anyio.sleep(60)

        async def __aexit__(self, *_: object) -> None:
            raise AssertionError("it was not entered")

    with Runtime.blocking(backend=backend) as runtime, pytest.raises(KeyboardInterrupt):
        runtime._portal.enter(Slow()).__enter__()
