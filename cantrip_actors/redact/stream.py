"""Redaction of a text that arrives in pieces, such as a crystal's stream.

A key that is cut in two is in neither piece. So a piece is released only up to its last white space, and a possible
beginning of a secret is held back until the next piece or the end. Words are short and keys are words: a reader sees
text one word late. The inside of a private key's block is held back until the block ends.

The released pieces add up to what `Redactor.text` makes of the whole, except for secrets that are wrapped over lines.
"""

from __future__ import annotations

import re

from cantrip_actors.redact.redactor import Redactor, Span, replace_spans

CONTEXT = 512
"""Released characters that are still searched: `Cookie: a=b; ` says what the next words are."""

NEAR = 128
"""Released characters that are still searched if they have no header and no escape: `api_key = ` is right before a key.
"""

WORD = 8192
"""A longer word is released except for its end: it is data, in which a key may begin anywhere."""

SOON = 2048
"""So much held text is searched again after each white space: it is held because a secret may continue."""

STEPS = 8
"""More held text, as in the block of a key, is searched again when it has grown by one part in this many, or the block
ends: else it would be searched once for each word.
"""

_OPEN_BLOCK = re.compile(r"-----BEGIN [A-Z0-9 ]{0,60}-{0,5}\Z")
"""The first line of a private key's block has spaces in it."""

_END_OF_BLOCK = re.compile(r"-----END [A-Z0-9 ]{0,60}-----")
_LONGEST_END = 80


class RedactedStream:
    """The text of one stream, piece by piece: `feed` each piece, send the returned text; at the end, `close`."""

    __slots__ = ("_before", "_held", "_redactor", "_seen")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._before = ""
        self._held = ""
        self._seen = 0

    def feed(self, piece: str) -> str:
        """Add a piece and return the text that can be released, possibly none."""
        self._held += piece
        text = self._held
        cut = _find_last_word(text)
        if len(text) - cut >= WORD:
            cut = len(text) - max(WORD // 2, 2 * self._redactor.longest)
        if cut <= 0 or not self._is_due(text):
            return ""
        if block := _OPEN_BLOCK.search(text, max(0, len(text) - 100)):
            cut = min(cut, block.start())
        out = self._release(min(cut, self._redactor.may_begin(text)))
        self._seen = len(self._held)
        return out

    def _is_due(self, text: str) -> bool:
        has_grown = len(text) - self._seen >= len(text) // STEPS
        return (
            has_grown or len(text) <= SOON or _END_OF_BLOCK.search(text, max(0, self._seen - _LONGEST_END)) is not None
        )

    def close(self) -> str:
        """End the stream and return the remaining text."""
        return self._release(len(self._held), over=True)

    def _release(self, cut: int, *, over: bool = False) -> str:
        if not cut:
            return ""
        lead = len(self._before)
        spans = [
            Span(max(start - lead, 0), end - lead, name)
            for start, end, name in self._redactor.spans(self._before + self._held)
            if end > lead
        ]
        if not over:
            for span in spans:
                if span.start < cut <= span.end:  # it may continue
                    cut = span.start
        out = replace_spans(self._held[:cut], [span for span in spans if span.end <= cut])
        before = (self._before + self._held[:cut])[-CONTEXT:]
        self._before = before if self._redactor.needs_context(before) else before[-NEAR:]
        self._held = self._held[cut:]
        return out


def _find_last_word(text: str) -> int:
    """Return where the last word begins, at most `WORD` characters before the end."""
    tail = text[-WORD:]
    return len(text) - (0 if tail[-1:].isspace() else len(tail.rsplit(maxsplit=1)[-1])) if tail else 0
