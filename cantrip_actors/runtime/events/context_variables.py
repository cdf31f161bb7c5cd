"""The caller's context variables, for the gates, crystals and companions that work for that caller.

A service stores facts about each request in context variables, for its log lines, traces and gates. The runtime's tasks
belong to its tree and not to the request. So each `cast`, `send` or `ask` captures the variables whose values differ
between the caller and the runtime, and the runtime sets them while gates, crystals and companions work for that caller.
These variables get their old values back afterwards. After a crash they are lost, because the loom does not record
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context, ContextVar, Token, copy_context
from typing import Any, Final, NamedTuple, Self

ContextVariables = tuple[tuple[ContextVar[Any], Any], ...]
"""Variables and their values."""


class Asker:
    """An entity that waits for the block of user code in `with Asker(entity_id)`: a gate, a crystal or a companion."""

    __slots__ = ("_token", "entity_id")

    def __init__(self, entity_id: str) -> None:
        self.entity_id: str | None = entity_id
        """None once the code has ended. Tasks that it has started may continue: the entity does not wait for them."""
        self._token: Token[Asker | None]

    def __enter__(self) -> Self:
        self._token = ASKER.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        ASKER.reset(self._token)
        self.entity_id = None


ASKER: Final[ContextVar[Asker | None]] = ContextVar("cantrip_actors.asker", default=None)
"""The entity that waits for the code of this context."""


class Working(NamedTuple):
    """The entity that something is done for."""

    entity_id: str
    cantrip: str
    tenant: str


WORKING: Final[ContextVar[Working | None]] = ContextVar("cantrip_actors.working", default=None)
"""The entity whose actor or gate works in this context: for log lines."""

DOING: Final[ContextVar[tuple[str, str] | None]] = ContextVar("cantrip_actors.doing", default=None)
"""The turn and the gate that runs in this context."""

_OF_ENTITY: Final = frozenset[ContextVar[Any]]({ASKER, WORKING, DOING})
"""Variables about the entity that works here. No other entity that it calls takes them over: each sets its own."""

_UNSET: Final = object()


def find_asker() -> str | None:
    """Return the id of the entity that waits until the code of this context has ended; None without one."""
    asker = ASKER.get()
    return None if asker is None else asker.entity_id


def capture_variables(outside: Context | None = None) -> ContextVariables:
    """Return the variables of the present context, for the same entity; with `outside`, those for another one, without
    those that have the same value there.
    """
    context = copy_context()
    if outside is None:
        return tuple(context.items())
    return tuple(
        [
            (variable, value)
            for variable, value in context.items()
            if variable not in _OF_ENTITY and outside.get(variable, _UNSET) is not value
        ]
    )


def bind_variables(variables: ContextVariables) -> AbstractContextManager[None]:
    """Return a context manager that sets `variables` on entry and resets them on exit."""
    return _set_variables(variables) if variables else _NOTHING


@contextmanager
def _set_variables(variables: ContextVariables) -> Iterator[None]:
    tokens = [(variable, variable.set(value)) for variable, value in variables]
    try:
        yield
    finally:
        for variable, token in reversed(tokens):
            variable.reset(token)


_NOTHING: Final = nullcontext()
