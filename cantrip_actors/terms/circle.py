"""The circle: the environment of an entity, as a value: gates, wards and a medium (SPEC 4).

An entity's action space is A = (L + G) - W: `open_gates` is G - W, and the medium contributes L. A circle that runs
is an actor of `runtime/`. This file describes the circle and derives the tool definitions that the crystal sees
(CALL-3).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar, get_args

from cantrip_actors.terms.arguments import check, check_kind, is_list
from cantrip_actors.terms.companion import Companion, check_hooks
from cantrip_actors.terms.errors import InvalidCantrip, find_nearest, suggest_nearest
from cantrip_actors.terms.gate import Gate, standard
from cantrip_actors.terms.gate_function import gate
from cantrip_actors.terms.languages import DEFAULT, Language, MediumName, find_language, has_programs
from cantrip_actors.terms.messages import ALIASES, ToolCall, ToolDefinition
from cantrip_actors.terms.on_demand import resolve_call
from cantrip_actors.terms.own_gate_names import DELEGATION, DONE, FIND_GATES, OF_CHILDREN, PERSON, USE_GATE
from cantrip_actors.terms.provided import PROVIDED
from cantrip_actors.terms.risk import RISKS, LethalTrifecta, Risk
from cantrip_actors.terms.tool_server import (
    Calls,
    ListedTools,
    ToolServer,
    ToolServerError,
    describe_without_words,
    make_gates,
)
from cantrip_actors.terms.value import Immutable, replace_fields, set_fields
from cantrip_actors.terms.ward import PROGRAMS, Ward, Wards, parse
from cantrip_actors.terms.wrapping import Wrap

FILE_GATES: Final = ("read", "write", "list", "search")
"""The standard gates with a folder, which is their dependency `root`."""

GatePart = str | Gate | Wrap | ToolServer | Callable[..., Any]
"""Every value that a circle accepts as a gate."""

JailName = Literal["bubblewrap", "landlock"]

P = TypeVar("P")


@dataclass(frozen=True, repr=False)
class Circle(Immutable):
    """Gates, wards and a medium.

    `gates` are names of standard gates, gates, or annotated functions, in the order in which the crystal is shown them.
    `wards` come from `cantrip_actors.wards`. `medium` is "tools" (structured calls), "person", or the language of a
    code circle: a `Medium`, or the name of one ("python", "javascript", "shell", or that of an installed package). With
    "person" a text without calls is shown to a person, whose reply is the observation; `person.with_(…)` among the
    gates says who may be addressed, and how long a reply may take.
    Results of `wrap` are given among the gates. A `companion` accompanies the entity, not its children. `jail` names
    the mechanism that has to confine the shells of medium="shell"; the default is the strongest that the machine has.
    An entity is refused before it starts if its machine lacks that mechanism. A `ToolServer` among the gates adds a
    gate for each of its tools, which are listed when an entity is made. `skills` is a folder with a folder for each
    skill, in the open format of SKILL.md; it adds a gate `skill`, which shows their names and descriptions and reads
    them. `on_demand` takes what `gates` takes: these are gates of the circle too, but the crystal is not shown their
    definitions. It finds them with the gate `find_gates`, and calls them with `use_gate` or, in a code circle, in its
    programs.

    Raises InvalidCantrip for unknown gates (also in `remove_gate`), wards or media, for two gates of one name, for a
    gate whose dependency is missing (CIRCLE-10), for a `done` on demand, and for a ward on programs in a circle without
    programs. Warns with LethalTrifecta if its gates bring private data, untrusted content and a way out.
    """

    gates: tuple[Gate, ...] = ()
    wards: tuple[Ward, ...] = ()
    medium: str | Language = DEFAULT
    companion: Companion | None = field(default=None, repr=False, compare=False)
    jail: JailName | None = None
    servers: tuple[ToolServer, ...] = ()
    language: Language | None = field(init=False, repr=False, compare=False)
    """The description that its medium gives; None if its entities write no programs."""
    resolved: Wards = field(init=False, repr=False, compare=False)
    """The meet of all wards."""
    listed: Mapping[str, ListedTools] = field(init=False, repr=False, compare=False)
    """The tools of its servers, by server name; empty before they are listed."""

    def __init__(
        self,
        gates: Iterable[GatePart] = (),
        wards: Iterable[Ward | Mapping[str, Any]] = (),
        medium: str | Language = DEFAULT,
        companion: Companion | None = None,
        jail: JailName | None = None,
        servers: Iterable[ToolServer] = (),
        skills: str | PurePath | None = None,
        on_demand: Iterable[GatePart] = (),
    ) -> None:
        for what, value in (("gates", gates), ("wards", wards), ("servers", servers), ("on_demand", on_demand)):
            expected = "a list, as in Circle(gates=['done'], wards=[max_turns(50)])"
            check(is_list(value), f"circle: {what}", expected, value, InvalidCantrip)
        _check_jail(jail, medium)
        language = find_language(medium, {} if jail is None else {"jail": jail})
        check_kind("circle: companion", companion, Companion | None, "a Companion", InvalidCantrip)
        if companion is not None:
            check_hooks(companion)
        servers = tuple(servers)
        for server in servers:
            check_kind("circle: servers", server, ToolServer, "servers of tools, as from mcp.http(…)", InvalidCantrip)
        parts, further = [*servers, *gates], list(on_demand)
        own = [part for part in parts if not isinstance(part, ToolServer)]
        own_further = [part for part in further if not isinstance(part, ToolServer)]
        if skills is not None:
            roots = [part.dependencies["root"] for part in own if isinstance(part, Gate) and _has_folder(part)]
            own.append(import_module("cantrip_actors.circle.gates.skills").make_skill_gate(skills, roots))
        if further and not any(isinstance(part, Gate) and _is_own_gate(part, FIND_GATES) for part in own):
            from cantrip_actors.terms.on_demand_gates import find_gates, use_gate

            own += [find_gates, use_gate] if language is None else [find_gates]
        tool_servers = tuple(part for part in parts if isinstance(part, ToolServer))
        tool_servers += tuple(replace(part, on_demand=True) for part in further if isinstance(part, ToolServer))
        _check_names("servers of tools", [server.name for server in tool_servers])
        wraps = [*own, *own_further]
        tool_servers = tuple(
            server.with_wraps(part for part in wraps if server.is_for(part)) for server in tool_servers
        )
        own_gates = (
            *_collect_gates(part for part in own if not any(server.is_for(part) for server in tool_servers)),
            *_collect_on_demand(
                part for part in own_further if not any(server.is_for(part) for server in tool_servers)
            ),
        )
        own_gates = _add_person(own_gates, medium)
        _check_use_gate(own_gates)
        _check_names("gates", [gate.name for gate in own_gates])
        stated = [ward if isinstance(ward, Ward) else parse(ward) for ward in wards]
        flat = [ward for entry in stated for ward in ((entry,) if isinstance(entry, Ward) else entry)]
        idle = next((ward for ward in flat if ward.name in PROGRAMS), None) if language is None else None
        if idle is not None:
            languages = ", ".join(filter(has_programs, get_args(MediumName)))
            raise InvalidCantrip(
                f'{idle}: it bounds programs, and an entity with medium="{medium}" writes none: remove the ward, or '
                f"give the circle a language ({languages}); max_gate_calls bounds the calls of one turn in every medium"
            )
        resolved = Wards.of(flat)
        _check_removed(
            [name for name in resolved.removed if not any(server.owns(name) for server in tool_servers)], own_gates
        )
        folders = [
            str(gate.dependencies["root"])
            for gate in own_gates
            if _has_folder(gate) and gate.name not in resolved.removed
        ]
        if medium == "person" and PERSON in resolved.removed:
            raise InvalidCantrip('remove_gate("person"): the texts of the entity call it: leave out medium="person"')
        _check_limited(resolved, own_gates, tool_servers)
        tool_servers = tuple(server.with_folders(folders) for server in tool_servers) if folders else tool_servers
        set_fields(
            self,
            gates=own_gates,
            wards=tuple(flat),
            medium=medium,
            language=language,
            companion=companion,
            jail=jail,
            servers=tool_servers,
        )
        set_fields(self, resolved=resolved, listed=MappingProxyType({}))
        if self.has_lethal_trifecta:
            warnings.warn(LethalTrifecta(self.risks), stacklevel=2)

    @property
    def has_programs(self) -> bool:
        """True if its entities write programs, in which they call the gates."""
        return self.language is not None

    @property
    def medium_name(self) -> str:
        """The name of its medium, as records have it."""
        return self.medium if isinstance(self.medium, str) else self.medium.name

    @property
    def is_complete(self) -> bool:
        """True if the tools of all its servers are known, which an entity requires."""
        return len(self.listed) == len(self.servers)

    def with_done(self, done: Gate | None = None) -> Circle:
        """Return this circle with a `done` gate first, unless it has one: this one, or the standard one."""
        return self if self.gate(DONE) else replace_fields(self, gates=(done or standard(DONE), *self.gates))

    def with_typed_done(self, done: Gate) -> Circle:
        """Return this circle with the gate of `make_typed_done`; steps and settings of its own `done` stay.

        Raises InvalidCantrip if it has a `done` that is not the standard one.
        """
        own = self.gate("done")
        if own is None:
            return self.with_done(done)
        if own.function is not None or own.schema is not None:
            raise InvalidCantrip("answer: the circle has a done gate with a type of its own: leave out one of the two")
        typed = replace(own, parameters=done.parameters, written=done.written, model=done.model)
        return replace_fields(self, gates=tuple(typed if gate is own else gate for gate in self.gates))

    def with_tools(self, listed: Mapping[str, ListedTools], calls: Mapping[str, Calls]) -> Circle:
        """Return this circle with gates for its servers' tools, given each server's tools and the function that calls
        them.

        Raises ToolServerError if what the user wrote does not fit the tools that were listed.
        """
        gates = [gate for gate in self.gates if gate.server not in self.servers]
        for server in self.servers:
            in_programs = self.has_programs
            gates += make_gates(server, listed[server.name], calls[server.name], in_programs=in_programs)
        try:
            _check_names("gates", [gate.name for gate in gates])
            _check_removed(self.resolved.removed, gates)
            _check_limited(self.resolved, gates)
            for wrap in (wrap for server in self.servers for wrap in server.wrapped):
                if not any(gate.name == wrap.target for gate in gates):
                    names = [gate.name for gate in gates]
                    raise InvalidCantrip(f'unknown gate "{wrap.target}": {suggest_nearest(str(wrap.target), names)}')
                _wrap_gate(gates, wrap)
        except InvalidCantrip as problem:
            raise ToolServerError(str(problem)) from problem
        circle = replace_fields(self, gates=tuple(gates), listed=MappingProxyType(dict(listed)))
        circle.__dict__["_bare"] = self.bare
        return circle

    @cached_property
    def takes_injected(self) -> bool:
        """Whether a gate takes dependencies, injected or not."""
        return any(gate.injected for gate in self.gates)

    @cached_property
    def has_injected(self) -> bool:
        """Whether a gate has dependencies that were injected. Those of a deferred gate are its settings."""
        return any(gate.dependencies for gate in self.gates if gate.kind != "deferred")

    @cached_property
    def provided(self) -> tuple[str, ...]:
        """The names of the dependencies that the runtime has to provide: their value is `PROVIDED` until then."""
        values = (pair for gate in self.gates for pair in gate.dependencies.items())
        return tuple(dict.fromkeys(name for name, value in values if value is PROVIDED))

    def with_dependencies(self, values: Mapping[str, Any]) -> Circle:
        """Return this circle with dependencies of its gates, by their names. Raises InvalidCantrip for a wrong one."""
        gates = []
        for one in self.gates:
            own = {name: values[name] for name in one.injected if name in values}
            gates.append(one.with_(**own) if own else one)
        circle = replace_fields(self, gates=tuple(gates))
        circle.__dict__["_bare"] = self.bare
        return circle

    @property
    def bare(self) -> Circle:
        """Return this circle as the user wrote it, without the tools of its servers."""
        bare: Circle = self.__dict__.get("_bare", self)
        return bare

    def gate(self, name: str) -> Gate | None:
        """Return the circle's gate of that name, even if a ward removes it; None if there is no such gate."""
        name = ALIASES.get(name, name)
        return next((gate for gate in self.gates if gate.name == name), None)

    @cached_property
    def open_gates(self) -> Mapping[str, Gate]:
        """The gates that the wards leave: no removed ones and, at depth 0, no delegation (CIRCLE-6, COMP-6)."""
        wards = self.resolved
        left = {
            gate.name: gate
            for gate in self.gates
            if gate.name not in wards.removed and not (wards.depth == 0 and _needs_children(gate))
        }
        finder = left.get(FIND_GATES)
        if finder is not None and _is_own_gate(finder, FIND_GATES):
            gates = [gate for gate in left.values() if gate.on_demand]
            from cantrip_actors.terms.on_demand_gates import bind_catalogue

            left[finder.name] = bind_catalogue(finder, gates, in_programs=self.has_programs)
        return MappingProxyType(left)

    @cached_property
    def has_calls_by_name(self) -> bool:
        """Whether its entity calls gates with `use_gate`."""
        return _is_own_gate(self.open_gates.get(USE_GATE), USE_GATE)

    def resolve_calls(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """Return the calls of an answer, each of `use_gate` as the call of the gate that it names."""
        return tuple(map(resolve_call, calls)) if calls and self.has_calls_by_name else calls

    @cached_property
    def hidden(self) -> frozenset[str]:
        """The names of the open gates whose definitions the crystal is not shown, because it can find and call them.

        A circle that has lost the means for that, such as that of a child, shows its gates on demand.
        """
        can_find = _is_own_gate(self.open_gates.get(FIND_GATES), FIND_GATES)
        can_call = self.has_programs or self.has_calls_by_name
        names = (gate.name for gate in self.open_gates.values() if gate.on_demand)
        return frozenset(names) if can_find and can_call else frozenset()

    @cached_property
    def risks(self) -> Mapping[Risk, tuple[str, ...]]:
        """The names of the open gates that bring each risk, as their authors declare.

        All tools of a server are listed as the name of the server.
        """
        gates = [gate for gate in self.open_gates.values() if gate.server not in self.servers or gate.server is None]
        servers = {risk: [server.name for server in self.servers if self._brings(server, risk)] for risk in RISKS}
        return MappingProxyType(
            {risk: (*(gate.name for gate in gates if gate.brings(risk)), *servers[risk]) for risk in RISKS}
        )

    def _brings(self, server: ToolServer, risk: Risk) -> bool:
        """Return whether a server's tools bring a risk; before they are listed, the server says so itself."""
        tools = [gate for gate in self.gates if gate.server == server]
        if tools:
            return any(gate.brings(risk) for gate in tools if gate.name in self.open_gates)
        return risk in server.risks and (risk != "way_out" or server.ask != "all")

    @property
    def has_lethal_trifecta(self) -> bool:
        """Whether the gates bring private data, untrusted content and a way out: the circle was warned about."""
        return all(self.risks.values())

    @cached_property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tool definitions of the open gates, as the crystal sees them (CALL-3)."""
        return tuple(
            self._define(gate)
            for gate in self.open_gates.values()
            if gate.name not in self.hidden and gate.kind != "person"
        )

    def _define(self, gate: Gate) -> ToolDefinition:
        """Return a gate's definition. The system prompt of a code circle has no words of a server."""
        if self.has_programs and gate.on_demand and gate.server is not None:
            return describe_without_words(gate.definition, gate.server.name)
        return gate.definition

    @cached_property
    def all_definitions(self) -> tuple[ToolDefinition, ...]:
        """The definitions of all gates, so that a program that calls a closed gate gets an explanation."""
        return tuple(gate.definition for gate in self.gates if gate.kind != "person")

    def unavailable(self, name: str) -> str:
        """Return why a closed gate cannot be called: the text of the error observation."""
        if name in DELEGATION and self.gate(name) is not None and self.resolved.depth == 0:
            return f"gate not available: {name}: no deeper delegation is allowed here (max_depth is 0)"
        return f"gate not available: {name}; {self.describe_available(name)}"

    def describe_available(self, name: str) -> str:
        """Return the names of the open gates for an error text; of the gates on demand, only those with the nearest
        names.
        """
        shown = ", ".join(
            gate.name for gate in self.open_gates.values() if gate.name not in self.hidden and gate.kind != "person"
        )
        if not self.hidden:
            return f"available: {shown}"
        nearest = ", ".join(find_nearest(name, self.hidden)) or "none with such a name"
        return f"available: {shown}; on demand: {nearest} (find_gates finds all {len(self.hidden)})"

    def narrowed(self, gates: Iterable[Gate], wards: Wards) -> Circle:
        """Return a child's circle: `gates` of this circle under `wards` that are already resolved (COMP-1, COMP-7)."""
        lent = tuple(gates)
        can_talk = any(gate.kind == "person" and gate.name not in wards.removed for gate in lent)
        medium = "tools" if self.medium == "person" and not can_talk else self.medium
        parts = {"gates": lent, "wards": wards.list_wards(), "resolved": wards, "medium": medium}
        return replace_fields(self, **parts, companion=None, servers=(), listed=MappingProxyType({}))

    def as_json(self) -> dict[str, Any]:
        """Return the circle as the loom's header stores it, with the tools of its servers (CALL-3)."""
        servers = (
            {"servers": [self.listed[server.name].as_json(server) for server in self.servers]} if self.listed else {}
        )
        return self._own_json | servers

    @cached_property
    def _own_json(self) -> dict[str, Any]:
        hidden = self.hidden
        gates = [
            _build_header(gate) | ({"on_demand": True} if gate.name in hidden else {})
            for gate in self.open_gates.values()
            if gate.kind != "person"  # the medium describes it; the crystal has no such tool
        ]
        return self._build_medium_json() | {"gates": gates, "wards": self.resolved.as_json()}

    def identity(self) -> tuple[dict[str, Any], list[str]]:
        """Return the parts that enter the content id: the circle as written, and the descriptions of its gates."""
        gates = [gate.identity() for gate in self.bare.open_gates.values()]
        wards = self.resolved.as_json()
        circle = self._build_medium_json() | {"gates": [gate for gate, _ in gates], "wards": wards}
        if self.servers:
            circle["servers"] = [server.identity() for server in self.servers]
        return circle, [description for _, description in gates]

    def _build_medium_json(self) -> dict[str, Any]:
        return {"medium": self.medium_name, **({} if self.language is None else self.language.settings)}


def _has_folder(gate: Gate) -> bool:
    return gate.name in FILE_GATES and gate.dependencies.get("root") not in (None, "", PROVIDED)


def _check_names(what: str, names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise InvalidCantrip(f'two {what} are called "{name}": give one of them another name')


def _check_removed(names: Iterable[str], gates: Sequence[Gate]) -> None:
    """Raise InvalidCantrip for a `remove_gate` ward whose gate is not in the circle: a misspelt one removes nothing."""
    gate_names = [gate.name for gate in gates]
    for name in sorted(names):
        if name not in gate_names:
            nearest = suggest_nearest(name, gate_names)
            raise InvalidCantrip(f'remove_gate("{name}"): expected the name of a gate of this circle: {nearest}')


def _check_limited(wards: Wards, gates: Sequence[Gate], unlisted: Sequence[ToolServer] = ()) -> None:
    """Raise InvalidCantrip for a `max_calls` ward whose gate is not in the circle, or has no function to count."""
    for limit in wards.calls:
        gate = next((gate for gate in gates if gate.name == limit.gate), None)
        if gate is None and not any(server.owns(limit.gate) for server in unlisted):
            nearest = suggest_nearest(limit.gate, [gate.name for gate in gates])
            raise InvalidCantrip(f'max_calls: "{limit.gate}": expected the name of a gate of this circle: {nearest}')
        is_counted = gate is None or (gate.kind in ("function", "deferred") and not _is_own_gate(gate, USE_GATE))
        if not is_counted:
            raise InvalidCantrip(
                f'max_calls: "{limit.gate}" has no function whose calls are counted: max_children limits children, '
                "max_gate_calls all calls of a turn, and a step of wrap refuses a call"
            )


def _collect_on_demand(parts: Iterable[str | Gate | Wrap | Callable[..., Any]]) -> list[Gate]:
    gates = [replace(gate, on_demand=True) for gate in _collect_gates(parts)]
    if any(gate.name == "done" for gate in gates):
        raise InvalidCantrip('on_demand: an entity has to see the gate "done" to end: put it among the gates')
    return gates


def _add_person(gates: tuple[Gate, ...], medium: object) -> tuple[Gate, ...]:
    """Return the gates with the gate `person`, which a circle has if its medium is a person."""
    has_gate = any(gate.kind == "person" for gate in gates)
    if has_gate and medium != "person":
        raise InvalidCantrip('gate person: the texts of an entity call it: give the circle medium="person"')
    return gates if has_gate or medium != "person" else (*gates, standard(PERSON))


def _is_own_gate(candidate: Gate | None, name: str) -> bool:
    """Return whether a gate is `find_gates` or `use_gate`, and not a gate of the user with this name."""
    if candidate is None or candidate.name != name:
        return False
    from cantrip_actors.terms.on_demand_gates import find_gates, use_gate

    return candidate.model is (use_gate if name == USE_GATE else find_gates).model


def _check_use_gate(gates: Iterable[Gate]) -> None:
    own = next((gate for gate in gates if _is_own_gate(gate, USE_GATE)), None)
    if own is not None and own.wrappers:
        raise InvalidCantrip(
            f"{own.wrappers[0].name}: a call of use_gate is a call of the gate that it names: wrap that gate instead"
        )


def _check_jail(jail: JailName | None, medium: object) -> None:
    if jail is None:
        return
    if jail not in get_args(JailName):
        raise InvalidCantrip(f'unknown jail "{jail}": {suggest_nearest(str(jail), get_args(JailName))}')
    if medium != "shell":
        raise InvalidCantrip(f'jail="{jail}" confines shells: give the circle medium="shell", or take the jail away')


def _build_header(gate: Gate) -> dict[str, Any]:
    wrapped = [wrapper.name for wrapper in gate.wrappers]
    return (
        {"name": gate.name, "parameters": gate.parameters}
        | ({"wrapped": wrapped} if wrapped else {})
        | ({"read_only": True} if gate.read_only else {})
        | ({"deferred": True, "description": gate.description} if gate.kind == "deferred" else {})
    )


def _collect_gates(parts: Iterable[str | Gate | Wrap | Callable[..., Any]]) -> tuple[Gate, ...]:
    """Return the gates with their wrappers; a later wrapper goes around the earlier ones."""
    listed = [own for part in parts for own in _expand_set(part)]
    gates = [_find_gate(part) for part in listed if not isinstance(part, Wrap)]
    for part in listed:
        if isinstance(part, Wrap):
            _wrap_gate(gates, part)
    return tuple(gates)


def _expand_set(part: P) -> tuple[P | Gate, ...]:
    """Return the gates of the set `background`; any other part of a circle is returned as it is."""
    if not isinstance(part, str) or part != "background":
        return (part,)
    from cantrip_actors.terms.own_gates import BACKGROUND

    return BACKGROUND


def _needs_children(gate: Gate) -> bool:
    """Return whether a gate is useful only to an entity that may have children (COMP-6)."""
    return gate.name in DELEGATION or (gate.kind == "message" and gate.name in OF_CHILDREN)


def _wrap_gate(gates: list[Gate], wrap: Wrap) -> str:
    """Wrap a gate of `gates`, after adding the gate if it is missing, and return the gate's name."""
    if isinstance(wrap.target, Wrap):
        name = _wrap_gate(gates, wrap.target)
    elif isinstance(wrap.target, str):
        name = ALIASES.get(wrap.target, wrap.target)
        if not any(gate.name == name for gate in gates):
            gates.append(_find_gate(name))
    else:
        inner = _find_gate(wrap.target)
        name = inner.name
        gates.append(inner)
    at = next(at for at in reversed(range(len(gates))) if gates[at].name == name)
    if wrap.wrapper.ask is not None and (gates[at].ask_first is not None or gates[at].asks_person):
        raise InvalidCantrip(f"ask_first: gate {name} asks a person already: leave one of the two out")
    gates[at] = replace(gates[at], wrappers=(wrap.wrapper, *gates[at].wrappers))
    return name


def _find_gate(part: str | Gate | Callable[..., Any]) -> Gate:
    if isinstance(part, str):
        part = standard(part)
    elif not isinstance(part, Gate):
        check(callable(part), "gate", "a name, a gate or an annotated function", part, InvalidCantrip)
        part = gate(part)
    if part.name in DELEGATION or part.name == DONE:
        if part.kind == "deferred":
            raise InvalidCantrip(f"gate {part.name}: the runtime carries it out, so it cannot be deferred: rename it")
        kind = standard(part.name).kind  # the standard gate checks the arguments as well
        part = part if part.kind == kind else replace(part, kind=kind)
    return part.ready()
