"""Passes a query to the `invoke` of a user's crystal: by the names of its parameters, else by their order.

Parameters called `messages`, `tools`, `tool_choice`, `options` or `emit` receive the argument of that name, in any
position. Required parameters with other names receive the remaining ones of the first four, in that order:
`invoke(history, gates, choice)`. Then `*rest` receives the remaining ones of the first three, and `**more` those of the
first four. Only a crystal that names `emit` streams.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

_IN_ORDER: Final = ("messages", "tools", "tool_choice", "options")
_OFFERED: Final = frozenset((*_IN_ORDER, "emit"))


class Arrangement(NamedTuple):
    """How to call an `invoke`: its positional arguments, its keyword arguments, and whether it is async."""

    positional: tuple[str, ...]
    keywords: Mapping[str, str]
    is_async: bool

    def __call__(self, offered: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the positional and the keyword arguments of one call, from the arguments of a query by name."""
        keywords = {name: offered[argument] for name, argument in self.keywords.items()}
        return [offered[name] for name in self.positional], keywords


_arrangements: weakref.WeakKeyDictionary[Any, Arrangement] = weakref.WeakKeyDictionary()


def find_arrangement(invoke: Callable[..., Any]) -> Arrangement:
    """Return how to call `invoke`: read once for each function, since reading a signature is slow."""
    key = getattr(invoke, "__func__", invoke)
    try:
        return _arrangements[key]
    except (KeyError, TypeError):  # TypeError: a callable that cannot be referred to weakly, or has no hash
        pass
    arrange = _read(invoke)
    with contextlib.suppress(TypeError):
        _arrangements[key] = arrange
    return arrange


def _read(invoke: Callable[..., Any]) -> Arrangement:
    try:
        parameters = list(inspect.signature(invoke).parameters.values())
    except (TypeError, ValueError):  # built in C, or a mock
        return Arrangement(_IN_ORDER[:3], {}, is_async(invoke))
    ordinary = [
        parameter for parameter in parameters if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    kinds = {parameter.kind for parameter in parameters}
    left = [name for name in _IN_ORDER if all(parameter.name != name for parameter in ordinary)]
    positional: list[str] = []
    keywords: dict[str, str] = {}
    in_order = True  # until a parameter is skipped: later ones have to be passed by name
    for parameter in ordinary:
        offered = parameter.name if parameter.name in _OFFERED else None
        if offered is None and parameter.default is parameter.empty and left:
            offered = left.pop(0)
        if offered is None:
            in_order = in_order and parameter.kind is parameter.KEYWORD_ONLY
        elif in_order and parameter.kind is not parameter.KEYWORD_ONLY:
            positional.append(offered)
        elif parameter.kind is not parameter.POSITIONAL_ONLY:
            keywords[parameter.name] = offered
    if inspect.Parameter.VAR_POSITIONAL in kinds and in_order:
        positional += [name for name in left if name != "options"]
        left = [name for name in left if name == "options"]
    if inspect.Parameter.VAR_KEYWORD in kinds:
        keywords.update(zip(left, left, strict=True))

    return Arrangement(tuple(positional), keywords, is_async(invoke))


def is_async(function: Callable[..., Any] | None) -> bool:
    """Return whether a function, the function that it wraps, or the `__call__` of an object is an `async def`."""
    if function is None:
        return False
    functions = (function, inspect.unwrap(function))
    methods = [getattr(candidate, "__call__", None) for candidate in functions]  # noqa: B004  # it may be async
    return any(map(inspect.iscoroutinefunction, (*functions, *methods)))
