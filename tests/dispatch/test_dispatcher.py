"""Dispatches that run: from queued to an end, through approvals, blockers, checkpoints, refusals and crashes."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Call,
    Cantrip,
    EntityCrashed,
    Folding,
    GateCall,
    Here,
    Injected,
    Quarantined,
    Refused,
    Runtime,
    RuntimeClosed,
    ask_first,
    gate,
    scripted,
    wrap,
)
from cantrip_actors.dispatch import (
    Approved,
    Dispatcher,
    DispatchError,
    Dispatches,
    Folded,
    InvalidContract,
    Progressed,
    Record,
    Recovered,
    StatusChanged,
    TamperedRecord,
    draft,
)
from cantrip_actors.dispatch.companion import DispatchCompanion
from cantrip_actors.gates import write
from cantrip_actors.runtime.entity.recorder import StepRecorder
from cantrip_actors.wards import max_tokens, max_turns, remove_gate
from tests.dispatch.contracts import contract, terms
from tests.dispatch.entities import (
    DONE,
    FINISH,
    block,
    complete,
    errors,
    folder,
    in_order,
    kinds,
    progress,
    proof,
    say,
    seen,
    worker,
)


async def ran(tmp_path: Path, made: Any, **changed: Any) -> Any:
    """The record of one dispatch run with `made`, and its entity's turns."""
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        record = await dispatcher.dispatch(contract(**changed), author="ada")
        record = await dispatcher.run(record.id, made)
        return record, runtime.loom.turns(runtime.entity(record.id).id)


@pytest.mark.rule("F-02", "F-13")
async def test_a_dispatch_goes_from_queued_to_completed(tmp_path: Path) -> None:
    record, turns = await ran(tmp_path, worker([*FINISH]))
    assert (record.status, record.result, record.attempt) == ("completed", "all is done", 1)
    assert kinds(record) == ["contract", "status active", "progress", "progress", "progress", "status completed"]
    assert errors(turns) == []
    assert [entry.turn_id for entry in record.entries[2:]] == [turn.id for turn in turns[:4]]


@pytest.mark.rule("F-06", "INTENT-3")
async def test_the_entity_gets_the_contracts_intent_and_the_contract(tmp_path: Path) -> None:
    made = worker([*FINISH])
    record, _ = await ran(tmp_path, made, intent="Mend the search.")
    intent, briefing = [message.content for message in made.crystal.invocations[0]]
    assert intent == record.contract.intent == "Mend the search."
    assert record.contract.objective in briefing
    assert "set_status" in briefing


@pytest.mark.rule("F-01")
async def test_an_invalid_contract_is_refused_with_all_violations_and_no_log_is_written(tmp_path: Path) -> None:
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        wrong = terms(acceptance=[], tasks=[], repo="~/x")
        for stated in (wrong, draft(wrong)):
            with pytest.raises(InvalidContract) as refused:
                await dispatcher.dispatch(stated, author="ada")
            assert len(refused.value.violations) == 3
        assert dispatcher.log.ids() == ()
        assert list(runtime.loom.headers()) == []


class TestApproval:
    @pytest.mark.rule("F-16")
    async def test_a_gated_dispatch_starts_only_after_a_recorded_approval(self, tmp_path: Path) -> None:
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            asks = contract(needs_approval=True, decision_needed="Whether we want this at all.")
            record = await dispatcher.dispatch(asks, author="ada")
            made = worker([*FINISH])
            record = await dispatcher.run(record.id, made)
            assert record.status == "queued"
            assert list(runtime.loom.headers()) == []
            await dispatcher.approve(record.id, by="grace", note="go")
            record = await dispatcher.run(record.id, made)
        assert record.status == "completed"
        ((entry, event),) = record.of(Approved)
        assert (entry.author, entry.by, event.note) == ("grace", "human", "go")
        assert entry.ts

    @pytest.mark.rule("F-16")
    async def test_a_waiting_dispatch_starts_on_approval_by_any_process(self, tmp_path: Path) -> None:
        async with Runtime.open() as runtime:
            dispatcher, other = Dispatcher(runtime, folder(tmp_path)), Dispatcher(runtime, folder(tmp_path))
            asks = contract(needs_approval=True, decision_needed="Whether we want this at all.")
            record = await dispatcher.dispatch(asks, author="ada")
            found: list[Any] = []

            async def wait() -> None:
                found.append(await dispatcher.run(record.id, worker([*FINISH]), wait=True))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await anyio.sleep(60)
                assert found == []
                await other.approve(record.id, by="grace")
        assert found[0].status == "completed"

    @pytest.mark.rule("F-16")
    async def test_a_rejected_dispatch_does_not_run(self, tmp_path: Path) -> None:
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            await dispatcher.reject(record.id, "not now", by="grace")
            record = await dispatcher.run(record.id, worker([*FINISH]), wait=True)
        assert (record.status, record.reason) == ("rejected", "not now")
        assert record.entries[-1].author == "grace"

    @pytest.mark.rule("F-48")
    async def test_a_heartbeat_never_starts_a_gated_dispatch(self, tmp_path: Path) -> None:
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            free = await dispatcher.dispatch(contract(title="Free work of ours"), author="ada")
            asks = contract(title="Asks", needs_approval=True, decision_needed="Whether we want this.")
            held = await dispatcher.dispatch(asks, author="ada")
            await dispatcher.approve(held.id, by="grace")
            done = await dispatcher.heartbeat(lambda _: worker([*FINISH]))
            assert [one.id for one in done] == [free.id]
            assert (await dispatcher.log.read_soon(held.id)).status == "queued"

    @pytest.mark.parametrize("limit", [0, -1, 1.5, True])
    async def test_a_limit_that_lets_nothing_run_is_refused(self, tmp_path: Path, limit: Any) -> None:
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            await dispatcher.dispatch(contract(), author="ada")
            for run in (dispatcher.heartbeat, dispatcher.serve):
                with pytest.raises(ValueError, match="limit: expected a whole number"):
                    await run(worker([*FINISH]), limit=limit)

    async def test_a_dispatch_that_cannot_run_does_not_block_others(self, tmp_path: Path) -> None:
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            fine = await dispatcher.dispatch(contract(title="Fine work of ours"), author="ada")
            await dispatcher.dispatch(contract(title="Grants too much", gates=["deploy"]), author="ada")
            done = await dispatcher.heartbeat(lambda _: worker([{**FINISH[0], "delay": 5.0}, *FINISH[1:]]))
        assert [(one.id, one.status) for one in done] == [(fine.id, "completed")]


class TestBlocked:
    @pytest.mark.rule("F-13", "F-15")
    async def test_an_unblocked_dispatch_resumes_with_its_context(self, tmp_path: Path) -> None:
        made = worker(
            [progress("found the fault"), block(), DONE, progress("mended it"), proof(1), proof(2), complete(), DONE]
        )
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            record = await dispatcher.run(record.id, made)
            assert (record.status, record.blocker) == ("blocked", "the key is missing")
            assert (await dispatcher.run(record.id, made)).status == "blocked"
            await dispatcher.unblock(record.id, "the key is in the drawer", by="grace")
            record = await dispatcher.run(record.id, made)
            entity = runtime.entity(record.id)
            texts = [message.content for message in made.crystal.invocations[-1]]
        assert record.status == "completed"
        assert "Go on with your dispatch: the key is in the drawer" in texts
        assert len(made.crystal.invocations) == 8
        assert entity is not None
        assert kinds(record).count("status queued") == 1

    @pytest.mark.rule("F-13")
    async def test_an_unblocked_dispatch_moves_to_the_cantrip_that_it_is_run_with(self, tmp_path: Path) -> None:
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            await dispatcher.run(record.id, worker([progress("found the fault"), block(), DONE]))
            await dispatcher.unblock(record.id, "the key is in the drawer", by="grace")
            other = worker([progress("mended"), proof(1), proof(2), complete(), DONE], call=Call(system_prompt="Mend."))
            record = await dispatcher.run(record.id, other)
        assert record.status == "completed"
        assert other.crystal.invocations[0][0].content == "Mend."

    @pytest.mark.rule("V-38")
    @pytest.mark.parametrize("is_other", [False, True])
    async def test_a_dispatch_at_work_is_run_with_its_own_cantrip_and_refused_with_another(
        self, tmp_path: Path, is_other: bool
    ) -> None:
        @gate
        async def pay() -> str:
            """Pay."""
            return "paid"

        call = Call(system_prompt="Mend.")
        first = worker([progress(), say("pay"), *FINISH], ask_first(pay))
        second = worker([*FINISH], ask_first(pay), **({"call": call} if is_other else {}))
        records: list[Record] = []
        async with Runtime.open() as runtime, anyio.create_task_group() as tasks:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")

            async def run(cantrip: Cantrip) -> None:
                records.append(await dispatcher.run(record.id, cantrip))

            tasks.start_soon(run, first)
            await anyio.sleep(1)
            (request,) = runtime.requests()
            if is_other:
                with pytest.raises(DispatchError, match="is at work with another cantrip"):
                    await dispatcher.run(record.id, second)
            else:
                tasks.start_soon(run, second)
                await anyio.sleep(1)
            await runtime.decide(request.id, "allow", by="ada")
        assert [record.status for record in records] == ["completed"] * (1 if is_other else 2)
        assert second.crystal.invocations == []

    @pytest.mark.rule("F-13")
    async def test_a_dispatch_that_waits_for_a_person_waits_on_in_another_process(self, tmp_path: Path) -> None:
        @gate
        async def pay() -> str:
            """Pay."""
            return "paid"

        url, records = f"jsonl:{tmp_path}/loom.jsonl", list[Record]()
        made = worker(in_order(progress(), say("pay"), *FINISH), ask_first(pay))
        for is_last in (False, True):
            async with Runtime.open(url) as runtime, anyio.create_task_group() as tasks:
                dispatcher = Dispatcher(runtime, folder(tmp_path))
                if not is_last:
                    record = await dispatcher.dispatch(contract(), author="ada")

                async def run(dispatcher: Dispatcher, dispatch_id: str) -> None:
                    records.append(await dispatcher.run(dispatch_id, made))

                tasks.start_soon(run, dispatcher, record.id)
                await anyio.sleep(1)
                (request,) = runtime.requests()
                if is_last:
                    await runtime.decide(request.id, "allow", by="ada")
                else:
                    tasks.cancel_scope.cancel()
        assert [record.status for record in records] == ["completed"]

    @pytest.mark.rule("F-13")
    async def test_a_dispatch_resumes_in_another_process(self, tmp_path: Path) -> None:
        url = f"jsonl:{tmp_path}/loom.jsonl"
        async with Runtime.open(url) as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            await dispatcher.run(record.id, worker([progress("found the fault"), block(), DONE]))
            await dispatcher.unblock(record.id, "the key is in the drawer", by="grace")
        made = worker([progress("mended"), proof(1), proof(2), complete(), DONE])
        async with Runtime.open(url) as runtime:
            record = await Dispatcher(runtime, folder(tmp_path)).run(record.id, made)
        assert record.status == "completed"
        assert any("found the fault" in (message.content or "") for message in made.crystal.invocations[0])

    @pytest.mark.rule("F-13")
    async def test_a_dispatch_can_be_resumed_after_its_crystal_failed(self, tmp_path: Path) -> None:
        made = worker(
            [
                progress(),
                {"error": {"status": 401, "message": "no such key"}},
                proof(1),
                proof(2),
                progress(),
                complete(),
                DONE,
            ]
        )
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            record = await dispatcher.run(record.id, made)
            assert record.status == "blocked"
            assert "no such key" in record.blocker
            await dispatcher.unblock(record.id, "the key is renewed", by="grace")
            assert (await dispatcher.run(record.id, made)).status == "completed"


class TestStatus:
    @pytest.mark.rule("F-15")
    async def test_an_incomplete_status_is_refused(self, tmp_path: Path) -> None:
        made = worker(
            [complete(), block(" "), progress(), complete(), proof(1), complete(), proof(2), complete(), DONE]
        )
        record, turns = await ran(tmp_path, made)
        assert record.status == "completed"
        assert len(errors(turns)) == 4
        assert "write progress first" in errors(turns)[0]
        assert "evidence for each acceptance item; unproven: 2" in errors(turns)[3]

    @pytest.mark.rule("F-17", "F-05")
    async def test_an_entity_can_only_set_completed_or_blocked(self, tmp_path: Path) -> None:
        odd = [say("set_status", status=status) for status in ("done", "queued", "banana", "active")]
        record, turns = await ran(tmp_path, worker([*odd, *FINISH]))
        assert record.status == "completed"
        assert [gate for gate, is_error, _ in seen(turns) if is_error] == ["set_status"] * 4

    @pytest.mark.rule("F-25")
    async def test_a_ward_that_truncates_the_entity_fails_the_dispatch(self, tmp_path: Path) -> None:
        record, _ = await ran(tmp_path, worker([say("echo", text="x")] * 9, wards=[max_turns(3)]))
        assert record.status == "failed"
        assert "max_turns" in record.reason

    @pytest.mark.rule("F-25")
    async def test_a_spent_budget_fails_the_dispatch(self, tmp_path: Path) -> None:
        spends = {**say("echo", text="x"), "usage": {"prompt_tokens": 600, "completion_tokens": 1}}
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            record = await dispatcher.run(record.id, worker([spends] * 9, wards=[max_tokens(1000)]))
        assert record.status == "failed"
        assert "max_tokens" in record.reason


class TestExit:
    @pytest.mark.rule("F-13", "F-25")
    async def test_a_dispatch_fails_when_a_ward_ends_its_entity_before_it_is_active(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begins = DispatchCompanion.begins

        async def begin_late(self: DispatchCompanion, here: Any) -> str | None:
            await anyio.sleep(5)
            return await begins(self, here)

        monkeypatch.setattr(DispatchCompanion, "begins", begin_late)
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(wards=[{"timeout": 1}]), author="ada")
            record = await dispatcher.run(record.id, worker([*FINISH]))
        assert (record.status, kinds(record)) == ("failed", ["contract", "status active", "status failed"])
        assert "timeout(1)" in record.reason

    @pytest.mark.rule("F-21")
    async def test_the_third_done_without_a_final_status_blocks_the_dispatch(self, tmp_path: Path) -> None:
        record, turns = await ran(tmp_path, worker([DONE, DONE, DONE, DONE]))
        assert record.status == "blocked"
        assert record.blocker == "exit contract unmet"
        assert len(turns) == 3
        assert [is_error for _, is_error, _ in seen(turns)] == [True, True, False]
        assert kinds(record).count("done_refused") == 2

    @pytest.mark.rule("F-21")
    async def test_a_done_that_a_crash_repeats_is_refused_once_in_the_same_words(self, tmp_path: Path) -> None:
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            companion = DispatchCompanion(dispatcher.log, record.id, runtime.loom)
            await companion.start(Here("worker", record.id))
            done = GateCall("done", {}, "worker", "turn 1")
            first, *repeated = [await companion.may_end(done) for _ in range(4)]
            record = await companion.read()
        assert first is not None
        assert repeated == [first] * 3
        assert (record.status, record.refusals) == ("active", 1)

    @pytest.mark.rule("F-21", "LOOP-2")
    async def test_text_alone_does_not_end_a_dispatch(self, tmp_path: Path) -> None:
        record, _ = await ran(tmp_path, worker([{"content": "I am done."}, *FINISH]))
        assert record.status == "completed"


class TestCheckpoints:
    @pytest.mark.rule("F-18", "F-20", "F-27")
    @pytest.mark.parametrize(
        "refused", [say("write", path="x"), say("write", path="no", content="y"), say("writ", x=1)]
    )
    async def test_a_refused_call_makes_no_checkpoint_due_also_after_a_restart(
        self, tmp_path: Path, refused: dict[str, Any]
    ) -> None:
        def refuse(call: GateCall) -> Refused | None:
            return Refused("not this file") if call.args["path"] == "no" else None

        files, loom = tmp_path / "files", f"sqlite:{tmp_path / 'loom.db'}"
        files.mkdir()
        gates = (write.with_(root=files), wrap("write", pre=[refuse]))
        stop = (block(), DONE)
        async with Runtime.open(loom) as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            said = [progress(), refused, say("echo", text="a"), *stop]
            await dispatcher.run(record.id, worker(said, *gates))
        async with Runtime.open(loom) as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            await dispatcher.unblock(record.id, "go on", by="ada")
            ran_again = [say("echo", text="b"), say("write", path="x", content="y"), say("echo", text="c"), *FINISH]
            await dispatcher.run(record.id, worker(ran_again, *gates))
            observed = seen(runtime.loom.turns(runtime.loom.named(record.id) or ""))
        echoes = [(is_error, result) for gate, is_error, result in observed if gate == "echo"]
        assert echoes[:2] == [(False, "a"), (False, "b")]
        assert echoes[2][0]

    @pytest.mark.rule("F-18", "F-20")
    async def test_a_refused_call_of_an_idempotent_gate_makes_no_checkpoint_due(self, tmp_path: Path) -> None:
        ran_for: list[str] = []

        @gate(idempotent=True)
        async def deploy(place: str) -> str:
            ran_for.append(place)
            raise ValueError("after half of it")

        def refuse(call: GateCall) -> Refused | None:
            return Refused("not by day") if call.args["place"] == "live" else None

        made = worker(
            [
                say("deploy", place="live"),
                say("echo", text="a"),
                say("deploy", place="test"),
                say("echo", text="b"),
                *FINISH,
            ],
            deploy,
            wrap("deploy", pre=[refuse]),
        )
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path), effectful=["deploy"])
            record = await dispatcher.dispatch(contract(), author="ada")
            await dispatcher.run(record.id, made)
            observed = seen(runtime.loom.turns(runtime.entity(record.id).id))
        assert ran_for == ["test"]
        assert observed[:2] == [("deploy", True, "not by day"), ("echo", False, "a")]
        assert "checkpoint required (deploy had an effect)" in observed[3][2]

    @pytest.mark.rule("F-18", "F-27", "F-31")
    async def test_a_failed_effect_makes_a_checkpoint_due_also_after_a_restart(self, tmp_path: Path) -> None:
        @gate(name="deploy")
        async def deploy() -> str:
            raise ValueError("after half of it")

        loom = f"sqlite:{tmp_path / 'loom.db'}"
        async with Runtime.open(loom) as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path), effectful=["deploy"])
            record = await dispatcher.dispatch(contract(), author="ada")
            await dispatcher.run(record.id, worker([progress(), say("deploy"), block(), DONE], deploy))
        async with Runtime.open(loom) as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path), effectful=["deploy"])
            await dispatcher.unblock(record.id, "go on", by="ada")
            await dispatcher.run(record.id, worker([say("echo", text="b"), *FINISH], deploy))
            observed = seen(runtime.loom.turns(runtime.loom.named(record.id) or ""))
        assert "checkpoint required (deploy had an effect)" in next(
            text for name, _, text in observed if name == "echo"
        )

    @pytest.mark.rule("F-18", "F-20")
    async def test_after_an_effect_the_next_gate_is_refused_until_progress_is_written(self, tmp_path: Path) -> None:
        files = tmp_path / "files"
        files.mkdir()
        made = worker(
            [
                say("write", path="a.txt", content="1"),
                say("write", path="b.txt", content="2"),
                say("read_dispatch"),
                progress("wrote a"),
                say("write", path="b.txt", content="2"),
                *FINISH,
            ],
            write.with_(root=files),
        )
        record, turns = await ran(tmp_path, made)
        assert record.status == "completed"
        (refused,) = errors(turns)
        assert refused.startswith("checkpoint required (write had an effect)")
        assert sorted(path.name for path in files.iterdir()) == ["a.txt", "b.txt"]

    @pytest.mark.rule("F-18")
    async def test_reading_gates_make_a_checkpoint_due_after_exactly_30_calls(self, tmp_path: Path) -> None:
        looks = [say("echo", text=str(n)) for n in range(31)]
        record, turns = await ran(tmp_path, worker([*looks, *FINISH]))
        assert record.status == "completed"
        refused = [at for at, (_, is_error, _) in enumerate(seen(turns), 1) if is_error]
        assert refused == [31]

    @pytest.mark.rule("F-19")
    async def test_set_status_does_not_satisfy_a_checkpoint(self, tmp_path: Path) -> None:
        @gate
        async def commit() -> str:
            return "committed"

        made = worker([say("commit"), block(" "), say("echo", text="x"), *FINISH], commit)
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path), effectful=["commit"])
            record = await dispatcher.dispatch(contract(), author="ada")
            await dispatcher.run(record.id, made)
            refused = errors(runtime.loom.turns(runtime.entity(record.id).id))
        assert len(refused) == 2
        assert refused[1].startswith("checkpoint required (commit had an effect)")

    @pytest.mark.rule("F-22")
    async def test_an_ordinary_cast_has_no_checkpoints(self, tmp_path: Path) -> None:
        made = worker([say("echo", text=str(n)) for n in range(35)] + [DONE])
        async with Runtime.open() as runtime:
            Dispatcher(runtime, folder(tmp_path))
            episode = await runtime.cast(made, "go")
            (header,) = runtime.loom.headers()
        assert errors(episode.thread) == []
        assert len(made.crystal.invocations[0]) == 1
        assert all("wrapped" not in one for one in header.circle["gates"])
        assert not folder(tmp_path).exists()


class TestCrashes:
    @pytest.mark.rule("F-23", "F-27")
    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("at", range(2, 11))
    async def test_a_dispatch_resumes_with_one_recovery_after_a_crash_at_any_point(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, after: bool
    ) -> None:
        crash_at(monkeypatch, at=at, after=after)
        record, turns = await ran(tmp_path, worker(scripted(in_order(say("echo", text="x"), *FINISH))))
        assert record.status == "completed"
        assert kinds(record).count("recovery") == record.attempt - 1 <= 1
        assert [event.text for _, event in record.progress()] == [
            one["tool_calls"][0]["args"]["text"] for one in FINISH[:3]
        ]
        assert [text for text in errors(turns) if not text.startswith("outcome unknown")] == []

    @pytest.mark.rule("F-25")
    async def test_a_dispatch_that_crashes_repeatedly_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        crash_at(monkeypatch, at=3, after=False, times=99)
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            record = await dispatcher.run(record.id, worker([*FINISH]))
            (header,) = runtime.loom.headers()
            with pytest.raises(Quarantined):
                await runtime.entity(header.name).send("are you there?")
        assert record.status == "failed"
        assert "a bug" in record.reason
        assert record.attempt == 2

    @pytest.mark.rule("F-04")
    async def test_a_record_that_was_tampered_with_is_not_run(self, tmp_path: Path) -> None:
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            path = dispatcher.log.path(record.id)
            path.write_bytes(path.read_bytes().replace(b"search", b"sourch", 1))
            with pytest.raises(TamperedRecord):
                await dispatcher.run(record.id, worker([*FINISH]))
            assert list(runtime.loom.headers()) == []

    @pytest.mark.rule("F-04", "F-03")
    async def test_a_dispatch_whose_record_is_tampered_with_while_it_runs_stops(self, tmp_path: Path) -> None:
        @gate
        async def tamper() -> str:
            path = next(folder(tmp_path).glob("*.jsonl"))
            path.write_bytes(path.read_bytes().replace(b"search", b"sourch", 1))
            return "done"

        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            with pytest.raises((TamperedRecord, DispatchError)):
                await dispatcher.run(record.id, worker([say("tamper"), *FINISH], tamper))

    @pytest.mark.rule("F-26")
    async def test_the_next_process_finds_the_dispatches_of_an_ended_one(self, tmp_path: Path) -> None:
        url = f"jsonl:{tmp_path}/loom.jsonl"
        stuck = {**say("echo", text="x"), "delay": 10_000.0}
        ids: dict[str, str] = {}
        async with Runtime.open(url) as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            for name in ("Under way", "Not begun", "At its end"):
                ids[name] = (await dispatcher.dispatch(contract(title=name), author="ada")).id
            await dispatcher.run(ids["At its end"], worker([*FINISH]))
            with anyio.move_on_after(100):
                await dispatcher.run(ids["Under way"], worker([progress("half of it"), stuck]))
        async with Runtime.open(url) as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            statuses = {one.id: one.status for one in dispatcher.log.records()}
            assert statuses == {ids["Under way"]: "active", ids["Not begun"]: "queued", ids["At its end"]: "completed"}
            done = await dispatcher.heartbeat(
                lambda _: worker([progress("rest"), proof(1), proof(2), complete(), DONE])
            )
        assert {one.id: (one.status, one.attempt) for one in done} == {
            ids["Under way"]: ("completed", 2),
            ids["Not begun"]: ("completed", 1),
        }

    @pytest.mark.rule("F-14")
    async def test_two_entities_cannot_run_one_dispatch(self, tmp_path: Path) -> None:
        stuck = {**say("echo", text="x"), "delay": 100.0}
        async with Runtime.open() as one, Runtime.open() as other:
            dispatcher = Dispatcher(one, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(dispatcher.run, record.id, worker([stuck, *FINISH]))
                await anyio.sleep(1)
                made = staffed_for(Dispatcher(other, folder(tmp_path)), record)
                entity = await other.invoke(made, record.contract.intent, name=record.id)
                with pytest.raises(EntityCrashed, match="run by entity"):
                    await entity.episode()
            assert (await dispatcher.log.read_soon(record.id)).status == "completed"

    @pytest.mark.rule("F-14", "F-33")
    async def test_a_dispatcher_with_another_loom_needs_take_over(self, tmp_path: Path) -> None:
        stuck = {**progress("late"), "delay": 100.0}
        late: list[Any] = []
        async with Runtime.open() as one, Runtime.open() as other:
            dispatcher, second = Dispatcher(one, folder(tmp_path)), Dispatcher(other, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")

            async def run() -> None:
                late.append(await dispatcher.run(record.id, worker([stuck, DONE, DONE, DONE])))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await anyio.sleep(1)
                with pytest.raises(DispatchError, match="which is not in this loom"):
                    await second.run(record.id, worker([*FINISH]))
                record = await second.run(record.id, worker([*FINISH]), take_over=True)
            assert (record.status, record.attempt) == ("completed", 2)
            assert "late" not in [event.text for _, event in (await dispatcher.log.read_soon(record.id)).progress()]

    @pytest.mark.rule("F-33")
    async def test_a_late_writer_is_refused(self, tmp_path: Path) -> None:
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            record = await dispatcher.log.append_soon(
                record.id, StatusChanged("active"), by="worker", author="e1", token=7
            )
            await dispatcher.log.append_soon(
                record.id, Recovered("its lease ran out"), by="supervisor", author="r", token=8
            )
            await dispatcher.log.append_soon(record.id, StatusChanged("active"), by="worker", author="e1", token=8)
            with pytest.raises(DispatchError, match="lease 7 is over"):
                await dispatcher.log.append_soon(
                    record.id, Progressed("milestone", "late"), by="worker", author="e1", token=7
                )

    @pytest.mark.rule("F-24")
    async def test_an_interrupted_gate_is_not_run_again_and_the_entity_observes_it(self, tmp_path: Path) -> None:
        url, pressed = f"jsonl:{tmp_path}/loom.jsonl", []

        @gate
        async def press() -> str:
            pressed.append(1)
            await anyio.sleep(1000)
            return "pressed"

        async with Runtime.open(url) as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            with anyio.move_on_after(10):
                await dispatcher.run(record.id, worker([say("press")], press))
        async with Runtime.open(url) as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.run(record.id, worker([*FINISH], press))
            turns = runtime.loom.turns(runtime.entity(record.id).id)
        assert record.status == "completed"
        assert len(pressed) == 1
        assert errors(turns)[0].startswith("outcome unknown")


class TestFolds:
    @pytest.mark.rule("F-28", "F-12", "F-29")
    async def test_learned_facts_stay_visible_after_folds(self, tmp_path: Path) -> None:
        found = progress("the index is rebuilt at night", "discovery")
        failed = progress("deleting it did not help", "what_failed")
        made = worker(
            [found, failed, *(say("echo", text=str(n)) for n in range(8)), *FINISH], folding=Folding(3, keep_turns=1)
        )
        record, turns = await ran(tmp_path, made)
        assert record.status == "completed"
        assert len(turns) == 15
        last = [message.content or "" for message in made.crystal.invocations[-1]]
        assert last[0] == record.contract.intent
        assert last[1].startswith("[folded: turns 1-")
        for known in ("the index is rebuilt at night", "deleting it did not help", record.contract.objective):
            assert known in last[1]
        assert sum(text.startswith("[folded") for text in last) == 1
        folds = [event.last for _, event in record.of(Folded)]
        assert folds == sorted(set(folds))
        assert folds[-1] >= 10

    @pytest.mark.rule("F-31")
    async def test_a_checkpoint_that_is_due_stays_due(self, tmp_path: Path) -> None:
        @gate
        async def commit() -> str:
            return "committed"

        made = worker(
            [
                say("echo", text="a"),
                say("echo", text="b"),
                say("commit"),
                say("read_dispatch"),
                say("echo", text="c"),
                *FINISH,
            ],
            commit,
            folding=Folding(2, keep_turns=1),
        )
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path), effectful=["commit"])
            record = await dispatcher.dispatch(contract(), author="ada")
            record = await dispatcher.run(record.id, made)
            turns = runtime.loom.turns(runtime.entity(record.id).id)
        assert errors(turns)[0].startswith("checkpoint required (commit")
        assert record.status == "completed"

    @pytest.mark.rule("F-29")
    async def test_a_strict_dispatcher_requires_reading_the_contract_again_after_each_fold(
        self, tmp_path: Path
    ) -> None:
        made = worker(
            [say("echo", text="a"), say("echo", text="b"), say("echo", text="c"), say("echo", text="d"), *FINISH],
            folding=Folding(2, keep_turns=2),
        )
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path), strict=True)
            record = await dispatcher.dispatch(contract(), author="ada")
            record = await dispatcher.run(record.id, made)
            turns = runtime.loom.turns(runtime.entity(record.id).id)
        assert record.status == "completed"
        assert [text.split(":")[0] for text in errors(turns)] == ["older turns were just folded away"]


class TestBypasses:
    @pytest.mark.rule("F-45")
    async def test_the_write_gate_does_not_reach_the_dispatches(self, tmp_path: Path) -> None:
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            (tmp_path / "link").symlink_to(folder(tmp_path))
            ways = (
                f"dispatches/{record.id}.jsonl",
                f"./dispatches/../dispatches/{record.id}.jsonl",
                f"link/{record.id}.jsonl",
                str(dispatcher.log.path(record.id)),
                "dispatches/new.jsonl",
            )
            tries = [say("write", path=way, content="{}") for way in ways]
            made = worker(
                [step for one in tries for step in (one, progress("tried"))] + [*FINISH], write.with_(root=tmp_path)
            )
            record = await dispatcher.run(record.id, made)
            turns = runtime.loom.turns(runtime.entity(record.id).id)
        assert record.status == "completed"
        assert len(errors(turns)) == len(ways)
        assert dispatcher.log.ids() == (record.id,)

    @pytest.mark.rule("X-12", "F-45")
    async def test_no_argument_of_a_users_gate_leads_to_the_dispatches(self, tmp_path: Path) -> None:
        """A gate of a user's own that writes below a root takes paths of any length, in lists and in objects."""
        log = folder(tmp_path)
        touched: list[str] = []

        @gate
        async def save(files: list[dict[str, Any]], root: Injected[Path]) -> str:
            """Write files."""
            touched.extend(str(one) for one in files)
            return "saved"

        (tmp_path / "link").symlink_to(log)
        (log / "deep").mkdir(parents=True)
        (tmp_path / "inner").symlink_to(log / "deep")
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, log)
            record = await dispatcher.dispatch(contract(), author="ada")
            path = f"dispatches/{record.id}.jsonl"
            padded = [f"{'./' * ((length - len(path)) // 2)}{path}"[-length:] for length in (4095, 4096, 4097, 100_000)]
            ways = [
                *padded,
                path,
                f"\t/../{path}",
                f"\x07/../{path}",
                f"none/such/../../{path}",
                f"link/{record.id}.jsonl",
                f"link/../{path}",
                f"inner/../{record.id}.jsonl",
                str(dispatcher.log.path(record.id)),
                f"/proc/self/root{dispatcher.log.path(record.id)}",
                f"{path}.new",
                "dispatches/",
                "dispatches/deep/new",
            ]
            nested = (
                [[{"path": way}] for way in ways]
                + [[{way: 1}] for way in ways]
                + [[{"a": [{"b": [way]}]}] for way in ways]
            )
            tries = [say("save", files=one) for one in nested]
            made = worker(
                [step for one in tries for step in (one, progress("tried"))] + [*FINISH],
                save.with_(root=tmp_path),
                wards=[max_turns(200)],
            )
            record = await dispatcher.run(record.id, made)
            turns = runtime.loom.turns(runtime.entity(record.id).id)
        assert record.status == "completed"
        assert len(errors(turns)) == len(nested)
        assert touched == []
        assert dispatcher.log.ids() == (record.id,)

    @pytest.mark.rule("X-12")
    async def test_a_text_that_is_not_a_path_of_the_runtime_is_allowed(self, tmp_path: Path) -> None:
        saved: list[str] = []

        @gate
        async def save(text: str, root: Injected[Path]) -> str:
            """Write a text."""
            saved.append(text)
            return "saved"

        texts = [
            "",
            "a/b\0c",
            "x" * 100_000,
            "a/" * 50_000,
            "dispatched/x",
            "../" * 5000,
            "\ud800".encode("utf-8", "replace").decode(),
        ]
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            made = worker(
                [step for one in texts for step in (say("save", text=one), progress("saved"))] + [*FINISH],
                save.with_(root=tmp_path),
            )
            record = await dispatcher.run(record.id, made)
        assert record.status == "completed"
        assert saved == texts

    @pytest.mark.rule("X-12", "F-45")
    @pytest.mark.parametrize("length", [4095, 4096, 4097])
    async def test_a_forged_approval_is_refused_at_any_length(self, tmp_path: Path, length: int) -> None:
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            path = str(dispatcher.log.path(record.id))
            odd = "/" if (length - len(path)) % 2 else ""
            padded = f"{odd}{'/.' * ((length - len(path)) // 2)}{path}"
            assert len(padded) == length
            made = worker(
                [say("write", path=padded, content='{"kind":"approved"}'), progress("tried"), *FINISH],
                write.with_(root=tmp_path),
            )
            record = await dispatcher.run(record.id, made)
            turns = runtime.loom.turns(runtime.entity(record.id).id)
        assert record.status == "completed"
        assert len(errors(turns)) == 1

    @pytest.mark.rule("F-45")
    @pytest.mark.parametrize("medium", ["python", "javascript", "shell"])
    async def test_programs_reach_neither_the_folder_nor_the_log(self, tmp_path: Path, medium: str) -> None:
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")
            path = dispatcher.log.path(record.id)
            before = path.read_bytes()
            attempts = {
                "python": [f"open({str(path)!r}, 'a').write('x')", f"import os; os.remove({str(path)!r})"],
                "javascript": [f"require('fs').appendFileSync({str(path)!r}, 'x')", f"Deno.removeSync({str(path)!r})"],
                "shell": [f"echo x >> {path}", f"rm -f {path}; sed -i s/a/b/ {path}", f"cat {path}"],
            }[medium]
            made = worker([{"code": code} for code in attempts], wards=[max_turns(len(attempts))], medium=medium)
            record = await dispatcher.run(record.id, made)
            turns = runtime.loom.turns(runtime.entity(record.id).id)
        assert record.status == "failed"  # its turns were used up
        assert path.read_bytes().startswith(before)
        assert len(turns) == len(attempts)
        assert record.contract.objective not in "".join(turn.observation for turn in turns)

    @pytest.mark.rule("F-45", "F-03")
    async def test_a_direct_handle_can_append_nothing_that_the_rules_forbid(self, tmp_path: Path) -> None:
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(), author="ada")

            @gate
            async def sneak(call: GateCall) -> str:
                await dispatcher.log.append_soon(
                    record.id, Progressed("milestone", "forged"), by="worker", author=call.entity_id
                )
                return "ha"

            made = worker([say("sneak"), *FINISH], sneak)
            record = await dispatcher.run(record.id, made)
            turns = runtime.loom.turns(runtime.entity(record.id).id)
        assert "only its holder may write" in errors(turns)[0]
        assert "forged" not in [event.text for _, event in record.progress()]
        public = {name for name in dir(dispatcher.log) if not name.startswith("_")}
        assert public == {
            "append", "append_soon", "create", "create_soon", "folder", "heads", "ids", "path", "read", "read_soon",
            "records", "verify",
        }  # fmt: skip


class TestGrants:
    async def test_a_contract_grants_some_gates_and_makes_wards_stricter(self, tmp_path: Path) -> None:
        files = tmp_path / "files"
        files.mkdir()
        made = worker([say("write", path="x", content="y"), *FINISH], write.with_(root=files))
        record, turns = await ran(tmp_path, made, gates=["echo"], wards=[{"max_turns": 7}])
        assert record.status == "completed"
        assert errors(turns)[0].startswith("gate not available: write")

    async def test_a_contract_need_not_grant_a_gate_that_the_cantrip_removes(self, tmp_path: Path) -> None:
        made = worker([*FINISH], "fetch", wards=[max_turns(40), remove_gate("fetch")])
        record, _ = await ran(tmp_path, made, gates=["echo"])
        assert record.status == "completed"

    async def test_a_contract_cannot_grant_a_gate_that_the_cantrip_lacks(self, tmp_path: Path) -> None:
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            record = await dispatcher.dispatch(contract(gates=["deploy"]), author="ada")
            with pytest.raises(DispatchError, match="grants deploy, which the cantrip lacks"):
                await dispatcher.run(record.id, worker([*FINISH]))


async def test_a_dispatch_stays_active_when_its_runtime_closes(tmp_path: Path) -> None:
    url = f"jsonl:{tmp_path}/loom.jsonl"
    raised: list[BaseException] = []
    async with anyio.create_task_group() as tasks, Runtime.open(url) as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        record = await dispatcher.dispatch(contract(), author="ada")

        async def run() -> None:
            try:
                await dispatcher.run(record.id, worker([{**DONE, "delay": 100.0}]))
            except RuntimeClosed as error:
                raised.append(error)

        tasks.start_soon(run)
        await anyio.sleep(10)
    assert (await Dispatcher(runtime, folder(tmp_path)).log.read_soon(record.id)).status == "active"
    assert raised


async def test_serve_runs_dispatches_as_they_arrive_unless_their_outputs_overlap(tmp_path: Path) -> None:
    together: list[set[str]] = []
    running: set[str] = set()

    def made(of: Any) -> Any:
        @gate(name="work")
        async def work() -> str:
            running.add(of.title)
            together.append(set(running))
            await anyio.sleep(5)
            running.discard(of.title)
            return "ok"

        return worker([say("work"), *FINISH], work)

    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dispatcher.serve, made)
            for title, outputs in (("One", ["src/a.py"]), ("Two", ["src/b.py"]), ("Three", ["src"])):
                await dispatcher.dispatch(contract(title=title, outputs=outputs), author="ada")
            await anyio.sleep(60)
            statuses = {one.status for one in dispatcher.log.records()}
            tasks.cancel_scope.cancel()
    assert statuses == {"completed"}
    assert any(len(one) == 2 for one in together)
    assert not any("Three" in one and len(one) > 1 for one in together)


@pytest.mark.rule("F-46")
async def test_a_run_is_refused_while_another_dispatch_writes_the_same_outputs(tmp_path: Path) -> None:
    @gate(name="work")
    async def work() -> str:
        await anyio.sleep(5)
        return "ok"

    async with Runtime.open() as runtime:
        here, elsewhere = (Dispatcher(runtime, folder(tmp_path)) for _ in range(2))
        for name, outputs in (("one", ["src"]), ("two", ["src/a.py"]), ("three", ["lib"])):
            await here.dispatch(contract(dispatch_id=name, outputs=outputs), author="ada")
        refused: list[str] = []

        async def run(dispatcher: Dispatcher, name: str) -> None:
            try:
                await dispatcher.run(name, worker([say("work"), *FINISH], work))
            except DispatchError as error:
                refused.append(str(error))

        async with anyio.create_task_group() as tasks:
            for name in ("one", "two", "three"):  # at the same time, before any of them is active
                tasks.start_soon(run, here, name)
            await anyio.sleep(2)
            (left,) = [one.id for one in here.log.records() if one.status == "queued"]
            tasks.start_soon(run, elsewhere, left)
        assert len(refused) == 2
        assert all(f"{left} cannot start while" in text and "/srv/notes/src/a.py" in text for text in refused)
        await run(elsewhere, left)
        assert {one.status for one in here.log.records()} == {"completed"}


@pytest.mark.rule("F-46")
async def test_a_worker_may_write_the_outputs_of_its_orchestrator(tmp_path: Path) -> None:
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        handed = terms(dispatch_id="worker", outputs=["src/a.py"])
        boss = worker([say("dispatch", contract=handed), *FINISH], *dispatcher.gates(worker([*FINISH])))
        await dispatcher.dispatch(contract(dispatch_id="boss", role="orchestrator", outputs=["src"]), author="ada")
        assert (await dispatcher.run("boss", boss)).status == "completed"
        assert dispatcher.log.read("worker").status == "completed"


def crash_at(monkeypatch: pytest.MonkeyPatch, *, at: int, after: bool, times: int = 1) -> None:
    """Have the entity's actor crash at its so-manieth step, before or after that is recorded."""
    carry, counted = StepRecorder.record_step, iter(range(1, 10_000))

    async def crashing(self: StepRecorder, step: Any, moment: Any) -> Any:
        now = at <= next(counted) < at + times
        if now and not after:
            raise RuntimeError("a bug")
        action = await carry(self, step, moment)
        if now:
            raise RuntimeError("a bug")
        return action

    monkeypatch.setattr(StepRecorder, "record_step", crashing)


def staffed_for(dispatcher: Dispatcher, record: Any, base: Cantrip | None = None) -> Any:
    """What another dispatcher would run the dispatch with."""
    from cantrip_actors.dispatch.companion import DispatchCompanion
    from cantrip_actors.dispatch.worker_cantrip import make_worker_cantrip

    companion = DispatchCompanion(dispatcher.log, record.id, dispatcher._runtime.loom)
    return make_worker_cantrip(base or worker(scripted([*FINISH])), record.contract, companion)


async def test_a_worker_has_all_of_its_cantrip_but_the_circle(tmp_path: Path) -> None:
    base = worker([*FINISH], name="mender", needs={"disk": "nfs1"}, description="It mends.")
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        cantrip = staffed_for(dispatcher, await dispatcher.dispatch(contract(), author="ada"), base)
    assert (cantrip.name, cantrip.needs, cantrip.description) == ("mender", {"disk": "nfs1"}, "It mends.")


@pytest.mark.rule("C-50")
async def test_an_ended_dispatch_is_forgotten_with_its_entity(tmp_path: Path) -> None:
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        record = await dispatcher.dispatch(contract(), author="ada")
        with pytest.raises(DispatchError, match="is queued, and is not forgotten: let it end first"):
            await dispatcher.forget(record.id)
        await dispatcher.run(record.id, worker([*FINISH]))
        forgotten = await dispatcher.forget(record.id, by="ada")
        assert forgotten is not None
        assert [runtime.loom.is_forgotten(one) for one in forgotten.entities] == [True]
        assert dispatcher.log.ids() == ()
        assert not dispatcher.log.path(record.id).exists()


@pytest.mark.rule("C-50")
async def test_no_process_keeps_a_forgotten_dispatch_in_memory_and_its_id_is_free(tmp_path: Path) -> None:
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        other = Dispatches(folder(tmp_path))
        for objective in ("the first thing", "another thing"):
            record = await dispatcher.dispatch(contract(objective=objective), author="ada")
            assert record.contract.objective == objective
            await dispatcher.run(record.id, worker([*FINISH]))
            assert other.read(record.id).status == "completed"
            await dispatcher.forget(record.id)
            assert other.ids() == ()
            assert (dispatcher.log._logs, other._logs) == ({}, {})


async def slowly(context: Any) -> dict[str, Any]:
    """Finish a dispatch in a hundred seconds."""
    return {**in_order(*FINISH)(context), "delay": 20.0}


@pytest.mark.rule("F-13", "F-25")
@pytest.mark.parametrize(("how", "status"), [("stop", "failed"), ("interrupt", "blocked")])
async def test_a_dispatch_whose_entity_was_stopped_fails_and_one_that_was_interrupted_is_blocked(
    tmp_path: Path, how: str, status: str
) -> None:
    records: list[Record] = []
    async with Runtime.open() as runtime, anyio.create_task_group() as tasks:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        record = await dispatcher.dispatch(contract(), author="ada")

        async def run() -> None:
            records.append(await dispatcher.run(record.id, worker([{**DONE, "delay": 100.0}])))

        tasks.start_soon(run)
        await anyio.sleep(10)
        entity = runtime.entity(record.id)
        assert entity is not None
        await getattr(entity, how)("enough")
    assert [record.status for record in records] == [status]


class TestSecondProcess:
    """Two runtimes stand for two processes: they share a loom and the folder of the dispatches."""

    @pytest.mark.parametrize("dies", [False, True])
    async def test_a_second_run_waits_for_the_first_process_and_resumes_the_dispatch_if_that_dies(
        self, tmp_path: Path, dies: bool
    ) -> None:
        loom, made, records = f"sqlite:{tmp_path / 'loom.db'}", worker(slowly), list[Record]()
        async with Runtime.open(loom) as two, anyio.create_task_group() as tasks:
            second = Dispatcher(two, folder(tmp_path))
            record = await second.dispatch(contract(), author="ada")

            async def run_again() -> None:
                records.append(await second.run(record.id, made))

            async with Runtime.open(loom) as one, anyio.create_task_group() as first:
                first.start_soon(Dispatcher(one, folder(tmp_path)).run, record.id, made)
                await anyio.sleep(50)
                tasks.start_soon(run_again)
                await anyio.sleep(20 if dies else 100)
                assert len(records) == (0 if dies else 1)
                first.cancel_scope.cancel()
        assert [(record.status, record.attempt) for record in records] == [("completed", 2 if dies else 1)]

    async def test_the_second_process_serves_other_dispatches_than_the_first(self, tmp_path: Path) -> None:
        loom, made = f"sqlite:{tmp_path / 'loom.db'}", worker(slowly)
        async with Runtime.open(loom) as one, Runtime.open(loom) as two, anyio.create_task_group() as tasks:
            first, second = Dispatcher(one, folder(tmp_path)), Dispatcher(two, folder(tmp_path))
            records = [await first.dispatch(contract(dispatch_id=f"number-{n}"), author="ada") for n in range(2)]
            tasks.start_soon(lambda: first.serve(made, limit=1))
            await anyio.sleep(20)
            tasks.start_soon(lambda: second.serve(made, limit=1))
            await anyio.sleep(140)
            assert [first.log.read(record.id).status for record in records] == ["completed", "completed"]
            tasks.cancel_scope.cancel()
