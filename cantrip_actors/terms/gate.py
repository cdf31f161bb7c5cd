"""Gates: the crossing points of a circle, as values (SPEC 4.4).

A gate consists of its definition (name, description, JSON Schema of its arguments), the function behind it, and the
settings for calling it. This file makes gates from annotated functions, checks arguments against them and injects their
dependencies (CIRCLE-10). It never calls the function: that is the circle's work (`circle/gate_call.py`), because a call
needs a thread, a deadline and a boundary for exceptions.

Seven gates have no function at all. `done` is the loop's own: its argument is the answer (CIRCLE-8). `call_agent` and
`call_agent_batch` are the runtime's, because only it can cast a child; so are `post` and `ask`, which reach the
entities whose names or ids match the patterns of `post.with_(to=["archive", "reviewer-*"])` (by default, no entity),
and `wake_me`, which sets a timer of the entity; `wake_me.with_(zone="Europe/Oslo")` sets the zone of local times. A
person answers a `question`; `question.with_(expires=3600)` returns an error observation if there is no answer after an
hour.
"""

from __future__ import annotations

import functools
import inspect
import traceback
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar, overload

import orjson
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PydanticUserError,
    ValidationError,
    create_model,
)
from pydantic_core import PydanticSerializationError, to_jsonable_python

from cantrip_actors.terms.bounds import TooLarge, check_value
from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest
from cantrip_actors.terms.identity import build_parameters_identity
from cantrip_actors.terms.json_schema import find_problems, find_schema_fault, make_validator
from cantrip_actors.terms.messages import ALIASES, ToolCall, ToolDefinition
from cantrip_actors.terms.problems import describe, shorten
from cantrip_actors.terms.risk import Risk, read_risks
from cantrip_actors.terms.standard_identity import STANDARD
from cantrip_actors.terms.ward import LEAST_MEMORY
from cantrip_actors.terms.wrapper import AskFirst, Fence, GateCall, Refused, Wrapper, check_expires, check_unattended

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

__all__ = ["Refused"]

T = TypeVar("T")

Kind = Literal["function", "done", "delegate", "message", "question"]


class _Dependency:
    """Marks a parameter that is injected when the circle is made and that the entity never sees."""

    def __repr__(self) -> str:
        return "Injected"


Injected = Annotated[T, _Dependency()]
"""`root: Injected[Path]` is a dependency: given by `with_(root=…)`, absent from the gate's schema (CIRCLE-10)."""


class Source(Protocol):
    """The origin of a gate that was not written in this process: a server of tools."""

    @property
    def name(self) -> str:
        """Its name in the circle."""

    def identity(self) -> dict[str, Any]:
        """Return the part of its definition that the user wrote."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Valid arguments for the function, without its dependencies."""

    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Gate:
    """A crossing point of a circle. Make one with `@gate`, or with `Gate.of(...)` from a JSON Schema.

    `ephemeral` results leave the entity's context after `visible_for` more queries, and stay in the loom (D-010).
    An `idempotent` gate may be run again after a crash. A `read_only` gate changes nothing outside the entity.
    `timeout` is in seconds; a call that takes longer is an error observation. A `blocking` function runs in a worker
    thread. `risks` are the risks that the gate brings into a circle: "private_data", "untrusted_content", "way_out".
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    kind: Kind = "function"
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
    server: Source | None = field(default=None, repr=False, compare=False)
    """The server that the gate is a tool of, if any."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function with its dependencies, for its author's tests: no schema, no boundary, no thread."""
        if self.function is None:
            raise TypeError(f"gate {self.name} has no function: the runtime carries it out")
        return self.function(*args, **dict(self.dependencies), **kwargs)

    @property
    def definition(self) -> ToolDefinition:
        """The tool definition that the crystal sees (CALL-3)."""
        return ToolDefinition(self.name, self.description, self.parameters)

    def identity(self) -> tuple[dict[str, Any], str]:
        """Return the parts that enter the content id: the gate and its description, as its author wrote them."""
        if self.server is not None:
            return {"name": self.name, "server": self.server.identity()}, ""
        description, parameters = self.description, self.parameters if self.written is None else self.written
        known = _standard.get(self.name)
        if known is not None and known.parameters is self.parameters:
            then, parameters = STANDARD.get(self.name, ("", {}))
            description = then if description == known.description else description
        steps = [wrapper.name for wrapper in self.wrappers]
        made = {"name": self.name, "parameters": parameters} | ({"wrapped": steps} if steps else {})
        return made, description

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
        kind: Kind = "function",
        ephemeral: bool = False,
        visible_for: int = 0,
        idempotent: bool = False,
        read_only: bool = False,
        timeout: float | None = None,
        blocking: bool | None = None,
        risks: Iterable[Risk] = (),
    ) -> Gate:
        """Return a gate with a given JSON Schema, such as that of a tool of a server or of a recipe.

        Raises InvalidCantrip if the schema is not valid, or does not describe an object.
        """
        schema = dict(parameters) if parameters is not None else {"type": "object"}
        fault = find_schema_fault(schema)
        if fault is not None:
            raise InvalidCantrip(f"gate {name}: parameters are not a JSON Schema: {fault}")
        if schema.setdefault("type", "object") != "object":
            raise InvalidCantrip(f'gate {name}: expected parameters of type "object", got "{schema["type"]}"')
        return cls(
            name=_check_name(name),
            description=description,
            parameters=schema,
            kind=kind,
            function=function,
            ephemeral=ephemeral,
            visible_for=_check_visible_for(name, visible_for),
            idempotent=idempotent,
            read_only=read_only,
            timeout=_check_timeout(name, timeout),
            blocking=blocking if blocking is not None else function is not None and not _is_async(function),
            risks=read_risks(name, risks),
            schema=make_validator(schema),
        )

    @property
    def ask_first(self) -> AskFirst | None:
        """The `AskFirst` by which a person decides about calls before they run; None if no person decides."""
        return next((one.ask for one in self.wrappers if one.ask is not None), None) if self.wrappers else None

    @property
    def has_checks(self) -> bool:
        """True if user code runs before a call: steps of `wrap`, or the condition of `ask_first`."""
        return any(one.pre or (one.ask is not None and one.ask.when is not None) for one in self.wrappers)

    @property
    def has_remarks(self) -> bool:
        """True if steps of `wrap` run after a call."""
        return any(one.post for one in self.wrappers)

    def brings(self, risk: Risk) -> bool:
        """Return whether calls of this gate bring a risk into a circle (X-43).

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
        known = {"ephemeral", "visible_for", "idempotent", "read_only", "timeout", "blocking", "description", "risks"}
        for name, value in dependencies.items():
            if name in self.injected:
                injected[name] = _DEPENDENCIES.get((self.kind, name), _keep)(self.name, value)
            elif name in known:
                settings[name] = _SETTINGS.get(name, _keep)(self.name, value)
            else:
                hint = suggest_nearest(name, {*self.injected, *known})
                raise InvalidCantrip(f'gate {self.name} has no dependency "{name}": {hint}')
        return replace(self, dependencies=injected, **settings)

    def ready(self) -> Gate:
        """Return this gate. Raises InvalidCantrip if a required dependency is missing (CIRCLE-10)."""
        missing = [name for name in self.required_injected if name not in self.dependencies]
        if missing:
            raise InvalidCantrip(
                f"gate {self.name} needs {', '.join(missing)}: give it when the circle is made, "
                f"{self.name}.with_({missing[0]}=…)"
            )
        return self

    def check(self, call: ToolCall) -> Bound | Refused:
        """Return the arguments of `call` as the function accepts them, or a refusal that says what is wrong."""
        if call.args is None:
            return Refused(
                f"{self.name}: arguments are not a JSON object: got {shorten(call.raw)}; expected {self.signature}"
            )
        try:
            check_value(call.args)
        except TooLarge as problem:
            return Refused(f"{self.name}: its arguments are {problem}: pass less at once; expected {self.signature}")
        if self.model is not None:
            return self._check_model(self.model, call.args)
        if self.schema is not None:
            return self._check_schema(self.schema, call.args)
        return Bound(call.args)

    @staticmethod
    def plain(args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return bound arguments as JSON data that shares nothing with the objects that the function receives."""
        plain: Mapping[str, Any] = to_jsonable_python(dict(args), serialize_unknown=True)
        return plain

    def _check_model(self, model: type[BaseModel], args: Mapping[str, Any]) -> Bound | Refused:
        try:
            return self._bind(model, args)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of a validator, which is the user's code; pydantic takes only some of them
            (*_, last) = traceback.format_exception_only(error)
            return Refused(f"{self.name}: checking its arguments raised {last.strip()}; expected {self.signature}")

    def _bind(self, model: type[BaseModel], args: Mapping[str, Any]) -> Bound | Refused:
        try:
            checked = model.model_validate(args)
        except ValidationError as errors:
            found = describe(errors.errors(include_url=False), args)
            return Refused(f"{self.name}: {'; '.join(found)}; expected {self.signature}")
        if self.kind == "done" and model is not _Done:  # these arguments are the answer, and an answer is JSON (D-005)
            try:
                return Bound(checked.model_dump(mode="json", by_alias=True))
            except PydanticSerializationError as error:
                return Refused(f"{self.name}: its answer cannot be written as JSON: {error}")
        return Bound(
            checked.__dict__ if not checked.__pydantic_extra__ else checked.__dict__ | checked.__pydantic_extra__
        )

    def _check_schema(self, schema: Draft202012Validator, args: Mapping[str, Any]) -> Bound | Refused:
        found = find_problems(args, schema)
        return Refused(f"{self.name}: {'; '.join(found)}; expected {self.signature}") if found else Bound(args)

    def answer(self, args: Mapping[str, Any]) -> Any:
        """Return the answer from the arguments of a `done` call: `answer`, or the first that the schema names
        (CIRCLE-8).

        If a function has several parameters and none is called `answer`, the answer is all of them.
        """
        if self.function is not None and "answer" not in args and len(args) > 1:
            return dict(args)
        names = ["answer", *self.parameters.get("properties", {}), *args]
        return next((args[name] for name in names if name in args), None)


@overload
def gate(function: Callable[..., Any], /) -> Gate: ...
@overload
def gate(
    *,
    name: str | None = None,
    description: str | None = None,
    ephemeral: bool = False,
    visible_for: int = 0,
    idempotent: bool = False,
    read_only: bool = False,
    timeout: float | None = None,
    blocking: bool | None = None,
    risks: Iterable[Risk] = (),
) -> Callable[[Callable[..., Any]], Gate]: ...
def gate(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    ephemeral: bool = False,
    visible_for: int = 0,
    idempotent: bool = False,
    read_only: bool = False,
    timeout: float | None = None,
    blocking: bool | None = None,
    risks: Iterable[Risk] = (),
) -> Gate | Callable[[Callable[..., Any]], Gate]:
    """Make a gate of an annotated function: its name, docstring, annotations and defaults are the definition.

    An `async def` runs on the event loop, a plain `def` in a worker thread unless `blocking=False` says that it never
    waits. Parameters annotated `Injected[…]` are dependencies; one annotated `GateCall` receives the call itself, and
    one annotated `Injected[Fence]` the fence of its entity's owner (N-19).
    `timeout` is in seconds. `read_only=True` declares that the gate changes nothing outside the entity.
    `risks` declares what the gate brings into a circle: "private_data" that it reads, "untrusted_content" that
    strangers wrote, or a "way_out" for what the entity says. A circle with all three is warned about.

    Raises InvalidCantrip for an unknown risk, and if no schema can be derived from the annotations.
    """

    def make(function: Callable[..., Any]) -> Gate:
        inner = _unwrap_partials(function)
        own_name = _check_name(name or str(getattr(inner, "__name__", type(inner).__name__)))
        injected, required_injected, fields, open_, site = _split(function, own_name)
        model, schema = _make_model(own_name, fields, open_=open_)
        return Gate(
            name=own_name,
            description=description if description is not None else inspect.getdoc(_find_annotated(function)) or "",
            parameters=schema,
            function=function,
            injected=injected,
            required_injected=required_injected,
            ephemeral=ephemeral,
            visible_for=_check_visible_for(own_name, visible_for),
            idempotent=idempotent,
            read_only=read_only,
            timeout=_check_timeout(own_name, timeout),
            blocking=blocking if blocking is not None else not _is_async(function),
            site=site,
            risks=read_risks(own_name, risks),
            written=build_parameters_identity(fields, is_open=open_),
            model=model,
        )

    return make if function is None else make(function)


def _make_model(name: str, fields: dict[str, Any], *, open_: bool) -> tuple[type[BaseModel], dict[str, Any]]:
    """Return the model of a gate's arguments, and its JSON Schema."""
    config = ConfigDict(extra="allow" if open_ else "forbid", arbitrary_types_allowed=False, protected_namespaces=())
    try:
        with warnings.catch_warnings():
            # a parameter called `json` or `copy` hides a method that is not called here; a default that is not JSON is
            # left out of the schema
            warnings.simplefilter("ignore")
            model = create_model(f"{name}Arguments", __config__=config, **fields)
            schema = _strip_titles(model.model_json_schema())
    except (PydanticUserError, NameError, TypeError) as error:
        raise InvalidCantrip(f"gate {name}: no JSON Schema can be made of its annotations: {error}") from error
    schema.pop("title", None)
    schema.setdefault("properties", {})
    return model, schema


def _split(
    function: Callable[..., Any], name: str
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, Any], bool, tuple[tuple[str, Callable[[GateCall], Any]], ...]]:
    """Split a function's parameters: injected ones, those of them without a default, and the others as model fields.

    Also return whether it accepts other arguments, and which parameters receive the call or a part of it.
    """
    try:
        parameters = inspect.signature(function).parameters
        hints = typing.get_type_hints(_find_annotated(function), include_extras=True)
    except NameError as error:
        raise InvalidCantrip(
            f"gate {name}: an annotation cannot be resolved ({error}); define it at module level"
        ) from error
    except (TypeError, ValueError) as error:
        raise InvalidCantrip(f"gate {name}: expected an annotated function, got {function!r}") from error
    injected, required_injected, fields, open_ = [], [], {}, False
    site: list[tuple[str, Callable[[GateCall], Any]]] = []
    fixed = function.keywords if isinstance(function, functools.partial) else ()
    for parameter in parameters.values():
        if parameter.name in fixed:
            continue  # its author has bound the arguments of a partial
        if parameter.name in ("self", "cls") and parameter.name not in hints:
            raise InvalidCantrip(
                f"gate {name}: it is a method of no object yet, and {parameter.name} would be the crystal's to give: "
                f"make a gate of it where it is bound, Circle(gates=[service.{name}]) or gate(…)(service.{name})"
            )
        hint = hints.get(parameter.name, Any)
        if parameter.kind is parameter.VAR_KEYWORD:
            open_ = True
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise InvalidCantrip(f"gate {name}: parameter {parameter.name} cannot be passed by name, as a call does")
        elif (part := _find_part_of_call(hint)) is not None:
            site.append((parameter.name, part))
        elif any(isinstance(mark, _Dependency) for mark in getattr(hint, "__metadata__", ())):
            injected.append(parameter.name)
            if parameter.default is parameter.empty:
                required_injected.append(parameter.name)
        elif parameter.name.startswith("_") or (
            parameter.name.startswith("model_") and hasattr(BaseModel, parameter.name)
        ):  # pydantic cannot have a field of that name
            raise InvalidCantrip(f"gate {name}: a parameter cannot be called {parameter.name}; rename it")
        else:
            fields[parameter.name] = (hint, ... if parameter.default is parameter.empty else parameter.default)
    return tuple(injected), tuple(required_injected), fields, open_, tuple(site)


def get_call(call: GateCall) -> GateCall:
    """Return the call itself, for a parameter annotated `GateCall`."""
    return call


def get_fence(call: GateCall) -> Fence:
    """Return the fence of a call, for a parameter annotated `Injected[Fence]`."""
    return call.fence


def _find_part_of_call(hint: Any) -> Callable[[GateCall], Any] | None:
    """Return the function that selects the part of a call that a parameter with that annotation receives, or None."""
    if hint is GateCall:
        return get_call
    return get_fence if hint == Injected[Fence] else None


def _unwrap_partials(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function without the arguments that partials have bound."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _find_annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function whose annotations and docstring count: the one in a partial, or an object's `__call__`."""
    function = _unwrap_partials(function)
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    called: Callable[..., Any] = type(function).__call__
    return called


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  # the method itself may be a coroutine function


def _check_name(name: str) -> str:
    name = ALIASES.get(name, name)
    if not name.replace("-", "_").isidentifier() or len(name) > 64:
        raise InvalidCantrip(f"gate name {name!r}: expected a name of letters, digits, _ and -, at most 64 long")
    return name


def _check_timeout(name: str, timeout: float | None) -> float | None:
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0):
        raise InvalidCantrip(f"gate {name}: timeout: expected seconds > 0, got {timeout!r}")
    return timeout


def _check_visible_for(name: str, queries: int) -> int:
    if isinstance(queries, bool) or not isinstance(queries, int) or queries < 0:
        raise InvalidCantrip(f"gate {name}: visible_for: expected a whole number of queries >= 0, got {queries!r}")
    return queries


def _keep(_: str, value: Any) -> Any:
    return value


def _check_patterns(name: str, to: Any) -> Any:
    if isinstance(to, str) or not isinstance(to, Iterable) or not all(isinstance(one, str) for one in to):
        raise InvalidCantrip(
            f'gate {name}: to: expected a list of names, ids or patterns, as in ["archive", "reviewer-*"], got {to!r}'
        )
    return to


_SETTINGS: dict[str, Callable[[str, Any], Any]] = {
    "timeout": _check_timeout,
    "risks": read_risks,
    "visible_for": _check_visible_for,
}
"""The settings of `with_` that are checked."""
_DEPENDENCIES: dict[tuple[Kind, str], Callable[[str, Any], Any]] = {
    ("message", "to"): _check_patterns,
    ("question", "expires"): check_expires,
    ("question", "unattended"): check_unattended,
}
"""The dependencies of `with_` that are checked: those of the gates without a function."""


def _strip_titles(schema: Any) -> Any:
    """Return a schema without the titles that pydantic adds: they cost tokens, and one provider refuses them."""
    if isinstance(schema, dict):
        return {
            key: {name: _strip_titles(one) for name, one in value.items()}
            if key in ("properties", "$defs")
            else _strip_titles(value)
            for key, value in schema.items()
            if key != "title" or not isinstance(value, str)
        }
    if isinstance(schema, list):
        return [_strip_titles(one) for one in schema]
    return schema


def _render_parameters(schema: Mapping[str, Any]) -> Iterable[str]:
    required = schema.get("required", ())
    for name, shape in schema.get("properties", {}).items():
        if name in required:
            yield f"{name}: {_render_type(shape)}"
        else:
            default = f" = {orjson.dumps(shape['default']).decode()}" if "default" in shape else ""
            yield f"{name}{'' if default else '?'}: {_render_type(shape)}{default}"


def _render_type(shape: Any) -> str:
    if not isinstance(shape, Mapping):
        return "any"
    if "enum" in shape:
        return " | ".join(orjson.dumps(one).decode() for one in shape["enum"])
    if "$ref" in shape:
        return str(shape["$ref"]).rsplit("/", 1)[-1]
    for key in ("anyOf", "oneOf"):
        if key in shape:
            return " | ".join(dict.fromkeys(_render_type(one) for one in shape[key]))
    kind = shape.get("type", "any")
    if kind == "array" and "items" in shape:
        return f"array of {_render_type(shape['items'])}"
    return " | ".join(kind) if isinstance(kind, list) else str(kind)


class AgentRequest(BaseModel):
    """What `call_agent` asks for: a child on a derived intent (SPEC 5.1). What is left out comes from the parent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    intent: str = Field(min_length=1, description="what the child is to achieve")
    context: Any = Field(default=None, description="data for the child")
    system_prompt: str | None = Field(default=None, description="the child's call; left out: yours")
    gates: tuple[str, ...] | None = Field(default=None, description="the child's gates, some of yours; left out: all")
    crystal: str | None = Field(default=None, description="the name of the child's crystal")
    max_depth: int | None = Field(default=None, ge=0, description="how deep the child may delegate")
    max_turns: int | None = Field(default=None, ge=1, description="the child's turns")
    timeout: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="seconds that the child may take"
    )
    max_tokens: int | None = Field(default=None, ge=1, description="tokens that the child may use")
    max_gate_calls: int | None = Field(default=None, ge=1, description="calls that one turn of the child may make")
    max_compute: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="seconds that a program of the child may compute"
    )
    max_memory: int | None = Field(default=None, ge=LEAST_MEMORY, description="bytes that such a program may use")
    max_output: int | None = Field(default=None, ge=1, description="characters kept of what such a program prints")
    remove_gates: tuple[str, ...] = Field(default=(), description="gates that the child is not to have")
    require_done_tool: bool | None = Field(default=None, description="whether only done ends the child")


class _Batch(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    intents: tuple[AgentRequest | str, ...] = Field(
        min_length=1,
        validation_alias=AliasChoices("intents", "requests"),
        serialization_alias="intents",
        description="a request (or just an intent) for each child",
    )


class _Done(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    answer: Any = Field(description="the answer, or the result of the task")


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    to: str = Field(min_length=1, description="the name of the entity, or its id")
    message: str = Field(min_length=1, description="what it is told")


def _check_answer_schema(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    fault = None if schema is None else find_schema_fault(schema)
    if fault is not None:
        raise ValueError(f"expected a JSON Schema: {fault}")
    return schema


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the argument `schema` hides a deprecated method

    class _Question(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

        text: str = Field(min_length=1, description="what the person is asked")
        schema: Annotated[dict[str, Any] | None, AfterValidator(_check_answer_schema)] = Field(  # type: ignore[assignment]
            default=None, description="a JSON Schema that the answer fits; left out: the answer is a text"
        )


class _WakeMe(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    why: str = Field(min_length=1, description="what to do then: it is given to you as an intent")
    at: str | None = Field(None, description="the time, ISO 8601; without an offset it is local time")
    in_seconds: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="instead of `at`: how many seconds from now"
    )


def _own(
    name: str,
    description: str,
    kind: Kind,
    model: type[BaseModel],
    injected: tuple[str, ...] = (),
    risks: Iterable[Risk] = (),
) -> Gate:
    schema = _strip_titles(model.model_json_schema(by_alias=False))
    schema.pop("description", None)
    return Gate(
        name=name,
        description=description,
        parameters=schema,
        kind=kind,
        model=model,
        injected=injected,
        risks=frozenset(risks),
    )


DONE = _own("done", "Finish: the task is complete and this is its result.", "done", _Done)
CALL_AGENT = _own(
    "call_agent",
    "Have a child entity achieve an intent; waits for it and returns its answer.",
    "delegate",
    AgentRequest,
)
CALL_AGENT_BATCH = _own(
    "call_agent_batch", "Have several child entities work at once; returns their answers in order.", "delegate", _Batch
)
POST = _own(
    "post",
    "Send a message to another entity, which takes it as an intent; returns at once.",
    "message",
    _Message,
    ("to",),
    ("way_out",),
)
ASK = _own(
    "ask",
    "Send a message to another entity, wait until it has dealt with it, and return its answer.",
    "message",
    _Message,
    ("to",),
    ("way_out", "untrusted_content"),
)
QUESTION = _own(
    "question",
    "Ask a person, wait for the answer, and return it.",
    "question",
    _Question,
    ("expires", "unattended"),
)
WAKE_ME = _own(
    "wake_me",
    "Ask to be woken at a time, once: you are then given a new intent. Returns at once.",
    "message",
    _WakeMe,
    ("zone",),
)
DELEGATION = frozenset((CALL_AGENT.name, CALL_AGENT_BATCH.name))

_standard: dict[str, Gate] = {
    made.name: made for made in (DONE, CALL_AGENT, CALL_AGENT_BATCH, POST, ASK, WAKE_ME, QUESTION)
}


def provide(*gates: Gate) -> None:
    """Register gates by name, so that `Circle(gates=["read"])` finds them; `circle/` registers its own."""
    _standard.update((made.name, made) for made in gates)


def standard(name: str) -> Gate:
    """Return the gate registered as `name`. Raises InvalidCantrip with the nearest known name."""
    name = ALIASES.get(name, name)
    if name not in _standard:
        raise InvalidCantrip(
            f'unknown gate "{name}": {suggest_nearest(name, _standard)}; a function of yours is passed itself'
        )
    return _standard[name]
