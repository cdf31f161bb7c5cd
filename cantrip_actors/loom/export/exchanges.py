"""The exchanges of a conversation: intents with the events of their episodes, and the replies of people."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from cantrip_actors.loom.reading.view import Loom
from cantrip_actors.machine.project import as_answer, as_intent, as_steered, cut_intents
from cantrip_actors.records.records import IntentGiven, Record, Steered
from cantrip_actors.stream.events import (
    DecidedEvent,
    EntityEndedEvent,
    EntityEvent,
    EpisodeEndedEvent,
    RequestedEvent,
    UndoneEvent,
)
from cantrip_actors.stream.reading import EventLog
from cantrip_actors.terms.file import File
from cantrip_actors.terms.messages import as_text


class PersonReply(NamedTuple):
    """The reply of a person to an utterance, and how many events of the episode came before it."""

    request_id: str
    text: str
    files: tuple[File, ...]
    number: int


@dataclass(slots=True)
class Exchange:
    """An intent, the events of its episode, the replies to its utterances, and the messages between its turns."""

    intent: IntentGiven
    events: list[EntityEvent] = field(default_factory=list)
    replies: list[PersonReply] = field(default_factory=list)
    steered: list[Steered] = field(default_factory=list)
    open_utterance: str | None = None
    """The id of the request for the reply that the entity waits for."""
    is_over: bool = False

    def add(self, event: EntityEvent, record: Record) -> None:
        """Add the next event, and the record of which it was made."""
        if isinstance(event, RequestedEvent) and event.is_utterance:
            self.open_utterance = event.request_id
        elif isinstance(event, DecidedEvent) and event.request_id == self.open_utterance:
            self.open_utterance, answer = None, as_answer(record)
            if answer is not None:
                reply = PersonReply(event.request_id, as_text(answer.answer), answer.images, len(self.events))
                self.replies.append(reply)
        elif isinstance(event, EpisodeEndedEvent | EntityEndedEvent):
            self.is_over = True
        elif (steered := as_steered(record)) is not None:
            self.steered.append(steered)
        self.events.append(event)


class Exchanges(NamedTuple):
    """The newest exchanges of a conversation, oldest first, and then the intents that still wait in the inbox."""

    recorded: list[Exchange]
    waiting: list[Exchange]


def read_exchanges(loom: Loom, entity_id: str, count: int) -> Exchanges:
    """Return the newest `count` exchanges of an entity that were not undone, and those that wait. Raises LoomError."""
    waiting = loom.waiting_intents(entity_id)  # read first: an intent that is taken meanwhile is in the log
    exchanges: list[Exchange] = []
    log = EventLog()
    for record in loom.newest_records(entity_id, partial(cut_intents, count=count)):
        intent = as_intent(record)
        if intent is not None:
            exchanges.append(Exchange(intent))
        for event in log.add(record):
            if isinstance(event, UndoneEvent) and exchanges:
                exchanges.pop()
            elif exchanges:
                exchanges[-1].add(event, record)
    recorded = {exchange.intent.key for exchange in exchanges}
    return Exchanges(exchanges[-count:], [Exchange(intent) for intent in waiting if intent.key not in recorded])
