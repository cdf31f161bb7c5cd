"""Child specs, and the checks that refuse a wrong spec before anything starts.

Pure data and pure checks. Each refusal has a `SpecError.what` of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, get_args

from supervisors.errors import SpecError, is_hashable, is_number
from supervisors.policy import AutoShutdown, Backoff, Restart, Strategy
from supervisors.ref import ActorRef

if TYPE_CHECKING:
    from supervisors.actor import Actor

Shutdown: TypeAlias = float | Literal["kill"]
ChildType: TypeAlias = Literal["worker", "supervisor"]

A_co = TypeVar("A_co", bound="Actor", covariant=True)

#: Seconds that a worker has to end after it is asked to.
DEFAULT_SHUTDOWN = 5.0


@dataclass(frozen=True, slots=True)
class ChildSpec(Generic[A_co]):
    """How to start, restart and stop one child.

    Args:
        id: its unique id among its siblings.
        start: called without arguments for each incarnation; returns a new actor. It must not block; do slow work in
            the actor's `init`.
        restart: `permanent` (always), `transient` (after a crash or a kill), `temporary` (never, and forgotten at
            once).
        shutdown: seconds that it has to end after it is asked to, before it is killed; `math.inf` for no limit;
            `"kill"` to kill it at once. `None`: 5 s, and `math.inf` for an actor that has children, as supervisors do.
        significant: its end may end its supervisor (`auto_shutdown`).
        ref: its identity, made beforehand with `ActorRef()`; by default one is made at the first start.
        backoff: the wait between restarts; `None` for no wait, as in OTP.
        name: the name under which it is registered in the system's registry while it lives.
        type: `worker` or `supervisor`; `None` to infer it from what `start` returns.

    Raises:
        SpecError: a field is wrong; `what` names it.
    """

    id: Hashable
    start: Callable[..., A_co]  # with arguments only in a dynamic supervisor's template
    restart: Restart = "permanent"
    shutdown: Shutdown | None = None
    significant: bool = False
    ref: ActorRef | None = None
    backoff: Backoff | None = None
    name: Hashable = None
    type: ChildType | None = None

    def __post_init__(self) -> None:
        if self.id is None:
            raise SpecError("id", "expected a value that no sibling has as its id, got None")
        for what, key in (("id", self.id), ("name", self.name)):
            if not is_hashable(key):
                raise SpecError(what, f"expected a value that can be the key of a dict, got {key!r}")
        if not callable(self.start):
            raise SpecError(
                "start",
                "expected a class or a function that returns a new actor when it is called without arguments, "
                f"as in ChildSpec('counter', Counter), got {self.start!r}",
            )
        _check_choice("restart", self.restart, Restart)
        if self.shutdown is not None:
            check_shutdown(self.shutdown)
        if self.type is not None:
            _check_choice("type", self.type, ChildType)
        if self.backoff is not None:
            check_backoff(self.backoff)
        if self.ref is not None and not isinstance(self.ref, ActorRef):
            raise SpecError("ref", f"expected an ActorRef or None, got {self.ref!r}")
        if not isinstance(self.significant, bool):
            raise SpecError("significant", f"expected True or False, got {self.significant!r}")
        if self.significant and self.restart == "permanent":
            raise SpecError("significant", "is not possible for a permanent child, which is always restarted")


def _check_choice(what: str, value: object, kind: Any) -> None:
    choices = get_args(kind)
    if value not in choices:
        raise SpecError(what, f"expected one of {', '.join(choices)}, got {value!r}")


def check_shutdown(shutdown: object) -> None:
    """Refuse a shutdown that is neither seconds nor `"kill"`.

    Raises:
        SpecError: `shutdown`.
    """
    if shutdown != "kill" and not (is_number(shutdown) and shutdown >= 0):
        raise SpecError("shutdown", f'expected seconds, math.inf or "kill", got {shutdown!r}')


def check_intensity(max_restarts: object, period: object) -> None:
    """Refuse a wrong limit of restarts.

    Raises:
        SpecError: `max_restarts` or `period`.
    """
    whole = isinstance(max_restarts, int) and not isinstance(max_restarts, bool) and max_restarts >= 0
    if not (whole or max_restarts == math.inf):
        raise SpecError(
            "max_restarts", f"expected a whole number, 0 or more, or math.inf for no limit, got {max_restarts!r}"
        )
    if not (is_number(period) and period > 0):
        raise SpecError("period", f"expected seconds, more than 0, got {period!r}")


def check_flags(strategy: object, max_restarts: object, period: object, auto_shutdown: object) -> None:
    """Refuse wrong flags of a supervisor.

    Raises:
        SpecError: `strategy`, `max_restarts`, `period` or `auto_shutdown`.
    """
    _check_choice("strategy", strategy, Strategy)
    check_intensity(max_restarts, period)
    _check_choice("auto_shutdown", auto_shutdown, AutoShutdown)


def check_backoff(backoff: object) -> None:
    """Refuse a backoff whose delays would not be seconds: a timer cannot wait for them.

    Raises:
        SpecError: `backoff`.
    """
    if not isinstance(backoff, Backoff):
        raise SpecError("backoff", f"expected a Backoff or None, got {backoff!r}")
    for field, least, most in _BACKOFF_BOUNDS:
        value = getattr(backoff, field)
        if not (is_number(value) and least <= value <= most):
            bounds = f"{least:g} or more" if most == math.inf else f"from {least:g} to {most:g}"
            raise SpecError("backoff", f"{field}: expected a number, {bounds}, got {value!r}")
    if backoff.first > backoff.maximum:
        raise SpecError(
            "backoff",
            f"first is longer than maximum, the longest wait: got first={backoff.first}, maximum={backoff.maximum}",
        )


#: The fields of a `Backoff`, each with the least and the greatest value.
_BACKOFF_BOUNDS = (
    ("first", 0.0, math.inf),
    ("maximum", 0.0, math.inf),
    ("factor", 1.0, 1e9),
    ("jitter", 0.0, 1.0),
    ("reset", 0.0, math.inf),
)


def check_child(spec: object, auto_shutdown: AutoShutdown) -> None:
    """Refuse a child that does not fit its supervisor.

    Raises:
        SpecError: `children` if it is not a spec, `significant` if the supervisor never shuts down for a significant
            child.
    """
    if not isinstance(spec, ChildSpec):
        raise SpecError("children", f"expected ChildSpecs, such as ChildSpec('counter', Counter), got {spec!r}")
    if spec.significant and auto_shutdown == "never":
        raise SpecError("significant", f"means nothing for {spec.id!r} while auto_shutdown is never")


def check_children(children: object, auto_shutdown: AutoShutdown) -> list[ChildSpec[Any]]:
    """Return the children of a static supervisor; refuse those that do not fit it or each other.

    Raises:
        SpecError: as `check_child`, and `id` if two children have the same.
    """
    if not isinstance(children, Iterable):
        raise SpecError("children", f"expected a list of ChildSpecs, got {children!r}")
    specs = list(children)
    seen: set[Hashable] = set()
    for spec in specs:
        check_child(spec, auto_shutdown)
        if spec.id in seen:
            raise SpecError("id", f"two children are called {spec.id!r}")
        seen.add(spec.id)
    return specs
