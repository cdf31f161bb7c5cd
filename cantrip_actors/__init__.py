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

# Names are imported when they are first used: so `cantrip --help` answers at once, and ctrl-C is handled before
# anything that takes time is imported.

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cantrip_actors.crystal import Scripted, replayed, scripted
    from cantrip_actors.loom import Loom, open_loom
    from cantrip_actors.model.call import Call
    from cantrip_actors.model.cantrip import Cantrip, Crystal, Folding, Retry
    from cantrip_actors.model.circle import Circle
    from cantrip_actors.model.companion import Companion, Here
    from cantrip_actors.model.errors import (
        CantripError,
        CrystalError,
        EntityCrashed,
        EntityEnded,
        ImmutableError,
        InvalidCantrip,
        InvalidImage,
        InvalidIntent,
        LoomError,
        ProviderError,
        RuntimeClosed,
    )
    from cantrip_actors.model.gate import Gate, Injected, gate
    from cantrip_actors.model.image import Image
    from cantrip_actors.model.messages import Invocation, Message, Response, ToolCall, ToolDefinition, Usage
    from cantrip_actors.model.turn import Observation, Turn, TurnMetadata
    from cantrip_actors.model.wrapping import GateCall, Refused, wrap
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
    "Companion",
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
    "GateCall",
    "Here",
    "Image",
    "ImmutableError",
    "Injected",
    "InvalidCantrip",
    "InvalidImage",
    "InvalidIntent",
    "Invocation",
    "Loom",
    "LoomError",
    "Message",
    "MissedEvent",
    "Observation",
    "ProviderError",
    "Refused",
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
    "wrap",
]

_HOMES = {
    "cantrip_actors.crystal": (
        "Scripted",
        "replayed",
        "scripted",
    ),
    "cantrip_actors.loom": (
        "Loom",
        "open_loom",
    ),
    "cantrip_actors.model.call": ("Call",),
    "cantrip_actors.model.cantrip": (
        "Cantrip",
        "Crystal",
        "Folding",
        "Retry",
    ),
    "cantrip_actors.model.circle": ("Circle",),
    "cantrip_actors.model.companion": (
        "Companion",
        "Here",
    ),
    "cantrip_actors.model.errors": (
        "CantripError",
        "CrystalError",
        "EntityCrashed",
        "EntityEnded",
        "ImmutableError",
        "InvalidCantrip",
        "InvalidImage",
        "InvalidIntent",
        "LoomError",
        "ProviderError",
        "RuntimeClosed",
    ),
    "cantrip_actors.model.gate": (
        "Gate",
        "Injected",
        "gate",
    ),
    "cantrip_actors.model.image": ("Image",),
    "cantrip_actors.model.messages": (
        "Invocation",
        "Message",
        "Response",
        "ToolCall",
        "ToolDefinition",
        "Usage",
    ),
    "cantrip_actors.model.turn": (
        "Observation",
        "Turn",
        "TurnMetadata",
    ),
    "cantrip_actors.model.wrapping": (
        "GateCall",
        "Refused",
        "wrap",
    ),
    "cantrip_actors.runtime": (
        "BlockingEntity",
        "BlockingRuntime",
        "Entity",
        "Episode",
        "Runtime",
    ),
    "cantrip_actors.runtime.events": (
        "EntityEndedEvent",
        "EntityEvent",
        "EntityStartedEvent",
        "FinalResponseEvent",
        "MissedEvent",
        "StepCompleteEvent",
        "StepStartEvent",
        "Subscription",
        "TextEvent",
        "ThinkingEvent",
        "ToolCallEvent",
        "ToolResultEvent",
        "UsageEvent",
    ),
}
_READING = frozenset(
    ("cantrip_actors.loom", "cantrip_actors.model.errors", "cantrip_actors.model.turn", "cantrip_actors.runtime.events")
)
"""What is of use to who only looks at what others did."""

_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if module not in _READING:
        import_module("cantrip_actors.circle")  # makes the standard gates known by name
    found = globals()[name] = getattr(import_module(module), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
