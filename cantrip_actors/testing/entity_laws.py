"""The laws of `EntityMachine`: they hold for every entity, whatever its model answers and whenever its process dies.

A `LawChecker` watches from outside. It counts what the crystal gave and which gates run, and compares that with the
loom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cantrip_actors.loom import Loom, Store, verify_loom
from cantrip_actors.loom.reading.view import fold_entity
from cantrip_actors.machine.project import get_status, sum_usage
from cantrip_actors.records.records import Record
from cantrip_actors.runtime.face.work import Work
from cantrip_actors.terms.messages import NO_USAGE, Message, Usage
from cantrip_actors.terms.outcome import Outcome

ANSWERED = ("settled", "refused", "withdrawn")
"""The states of an intent on which nothing will be done any more."""


class LawChecker:
    """Everything that a test has seen of a loom, of a crystal and of gates."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        """Breaches that were seen while something ran."""
        self._logs: dict[str, tuple[Record, ...]] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._spent: list[Usage] = []
        self._running: Counter[tuple[str, str]] = Counter()

    def note_answer(self, usage: Usage) -> None:
        """Note the tokens of an answer that the crystal gave."""
        self._spent.append(usage)

    def note_query(self, messages: Sequence[Message]) -> None:
        """Note what a crystal was asked, and whether a provider would take it."""
        if fault := find_broken_context(messages):
            self.faults.append(fault)

    @contextmanager
    def note_gate(self, entity: str, gate: str) -> Iterator[None]:
        """Note that a gate runs for an entity."""
        self._running[entity, gate] += 1
        try:
            yield
        finally:
            self._running[entity, gate] -= 1

    def note_process_end(self, store: Store) -> None:
        """Note that a process has ended. Answers that it had not recorded are lost, and were paid for."""
        self._spent = [_sum_recorded(store)]
        self._running.clear()

    def check(self, loom: Loom, store: Store) -> None:
        """Raise AssertionError for a law that does not hold, at any time between two steps."""
        assert not self.faults, self.faults[0]
        faults = verify_loom(store).faults
        assert not faults, f"the loom does not verify: {faults[0]}"
        for header in loom.headers():
            self._check_log(loom, header.entity_id, lasting=header.lasting)
        self._check_effects(loom)
        spent, recorded = sum(self._spent, NO_USAGE), _sum_recorded(store)
        assert recorded.total_tokens <= spent.total_tokens, (
            f"the loom has {recorded.total_tokens} tokens, and the crystal gave only {spent.total_tokens}"
        )

    def _check_log(self, loom: Loom, entity: str, *, lasting: bool) -> None:
        records, before = tuple(loom.records(entity)), self._logs.get(entity, ())
        assert records[: len(before)] == before, f"records of entity {entity} have changed or are gone"
        if records == before:
            return
        self._logs[entity] = records
        state, recorded = loom.state(entity), get_status(fold_entity(loom, entity), lasting=lasting)
        assert state == recorded, f"entity {entity} is {state}, and its log says {recorded}"
        keys = Counter(intent.key for intent in loom.intents(entity) if intent.key)
        twice = [key for key, times in keys.items() if times > 1]
        assert not twice, f"entity {entity} has taken the intent with the key {twice[0]} twice"

    def _check_effects(self, loom: Loom) -> None:
        for (entity, gate), running in self._running.items():
            if running and loom.has(entity):
                state = loom.state(entity)
                assert state in ("active", "waiting"), f"the gate {gate} runs, and its entity {entity} is {state}"

    def check_answers(self, works: Sequence[Work]) -> None:
        """Raise AssertionError if an answer has changed since it was first seen."""
        for work in works:
            outcome, before = work.find_outcome(), self._outcomes.get(work.id)
            if before is not None:
                assert outcome is not None, f"the answer to {work.id} is gone"
                assert (outcome.result, outcome.reason) == (before.result, before.reason), (
                    f"{work.id} was answered twice: {before.result!r} ({before.reason}), then {outcome.result!r} "
                    f"({outcome.reason})"
                )
            elif outcome is not None:
                self._outcomes[work.id] = outcome

    def check_end(self, works: Sequence[Work], store: Store) -> None:
        """Raise AssertionError for an accepted intent without an answer, once all entities rest, or for lost tokens."""
        for work in works:
            state = work.state
            assert state in ANSWERED, f"{work.id} was accepted, everything has come to rest, and it is still {state}"
            outcome = work.find_outcome()
            assert state == "withdrawn" or outcome is not None, f"{work.id} is {state}, and the loom has no answer"
            if outcome is not None and not outcome.terminated:
                assert outcome.reason, f"{work.id} has no result, and no reason"
        spent, recorded = sum(self._spent, NO_USAGE), _sum_recorded(store)
        assert spent.total_tokens == recorded.total_tokens, (
            f"the crystal gave {spent.total_tokens} tokens, and the loom has {recorded.total_tokens}"
        )


def _sum_recorded(store: Store) -> Usage:
    """Return the tokens that the loom has."""
    return sum((sum_usage(store.records(header.entity_id)) for header in store.headers()), NO_USAGE)


def find_broken_context(messages: Sequence[Message]) -> str | None:
    """Return why a provider would refuse these messages, or None.

    Each call of an assistant message is followed by its result, before anything else is said; no assistant message
    follows another one, and none is the last.
    """
    open_calls: list[str] = []
    role_before = ""
    for number, message in enumerate(messages):
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                return f"message {number} of a query is the result of {message.tool_call_id!r}, which was not called"
            open_calls.remove(message.tool_call_id)
        elif open_calls:
            return f"message {number} of a query comes before the result of the call {open_calls[0]!r}"
        elif message.role == "system" and number:
            return f"message {number} of a query is a system prompt in the middle of the conversation"
        elif message.role == role_before == "assistant":
            return f"messages {number - 1} and {number} of a query are both of the assistant"
        if message.role == "assistant":
            open_calls = [call.id for call in message.tool_calls]
        role_before = message.role
    if open_calls:
        return f"the call {open_calls[0]!r} has no result in a query"
    return "a query ends with a message of the assistant" if role_before == "assistant" else None
