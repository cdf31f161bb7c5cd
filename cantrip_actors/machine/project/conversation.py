"""A thread's records as a conversation: each message with its author, and the result of every call. Exports are made
from it.

The loom cuts an utterance into several turns where a child ran (LOOM-8). A conversation has one `Said` for each
utterance, with all of its calls and their results, as the crystal saw it. This is the context that `make_fork_state`
folds for a fork; but it is made from records alone, because a program that exports a loom may not have its cantrips. A
test compares the two.

Intents that were undone are left out. All else is there: folds and moves to another cantrip are noted where they
happened and take nothing away (LOOM-5), an ephemeral result is there in full (PROD-5). The exports can hide it, as the
crystal saw it later (D-010).

An utterance after the last committed turn, which a crash interrupted, is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from cantrip_actors.machine.context import LEFT_OUT, NO_GATE, SKIPPED, call_person, render_result, render_utterance
from cantrip_actors.machine.project.entity import find_header_in_force
from cantrip_actors.machine.project.undone import drop_undone
from cantrip_actors.records.records import (
    Adopted,
    ChildStarted,
    Committed,
    Decided,
    Ended,
    Folded,
    ForgottenRecord,
    GateFinished,
    Header,
    IntentGiven,
    Observation,
    Record,
    Resumed,
    Rewarded,
    Steered,
    Utterance,
)
from cantrip_actors.terms.file import File
from cantrip_actors.terms.history import build_history_messages
from cantrip_actors.terms.image import NO_IMAGES
from cantrip_actors.terms.languages import has_programs, read_medium
from cantrip_actors.terms.messages import Message, ToolCall, as_text
from cantrip_actors.terms.own_gate_names import CALL_AGENT


@dataclass(frozen=True, slots=True)
class Heard:
    """A message to the entity: its intent, data for it, a steering message, the loop's reminder, or a message of the
    intent's history as text.
    """

    kind: Literal["intent", "context", "steer", "reminder", "history"]
    text: str
    at: str
    entity_id: str
    images: tuple[File, ...] = NO_IMAGES
    by: str = ""
    """The sender, if the record names one."""
    is_pinned: bool = False
    gate: str | None = None
    """The gate whose result it is, if it is the answer of a background child."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """A message of an intent's history: of an assistant with the `results` of its calls, or of a user or a system."""

    message: Message
    at: str
    entity_id: str
    by: str = ""
    """The sender of the intent."""
    results: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a call; `observation` is None for a call that was not run, and `text` says why."""

    call_id: str
    gate: str
    text: str
    observation: Observation | None = None
    duration_ms: float = 0.0
    children: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """An utterance with the results of its calls, and the turns of the loom that it became.

    `results` are in the order of the calls, one each. `others` belong to a program: the results of its gate calls, and
    last, without a call id, the result of the program itself, as `render_result_text` showed it to the crystal.
    """

    utterance: Utterance
    results: tuple[Result, ...]
    others: tuple[Result, ...]
    turns: tuple[Committed, ...]
    rewards: tuple[float | None, ...] = ()
    """The latest reward of each turn."""
    decisions: tuple[Decided, ...] = ()
    """The decisions and answers of people about its calls."""
    resumes: tuple[Resumed, ...] = ()
    """The resumptions of the entity before it had said this, or before all results were there."""
    reply: Result | None = None
    """The reply of a person to the text, in a circle with medium="person"."""

    @property
    def replier(self) -> str:
        """The name of the person who replied; empty without a reply."""
        return self.decisions[-1].by if self.reply is not None and self.decisions else ""


@dataclass(frozen=True, slots=True)
class Moved:
    """From here on another cantrip is in force; `header` is the entity's with its call, circle and crystal."""

    header: Header
    at: str


Item = Heard | Recalled | Said | Folded | Moved


@dataclass(frozen=True, slots=True)
class Conversation:
    """The thread of an entity. A fork's thread begins with the items of the original, and `inherited` counts them.

    `header` is the entity's own header, with the call that it began with. `ended` is the record of the end of the
    entity or its latest episode, if any.
    """

    header: Header
    items: tuple[Item, ...]
    inherited: int = 0
    ended: Ended | None = None

    @property
    def system_prompt(self) -> str | None:
        """The system prompt of the call, if it has one."""
        prompt = self.header.call.get("system_prompt")
        return prompt if isinstance(prompt, str) and prompt else None

    @property
    def folds(self) -> list[tuple[int, Folded]]:
        """The folds among the items, with their indexes."""
        return [(at, item) for at, item in enumerate(self.items) if isinstance(item, Folded)]

    def get_header_at(self, index: int) -> Header:
        """Return the header with the cantrip, call, circle and crystal in force at the item with this index."""
        moves = [item.header for item in self.items[self.inherited : index] if isinstance(item, Moved)]
        return moves[-1] if moves else self.header

    def split_by_call(self) -> Iterator[Conversation]:
        """Yield the conversation as the crystal saw it under each call that was in force, oldest call first.

        Each one has the header of its call and ends where the next call begins. Its `inherited` counts the items before
        its call. Of several calls, one without utterances is left out.
        """
        moves = [at for at, item in enumerate(self.items) if at >= self.inherited and isinstance(item, Moved)]
        if not moves:
            yield self
            return
        for begin, end in pairwise([self.inherited, *moves, len(self.items)]):
            if any(isinstance(item, Said) for item in self.items[begin:end]):
                ended = self.ended if end == len(self.items) else None
                header = self.get_header_at(begin + 1)
                yield replace(self, header=header, items=self.items[:end], inherited=begin, ended=ended)

    @property
    def said(self) -> list[Said]:
        """The utterances."""
        return [item for item in self.items if isinstance(item, Said)]


def build_conversation(records: Iterable[Record]) -> Conversation:
    """Return the conversation in `records`: a `Loom.lineage`, or all records of an entity that is not a fork.

    Raises ValueError if the records do not begin with a header.
    """
    reader = _Reader()
    for record in drop_undone(records):
        reader.read(record)
    return reader.build_conversation()


def list_heard_by_turn(records: Iterable[Record]) -> dict[str | None, list[Heard]]:
    """Return the intents and steering messages of an entity by the turn that follows them; None: none follows yet."""
    by_turn: dict[str | None, list[Heard]] = {}
    waiting: list[Heard] = []
    for record in records:
        match record:
            case IntentGiven(intent=text):
                waiting += [_quote(item) for item in read_history_items(record)]
                by = record.sender or ""
                waiting.append(Heard("intent", text, record.at, record.entity_id, record.own_images, by))
            case Steered(text=text):
                waiting.append(Heard("steer", text, record.at, record.entity_id, record.images, record.sender or ""))
            case Committed() if waiting:
                by_turn[record.turn_id], waiting = waiting, []
            case _:
                pass
    return {**by_turn, None: waiting} if waiting else by_turn


def read_history_items(record: IntentGiven) -> list[Recalled]:
    """Return the history of an intent; results are with the message whose calls they answer."""
    items: list[Recalled] = []
    for message in build_history_messages(record.history, record.past_images):
        last = items[-1] if items else None
        if message.role == "tool" and last is not None and last.message.tool_calls:
            items[-1] = replace(last, results=(*last.results, message))
        else:
            items.append(Recalled(message, record.at, record.entity_id, record.sender or ""))
    return items


def _quote(item: Recalled) -> Heard:
    """Return a message of a history as a text that says who wrote it."""
    message = item.message
    lines = [f"{message.role}: {message.content}"] if message.content or not message.tool_calls else []
    lines += [f"{message.role} calls {call.gate}({call.arguments})" for call in message.tool_calls]
    lines += [f"{result.gate} answers {result.content}" for result in item.results]
    images = (*message.images, *(image for result in item.results for image in result.images))
    unplaced = tuple(image.with_position(None) for image in images)
    return Heard("history", "\n".join(lines), item.at, item.entity_id, unplaced, item.by)


@dataclass(slots=True)
class _Open:
    """An utterance whose calls may not have all results yet."""

    utterance: Utterance
    results: list[Result] = field(default_factory=list)
    others: list[Result] = field(default_factory=list)
    turns: list[Committed] = field(default_factory=list)
    children: list[ChildStarted] = field(default_factory=list)
    decisions: list[Decided] = field(default_factory=list)
    resumes: list[Resumed] = field(default_factory=list)
    committed: tuple[int, int] = (0, 0)
    """The lengths of `results` and `others` when the last turn was committed."""
    is_spoken: bool = False
    """Whether its text waits for the reply of a person."""

    def take(self, finished: GateFinished) -> None:
        seen = finished.observation
        called = self.utterance.tool_calls
        expected = called[len(self.results)] if len(self.results) < len(called) else None
        by_call = expected is not None and expected.id == seen.tool_call_id
        children = tuple(c.child_id for c in self.children if c.tool_call_id == seen.tool_call_id)
        text = render_result(seen, hidden=False).content or ""
        result = Result(seen.tool_call_id or "", seen.gate, text, seen, finished.duration_ms, children)
        (self.results if by_call else self.others).append(result)

    @property
    def unanswered(self) -> Sequence[ToolCall]:
        return self.utterance.tool_calls[len(self.results) :]

    def finish(self, rewards: dict[str, float]) -> Said:
        results, others = self.results[: self.committed[0]], self.others[: self.committed[1]]
        reply = others.pop() if self.is_spoken and others else None
        rest = self.utterance.tool_calls[len(results) :]
        why = SKIPPED if self.turns[-1].terminated else LEFT_OUT
        results += [Result(call.id, call.gate, why) for call in rest]
        rewards_of_turns = tuple(rewards.get(turn.turn_id) for turn in self.turns)
        return Said(
            self.utterance,
            tuple(results),
            tuple(others),
            tuple(self.turns),
            rewards_of_turns,
            tuple(self.decisions),
            tuple(self.resumes),
            reply,
        )


class _Reader:
    def __init__(self) -> None:
        self._headers: list[Header] = []
        self._items: list[Heard | Recalled | _Open | Folded | Moved] = []
        self._in_force: Header | None = None
        self._open: _Open | None = None
        self._inherited = 0
        self._ended: Ended | None = None
        self._rewards: dict[str, float] = {}
        self._resumes: list[Resumed] = []
        """Those since the last turn."""

    @property
    def _is_coded(self) -> bool:
        """Whether the circle in force has a language."""
        return self._in_force is not None and has_programs(read_medium(self._in_force.circle))

    @property
    def _is_for_person(self) -> bool:
        """Whether texts of the entity are for a person."""
        return self._in_force is not None and self._in_force.circle.get("medium") == "person"

    def read(self, record: Record) -> None:
        match record:
            case Header():
                self._headers.append(record)
                self._in_force = record
                self._inherited = len(self._items)
                self._open = self._ended = None
            case IntentGiven():
                self._ended = None
                self._items += read_history_items(record)
                self._hear("intent", record.intent, record.at, record.entity_id, record.own_images, record.sender or "")
                # a code circle has the data as a variable
                if record.context is not None and not self._is_coded:
                    text, by = f"context:\n{as_text(record.context)}", record.sender or ""
                    self._hear("context", text, record.at, record.entity_id, by=by)
            case Steered():
                sender = record.sender or ""
                text, gate = record.text, None if record.child is None else CALL_AGENT
                self._hear("steer", text, record.at, record.entity_id, record.images, sender, record.pinned, gate)
            case Folded():
                self._items.append(record)
            case Adopted():
                self._in_force = find_header_in_force(self._headers[-1], [record])
                self._items.append(Moved(self._in_force, record.at))
            case Rewarded():
                self._rewards[record.turn_id] = record.reward
            case Resumed():
                self._resumes.append(record)
            case Ended():
                self._ended = record
            case ForgottenRecord():
                self._items.clear()
                self._open = None
            case Utterance() | GateFinished() | Committed() | ChildStarted() | Decided():
                self._act(record)
            case _:
                pass

    def _act(self, record: Utterance | GateFinished | Committed | ChildStarted | Decided) -> None:
        opened = self._open
        if isinstance(record, Utterance):
            is_spoken = self._is_for_person and bool(call_person(render_utterance(record), 1))
            self._open = _Open(record, is_spoken=is_spoken)
        elif opened is None:
            return
        elif isinstance(record, GateFinished):
            opened.take(record)
        elif isinstance(record, ChildStarted):
            opened.children.append(record)
        elif isinstance(record, Decided):
            opened.decisions.append(record)
        else:
            self._commit(opened, record)

    def _commit(self, opened: _Open, turn: Committed) -> None:
        if not opened.turns:
            self._items.append(opened)
        opened.turns.append(turn)
        opened.resumes += self._resumes
        self._resumes = []
        opened.committed = (len(opened.results), len(opened.others))
        coded = opened.utterance.code is not None and self._is_coded
        if not opened.utterance.tool_calls and not turn.terminated and not coded and not opened.is_spoken:
            self._hear("reminder", NO_GATE, turn.at, turn.entity_id)

    def _hear(
        self,
        kind: Literal["intent", "context", "steer", "reminder"],
        text: str,
        at: str,
        entity: str,
        images: tuple[File, ...] = NO_IMAGES,
        by: str = "",
        is_pinned: bool = False,
        gate: str | None = None,  # the fields of Heard, in order
    ) -> None:
        self._open = None
        self._items.append(Heard(kind, text, at, entity, images, by, is_pinned, gate))

    def build_conversation(self) -> Conversation:
        if not self._headers:
            raise ValueError(
                "no header among the records: expected a thread from its beginning, as Loom.lineage has it"
            )
        items = tuple(item.finish(self._rewards) if isinstance(item, _Open) else item for item in self._items)
        return Conversation(self._headers[-1], items, self._inherited, self._ended)
