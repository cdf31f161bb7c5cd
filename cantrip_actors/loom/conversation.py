"""A thread's records as a conversation: who said what, with the result of every call. What exports are made from.

The loom cuts an utterance into several turns where a child ran (LOOM-8). Here there is no seam: one `Said` an
utterance, with all of its calls and their results, as the crystal saw it. It is the context that `replay` in
`model/recovery` rebuilds for a fork, made from records alone, since whoever exports a loom need not have the cantrips
it was made with; a test compares the two.

It is whole: folds are noted where they happened and take nothing away (LOOM-5), an ephemeral result is there with what
it said (PROD-5). `as_messages` can hide it, as the crystal saw it later (D-010).

What follows the last committed turn, an utterance that a crash cut short, is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cantrip_actors.loom.tree import Loom
from cantrip_actors.model.image import NO_IMAGES, Image
from cantrip_actors.model.messages import Message, ToolCall, as_text
from cantrip_actors.model.program import shown
from cantrip_actors.model.turn import (
    LEFT_OUT,
    NO_GATE,
    SKIPPED,
    ChildStarted,
    Committed,
    Ended,
    Folded,
    GateFinished,
    GateStarted,
    Header,
    IntentGiven,
    Observation,
    Record,
    Rewarded,
    Steered,
    Utterance,
    observed,
    spoken,
    unanswered,
)

__all__ = [
    "Conversation",
    "Heard",
    "Item",
    "Result",
    "Said",
    "as_messages",
    "conversation",
    "conversation_of",
    "messages_of",
]


@dataclass(frozen=True, slots=True)
class Heard:
    """Something that was put to the entity: its intent, data for it, a message from outside, or the loop's reminder."""

    kind: Literal["intent", "context", "steer", "reminder"]
    text: str
    at: str
    entity_id: str
    images: tuple[Image, ...] = NO_IMAGES


@dataclass(frozen=True, slots=True)
class Result:
    """What a call came to; `observation` is None for a call that was not run, and `text` says why."""

    call_id: str
    gate: str
    text: str
    observation: Observation | None = None
    duration_ms: float = 0.0
    children: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """An utterance with the results of its calls, and the turns of the loom that it became.

    `results` are in the order of the calls, one each. `others` are a program's: those of the gates that it called, and
    at last, without a call's id, what came of the program itself, which is what the crystal was shown.
    """

    utterance: Utterance
    results: tuple[Result, ...]
    others: tuple[Result, ...]
    turns: tuple[Committed, ...]
    rewards: tuple[float | None, ...] = ()
    """The latest reward of each turn."""


Item = Heard | Said | Folded


@dataclass(frozen=True, slots=True)
class Conversation:
    """`header` is the thread's last: the entity that it is the thread of. A fork's has the original's items first.

    `inherited` counts them. `ended` is how the entity, or its latest episode, ended, where a record says so.
    """

    header: Header
    items: tuple[Item, ...]
    inherited: int = 0
    ended: Ended | None = None

    @property
    def system_prompt(self) -> str | None:
        """What the call says first."""
        prompt = self.header.call.get("system_prompt")
        return prompt if isinstance(prompt, str) and prompt else None

    @property
    def said(self) -> list[Said]:
        """The utterances."""
        return [item for item in self.items if isinstance(item, Said)]


def conversation(records: Iterable[Record]) -> Conversation:
    """The conversation that `records` tell of: a `Loom.lineage`, or all records of an entity that is no fork.

    Raises ValueError where they do not begin with a header.
    """
    reader = _Reader()
    for record in records:
        reader.read(record)
    return reader.conversation()


def conversation_of(loom: Loom, entity_id: str, until: str | None = None) -> Conversation:
    """The conversation that an entity had: a fork's from its original's beginning, a child's from its own.

    With `until` only up to that turn of its own, or of the originals that it was forked from. Raises LoomError.
    """
    if until is None:
        header = loom.header(entity_id)
        before = loom.lineage(header.parent_turn) if header.forked and header.parent_turn is not None else []
        return conversation([*before, *loom.records(entity_id)])
    rewards = [record for record in loom.records(loom.owner(until)) if isinstance(record, Rewarded)]
    return conversation([*loom.lineage(until), *rewards])


@dataclass(slots=True)
class _Open:
    """An utterance of which calls may still be without a result."""

    utterance: Utterance
    results: list[Result] = field(default_factory=list)
    others: list[Result] = field(default_factory=list)
    turns: list[Committed] = field(default_factory=list)
    children: list[ChildStarted] = field(default_factory=list)
    kept: tuple[int, int] = (0, 0)
    """How many results and others there were at the last turn that was committed."""

    def take(self, finished: GateFinished) -> None:
        seen = finished.observation
        called = self.utterance.tool_calls
        expected = called[len(self.results)] if len(self.results) < len(called) else None
        by_call = expected is not None and expected.id == seen.tool_call_id
        children = tuple(c.child_id for c in self.children if c.tool_call_id == seen.tool_call_id)
        text = observed(seen, hidden=False).content or ""
        result = Result(seen.tool_call_id or "", seen.gate, text, seen, finished.duration_ms, children)
        (self.results if by_call else self.others).append(result)

    @property
    def left(self) -> Sequence[ToolCall]:
        return self.utterance.tool_calls[len(self.results) :]

    def said(self, rewards: dict[str, float]) -> Said:
        results, others = self.results[: self.kept[0]], self.others[: self.kept[1]]
        rest = self.utterance.tool_calls[len(results) :]
        why = SKIPPED if self.turns[-1].terminated else LEFT_OUT
        results += [Result(call.id, call.gate, why) for call in rest]
        given = tuple(rewards.get(turn.turn_id) for turn in self.turns)
        return Said(self.utterance, tuple(results), tuple(others), tuple(self.turns), given)


class _Reader:
    def __init__(self) -> None:
        self._headers: list[Header] = []
        self._items: list[Heard | _Open | Folded] = []
        self._open: _Open | None = None
        self._inherited = 0
        self._ended: Ended | None = None
        self._rewards: dict[str, float] = {}

    def read(self, record: Record) -> None:
        match record:
            case Header():
                self._headers.append(record)
                self._inherited = len(self._items)
                self._open = self._ended = None
            case IntentGiven():
                self._ended = None
                self._hear("intent", record.intent, record.at, record.entity_id, record.images)
                # a code circle has the data as a variable
                if record.context is not None and self._headers[-1].circle.get("medium", "tools") == "tools":
                    self._hear("context", f"context:\n{as_text(record.context)}", record.at, record.entity_id)
            case Steered():
                self._hear("steer", record.text, record.at, record.entity_id, record.images)
            case Folded():
                self._items.append(record)
            case Rewarded():
                self._rewards[record.turn_id] = record.reward
            case Ended():
                self._ended = record
            case GateStarted():
                pass
            case _:
                self._act(record)

    def _act(self, record: Utterance | GateFinished | Committed | ChildStarted) -> None:
        said = self._open
        if isinstance(record, Utterance):
            self._open = _Open(record)
        elif said is None:
            return
        elif isinstance(record, GateFinished):
            said.take(record)
        elif isinstance(record, ChildStarted):
            said.children.append(record)
        else:
            self._commit(said, record)

    def _commit(self, said: _Open, turn: Committed) -> None:
        if not said.turns:
            self._items.append(said)
        said.turns.append(turn)
        said.kept = (len(said.results), len(said.others))
        coded = said.utterance.code is not None and self._headers[-1].circle.get("medium", "tools") != "tools"
        if not said.utterance.tool_calls and not turn.terminated and not coded:
            self._hear("reminder", NO_GATE, turn.at, turn.entity_id)

    def _hear(
        self,
        kind: Literal["intent", "context", "steer", "reminder"],
        text: str,
        at: str,
        entity: str,
        images: tuple[Image, ...] = NO_IMAGES,
    ) -> None:
        self._open = None
        self._items.append(Heard(kind, text, at, entity, images))

    def conversation(self) -> Conversation:
        if not self._headers:
            raise ValueError(
                "no header among the records: expected a thread from its beginning, as Loom.lineage has it"
            )
        items = tuple(item.said(self._rewards) if isinstance(item, _Open) else item for item in self._items)
        return Conversation(self._headers[-1], items, self._inherited, self._ended)


# --------------------------------------------------------------------------------------------------------- as messages


def as_messages(told: Conversation, *, hide_ephemeral: bool = False) -> list[Message]:
    """The conversation as messages: system prompt, users, assistant with calls, a tool message for every call."""
    prompt = told.system_prompt
    messages = [Message("system", prompt)] if prompt else []
    for item in told.items:
        messages.extend(messages_of(item, hide_ephemeral=hide_ephemeral))
    return messages


def messages_of(item: Item, *, hide_ephemeral: bool = False) -> Iterator[Message]:
    """One item's messages; a fold has none."""
    match item:
        case Heard():
            yield Message("user", item.text, images=item.images)
        case Said():
            yield spoken(item.utterance)
            for result, call in zip(item.results, item.utterance.tool_calls, strict=True):
                seen = result.observation
                if seen is None:
                    yield from unanswered([call], result.text)
                else:
                    hidden = hide_ephemeral and seen.ephemeral and not seen.is_error
                    yield observed(seen, hidden=hidden)
            for one in item.others:  # what gates said to a program, the program said to the crystal, or did not
                if one.observation is not None and one.observation.tool_call_id is None:
                    ended, images = one.observation.result, one.observation.images
                    yield Message("user", shown(ended) if isinstance(ended, dict) else one.text, images=images)
        case _:
            pass
