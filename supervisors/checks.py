"""Checks of plain values that users pass: numbers, seconds, keys of a dict."""

from __future__ import annotations

import inspect
import math
from collections.abc import Hashable, Mapping
from typing import Any, Final, TypeGuard


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is an int or a float; a bool is neither here."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_hashable(key: object) -> TypeGuard[Hashable]:
    """Return whether `key` can be the key of a dict. A tuple with a list in it is a `Hashable` and cannot."""
    try:
        hash(key)
    except TypeError:
        return False
    return True


def check_seconds(what: str, seconds: object) -> None:
    """Refuse a time that is not a number: a timer without a due time would never fire, or delay all others.

    Raises:
        ValueError: naming `what`.
    """
    if not is_number(seconds) or math.isnan(seconds):
        raise ValueError(f"{what}: expected seconds, got {seconds!r}")


#: The methods that an actor may override, and whether each is awaited.
_CALLBACKS: Final = {
    "init": True,
    "handle_call": True,
    "handle_cast": True,
    "handle_info": True,
    "terminate": True,
    "run": True,
    "snapshot": False,
    "restore": False,
}


def check_callbacks(name: str, members: Mapping[str, Any]) -> None:
    """Refuse a class of actors with a callback that is `def` and should be `async def`, or the other way round.

    The actor would crash with its first message, or lose its state. A decorated function is not examined, because
    its result may be awaitable.

    Raises:
        TypeError: naming the class and the callback.
    """
    for callback, is_awaited in _CALLBACKS.items():
        function = members.get(callback)
        if not inspect.isfunction(function) or hasattr(function, "__wrapped__"):
            continue
        if inspect.iscoroutinefunction(function) is not is_awaited:
            expected = "async def" if is_awaited else "def"
            raise TypeError(f"{name}.{callback}: expected `{expected} {callback}`, got {_describe_function(function)}")


def _describe_function(function: Any) -> str:
    if inspect.isasyncgenfunction(function):
        return "an async generator: remove its `yield`"
    return "`async def`" if inspect.iscoroutinefunction(function) else "`def`"
