"""The interface through which a runtime is observed: `Runtime.open(telemetry=…)` takes an object with these methods.

`observe/telemetry.py` implements it with OpenTelemetry. The runtime itself knows no names of spans or metrics, and
imports nothing for them. An instrument is observation, never control: its methods do not wait and do not raise.

The spans of an episode follow its steps. A step has the records that were written and the action that comes next
(`machine/loop.py`), so an action begins a span and a record ends it. Between two steps the entity does one thing at a
time, and `variables` are the context variables for what it does: gates, crystals, companions and children see the span
of their work as the current one, in whichever actor they run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from cantrip_actors.machine.actions import Action
from cantrip_actors.records.mail import MailKind
from cantrip_actors.records.records import Record
from cantrip_actors.runtime.events.context_variables import ContextVariables
from cantrip_actors.terms.errors import CrystalError, ProviderError
from cantrip_actors.terms.messages import Response
from supervisors import ExitReason
from supervisors.events import Event as SystemEvent

if TYPE_CHECKING:
    from cantrip_actors.machine.state import State


class MailTaken(NamedTuple):
    """A record took mail that was sent at `sent`. Times are ISO 8601 in UTC, by the clocks of sender and taker."""

    kind: MailKind
    sent: str
    at: str


class MailSettled(NamedTuple):
    """The episode of an intent ended."""

    sent: str
    at: str


class TakenOver(NamedTuple):
    """This node took entities that had no owner."""

    entities: int


class RenewedLate(NamedTuple):
    """This node renewed its leases later than after half of its ttl, this many times."""

    times: int


class StoreFailed(NamedTuple):
    """The store could not be reached or did not answer, or it refused the append of a writer without its lease."""

    is_fenced: bool = False


class Fired(NamedTuple):
    """A timer or a schedule fired, this many seconds after it was due."""

    seconds: float


class Drawn(NamedTuple):
    """A slice of limits that processes share was drawn, or refused because nothing was left."""

    limits: str
    is_refused: bool


class SessionEnded(NamedTuple):
    """The connection to a server of tools ended after so many seconds."""

    seconds: float


class Served(NamedTuple):
    """A request of an MCP client was answered. `tool` is one that is offered, or ""; `error` is "" if it succeeded."""

    method: str
    tool: str
    error: str
    seconds: float


class Reads(NamedTuple):
    """A reader of an event stream in this dialect came or left; `fell_behind` if it left because it was too slow."""

    dialect: Literal["openai", "acp", "mcp"]
    has_left: bool = False
    fell_behind: bool = False


Fact = MailTaken | MailSettled | TakenOver | RenewedLate | StoreFailed | Fired | Drawn | SessionEnded | Served | Reads
"""A fact that no record contains."""


class EpisodeSpans(Protocol):
    """The spans of one episode. They belong to the cell, so a restarted actor continues them."""

    @property
    def variables(self) -> ContextVariables:
        """The caller's context variables, with the span of the entity's current action as the current one."""

    @property
    def outer(self) -> ContextVariables:
        """Like `variables`, with the span of the episode itself as the current one: for the companion."""

    @property
    def trace(self) -> str | None:
        """The W3C `traceparent` of the span of the entity's current action; None if it is not part of a trace."""

    @property
    def query_headers(self) -> Mapping[str, str]:
        """The headers that the running query adds to its requests to the provider, by names in lower case."""

    def note_step(self, records: Sequence[Record], action: Action) -> None:
        """Handle a step: its records are written, and its action comes next."""

    def note_answer(self, reply: Response | CrystalError) -> None:
        """End the span of the running query."""

    def note_retry(self, failed: ProviderError, delay: float) -> None:
        """Handle a retry of the running query."""

    def note_part(self, seconds: float) -> None:
        """Handle a part of the answer, which arrived this many seconds after the query."""

    def note_computation(self, seconds: float, memory: int | None) -> None:
        """Handle the end of a program: how long it computed, and the bytes of its memory, if they are counted."""

    def note_sample(self, bound: Any, reply: Response, seconds: float) -> None:
        """Handle the answer of a `cell.Bound` to a server of tools, during a call; the query took this many seconds."""

    def note_restart(self, reason: ExitReason | None) -> None:
        """Handle a restart of the entity's actor; `reason` is its exit reason."""

    def close(self, reason: ExitReason | None) -> None:
        """End all open spans: the cell has stopped permanently; `reason` is its actor's last exit reason."""


@runtime_checkable
class Instrument(Protocol):
    """Observes one runtime. `core` is its `core.Core`, and `cell` a `cell.Cell`, which refer to this module."""

    def attach(self, core: Any) -> None:
        """Observe this runtime. It is about to open."""

    def captured(self, variables: ContextVariables) -> ContextVariables:
        """Return a caller's context variables, with its current span among them in any case."""

    def trace(self) -> str | None:
        """Return the `traceparent` of the caller's current span; None if it has none."""

    def begin(self, cell: Any, state: State, trace: str | None) -> EpisodeSpans | None:
        """Begin the spans of an episode; `trace` is that of the intent's mail. Returns None if nothing traces."""

    async def resume(self, cell: Any, state: State) -> EpisodeSpans | None:
        """Begin the spans of an episode that another process began, or that was unloaded meanwhile."""

    def answered(self, cell: Any, reply: Response | CrystalError, seconds: float, crystal: Any = None) -> None:
        """Handle a crystal's final answer to the running query, which took this many seconds.

        It may be another crystal than the entity's: that of its summaries, or one that answers a server of tools. Left
        out, it is the entity's.
        """

    def retried(self, cell: Any, failed: ProviderError, delay: float, crystal: Any = None) -> None:
        """Handle a failed attempt of the running query; the next one begins in `delay` seconds."""

    def streamed(self, cell: Any, seconds: float, since_last: float | None) -> None:
        """Handle a part of the answer: seconds after the query, and after the part before it."""

    def written(self, records: Sequence[Record]) -> None:
        """Handle records that are now in the loom."""

    def committed(self, seconds: float, messages: int) -> None:
        """Handle a commit: its duration, and its number of messages."""

    def supervised(self, event: SystemEvent) -> None:
        """Handle an event of an actor."""

    def noted(self, fact: Fact) -> None:
        """Handle a fact that no record contains."""

    def counted(self) -> Iterable[tuple[str, Mapping[str, str], float]]:
        """Return the present counters: names, labels, values. Any thread and a signal handler may call it."""
