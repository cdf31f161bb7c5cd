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
from cantrip_actors.observe.view import SpecView

__all__ = [
    "Batching",
    "FellBehind",
    "FinalResponse",
    "ImageUpsert",
    "MessageUpsert",
    "Output",
    "Processor",
    "SpecView",
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
