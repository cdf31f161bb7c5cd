"""The calls, results and usage in an entity's records, for a client that carries out calls itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from cantrip_actors.records.records import Decided, GateFinished, IntentGiven, Record, Requested, Steered, Utterance
from cantrip_actors.terms.messages import NO_USAGE, Usage


class Round(NamedTuple):
    """The newest part of an entity's work, which answers one request of a client: since its last intent.

    `key` is that of the intent, and `utterance` the newest answer of the crystal, if there is one. `usage` is that
    since the last decision or result that was delivered.
    """

    key: str | None = None
    utterance: Utterance | None = None
    usage: Usage = NO_USAGE


class ClientCall(NamedTuple):
    """A call of a gate: the answer of the crystal that made it, None for one that a program made; its result, the id of
    the request for it, and the memo of the decision.
    """

    utterance: Utterance | None = None
    result: GateFinished | None = None
    request_id: str | None = None
    memo: Any = None


def cut_round(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records from the newest intent on; all of them without one."""
    starts = (at for at in range(len(records) - 1, -1, -1) if isinstance(records[at], IntentGiven))
    return records[next(starts, 0) :]


def read_round(records: Iterable[Record]) -> Round:
    """Return the newest round of an entity's records."""
    newest = Round()
    for record in records:
        match record:
            case IntentGiven():
                newest = Round(record.key)
            case Decided():
                newest = newest._replace(usage=NO_USAGE)
            case Utterance():
                newest = newest._replace(utterance=record, usage=newest.usage + record.usage)
            case _:
                pass
    return newest


def find_client_call(records: Iterable[Record], call_id: str) -> ClientCall | None:
    """Return a call; None if no crystal and no program has made one with this id."""
    found: ClientCall | None = None
    for record in records:
        match record:
            case Utterance() if any(call.id == call_id for call in record.tool_calls):
                found = ClientCall(record)
            case Requested() if record.tool_call_id == call_id:
                found = (found or ClientCall())._replace(request_id=record.id)
            case Decided() if record.tool_call_id == call_id:
                found = (found or ClientCall())._replace(memo=record.memo)
            case GateFinished() if record.tool_call_id == call_id:
                found = (found or ClientCall())._replace(result=record)
            case _:
                pass
    return found


def collect_texts(records: Iterable[Record], until: str | None = None) -> set[str]:
    """Return the texts that an entity was given: intents, steering messages, and those of users and systems in a
    history. With `until`, those before the intent with that key.
    """
    texts: set[str] = set()
    for record in records:
        if isinstance(record, IntentGiven):
            if until is not None and record.key == until:
                break
            texts.add(record.intent)
            texts.update(past.content or "" for past in record.history if past.role in ("user", "system"))
        elif isinstance(record, Steered):
            texts.add(record.text)
        elif isinstance(record, Decided) and isinstance(record.answer, str):  # the reply to an utterance
            texts.add(record.answer)
    return texts
