"""What happens in a system, as a typed stream of records: for tests, dashboards and the log.

Observation, never control: a sink is called synchronously, after the fact, and nothing waits for it. `reports.py` is
the sink that writes to structlog.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from supervisors.actor import ActorRef
    from supervisors.reasons import ExitReason
    from supervisors.spec import ChildSpec


@dataclass(frozen=True, slots=True)
class Started:
    """A child is up: its `init` is done. `time` is in seconds of the event loop's clock, as in all of these."""

    time: float
    ref: ActorRef
    spec: ChildSpec[object]  # type: ignore[type-var]
    restarts: int  # of this identity so far


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A child's start failed, or said `Ignore` (`reason` is then `None`)."""

    time: float
    ref: ActorRef
    spec: ChildSpec[object]  # type: ignore[type-var]
    reason: ExitReason | None


@dataclass(frozen=True, slots=True)
class Exited:
    """An incarnation ended. `expected`: as its supervisor wanted it or its restart type allows (S-37, S-52)."""

    time: float
    ref: ActorRef
    spec: ChildSpec[object]  # type: ignore[type-var]
    reason: ExitReason
    expected: bool


@dataclass(frozen=True, slots=True)
class Restarting:
    """A child will be started again, `delay` seconds from now."""

    time: float
    ref: ActorRef
    spec: ChildSpec[object]  # type: ignore[type-var]
    reason: ExitReason
    delay: float


@dataclass(frozen=True, slots=True)
class GaveUp:
    """Restarts came too often: the supervisor `ref` ends (S-31). `spec` and `reason` are of the last child."""

    time: float
    ref: ActorRef
    spec: ChildSpec[object]  # type: ignore[type-var]
    reason: ExitReason


@dataclass(frozen=True, slots=True)
class Zombie:
    """A child neither obeyed nor could be killed. Its task still runs; its mailbox and its name are gone."""

    time: float
    ref: ActorRef
    spec: ChildSpec[object]  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that nobody will ever handle: `ref` had ended, or ended with it in the mailbox."""

    time: float
    ref: ActorRef
    message: object


Event: TypeAlias = Started | StartFailed | Exited | Restarting | GaveUp | Zombie | DeadLetter
Sink: TypeAlias = Callable[[Event], object]
