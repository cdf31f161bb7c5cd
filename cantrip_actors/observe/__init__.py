"""Observe running entities: upserts and turn events for subscribers. Observation, never control."""

from cantrip_actors.observe.batching import Batching
from cantrip_actors.observe.delivery import FellBehind, Upserts, UpsertSubscription
from cantrip_actors.observe.processor import Processor
from cantrip_actors.observe.telemetry import Telemetry
from cantrip_actors.observe.upserts import (
    FinalResponse,
    ImageUpsert,
    MessageUpsert,
    Output,
    Parent,
    ThinkingUpsert,
    ToolCallUpsert,
    TurnComplete,
    TurnError,
    TurnEvent,
    TurnStarted,
    Upsert,
    as_message,
    fold,
    history,
    standing,
)

__all__ = [
    "Batching",
    "FellBehind",
    "FinalResponse",
    "ImageUpsert",
    "MessageUpsert",
    "Output",
    "Parent",
    "Processor",
    "Telemetry",
    "ThinkingUpsert",
    "ToolCallUpsert",
    "TurnComplete",
    "TurnError",
    "TurnEvent",
    "TurnStarted",
    "Upsert",
    "UpsertSubscription",
    "Upserts",
    "as_message",
    "fold",
    "history",
    "standing",
]
