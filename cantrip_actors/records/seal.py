"""The hash chain: the last field of every stored line is a digest of all lines of its tree up to it.

A tree is a root entity and everything it spawned; a fork is a root. Its lines are chained in the order in which they
were recorded, so that a line that was edited, removed, moved or truncated no longer fits the next one. A chain alone
cannot show that its end is missing: a truncated loom looks like one that ended there. `verify` prints the loom's
fingerprint, to compare it with an earlier one.

Without a key it is not a signature: a person who can write the loom can also write a new chain. With a key
(`loom/seal/seal_key.py`) only its holders can make a link.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

NOTHING = b""
"""The link before the first line of a tree."""

_SIZE = 12
_UNKEYED = blake2b(digest_size=_SIZE)
"""A hash to copy, which costs less than a new one."""
_FIELD = b',"chain":"'
_TAIL = len(_FIELD) + 2 * _SIZE + len(b'"}')


def compute_link(line: bytes, before: bytes, key: bytes = b"") -> bytes:
    """Return the link of a line without one: 12 bytes of BLAKE2b, as hex, over the link before it and its bytes.

    With a key (64 bytes at most) it is a message authentication code; an empty key is BLAKE2b without one.
    """
    return blake2b(before + line, digest_size=_SIZE, key=key).hexdigest().encode()


def seal(line: bytes, before: bytes, key: bytes = b"") -> tuple[bytes, bytes]:
    """Return `line` with its link to the line `before` it in its tree, and that link, for the tree's next line.

    The link covers the bytes as they are.
    """
    (sealed,), link = seal_lines((line,), before, key)
    return sealed, link


def seal_lines(lines: Iterable[bytes], before: bytes, key: bytes = b"") -> tuple[list[bytes], bytes]:
    """Return lines of one tree, each with its link to the line before it, and the last link."""
    start = blake2b(digest_size=_SIZE, key=key) if key else _UNKEYED
    sealed = []
    for line in lines:
        whole = start.copy()
        whole.update(before + line)
        before = whole.hexdigest().encode()
        sealed.append(b"".join((line[:-1], _FIELD, before, b'"}')))
    return sealed, before


def seal_copied(
    lines: Iterable[bytes], links: Iterable[bytes | None], before: bytes, key: bytes = b""
) -> tuple[list[bytes], bytes]:
    """Return the same for lines of another loom: a line with an entry in `links` keeps that link."""
    sealed = []
    for line, link in zip(lines, links, strict=False):
        before = compute_link(line, before, key) if link is None else link
        sealed.append(add_link(line, before))
    return sealed, before


def add_link(line: bytes, link: bytes) -> bytes:
    """Return `line` with that link."""
    return b'%b%b%b"}' % (line[:-1], _FIELD, link)


def split_link(line: bytes) -> tuple[bytes, bytes | None]:
    """Return a line as it was before it was sealed, and its link, or None if it has no link."""
    if line[-_TAIL : -_TAIL + len(_FIELD)] != _FIELD:
        return line, None
    return line[:-_TAIL] + b"}", line[-2 * _SIZE - 2 : -2]
