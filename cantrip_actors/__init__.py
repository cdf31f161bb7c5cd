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

from typing import TYPE_CHECKING

from cantrip_actors.lazy_exports import export_lazily

if TYPE_CHECKING:
    from cantrip_actors.crystal import Scripted as Scripted
    from cantrip_actors.crystal import replayed as replayed
    from cantrip_actors.crystal import scripted as scripted
    from cantrip_actors.loom import DamagedLoom as DamagedLoom
    from cantrip_actors.loom import Forgotten as Forgotten
    from cantrip_actors.loom import Held as Held
    from cantrip_actors.loom import InboxFull as InboxFull
    from cantrip_actors.loom import KeyUsed as KeyUsed
    from cantrip_actors.loom import ListedEntity as ListedEntity
    from cantrip_actors.loom import Loom as Loom
    from cantrip_actors.loom import Page as Page
    from cantrip_actors.loom import Quarantined as Quarantined
    from cantrip_actors.loom import QueueFull as QueueFull
    from cantrip_actors.loom import Selection as Selection
    from cantrip_actors.loom import open_loom as open_loom
    from cantrip_actors.records.records import Observation as Observation
    from cantrip_actors.records.turn import Turn as Turn
    from cantrip_actors.records.turn import TurnMetadata as TurnMetadata
    from cantrip_actors.runtime.entity.upgrades import Move as Move
    from cantrip_actors.runtime.events.events import Subscription as Subscription
    from cantrip_actors.runtime.face.blocking import BlockingEntity as BlockingEntity
    from cantrip_actors.runtime.face.blocking import BlockingRuntime as BlockingRuntime
    from cantrip_actors.runtime.face.entity import Entity as Entity
    from cantrip_actors.runtime.face.episode import Episode as Episode
    from cantrip_actors.runtime.face.run import EpisodeRun as EpisodeRun
    from cantrip_actors.runtime.face.runtime import Runtime as Runtime
    from cantrip_actors.runtime.face.work import NoAnswer as NoAnswer
    from cantrip_actors.runtime.face.work import Receipt as Receipt
    from cantrip_actors.runtime.face.work import Work as Work
    from cantrip_actors.runtime.nodes.membership import Node as Node
    from cantrip_actors.runtime.people.request import Request as Request
    from cantrip_actors.runtime.people.requests import RequestFeed as RequestFeed
    from cantrip_actors.runtime.people.requests import RequestSource as RequestSource
    from cantrip_actors.runtime.time.schedules import Schedule as Schedule
    from cantrip_actors.stream.events import AdoptedEvent as AdoptedEvent
    from cantrip_actors.stream.events import AttemptFailedEvent as AttemptFailedEvent
    from cantrip_actors.stream.events import DecidedEvent as DecidedEvent
    from cantrip_actors.stream.events import DelegatedEvent as DelegatedEvent
    from cantrip_actors.stream.events import DeltaEvent as DeltaEvent
    from cantrip_actors.stream.events import EntityEndedEvent as EntityEndedEvent
    from cantrip_actors.stream.events import EntityEvent as EntityEvent
    from cantrip_actors.stream.events import EntityStartedEvent as EntityStartedEvent
    from cantrip_actors.stream.events import EpisodeEndedEvent as EpisodeEndedEvent
    from cantrip_actors.stream.events import FinalResponseEvent as FinalResponseEvent
    from cantrip_actors.stream.events import FoldedEvent as FoldedEvent
    from cantrip_actors.stream.events import ForgottenEvent as ForgottenEvent
    from cantrip_actors.stream.events import ImageEvent as ImageEvent
    from cantrip_actors.stream.events import ItemEndEvent as ItemEndEvent
    from cantrip_actors.stream.events import MissedEvent as MissedEvent
    from cantrip_actors.stream.events import RequestedEvent as RequestedEvent
    from cantrip_actors.stream.events import ResumedEvent as ResumedEvent
    from cantrip_actors.stream.events import RewardedEvent as RewardedEvent
    from cantrip_actors.stream.events import SampledEvent as SampledEvent
    from cantrip_actors.stream.events import ServerChangedEvent as ServerChangedEvent
    from cantrip_actors.stream.events import SteeredEvent as SteeredEvent
    from cantrip_actors.stream.events import StepCompleteEvent as StepCompleteEvent
    from cantrip_actors.stream.events import StepFailedEvent as StepFailedEvent
    from cantrip_actors.stream.events import StepStartEvent as StepStartEvent
    from cantrip_actors.stream.events import StreamedEvent as StreamedEvent
    from cantrip_actors.stream.events import TextEvent as TextEvent
    from cantrip_actors.stream.events import ThinkingEvent as ThinkingEvent
    from cantrip_actors.stream.events import ToolCallEvent as ToolCallEvent
    from cantrip_actors.stream.events import ToolResultEvent as ToolResultEvent
    from cantrip_actors.stream.events import ToolStartEvent as ToolStartEvent
    from cantrip_actors.stream.events import UndoneEvent as UndoneEvent
    from cantrip_actors.stream.events import UsageEvent as UsageEvent
    from cantrip_actors.terms.call import Call as Call
    from cantrip_actors.terms.cantrip import Cantrip as Cantrip
    from cantrip_actors.terms.circle import Circle as Circle
    from cantrip_actors.terms.companion import Companion as Companion
    from cantrip_actors.terms.companion import Here as Here
    from cantrip_actors.terms.companion import Pinned as Pinned
    from cantrip_actors.terms.crystal import Crystal as Crystal
    from cantrip_actors.terms.episode_scope import EpisodeScope as EpisodeScope
    from cantrip_actors.terms.errors import AllowanceSpent as AllowanceSpent
    from cantrip_actors.terms.errors import AlreadyDecided as AlreadyDecided
    from cantrip_actors.terms.errors import AnswerMisfit as AnswerMisfit
    from cantrip_actors.terms.errors import AskCycle as AskCycle
    from cantrip_actors.terms.errors import CantripError as CantripError
    from cantrip_actors.terms.errors import CantripUnknown as CantripUnknown
    from cantrip_actors.terms.errors import CrystalError as CrystalError
    from cantrip_actors.terms.errors import DependenciesUnknown as DependenciesUnknown
    from cantrip_actors.terms.errors import EntityCrashed as EntityCrashed
    from cantrip_actors.terms.errors import EntityEnded as EntityEnded
    from cantrip_actors.terms.errors import EntityInterrupted as EntityInterrupted
    from cantrip_actors.terms.errors import ImmutableError as ImmutableError
    from cantrip_actors.terms.errors import InvalidCantrip as InvalidCantrip
    from cantrip_actors.terms.errors import InvalidDecision as InvalidDecision
    from cantrip_actors.terms.errors import InvalidFile as InvalidFile
    from cantrip_actors.terms.errors import InvalidImage as InvalidImage
    from cantrip_actors.terms.errors import InvalidIntent as InvalidIntent
    from cantrip_actors.terms.errors import InvalidSchedule as InvalidSchedule
    from cantrip_actors.terms.errors import LoomError as LoomError
    from cantrip_actors.terms.errors import NameTaken as NameTaken
    from cantrip_actors.terms.errors import ProviderError as ProviderError
    from cantrip_actors.terms.errors import ReadOnlyLoom as ReadOnlyLoom
    from cantrip_actors.terms.errors import RuntimeClosed as RuntimeClosed
    from cantrip_actors.terms.errors import Stranded as Stranded
    from cantrip_actors.terms.errors import Truncated as Truncated
    from cantrip_actors.terms.errors import Unavailable as Unavailable
    from cantrip_actors.terms.errors import UnfinishedWork as UnfinishedWork
    from cantrip_actors.terms.errors import UnknownEntity as UnknownEntity
    from cantrip_actors.terms.errors import UnknownRequest as UnknownRequest
    from cantrip_actors.terms.errors import Withdrawn as Withdrawn
    from cantrip_actors.terms.file import File as File
    from cantrip_actors.terms.folding import Folding as Folding
    from cantrip_actors.terms.gate import Gate as Gate
    from cantrip_actors.terms.gate_function import Injected as Injected
    from cantrip_actors.terms.gate_function import gate as gate
    from cantrip_actors.terms.image import Image as Image
    from cantrip_actors.terms.messages import Invocation as Invocation
    from cantrip_actors.terms.messages import Message as Message
    from cantrip_actors.terms.messages import Response as Response
    from cantrip_actors.terms.messages import ThreadMessage as ThreadMessage
    from cantrip_actors.terms.messages import ToolCall as ToolCall
    from cantrip_actors.terms.messages import ToolDefinition as ToolDefinition
    from cantrip_actors.terms.messages import Usage as Usage
    from cantrip_actors.terms.model_input import ModelInput as ModelInput
    from cantrip_actors.terms.period import PeriodUsage as PeriodUsage
    from cantrip_actors.terms.provided import PROVIDED as PROVIDED
    from cantrip_actors.terms.queue import Queue as Queue
    from cantrip_actors.terms.retry import Retry as Retry
    from cantrip_actors.terms.risk import LethalTrifecta as LethalTrifecta
    from cantrip_actors.terms.webhook import Webhook as Webhook
    from cantrip_actors.terms.wrapping import Fence as Fence
    from cantrip_actors.terms.wrapping import GateCall as GateCall
    from cantrip_actors.terms.wrapping import Refused as Refused
    from cantrip_actors.terms.wrapping import ask_first as ask_first
    from cantrip_actors.terms.wrapping import wrap as wrap
else:
    __getattr__, __dir__ = export_lazily(__name__)
