"""Whose context variables hold where: what is done for somebody is done within the context that he asked from.

A service binds to each request what its log lines, its traces and its gates want to know of it, in context variables.
The runtime's tasks belong to its tree and not to the request; so whoever casts, sends or asks leaves the variables that
are others in his context than in the runtime's, and the gates, crystals and companions that work for it see them. They
see them only: what they set themselves is undone when they are done. After a crash there are no such variables, since
nothing of them is in the loom.
"""

from __future__ import annotations

from contextvars import Context, ContextVar, Token, copy_context
from types import TracebackType
from typing import Any, Final

__all__ = ["ASKER", "Around", "around", "within"]

Around = tuple[tuple[ContextVar[Any], Any], ...]
"""Variables and what they are."""

ASKER: Final[ContextVar[str | None]] = ContextVar("cantrip_actors.asker", default=None)
"""The entity whose gate runs in this context."""

_UNSET: Final = object()


def around(outside: Context | None = None) -> Around:
    """The variables of the present context, without those that are the same `outside`."""
    context = copy_context()
    if outside is None:
        return tuple(context.items())
    return tuple([(one, value) for one, value in context.items() if outside.get(one, _UNSET) is not value])


def within(variables: Around) -> _Within:
    """A block in which they are what they are there."""
    return _Within(variables) if variables else _NOTHING


class _Within:
    __slots__ = ("_tokens", "_variables")

    def __init__(self, variables: Around) -> None:
        self._variables = variables
        self._tokens: list[tuple[ContextVar[Any], Token[Any]]] = []

    def __enter__(self) -> None:
        for variable, value in self._variables:
            self._tokens.append((variable, variable.set(value)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for variable, token in reversed(self._tokens):
            variable.reset(token)


_NOTHING: Final = _Within(())
