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
    from cantrip_actors.loom import (
        DamagedLoom,
        Forgotten,
        Held,
        InboxFull,
        KeyUsed,
        ListedEntity,
        Loom,
        Page,
        Quarantined,
        QueueFull,
        Selection,
        open_loom,
    )
    from cantrip_actors.records.records import Observation
    from cantrip_actors.records.turn import Turn, TurnMetadata
    from cantrip_actors.runtime.entity.upgrades import Move
    from cantrip_actors.runtime.events.events import Subscription
    from cantrip_actors.runtime.face.blocking import BlockingEntity, BlockingRuntime
    from cantrip_actors.runtime.face.entity import Entity
    from cantrip_actors.runtime.face.episode import Episode
    from cantrip_actors.runtime.face.run import EpisodeRun
    from cantrip_actors.runtime.face.runtime import Runtime
    from cantrip_actors.runtime.face.work import NoAnswer, Receipt, Work
    from cantrip_actors.runtime.nodes.membership import Node
    from cantrip_actors.runtime.people.request import Request
    from cantrip_actors.runtime.people.requests import RequestFeed, RequestSource
    from cantrip_actors.runtime.time.schedules import Schedule
    from cantrip_actors.stream.events import (
        AdoptedEvent,
        AttemptFailedEvent,
        DecidedEvent,
        DelegatedEvent,
        DeltaEvent,
        EntityEndedEvent,
        EntityEvent,
        EntityStartedEvent,
        EpisodeEndedEvent,
        FinalResponseEvent,
        FoldedEvent,
        ForgottenEvent,
        ImageEvent,
        ItemEndEvent,
        MissedEvent,
        RequestedEvent,
        ResumedEvent,
        RewardedEvent,
        SampledEvent,
        ServerChangedEvent,
        SteeredEvent,
        StepCompleteEvent,
        StepFailedEvent,
        StepStartEvent,
        StreamedEvent,
        TextEvent,
        ThinkingEvent,
        ToolCallEvent,
        ToolResultEvent,
        ToolStartEvent,
        UndoneEvent,
        UsageEvent,
    )
    from cantrip_actors.terms.call import Call
    from cantrip_actors.terms.cantrip import Cantrip
    from cantrip_actors.terms.circle import Circle
    from cantrip_actors.terms.companion import Companion, Here, Pinned
    from cantrip_actors.terms.crystal import Crystal
    from cantrip_actors.terms.episode_scope import EpisodeScope
    from cantrip_actors.terms.errors import (
        AllowanceSpent,
        AlreadyDecided,
        AskCycle,
        CantripError,
        CantripUnknown,
        CrystalError,
        DependenciesUnknown,
        EntityCrashed,
        EntityEnded,
        EntityInterrupted,
        ImmutableError,
        InvalidCantrip,
        InvalidDecision,
        InvalidFile,
        InvalidImage,
        InvalidIntent,
        InvalidSchedule,
        LoomError,
        NameTaken,
        ProviderError,
        ReadOnlyLoom,
        RuntimeClosed,
        Stranded,
        Truncated,
        Unavailable,
        UnfinishedWork,
        UnknownEntity,
        UnknownRequest,
        Withdrawn,
    )
    from cantrip_actors.terms.file import File
    from cantrip_actors.terms.folding import Folding
    from cantrip_actors.terms.gate import Gate
    from cantrip_actors.terms.gate_function import Injected, gate
    from cantrip_actors.terms.image import Image
    from cantrip_actors.terms.messages import (
        Invocation,
        Message,
        Response,
        ThreadMessage,
        ToolCall,
        ToolDefinition,
        Usage,
    )
    from cantrip_actors.terms.model_input import ModelInput
    from cantrip_actors.terms.period import PeriodUsage
    from cantrip_actors.terms.provided import PROVIDED
    from cantrip_actors.terms.queue import Queue
    from cantrip_actors.terms.retry import Retry
    from cantrip_actors.terms.risk import LethalTrifecta
    from cantrip_actors.terms.webhook import Webhook
    from cantrip_actors.terms.wrapping import Fence, GateCall, Refused, ask_first, wrap

__all__ = [
    "PROVIDED",
    "AdoptedEvent",
    "AllowanceSpent",
    "AlreadyDecided",
    "AskCycle",
    "AttemptFailedEvent",
    "BlockingEntity",
    "BlockingRuntime",
    "Call",
    "Cantrip",
    "CantripError",
    "CantripUnknown",
    "Circle",
    "Companion",
    "Crystal",
    "CrystalError",
    "DamagedLoom",
    "DecidedEvent",
    "DelegatedEvent",
    "DeltaEvent",
    "DependenciesUnknown",
    "Entity",
    "EntityCrashed",
    "EntityEnded",
    "EntityEndedEvent",
    "EntityEvent",
    "EntityInterrupted",
    "EntityStartedEvent",
    "Episode",
    "EpisodeEndedEvent",
    "EpisodeRun",
    "EpisodeScope",
    "Fence",
    "File",
    "FinalResponseEvent",
    "FoldedEvent",
    "Folding",
    "Forgotten",
    "ForgottenEvent",
    "Gate",
    "GateCall",
    "Held",
    "Here",
    "Image",
    "ImageEvent",
    "ImmutableError",
    "InboxFull",
    "Injected",
    "InvalidCantrip",
    "InvalidDecision",
    "InvalidFile",
    "InvalidImage",
    "InvalidIntent",
    "InvalidSchedule",
    "Invocation",
    "ItemEndEvent",
    "KeyUsed",
    "LethalTrifecta",
    "ListedEntity",
    "Loom",
    "LoomError",
    "Message",
    "MissedEvent",
    "ModelInput",
    "Move",
    "NameTaken",
    "NoAnswer",
    "Node",
    "Observation",
    "Page",
    "PeriodUsage",
    "Pinned",
    "ProviderError",
    "Quarantined",
    "Queue",
    "QueueFull",
    "ReadOnlyLoom",
    "Receipt",
    "Refused",
    "Request",
    "RequestFeed",
    "RequestSource",
    "RequestedEvent",
    "Response",
    "ResumedEvent",
    "Retry",
    "RewardedEvent",
    "Runtime",
    "RuntimeClosed",
    "SampledEvent",
    "Schedule",
    "Scripted",
    "Selection",
    "ServerChangedEvent",
    "SteeredEvent",
    "StepCompleteEvent",
    "StepFailedEvent",
    "StepStartEvent",
    "Stranded",
    "StreamedEvent",
    "Subscription",
    "TextEvent",
    "ThinkingEvent",
    "ThreadMessage",
    "ToolCall",
    "ToolCallEvent",
    "ToolDefinition",
    "ToolResultEvent",
    "ToolStartEvent",
    "Truncated",
    "Turn",
    "TurnMetadata",
    "Unavailable",
    "UndoneEvent",
    "UnfinishedWork",
    "UnknownEntity",
    "UnknownRequest",
    "Usage",
    "UsageEvent",
    "Webhook",
    "Withdrawn",
    "Work",
    "ask_first",
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
        "DamagedLoom",
        "Forgotten",
        "Held",
        "InboxFull",
        "KeyUsed",
        "ListedEntity",
        "Loom",
        "Page",
        "Quarantined",
        "QueueFull",
        "Selection",
        "open_loom",
    ),
    "cantrip_actors.terms.call": ("Call",),
    "cantrip_actors.terms.cantrip": (
        "Cantrip",
        "Crystal",
        "Folding",
        "Retry",
    ),
    "cantrip_actors.terms.circle": ("Circle",),
    "cantrip_actors.terms.companion": (
        "Companion",
        "Here",
        "Pinned",
    ),
    "cantrip_actors.terms.errors": (
        "AllowanceSpent",
        "AlreadyDecided",
        "AskCycle",
        "CantripError",
        "CantripUnknown",
        "CrystalError",
        "DependenciesUnknown",
        "EntityCrashed",
        "EntityEnded",
        "EntityInterrupted",
        "ImmutableError",
        "InvalidCantrip",
        "InvalidDecision",
        "InvalidFile",
        "InvalidImage",
        "InvalidIntent",
        "InvalidSchedule",
        "LoomError",
        "NameTaken",
        "ProviderError",
        "ReadOnlyLoom",
        "RuntimeClosed",
        "Stranded",
        "Truncated",
        "Unavailable",
        "UnfinishedWork",
        "UnknownEntity",
        "UnknownRequest",
        "Withdrawn",
    ),
    "cantrip_actors.terms.model_input": ("ModelInput",),
    "cantrip_actors.terms.period": ("PeriodUsage",),
    "cantrip_actors.terms.provided": ("PROVIDED",),
    "cantrip_actors.terms.episode_scope": ("EpisodeScope",),
    "cantrip_actors.terms.gate": ("Gate",),
    "cantrip_actors.terms.gate_function": ("Injected", "gate"),
    "cantrip_actors.stream.events": (
        "AdoptedEvent",
        "AttemptFailedEvent",
        "DecidedEvent",
        "DelegatedEvent",
        "DeltaEvent",
        "EntityEndedEvent",
        "EntityEvent",
        "EntityStartedEvent",
        "EpisodeEndedEvent",
        "FinalResponseEvent",
        "FoldedEvent",
        "ForgottenEvent",
        "ImageEvent",
        "ItemEndEvent",
        "MissedEvent",
        "RequestedEvent",
        "ResumedEvent",
        "RewardedEvent",
        "SampledEvent",
        "ServerChangedEvent",
        "SteeredEvent",
        "UndoneEvent",
        "StepCompleteEvent",
        "StepFailedEvent",
        "StepStartEvent",
        "StreamedEvent",
        "TextEvent",
        "ThinkingEvent",
        "ToolCallEvent",
        "ToolResultEvent",
        "ToolStartEvent",
        "UsageEvent",
    ),
    "cantrip_actors.terms.file": ("File",),
    "cantrip_actors.terms.image": ("Image",),
    "cantrip_actors.terms.messages": (
        "Invocation",
        "Message",
        "Response",
        "ThreadMessage",
        "ToolCall",
        "ToolDefinition",
        "Usage",
    ),
    "cantrip_actors.terms.queue": ("Queue",),
    "cantrip_actors.terms.webhook": ("Webhook",),
    "cantrip_actors.terms.risk": ("LethalTrifecta",),
    "cantrip_actors.records.records": ("Observation",),
    "cantrip_actors.records.turn": (
        "Turn",
        "TurnMetadata",
    ),
    "cantrip_actors.terms.wrapping": (
        "Fence",
        "GateCall",
        "Refused",
        "ask_first",
        "wrap",
    ),
    "cantrip_actors.runtime.events.events": ("Subscription",),
    "cantrip_actors.runtime.nodes.membership": ("Node",),
    "cantrip_actors.runtime.face.blocking": ("BlockingEntity", "BlockingRuntime"),
    "cantrip_actors.runtime.face.entity": ("Entity",),
    "cantrip_actors.runtime.face.episode": ("Episode",),
    "cantrip_actors.runtime.face.run": ("EpisodeRun",),
    "cantrip_actors.runtime.face.runtime": ("Runtime",),
    "cantrip_actors.runtime.face.work": ("NoAnswer", "Receipt", "Work"),
    "cantrip_actors.runtime.people.request": ("Request",),
    "cantrip_actors.runtime.people.requests": ("RequestFeed", "RequestSource"),
    "cantrip_actors.runtime.time.schedules": ("Schedule",),
    "cantrip_actors.runtime.entity.upgrades": ("Move",),
}
_READING = frozenset(
    (
        "cantrip_actors.loom",
        "cantrip_actors.terms.errors",
        "cantrip_actors.records.records",
        "cantrip_actors.records.turn",
        "cantrip_actors.runtime.events.events",
        "cantrip_actors.stream.events",
    )
)
"""Modules with what a reader of looms and events needs; importing from them does not import the circle."""

_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if module not in _READING:
        import_module("cantrip_actors.circle")  # makes the standard gates known by name
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
