"""Dispatches that wait for a human are requests of the runtime, and are decided there or by the dispatcher."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import AlreadyDecided, InvalidDecision, Request, Runtime, UnknownRequest
from cantrip_actors.dispatch import (
    Approved,
    Dispatcher,
    EventRefused,
    PhaseApproved,
    PhaseFailed,
    Record,
    StatusChanged,
)
from tests.dispatch.contracts import contract
from tests.dispatch.entities import DONE, FINISH, block, folder, progress, worker

pytestmark = pytest.mark.rule("C-24")

APPROVAL = {"needs_approval": "yes", "decision_needed": "whether the search may change"}


async def waiting(runtime: Runtime, tmp_path: Path, **changed: Any) -> tuple[Dispatcher, Record, Request]:
    """Return a dispatcher, a dispatch that waits for approval, and its request."""
    dispatcher = Dispatcher(runtime, folder(tmp_path))
    record = await dispatcher.dispatch(contract(**(APPROVAL | changed)), author="ada")
    (request,) = runtime.requests()
    return dispatcher, record, request


async def test_a_queued_dispatch_that_needs_approval_is_a_request_without_an_entity(tmp_path: Path) -> None:
    async with Runtime.open() as runtime:
        _, record, request = await waiting(runtime, tmp_path)
    assert (request.id, request.kind) == (f"dispatch:{record.id}", "dispatch")
    assert (request.entity, request.turn, request.call, request.schema, request.expires_at) == (None,) * 5
    assert request.text == "approval: whether the search may change"
    assert request.args["title"] == "Mend the search"
    assert request.asked_at == record.entries[0].ts


async def test_allow_approves_and_a_waiting_run_starts(tmp_path: Path) -> None:
    async with Runtime.open() as runtime, anyio.create_task_group() as tasks:
        dispatcher, record, request = await waiting(runtime, tmp_path)
        ended: list[Record] = []

        async def run() -> None:
            ended.append(await dispatcher.run(record.id, worker([*FINISH]), wait=True))

        tasks.start_soon(run)
        await anyio.sleep(5)
        assert ended == []
        await runtime.decide(request.id, "allow", by="anna", note="go on")
        assert runtime.requests() == []
    (entry, event), *_ = ended[0].of(Approved)
    assert (entry.by, entry.author, event.note) == ("human", "anna", "go on")
    assert ended[0].status == "completed"


@pytest.mark.rule("V-38")
@pytest.mark.parametrize("by", ["", " "])
async def test_a_decision_without_a_name_is_refused_at_every_door(tmp_path: Path, by: str) -> None:
    async with Runtime.open() as runtime:
        dispatcher, record, request = await waiting(runtime, tmp_path)
        for decision in ("allow", "deny"):
            with pytest.raises(InvalidDecision, match="by: expected the name of the person or program that decides"):
                await runtime.decide(request.id, decision, by=by)
        for decide in (dispatcher.approve(record.id, by=by), dispatcher.reject(record.id, "no", by=by)):
            with pytest.raises(EventRefused, match="author is empty"):
                await decide
        assert runtime.requests() == [request]


async def test_deny_rejects_with_the_note_as_the_reason(tmp_path: Path) -> None:
    async with Runtime.open() as runtime:
        dispatcher, record, request = await waiting(runtime, tmp_path)
        await runtime.decide(request.id, "deny", by="anna", note="another one does it")
        rejected = dispatcher.log.read(record.id)
        assert runtime.requests() == []
    assert (rejected.status, rejected.reason, rejected.entries[-1].author) == (
        "rejected",
        "another one does it",
        "anna",
    )


async def test_the_first_decision_counts_even_if_the_dispatcher_made_it(tmp_path: Path) -> None:
    async with Runtime.open() as runtime:
        dispatcher, record, request = await waiting(runtime, tmp_path)
        await dispatcher.approve(record.id, by="ben", note="fine")
        with pytest.raises(AlreadyDecided) as decided:
            await runtime.decide(request.id, "deny", by="anna")
        assert len(dispatcher.log.read(record.id).of(Approved)) == 1
    assert (decided.value.decision, decided.value.by, decided.value.note) == ("allow", "ben", "fine")


async def test_one_of_two_concurrent_decisions_counts(tmp_path: Path) -> None:
    async with Runtime.open() as runtime:
        dispatcher, record, request = await waiting(runtime, tmp_path)
        refused: list[AlreadyDecided] = []

        async def decide(by: str) -> None:
            try:
                await runtime.decide(request.id, "allow", by=by)
            except AlreadyDecided as error:
                refused.append(error)

        async with anyio.create_task_group() as tasks:
            for n in range(8):
                tasks.start_soon(decide, f"person {n}")
        ((entry, _),) = dispatcher.log.read(record.id).of(Approved)
    assert [error.by for error in refused] == [entry.author] * 7


async def test_a_dispatch_that_waits_for_no_decision_or_does_not_exist_is_unknown(tmp_path: Path) -> None:
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        record = await dispatcher.dispatch(contract(), author="ada")
        assert runtime.requests() == []
        with pytest.raises(UnknownRequest, match="it waits for no decision"):
            await runtime.decide(f"dispatch:{record.id}", "allow")
        with pytest.raises(UnknownRequest):
            await runtime.decide("dispatch:nothing", "allow")


@pytest.mark.parametrize(
    "decision", [{"answer": 5}, {"decision": "allow", "args": {}}, {"decision": "allow", "remember": "entity"}]
)
async def test_a_decision_that_does_not_fit_is_refused(tmp_path: Path, decision: dict[str, Any]) -> None:
    async with Runtime.open() as runtime:
        _, _, request = await waiting(runtime, tmp_path)
        with pytest.raises(InvalidDecision, match="allow"):
            await runtime.decide(request.id, **decision)
        assert [one.id for one in runtime.requests()] == [request.id]


async def test_a_blocked_dispatch_is_a_request_of_its_entity_and_allow_queues_it(tmp_path: Path) -> None:
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        record = await dispatcher.dispatch(contract(), author="ada")
        steps = [progress(), block("the key is missing"), DONE, *FINISH]
        made = worker(steps)
        assert (await dispatcher.run(record.id, made)).status == "blocked"
        (request,) = runtime.requests()
        entity = runtime.entity(record.id)
        assert entity is not None
        assert (request.entity, request.text) == (entity.id, "the key is missing")
        await runtime.decide(request.id, "allow", by="anna", note="it is in the vault")
        assert (await dispatcher.run(record.id, made)).status == "completed"


async def test_a_feed_has_the_dispatches_of_this_and_other_processes(tmp_path: Path) -> None:
    async with Runtime.open() as runtime:
        _, record, _ = await waiting(runtime, tmp_path)
        async with runtime.requests(follow=True) as feed:
            assert (await anext(feed)).id == f"dispatch:{record.id}"
            other = Dispatcher(Runtime.open(), folder(tmp_path))  # as another process that writes to the folder
            second = await other.dispatch(contract(**APPROVAL, title="Mend the index"), author="ada")
            assert (await anext(feed)).id == f"dispatch:{second.id}"


async def test_two_dispatchers_of_one_folder_list_a_dispatch_once(tmp_path: Path) -> None:
    async with Runtime.open() as runtime:
        await waiting(runtime, tmp_path)
        Dispatcher(runtime, folder(tmp_path))
        assert len(runtime.requests()) == 1


async def test_secrets_in_a_dispatch_are_not_in_its_request(tmp_path: Path) -> None:
    async with Runtime.open(secrets=["whether the search"]) as runtime:
        _, _, request = await waiting(runtime, tmp_path)
    assert request.text == "approval: [redacted:secret] may change"


async def test_a_phase_that_waits_for_a_human_is_a_request_and_allow_passes_it(tmp_path: Path) -> None:
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        record = await dispatcher.dispatch(contract(depth="minimal"), author="ada")
        dispatcher.log.append(record.id, StatusChanged("active"), by="worker", author="entity 1", token=1)
        stalled = [PhaseFailed("debug", ("root_cause",)) for _ in range(5)]  # past the cap of attempts
        dispatcher.log.append(record.id, *stalled, by="worker", author="entity 1", token=1)
        (request,) = runtime.requests()
        assert request.entity == "entity 1"
        assert "debug" in request.text
        await runtime.decide(request.id, "allow", by="anna", note="it is known")
        allowed = dispatcher.log.read(record.id)
        assert runtime.requests() == []
    ((entry, event),) = allowed.of(PhaseApproved)
    assert (allowed.status, entry.author, event.note) == ("queued", "anna", "it is known")
