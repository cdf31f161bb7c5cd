"""The person whom an utterance addresses: its text begins with the person's name, as in `@anna, what do you think?`."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

ADDRESSEE: Final = re.compile(r"@([\w.-]*\w)")
"""The beginning of an utterance that addresses a person."""


def find_addressee(text: str, names: Collection[str]) -> str | None:
    """Return the name, out of `names`, that a text addresses; None if the text is for all of them.

    >>> find_addressee("@anna: which colour?", ["anna", "ben"])
    'anna'
    >>> find_addressee("@override is a decorator", ["anna", "ben"]) is None
    True
    """
    match = ADDRESSEE.match(text.lstrip())
    return match[1] if match is not None and match[1] in names else None
