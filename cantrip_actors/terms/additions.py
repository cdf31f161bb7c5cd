"""The additions of a client to an offered cantrip, for one intent: tools that it carries out, and a form of answer.

They are data: the mail of an intent brings them to the process that runs the entity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.value import Value

PATIENCE: Final = 86_400.0
"""Seconds that an entity waits for its client's results. Then the episode ends, because its client has gone."""


class AddedTool(Value, frozen=True):
    """A tool of a client."""

    name: str
    parameters: Mapping[str, Any]
    description: str = ""

    def make_gate(self) -> Gate:
        """Return the tool as a deferred gate. Raises InvalidCantrip."""
        name, parameters, description = self.name, self.parameters, self.description
        gate = Gate.of(None, name=name, parameters=parameters, description=description, kind="deferred", foreign=True)
        return gate.with_(expires=PATIENCE, ends_episode=True)


class Additions(Value, frozen=True):
    """The additions of a client. `done` are the parameters of the gate `done`, for answers of the client's form."""

    tools: tuple[AddedTool, ...] = ()
    done: Mapping[str, Any] | None = None
    must_call: bool = False
    """Whether each answer of the crystal calls a gate."""
    one_call: bool = False
    """Whether the client gets one call at a time."""

    def __bool__(self) -> bool:
        return self != NO_ADDITIONS


NO_ADDITIONS: Final = Additions()


def read_additions(data: object) -> Additions:
    """Return the additions of a mail. Raises InvalidCantrip for other data: another version may have posted it."""
    try:
        return msgspec.convert(data, Additions)
    except msgspec.ValidationError as problem:
        raise InvalidCantrip(f"the additions to the cantrip cannot be read: {problem}") from problem
