"""What counts as evidence: words that say something. "TBD" and its like say that there is none yet (F-38)."""

from __future__ import annotations

import re

__all__ = ["PLACEHOLDERS", "is_placeholder"]

PLACEHOLDERS = frozenset({"tbd", "todo", "n/a", "na", "none", "fixme", "pending", "placeholder", "later", "wip", "xxx"})
"""Words that stand where evidence should."""

_ORNAMENT = re.compile(r"<!--.*?-->|[\s.…\-–—_*`?:()\[\]<>]+", re.DOTALL)  # the dashes people type


def is_placeholder(text: str) -> bool:
    """Whether `text` says nothing: empty, only punctuation, or a word such as TBD, in whatever ornament.

    >>> is_placeholder(" - "), is_placeholder("**TODO**..."), is_placeholder("todo list is tested")
    (True, True, False)
    """
    words = _ORNAMENT.sub(" ", text).strip().lower()
    return not words or words in PLACEHOLDERS
