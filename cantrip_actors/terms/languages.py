"""Which mediums have a language: an entity writes programs in them. In the others it writes texts and calls gates."""

from __future__ import annotations

from typing import Final

_WITHOUT_PROGRAMS: Final = frozenset({"tools", "person"})


def has_programs(medium: str) -> bool:
    """Return whether the entities of a circle with this medium write programs.

    >>> has_programs("python"), has_programs("tools"), has_programs("person")
    (True, False, False)
    """
    return medium not in _WITHOUT_PROGRAMS
