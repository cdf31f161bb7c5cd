"""Parse programs of entities with tree-sitter, in bounded time: the text is whatever the entity wrote."""

from __future__ import annotations

import time
from typing import Final

from tree_sitter import Language, Node, Parser

__all__ = ["LONGEST", "parse"]

LONGEST: Final = 200_000
"""Bytes of a program that are parsed at most. A usual one takes half a microsecond for each."""

SECONDS: Final = 0.1
"""Seconds of processor that parsing may take: there are texts that would take minutes."""

_CHUNK: Final = 65536


def parse(language: Language, source: bytes) -> Node | None:
    """Return the root of the program's syntax tree; None for a text that is too long, or takes too long to parse."""
    if len(source) > LONGEST:
        return None
    ends = time.thread_time() + SECONDS

    def read(offset: int, _: object) -> bytes:
        return source[offset : offset + _CHUNK]

    def is_late(_offset: int, _has_error: bool) -> bool:
        return time.thread_time() > ends

    try:
        return Parser(language).parse(read, progress_callback=is_late).root_node
    except ValueError:  # it was late
        return None
