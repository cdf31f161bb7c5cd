"""Check a loom and a ledger after all entities have ended, however often their processes were killed.

No acknowledged record is missing, and no record has changed. No effect happened twice, and no query was paid again
after its answer was recorded. Every entity's log is complete, and has the same content as in an undisturbed run. Only
one difference is allowed: if a gate was running when its process was killed, and is not idempotent, its result may be
`outcome unknown`.

A *story* is a loom without the data that differs from run to run: ids become labels and numbers, and times are removed.
Two looms with the same story hold the same threads, byte by byte (`turns` are compared as canonical JSON). The ledger
also shows that the crystals saw the same contexts: so a resumed entity gives the same answers because it sees the same
context, and not because it has no other answers.

An entity that interrupts itself (`workload`) then says that it is still there. If a kill comes between the two, the
next process finds the interruption in the inbox, and the entity ends without that remark. So the story leaves out turns
with only this text, and the summary of an interrupted episode, which counts its turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from cantrip_actors import Loom, open_loom
from conformance.crash.ledger import Line, mark, of_kind, of_kinds
from conformance.crash.workload import MOVING, STILL, label_of

__all__ = ["Seen", "Story", "Tale", "compare_histories", "look", "story_of"]

UNKNOWN = "outcome unknown"
ONCE = ("Header", "IntentGiven", "Utterance", "GateStarted", "GateFinished", "Committed", "ChildStarted")
"""Records of which a log never contains two with the same mark."""
WORDS = "Utterance"
HALTED = "interrupted"


_MOVING = frozenset(version.id for version in MOVING)
"""Versions of one cantrip; the kills decide which of them makes a turn."""


class Tale(NamedTuple):
    """One entity's part of a story."""

    began: bytes
    """The origin of the entity and its intents; its folds; its ends; its usage."""
    turns: tuple[bytes, ...]
    still: int
    """The number of turns that the story leaves out."""


class Story(NamedTuple):
    """The stories of a loom's entities, by label, and the contexts of their crystals, by payment."""

    tales: Mapping[str, Tale]
    shown: Mapping[str, frozenset[str]]


class Seen(NamedTuple):
    """The content of a loom at some moment, and the length of the ledger then."""

    at: int
    marks: Mapping[str, Sequence[Sequence[str]]]
    """The marks of the records by entity, in order."""
    said: frozenset[str]
    """The payments whose answers are recorded."""


def look(url: str, ledger: Sequence[Line]) -> Seen:
    """Return the content of a loom that no process writes to."""
    with open_loom(url) as loom:
        return _read_loom(loom, len(ledger))


def story_of(url: str, ledger: Sequence[Line]) -> Story:
    """Return the story of a loom and a ledger."""
    with open_loom(url) as loom:
        return Story(_story(loom)[0], _collect_contexts(ledger))


def compare_histories(
    url: str, ledger: Sequence[Line], looks: Sequence[Seen], expected: Story | None, *, troubled: bool = False
) -> tuple[list[str], int]:
    """Return the problems, a line each, and the number of unknown outcomes. `troubled`: refusals are expected."""
    with open_loom(url) as loom:
        seen = _read_loom(loom, len(ledger))
        story, twice = _story(loom)
        wrong = [f"entity {label} is there more than once" for label in twice]
        for entity_id in loom.entities():
            wrong += _log_problems(loom, entity_id)
        wrong += _find_missing_records(ledger, looks, seen)
        wrong += _find_repeated_effects(ledger)
        wrong += _paid_twice(ledger, looks)
        wrong += _results(loom, ledger)
        wrong += _unheard(loom, ledger)
        if not troubled:
            wrong += [f"{line.key} was refused: {line.data['came']}" for line in ledger if line.what == "refused"]
        unknown = 0
        if expected is not None:
            killed = bool(looks) or len({line.life for line in ledger}) > 1
            different, unknown = _different(Story(story, _collect_contexts(ledger)), expected, killed=killed)
            wrong += different
        return wrong, unknown


# ------------------------------------------------------------------------------------------------------------- one log


def _log_problems(loom: Loom, entity_id: str) -> Iterator[str]:
    """Yield the problems within an entity's log (LOOM-1, LOOM-2, LOOM-8)."""
    records = loom.records(entity_id)
    header = loom.header(entity_id)
    for of, times in Counter(tuple(mark(r)) for r in records if type(r).__name__ in ONCE).items():
        if times > 1:
            yield f"recorded {times} times: {' '.join(of)}"
    parent = header.parent_turn
    for number, turn in enumerate(loom.turns(entity_id), 1):
        if turn.sequence != number:
            yield f"turn {number} of {entity_id} has sequence number {turn.sequence}"
        if turn.parent_id != parent:
            yield f"turn {number} of {entity_id} hangs from {turn.parent_id}, not from {parent}"
        parent = turn.id
    state = loom.state(entity_id)
    if state in {"active", "crashed"}:
        yield f"{entity_id} was left {state}"


def _find_missing_records(ledger: Sequence[Line], looks: Sequence[Seen], now: Seen) -> Iterator[str]:
    """Yield records that were acknowledged or seen, and are missing now."""
    there = {tuple(recorded_mark) for marks in now.marks.values() for recorded_mark in marks}
    for line in ledger:
        for recorded_mark in line.data.get("marks", ()):
            if tuple(recorded_mark) not in there:
                yield f"acknowledged in life {line.life}, and lost: {' '.join(recorded_mark)}"
    for seen in looks:
        for entity_id, marks in seen.marks.items():
            if list(now.marks.get(entity_id, ()))[: len(marks)] != list(marks):
                yield f"the log of {entity_id} does not begin as it did when it was looked at"


# ----------------------------------------------------------------------------------------------------------- the ledger


def _find_repeated_effects(ledger: Sequence[Line]) -> Iterator[str]:
    """Yield effects that happened twice; a key that starts with ? may repeat."""
    for (what, key), times in Counter(
        (line.what, line.key) for line in ledger if line.what in {"begin", "done"}
    ).items():
        if times > 1 and not key.startswith("?"):
            yield f"gate run {times} times ({what}): {key}"


def _paid_twice(ledger: Sequence[Line], looks: Sequence[Seen]) -> Iterator[str]:
    """Yield queries that were paid again after their answer was recorded, or twice in one life."""
    for (life, key), times in Counter((line.life, line.key) for line in ledger if line.what == "paid").items():
        if times > 1:
            yield f"paid {times} times in life {life}: {key}"
    for seen in looks:
        for line in ledger[seen.at :]:
            if line.what == "paid" and line.key in seen.said:
                yield f"paid again in life {line.life} for words that were recorded: {line.key}"
    recorded: dict[tuple[str, ...], int] = {}
    for line in ledger:
        for recorded_mark in line.data.get("marks", ()):
            if recorded_mark[0] == WORDS and recorded.setdefault(tuple(recorded_mark), line.life) != line.life:
                yield f"recorded in two lives: {' '.join(recorded_mark)}"


def _results(loom: Loom, ledger: Sequence[Line]) -> Iterator[str]:
    """Compare the effects in the loom with those in the ledger, and the outcomes of callers with each other."""
    done = {line.key for line in ledger if line.what == "done"}
    for entity_id in loom.entities():
        for turn in loom.turns(entity_id):
            for call in turn.gate_calls:
                result = call.result if isinstance(call.result, str) else ""
                if result.startswith("did ") and result.removeprefix("did ") not in done:
                    yield f"recorded and never done: {result}"
                if result.startswith(UNKNOWN) and call.gate in {"probe", "glance"}:
                    yield f"{call.gate} is idempotent, and its outcome is unknown: {call.args}"
    came: dict[str, str] = {}
    for line in ledger:
        if line.what == "ended" and came.setdefault(line.key, line.data["came"]) != line.data["came"]:
            yield f"{line.key} came to {came[line.key]!r}, and then to {line.data['came']!r}"


def _unheard(loom: Loom, ledger: Sequence[Line]) -> Iterator[str]:
    """Yield queries whose context did not have the loom's hints, each once and in order."""
    heard = {line.key: line.data["heard"] for line in ledger if line.what == "paid"}
    for entity_id in loom.entities():
        header = loom.header(entity_id)
        before = loom.lineage(header.parent_turn) if header.forked and header.parent_turn else ()
        hints = [record.text for record in of_kind("Steered", before)]
        for record in of_kinds(("Steered", WORDS), loom.records(entity_id)):
            if hasattr(record, "text"):
                hints.append(record.text)
            elif heard.get(key := _payment(str(record.content)), hints) != hints:
                yield f"{key} heard {heard[key]}, and not {hints}"


# ---------------------------------------------------------------------------------------------------------- the stories


def _different(story: Story, expected: Story, *, killed: bool) -> tuple[list[str], int]:
    """Return the differences from the undisturbed story, and the number of unknown outcomes."""
    tales, others = story.tales, expected.tales
    wrong = [f"there is no entity {label}" for label in others if label not in tales]
    wrong += [f"there should be no entity {label}" for label in tales if label not in others]
    unknown = dict.fromkeys(tales, 0)
    common = others.keys() & tales.keys()
    for label in common:
        tale, wanted = tales[label], others[label]
        for number, (turn, other) in enumerate(zip(tale.turns, wanted.turns, strict=False), 1):
            if turn != other:
                mended, count = _replace_unknown(turn, other)
                unknown[label] += count
                if mended != other or not killed:
                    wrong.append(f"turn {number} of {label} is {turn.decode()}, not {other.decode()}")
        if len(tale.turns) != len(wanted.turns):
            wrong.append(f"{label} has {len(tale.turns)} turns, not {len(wanted.turns)}")
        if tale.began != wanted.began and not unknown[label]:  # a summary counts the failed gates
            wrong.append(f"{label} is {tale.began.decode()}, not {wanted.began.decode()}")
    for key, seen in story.shown.items():
        who = _whose(key, tales)
        is_alike = who in common and tales[who].still == others[who].still and not unknown[who]
        if is_alike and not unknown.get(who.partition("+")[0]) and seen != expected.shown.get(key, frozenset()):
            wrong.append(f"{key} saw another context than in an undisturbed run")
    return wrong, sum(unknown.values())


def _collect_contexts(ledger: Sequence[Line]) -> dict[str, frozenset[str]]:
    shown: dict[str, frozenset[str]] = {}
    for line in ledger:
        if line.what == "paid":
            shown[line.key] = shown.get(line.key, frozenset()) | {line.data["sees"]}
    return shown


def _whose(key: str, tales: Mapping[str, Tale]) -> str:
    """Return the label of the entity that paid: its own, or that of its first intent."""
    label = key.rpartition("/")[0]
    return label if label in tales else label.partition("#")[0]


def _replace_unknown(turn: bytes, other: bytes) -> tuple[bytes, int]:
    """Return a turn with its unknown outcomes replaced by the results of another turn."""
    actual, wanted = orjson.loads(turn), orjson.loads(other)
    count = 0
    for n, call in enumerate(actual["gates"]):
        if str(call["result"]).startswith(UNKNOWN) and n < len(wanted["gates"]) and call["is_error"]:
            count += 1
            actual["gates"][n] = wanted["gates"][n]
    if count:
        actual["observation"] = wanted["observation"]
    return _bytes(actual), count


def _read_loom(loom: Loom, at: int) -> Seen:
    marks: dict[str, list[list[str]]] = {}
    payments: set[str] = set()
    for entity_id in loom.entities():
        records = loom.records(entity_id)
        marks[entity_id] = [mark(record) for record in records]
        payments.update(_payment(str(record.content)) for record in of_kind(WORDS, records))
    return Seen(at, marks, frozenset(payments))


def _payment(content: str) -> str:
    label, _, step = content.partition(" step ")
    return f"{label}/{step}"


def _story(loom: Loom) -> tuple[dict[str, Tale], list[str]]:
    # a kill between header and intent leaves an entity without a caller, which ends when the loom is opened
    begun = {
        entity_id: intents
        for entity_id in loom.entities()
        if (intents := _intents(loom, entity_id)) or loom.state(entity_id) != "abandoned"
    }
    labels = {
        entity_id: label_of(intents[0]) if intents else f"{entity_id}, without an intent"
        for entity_id, intents in begun.items()
    }
    shown_turns = {entity_id: [turn for turn in loom.turns(entity_id) if not _is_still(turn)] for entity_id in labels}
    names: dict[str, str] = {}
    for entity_id, label in labels.items():
        number = 0
        for turn in loom.turns(entity_id):
            number += not _is_still(turn)
            names[turn.id] = f"{label}#{number}"
    story: dict[str, Tale] = {}
    twice: list[str] = []
    for entity_id, label in labels.items():
        if label in story:
            twice.append(label)
        turns = tuple(_bytes(_turn(turn, names, labels)) for turn in shown_turns[entity_id])
        still = len(loom.turns(entity_id)) - len(turns)
        story[label] = Tale(_bytes(_began(loom, entity_id, names, labels)), turns, still)
    return story, twice


def _is_still(turn: Any) -> bool:
    return str(turn.content).endswith(STILL)


def _began(loom: Loom, entity_id: str, names: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, Any]:
    header, records = loom.header(entity_id), loom.records(entity_id)
    return {
        "cantrip": header.cantrip_id,
        "parent": labels.get(header.parent_entity or ""),
        "below": names.get(header.parent_turn or ""),
        "forked": header.forked,
        "depth": header.depth,
        "name": header.name,
        "lasting": header.lasting,
        "intents": _intents(loom, entity_id),
        "folds": [[fold.first, fold.last, fold.marker] for fold in of_kind("Folded", records)],
        "ended": [[end.reason, None if end.reason == HALTED else end.detail] for end in of_kind("Ended", records)],
        "state": loom.state(entity_id),
        "usage": loom.usage(entity_id).total_tokens,
        "subtree": loom.subtree_usage(entity_id).total_tokens,
    }


def _intents(loom: Loom, entity_id: str) -> list[str]:
    return [record.intent for record in of_kind("IntentGiven", loom.records(entity_id))]


def _turn(turn: Any, names: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": names[turn.id],
        "parent": names.get(turn.parent_id or ""),
        "utterance_id": names.get(turn.utterance_id),
        "sequence": int(names[turn.id].rpartition("#")[2]),
        "cantrip": "" if turn.cantrip_id in _MOVING else turn.cantrip_id,
        "utterance": turn.utterance,
        "content": turn.content,
        "calls": [[call.id, call.gate, call.args] for call in turn.tool_calls],
        "observation": turn.observation,
        "gates": [
            {"gate": c.gate, "args": c.args, "result": c.result, "is_error": c.is_error, "id": c.tool_call_id}
            for c in turn.gate_calls
        ],
        "tokens": turn.usage.total_tokens,
        "reward": turn.reward,
        "terminated": turn.terminated,
        "truncated": turn.truncated,
        "ward": turn.ward,
        "children": [labels.get(child, "a child that never began") for child in turn.children],
    }


def _bytes(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
