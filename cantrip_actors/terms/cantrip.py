"""The cantrip: crystal + call + circle, a value that can be cast any number of times (SPEC 1.4).

A recipe is validated here, when it is made (CANTRIP-1, CANTRIP-3). `child_cantrip.py` derives a child's cantrip.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from types import MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any, Generic, overload

from cantrip_actors.terms.additions import NO_ADDITIONS, Additions
from cantrip_actors.terms.answer import Answer_co, make_typed_done
from cantrip_actors.terms.arguments import check, check_kind, check_name, is_text, is_texts_by_name, is_whole
from cantrip_actors.terms.call import Call
from cantrip_actors.terms.circle import Circle, GatePart
from cantrip_actors.terms.crystal import Crystal, check_crystal, get_crystal_name
from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest
from cantrip_actors.terms.folding import Folding
from cantrip_actors.terms.messages import find_named_gate
from cantrip_actors.terms.retry import Retry
from cantrip_actors.terms.server_tools import TAKEN, check_server_tools
from cantrip_actors.terms.value import Immutable, replace_fields, set_fields
from cantrip_actors.terms.ward import PRICES, Wards, max_turns

if TYPE_CHECKING:
    from typing_extensions import TypeForm


@dataclass(frozen=True, eq=False, repr=False)
class Cantrip(Immutable, Generic[Answer_co]):
    """The recipe: a crystal, its call and a circle. Cast it on an intent to get an entity (CANTRIP-2).

    `crystal` is "family:model" or any object with `invoke`. `child_crystal` is for children whose request names no
    crystal; `crystals` maps the names that a request may use to crystals, and whole numbers to the crystals of a depth
    (1: the children). `folding` and `retry` are policies, `require_done_tool` may stand here, in the call or as a ward
    (D-002). `needs` are labels, such as `{"disk": "nfs1"}`: a node without them does not serve this cantrip.
    They say where it runs, not what it is, so its id does not depend on them. `description` tells clients of a service
    what it is for; they never see its system prompt.

    `answer` is the type of the answers, any that pydantic can validate: a model, a dataclass, `list[str]`, a union, an
    `Annotated` type with a validator. `done` then asks for an answer of that type, only `done` ends the entity, and the
    entity corrects a wrong answer. `Episode.result` is a value of that type.

    There are short forms: `system="…"` for `call=Call(system_prompt="…")`; `gates=[…]`, `max_turns=8`,
    `skills="skills/"` and `on_demand=[…]` for
    `circle=Circle(["done", …], [max_turns(8)], skills="skills/", on_demand=[…])`, to which `done` is added.

    Raises InvalidCantrip, with the name of the part, if a part is missing or wrong, or given in both forms.
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
    description: str = ""
    answer: Any = None
    level: int = field(default=0, init=False)
    """0 for an entity that a user cast, 1 for its children, and so on."""

    @overload
    def __init__(
        self: Cantrip[Any],
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
        description: str = "",
        answer: None = None,
        *,
        system: str | None = None,
        gates: Iterable[GatePart] | None = None,
        max_turns: int | None = None,
        skills: str | PurePath | None = None,
        on_demand: Iterable[GatePart] | None = None,
    ) -> None: ...
    @overload
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
        description: str = "",
        *,
        answer: TypeForm[Answer_co],
        system: str | None = None,
        gates: Iterable[GatePart] | None = None,
        max_turns: int | None = None,
        skills: str | PurePath | None = None,
        on_demand: Iterable[GatePart] | None = None,
    ) -> None: ...
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
        description: str = "",
        answer: Any = None,
        *,
        system: str | None = None,
        gates: Iterable[GatePart] | None = None,
        max_turns: int | None = None,
        skills: str | PurePath | None = None,
        on_demand: Iterable[GatePart] | None = None,
    ) -> None:
        if crystal is None:
            raise InvalidCantrip("cantrip requires a crystal: a name such as 'anthropic:…' or an object with invoke")
        call = _complete_call(call, system)
        circle = _complete_circle(circle, gates, max_turns, skills, on_demand)
        if circle is None:
            raise InvalidCantrip(
                "cantrip requires a circle: Circle(gates=['done'], wards=[max_turns(50)]), "
                "or gates=[…] and max_turns=50"
            )
        expected = "a mapping of names or depths to crystals"
        check_kind("cantrip: crystals", crystals, Mapping | None, expected, InvalidCantrip)
        named = crystals or {}
        for what, value in (("crystal", crystal), *((f"crystals[{key!r}]", value) for key, value in named.items())):
            check_crystal(what, value)
        if child_crystal is not None:
            check_crystal("child_crystal", child_crystal)
        kinds: tuple[tuple[str, object, type], ...] = (
            ("call", call, Call),
            ("circle", circle, Circle),
            ("folding", folding, Folding),
            ("retry", retry, Retry),
            ("require_done_tool", require_done_tool, bool),
            ("name", name, str),
            ("needs", needs, Mapping),
            ("description", description, str),
        )
        for what, part, kind in kinds:
            check_kind(f"cantrip: {what}", part, kind | None, f"a {kind.__name__}", InvalidCantrip)
        if name is not None:
            check_name("cantrip: name", name, InvalidCantrip)
        _check_keys(named, needs or {})
        set_fields(self, crystal=crystal, call=call or Call(), circle=circle, child_crystal=child_crystal, level=0)
        set_fields(self, crystals=MappingProxyType(dict(named)), folding=folding or Folding(), retry=retry or Retry())
        set_fields(self, require_done_tool=require_done_tool, name=name, needs=MappingProxyType(dict(needs or {})))
        set_fields(self, description=description, answer=answer)
        if answer is not None:
            set_fields(self, circle=circle.with_typed_done(make_typed_done(answer)))
        self._check_circle()

    def _check_circle(self) -> None:
        """Raise InvalidCantrip without a `done` gate (CIRCLE-1), or a ward that ends the entity (CIRCLE-2)."""
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
                check_crystal(f"server {server.name}: sampling", server.sampling)
        for crystal in (self.crystal, self.child_crystal, *self.crystals.values()):
            _check_budgets(crystal, self.circle.resolved)
            _check_server_tools(crystal, self.call)
        self._check_choice()

    def _check_choice(self) -> None:
        gate = find_named_gate(self.call.tool_choice)
        if self.circle.medium == "person" and (gate is not None or self.call.tool_choice == "required"):
            raise InvalidCantrip(
                f'tool_choice "{self.call.tool_choice}": every answer would be a call, and no text would reach the '
                "person; leave it out"
            )
        if gate is None:
            return
        if self.circle.has_programs:
            raise InvalidCantrip(f'tool_choice "gate:{gate}": a program calls the gates here; leave it out')
        server = next((server for server in self.circle.servers if server.owns(gate)), None)
        if gate in self.circle.hidden or (server is not None and server.on_demand):
            raise InvalidCantrip(
                f'tool_choice "gate:{gate}": it is on demand, so no query offers it: put it among the gates'
            )
        if server is not None:
            return  # a tool of a server; its tools are not known yet
        if gate not in self.circle.open_gates:
            raise InvalidCantrip(
                f'tool_choice "gate:{gate}": no such gate: {suggest_nearest(gate, self.circle.open_gates)}'
            )

    @property
    def requires_done(self) -> bool:
        """True if only `done` ends the entity: call, cantrip, a ward or a typed answer can require it (reading 1)."""
        return (
            self.require_done_tool
            or self.answer is not None
            or self.call.require_done_tool
            or self.circle.resolved.require_done_tool
            or self.circle.medium == "person"
        )

    def read_answer(self, answer: Any) -> Answer_co:
        """Convert an answer from its form in the loom to the type `answer`; return it unchanged if the cantrip has no
        such type.

        Raises AnswerMisfit if it is not of that type, as one of an earlier version of the cantrip.
        """
        done = None if self.answer is None else self.circle.gate("done")
        if done is None or done.model is None:
            untyped: Answer_co = answer
            return untyped
        from cantrip_actors.terms.argument_model import read_answer

        value: Answer_co = read_answer(done.model, answer)
        return value

    def with_crystal(self, crystal: Crystal | str) -> Cantrip:
        """Return the same cantrip with another crystal (SPEC 2.2), for example to fork another user's run."""
        check_crystal("crystal", crystal)
        _check_budgets(crystal, self.circle.resolved)
        _check_server_tools(crystal, self.call)
        return replace_fields(self, crystal=crystal)

    def with_circle(self, circle: Circle) -> Cantrip:
        """Return the same cantrip with its circle completed by the tools of its servers (`Circle.with_tools`)."""
        cantrip = replace_fields(self, circle=circle)
        cantrip.__dict__["_bare"] = self.bare
        return cantrip

    def with_dependencies(self, values: Mapping[str, Any]) -> Cantrip:
        """Return the same cantrip with other dependencies of its gates, by their names; its content id is the same."""
        cantrip = replace_fields(self, circle=self.circle.with_dependencies(values))
        cantrip.__dict__.update(id=self.id, _bare=self.bare, _unprovided=self.unprovided)
        return cantrip

    @property
    def unprovided(self) -> Cantrip:
        """Return this cantrip without dependencies that the runtime provided for one piece of work."""
        cantrip: Cantrip = self.__dict__.get("_unprovided", self)
        return cantrip

    @property
    def bare(self) -> Cantrip:
        """Return this cantrip as the user wrote it, without the tools of its circle's servers."""
        bare: Cantrip = self.__dict__.get("_bare", self)
        return bare

    @property
    def offered(self) -> Cantrip:
        """Return this cantrip as its service offers it, without a client's additions (`extended_cantrip.py`)."""
        offered: Cantrip = self.bare.__dict__.get("_offered", self.bare)
        return offered

    @property
    def additions(self) -> Additions:
        """Return what a client has added to this cantrip for one intent."""
        additions: Additions = self.bare.__dict__.get("_additions", NO_ADDITIONS)
        return additions

    @cached_property
    def id(self) -> str:
        """The content id of this cantrip in the loom: the same recipe has the same id in every process.

        It depends on what the user wrote, in every version of this library (`identity.py`), and not on the name.
        """
        circle, descriptions = self.circle.identity()
        content = [
            get_crystal_name(self.crystal),
            None if self.child_crystal is None else get_crystal_name(self.child_crystal),
            [(str(key), get_crystal_name(crystal)) for key, crystal in self.crystals.items()],
            self.call.as_json(),
            circle,
            descriptions,
            self.folding.identity(),
            self.requires_done,
        ]
        text = json.dumps(content, sort_keys=True, default=repr)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @cached_property
    def behind(self) -> Sequence[object]:
        """The objects that the id does not cover, except the crystal."""
        circle, retry = self.circle, self.retry
        behind: list[object] = [self.child_crystal, *self.crystals.values()]
        behind += [self.folding.summary, circle.companion, self.answer if isinstance(self.answer, type) else None]
        behind += [retry.max_retries, retry.base_delay, retry.max_delay, *retry.retryable_status_codes]
        behind += [
            part
            for server in circle.servers
            for part in (server.timeout, server.max_shown, server.sampling, *server.behind())
        ]
        for gate in circle.bare.gates:
            behind += [gate.function, gate.timeout, gate.ephemeral, gate.visible_for, gate.max_shown]
            behind += [gate.idempotent, gate.read_only, gate.blocking]
            behind += [step for wrapper in gate.wrappers for step in (*wrapper.pre, *wrapper.post)]
            behind += [part for name in sorted(gate.dependencies) for part in (name, gate.dependencies[name])]
        return behind


def _complete_call(call: Call | None, system: str | None) -> Call | None:
    """Return the call as given, or build it from its short form."""
    if system is None:
        return call
    if call is not None:
        raise InvalidCantrip("cantrip: system is short for call=Call(system_prompt=…): give one of them, not both")
    return Call(system_prompt=system)


def _complete_circle(
    circle: Circle | None,
    gates: Iterable[GatePart] | None,
    turns: int | None,
    skills: str | PurePath | None,
    on_demand: Iterable[GatePart] | None,
) -> Circle | None:
    """Return the circle as given, or build it from its short forms."""
    parts = {"gates": gates, "max_turns": turns, "skills": skills, "on_demand": on_demand}
    short = next((name for name, part in parts.items() if part is not None), None)
    if short is None:
        return circle
    if circle is not None:
        raise InvalidCantrip(f"cantrip: {short} is short for a part of circle=Circle(…): give one of them, not both")
    wards = () if turns is None else [max_turns(turns)]
    return Circle(gates or (), wards, skills=skills, on_demand=on_demand or ()).with_done()


def _check_keys(crystals: Mapping[Any, object], needs: Mapping[Any, object]) -> None:
    """Raise InvalidCantrip for a key of `crystals` that is neither a name nor a depth, and for a label without a
    text.
    """
    for key in crystals:
        expected = "a name, or a depth from 1 on (1: the children)"
        check(isinstance(key, str) or is_whole(key, 1), "cantrip: crystals", expected, key, InvalidCantrip)
    fits = is_texts_by_name(needs) and all(map(is_text, needs))
    check(fits, "cantrip: needs", "names of labels, and a text for each", needs, InvalidCantrip)


def by_name(cantrips: Iterable[Cantrip]) -> dict[str, Cantrip]:
    """Return cantrips by their names. Raises InvalidCantrip for one without a name, and for two of one name."""
    named: dict[str, Cantrip] = {}
    for cantrip in cantrips:
        if cantrip.name is None:
            raise InvalidCantrip("a cantrip is offered by its name: give it a `name`")
        if cantrip.name in named:
            raise InvalidCantrip(f'two cantrips are called "{cantrip.name}": give one of them another name')
        named[cantrip.name] = cantrip
    return named


def is_interchangeable(first: Cantrip, other: Cantrip) -> bool:
    """Return whether an entity of one cantrip may continue with the other cantrip without an explicit request.

    Equal ids mean equal content. The objects behind the content have to be identical, too: the crystals, the functions
    of the gates and their injected dependencies, because a service injects other dependencies for each user.
    """
    return _is_same(first.crystal, other.crystal) and is_same_but_for_crystal(first, other)


def is_same_but_for_crystal(first: Cantrip, other: Cantrip) -> bool:
    """Return whether two cantrips are interchangeable apart from their crystals."""
    if first is other:
        return True
    if first.id != other.id:
        return False
    mine, theirs = first.behind, other.behind
    return len(mine) == len(theirs) and all(map(_is_same, mine, theirs))


def _is_same(first: object, other: object) -> bool:
    """Return whether two objects are the same. Users' `__eq__` is never called: only known value types compare by
    value.
    """
    return first is other or (type(first) is type(other) and isinstance(first, _VALUES) and first == other)


_VALUES = (str, bytes, int, float, PurePath, MethodType)
"""Types that are compared by value. Two bound methods are equal if they are bound to the same object."""


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
