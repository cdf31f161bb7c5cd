"""One episode as it happens: `Runtime.stream` and `Entity.stream` return it.

A run reads `Entity.events(after=)`, from the beginning of the log, and delivers the events of its own episode: the
recorded ones, with ids, from whichever process runs the entity, and in between the pieces of answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Generic, Self

import anyio

from cantrip_actors.runtime.events.log_feed import EventFeed
from cantrip_actors.runtime.face.episode import Episode
from cantrip_actors.runtime.loom.outage_log import OutageLog
from cantrip_actors.runtime.mail.inboxes import POLL_INTERVAL
from cantrip_actors.stream.events import EntityEndedEvent, EntityEvent, EntityStartedEvent, EpisodeEndedEvent
from cantrip_actors.stream.pieces import TextPieces
from cantrip_actors.stream.reading import EventId
from cantrip_actors.terms.answer import Answer_co
from cantrip_actors.terms.errors import CantripError, InvalidIntent, LoomError

BEGINNING: Final = EventId()


def read_event_id(text: object) -> EventId:
    """Return the position that the id of an event names. Raises InvalidIntent."""
    event = EventId.parse(text) if isinstance(text, str) else None
    if event is None:
        raise InvalidIntent(f"events: after: expected the id of an event, or '0', got {text!r}")
    return event


@dataclass(frozen=True, slots=True)
class RunPosition:
    """A position in a run, as `EpisodeRun.position` writes it; `entity_id` is None for the id of an event alone."""

    entity_id: str | None
    event: EventId

    @classmethod
    def parse(cls, text: object) -> RunPosition:
        """Return the position in a text; None is the beginning. Raises InvalidIntent."""
        if text is None:
            return cls(None, BEGINNING)
        entity_id, _, id = text.rpartition(":") if isinstance(text, str) else ("", "", "")
        event = EventId.parse(id)
        if event is None:
            raise InvalidIntent(f"resume: expected a position of a run or the id of an event, got {text!r}")
        return cls(entity_id or None, event)


@dataclass(frozen=True)
class FollowedEpisode(Generic[Answer_co]):
    """An episode that a run follows, and how to wait for it and to cancel it."""

    entity_id: str
    feed: EventFeed
    key: str | None
    """The key of its intent; None for the only episode of a one-shot entity."""
    wait: Callable[[], Awaitable[Episode[Answer_co]]]
    cancel: Callable[[], Awaitable[object]]
    has_no_episode: Callable[[], Awaitable[bool]]
    """Returns whether its intent was refused or withdrawn, so that no episode comes."""
    load: Callable[[], object]
    """Loads its entity if no process runs it."""


class RunEvents(AsyncIterator[EntityEvent]):
    """The events of one episode after a position, in order. It ends with the episode.

    A reader counts as a caller that waits: if the process that ran the entity has died, this one loads it.
    """

    def __init__(
        self,
        feed: EventFeed,
        key: str | None,
        has_no_episode: Callable[[], Awaitable[bool]],
        load: Callable[[], object],
        after: EventId,
        begins: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._feed = feed
        self._key = key
        self._has_no_episode = has_no_episode
        self._load = load
        self._begins = begins
        """Waits until the entity has begun; returns False if it never will."""
        self._after = after
        self._has_begun = key is None
        self.has_ended = False
        """Whether the end of the episode was among the events."""

    @property
    def last(self) -> EventId:
        """The id of the last event that has one."""
        return self._after

    @property
    def is_over(self) -> bool:
        """Whether no further event comes; earlier ones can still be read."""
        return self.has_ended or self._feed.is_over

    def close(self) -> None:
        """Take no further events."""
        self._feed.close()

    async def __anext__(self) -> EntityEvent:
        while not self.has_ended:
            event = await self._read_next()
            if isinstance(event, EntityStartedEvent) and not self._has_begun:
                self._has_begun = (event.key or "") == self._key
            if not self._has_begun:
                continue
            self.has_ended = isinstance(event, EpisodeEndedEvent | EntityEndedEvent)
            id = EventId.parse(event.id)
            if id is None:
                return event
            if id > self._after:
                self._after = id
                return event
        raise StopAsyncIteration

    async def _read_next(self) -> EntityEvent:
        if self._begins is not None:
            if not await self._begins():
                self.has_ended = True
                raise StopAsyncIteration
            self._begins = None
        while (event := await self._feed.poll()) is None:
            if self._has_begun:
                self._load()
            elif await self._has_no_episode():
                self.has_ended = True
                raise StopAsyncIteration
        return event


async def follow_through_outages(events: RunEvents) -> AsyncIterator[EntityEvent]:
    """Yield the events of an episode to its end; while the loom cannot be read, wait, and log it."""
    log = OutageLog("events could not be read", "events are read again")
    while not events.is_over:
        with log.watch():
            async for event in events:
                yield event
        if log.has_failed:
            await anyio.sleep(POLL_INTERVAL)


class RunText(AsyncIterator[str]):
    """The text of one episode in pieces; it reads the events of its run."""

    def __init__(self, events: RunEvents) -> None:
        self._events = events
        self._pieces = TextPieces()

    @property
    def is_over(self) -> bool:
        """Whether no further piece comes; earlier ones can still be read."""
        return self._events.is_over

    def close(self) -> None:
        """Take no further pieces."""
        self._events.close()

    async def __anext__(self) -> str:
        while True:
            piece = self._pieces.add(await anext(self._events))
            if piece:
                return piece


class EpisodeRun(Generic[Answer_co]):
    """An episode that is followed while it happens: `async with runtime.stream(cantrip, intent) as run`.

    The work begins when the block is entered. Leaving the block before the episode has ended cancels the episode, as
    cancelling `cast` does; with a `key` it does not, because a reader that lost its connection may come back for it.
    """

    def __init__(
        self, begin: Callable[[RunPosition], Awaitable[FollowedEpisode[Answer_co]]], resume: object, *, keeps: bool
    ) -> None:
        self._begin = begin
        self._from = RunPosition.parse(resume)
        self._keeps = keeps
        self._entered: tuple[FollowedEpisode[Answer_co], RunEvents] | None = None
        self._text: RunText | None = None

    async def __aenter__(self) -> Self:
        episode = await self._begin(self._from)
        events = RunEvents(episode.feed, episode.key, episode.has_no_episode, episode.load, self._from.event)
        self._entered = episode, events
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        episode, events = self._get_entered()
        events.close()
        if self._keeps or events.has_ended:
            return
        with anyio.CancelScope(shield=True), suppress(CantripError):  # it has ended, or the runtime closes and ends it
            await episode.cancel()

    def _get_entered(self) -> tuple[FollowedEpisode[Answer_co], RunEvents]:
        if self._entered is None:
            raise LoomError("a run begins when its block is entered: async with runtime.stream(…) as run")
        return self._entered

    @property
    def entity_id(self) -> str:
        """The id of the entity."""
        return self._get_entered()[0].entity_id

    @property
    def position(self) -> str:
        """The position after the last event that was read, for `resume` in any process: with the entity's id."""
        episode, events = self._get_entered()
        return f"{episode.entity_id}:{events.last}"

    def events(self) -> RunEvents:
        """Return the events of the episode, to its end: recorded ones, which have ids, and pieces of answers.

        `events` and `text` read the same events, and each event is delivered once: use one of them at a time.
        """
        return self._get_entered()[1]

    def text(self) -> RunText:
        """Return the text that the entity says, in pieces as they come; a blank line is between the texts of two turns.

        The pieces of an attempt that failed, and is retried, stay. An answer that is given with `done` is no text:
        `result` has it.
        """
        if self._text is None:
            self._text = RunText(self._get_entered()[1])
        return self._text

    async def result(self) -> Episode[Answer_co]:
        """Wait for the end of the episode, and return it. Raises as `Runtime.cast` and `Entity.send` do."""
        return await self._get_entered()[0].wait()
