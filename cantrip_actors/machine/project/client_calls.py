"""What a client that carries out calls itself has to know of an entity's records: its calls, results and usage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cantrip_actors.records.records import Decided, GateFinished, IntentGiven, Record, Requested, Steered, Utterance
from cantrip_actors.terms.messages import NO_USAGE, Usage


def find_call_result(records: Iterable[Record], call_id: str) -> GateFinished | bool:
    """Return the result of a call; False for a call without one, True if there is no such call."""
    result: GateFinished | bool = True
    for record in records:
        match record:
            case Utterance() if any(call.id == call_id for call in record.tool_calls):
                result = False
            case Requested() if record.tool_call_id == call_id:  # a program made the call
                result = False
            case GateFinished() if record.tool_call_id == call_id:
                result = record
            case _:
                pass
    return result


def find_utterance_of(records: Iterable[Record], call_id: str) -> Utterance | None:
    """Return the answer of an entity's crystal that made a call."""
    utterances = (record for record in records if isinstance(record, Utterance))
    return next((answer for answer in utterances if any(call.id == call_id for call in answer.tool_calls)), None)


def find_newest_utterance(records: Sequence[Record]) -> Utterance | None:
    """Return the newest answer of an entity's crystal."""
    return next((record for record in reversed(records) if isinstance(record, Utterance)), None)


def find_newest_key(records: Sequence[Record]) -> str | None:
    """Return the key of an entity's newest intent; None for one without a key."""
    return next((record.key for record in reversed(records) if isinstance(record, IntentGiven)), None)


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


def measure_round(records: Iterable[Record]) -> Usage:
    """Return the usage since the last result that was delivered, or since the intent."""
    usage = NO_USAGE
    for record in records:
        if isinstance(record, IntentGiven | Decided):
            usage = NO_USAGE
        elif isinstance(record, Utterance):
            usage = usage + record.usage
    return usage
