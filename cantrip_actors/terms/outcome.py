"""How an episode ended."""

from __future__ import annotations

from typing import Any, Literal

from cantrip_actors.terms.cut_off import CutOff
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import NO_IMAGES
from cantrip_actors.terms.messages import NO_USAGE, Usage
from cantrip_actors.terms.value import Value

EndReason = Literal[
    "terminated",
    "truncated",
    "failed",
    "crashed",
    "cancelled",
    "parent_ended",
    "timeout",
    "budget",
    "interrupted",
    "abandoned",
]


class Outcome(Value, frozen=True):
    """How an episode ended. Exactly one of terminated, truncated and `error` holds (SPEC 1.2).

    `ward` names the ward that truncated it; `summary` says what was accomplished before (LOOP-4). `usage` is the
    entity's own over its life, `subtree_usage` with its children's.
    """

    result: Any
    reason: EndReason
    terminated: bool = False
    truncated: bool = False
    error: str | None = None
    ward: str | None = None
    summary: str | None = None
    usage: Usage = NO_USAGE
    subtree_usage: Usage = NO_USAGE
    last_turn: str | None = None
    images: tuple[File, ...] = NO_IMAGES
    """Images and other files whose handles stand in the result."""
    cut_off: CutOff | None = None
    """Why the result is incomplete, if the provider ended the answer before the model did."""
    key: str | None = None
    """The key of the mail that brought the intent; None for the intent that the entity began with."""
