"""A cell: the data of one entity while it is loaded, which its driver owns and other parts of the runtime read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

from cantrip_actors.loom import Quarantined
from cantrip_actors.machine.budget import Ledger
from cantrip_actors.machine.events import Begin
from cantrip_actors.machine.life import CrashMark, LoadedLife, Stage
from cantrip_actors.machine.state import Plan, State
from cantrip_actors.records.records import Record
from cantrip_actors.runtime.circles.tool_servers import ServerInUse
from cantrip_actors.runtime.crystals.crystal_pool import Crystals, InUse
from cantrip_actors.runtime.entity.one_shot_event import OneShotEvent
from cantrip_actors.runtime.events.context_variables import ContextVariables, Working
from cantrip_actors.runtime.events.instrument import EpisodeSpans
from cantrip_actors.runtime.mail.inbox import Inbox
from cantrip_actors.runtime.time.deadline import Deadline
from cantrip_actors.terms.crystal import Crystal
from cantrip_actors.terms.errors import CantripError, EntityCrashed, RuntimeClosed
from cantrip_actors.terms.outcome import Outcome
from supervisors import ActorRef, Crash, GaveUp, RestartedWith, Shutdown
from supervisors.reasons import render_exception

Adoption = Literal["at_once", "with_intent", "after_episode", "when_loaded_again"]
"""The moment at which an entity moves to another cantrip: its cell has the new cantrip, and the move is recorded as the
entity is loaded, or with its next intent; or its cell has the old cantrip until the episode under way has ended, and it
is loaded again for its next intent; or its next intent brings other additions, for which it is loaded again."""


class EpisodeUnderWay(NamedTuple):
    """The episode under way: its number, the key of its intent, and the function that cuts its present action short.

    `has_request` says whether a person has to decide before the entity continues.
    """

    number: int
    key: str | None
    interrupt: Callable[[], None]
    has_request: Callable[[], bool]


class Dismissed(NamedTuple):
    """The detail of a shutdown that ends an entity for good; with any other, a long-lived one leaves and keeps its log.

    `sender` is the name of the caller that ends it.
    """

    reason: str
    sender: str = ""

    def __str__(self) -> str:
        return self.reason


class Unloaded(NamedTuple):
    """The detail of a shutdown that releases the memory of an entity's tree, which has rested for long."""

    def __str__(self) -> str:
        return "unloaded"


class GivenUp(NamedTuple):
    """The detail of the shutdown of an entity that is not tried again after a crash, because that would repeat."""

    crash: Crash

    def __str__(self) -> str:
        return f"given up after a {self.crash}"


class Bound(Struct, eq=False):
    """A crystal bound for one entity, with the shared crystals and servers that the entity uses."""

    crystal: Crystal
    uses: InUse
    """The crystal's entry in the runtime's pool."""
    summariser: Bound | None = None
    """The crystal that sums up folded turns."""
    servers: Sequence[ServerInUse] = ()
    """The servers of tools that the entity's gates call."""
    samplers: Mapping[str, Bound] = field(default_factory=dict)
    """The crystals that answer the entity's servers of tools, by the servers' names."""
    held: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """A function that releases it, for each crystal and server whose actor runs for the entity."""

    async def hold(self, crystals: Crystals) -> None:
        """Start the actors of the entity's crystals and servers of tools, if they do not run."""
        await self.release()  # what an incarnation that was killed has left
        try:
            for bound in (self, self.summariser, *self.samplers.values()):
                if bound is not None:
                    self.held.append(partial(crystals.release, bound.uses))
                    await crystals.hold(bound.uses)
            for server in self.servers:
                self.held.append(server.release)
                await server.hold()
        except BaseException:  # an actor that has not started gets no `terminate`
            await self.release()
            raise

    async def release(self) -> None:
        """Release the crystals and the servers of tools that are still held; a cancelled caller, too."""
        while self.held:
            await self.held.pop()()


class Start(Struct):
    """How an entity begins, until its first intent is recorded. `state` is that of a fork; None for a new entity."""

    begin: Begin
    state: State | None = None
    recorded: OneShotEvent = field(default_factory=OneShotEvent)
    records: Sequence[Record] = ()
    """The records of its beginning, once they are recorded."""
    released: OneShotEvent | None = None
    """The entity waits for this event once its beginning is recorded: its caller may subscribe to its events first."""


class EpisodeCaller(Struct):
    """The caller whose episode is under way: its context variables, and the spans of the episode if it is traced."""

    variables: ContextVariables = ()
    spans: EpisodeSpans | None = None
    sent: str = ""
    """When it sent the intent, if that came as mail."""
    resumed_by: str = ""
    """The person who resumed the entity, until that is recorded."""

    @property
    def own_variables(self) -> ContextVariables:
        """The context variables for the companion, whatever the entity does now."""
        return self.variables if self.spans is None else self.spans.outer


class CrashHistory(Struct):
    """The crashes of an entity in this process: where each happened, and the last one."""

    marks: list[CrashMark] = field(default_factory=list)
    last: Crash | None = None
    quarantined: Quarantined | None = None
    """The error for the entity's callers, once it is quarantined."""


class Cell(Struct, eq=False):
    """One loaded entity: its plan, where it stands, and its outcome."""

    plan: Plan
    crystal: Bound
    ledger: Ledger
    deadline: Deadline
    parent: Cell | None = None
    """The cell of its parent, if it is a child."""
    start: Start | None = None
    """How it begins; None if its log has its first intent."""
    caller: EpisodeCaller = field(default_factory=EpisodeCaller)
    """The caller whose episode is under way."""
    adoption: Adoption | None = None
    """None if the log says that the entity works with the cantrip of this cell."""
    leaves_when_idle: bool = False
    """Whether it takes no further intent here: it is loaded again, perhaps with another cantrip."""
    inbox: Inbox | None = None
    """Its mail. A one-shot entity gets an inbox with its first mail."""
    actor: ActorRef[Any] = field(default_factory=ActorRef)
    """The actor that drives it."""
    life: LoadedLife = LoadedLife()
    """Where it stands. `LoadedCells.change` alone sets it."""
    asks: str | None = None
    """The entity whose answer it waits for."""
    callers: int = 0
    """How many callers wait for the end of a one-shot entity."""
    episode: EpisodeUnderWay | None = None
    """The episode under way: from when its intent is taken until the companion has been notified of its end."""
    outcome: Outcome | None = None
    """The outcome of the last episode."""
    error: CantripError | None = None
    """The error of the crystal or the loom, if that ended the last episode."""
    recorded: int = 0
    """How many records its incarnations here have written."""
    crashes: CrashHistory = field(default_factory=CrashHistory)
    """The crashes of its incarnations here."""
    ending: OneShotEvent = field(default_factory=OneShotEvent)
    """Set when the entity has stopped here permanently, and its records are written."""

    @property
    def entity_id(self) -> str:
        """The entity's id."""
        return self.plan.entity_id

    @property
    def is_cut_short(self) -> bool:
        """Whether urgent mail or a deadline cuts the next action of the episode under way short."""
        inbox, episode = self.inbox, self.episode
        has_urgent = inbox is not None and episode is not None and inbox.has_urgent(episode.number)
        return has_urgent or (self.deadline.is_set and self.deadline.has_passed)

    @property
    def context_variables(self) -> ContextVariables:
        """The context variables for the present step of the entity."""
        caller = self.caller
        return caller.variables if caller.spans is None else caller.spans.variables

    @property
    def spans(self) -> EpisodeSpans | None:
        """The spans of the episode under way; None if it is not traced."""
        return self.caller.spans

    @property
    def working(self) -> Working:
        """The fields of the entity in log lines."""
        return Working(self.entity_id, self.plan.cantrip.name or "", self.plan.tenant)

    @property
    def is_over(self) -> bool:
        """Whether its log says that it has ended."""
        return self.life.stage is Stage.OVER

    @property
    def is_given_up(self) -> bool:
        """Whether it is not tried again after a crash."""
        reason = self.actor.last_exit
        return isinstance(reason, Shutdown) and isinstance(reason.detail, GivenUp)

    @property
    def is_suspended(self) -> bool:
        """Whether its tree is about to be unloaded, or was, and its callers wait until it is loaded again."""
        return self.root.life.stage is Stage.LEAVING and not self.root.is_given_up

    @property
    def is_for_episode(self) -> bool:
        """Whether it has the old cantrip of an entity that moves after the episode under way."""
        return self.adoption == "after_episode"

    @property
    def is_loaded_again(self) -> bool:
        """Whether it leaves before its next intent, and is loaded again with the cantrip for that intent."""
        return self.adoption in ("after_episode", "when_loaded_again")

    @property
    def moves_on(self) -> bool:
        """Whether an intent waits for which it leaves and is loaded again."""
        return self.is_loaded_again and self.inbox is not None and self.inbox.has_intents

    @property
    def root(self) -> Cell:
        """The cell of the root entity of its tree, in whose inbox its mail is kept."""
        return self if self.parent is None else self.parent.root

    async def wait_until_begun(self) -> None:
        """Wait until the first intent is recorded, or the entity has ended before."""
        if self.start is not None:
            await self.start.recorded.wait()

    def settle(self, key: str | None, outcome: Outcome | None) -> None:
        """Give the outcome of the episode of the intent with this key to the callers that wait for it."""
        if self.inbox is not None:
            self.inbox.settle(key or "", outcome, self.error)

    def end(self) -> None:
        """Notify all tasks that wait for the entity's beginning or its end."""
        if self.start is not None:
            self.start.recorded.set()
        self.end_spans()
        self.ending.set()

    def end_spans(self) -> None:
        """End the spans of the episode that are still open."""
        if self.caller.spans is not None:
            self.caller.spans.close(self.crashes.last if self.is_given_up else self.actor.last_exit)
            self.caller.spans = None

    def make_interruption_error(self) -> CantripError:
        """Return the error for a caller whose episode has no outcome: the entity crashed, or its runtime closed."""
        if self.error is not None:
            return self.error
        reason = self.actor.last_exit
        is_cut_off = isinstance(reason, Shutdown) and isinstance(reason.detail, (GaveUp, RestartedWith, Dismissed))
        if not self.is_suspended or is_cut_off:
            return self.make_crash_error()
        error = RuntimeClosed(self._describe_leaving())
        error.entity_id = self.entity_id
        return error

    def _describe_leaving(self) -> str:
        if self.plan.lasting:
            return (
                f"the runtime closed while entity {self.entity_id} was at work: its intent is in the loom, so do not "
                "send it again; resume the entity, or send it something else, and it continues from there"
            )
        return (
            f"the runtime closed while entity {self.entity_id} waited for a person, or for an answer that comes later: "
            'decide its request in any process, or open a runtime with recover="resume", and it continues there'
        )

    def make_crash_error(self) -> EntityCrashed:
        """Return the error for an entity that ended without an outcome."""
        reason = self.crashes.last or self.actor.last_exit
        cause = reason.exception if isinstance(reason, Crash) else None
        if self.crashes.quarantined is not None:
            self.crashes.quarantined.__cause__ = cause
            return self.crashes.quarantined
        text = f"{type(cause).__name__}: {render_exception(cause)}" if cause is not None else str(reason)
        error = EntityCrashed(f"entity {self.entity_id} crashed ({text}); its turns up to there are in the loom")
        error.entity_id = self.entity_id
        error.__cause__ = cause
        return error
