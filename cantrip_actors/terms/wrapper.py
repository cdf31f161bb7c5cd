"""A wrapper: the steps that run before and after a gate, the arguments of a step, and its refusal of a call.

`wrapping.py` puts wrappers around gates; the circle runs them (`circle/wrapped_call.py`), because a step may wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, get_args

from cantrip_actors.terms.arguments import check, check_choice, is_positive, show
from cantrip_actors.terms.errors import InvalidCantrip

Unattended = Literal["wait", "deny"]
"""The treatment of a request while no program follows requests: it waits, or it is denied at once."""

LONGEST: Final = 100 * 366 * 86_400.0
"""The most seconds until a request expires, or between two firings of a schedule: the time then has to have a date."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The refusal of a call, or of its result, with the text of the error observation. Raises TypeError for another."""

    reason: str

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str):
            raise TypeError(f"Refused: expected a text, got {show(self.reason)}")


class Fence(NamedTuple):
    """The owner of an entity that calls a gate.

    `tree` is the id of the root entity, and `token` grows each time another process takes its tree. A gate that writes
    elsewhere passes both on, and the other side refuses a token lower than the highest that it has seen for the tree:
    so a node that was frozen and resumes late changes nothing there. The token is 0 for a loom that only one process
    writes.
    """

    tree: str
    token: int


NO_FENCE: Final = Fence("", 0)
"""The fence of a call that no entity makes."""


class Inquiry(NamedTuple):
    """The question of a gate to a person: the gate's `state` then, and the person's decision and answer."""

    round: int
    state: Any
    decision: str
    answer: Any = None


class GateCall(NamedTuple):
    """One call of a gate: which gate, with what arguments, and by which entity.

    Steps around a gate receive it, and so does a gate's function in a parameter annotated with it; the crystal does not
    see that parameter. `args` is plain JSON data that has passed the gate's schema. `turn_id` is the id of the turn
    that is not committed yet.
    """

    gate: str
    args: Mapping[str, Any]
    entity_id: str
    turn_id: str
    call_id: str | None = None
    fence: Fence = NO_FENCE
    """The owner of the entity that calls, for the system that the gate writes to."""
    inquiry: Inquiry | None = None
    """The question of its server to a person, with the answer, if the call continues after one."""

    @property
    def id(self) -> str:
        """The id of this call, unique in the loom; a request for its approval has the same id."""
        return f"{self.entity_id}:{self.turn_id}:{self.call_id}"


PreStep = Callable[[GateCall], Any]
"""A step before: returns None to let the call through, or `Refused(…)`; it may be async, and must not block."""

PostStep = Callable[[GateCall, Any], Any]
"""A step after, given the Observation as well: returns None, a remark for the entity, or `Refused(…)`."""


When = Callable[[Mapping[str, Any]], "bool | str | None"]
"""Returns, for the arguments of a call, whether a person decides about it, or a text that tells the person why."""


@dataclass(frozen=True, slots=True)
class AskFirst:
    """A person decides about each call, or about those for which `when` is true; see `ask_first`."""

    when: When | None = field(default=None, repr=False)
    expires: float | None = None
    """Seconds after which a request that is not decided counts as denied."""
    unattended: Unattended | None = None
    """As in `Runtime.open`, whose setting applies if this is None."""


def check_expires(what: str, seconds: object) -> object:
    """Return the seconds after which a request is denied, None for never. Raises InvalidCantrip."""
    fits = seconds is None or (is_positive(seconds) and seconds <= LONGEST)
    check(fits, f"{what}: expires", f"seconds > 0, at most {LONGEST:,.0f}, or None for never", seconds, InvalidCantrip)
    return seconds


def check_unattended(what: str, setting: object) -> object:
    """Return what becomes of a request that no program follows. Raises InvalidCantrip."""
    check_choice(f"{what}: unattended", setting, (*get_args(Unattended), None), InvalidCantrip)
    return setting


@dataclass(frozen=True, slots=True)
class Wrapper:
    """The steps of one `wrap` or `ask_first`, under the name that the loom records."""

    name: str
    pre: tuple[PreStep, ...] = field(default=(), repr=False)
    post: tuple[PostStep, ...] = field(default=(), repr=False)
    ask: AskFirst | None = field(default=None, repr=False)
