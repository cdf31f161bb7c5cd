"""Memory of the JavaScript engine as a difference: what an image has that another one has not.

A sandbox dirties some tens of the pages that the engine's memory has. So a new one is made by writing few pages into a
fresh instance, a turn that may have to be undone is remembered as few pages, and a snapshot is few kilobytes.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Difference", "difference"]


@dataclass(frozen=True, slots=True)
class Difference:
    """What makes one memory another: `size` bytes, with these `pages`, each as long as the others, at their offsets."""

    size: int
    page: int
    pages: tuple[tuple[int, bytes], ...]


def difference(before: bytes, now: bytes, page: int) -> Difference:
    """What makes `before`, with zeros after its end, to `now`."""
    old, new, zeros = memoryview(before), memoryview(now), bytes(page)
    pages = []
    for start in range(0, len(now), page):
        part = new[start : start + page]
        if part != (old[start : start + page] if start < len(before) else zeros):
            pages.append((start, bytes(part)))
    return Difference(len(now), page, tuple(pages))
