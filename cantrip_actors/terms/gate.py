"""Gates: the crossing points of a circle, as values (SPEC 4.4).

A gate consists of its definition (name, description, JSON Schema of its arguments), the function behind it, and the
settings for calling it. This file checks arguments against the schema and keeps the standard gates by name. It never
calls the function: that is the circle's work (`circle/gate_call.py`), because a call needs a thread, a deadline and a
boundary for exceptions. `gate_function.py` makes gates from annotated functions, `own_gates.py` has those without one.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypedDict, Unpack

from cantrip_actors.terms import own_gate_names
from cantrip_actors.terms.addressee import ADDRESSEE
from cantrip_actors.terms.arguments import check, check_kind, check_whole, is_positive, read_texts
from cantrip_actors.terms.bounds import TooLarge, check_value
from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest
from cantrip_actors.terms.exact_json import dump_exactly, explain_arguments, is_cut_off
from cantrip_actors.terms.json_schema import find_problems, find_schema_fault, make_validator
from cantrip_actors.terms.messages import ALIASES, ToolCall, ToolDefinition
from cantrip_actors.terms.problems import shorten
from cantrip_actors.terms.provided import PROVIDED
from cantrip_actors.terms.resource import Resource
from cantrip_actors.terms.retry import Retry
from cantrip_actors.terms.risk import Risk, read_risks
from cantrip_actors.terms.value import Immutable
from cantrip_actors.terms.wrapper import AskFirst, GateCall, Refused, Wrapper, check_expires, check_unattended

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from pydantic import BaseModel

__all__ = ["Refused"]

GateKind = Literal["function", "done", "delegate", "message", "question", "person", "deferred"]


class GateSource(Protocol):
    """The origin of a gate that was not written in this process: a server of tools."""

    @property
    def name(self) -> str:
        """Its name in the circle."""

    def identity(self) -> dict[str, Any]:
        """Return the part of its definition that the user wrote."""


class GateSettings(TypedDict, total=False):
    """The settings of a gate; see `Gate`. A function is `blocking` unless it is async or this says otherwise."""

    ephemeral: bool
    visible_for: int
    idempotent: bool
    read_only: bool
    timeout: float | None
    blocking: bool | None
    risks: Iterable[Risk]
    retry: Retry | None
    max_shown: int | None


class _LeftOut:
    """The default of an argument that is not passed to the function if the crystal leaves it out."""

    def __repr__(self) -> str:
        return "left out"


LEFT_OUT: Final = _LeftOut()


@dataclass(frozen=True, slots=True)
class BoundArguments:
    """Valid arguments for the function, without its dependencies."""

    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class Gate(Immutable):
    """A crossing point of a circle. Make one with `@gate`, or with `Gate.of(...)` from a JSON Schema.

    `ephemeral` results leave the entity's context after `visible_for` more queries, and stay in the loom (D-010).
    An `idempotent` gate may be run again after a crash. A `read_only` gate changes nothing outside the entity.
    `timeout` is in seconds; a call that takes longer is an error observation. A `blocking` function runs in a worker
    thread. `risks` are the risks that the gate brings into a circle: "private_data", "untrusted_content", "way_out".
    `retry` calls the function again if it raises one of the exceptions `retry.on`; only an `idempotent` or `read_only`
    gate may have it, or one whose function takes the call, because `call.id` is the same in all attempts.
    A query shows the beginning and the end of a result with more than `max_shown` characters; the loom has all of it.
    """

    name: str
    description: str = field(repr=False)
    parameters: Mapping[str, Any] = field(repr=False)
    kind: GateKind = "function"
    function: Callable[..., Any] | None = field(default=None, repr=False)
    dependencies: Mapping[str, Any] = field(default_factory=dict, repr=False)
    injected: tuple[str, ...] = ()
    required_injected: tuple[str, ...] = ()
    ephemeral: bool = False
    visible_for: int = 0
    idempotent: bool = False
    read_only: bool = False
    timeout: float | None = None
    blocking: bool = False
    site: tuple[tuple[str, Callable[[GateCall], Any]], ...] = ()
    """The parameters that receive the `GateCall` or a part of it, each with the function that selects the part."""
    wrappers: tuple[Wrapper, ...] = field(default=(), repr=False)
    """The wrappers, outermost first; see `wrap`."""
    written: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    """The parameters as they enter a content id; None for a gate made from a JSON Schema."""
    model: type[BaseModel] | None = field(default=None, repr=False, compare=False)
    schema: Draft202012Validator | None = field(default=None, repr=False, compare=False)
    risks: frozenset[Risk] = field(default=frozenset(), repr=False, compare=False)
    """The risks that its author declares; `brings` returns which of them apply in a circle."""
    server: GateSource | None = field(default=None, repr=False, compare=False)
    """The server that the gate is a tool of, if any."""
    retry: Retry | None = field(default=None, compare=False)
    """How failed attempts of the function are retried; None if they are not."""
    max_shown: int | None = None
    """Characters of one result that a query shows; None for a quarter of the model's window, at most 100,000."""
    on_demand: bool = False
    """True if `find_gates` returns its definition to the entity and the call leaves it out."""
    hints: str = field(default="", repr=False, compare=False)
    """The server's description of it, for a person who decides about a call."""

    def __post_init__(self) -> None:
        for flag in ("ephemeral", "idempotent", "read_only", "blocking"):
            value = getattr(self, flag)
            check(isinstance(value, bool), f"gate {self.name}: {flag}", "True or False", value, InvalidCantrip)
        check_kind(f"gate {self.name}: description", self.description, str, "a text", InvalidCantrip)
        fits = self.timeout is None or is_positive(self.timeout)
        expected = "seconds > 0, or None for no limit"
        check(fits, f"gate {self.name}: timeout", expected, self.timeout, InvalidCantrip)
        check_whole(f"gate {self.name}: visible_for", self.visible_for, 0, error=InvalidCantrip)
        check_whole(f"gate {self.name}: max_shown", self.max_shown, 1, error=InvalidCantrip, or_none=True)
        object.__setattr__(self, "risks", read_risks(self.name, self.risks))
        if self.retry is not None:
            self._check_retry(self.retry)

    def _check_retry(self, retry: object) -> None:
        expected = "Retry(on=(ConnectionError, …), attempts=3)"
        check(isinstance(retry, Retry) and bool(retry.on), f"gate {self.name}: retry", expected, retry, InvalidCantrip)
        if self.function is None:
            raise InvalidCantrip(f"gate {self.name}: retry: it has no function that could be called again")
        if not (self.idempotent or self.read_only or self.site):
            raise InvalidCantrip(
                f"gate {self.name}: retry: a gate that may be called twice is idempotent=True or read_only=True, or "
                "its function has a parameter annotated with GateCall and uses call.id as the key of what it does"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function with its dependencies, for its author's tests: no schema, no boundary, no thread."""
        if self.function is None:
            raise TypeError(f"gate {self.name} has no function: the runtime carries it out")
        return self.function(*args, **dict(self.dependencies), **kwargs)

    @property
    def definition(self) -> ToolDefinition:
        """The tool definition that the crystal sees (CALL-3)."""
        return ToolDefinition(self.name, self.description, self.parameters, self.has_typed_answer)

    @property
    def has_typed_answer(self) -> bool:
        """True for the `done` of a cantrip with an `answer` type."""
        return self.kind == "done" and self.function is None and self.written is not None

    def identity(self) -> tuple[dict[str, Any], str]:
        """Return the parts that enter the content id: the gate and its description, as its author wrote them."""
        if self.server is not None:
            return {"name": self.name, "server": self.server.identity()}, ""
        description, parameters = self.description, self.parameters if self.written is None else self.written
        standard_gate = _standard.get(self.name)
        if standard_gate is not None and standard_gate.parameters is self.parameters:
            description, parameters = "" if description == standard_gate.description else description, {}
        steps = [wrapper.name for wrapper in self.wrappers]
        identity: dict[str, Any] = {"name": self.name, "parameters": parameters} | ({"wrapped": steps} if steps else {})
        if self.kind == "deferred":
            identity["deferred"] = True
        if self.on_demand:
            identity["on_demand"] = True
        return identity, description

    @property
    def signature(self) -> str:
        """The signature in error texts and capability texts, such as `search(query: string, limit: integer = 5)`."""
        return f"{self.name}({', '.join(_render_parameters(self.parameters))})"

    @classmethod
    def of(
        cls,
        function: Callable[..., Any] | None,
        *,
        name: str,
        parameters: Mapping[str, Any] | None = None,
        description: str = "",
        kind: GateKind = "function",
        foreign: bool = False,
        **settings: Unpack[GateSettings],
    ) -> Gate:
        """Return a gate with a given JSON Schema, such as that of a tool of a server or of a recipe.

        With `kind="deferred"` it has no function: another program delivers the results of its calls. With `foreign` the
        schema comes from a program that is not trusted: what could cost any amount of time is left unchecked, such as
        its patterns.

        Raises InvalidCantrip if the schema is not valid, or does not describe an object.
        """
        fits = isinstance(parameters, Mapping | None)
        check(fits, f"gate {name}: parameters", "a JSON Schema", parameters, InvalidCantrip)
        schema = dict(parameters) if parameters is not None else {"type": "object"}
        fault = find_schema_fault(schema, foreign=foreign)
        if fault is not None:
            raise InvalidCantrip(f"gate {name}: parameters are not a JSON Schema: {fault}")
        if schema.setdefault("type", "object") != "object":
            raise InvalidCantrip(f'gate {name}: expected parameters of type "object", got "{schema["type"]}"')
        gate = cls(
            name=check_name(name),
            description=description,
            parameters=schema,
            kind="function" if kind == "deferred" else kind,
            function=function,
            schema=make_validator(schema, foreign=foreign),
            **complete_settings(settings, function),
        )
        return gate.defer() if kind == "deferred" else gate

    def defer(self, expires: float | None = None) -> Gate:
        """Return the gate as a deferred one: a call of it waits until a program delivers its result.

        With `with_(ends_episode=True)` a call that expires ends the episode, instead of being an error observation.

        Raises InvalidCantrip if the gate has a setting that only a gate with a function can have, such as a timeout.
        """
        idle = [name for name in ("timeout", "retry") if getattr(self, name) is not None]
        idle += [name for name in ("idempotent",) if getattr(self, name)]
        if idle:
            hint = ": expires=… bounds the wait" if "timeout" in idle else ""
            raise InvalidCantrip(f"gate {self.name}: {idle[0]} has no effect on a deferred gate{hint}; leave it out")
        if self.injected or self.site:
            raise InvalidCantrip(
                f"gate {self.name}: the function of a deferred gate is never called, so it takes no dependency and no "
                "GateCall: give it the parameters of the entity's call alone"
            )
        check_expires(f"gate {self.name}", expires)
        return replace(
            self,
            kind="deferred",
            function=None,
            blocking=False,
            injected=("expires", "ends_episode"),
            dependencies={} if expires is None else {"expires": expires},
        )

    @property
    def ask_first(self) -> AskFirst | None:
        """The `AskFirst` by which a person decides about calls before they run; None if no person decides."""
        return (
            next((wrapper.ask for wrapper in self.wrappers if wrapper.ask is not None), None) if self.wrappers else None
        )

    @property
    def asks_person(self) -> bool:
        """True if the answer of a person is the result of each call."""
        return self.kind in ("question", "person")

    @property
    def has_checks(self) -> bool:
        """True if user code runs before a call: steps of `wrap`, or the condition of `ask_first`."""
        return any(
            wrapper.pre or (wrapper.ask is not None and wrapper.ask.when is not None) for wrapper in self.wrappers
        )

    @property
    def has_resource(self) -> bool:
        """True if it uses a resource, which describes itself after a crash in a call."""
        return any(isinstance(value, Resource) for value in self.dependencies.values())

    @property
    def has_remarks(self) -> bool:
        """True if steps of `wrap` run after a call."""
        return any(wrapper.post for wrapper in self.wrappers)

    def brings(self, risk: Risk) -> bool:
        """Return whether calls of this gate bring a risk into a circle.

        These are the risks that the gate declares, with two exceptions: it is not a way out if a person decides about
        every call, and a gate that may send messages to no entity brings no risk.
        """
        if risk not in self.risks or (self.kind == "message" and not self.dependencies.get("to")):
            return False
        asks = self.ask_first
        return risk != "way_out" or asks is None or asks.when is not None

    def with_(self, **dependencies: Any) -> Gate:
        """Return the same gate with `dependencies` injected and the given settings (`timeout`, `ephemeral`, …) changed.

        Raises InvalidCantrip for a name that is neither a dependency of this gate nor one of its settings, and for an
        invalid value of a standard gate's.
        """
        settings: dict[str, Any] = {}
        injected = dict(self.dependencies)
        names = {*GateSettings.__annotations__, "description"}
        for name, value in dependencies.items():
            if name in self.injected:
                check = _DEPENDENCIES.get((self.kind, name))
                injected[name] = value if check is None or value is PROVIDED else check(self.name, value)
            elif name in names:
                settings[name] = value
            else:
                hint = suggest_nearest(name, {*self.injected, *names})
                raise InvalidCantrip(f'gate {self.name} has no dependency "{name}": {hint}')
        return replace(self, dependencies=injected, **settings)

    def ready(self) -> Gate:
        """Return this gate. Raises InvalidCantrip if a required dependency is missing (CIRCLE-10)."""
        missing = [name for name in self.required_injected if name not in self.dependencies]
        if missing:
            raise InvalidCantrip(
                f"gate {self.name} needs {', '.join(missing)}: give it when the circle is made, "
                f"{self.name}.with_({missing[0]}=…), or with_({missing[0]}=PROVIDED) if Runtime.open(dependencies=…) "
                "provides it"
            )
        return self

    def check(self, call: ToolCall) -> BoundArguments | Refused:
        """Return the arguments of `call` as the function accepts them, or a refusal that says what is wrong."""
        if call.args is None:
            advice = "an answer ends at its limit of tokens: pass less at once; " if is_cut_off(call.raw) else ""
            got = f"{explain_arguments(call.raw)}: got {shorten(call.raw)}"
            return Refused(f"{self.name}: {got}; {advice}expected {self.signature}")
        try:
            check_value(call.args)
        except TooLarge as problem:
            return Refused(f"{self.name}: its arguments are {problem}: pass less at once; expected {self.signature}")
        if self.model is not None:
            return self._check_model(self.model, call.args)
        if self.schema is not None:
            return self._check_schema(self.schema, call.args)
        return BoundArguments(call.args)

    @staticmethod
    def plain(args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return bound arguments as JSON data that shares nothing with the objects that the function receives."""
        from pydantic_core import to_jsonable_python

        plain: Mapping[str, Any] = to_jsonable_python(dict(args), serialize_unknown=True)
        return plain

    def _check_model(self, model: type[BaseModel], args: Mapping[str, Any]) -> BoundArguments | Refused:
        (bind,) = _binders
        try:
            return bind(self, model, args)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of a validator, which is the user's code; pydantic takes only some of them
            (*_, last) = traceback.format_exception_only(error)
            return Refused(f"{self.name}: checking its arguments raised {last.strip()}; expected {self.signature}")

    def _check_schema(self, schema: Draft202012Validator, args: Mapping[str, Any]) -> BoundArguments | Refused:
        problems = find_problems(args, schema)
        if not problems:
            return BoundArguments(args)
        optional = self.parameters.get("properties", {}).keys() - set(self.parameters.get("required", ()))
        fewer = {name: value for name, value in args.items() if value is not None or name not in optional}
        if len(fewer) < len(args) and not find_problems(fewer, schema):  # as for the arguments of a function
            return BoundArguments(fewer)
        return Refused(f"{self.name}: {'; '.join(problems)}; expected {self.signature}")

    def answer(self, args: Mapping[str, Any]) -> Any:
        """Return the answer from the arguments of a `done` call: `answer`, or the first that the schema names
        (CIRCLE-8).

        If a function has several parameters and none is called `answer`, the answer is all of them.
        """
        if self.function is not None and "answer" not in args and len(args) > 1:
            return dict(args)
        names = ["answer", *self.parameters.get("properties", {}), *args]
        return next((args[name] for name in names if name in args), None)


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call of the function runs on the event loop; the calls of its `__call__` count, too."""
    called = getattr(function, "__call__", None)  # noqa: B004  # the method itself may be a coroutine function
    return any(inspect.iscoroutinefunction(part) or inspect.isasyncgenfunction(part) for part in (function, called))


def check_name(name: str) -> str:
    original: object = name
    name = ALIASES.get(name, name) if isinstance(original, str) else ""
    if not name.replace("-", "_").isidentifier() or len(name) > 64:
        raise InvalidCantrip(f"gate name {original!r}: expected a name of letters, digits, _ and -, at most 64 long")
    return name


def complete_settings(settings: GateSettings, function: Callable[..., Any] | None) -> dict[str, Any]:
    """Return the settings of a gate with this function, `blocking` among them. Raises TypeError for an unknown one."""
    unknown = settings.keys() - GateSettings.__annotations__
    if unknown:
        hint = suggest_nearest(min(unknown), GateSettings.__annotations__)
        raise TypeError(f'a gate has no setting "{min(unknown)}": {hint}')
    waits = settings.get("blocking")
    return {**settings, "blocking": function is not None and not is_async(function) if waits is None else waits}


def _check_patterns(name: str, to: Any) -> Any:
    expected = 'a list of names, ids or patterns, as in ["archive", "reviewer-*"]'
    return read_texts(f"gate {name}: to", to, expected, InvalidCantrip)


def _check_people(name: str, to: Any) -> Any:
    """Return the names of people. Raises InvalidCantrip for a name that an utterance cannot begin with."""
    names = read_texts(f"gate {name}: to", to, 'a list of names, as in ["anna", "ben"]', InvalidCantrip)
    for person in names:
        if not ADDRESSEE.fullmatch(f"@{person}"):
            raise InvalidCantrip(f"gate {name}: to: expected names of letters, digits, _, . and -, got {person!r}")
    return names


_DEPENDENCIES: dict[tuple[GateKind, str], Callable[[str, Any], Any]] = {
    ("message", "to"): _check_patterns,
    ("question", "expires"): check_expires,
    ("question", "unattended"): check_unattended,
    ("person", "expires"): check_expires,
    ("person", "unattended"): check_unattended,
    ("person", "to"): _check_people,
    ("deferred", "expires"): check_expires,
}
"""The dependencies of `with_` that are checked: those of the gates without a function."""


def _render_parameters(schema: Mapping[str, Any]) -> Iterable[str]:
    required = schema.get("required", ())
    for name, shape in schema.get("properties", {}).items():
        if name in required:
            yield f"{name}: {_render_type(shape)}"
        else:
            default = f" = {dump_exactly(shape['default']).decode()}" if "default" in shape else ""
            yield f"{name}{'' if default else '?'}: {_render_type(shape)}{default}"


def _render_type(shape: Any) -> str:
    if not isinstance(shape, Mapping):
        return "any"
    if "enum" in shape:
        return " | ".join(dump_exactly(value).decode() for value in shape["enum"])
    if "$ref" in shape:
        return str(shape["$ref"]).rsplit("/", 1)[-1]
    for key in ("anyOf", "oneOf"):
        if key in shape:
            return " | ".join(dict.fromkeys(_render_type(option) for option in shape[key]))
    kind = shape.get("type", "any")
    if kind == "array" and "items" in shape:
        return f"array of {_render_type(shape['items'])}"
    return " | ".join(kind) if isinstance(kind, list) else str(kind)


BindArguments = Callable[[Gate, "type[BaseModel]", Mapping[str, Any]], BoundArguments | Refused]
"""Returns arguments as the function of the gate accepts them, or a refusal."""

_binders: list[BindArguments] = []


def provide_binder(bind: BindArguments) -> None:
    """Register the function that checks arguments with a model; `argument_model.py`, which makes models, has it."""
    _binders[:] = [bind]


_standard: dict[str, Gate] = {}
MODULES: Final = {
    own_gate_names.DONE: "cantrip_actors.terms.done_gate",
    **dict.fromkeys(own_gate_names.OF_RUNTIME, "cantrip_actors.terms.own_gates"),
    "echo": "cantrip_actors.circle.gates.echo",
    "fetch": "cantrip_actors.circle.gates.fetch",
    **dict.fromkeys(("list", "read", "search", "write"), "cantrip_actors.circle.gates.files"),
}
"""The module of each standard gate, which registers the gate. It is imported for the first circle that names the gate.

To make a gate takes time, because pydantic compiles the checks of its arguments; no circle has all of them.
"""


def provide(*gates: Gate) -> None:
    """Register gates by name, so that `Circle(gates=["read"])` finds them."""
    _standard.update((gate.name, gate) for gate in gates)


def standard(name: str) -> Gate:
    """Return the gate registered as `name`. Raises InvalidCantrip with the nearest known name."""
    name = ALIASES.get(name, name) if isinstance(name, str) else name
    if not isinstance(name, str) or name not in {**_standard, **MODULES}:
        hint = suggest_nearest(name, {**_standard, **MODULES})
        raise InvalidCantrip(f'unknown gate "{name}": {hint}; a function of yours is passed itself')
    if name not in _standard:
        import_module(MODULES[name])
    return _standard[name]
