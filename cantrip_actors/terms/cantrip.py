"""The cantrip: crystal + call + circle, a value that can be cast any number of times (SPEC 1.4).

A recipe is validated here, when it is made (CANTRIP-1, CANTRIP-3). `carve` derives a child's cantrip from its parent's;
it is in this file because it answers the same question: what may this entity be?
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import attrgetter
from pathlib import PurePath
from types import MappingProxyType, MethodType
from typing import Any, Protocol, runtime_checkable

from cantrip_actors.terms.call import Call
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest
from cantrip_actors.terms.gate import AgentRequest, Refused
from cantrip_actors.terms.messages import ALIASES, find_named_gate
from cantrip_actors.terms.server_tools import TAKEN, check_server_tools
from cantrip_actors.terms.ward import NUMBERS, PRICES, PROGRAMS, Wards


@runtime_checkable
class Crystal(Protocol):
    """Anything with `invoke`: messages in, a response out, no state between invocations (CRYSTAL-1).

    `invoke(messages, tools, tool_choice)` is awaited and returns a Response or its fields as a mapping. An object may
    also have `name`, `context_window` (tokens), `call` (a `Call` for children that it drives, instead of their
    parent's), and take `options` (the call's sampling parameters); see `crystal/signature.py`. If an answer has no
    usage, its tokens are estimated. If `has_prices` is False, `max_cost` as the only bound is refused.
    `check_server_tools(tools)`, if the object has it, raises InvalidCantrip for each of `Call(server_tools=…)` that it
    does not support.
    """

    @property
    def invoke(self) -> Any:
        """Answer one query."""
        ...


@dataclass(frozen=True, slots=True)
class Folding:
    """The policy for folding older turns out of the working context (D-007); the loom keeps them (LOOM-5).

    It happens when more than `trigger_after_turns` turns are unfolded, or when the last query used more than
    `trigger_at` (a share) of the crystal's context window, whichever comes first. The newest `keep_turns` (at least 1:
    an entity has to see what its last gates returned) stay unfolded; the default is half of `trigger_after_turns`, or 4
    if only the window triggers. If few turns fill the window, fewer stay.

    With `summary`, a crystal writes the text that replaces the folded turns: the entity's own for True, or the one
    given. Without it, a marker and what the circle's companion recalls replace them.
    """

    trigger_after_turns: int | None = None
    trigger_at: float = 0.8
    keep_turns: int | None = None
    summary: Crystal | str | bool = False

    def __post_init__(self) -> None:
        for name, least in (("trigger_after_turns", 1), ("keep_turns", 1)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise InvalidCantrip(f"folding: {name}: expected a whole number >= {least}, got {value!r}")
        if not _is_number(self.trigger_at) or not 0 < self.trigger_at <= 1:
            raise InvalidCantrip(f"folding: trigger_at: expected a share from 0 to 1, got {self.trigger_at!r}")
        if not isinstance(self.summary, bool):
            _check_crystal("folding: summary", self.summary)

    def identity(self) -> list[Any]:
        """Return the parts that enter the content id."""
        told = [self.trigger_after_turns, self.trigger_at, self.keep_turns]
        if self.summary is False:
            return told
        return [*told, self.summary if self.summary is True else get_crystal_name(self.summary)]

    @property
    def keep(self) -> int:
        """The number of newest turns that stay unfolded."""
        if self.keep_turns is not None:
            return self.keep_turns
        return 4 if self.trigger_after_turns is None else max(1, self.trigger_after_turns // 2)

    def due(self, unfolded: int, prompt_tokens: int, window: int | None) -> bool:
        """Return whether to fold before the next query, after `unfolded` turns and a last query of `prompt_tokens`."""
        after = self.trigger_after_turns
        if after is not None and unfolded > max(after, self.keep):
            return True
        return window is not None and unfolded > 1 and prompt_tokens > self.trigger_at * window

    def first_kept(self, said: int, folded: int) -> int:
        """Return the first of `said` utterances that the next fold keeps; `folded` of them are folded already."""
        return said - self.remaining(said - folded)

    def remaining(self, unfolded: int) -> int:
        """Return how many of `unfolded` turns the next fold leaves: always fewer, and at least the newest."""
        return self.keep if unfolded > self.keep else max(1, unfolded // 2)


_NEVER_RETRIED = (400, 401, 403, 404)


@dataclass(frozen=True, slots=True)
class Retry:
    """How a crystal's failed attempts are retried inside one turn (SPEC 7.3, D-006).

    `max_retries` counts the attempts after the first. Delays double from `base_delay` to `max_delay` seconds, with
    jitter; a provider's Retry-After takes precedence. Only `retryable_status_codes` and missing answers are retried.
    """

    max_retries: int = 5
    retryable_status_codes: tuple[int, ...] = (429, 500, 502, 503, 504)
    base_delay: float = 1.0
    max_delay: float = 60.0

    def __post_init__(self) -> None:
        if isinstance(self.max_retries, bool) or not isinstance(self.max_retries, int) or self.max_retries < 0:
            raise InvalidCantrip(f"retry: max_retries: expected a whole number >= 0, got {self.max_retries!r}")
        numbers = _is_number(self.base_delay) and _is_number(self.max_delay)
        if not numbers or not 0 <= self.base_delay <= self.max_delay:
            raise InvalidCantrip(
                f"retry: expected 0 <= base_delay <= max_delay, got {self.base_delay!r} and {self.max_delay!r}"
            )
        given: object = self.retryable_status_codes
        if not isinstance(given, (tuple, list, set, frozenset)):
            raise InvalidCantrip(f"retry: retryable_status_codes: expected a list of HTTP statuses, got {given!r}")
        for status in (codes := tuple(given)):
            if isinstance(status, bool) or not isinstance(status, int) or status in _NEVER_RETRIED:
                raise InvalidCantrip(f"retry: retryable_status_codes: {status!r} cannot be retried (SPEC 7.3)")
        object.__setattr__(self, "retryable_status_codes", codes)

    def delay(self, attempt: int, status: int | None, retry_after: float | None, chance: float) -> float | None:
        """Return the seconds to wait after failed attempt number `attempt` (from 1), or None to give up.

        `chance`, from 0 to 1, is the jitter's dice: half of each delay is fixed, half is random.
        """
        if attempt > self.max_retries or (status is not None and status not in self.retryable_status_codes):
            return None
        ceiling = min(self.max_delay, self.base_delay * 2.0 ** min(attempt - 1, 62))
        backoff = ceiling * (0.5 + 0.5 * chance)
        return backoff if retry_after is None else min(max(backoff, retry_after), self.max_delay)


@dataclass(frozen=True, eq=False)
class Cantrip:
    """The recipe: a crystal, its call and a circle. Cast it on an intent to get an entity (CANTRIP-2).

    `crystal` is "family:model" or any object with `invoke`. `child_crystal` is for children whose request names no
    crystal; `crystals` maps the names that a request may use to crystals, and whole numbers to the crystals of a depth
    (1: the children). `folding` and `retry` are policies, `require_done_tool` may stand here, in the call or as a ward
    (D-002). `needs` are labels, such as `{"disk": "nfs1"}`: a node without them does not serve this cantrip (N-20).
    They say where it runs, not what it is, so its id does not depend on them.

    Raises InvalidCantrip, with one of the texts of `specs/cantrip.md`, if a part is missing or wrong.
    """

    crystal: Crystal | str
    call: Call = field(default_factory=Call)
    circle: Circle = field(default_factory=Circle)
    child_crystal: Crystal | str | None = None
    crystals: Mapping[str | int, Crystal | str] = field(default_factory=dict)
    folding: Folding = field(default_factory=Folding)
    retry: Retry = field(default_factory=Retry)
    require_done_tool: bool = False
    name: str | None = None
    needs: Mapping[str, str] = field(default_factory=dict)
    level: int = field(default=0, init=False)
    """0 for an entity that a user cast, 1 for its children, and so on."""

    def __init__(
        self,
        crystal: Crystal | str | None = None,
        call: Call | None = None,
        circle: Circle | None = None,
        child_crystal: Crystal | str | None = None,
        crystals: Mapping[str | int, Crystal | str] | None = None,
        folding: Folding | None = None,
        retry: Retry | None = None,
        require_done_tool: bool = False,
        name: str | None = None,
        needs: Mapping[str, str] | None = None,
    ) -> None:
        if crystal is None:
            raise InvalidCantrip("cantrip requires a crystal: a name such as 'anthropic:…' or an object with invoke")
        if circle is None:
            raise InvalidCantrip("cantrip requires a circle: Circle(gates=['done'], wards=[max_turns(50)])")
        if crystals is not None and not isinstance(crystals, Mapping):
            raise InvalidCantrip(
                f"cantrip: crystals: expected a mapping of names or depths to crystals, got {type(crystals).__name__}"
            )
        named = crystals or {}
        for what, one in (("crystal", crystal), *((f"crystals[{key!r}]", one) for key, one in named.items())):
            _check_crystal(what, one)
        if child_crystal is not None:
            _check_crystal("child_crystal", child_crystal)
        kinds: tuple[tuple[str, object, type], ...] = (
            ("call", call, Call),
            ("circle", circle, Circle),
            ("folding", folding, Folding),
            ("retry", retry, Retry),
            ("require_done_tool", require_done_tool, bool),
            ("name", name, str),
            ("needs", needs, Mapping),
        )
        for what, part, kind in kinds:
            if part is not None and not isinstance(part, kind):
                raise InvalidCantrip(f"cantrip: {what}: expected a {kind.__name__}, got {type(part).__name__}")
        for label, value in (needs or {}).items():
            if not (isinstance(label, str) and isinstance(value, str)):
                raise InvalidCantrip(f"cantrip: needs: expected labels, a text for each, got {label!r}: {value!r}")
        parts: dict[str, Any] = {
            "crystal": crystal,
            "call": call or Call(),
            "circle": circle,
            "child_crystal": child_crystal,
            "crystals": MappingProxyType(dict(named)),
            "folding": folding or Folding(),
            "retry": retry or Retry(),
            "require_done_tool": require_done_tool,
            "name": name,
            "needs": MappingProxyType(dict(needs or {})),
            "level": 0,
        }
        for part_name, part in parts.items():
            object.__setattr__(self, part_name, part)
        self._check_circle()

    def _check_circle(self) -> None:
        if "done" not in self.circle.open_gates:
            if self.requires_done:
                raise InvalidCantrip(
                    "cantrip with require_done must have a done gate: add 'done' to the circle's gates"
                )
            raise InvalidCantrip("circle must have a done gate: Circle(gates=['done', …])")
        if not self.circle.resolved.bounded:
            raise InvalidCantrip(
                "cantrip must have at least one truncation ward: max_turns, timeout, max_tokens or max_cost"
            )
        for server in self.circle.servers:
            if server.sampling is not None:
                _check_crystal(f"server {server.name}: sampling", server.sampling)
        for crystal in (self.crystal, self.child_crystal, *self.crystals.values()):
            _check_budgets(crystal, self.circle.resolved)
            _check_server_tools(crystal, self.call)
        self._check_choice()

    def _check_choice(self) -> None:
        gate = find_named_gate(self.call.tool_choice)
        if gate is None:
            return
        if self.circle.medium != "tools":
            raise InvalidCantrip(f'tool_choice "gate:{gate}": a program calls the gates here; leave it out')
        if any(gate.startswith(f"{server.name}__") for server in self.circle.servers):
            return  # a tool of a server; its tools are not known yet
        if gate not in self.circle.open_gates:
            raise InvalidCantrip(
                f'tool_choice "gate:{gate}": no such gate: {suggest_nearest(gate, self.circle.open_gates)}'
            )

    @property
    def requires_done(self) -> bool:
        """True if only `done` ends the entity: the call, the cantrip or a ward can require it (reading 1)."""
        return self.require_done_tool or self.call.require_done_tool or self.circle.resolved.require_done_tool

    def with_crystal(self, crystal: Crystal | str) -> Cantrip:
        """Return the same cantrip with another crystal (SPEC 2.2), for example to fork another user's run."""
        _check_crystal("crystal", crystal)
        _check_budgets(crystal, self.circle.resolved)
        _check_server_tools(crystal, self.call)
        return _replace_parts(self, crystal=crystal)

    def with_circle(self, circle: Circle) -> Cantrip:
        """Return the same cantrip with its circle completed by the tools of its servers (`Circle.with_tools`)."""
        made = _replace_parts(self, circle=circle)
        made.__dict__["_bare"] = self.bare
        return made

    @property
    def bare(self) -> Cantrip:
        """Return this cantrip as the user wrote it, without the tools of its circle's servers."""
        bare: Cantrip = self.__dict__.get("_bare", self)
        return bare

    @cached_property
    def id(self) -> str:
        """The content id of this cantrip in the loom: the same recipe has the same id in every process.

        It depends on what the user wrote, in every version of this library (`identity.py`), and not on the name.
        """
        return self._compute_id(*self.circle.identity())

    @cached_property
    def behind(self) -> Sequence[object]:
        """The objects that the id does not cover, except the crystal."""
        circle, retry = self.circle, self.retry
        behind: list[object] = [self.child_crystal, *self.crystals.values()]
        behind += [self.folding.summary, circle.companion]
        behind += [retry.max_retries, retry.base_delay, retry.max_delay, *retry.retryable_status_codes]
        behind += [part for server in circle.servers for part in (server.timeout, server.sampling, *server.behind())]
        for gate in circle.bare.gates:
            behind += [gate.function, gate.timeout, gate.ephemeral, gate.visible_for]
            behind += [gate.idempotent, gate.read_only, gate.blocking]
            behind += [step for wrapper in gate.wrappers for step in (*wrapper.pre, *wrapper.post)]
            behind += [part for name in sorted(gate.dependencies) for part in (name, gate.dependencies[name])]
        return behind

    @cached_property
    def former_id(self) -> str:
        """The id that older versions of this library recorded for this cantrip; with plain gates it equals `id`."""
        return self._compute_id(*self.circle.former_identity())

    def _compute_id(self, circle: dict[str, Any], descriptions: list[str]) -> str:
        content = [
            get_crystal_name(self.crystal),
            None if self.child_crystal is None else get_crystal_name(self.child_crystal),
            [(str(key), get_crystal_name(one)) for key, one in self.crystals.items()],
            {"system_prompt": None, **self.call.as_json()},  # a null, so that ids stay what they were
            circle,
            descriptions,
            self.folding.identity(),
            self.requires_done,
        ]
        text = json.dumps(content, sort_keys=True, default=repr)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def has_id(self, cantrip_id: str) -> bool:
        """Return whether a loom knows this content by `cantrip_id`: its id, or the one of an older version."""
        return cantrip_id == self.id or cantrip_id == self.former_id  # noqa: PLR1714  # the second is seldom needed


def get_crystal_name(crystal: Crystal | str) -> str:
    """Return the name of a crystal in the loom: its `name`, else its class."""
    if isinstance(crystal, str):
        return crystal
    name = getattr(crystal, "name", None)
    return name if isinstance(name, str) else type(crystal).__name__


def by_name(cantrips: Iterable[Cantrip]) -> dict[str, Cantrip]:
    """Return cantrips by their names. Raises InvalidCantrip for one without a name, and for two of one name."""
    found: dict[str, Cantrip] = {}
    for cantrip in cantrips:
        if cantrip.name is None:
            raise InvalidCantrip("a cantrip is offered by its name: give it a `name`")
        if cantrip.name in found:
            raise InvalidCantrip(f'two cantrips are called "{cantrip.name}": give one of them another name')
        found[cantrip.name] = cantrip
    return found


def is_interchangeable(one: Cantrip, other: Cantrip) -> bool:
    """Return whether an entity of one may continue with the other without an explicit request.

    Equal ids mean equal content. The objects behind the content have to be identical, too: the crystals, the functions
    of the gates and their injected dependencies, because a service injects other dependencies for each user.
    """
    return _is_same(one.crystal, other.crystal) and is_same_but_for_crystal(one, other)


def is_same_but_for_crystal(one: Cantrip, other: Cantrip) -> bool:
    """Return whether two cantrips are interchangeable apart from their crystals."""
    if one is other:
        return True
    if one.id != other.id:
        return False
    mine, theirs = one.behind, other.behind
    return len(mine) == len(theirs) and all(map(_is_same, mine, theirs))


def _is_same(one: object, other: object) -> bool:
    """Return whether two objects are the same. Users' `__eq__` is never called: only known value types compare by
    value.
    """
    return one is other or (type(one) is type(other) and isinstance(one, _VALUES) and one == other)


_VALUES = (str, bytes, int, float, PurePath, MethodType)
"""Types that are compared by value. Two bound methods are equal if they are bound to the same object."""


def carve(parent: Cantrip, request: AgentRequest) -> Cantrip | Refused:
    """Return the cantrip of a child that `parent` requests, or the reason for refusing it (COMP-1, COMP-6, COMP-7).

    The child has some of the parent's open gates and at least its wards, one level less deep. Its crystal is the the
    first of: the request's, the one of its depth, the child crystal, the parent's. Its call is the parent's, unless its
    crystal has one of its own (as a program that acts as a crystal does) or the request names a system prompt.

    Equal requests give one cantrip: the parent's cantrip caches the last child's.
    """
    alike = _ALIKE(request)
    last: tuple[Any, Cantrip] | None = parent.__dict__.get("_last_carved")
    if last is not None and last[0] == alike:
        return last[1]
    made = _carve_child(parent, request)
    if isinstance(made, Cantrip) and getattr(made.crystal, "call", None) is None:  # it may differ next time
        parent.__dict__["_last_carved"] = (alike, made)
    return made


_ALIKE = attrgetter(*(name for name in AgentRequest.model_fields if name not in ("intent", "context")))
"""Return the cache key of a child's cantrip: everything that it depends on."""


def _carve_child(parent: Cantrip, request: AgentRequest) -> Cantrip | Refused:
    if parent.circle.resolved.depth == 0:
        return Refused("cannot delegate: no deeper delegation is allowed here (max_depth is 0)")
    gates = parent.circle.open_gates
    asked_for = gates if request.gates is None else [ALIASES.get(name, name) for name in request.gates]
    names = list(dict.fromkeys((*asked_for, "done")))  # without `done` a child could not finish; every parent has it
    for name in names:
        if name not in gates:
            return Refused(f'cannot grant gate "{name}": the parent\'s gates are {", ".join(gates)}')
    idle = next((name for name in PROGRAMS if getattr(request, name) is not None), None)
    if idle is not None and parent.circle.medium == "tools":
        return Refused(
            f"cannot narrow {idle}: it bounds programs, and your children call tools, as you do; leave it out"
        )
    numbers: dict[str, Any] = {name: getattr(request, name, None) for name in NUMBERS}
    asked = Wards(
        **numbers,
        require_done_tool=bool(request.require_done_tool),
        removed=frozenset(ALIASES.get(name, name) for name in request.remove_gates) - {"done"},
    )
    crystal = _choose_child_crystal(parent, request)
    if isinstance(crystal, Refused):
        return crystal
    own = getattr(crystal, "call", None)
    call = own if isinstance(own, Call) else parent.call
    if (named := find_named_gate(call.tool_choice)) is not None and named not in names:
        call = replace(call, tool_choice=None)  # the parent's gate, which this child was not granted
    if request.system_prompt is not None:
        call = replace(call, system_prompt=request.system_prompt)
    circle = parent.circle.narrowed([gates[name] for name in names], parent.circle.resolved.down(asked))
    return _replace_parts(parent, crystal=crystal, call=call, circle=circle, level=parent.level + 1, name=None)


def _replace_parts(cantrip: Cantrip, **parts: Any) -> Cantrip:
    """Return a cantrip with some parts replaced by others that are already validated; nothing is checked again."""
    made = object.__new__(Cantrip)
    for part in fields(Cantrip):
        object.__setattr__(made, part.name, parts.get(part.name, getattr(cantrip, part.name)))
    return made


def _choose_child_crystal(parent: Cantrip, request: AgentRequest) -> Crystal | str | Refused:
    if request.crystal is not None:
        named = parent.crystals.get(request.crystal)
        if named is None:
            known = ", ".join(name for name in parent.crystals if isinstance(name, str)) or "none"
            return Refused(f'unknown crystal "{request.crystal}": crystals that may be named here: {known}')
        return named
    of_depth = parent.crystals.get(parent.level + 1)
    if of_depth is not None:  # and not `or`: a crystal may have a length, and be empty
        return of_depth
    return parent.crystal if parent.child_crystal is None else parent.child_crystal


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_crystal(what: str, crystal: object) -> None:
    if isinstance(crystal, str) and ":" in crystal.strip(":"):
        return
    if isinstance(crystal, str) or not callable(getattr(crystal, "invoke", None)):
        raise InvalidCantrip(
            f"cantrip requires a crystal: {what}: expected 'family:model' or an object with invoke, got {crystal!r}"
        )


def _check_budgets(crystal: Crystal | str | None, wards: Wards) -> None:
    """Raise InvalidCantrip if only a budget in dollars bounds an entity whose crystal has no prices (LOOP-2)."""
    if crystal is not None and wards.bounds == {"max_cost"} and getattr(crystal, "has_prices", None) is False:
        name = get_crystal_name(crystal)
        raise InvalidCantrip(f"max_cost would never end this cantrip, because {name} has no known prices: {PRICES}")


def _check_server_tools(crystal: Crystal | str | None, call: Call) -> None:
    """Raise InvalidCantrip if the crystal does not support one of the call's server tools, or one of its settings."""
    if not call.server_tools:
        return
    if isinstance(crystal, str):
        family, _, model = crystal.partition(":")
        if family in TAKEN:
            check_server_tools(family, model, call.server_tools)
        return
    check = getattr(crystal, "check_server_tools", None)
    if callable(check):
        check(call.server_tools)
