"""Several workers on one loom, deploys with a changed prompt, clean shutdowns: the first week of a service."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from cantrip_actors import (
    Call,
    Cantrip,
    CantripError,
    CantripUnknown,
    Circle,
    Entity,
    EntityInterrupted,
    KeyUsed,
    LoomError,
    Message,
    Node,
    Runtime,
    RuntimeClosed,
    Stranded,
    ask_first,
    gate,
    scripted,
)
from cantrip_actors.wards import max_turns
from tests.runtime.spells import done, say


def desk(prompt: str = "Be polite.", name: str = "desk") -> Cantrip:
    """Answers with its prompt and the intent."""

    async def answer(context: tuple[Message, ...]) -> dict[str, object]:
        return done(f"{context[0].content} {context[-1].content}")

    return Cantrip(scripted(answer), Call(prompt), Circle(["done"], [max_turns(5)]), name=name)


@asynccontextmanager
async def open_workers(url: str, count: int = 2, cantrip: Cantrip | None = None) -> AsyncIterator[list[Runtime]]:
    """Open runtimes on one loom, as the workers of one service are."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Runtime.open(url, cantrips=[cantrip or desk()])) for _ in range(count)]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'loom.db'}"


# Create or get


@pytest.mark.rule("Y-01")
async def test_a_hundred_callers_in_two_workers_ensure_one_entity_and_ask_no_model(url: str) -> None:
    ids: set[str] = set()
    async with open_workers(url) as workers:

        async def ensure(worker: Runtime) -> None:
            ids.add((await worker.ensure("notes", desk())).id)

        async with anyio.create_task_group() as tasks:
            for worker in workers * 50:
                tasks.start_soon(ensure, worker)
        (entity_id,) = ids
        assert [workers[1].loom.entities(), workers[1].loom.state(entity_id)] == [[entity_id], "idle"]
        assert workers[0].interrupted() == []


@pytest.mark.rule("Y-01")
@pytest.mark.parametrize("store", ["memory", "jsonl", "sqlite"])
async def test_an_ensured_entity_takes_its_first_intent_when_it_is_sent_one(tmp_path: Path, store: str) -> None:
    where = "memory:" if store == "memory" else f"{store}:{tmp_path / 'loom'}"
    async with Runtime.open(where, cantrips=[desk()]) as runtime:
        entity = await runtime.ensure("notes", desk())
        with pytest.raises(LoomError, match="no intent yet"):
            await entity.episode()
        assert (await entity.send("milk")).result == "Be polite. milk"
        first = runtime.loom.first_intent(entity.id)
        assert first is not None
        assert first.intent == "milk"
        assert (await (await runtime.ensure("notes", desk())).send("bread")).result == "Be polite. bread"


@pytest.mark.rule("Y-01")
async def test_an_ensured_entity_survives_a_deploy_before_its_first_intent(url: str) -> None:
    async with Runtime.open(url, cantrips=[desk()]) as runtime:
        before = await runtime.ensure("notes", desk())
    changed = desk("Be brief.")
    async with Runtime.open(url, cantrips=[changed]) as runtime:
        entity = await runtime.ensure("notes", changed)
        assert entity.id == before.id
        assert (await entity.send("milk")).result == "Be brief. milk"
        first = runtime.loom.first_intent(entity.id)
        assert first is not None
        assert first.intent == "milk"


@pytest.mark.rule("Y-01")
async def test_an_ensured_entity_works_with_the_callers_cantrip_if_none_of_its_name_is_offered(url: str) -> None:
    async with Runtime.open(url) as runtime:
        await runtime.ensure("notes", desk())
    async with Runtime.open(url) as runtime:
        assert (await (await runtime.ensure("notes", desk("Be brief."))).send("milk")).result == "Be brief. milk"


@pytest.mark.rule("Y-01")
async def test_an_ensured_entity_takes_mail_that_another_handle_posts(url: str) -> None:
    for _ in range(2):  # the second process finds the entity
        async with Runtime.open(url) as runtime:
            await runtime.ensure("notes", desk())
            work = await runtime.get_entity("notes").post("milk")
            with anyio.fail_after(5):
                assert (await work.result()).result == "Be polite. milk"


@pytest.mark.rule("Y-01")
async def test_an_ensured_entity_can_be_stopped_and_its_name_used_again(url: str) -> None:
    async with Runtime.open(url, cantrips=[desk()]) as runtime:
        first = await runtime.ensure("notes", desk())
        await first.stop()
        second = await runtime.ensure("notes", desk())
        assert second.id != first.id
        assert (await second.send("milk")).result == "Be polite. milk"


@pytest.mark.rule("Y-01")
@pytest.mark.parametrize("how", ["start", "invoke"])
async def test_a_beginning_with_a_key_finds_its_entity_after_a_deploy_with_another_prompt(url: str, how: str) -> None:
    names = {"name": "notes"} if how == "invoke" else {}
    ids: set[str] = set()
    for prompt in ("Be polite.", "Be brief."):
        async with Runtime.open(url, cantrips=[desk(prompt)]) as runtime:
            entity: Entity = await getattr(runtime, how)(desk(prompt), "keep my notes", key="begin", **names)
            ids.add(entity.id)
            if how == "start":
                assert (await entity.episode()).result == "Be polite. keep my notes"
            else:
                await entity.episode()
                assert (await entity.send("milk")).result == f"{prompt} milk"
            with pytest.raises(KeyUsed, match="what differs is the name of its cantrip: use another key"):
                await getattr(runtime, how)(desk(prompt, "office"), "keep my notes", key="begin", **names)
    assert len(ids) == 1


# A send works from every process


@pytest.mark.rule("Y-03")
async def test_a_send_with_a_cantrip_is_answered_by_the_worker_that_has_the_entity_loaded(url: str) -> None:
    async with open_workers(url) as (first, second):
        await (await first.invoke(desk(), "hello", name="notes")).episode()
        handle = second.entity("notes", cantrip=desk())
        assert handle is not None
        assert (await handle.send("milk", timeout=20)).result == "Be polite. milk"
        assert not handle.loaded


@pytest.mark.rule("Y-03")
async def test_a_send_without_the_cantrip_is_answered_by_a_process_that_serves_it(url: str) -> None:
    async with Runtime.open(url, cantrips=[desk()], passivate_after=0.1) as daemon, Runtime.open(url) as script:
        await (await daemon.invoke(desk(), "hello", name="notes")).episode()
        await anyio.sleep(1)
        assert not daemon.entity("notes").loaded
        assert (await script.entity("notes").send("milk", timeout=20)).result == "Be polite. milk"


@pytest.mark.rule("Y-03")
async def test_a_send_is_refused_if_no_living_process_serves_the_cantrip(url: str) -> None:
    async with Runtime.open(url, cantrips=[desk()]) as daemon:
        await (await daemon.invoke(desk(), "hello", name="notes")).episode()
    async with Runtime.open(url, cantrips=[desk("Be brief.", "office")]), Runtime.open(url) as script:
        with pytest.raises(CantripUnknown):
            await script.entity("notes").send("milk", timeout=20)


@pytest.mark.rule("Y-03")
@pytest.mark.parametrize("node", [None, Node("w1")], ids=["process", "node"])
@pytest.mark.parametrize(("sent", "error"), [(["first"], EntityInterrupted), (["first", "second"], Stranded)])
async def test_callers_get_an_error_when_the_last_process_that_serves_the_cantrip_closes(
    url: str, node: Node | None, sent: list[str], error: type[CantripError]
) -> None:
    async with Runtime.open(url, stranded_after=20) as script:

        async def send(intent: str) -> None:
            with pytest.raises(error), anyio.fail_after(60):
                await script.entity("notes").send(intent, key=intent)

        async with anyio.create_task_group() as tasks, Runtime.open(url, cantrips=[JOB], node=node) as worker:
            await worker.ensure("notes", JOB)
            for intent in sent:
                tasks.start_soon(send, intent)
                await anyio.sleep(1)
        async with Runtime.open(url, cantrips=[JOB], recover="resume", node=node):
            for intent in sent:
                assert (await script.entity("notes").send(intent, key=intent)).result == "worked"


@pytest.mark.rule("Y-03", "K-32")
@pytest.mark.parametrize("store", ["jsonl", "sqlite"])
@pytest.mark.parametrize("is_served", [False, True])
async def test_a_caller_gets_an_error_where_no_process_serves_the_cantrip_of_its_intent(
    tmp_path: Path, store: str, is_served: bool
) -> None:
    url = f"{store}:{tmp_path / 'loom'}"
    async with Runtime.open(url, cantrips=[desk()]) as runtime:
        await (await runtime.ensure("notes", desk())).send("hello")
    async with Runtime.open(url, stranded_after=20) as script:
        receipt = await script.entity("notes").post("milk")
        with anyio.fail_after(60):
            if is_served:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(receipt.result)
                    await anyio.sleep(10)
                    await script.entity("notes", cantrip=desk()).send("tea")
            else:
                with pytest.raises(Stranded):
                    await receipt.result()
        assert receipt.state == ("settled" if is_served else "waiting")


@pytest.mark.rule("Y-03")
async def test_a_process_that_lets_no_entity_move_serves_only_the_contents_that_it_offers(url: str) -> None:
    async with Runtime.open(url, cantrips=[desk()]) as daemon:
        await (await daemon.invoke(desk(), "hello", name="notes")).episode()
    async with Runtime.open(url, cantrips=[desk("Be brief.")], upgrade="never"), Runtime.open(url) as script:
        with pytest.raises(CantripUnknown):
            await script.entity("notes").send("milk", timeout=20)


# A clean shutdown keeps what kill -9 keeps


@gate(idempotent=True)
async def work() -> str:
    """Work for long."""
    await anyio.sleep(60)
    return "worked"


async def work_once(context: tuple[Message, ...]) -> dict[str, object]:
    return say("work") if context[-1].role == "user" else done(context[-1].content)


JOB = Cantrip(scripted(work_once), circle=Circle(["done", work], [max_turns(5)]), name="job")


@pytest.mark.rule("Y-04")
@pytest.mark.parametrize("how", ["keyed", "submitted", "kept", "kept alone", "forked"])
async def test_work_that_somebody_comes_back_for_goes_on_after_a_clean_shutdown(url: str, how: str) -> None:
    async with Runtime.open(url, cantrips=[JOB], on_close="keep" if how == "kept" else "end") as runtime:
        if how == "submitted":
            await runtime.submit("job", "go", key="job-1")
        else:
            options = {"keyed": {"key": "job-1"}, "kept alone": {"on_close": "keep"}}
            entity = await runtime.start(JOB, "go", **options.get(how, {}))
            if how == "forked":
                turn = (await entity.episode()).thread[0].id
                await runtime.start_fork(turn, intent="go", on_close="keep")
        await anyio.sleep(5)
        assert not await runtime.drain(1)
        entity_id = runtime.loom.entities()[-1]
    async with Runtime.open(url, cantrips=[JOB], recover="resume") as runtime:  # it closes before the work is done
        assert runtime.loom.state(entity_id) == "active"
        await anyio.sleep(1)
    async with Runtime.open(url, cantrips=[JOB], recover="resume") as runtime:
        assert runtime.loom.entities()[-1] == entity_id
        assert (await runtime.get_entity(entity_id).episode()).result == "worked"


@pytest.mark.rule("Y-04")
async def test_the_on_close_of_a_call_replaces_the_option_of_the_runtime(url: str) -> None:
    async with Runtime.open(url, cantrips=[JOB], on_close="keep") as runtime:
        entity = await runtime.start(JOB, "go", on_close="end")
        with pytest.raises(ValueError, match='expected "keep" or nothing'):
            await runtime.start(JOB, "go", key="job-1", on_close="end")
        with pytest.raises(ValueError, match="on_close: expected"):
            await runtime.cast(JOB, "go", on_close="never")  # type: ignore[arg-type]
        await runtime.invoke(JOB, "go", name="jobs", on_close="keep")
        await anyio.sleep(5)
    async with Runtime.open(url) as runtime:
        assert runtime.loom.state(entity.id) == "cancelled"
        assert runtime.interrupted() != []


@pytest.mark.rule("Y-04")
async def test_a_caller_of_work_with_a_key_is_told_that_the_runtime_closed(url: str) -> None:
    errors: list[Exception] = []
    async with anyio.create_task_group() as tasks, Runtime.open(url, cantrips=[JOB]) as runtime:

        async def cast() -> None:
            try:
                await runtime.cast(JOB, "go", key="job-1")
            except RuntimeClosed as error:
                errors.append(error)

        tasks.start_soon(cast)
        await anyio.sleep(5)
    assert len(errors) == 1
    async with Runtime.open(url, cantrips=[JOB]) as runtime:
        assert (await runtime.cast(JOB, "go", key="job-1")).result == "worked"


@pytest.mark.rule("Y-04")
async def test_work_without_a_key_ends_with_its_runtime(url: str) -> None:
    async with Runtime.open(url, cantrips=[JOB]) as runtime:
        entity = await runtime.start(JOB, "go")
        await anyio.sleep(5)
    async with Runtime.open(url) as runtime:
        assert runtime.loom.state(entity.id) == "cancelled"


@gate(idempotent=True)
async def wait() -> str:
    """Wait for long."""
    await anyio.sleep(60)
    return "waited"


def waiting(prompt: str) -> Cantrip:
    async def answer(context: tuple[Message, ...]) -> dict[str, object]:
        return say("wait") if context[-1].role == "user" else done(f"{context[0].content} {context[-1].content}")

    return Cantrip(scripted(answer), Call(prompt), Circle(["done", wait], [max_turns(5)]), name="desk")


@pytest.mark.rule("Y-05")
@pytest.mark.parametrize("kind", ["long-lived", "one-shot"])
async def test_a_retry_after_a_deploy_gets_the_answer_of_an_episode_that_the_deploy_interrupted(
    url: str, kind: str
) -> None:
    async def request(runtime: Runtime, cantrip: Cantrip) -> object:
        if kind == "one-shot":
            return (await runtime.cast(cantrip, "go", key="k1")).result
        return (await (await runtime.ensure("notes", cantrip)).send("go", key="k1")).result

    async with Runtime.open(url, cantrips=[waiting("Be polite.")], recover="resume") as runtime:
        with anyio.move_on_after(5):
            await request(runtime, waiting("Be polite."))
        await runtime.drain(1)
    async with Runtime.open(url, cantrips=[waiting("Be brief.")], recover="resume") as runtime:
        assert await request(runtime, waiting("Be brief.")) == "Be brief. waited"


@pytest.mark.rule("Y-05")
async def test_mail_waits_if_another_release_begins_an_episode_while_its_entity_is_being_loaded(url: str) -> None:
    old, new = waiting("Be polite."), waiting("Be brief.")
    answers: list[object] = []
    async with Runtime.open(url, cantrips=[old]) as runtime:
        entity_id = (await runtime.ensure("notes", old)).id

    async with Runtime.open(url, cantrips=[new]) as worker, anyio.create_task_group() as tasks:

        async def ask() -> None:
            answers.append((await (await worker.ensure("notes", new)).send("a later one")).result)

        async with worker._tree.launcher.lock(f"load {entity_id}"):
            tasks.start_soon(ask)
            while not worker._tree.launcher.lock(f"load {entity_id}").statistics().tasks_waiting:
                await anyio.sleep(0.01)
            async with Runtime.open(url, cantrips=[old], on_close="keep") as runtime:
                with anyio.move_on_after(5):
                    await (await runtime.ensure("notes", old)).send("go", key="k1")
        await anyio.sleep(5)
        assert answers == []
        async with Runtime.open(url, cantrips=[old], recover="resume") as runtime:
            assert (await (await runtime.ensure("notes", old)).send("go", key="k1")).result == "Be polite. waited"
    assert answers in (["Be polite. waited"], ["Be brief. waited"]), "by whichever release had the entity loaded"


@gate
async def pay() -> str:
    """Pay."""
    return "paid"


@gate(deferred=True)
async def build() -> str:
    """Build."""


def asking(prompt: str, gate_name: str) -> Cantrip:
    async def answer(context: tuple[Message, ...]) -> dict[str, object]:
        return say(gate_name) if context[-1].role == "user" else done(f"{context[0].content} {context[-1].content}")

    return Cantrip(scripted(answer), Call(prompt), Circle(["done", ask_first(pay), build], [max_turns(5)]), name="desk")


@pytest.mark.rule("Y-01", "V-24")
@pytest.mark.parametrize("store", ["jsonl", "sqlite"])
@pytest.mark.parametrize("is_decided_first", [True, False])
@pytest.mark.parametrize("gate_name", ["pay", "build"])
async def test_a_decision_after_a_deploy_continues_the_entity_that_the_new_release_ensures(
    tmp_path: Path, store: str, is_decided_first: bool, gate_name: str
) -> None:
    url = f"{store}:{tmp_path / 'loom'}"

    async def decide(runtime: Runtime) -> None:
        (request,) = runtime.requests()
        if gate_name == "pay":
            await runtime.decide(request.id, "allow", by="anna")
        else:
            await runtime.deliver(request.id, "built")

    async with Runtime.open(url, cantrips=[asking("Be polite.", gate_name)]) as runtime:
        notes = await runtime.ensure("notes", asking("Be polite.", gate_name))
        await notes.post("go", key="k1")
        await anyio.sleep(1)
    new = asking("Be brief.", gate_name)
    async with Runtime.open(url, cantrips=[new]) as runtime:
        if is_decided_first:
            await decide(runtime)
        await runtime.ensure("notes", new)
        await anyio.sleep(1)
        if not is_decided_first:
            await decide(runtime)
        episode = await runtime.receipt("notes", "k1").result(timeout=10)
    assert episode.result == f"Be brief. {'paid' if gate_name == 'pay' else 'built'}"


@pytest.mark.rule("Y-01", "Y-05")
async def test_a_decision_after_a_rolling_deploy_continues_the_entity_that_the_new_release_ensured(url: str) -> None:
    old, new = asking("Be polite.", "pay"), asking("Be brief.", "pay")
    async with Runtime.open(url, cantrips=[new]) as later:
        async with Runtime.open(url, cantrips=[old]) as runtime:
            await (await runtime.ensure("notes", old)).post("go", key="k1")
            await later.ensure("notes", new)
            await anyio.sleep(1)
        (request,) = later.requests()
        await later.decide(request.id, "allow", by="anna")
        episode = await later.receipt("notes", "k1").result(timeout=10)
    assert episode.result == "Be brief. paid"
