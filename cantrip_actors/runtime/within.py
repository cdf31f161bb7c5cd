"""Whose context variables hold where: what is done for somebody is done within the context that he asked from.

A service binds to each request what its log lines, its traces and its gates want to know of it, in context variables.
The runtime's tasks belong to its tree and not to the request; so whoever casts, sends or asks leaves his context with
that, and the gates, crystals and companions that work for it see its variables. They see them only: what they set
themselves is undone when they are done. After a crash there is no such context, since nothing of it is in the loom.
"""

from __future__ import annotations

from contextvars import Context, ContextVar, Token
from types import TracebackType
from typing import Any, Final

__all__ = ["Within"]

_UNSET: Final = object()


class Within:
    """`with Within(context):` the variables of `context` are what they are there. None, and an empty one, have none."""

    __slots__ = ("_context", "_tokens")

    def __init__(self, context: Context | None) -> None:
        self._context = context
        self._tokens: list[tuple[ContextVar[Any], Token[Any]]] = []

    def __enter__(self) -> None:
        if self._context:
            for variable, value in self._context.items():
                if variable.get(_UNSET) is not value:
                    self._tokens.append((variable, variable.set(value)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for variable, token in reversed(self._tokens):
            variable.reset(token)
