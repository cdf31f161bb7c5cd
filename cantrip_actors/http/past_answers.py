"""The earlier answers of an episode: a client continued each with results of calls, or with a reply.

A stored response stays as its client got it. So these answers are read from the events of the episode, and of the
children that it delegated to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from cantrip_actors import (
    AdoptedEvent,
    DecidedEvent,
    DelegatedEvent,
    EntityEndedEvent,
    EntityEvent,
    EntityStartedEvent,
    EpisodeEndedEvent,
    Gate,
    RequestedEvent,
    StepCompleteEvent,
    TextEvent,
    ToolCallEvent,
    Usage,
    UsageEvent,
    Work,
)
from cantrip_actors.http.calls import HttpCall
from cantrip_actors.http.client_rounds import find_client_additions, make_round_key
from cantrip_actors.http.episode_tools import Rest, list_calls
from cantrip_actors.stream.reading import EventLog
from cantrip_actors.terms.messages import NO_USAGE, ToolCall

_WIDEST: Final = 32
"""The most groups of calls in one answer."""


class PastAnswer(NamedTuple):
    """An answer that its client continued with results; their ids are those of calls, or of a request for a reply."""

    rest: Rest
    results: Sequence[str]
    at: float
    """When the first result came."""

    @property
    def key(self) -> str:
        """The key of the results."""
        return make_round_key(self.results)


class PastAnswers(NamedTuple):
    """The past answers of an episode up to that with some key in its id, and those that follow it."""

    before: Sequence[PastAnswer]
    after: Sequence[PastAnswer]
    usage: Usage
    """That of the entity since the last decision or result."""


def has_asked_person(call: HttpCall, work: Work) -> bool:
    """Return whether an episode has come to wait for a person, who may have decided. Reads the loom."""
    events = _read_episode(call, work.entity_id, work.key)
    tools, _ = _find_tools(call, work.entity_id, events)
    requests = (event for event in events if isinstance(event, RequestedEvent) and not event.is_utterance)
    return any(not event.is_deferred or event.gate not in tools for event in requests)


def read_past_answers(
    call: HttpCall, entity_id: str, intent: str, key: str = "", *, can_reply: bool = True
) -> PastAnswers:
    """Return the past answers to an intent of an entity ("" is its first one), divided by the one whose results have a
    key; "" is before all of them.

    With `can_reply` the client replies to utterances. Reads the loom.
    """
    reader = _AnswerReader(call, entity_id, intent, can_reply=can_reply)
    delivered = [group for group in reader.groups if group.delivered is not None]
    groups = sorted(delivered, key=attrgetter("delivered"))
    first, last = _find_groups(groups, key)
    join = _divide if reader.one_call else _join
    before = [*join(groups[:first]), *(_make_answer(groups[first:last]) for _ in range(last > first))]
    return PastAnswers(before, [*join(groups[last:])], reader.usage)


def _read_episode(call: HttpCall, entity_id: str, intent: str) -> list[EntityEvent]:
    """Return the events of an episode, and of the children that it delegated to."""
    return sorted(_read_nested(call, entity_id, intent), key=attrgetter("at"))


def _read_nested(call: HttpCall, entity_id: str, intent: str | None = None) -> Iterator[EntityEvent]:
    """Yield the events of an intent of an entity; without one, all of them."""
    loom, has_begun, is_here = call.loom, False, intent is None
    for event in EventLog().add_all(loom.records(entity_id)):
        if isinstance(event, EntityStartedEvent) and intent is not None:
            is_here = event.key == intent if intent else not has_begun
            has_begun = has_begun or bool(event.intent)
        if is_here:
            yield event
            if isinstance(event, DelegatedEvent) and loom.has(event.child):
                yield from _read_nested(call, event.child)


def _find_tools(call: HttpCall, entity_id: str, events: Sequence[EntityEvent]) -> tuple[Mapping[str, Gate], bool]:
    """Return the tools that a client gave an entity in an episode, with any of its requests; and whether it wants one
    call at a time.
    """
    own = [event for event in events if event.entity_id == entity_id]
    committed = {event.turn_id for event in own if isinstance(event, StepCompleteEvent)}
    turns: list[str | None] = []
    """The first turn with each cantrip; None is for the cantrip in force."""
    has_moved = True
    for event in own:
        if isinstance(event, AdoptedEvent):
            has_moved = True
        elif isinstance(event, UsageEvent) and has_moved:
            turns.append(event.turn_id if event.turn_id in committed else None)
            has_moved = False
    if not any(isinstance(event, EpisodeEndedEvent | EntityEndedEvent) for event in own):
        turns.append(None)
    additions = [find_client_additions(call, entity_id, turn_id) for turn_id in turns]
    tools = {tool.name: tool.make_gate() for added in additions for tool in added.tools}
    return tools, any(added.one_call for added in additions)


@dataclass(slots=True)
class _CallGroup:
    """The calls of one utterance that a client carries out, or an utterance that it replies to."""

    rest: Rest
    results: Sequence[str]
    """The ids of the calls, or that of the request for the reply."""
    asked: int
    """The number of the event with the first request."""
    delivered: int | None = None
    """The number of the event with the first result."""
    at: float = 0.0
    """The time of that event."""


class _AnswerReader:
    """Reads the groups of an episode."""

    def __init__(self, call: HttpCall, entity_id: str, intent: str, *, can_reply: bool) -> None:
        self._entity_id = entity_id
        self._can_reply = can_reply
        self.groups: list[_CallGroup] = []
        self.usage = NO_USAGE
        self._words: str | None = None
        """The text of the entity's newest utterance."""
        self._text: str | None = None
        """That of the utterance that is being read."""
        self._calls: dict[str, list[ToolCall]] = {}
        """The calls of the newest utterance of each entity."""
        self._next_calls: dict[str, list[ToolCall]] = {}
        """Those of the utterance that is being read."""
        self._requests: dict[str, _CallGroup] = {}
        events = _read_episode(call, entity_id, intent)
        self._tools, self.one_call = _find_tools(call, entity_id, events)
        for number, event in enumerate(events):
            self._add(number, event)

    def _add(self, number: int, event: EntityEvent) -> None:
        is_own = event.entity_id == self._entity_id
        match event:
            case ToolCallEvent():
                calls = self._next_calls.setdefault(event.entity_id, [])
                calls.append(ToolCall(event.tool_call_id, event.gate, event.args))
            case TextEvent(is_code=False) if is_own:
                self._text = event.text
            case UsageEvent():
                self._calls[event.entity_id] = self._next_calls.pop(event.entity_id, [])
                if is_own:
                    self._words, self._text, self.usage = self._text, None, self.usage + event.usage
            case RequestedEvent():
                self._ask(number, event)
            case DecidedEvent():
                group = self._requests.get(event.request_id)
                if group is not None and group.delivered is None and event.decision in ("answer", "error"):
                    group.delivered, group.at = number, event.at
                if is_own:
                    self.usage = NO_USAGE
            case _:
                pass

    def _ask(self, number: int, event: RequestedEvent) -> None:
        """Add a request to the group of its utterance; most requests are of none, because people decide them."""
        if event.is_utterance and self._can_reply:
            rest, results = Rest((), event.text, self.usage, None), [event.request_id]
        elif event.is_deferred and event.gate in self._tools:
            first = ToolCall(event.tool_call_id, event.gate, event.args)
            calls = tuple(list_calls(event.entity_id, first, self._calls.get(event.entity_id, ()), self._tools))
            calls = calls[:1] if self.one_call else calls
            rest, results = Rest(calls, self._words, self.usage, None), [item.id for item in calls]
        else:
            return
        group = next((group for group in reversed(self.groups) if results[0] in group.results), None)
        if group is None:
            group = _CallGroup(rest, results, number)
            self.groups.append(group)
        self._requests[event.request_id] = group


def _find_groups(groups: Sequence[_CallGroup], key: str) -> tuple[int, int]:
    """Return the first and the last of the groups that were continued together with the results of a key."""
    if not key:
        return 0, 0
    for first in range(len(groups)):
        for last in range(first + 1, min(first + _WIDEST, len(groups)) + 1):
            if _make_answer(groups[first:last]).key == key:
                return first, last
    return len(groups), len(groups)


def _divide(groups: Sequence[_CallGroup]) -> Iterator[PastAnswer]:
    """Yield an answer with each group."""
    return (_make_answer([group]) for group in groups)


def _join(groups: Sequence[_CallGroup]) -> Iterator[PastAnswer]:
    """Yield the answers with these groups: children that work at the same time may wait together."""
    left = list(groups)
    while left:
        delivered = left[0].delivered or 0
        yield _make_answer([group for group in left if group.asked < delivered])
        left = [group for group in left if group.asked > delivered]


def _make_answer(groups: Sequence[_CallGroup]) -> PastAnswer:
    calls = tuple(item for group in sorted(groups, key=attrgetter("asked")) for item in group.rest.calls)
    newest = max(groups, key=attrgetter("asked")).rest
    results = [id for group in groups for id in group.results]
    return PastAnswer(newest._replace(calls=calls), results, min(group.at for group in groups))
