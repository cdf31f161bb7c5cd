"""What the loom's tests share: records by hand, and arbitrary histories that a runtime could have written."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, get_args

from hypothesis import strategies as st

from cantrip_actors.records.blob import Blob, Snapshot
from cantrip_actors.records.records import (
    Adopted,
    Asked,
    ChildStarted,
    Committed,
    Decided,
    Decision,
    Ended,
    Folded,
    ForgottenRecord,
    GateFinished,
    GateStarted,
    Header,
    IntentGiven,
    MailRefused,
    Observation,
    QueryPosted,
    Record,
    Requested,
    Resumed,
    Rewarded,
    Sampled,
    Steered,
    Undone,
    Utterance,
)
from cantrip_actors.terms.history import PastMessage
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import Role, ToolCall, Usage
from cantrip_actors.terms.outcome import EndReason
from tests.pictures import images, png

KEY = b"the key of nobody's store"
SNAPSHOT = Blob.of_snapshot("toy 1.0", b"what an engine wrote", KEY)
AT = "2026-11-21T22:00:00.123Z"


def header(entity: str, **fields: Any) -> Header:
    return Header(
        entity_id=entity,
        cantrip_id=fields.pop("cantrip_id", "c0ffee"),
        at=AT,
        call={"system_prompt": "be terse"},
        circle={"gates": ["done"]},
        crystal="scripted",
        **fields,
    )


def turn(
    entity: str,
    turn_id: str,
    parent: str | None,
    number: int = 1,
    text: Any = "hello",
    snapshot: Blob | None = None,
    images: tuple[Image, ...] = (),
    **ends: Any,
) -> list[Record]:
    """The records of a turn with one gate call, which gave `images`; `snapshot` is its sandbox's, in it and after."""
    call = f"call_{number}_1"
    named = None if snapshot is None else Snapshot(snapshot.digest, snapshot)
    return [
        Utterance(
            entity_id=entity,
            turn_id=turn_id,
            content=None,
            tool_calls=(ToolCall(call, "echo", {"text": text}),),
            usage=Usage(10, 5, 2, 0.25),
            duration_ms=12.5,
        ),
        GateStarted(entity, turn_id, call, "echo", snapshot=named),
        GateFinished.of(entity, turn_id, Observation("echo", None, text, tool_call_id=call, images=images), 0.5),
        Committed(
            turn_id=turn_id,
            entity_id=entity,
            parent_id=parent,
            sequence=number,
            continues=ends.pop("utterance_id", None),
            at=AT,
            duration_ms=13.5,
            **ends,
            snapshot=named,
        ),
    ]


def run(
    entity: str,
    *turn_ids: str,
    parent: str | None = None,
    ends: bool = True,
    snapshot: Blob | None = None,
    **fields: Any,
) -> list[Record]:
    """An entity that took these turns; its last one terminated unless told otherwise."""
    records: list[Record] = [header(entity, parent_turn=parent, **fields), IntentGiven(entity, "say hello", AT)]
    for number, turn_id in enumerate(turn_ids, 1):
        last = number == len(turn_ids)
        records += turn(entity, turn_id, parent, number, text=turn_id, terminated=ends and last, snapshot=snapshot)
        parent = turn_id
    return records


# ---------------------------------------------------------------------------------------------------- arbitrary records

SPLIT_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
"""Two surrogates that make one character: JSON has one spelling for both, so they come back as that character."""

texts = st.text(st.characters(), max_size=20).filter(lambda text: not SPLIT_PAIR.search(text))
ids = st.uuids().map(str) | st.text(min_size=1, max_size=5)
numbers = st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
objects = st.dictionaries(texts, values, max_size=4)
maybe_text = st.none() | texts
counts = st.integers(0, 2**40)
durations = st.floats(0, 1e12)
snapshots = st.none() | st.builds(Snapshot, st.text("0123456789abcdef", min_size=40, max_size=40))
usages = st.builds(Usage, counts, counts, counts, durations)
calls = st.builds(ToolCall, texts, texts, st.none() | objects, maybe_text)
image_tuples = st.lists(images, max_size=2).map(tuple)
observations = st.builds(
    Observation, texts, st.none() | objects, values, st.booleans(), maybe_text, st.booleans(), image_tuples
)
reasons = st.sampled_from(get_args(EndReason))

past_messages = st.builds(
    PastMessage,
    st.sampled_from(get_args(Role)),
    maybe_text,
    st.lists(calls, max_size=2).map(tuple),
    maybe_text,
    maybe_text,
    thinking=maybe_text,
    blocks=st.lists(objects, max_size=1).map(tuple),
)

records = st.one_of(
    st.builds(
        Header,
        entity_id=ids,
        cantrip_id=texts,
        at=texts,
        call=objects,
        circle=objects,
        crystal=texts,
        parent_entity=maybe_text,
        parent_turn=maybe_text,
        forked=st.booleans(),
        depth=st.integers(0, 9),
        name=maybe_text,
        lasting=st.booleans(),
    ),
    st.builds(
        IntentGiven,
        ids,
        texts,
        texts,
        values,
        image_tuples,
        maybe_text,
        maybe_text,
        history=st.lists(past_messages, max_size=2).map(tuple),
    ),
    st.builds(Steered, ids, texts, texts, image_tuples, maybe_text, maybe_text),
    st.builds(
        Utterance,
        entity_id=ids,
        turn_id=ids,
        content=maybe_text,
        tool_calls=st.lists(calls, max_size=3).map(tuple),
        usage=usages,
        duration_ms=durations,
        thinking=maybe_text,
        code=maybe_text,
        blocks=st.lists(objects, max_size=2).map(tuple),
        metadata=objects,
    ),
    st.builds(GateStarted, ids, ids, texts, texts, st.none() | objects, snapshots),
    st.builds(GateFinished.of, ids, ids, observations, durations),
    st.builds(
        Committed,
        turn_id=ids,
        entity_id=ids,
        parent_id=st.none() | ids,
        sequence=st.integers(1, 9999),
        continues=st.none() | ids,
        at=texts,
        duration_ms=durations,
        terminated=st.booleans(),
        truncated=st.booleans(),
        ward=maybe_text,
        snapshot=snapshots,
    ),
    st.builds(ChildStarted, ids, ids, texts, ids, st.integers(0, 9)),
    st.builds(Folded, ids, counts, counts, texts, texts, usages, maybe_text, maybe_text),
    st.builds(Undone, ids, st.integers(1, 9), st.integers(0, 9), texts, maybe_text, maybe_text),
    st.builds(
        Sampled,
        entity_id=ids,
        turn_id=ids,
        tool_call_id=texts,
        server=texts,
        crystal=texts,
        asked=texts,
        answer=texts,
        at=texts,
        usage=usages,
    ),
    st.builds(Rewarded, ids, ids, durations, texts),
    st.builds(Resumed, ids, texts, texts),
    st.builds(Ended, ids, reasons, texts, maybe_text, values, maybe_text, usages, maybe_text, maybe_text),
    st.builds(MailRefused, ids, texts, texts, texts, texts, maybe_text, maybe_text),
    st.builds(Adopted, ids, texts, texts, texts, texts, objects, objects, maybe_text),
    st.builds(QueryPosted, ids, ids, values, texts),
    st.builds(Asked, ids, ids, texts, ids, texts, texts),
    st.builds(
        Requested,
        entity_id=ids,
        turn_id=ids,
        tool_call_id=texts,
        gate=texts,
        at=texts,
        args=st.none() | objects,
        why=texts,
        question=maybe_text,
        answer_schema=st.none() | objects,
        expires_at=maybe_text,
        snapshot=snapshots,
        round=st.integers(0, 9),
        state=values,
    ),
    st.builds(
        Decided,
        entity_id=ids,
        turn_id=ids,
        tool_call_id=texts,
        decision=st.sampled_from(get_args(Decision)),
        at=texts,
        by=texts,
        note=texts,
        args=st.none() | objects,
        answer=values,
        remember=st.booleans(),
        key=maybe_text,
        sender=maybe_text,
        door=texts,
        round=st.integers(0, 9),
    ),
    st.builds(ForgottenRecord, entity_id=ids, at=texts, records=counts, bytes=counts, sum=texts, by=texts, why=texts),
)

# -------------------------------------------------------------------------------------------------- arbitrary histories


@dataclass
class History:
    """Batches as a runtime would append them, and what they come to: the model that every store is compared with."""

    batches: list[list[Record]] = field(default_factory=list)
    entities: dict[str, list[Record]] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)
    forks: dict[str, list[str]] = field(default_factory=dict)
    below: dict[str, list[str]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    lasting: set[str] = field(default_factory=set)
    over: set[str] = field(default_factory=set)
    idle: set[str] = field(default_factory=set)
    tips: dict[str, str | None] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    blobs: dict[str, Blob] = field(default_factory=dict)

    def take(self, records: list[Record], *, together: bool) -> None:
        if together and self.batches:
            self.batches[-1] += records
        else:
            self.batches.append(records)
        for record in records:
            self.entities.setdefault(record.entity_id, []).append(record)

    def begin(
        self, entity: str, turn_id: str | None, *, forked: bool = False, name: str | None = None, together: bool
    ) -> None:
        parent = self.owners[turn_id] if turn_id is not None and not forked else None
        kin: dict[str, Any] = {
            "parent_turn": turn_id,
            "parent_entity": parent,
            "forked": forked and turn_id is not None,
        }
        head = header(entity, **kin, name=name, lasting=name is not None)
        if name is not None:
            self.names[name] = entity
            self.lasting.add(entity)
        self.tips[entity], self.counts[entity] = turn_id, 0
        if turn_id is not None:
            (self.forks if forked else self.children).setdefault(turn_id, []).append(entity)
        if parent is not None:
            self.below.setdefault(parent, []).append(entity)
        self.take([head, IntentGiven(entity, "go", AT)], together=together)

    def go_on(self, entity: str, turn_id: str, text: Any, *, last: bool, which: int, together: bool) -> None:
        self.counts[entity] += 1
        snapshot = None
        if which % 3 == 0:  # few different ones: they are to be met again
            snapshot = Blob.of_snapshot(f"toy {which % 2}", bytes(range(which % 7)) * which, KEY)
            self.blobs[snapshot.digest] = snapshot
        seen = self.image(which)
        made = turn(entity, turn_id, self.tips[entity], self.counts[entity], text, snapshot, seen, terminated=last)
        self.tips[entity] = turn_id
        self.owners[turn_id] = entity
        if last and entity in self.lasting:
            self.idle.add(entity)
        self.take(made, together=together)

    def image(self, which: int) -> tuple[Image, ...]:
        """A few different ones, to be met again in other places."""
        if which % 4:
            return ()
        image = Image(png(shade=which % 3), detail="low" if which % 8 else None)
        self.blobs[image.digest] = Blob.of_image(image.media_type, image.data)
        return (image.with_position(which % 2 or None),)

    def ask(self, entity: str, *, steer: bool, which: int, together: bool) -> None:
        if not steer:
            self.idle.discard(entity)
        seen = self.image(which)
        told = Steered(entity, "mind the gap", AT, seen) if steer else IntentGiven(entity, "and again", AT, None, seen)
        self.take([told], together=together)

    def end(self, entity: str, reason: EndReason, *, together: bool) -> None:
        self.idle.discard(entity)
        if entity in self.lasting and reason in {"failed", "interrupted"}:
            self.idle.add(entity)
        else:
            self.over.add(entity)
        self.take([Ended(entity, reason, AT, "enough")], together=together)

    @property
    def unfinished(self) -> list[str]:
        return [entity for entity in self.entities if entity not in self.over]


OPS = ("root", "child", "fork", "name", "turn", "turn", "turn", "last", "reward", "send", "steer", "end", "end")
REASONS: tuple[EndReason, ...] = ("terminated", "failed", "interrupted", "cancelled", "crashed")
NAMES = ("notes", "mail", "é\"'")

steps = st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 99), values, st.booleans()), max_size=25)
prefixes = st.sampled_from(["", "01a2002a-8ab4-71ba-9d5e-8e88887fdc9", "é", 'a"b', "back\\slash", "line\nbreak"])


@st.composite
def histories(draw: st.DrawFn) -> History:
    prefix = draw(prefixes)
    made = History()
    made.begin(f"{prefix}e0", None, together=False)
    for number, (op, which, value, together) in enumerate(draw(steps), 1):
        entities, turns = made.unfinished or list(made.entities), list(made.owners)
        entity, at = entities[which % len(entities)], turns[which % len(turns)] if turns else None
        if op == "reward" and at is not None:
            made.take([Rewarded(made.owners[at], at, which / 8, AT)], together=together)
        elif op in {"root", "child", "fork", "name"}:
            hangs = at if op in {"child", "fork"} else None
            name = NAMES[which % len(NAMES)] if op == "name" else None
            made.begin(f"{prefix}e{number}", hangs, forked=op == "fork", name=name, together=together)
        elif entity in made.over:
            continue
        elif op in {"turn", "last"}:
            made.go_on(entity, f"{prefix}t{number}", value, last=op == "last", which=which, together=together)
        elif op in {"send", "steer"}:
            made.ask(entity, steer=op == "steer", which=which, together=together)
        elif op == "end":
            made.end(entity, REASONS[which % len(REASONS)], together=together)
    return made
