"""Cantrip: language-model agents as supervised actors.

A *cantrip* (crystal + call + circle) is a value. Casting it on an intent makes an *entity*, which runs as a
supervised actor, spawns children as nested subtrees, and writes every turn into an append-only *loom*:

    from cantrip_actors import Cantrip, Circle, Runtime, gate, scripted
    from cantrip_actors.wards import max_turns

    @gate
    async def search(query: str, limit: int = 5) -> list[str]:
        "Search the notes."
        ...

    cantrip = Cantrip(crystal=scripted([...]), circle=Circle(gates=["done", search], wards=[max_turns(50)]))
    async with Runtime.open("jsonl:loom.jsonl") as runtime:
        episode = await runtime.cast(cantrip, "find what I wrote about milk")
"""

from cantrip_actors import circle as _circle  # noqa: F401  # its import makes the standard gates known by name
from cantrip_actors.crystal import Scripted, replayed, scripted
from cantrip_actors.loom import Loom, open_loom
from cantrip_actors.model.call import Call
from cantrip_actors.model.cantrip import Cantrip, Crystal, Folding, Retry
from cantrip_actors.model.circle import Circle
from cantrip_actors.model.errors import (
    CantripError,
    CrystalError,
    EntityCrashed,
    EntityEnded,
    ImmutableError,
    InvalidCantrip,
    InvalidIntent,
    LoomError,
    ProviderError,
    RuntimeClosed,
)
from cantrip_actors.model.gate import Gate, Injected, gate
from cantrip_actors.model.messages import Invocation, Message, Response, ToolCall, ToolDefinition, Usage
from cantrip_actors.model.turn import Observation, Turn, TurnMetadata
from cantrip_actors.runtime import BlockingEntity, BlockingRuntime, Entity, Episode, Runtime
from cantrip_actors.runtime.events import (
    EntityEndedEvent,
    EntityEvent,
    EntityStartedEvent,
    FinalResponseEvent,
    MissedEvent,
    StepCompleteEvent,
    StepStartEvent,
    Subscription,
    TextEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)

__all__ = [
    "BlockingEntity",
    "BlockingRuntime",
    "Call",
    "Cantrip",
    "CantripError",
    "Circle",
    "Crystal",
    "CrystalError",
    "Entity",
    "EntityCrashed",
    "EntityEnded",
    "EntityEndedEvent",
    "EntityEvent",
    "EntityStartedEvent",
    "Episode",
    "FinalResponseEvent",
    "Folding",
    "Gate",
    "ImmutableError",
    "Injected",
    "InvalidCantrip",
    "InvalidIntent",
    "Invocation",
    "Loom",
    "LoomError",
    "Message",
    "MissedEvent",
    "Observation",
    "ProviderError",
    "Response",
    "Retry",
    "Runtime",
    "RuntimeClosed",
    "Scripted",
    "StepCompleteEvent",
    "StepStartEvent",
    "Subscription",
    "TextEvent",
    "ThinkingEvent",
    "ToolCall",
    "ToolCallEvent",
    "ToolDefinition",
    "ToolResultEvent",
    "Turn",
    "TurnMetadata",
    "Usage",
    "UsageEvent",
    "gate",
    "open_loom",
    "replayed",
    "scripted",
]
