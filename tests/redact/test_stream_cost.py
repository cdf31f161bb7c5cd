"""The cost of redacting a stream grows linearly with its length, for pieces of any size."""

from __future__ import annotations

import pytest

from cantrip_actors.redact.redactor import Redactor, Span
from cantrip_actors.redact.stream import WORD, RedactedStream

TEXTS = {
    "a private key that never ends": "-----BEGIN PRIVATE KEY-----\n" + "abcdEFGH+/12abcdEFGH+/12\n" * 3000,
    "a prefix again and again": "xoxb-" * 15_000,
    "a word of many keys": "sk-ant-api03-AbCdEfGh1234567890" * 2500,
    "tokens of three parts": "eyJhbGciOiJIUzI1NiJ9.eyJ" * 3000,
    "headers": "Authorization: Bearer " * 3500,
    "urls": "postgres://me:" * 5500,
    "words": "an ordinary sentence, and another one. " * 2000,
    "one word": "x" * 80_000,
    "blanks": " " * 80_000,
}


class Counting(Redactor):
    """Counts the characters that are looked through."""

    looked = 0

    def spans(self, text: str) -> list[Span]:
        self.looked += len(text)
        return super().spans(text)


def looked_through(text: str, size: int) -> int:
    redactor = Counting({"token": "s3cret-value"})
    stream = RedactedStream(redactor)
    for at in range(0, len(text), size):
        stream.feed(text[at : at + size])
    stream.close()
    return redactor.looked


@pytest.mark.rule("X-08")
@pytest.mark.parametrize("size", [1, 3, 16, 1000])
@pytest.mark.parametrize("what", TEXTS)
def test_the_work_grows_linearly_with_the_text(what: str, size: int) -> None:
    text = TEXTS[what][:60_000]
    half, whole = looked_through(text[: len(text) // 2], size), looked_through(text, size)
    assert whole < 2.3 * half + 16 * WORD  # until a word is longer than that, all of it is held
    # a piece of three characters is searched with CONTEXT characters before it, and not with all held text
    assert whole < (700 / size + 40) * len(text)


@pytest.mark.rule("X-08")
@pytest.mark.parametrize("what", TEXTS)
@pytest.mark.parametrize("size", [1, 7, 4096])
def test_redacted_pieces_equal_the_redacted_whole(what: str, size: int) -> None:
    text = f"first {TEXTS[what][:9000]} and s3cret-value at the end"
    stream = RedactedStream(Redactor({"token": "s3cret-value"}))
    out = "".join(stream.feed(text[at : at + size]) for at in range(0, len(text), size)) + stream.close()
    assert "s3cret-value" not in out
    assert len(out) <= len(text) + 20_000
