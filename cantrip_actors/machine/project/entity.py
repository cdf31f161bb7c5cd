"""Facts about one entity, from its records: its state, the ends of its episodes, its intents and its usage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cantrip_actors.machine.evolve import fold, is_entity_end
from cantrip_actors.machine.project.outcome import Status, get_outcome
from cantrip_actors.machine.project.record import (
    Life,
    advance,
    as_header,
    begin_standing,
    compute_life,
    ends_episode,
    get_time,
)
from cantrip_actors.machine.project.undone import fold_log
from cantrip_actors.machine.state import CantripRef, Shape, State
from cantrip_actors.records.records import (
    Adopted,
    ChildStarted,
    Committed,
    Ended,
    GateFinished,
    Header,
    IntentGiven,
    MailRefused,
    Record,
    Steered,
    Undone,
    Utterance,
)
from cantrip_actors.terms.messages import NO_USAGE, Usage
from cantrip_actors.terms.outcome import Outcome

__all__ = [
    "CantripRef",
    "Status",
    "find_cantrip",
    "find_episode",
    "find_first_intent",
    "find_header_in_force",
    "find_last_metadata",
    "find_outcome",
    "find_refusal",
    "find_result_text",
    "find_settled_at",
    "find_status",
    "fold_state",
    "get_header",
    "has_taken",
    "is_over",
    "list_children",
    "list_intents",
    "list_turns_quoting",
]


def get_header(records: Sequence[Record]) -> Header:
    """Return the header that an entity's log begins with."""
    header = as_header(records[0])
    assert header is not None, "a log begins with its header"
    return header


def find_cantrip(records: Iterable[Record], before: CantripRef) -> CantripRef:
    """Return the cantrip of an entity after these records; `before` is its cantrip before them."""
    for record in records:
        if isinstance(record, Adopted):
            before = CantripRef(record.cantrip_id, record.cantrip_name)
    return before


def find_header_in_force(header: Header, records: Iterable[Record]) -> Header:
    """Return an entity's header with the cantrip, call, circle and crystal in force after `records`."""
    for record in records:
        if isinstance(record, Adopted):
            header = replace(
                header,
                cantrip_id=record.cantrip_id,
                cantrip_name=record.cantrip_name,
                call=record.call,
                circle=record.circle,
                crystal=record.crystal,
            )
    return header


def find_header_at(records: Iterable[Record], turn_id: str) -> Header:
    """Return the header of an entity with the cantrip, call, circle and crystal in force as a turn began."""
    before: list[Record] = []
    for record in records:
        if isinstance(record, Utterance | Committed) and record.turn_id == turn_id:
            break
        before.append(record)
    return find_header_in_force(get_header(before), before)


def is_over(records: Iterable[Record]) -> bool:
    """Return whether an entity has ended for good."""
    lasting = False
    for record in records:
        if isinstance(record, Header):
            lasting = record.lasting
        elif isinstance(record, Ended) and is_entity_end(record, lasting=lasting):
            return True
    return False


def fold_state(records: Sequence[Record]) -> State:
    """Return the state after an entity's whole log; its cantrip is not needed."""
    return fold_log(Shape.of_header(get_header(records)), records)


def find_status(records: Sequence[Record]) -> Status:
    """Return whether an entity is at work, waits or is idle, or how it ended, from its whole log (LOOM-7)."""
    header = get_header(records)
    standing = begin_standing(header)
    for record in records[1:]:
        standing = advance(record, standing, lasting=header.lasting)
    return standing.status


def find_outcome(records: Sequence[Record], below: Usage = NO_USAGE) -> Outcome | None:
    """Return how the last episode of an entity ended, from its whole log; None while it is under way.

    `below` is the usage of the subtrees of its children.
    """
    return get_outcome(fold_state(records), below)


_FINISHED: Final = ("terminated", "truncated")


def find_episode(
    records: Sequence[Record], key: str, subtree_usage: Callable[[str], Usage] = lambda _: NO_USAGE
) -> Outcome | None:
    """Return the outcome of the episode of the intent with that key; None if it has not ended, or was not given.

    "" is the key of the first intent, which is not mail. `subtree_usage` returns the usage of a child.
    """
    shape = Shape.of_header(get_header(records))
    state, outcome, below = State(shape.parent_turn), None, NO_USAGE
    is_it, is_cut = False, False
    for record in records:
        if isinstance(record, (IntentGiven, Undone)) and is_it:
            break
        if isinstance(record, IntentGiven):
            is_it = (record.key or "") == key
        elif isinstance(record, Committed):
            is_cut = record.truncated and record.ward is None  # in the middle of it: the next record says why
        elif isinstance(record, Ended) and not is_cut and outcome is not None and record.reason not in _FINISHED:
            break  # the entity was ended after the episode had
        fold(shape, (record,), state)
        if isinstance(record, ChildStarted):
            below = below + subtree_usage(record.child_id)
        if is_it:
            outcome = get_outcome(state, below)
    return outcome


def find_settled_at(records: Iterable[Record]) -> str | None:
    """Return when the mail was settled that the first of `records` took; None if it is an intent under way."""
    first, *rest = records
    if not isinstance(first, IntentGiven):
        return get_time(first)
    ends = (
        record
        for record in rest
        if ends_episode(record, lasting=True) or compute_life(record, Life.BUSY, lasting=True) > Life.BUSY
    )
    return next(map(get_time, ends), None)


def find_times(records: Iterable[Record], key: str) -> tuple[str, str] | None:
    """Return the times of the intent with that key, and of the last record before the next intent; None without it.

    "" is the key of the first intent.
    """
    times: tuple[str, str] | None = None
    for record in records:
        if isinstance(record, IntentGiven):
            if times is not None:
                break
            times = (record.at, record.at) if (record.key or "") == key else None
        elif times is not None:
            times = times[0], get_time(record) or times[1]
    return times


def has_taken(records: Iterable[Record], key: str) -> bool:
    """Return whether the intent with that key is in the log; "" is the key of the first intent."""
    return any(isinstance(record, IntentGiven) and (record.key or "") == key for record in records)


def find_last_metadata(records: Sequence[Record]) -> Mapping[str, Any]:
    """Return the provider's metadata of the newest utterance, such as its reason to stop."""
    utterance = next((record for record in reversed(records) if isinstance(record, Utterance)), None)
    return {} if utterance is None else utterance.metadata


def find_result_text(records: Iterable[Record], call_id: str) -> str | None:
    """Return the result of a call as text, the newest if ids repeat; None without one.

    With the id of a background child, return the message with its answer.
    """
    text: str | None = None
    for record in records:
        if isinstance(record, GateFinished) and record.tool_call_id == call_id:
            text = record.observation.content
        elif isinstance(record, Steered) and record.child == call_id:
            text = record.text
    return text


def find_refusal(records: Iterable[Record], key: str) -> MailRefused | None:
    """Return the record that refused or withdrew the mail with that key, or None."""
    return next((record for record in records if isinstance(record, MailRefused) and record.key == key), None)


def list_children(records: Iterable[Record]) -> list[str]:
    """Return the children that were started, in order."""
    return [record.child_id for record in records if isinstance(record, ChildStarted)]


def list_turns_quoting(records: Iterable[Record], child: str) -> list[str]:
    """Return the turns of a parent that contain the result of a child's call, in order.

    The answer of a background child, as a message, counts as part of the turn after it.
    """
    calls: set[str] = set()
    turns: dict[str, None] = {}
    has_answer = False
    for record in records:
        if isinstance(record, ChildStarted) and record.child_id == child:
            calls.add(record.tool_call_id)
        elif isinstance(record, GateFinished) and child in record.children:
            turns[record.turn_id] = None
        elif isinstance(record, Steered) and record.child == child:
            has_answer = True
        elif isinstance(record, Committed) and has_answer:
            turns[record.turn_id], has_answer = None, False
        elif isinstance(record, GateFinished) and record.tool_call_id in calls:
            calls.discard(record.tool_call_id)
            turns[record.turn_id] = None
    return list(turns)


def list_first_turns(records: Iterable[Record]) -> list[str]:
    """Return the first turn that followed each intent, in order."""
    turns: list[str] = []
    is_next = False
    for record in records:
        if isinstance(record, IntentGiven):
            is_next = True
        elif isinstance(record, Committed) and is_next:
            turns.append(record.turn_id)
            is_next = False
    return turns


def list_intents(records: Iterable[Record]) -> list[IntentGiven]:
    """Return the intents that were given, in order."""
    return [record for record in records if isinstance(record, IntentGiven)]


def find_dependencies(records: Sequence[Record], before: str | None = None) -> str | None:
    """Return the mark of the dependencies in force after these records; `before`, if there is no intent in them."""
    last = next((record for record in reversed(records) if isinstance(record, IntentGiven)), None)
    return before if last is None else last.dependencies


def find_first_intent(records: Iterable[Record]) -> IntentGiven | None:
    """Return the first intent; None if the process was killed between the header and it."""
    return next((record for record in records if isinstance(record, IntentGiven)), None)
