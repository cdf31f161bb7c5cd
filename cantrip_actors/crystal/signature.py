"""How to pass a query to the `invoke` of a user's crystal: by the names of its parameters, else by their order.

Parameters called `messages`, `tools`, `tool_choice`, `options` or `emit` receive what their names say, wherever they
stand. The required parameters with other names receive what is left of the first four, in that order:
`invoke(history, gates, choice)`. Then `*rest` receives what is left of the first three, and `**more` what is left of
the first four. Only a crystal that names `emit` streams.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

__all__ = ["Arrangement", "arrangement"]

Arrangement = Callable[[Mapping[str, Any]], tuple[Sequence[Any], Mapping[str, Any]]]
"""Given what a query offers, by name: the positional and the keyword arguments of one call."""

_IN_ORDER: Final = ("messages", "tools", "tool_choice", "options")
_OFFERED: Final = frozenset((*_IN_ORDER, "emit"))

_known: weakref.WeakKeyDictionary[Any, Arrangement] = weakref.WeakKeyDictionary()


def arrangement(invoke: Callable[..., Any]) -> Arrangement:
    """Return how to call `invoke`: read once for each function, since reading a signature is slow."""
    key = getattr(invoke, "__func__", invoke)
    try:
        return _known[key]
    except (KeyError, TypeError):  # TypeError: a callable that cannot be referred to weakly, or has no hash
        pass
    arrange = _read(invoke)
    with contextlib.suppress(TypeError):
        _known[key] = arrange
    return arrange


def _read(invoke: Callable[..., Any]) -> Arrangement:
    try:
        parameters = list(inspect.signature(invoke).parameters.values())
    except (TypeError, ValueError):  # built in C, or a mock
        return lambda offered: ([offered[name] for name in _IN_ORDER[:3]], {})
    ordinary = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    kinds = {one.kind for one in parameters}
    left = [name for name in _IN_ORDER if all(one.name != name for one in ordinary)]
    positional: list[str] = []
    keywords: dict[str, str] = {}
    in_order = True  # until a parameter is skipped: what comes after it has to be passed by its name
    for parameter in ordinary:
        given = parameter.name if parameter.name in _OFFERED else None
        if given is None and parameter.default is parameter.empty and left:
            given = left.pop(0)
        if given is None:
            in_order = in_order and parameter.kind is parameter.KEYWORD_ONLY
        elif in_order and parameter.kind is not parameter.KEYWORD_ONLY:
            positional.append(given)
        elif parameter.kind is not parameter.POSITIONAL_ONLY:
            keywords[parameter.name] = given
    if inspect.Parameter.VAR_POSITIONAL in kinds and in_order:
        positional += [name for name in left if name != "options"]
        left = [name for name in left if name == "options"]
    if inspect.Parameter.VAR_KEYWORD in kinds:
        keywords.update(zip(left, left, strict=True))

    def arrange(offered: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        return [offered[name] for name in positional], {name: offered[given] for name, given in keywords.items()}

    return arrange
