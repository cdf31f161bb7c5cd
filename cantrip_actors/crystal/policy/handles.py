"""The earlier attempts at a posted query, as its handle records them: their number and their cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cantrip_actors.crystal.query import Query
from cantrip_actors.terms.errors import CrystalError, ProviderError
from cantrip_actors.terms.messages import NO_USAGE, Usage

ATTEMPTS: Final = 4
"""How often one query is posted."""


class PostedAttempt(NamedTuple):
    """One attempt at a query. `spent` is the usage of the attempts before it."""

    number: int = 0
    spent: Usage = NO_USAGE

    @classmethod
    def of(cls, handle: Mapping[str, Any]) -> PostedAttempt:
        """Return the attempt that a handle describes."""
        return cls(handle.get("attempt", 0), Usage(**handle["spent"]) if "spent" in handle else NO_USAGE)

    def list_fields(self) -> dict[str, Any]:
        """Return the handle's fields for this attempt."""
        fields: dict[str, Any] = {"attempt": self.number} if self.number else {}
        if self.spent != NO_USAGE:
            fields["spent"] = {name: getattr(self.spent, name) for name in self.spent.__struct_fields__}
        return fields


def begin_attempt(name: str, query: Query) -> PostedAttempt:
    """Return the attempt for a query: the first, or the next after an answer that did not meet the request.

    Raises CrystalError after `ATTEMPTS` attempts.
    """
    if query.earlier is None:
        return PostedAttempt()
    number, usage = PostedAttempt.of(query.earlier.handle).number + 1, query.earlier.usage
    if number >= ATTEMPTS:
        problem = f"{name}: {ATTEMPTS} answers followed neither tool_choice nor output_schema"
        raise CrystalError(f"{problem}: use tool_choice='auto', or simplify output_schema")
    return PostedAttempt(number, usage)


def repeat(attempt: PostedAttempt, why: ProviderError) -> PostedAttempt:
    """Return the next attempt at a query whose last one failed.

    Raises ProviderError, with the usage of all attempts, after `ATTEMPTS` attempts.
    """
    spent = attempt.spent + why.usage
    if attempt.number + 1 >= ATTEMPTS:
        message = f"{why}; it was tried {ATTEMPTS} times"
        error = ProviderError(message, status=why.status, retryable=False, usage=spent)
        error.overflows = why.overflows
        raise error
    return PostedAttempt(attempt.number + 1, spent)
