"""Gates from functions: annotations and docstring are the definition, and dependencies are injected (CIRCLE-10)."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, TypeVar, Union, Unpack, overload

from cantrip_actors.terms.arguments import check_kind
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.gate import LEFT_OUT, Gate, GateSettings, check_name, complete_settings
from cantrip_actors.terms.wrapper import Fence, GateCall

T = TypeVar("T")


class _Dependency:
    """Marks a parameter that is injected when the circle is made and that the entity never sees."""

    def __repr__(self) -> str:
        return "Injected"


Injected = Annotated[T, _Dependency()]
"""`root: Injected[Path]` is a dependency: given by `with_(root=…)`, absent from the gate's schema (CIRCLE-10)."""


_ADVICE: Final = "; a parameter that the program gives, and not the crystal, is annotated with Injected[…]"


@overload
def gate(function: Callable[..., Any], /) -> Gate: ...
@overload
def gate(
    *,
    name: str | None = None,
    description: str | None = None,
    deferred: bool = False,
    expires: float | None = None,
    **settings: Unpack[GateSettings],
) -> Callable[[Callable[..., Any]], Gate]: ...
def gate(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    deferred: bool = False,
    expires: float | None = None,
    **settings: Unpack[GateSettings],
) -> Gate | Callable[[Callable[..., Any]], Gate]:
    """Make a gate of an annotated function: its name, docstring, annotations and defaults are the definition.

    A text in the `Annotated` of a parameter describes it. The result of a generator is the list of what it yields.

    An `async def` runs on the event loop, a plain `def` in a worker thread unless `blocking=False` says that it never
    waits. Parameters annotated `Injected[…]` are dependencies; one annotated `GateCall` receives the call itself, and
    one annotated `Injected[Fence]` the fence of its entity's owner. `settings` are those of a `Gate`: `ephemeral`,
    `visible_for`, `max_shown`, `idempotent`, `read_only`, `timeout`, `blocking`, `retry` and `risks`. `read_only=True`
    declares that the gate changes nothing outside the entity. `risks` declares what the gate brings into a circle:
    "private_data" that it reads, "untrusted_content" that strangers wrote, or a "way_out" for what the entity says. A
    circle with all three is warned about.

    With `deferred=True` the function is never called: a call is recorded and waits, for days and through restarts,
    until any program delivers its result with `Runtime.deliver`. After `expires` seconds without a result, the
    observation is an error.

    Raises InvalidCantrip for an unknown risk, if no schema can be derived from the annotations, and for settings that
    a deferred gate cannot have.
    """
    check_kind("gate: deferred", deferred, bool, "True or False", InvalidCantrip)
    if expires is not None and not deferred:
        raise InvalidCantrip("gate: expires is for deferred=True; timeout=… bounds a function that runs here")

    def make(function: Callable[..., Any]) -> Gate:
        inner = _unwrap_partials(function)
        own_name = check_name(str(getattr(inner, "__name__", type(inner).__name__)) if name is None else name)
        _check_function(function, own_name)
        from cantrip_actors.terms.argument_model import make_model  # with pydantic, which takes as long as the rest
        from cantrip_actors.terms.identity import build_parameters_identity

        injected, required_injected, fields, others, site = _split(function, own_name)
        model, schema = make_model(own_name, fields, others=others, advice=_ADVICE)
        called_here = Gate(
            name=own_name,
            description=description if description is not None else inspect.getdoc(_find_annotated(function)) or "",
            parameters=schema,
            function=function,
            injected=injected,
            required_injected=required_injected,
            site=site,
            written=build_parameters_identity(fields, others=others),
            model=model,
            **complete_settings(settings, function),
        )
        return called_here.defer(expires) if deferred else called_here

    return make if function is None else make(function)


def _check_function(function: object, name: str) -> None:
    """Refuse what is decorated in an order that makes no gate."""
    if isinstance(function, Gate):
        raise InvalidCantrip(
            f"gate {function.name}: it is a gate already: change its settings with {function.name}.with_(…), or give "
            "its function another name with gate(name=…)"
        )
    if isinstance(function, classmethod):
        raise InvalidCantrip(
            f"gate {name}: it is a method of no class yet: make a gate of it where it is bound, as in "
            f"gate(Service.{name})"
        )


def _split(
    function: Callable[..., Any], name: str
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, Any], Any, tuple[tuple[str, Callable[[GateCall], Any]], ...]]:
    """Split a function's parameters: injected ones, those of them without a default, and the others as model fields.

    Also return the annotation of its `**others`, None if it has none, and which parameters receive the call or a part
    of it.
    """
    try:
        parameters = inspect.signature(function).parameters
        hints = _get_hints(_find_annotated(function))
    except NameError as error:
        raise InvalidCantrip(
            f"gate {name}: an annotation cannot be resolved ({error}); define it at module level, or import it there, "
            "outside of `if TYPE_CHECKING`"
        ) from error
    except (TypeError, ValueError) as error:
        raise InvalidCantrip(f"gate {name}: expected an annotated function, got {function!r}: {error}") from error
    injected, required_injected, fields = list[str](), list[str](), dict[str, Any]()
    others: Any = None
    site: list[tuple[str, Callable[[GateCall], Any]]] = []
    fixed = function.keywords if isinstance(function, functools.partial) else ()
    for parameter in parameters.values():
        if parameter.name in fixed:
            continue  # its author has bound the arguments of a partial
        _check_has_name(name, parameter, hints)
        hint = hints.get(parameter.name, Any)
        if parameter.kind is parameter.VAR_KEYWORD:
            _check_belongs_to_crystal(name, parameter, hint)
            if typing.get_origin(hint) is Unpack:
                fields |= _list_keys(*typing.get_args(hint))
            else:
                others = hint
        elif (part := _find_part_of_call(hint)) is not None:
            site.append((parameter.name, part))
        elif any(isinstance(part, _Dependency) for part in _list_parts(hint)):
            injected.append(parameter.name)
            if parameter.default is parameter.empty:
                required_injected.append(parameter.name)
        else:
            _check_belongs_to_crystal(name, parameter, hint)
            fields[parameter.name] = (hint, ... if parameter.default is parameter.empty else parameter.default)
    return tuple(injected), tuple(required_injected), fields, others, tuple(site)


def _check_has_name(name: str, parameter: inspect.Parameter, hints: dict[str, Any]) -> None:
    """Refuse a parameter that a call cannot give by its name, and the first one of a method that is not bound."""
    if parameter.name in ("self", "cls") and parameter.name not in hints:
        raise InvalidCantrip(
            f"gate {name}: it is a method of no object yet, and {parameter.name} would be the crystal's to give: "
            f"make a gate of it where it is bound, Circle(gates=[service.{name}]) or gate(…)(service.{name})"
        )
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
        raise InvalidCantrip(
            f"gate {name}: parameter {parameter.name} cannot be passed by name, as a call does: give it a name, or "
            "leave it out; a decorator that takes *args shows those of its function by functools.wraps"
        )


def _list_keys(kind: Any) -> dict[str, Any]:
    """Return the keys of a TypedDict as model fields, for `**options: Unpack[Options]`."""
    fields = {}
    for key, hint in typing.get_type_hints(kind, include_extras=True).items():
        is_wrapped = typing.get_origin(hint) in (typing.Required, typing.NotRequired)
        default = ... if key in kind.__required_keys__ else LEFT_OUT
        fields[key] = (typing.get_args(hint)[0] if is_wrapped else hint, default)
    return fields


def _get_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function's parameters. That of its result may name what is imported for type checkers
    alone. Raises NameError for one of a parameter.
    """
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError:
        parameters = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
        type_parameters = getattr(function, "__type_params__", ())
        shown = types.SimpleNamespace(__annotations__=parameters, __wrapped__=function, __type_params__=type_parameters)
        return typing.get_type_hints(shown, include_extras=True)


def get_call(call: GateCall) -> GateCall:
    """Return the call itself, for a parameter annotated `GateCall`."""
    return call


def get_fence(call: GateCall) -> Fence:
    """Return the fence of a call, for a parameter annotated `Injected[Fence]`."""
    return call.fence


def _find_part_of_call(hint: Any) -> Callable[[GateCall], Any] | None:
    """Return the function that selects the part of a call that a parameter with that annotation receives, or None."""
    parts = list(_list_parts(hint))
    if any(part is GateCall for part in parts):
        return get_call
    return get_fence if any(part is Fence for part in parts) else None


def _list_parts(hint: Any) -> Iterator[Any]:
    """Yield an annotation, and those that it consists of: of a union, an alias, an `Annotated` with its marks."""
    yield hint
    origin = typing.get_origin(hint)
    alias = hint if hasattr(hint, "__value__") else origin
    if hasattr(alias, "__value__"):
        yield from _list_parts(alias.__value__)
    elif origin is Annotated:
        yield from hint.__metadata__
        yield from _list_parts(hint.__origin__)
    elif origin in (Union, types.UnionType):
        for choice in typing.get_args(hint):
            yield from _list_parts(choice)


def _check_belongs_to_crystal(name: str, parameter: inspect.Parameter, hint: Any) -> None:
    """Refuse an annotation with a dependency or a part of the call inside: the crystal would give, and forge, it."""
    inner, seen = [hint], set()
    while inner:
        part = inner.pop()
        is_own = isinstance(part, _Dependency) or (isinstance(part, type) and issubclass(part, (GateCall, Fence)))
        if is_own:
            raise InvalidCantrip(
                f"gate {name}: parameter {parameter.name}: the crystal would give the {part!r} in {hint!r}: annotate "
                "the parameter itself with GateCall or Injected[…], alone or with | None"
            )
        if id(part) not in seen:
            seen.add(id(part))
            inner += [*_list_parts(part), *typing.get_args(part)]


def _unwrap_partials(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function without the arguments that partials have bound."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _find_annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function whose annotations and docstring count: the one in a partial or in an object that decorates
    it, or an object's `__call__`.
    """
    function = _unwrap_partials(function)
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    if hasattr(function, "__wrapped__"):
        inner: Callable[..., Any] = inspect.unwrap(function)
        return inner
    called: Callable[..., Any] = type(function).__call__
    return called
