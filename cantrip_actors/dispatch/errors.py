"""The errors of dispatches, and refusals as values.

A rule that forbids an event returns a `Refusal`; a log's `append` raises it as `EventRefused`, and writes nothing then.
"""

from __future__ import annotations

from typing import NamedTuple

from cantrip_actors.terms.errors import CantripError


class Refusal(NamedTuple):
    """The reason for forbidding something. `text`: the expected and the actual value, and a remedy; `rule`: its name.

    `legal` lists the statuses that may come next, if a status was refused.
    """

    text: str
    rule: str
    legal: tuple[str, ...] = ()


class DispatchError(CantripError):
    """Root of the errors of dispatches."""


class EventRefused(DispatchError):
    """The rules refused an event; the log is unchanged. `refusal` says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


class TamperedRecord(DispatchError):
    """A log was edited, cut or renamed, or its disk is failing."""


class UnknownDispatch(DispatchError, LookupError):
    """No dispatch has this id."""


class DispatchExists(DispatchError):
    """A dispatch with that id exists already; a contract is written once."""
