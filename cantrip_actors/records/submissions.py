"""Submissions: casts that wait in a loom until a process begins them.

A submission is a row of a table of its own until its entity has begun, or until it is withdrawn. It waits in a queue,
whose bounds decide when it begins; the queue "" has no bounds. Within a queue the next one has the highest priority,
and among these the earliest time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from cantrip_actors.records.codec import decode_value, encode_value
from cantrip_actors.records.tenant import scope_name
from cantrip_actors.terms.value import Value

HIGHEST: Final = 100
"""The highest priority; the lowest is its negative."""


class SubmissionPosition(NamedTuple):
    """A position in the order in which the submissions of a queue begin. `rank` is the negative priority."""

    rank: int
    at: float
    id: str


FIRST_SUBMISSION: Final = SubmissionPosition(-HIGHEST - 1, 0.0, "")
"""The position before all submissions."""


class SubmissionRow(Value, frozen=True, kw_only=True):
    """One row: cast the cantrip named `cantrip` on `intent`. `at` is when it was submitted, in seconds since 1970.

    A tenant has one submission with a `key`, from which the entity's id is made.
    """

    key: str
    cantrip: str
    intent: str
    at: float
    priority: int = 0
    tenant: str = ""
    queue: str = ""
    sender: str = ""
    """The name of the program or person that submitted it."""
    trace: str | None = None
    """The `traceparent` of the span that submitted it."""

    @property
    def id(self) -> str:
        """The key with its tenant, which is unique in a loom."""
        return scope_name(self.tenant, self.key)

    @property
    def position(self) -> SubmissionPosition:
        """Its position among those of its queue."""
        return SubmissionPosition(-self.priority, self.at, self.id)


def make_submission_key(key: str) -> str:
    """Return the key with which the entity of a submission begins."""
    return f"submission:{key}"


def encode_submission(row: SubmissionRow) -> bytes:
    """Return a submission as one line, without its newline."""
    return encode_value(row, ())


def decode_submission(line: bytes) -> SubmissionRow:
    """Return the submission of a line. Raises LoomError for a line that is not a submission."""
    return decode_value(line, _DECODER, "submission")


_DECODER = msgspec.json.Decoder(SubmissionRow)
