"""The cost of redacting a stream grows linearly with its length, for pieces of any size."""

from __future__ import annotations

import json

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
    text = TEXTS[what][: 20_000 if size > 1 else 10_000]
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


PROSE = "It says: see https://example.org/a?b=1 and `sk-` in [1, 2]; nothing of that is secret. " * 4
BLOCK = "-----BEGIN PRIVATE KEY-----\n" + "MIIEabcd1234\n" * 400 + "-----END PRIVATE KEY-----\n"
PLAIN = {"prose": PROSE, "a long word": "x" * 4_000 + " " + PROSE, "a long word at the end": PROSE + "x" * 4_000}


@pytest.mark.rule("V-38")
@pytest.mark.parametrize("size", [1, 4, 50])
@pytest.mark.parametrize("what", PLAIN)
def test_a_stream_is_read_one_word_late(what: str, size: int) -> None:
    text, stream, length = PLAIN[what], RedactedStream(Redactor()), 0
    for end in range(size, len(text), size):
        length += len(stream.feed(text[end - size : end]))
        word = "" if text[end - 1].isspace() else text[:end].rsplit(maxsplit=1)[-1]
        assert length == end - len(word), f"late: {text[length:end]!r}"


@pytest.mark.rule("V-38")
@pytest.mark.parametrize("size", [1, 4, 7])
def test_a_stream_continues_when_the_block_of_a_key_ends(size: int) -> None:
    text, stream, out = f"{BLOCK}and then words.", RedactedStream(Redactor()), ""
    for end in range(size, len(text) + size, size):
        out += stream.feed(text[end - size : end])
    assert out == "[redacted:private-key]\nand then "


@pytest.mark.rule("X-08")
def test_a_word_of_prose_is_searched_with_few_characters_before_it() -> None:
    text = "an ordinary sentence, and another one about a key. " * 100
    assert looked_through(text, 5) < 40 * len(text)  # 200 characters for a piece


@pytest.mark.rule("X-08")
@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Cookie: session=abcdef0123456789" + "; name=value-of-a-cookie" * 15, "value-of-a-cookie"),
        ("machine example.com login " + "a" * 200 + " password secret-of-a-file", "secret-of-a-file"),
        (json.dumps(json.dumps({"api_key": "abcDEF0123456789xyz"})), "abcDEF0123456789xyz"),
        ("".join(f"\\u{ord(sign):04x}" for sign in "api_key = ") + "'abcDEF0123456789xyz'", "abcDEF0123456789xyz"),
    ],
)
@pytest.mark.parametrize("size", [1, 7])
def test_a_secret_far_behind_its_name_is_redacted_in_a_stream(text: str, secret: str, size: int) -> None:
    stream, text = RedactedStream(Redactor()), f"see {text} there"
    out = "".join(stream.feed(text[at : at + size]) for at in range(0, len(text), size)) + stream.close()
    assert "[redacted:" in out
    assert secret not in out
