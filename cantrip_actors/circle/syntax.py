"""Parse programs of entities with tree-sitter, in bounded time, because the text is untrusted."""

from __future__ import annotations

import time
from typing import Final

from tree_sitter import Language, Node, Parser, Query, QueryCursor

LONGEST: Final = 200_000
"""The most bytes of a program that are parsed. A usual program takes half a microsecond per byte."""

SECONDS: Final = 0.1
"""CPU seconds that parsing may take: some texts would take minutes."""

_CHUNK: Final = 65536


def parse(language: Language, source: bytes) -> Node | None:
    """Return the root of the program's syntax tree; None if the text is too long or takes too long to parse."""
    if len(source) > LONGEST:
        return None
    ends = time.thread_time() + SECONDS

    def read(offset: int, _: object) -> bytes:
        return source[offset : offset + _CHUNK]

    def is_late(_offset: int, _has_error: bool) -> bool:
        return time.thread_time() > ends

    try:
        return Parser(language).parse(read, progress_callback=is_late).root_node
    except ValueError:  # parsing was stopped because it took too long
        return None


def find_nodes(query: Query, root: Node) -> list[Node]:
    """Return the nodes that a query captures; none in a text that does not parse, where a search may take minutes."""
    return [] if root.has_error else [node for nodes in QueryCursor(query).captures(root).values() for node in nodes]
