"""Orchestrators: gates that hand dispatches out to workers, and what comes back."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, Folding, Runtime, gate, scripted, wrap
from cantrip_actors.dispatch import Dispatcher, disjoint_outputs
from cantrip_actors.wards import max_turns
from tests.dispatch.contracts import contract, terms
from tests.dispatch.entities import DONE, FINISH, block, errors, folder, in_order, kinds, progress, say, seen, worker
from tests.exhaustive import EXHAUSTIVE

DISPATCHES = 100 if EXHAUSTIVE else 25


def orchestrator(dispatcher: Dispatcher, made: Any, *said: Any, **parts: Any) -> Cantrip:
    circle = Circle(["done", "echo", *dispatcher.gates(made)], [max_turns(30)])
    return Cantrip(scripted([*said]), circle=circle, **parts)


def result(turns: Any, at: int = 0) -> Any:
    return seen(turns)[at][2]


@pytest.mark.rule("F-02", "COMP-8")
async def test_an_orchestrator_dispatches_a_contract_and_gets_the_result(tmp_path: Path) -> None:
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        made = orchestrator(dispatcher, worker([*FINISH]), say("dispatch", contract=terms(dispatch_id="d1")), DONE)
        episode = await runtime.cast(made, "see to it")
        (record,) = dispatcher.log.records()
    assert result(episode.thread) == {"dispatch": "d1", "status": "completed", "result": "all is done"}
    assert record.contract.parent_entity_id == episode.entity_id
    assert record.contract.spawned_by == episode.thread[0].id
    assert record.entries[0].author == episode.entity_id


@pytest.mark.rule("F-01")
async def test_an_invalid_contract_is_one_observation_with_every_mistake_and_no_log_is_written(tmp_path: Path) -> None:
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        bad = terms(acceptance=[], background="short", sources=[{"path": "../x", "description": "y"}])
        episode = await runtime.cast(
            orchestrator(dispatcher, worker([*FINISH]), say("dispatch", contract=bad), DONE), "go"
        )
        assert dispatcher.log.ids() == ()
        assert len(list(runtime.loom.headers())) == 1
    (told,) = errors(episode.thread)
    assert told.startswith("nothing was dispatched; mend the contract:")
    assert told.count("\n- ") == 3


@pytest.mark.rule("F-25", "COMP-8", "D-011")
async def test_a_failed_worker_is_an_error_observation_and_its_orchestrator_continues(tmp_path: Path) -> None:
    loops = worker([say("echo", text="x")] * 9, wards=[max_turns(2)])
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        episode = await runtime.cast(orchestrator(dispatcher, loops, say("dispatch", contract=terms()), DONE), "go")
    assert episode.result == "ok"
    assert "failed: truncated: " in errors(episode.thread)[0]


@pytest.mark.rule("F-13")
async def test_a_blocked_worker_is_a_result_and_can_be_unblocked(tmp_path: Path) -> None:
    made = worker([progress(), block("which index?"), DONE, *FINISH])
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        said = (
            say("dispatch", contract=terms(dispatch_id="d1")),
            say("unblock", dispatch_id="d1", note="the small one"),
            DONE,
        )
        episode = await runtime.cast(orchestrator(dispatcher, made, *said), "go")
        record = await dispatcher.log.read_soon("d1")
    assert result(episode.thread) == {"dispatch": "d1", "status": "blocked", "blocker": "which index?"}
    assert result(episode.thread, 1)["status"] == "completed"
    assert kinds(record).count("unblock") == 1


@pytest.mark.rule("F-16")
async def test_a_gated_contract_is_dispatched_and_waits_for_a_human(tmp_path: Path) -> None:
    asks = terms(dispatch_id="d1", needs_approval="yes", decision_needed="whether to do this at all")
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        episode = await runtime.cast(
            orchestrator(dispatcher, worker([*FINISH]), say("dispatch", contract=asks), DONE), "go"
        )
        assert len(list(runtime.loom.headers())) == 1
    assert result(episode.thread) == {
        "dispatch": "d1",
        "status": "queued",
        "waits_for": "approval: whether to do this at all",
    }


@pytest.mark.rule("F-46")
async def test_a_batch_runs_at_once_unless_outputs_overlap(tmp_path: Path) -> None:
    at_once: list[int] = []
    running = 0

    @gate
    async def work() -> str:
        nonlocal running
        running += 1
        at_once.append(running)
        await anyio.sleep(5)
        running -= 1
        return "ok"

    def batch(*paths: str) -> Any:
        contracts = [terms(dispatch_id=f"d{n}-{len(paths)}", outputs=[path]) for n, path in enumerate(paths)]
        return say("dispatch_batch", contracts=contracts)

    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        made = orchestrator(
            dispatcher,
            lambda _: worker([say("work"), *FINISH], work),
            batch("src", "src/a.py"),
            batch("a.py", "b.py", "c.py"),
            DONE,
        )
        episode = await runtime.cast(made, "go")
        assert dispatcher.log.ids() == ("d0-3", "d1-3", "d2-3")
    assert "both declare /srv/notes/src/a.py as output" in errors(episode.thread)[0]
    assert [one["status"] for one in result(episode.thread, 1)] == ["completed"] * 3
    assert max(at_once) == 3


@pytest.mark.rule("F-02", "F-46")
async def test_a_contract_with_the_id_of_another_one_is_refused_also_in_one_turn(tmp_path: Path) -> None:
    first, second = (terms(dispatch_id="d1", objective=f"the {number} thing to do") for number in ("first", "second"))
    both = [call for one in (first, second) for call in say("dispatch", contract=one)["tool_calls"]]
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        said = (say("dispatch_batch", contracts=[first, second]), {"tool_calls": both}, DONE)
        episode = await runtime.cast(orchestrator(dispatcher, worker([*FINISH]), *said), "go")
        (record,) = dispatcher.log.records()
    assert record.contract.objective == "the first thing to do"
    batch, single = errors(episode.thread)
    assert batch == "2 contracts have the dispatch_id d1: give each an id of its own"
    assert single.endswith("there is a dispatch d1 already: give yours another dispatch_id")


@pytest.mark.rule("COMP-8")
async def test_an_impossible_dispatch_of_a_batch_is_an_error_and_the_others_run(tmp_path: Path) -> None:
    contracts = [terms(dispatch_id="d1"), terms(dispatch_id="d2", gates=["deploy"])]
    slow = [{**FINISH[0], "delay": 5.0}, *FINISH[1:]]
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        made = orchestrator(dispatcher, lambda _: worker(slow), say("dispatch_batch", contracts=contracts), DONE)
        first, second = result((await runtime.cast(made, "go")).thread)
    assert first["status"] == "completed"
    assert second["is_error"]
    assert "grants deploy" in second["error"]


@pytest.mark.rule("F-46")
async def test_children_of_one_batch_may_not_declare_the_same_outputs(tmp_path: Path) -> None:
    circle = Circle(["done", "call_agent_batch", wrap("call_agent_batch", pre=[disjoint_outputs])], [max_turns(5)])

    def asking(*paths: str) -> Any:
        return say("call_agent_batch", intents=[{"intent": "x", "context": {"outputs": [path]}} for path in paths])

    made = Cantrip(scripted([asking("a", "a"), asking("a", "b"), DONE]), circle=circle, child_crystal=scripted([DONE]))
    async with Runtime.open() as runtime:
        episode = await runtime.cast(made, "go")
    assert errors(episode.thread) == ["requests 1 and 2 both write a: ask for them one after the other"]
    assert len(episode.thread[1].children) == 2


@pytest.mark.rule("F-46")
@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        (["src"], ["src/a.py"], "both write src/a.py"),
        (["./src/a.py"], ["src/b.py", "lib/../src/a.py"], "both write src/a.py"),
        ("src/a.py", "/src/", "both write src/a.py"),
        (["."], ["src/a.py"], "both write src/a.py"),
        ("src/a.py", "src/b.py", ""),
        ({"a": 1}, None, "outputs of request 1: expected a list of texts"),
    ],
)
async def test_children_of_one_batch_may_not_write_into_each_others_folders(one: Any, other: Any, why: str) -> None:
    circle = Circle(["done", "call_agent_batch", wrap("call_agent_batch", pre=[disjoint_outputs])], [max_turns(5)])
    intents = [{"intent": "x", "context": {"outputs": outputs}} for outputs in (one, other)]
    said = [say("call_agent_batch", intents=intents), DONE]
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(scripted(said), circle=circle, child_crystal=scripted([DONE])), "go")
    refused = errors(episode.thread)
    assert len(refused) == bool(why)
    assert all(why in text for text in refused)
    assert len(episode.thread[0].children) == (0 if why else 2)


@pytest.mark.rule("F-30")
async def test_after_a_fold_an_orchestrator_sees_its_running_workers_and_a_worker_only_its_own(tmp_path: Path) -> None:
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        blocked = worker([progress(), block("which index?"), DONE])
        inner = orchestrator(
            dispatcher,
            blocked,
            say("dispatch", contract=terms(dispatch_id="child")),
            progress("handed it out"),
            *(say("echo", text=str(n)) for n in range(4)),
            *FINISH,
            folding=Folding(2, keep_turns=1),
        )
        record = await dispatcher.dispatch(contract(dispatch_id="whole", role="orchestrator"), author="ada")
        record = await dispatcher.run(record.id, inner)
        shown = inner.crystal.invocations[-1][1].content
        other = worker([*(say("echo", text=str(n)) for n in range(4)), *FINISH], folding=Folding(2, keep_turns=1))
        record = await dispatcher.dispatch(contract(dispatch_id="other"), author="ada")
        await dispatcher.run(record.id, other)
    assert "Your dispatches under way" in shown
    assert "which index?" in shown
    assert "Your dispatches" not in other.crystal.invocations[-1][1].content


@pytest.mark.rule("F-23")
async def test_a_crash_while_an_orchestrator_waits_dispatches_nothing_twice(tmp_path: Path) -> None:
    url = f"jsonl:{tmp_path}/loom.jsonl"
    slow = worker([{**progress(), "delay": 100.0}, *FINISH])
    said = (say("dispatch", contract=terms(dispatch_id="d1")), DONE)
    async with Runtime.open(url) as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        with anyio.move_on_after(10):
            await runtime.invoke(orchestrator(dispatcher, slow, *said), "go", name="boss")
            await anyio.sleep_forever()
    async with Runtime.open(url) as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        made = orchestrator(dispatcher, worker([*FINISH]), DONE)
        entity = await runtime.resume(runtime.entity("boss").id, cantrip=made)
        episode = await entity.episode()
        (record,) = dispatcher.log.records()
    assert result(episode.thread)["status"] == "completed"
    assert (record.status, record.attempt) == ("completed", 2)


@pytest.mark.rule("F-32", "F-34")
async def test_many_dispatches_leave_no_lease_and_no_file_but_their_logs(tmp_path: Path) -> None:
    async with Runtime.open(f"sqlite:{tmp_path}/loom.db") as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        for n in range(DISPATCHES):
            await dispatcher.dispatch(contract(dispatch_id=f"d{n}"), author="ada")
        done = await dispatcher.heartbeat(lambda _: worker([*FINISH]), limit=20)
        assert {one.status for one in done} == {"completed"}
        ids = [runtime.entity(one.id) for one in done]
        for entity in ids:
            await entity.stop()
    with closing(sqlite3.connect(tmp_path / "loom.db")) as database, database:
        held = database.execute("select count(*) from leases").fetchone()
    assert held == (0,)
    assert {path.suffix for path in folder(tmp_path).iterdir()} == {".jsonl"}
    assert len(done) == DISPATCHES


async def test_an_orchestrator_that_is_resumed_waits_for_a_worker_that_another_process_has_resumed(
    tmp_path: Path,
) -> None:
    async def slowly(context: Any) -> dict[str, Any]:
        return {**in_order(*FINISH)(context), "delay": 20.0}

    loom, slow = f"sqlite:{tmp_path / 'loom.db'}", worker(slowly)
    async with Runtime.open(loom) as runtime:
        said = say("dispatch", contract=terms(dispatch_id="d1")), DONE
        boss = await runtime.invoke(orchestrator(Dispatcher(runtime, folder(tmp_path)), slow, *said), "go", name="boss")
        await anyio.sleep(30)
    async with Runtime.open(loom) as two, Runtime.open(loom) as three, anyio.create_task_group() as tasks:
        server, dispatcher = Dispatcher(two, folder(tmp_path)), Dispatcher(three, folder(tmp_path))
        tasks.start_soon(server.serve, slow)
        await anyio.sleep(20)
        boss = await three.resume(boss.id, cantrip=orchestrator(dispatcher, slow, DONE))
        with anyio.fail_after(200):
            episode = await boss.episode()
        assert result(episode.thread) == {"dispatch": "d1", "status": "completed", "result": "all is done"}
        tasks.cancel_scope.cancel()
