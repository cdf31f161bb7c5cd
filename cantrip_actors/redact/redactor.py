"""Redaction: replace the secrets in texts and values.

A `Redactor` finds two kinds of secrets: registered ones (the keys that were given to crystals and gates), in any
notation, and those that look like a common key (`patterns.py`). Each becomes `[redacted:<name>]`.

Three rules hold. All matches are found before any is replaced, so that no part of two overlapping secrets remains. A
clean value is returned as the same object, and costs little: one search in C for each known secret, and one for each
pattern's literals. And no `repr` and no error of this package shows a secret.

It is pure: code that emits something (a log, an event, an export, an error) calls it there. It does not stop a hostile
program, which could encrypt what it sends. It keeps secrets that a person or a program shows by accident from being
stored and passed on.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from cantrip_actors.redact.escapes import has_escapes, join_lines, readings
from cantrip_actors.redact.named import looks_secret
from cantrip_actors.redact.patterns import COMMON, SecretPattern
from cantrip_actors.redact.services import SHORTEST_KEY

T = TypeVar("T")

Secrets = Iterable[str | tuple[str, str]] | Mapping[str, str]
"""Texts, or names with texts."""

SHORTEST = 4
"""The least number of characters of a secret: shorter texts occur in ordinary words."""

ENCODED = 8
"""The least number of characters of an encoded form of a secret, likewise."""

LINE = 16
"""The least number of characters of a line of a multi-line secret (a private key) that is a secret by itself."""

_UNQUOTED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")
"""Characters that are not escaped in a URL."""

_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_=")


class Span(NamedTuple):
    """Characters `start` to `end` of a text are, or hold, the secret called `name`."""

    start: int
    end: int
    name: str


_MAY_BE_KEY: Final = re.compile(r"[0-9]|sk-|hf_|api_org_|[A-Za-z+/]{24}")
"""Nearly all keys have a digit. Of words without one, only those are searched that begin like a key or may be base64.
"""

REMEMBERED: Final = 4096
"""How many short texts without a secret a redactor remembers."""
SHORT: Final = 100
"""Characters."""

CIRCLE: Final = "…"
"""Stands for a value within itself."""

_DIGIT: Final = re.compile("[0-9]")
_RUN: Final = re.compile(r"[A-Za-z0-9]+")

_ENCODED: Final = re.compile(
    r"(?<![A-Za-z0-9+/_-])(?:[A-Za-f][A-Za-z0-9+/_-]{3}){5,}[A-Za-z0-9+/_-]{0,3}={0,2}(?![A-Za-z0-9+/_-])"
)
"""A possible key in base64. ASCII in base64 has one of the first 32 characters at the start of each group of four."""


class _Needle(NamedTuple):
    text: str
    name: str
    bits: bool
    """Whether the neighbouring characters hold some of the secret's bits, as in base64 that does not begin with it."""


class _Words:
    """Finds the patterns that may match a text by its runs of letters and digits, in one pass for all patterns."""

    __slots__ = ("_heads", "_stems", "_within")

    def __init__(self, patterns: Iterable[SecretPattern]) -> None:
        self._stems: dict[str, list[tuple[str, SecretPattern]]] = {}
        """By the letters and digits before the first other character of an anchor: `sk` of `sk-ant-`."""
        self._heads: dict[str, list[tuple[str, SecretPattern]]] = {}
        """Anchors that are letters and digits only, by the first two of them."""
        self._within: list[tuple[str, SecretPattern]] = []
        """Anchors that begin with another character."""
        for pattern in patterns:
            for anchor in pattern.anchors:
                run = _RUN.match(anchor)
                if run is None:
                    self._within.append((anchor, pattern))
                elif run.group() == anchor:
                    self._heads.setdefault(anchor[:2], []).append((anchor, pattern))
                else:
                    self._stems.setdefault(run.group(), []).append((anchor, pattern))

    def of(self, text: str) -> Iterator[SecretPattern]:
        """Yield the patterns that have an anchor in the text."""
        stems, heads = self._stems, self._heads
        may_be = [*self._within]
        for run in dict.fromkeys(run for run in _RUN.findall(text) if run in stems or run[:2] in heads):
            may_be += stems.get(run, ())
            may_be += heads.get(run[:2], ())
        for anchor, pattern in may_be:
            if anchor in text:
                yield pattern


class Redactor:
    """Replaces secrets. `secrets` are texts, or names with texts; `patterns` are the kinds of secrets to find.

    An empty secret is ignored, so that an unset environment variable may be given. Raises ValueError for a secret of
    fewer than four characters, which would make ordinary text unreadable.
    """

    def __init__(self, secrets: Secrets = (), patterns: Iterable[SecretPattern] = COMMON) -> None:
        self._clean: set[str] = set()
        """Short texts without a secret: a record's ids, names and times are redacted again for each reader."""
        self._secrets = tuple(dict.fromkeys(_names_and_texts(secrets)))
        self._patterns = tuple(patterns)
        self._anywhere = tuple(pattern for pattern in self._patterns if pattern.within == "text")
        self._places, self._names = (_by_anchor(self._patterns, within) for within in ("places", "names"))
        self._words = _Words(pattern for pattern in self._patterns if pattern.within == "words")
        by_text = {needle.text: needle for name, text in reversed(self._secrets) for needle in _needles(name, text)}
        self._needles = tuple(by_text.values())
        self._shortest = min((len(needle.text) for needle in self._needles), default=0)
        self._spaced = tuple(needle.text for needle in self._needles if len(needle.text.split()) > 1)
        self._wrapped = tuple(
            ("".join(needle.text.split()), needle) for needle in self._needles if len(needle.text) >= ENCODED
        )

    def knowing(self, secrets: Secrets) -> Redactor:
        """Return a redactor that also knows these secrets."""
        return Redactor([*self._secrets, *_names_and_texts(secrets)], self._patterns)

    @property
    def longest(self) -> int:
        """The number of characters of the longest form of a known secret."""
        return max((len(needle.text) for needle in self._needles), default=0)

    # ------------------------------------------------------------------------------------------------------------ texts

    def text(self, text: str) -> str:
        """Return the text with `[redacted:<name>]` for every secret in it; the same object if there is no secret."""
        if text in self._clean:
            return text
        if spans := self.spans(text):
            return replace_spans(text, spans)
        if len(text) <= SHORT:
            if len(self._clean) == REMEMBERED:
                self._clean.clear()
            self._clean.add(text)
        return text

    def spans(self, text: str) -> list[Span]:
        """Return the spans of secrets, in order; overlapping ones are merged under the name of the first."""
        if len(text) < SHORTEST:
            return []
        spans: list[Span] = []
        for reading in readings(text):
            for start, end, name in self._in(reading.text):
                spans.append(Span(*reading.span(start, end), name))
        if "\n" in text and self._wrapped:
            spans += self._over_lines(text)
        return _merge(spans) if spans else spans

    def may_begin(self, text: str) -> int:
        """Return where, near the end, a known secret with white space may begin; the text's length if nowhere."""
        earliest = len(text)
        for secret in self._spaced:
            start = max(0, len(text) - len(secret) + 1)
            at = text.find(secret[0], start)
            while 0 <= at < earliest and not secret.startswith(text[at:]):
                at = text.find(secret[0], at + 1)
            if at >= 0:
                earliest = min(earliest, at)
        return earliest

    def needs_context(self, text: str) -> bool:
        """Return whether a word far behind a text may be a secret because of it: after a header, or with escapes."""
        if has_escapes(text):
            return True
        lower = _lower(text)
        return any(anchor in lower for anchor in self._places)

    def _in(self, text: str) -> Iterator[Span]:
        if len(text) >= self._shortest:
            for needle in self._needles:
                if needle.text in text:
                    yield from _every(needle, text)
        lower = _lower(text)
        for pattern in self._anywhere:
            if any(anchor in lower for anchor in pattern.anchors):
                yield from _matches(pattern, text)
        yield from _in_places(self._places, text, lower)
        if _DIGIT.search(text):  # every value that looks like a secret has one
            yield from _in_places(self._names, text, lower)
        yield from self._in_words(text)

    def _in_words(self, text: str) -> Iterator[Span]:
        """Yield keys that are recognised by their shape. Prose has no long words, so this costs little."""
        split = text.replace('"', " ").split()  # no key has a quote in it, and JSON has no spaces
        words = " ".join([word for word in split if len(word) >= SHORTEST_KEY and _MAY_BE_KEY.search(word)])
        for pattern in self._words.of(words) if words else ():
            if pattern.expression.search(words):
                yield from _matches(pattern, text)
        if any(self._name_of(match.group()) for match in _ENCODED.finditer(words)):
            for match in _ENCODED.finditer(text):
                name = self._name_of(match.group())
                if name is not None:
                    yield Span(*match.span(), name)

    def _name_of(self, encoded: str) -> str | None:
        """Return the name of the key that a text in base64 holds; None if there is none."""
        body = encoded.rstrip("=").replace("-", "+").replace("_", "/")
        raw = base64.b64decode(body[: len(body) - (len(body) % 4 == 1)] + "==")
        if not raw.isascii():
            return None
        plain = raw.decode()
        return next((pattern.name for pattern in self._words.of(plain) if pattern.expression.search(plain)), None)

    def _over_lines(self, text: str) -> Iterator[Span]:
        """Yield known secrets that are wrapped over lines. Patterns are not tried, since they would match too much."""
        squeezed = "".join(text.split())
        suspects = [needle for short, needle in self._wrapped if short in squeezed]
        if suspects:
            for reading in join_lines(text):
                for needle in suspects:
                    for start, end, name in _every(needle, reading.text):
                        yield Span(*reading.span(start, end), name)

    # ----------------------------------------------------------------------------------------------------------- values

    def value(self, value: T) -> T:
        """Return the value with every text in it redacted, at any depth, keys included; the same object if it is clean.

        For JSON values, dataclasses and named tuples: records, events, messages. Other objects are returned unchanged.
        A value that contains itself is replaced there by `CIRCLE` if a secret is in it.
        """
        if isinstance(value, str):
            return self.text(value)  # type: ignore[return-value]  # a text of a subclass is no JSON value
        result: list[Any] = [value]
        whole: list[_Whole] = []
        todo: list[Any] = [id(result), result]
        """The parts of values, and below them the id of the value, which is reached when all in it was looked at."""
        around: set[int] = set()
        """The ids of the values that contain the present one."""
        circles: list[tuple[list[Any], int]] = []
        while todo:  # no recursion: a result may nest as deep as its reader allowed
            parts = todo.pop()
            if type(parts) is int:
                around.remove(parts)
                continue
            around.add(todo[-1])
            for n, part in enumerate(parts):
                if isinstance(part, str):
                    parts[n] = self.text(part)
                elif isinstance(part, (int, float, bytes, bytearray)):
                    parts[n] = self._number(part)
                elif inner := _parts(part):
                    own = id(part)
                    if own in around:
                        circles.append((parts, n))
                    else:
                        whole.append((parts, n, inner, inner.copy()))
                        todo += own, inner
        _remake(whole, circles)
        return result[0]  # type: ignore[no-any-return]  # of the kind it was made from

    def _number(self, value: Any) -> Any:
        """Return a number whose digits are a secret, or bytes that contain one, as a redacted text."""
        if isinstance(value, (bytes, bytearray)):
            text = value.decode(errors="backslashreplace")
            return self.text(text) if self.spans(text) else value
        if isinstance(value, bool) or -1000 < value < 1000:
            return value
        try:
            digits = repr(value)
        except ValueError:  # an integer with more digits than Python writes
            return value
        has_secret = any(text in digits for _, text in self._secrets)
        return self.text(digits) if has_secret else value

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._secrets)} secrets and {len(self._patterns)} patterns>"


def _by_anchor(patterns: Iterable[SecretPattern], within: str) -> dict[str, list[SecretPattern]]:
    anchored: dict[str, list[SecretPattern]] = {}
    for pattern in patterns:
        for anchor in pattern.anchors if pattern.within == within else ():
            anchored.setdefault(anchor, []).append(pattern)
    return anchored


def _matches(pattern: SecretPattern, text: str) -> Iterator[Span]:
    for match in pattern.expression.finditer(text):
        yield Span(*match.span(match.lastindex or 0), pattern.name)


def _in_places(by_anchor: Mapping[str, Sequence[SecretPattern]], text: str, lower: str) -> Iterator[Span]:
    for anchor, patterns in by_anchor.items():
        if anchor in lower:
            for pattern in patterns:
                yield from _at_places(anchor, pattern, text, lower)


def _at_places(anchor: str, pattern: SecretPattern, text: str, lower: str) -> Iterator[Span]:
    at = lower.find(anchor)
    while at >= 0:
        match = pattern.expression.match(text, at)
        at += len(anchor)
        if match is not None:
            start, end = match.span(match.lastindex or 0)
            at = max(at, match.end())
            quoted = text[start - 1] in "\"'" and text[end : end + 1] in {'"', "'"}
            if pattern.within == "places" or looks_secret(text[start:end], quoted=quoted):
                yield Span(start, end, pattern.name)
        at = lower.find(anchor, at)


def _lower(text: str) -> str:
    """Return the text in lower case with unchanged positions: some characters have two in lower case."""
    lower = text.lower()
    return (
        lower
        if len(lower) == len(text)
        else "".join(letter if len(letter) == 1 else "x" for letter in map(str.lower, text))
    )


def replace_spans(text: str, spans: Iterable[Span]) -> str:
    """Return the text with a marker for each of `spans`, which are in order and do not overlap."""
    parts: list[str] = []
    done = 0
    for start, end, name in spans:
        parts += (text[done:start], f"[redacted:{name}]")
        done = end
    parts.append(text[done:])
    return "".join(parts)


def _every(needle: _Needle, text: str) -> Iterator[Span]:
    """Yield every occurrence of a needle, also overlapping ones."""
    at = text.find(needle.text)
    while at >= 0:
        start, end = at, at + len(needle.text)
        if needle.bits:
            start -= start > 0 and text[start - 1] in _BASE64
            end += end < len(text) and text[end] in _BASE64
        yield Span(start, end, needle.name)
        at = text.find(needle.text, at + 1)


def _merge(spans: list[Span]) -> list[Span]:
    spans.sort()
    merged = [spans[0]]
    for span in spans[1:]:
        last = merged[-1]
        if span.start < last.end:
            merged[-1] = Span(last.start, max(last.end, span.end), last.name)
        else:
            merged.append(span)
    return merged


# ------------------------------------------------------------------------------------------ how a secret may be written


def _names_and_texts(secrets: Secrets) -> Iterator[tuple[str, str]]:
    expected = "secrets: expected a list of texts, or a mapping of names to texts"
    if isinstance(secrets, str) or not isinstance(secrets, Iterable):
        raise ValueError(f"{expected}, got {type(secrets).__name__}")  # noqa: TRY004  # as for every other invalid option
    for pair in secrets.items() if isinstance(secrets, Mapping) else secrets:
        match ("secret", pair) if isinstance(pair, str) else pair:
            case (str() as name, str() as text):
                text = text.strip()
            case _:
                raise ValueError(f"{expected}, got one with another value in it")
        if not text:
            continue
        if len(text) < SHORTEST:
            raise ValueError(f"secret {name!r} has fewer than {SHORTEST} characters: it would be found everywhere")
        yield _name(name), text


def _name(name: str) -> str:
    """Return a name for a marker: word characters, dots and dashes."""
    return "".join(sign if sign.isalnum() or sign in "._-" else "-" for sign in name)[:64] or "secret"


def _needles(name: str, secret: str) -> Iterator[_Needle]:
    yield _Needle(secret, name, bits=False)
    lines = secret.split()
    if len(lines) > 1:
        for line in lines:
            if len(line) >= LINE:
                yield from _make_encoded_needles(name, line)
                yield _Needle(line, name, bits=False)
        if "\n" not in secret:
            yield _Needle(secret.replace(" ", "+"), name, bits=False)  # as in a form
    yield from _make_encoded_needles(name, secret)


def _make_encoded_needles(name: str, secret: str) -> Iterator[_Needle]:
    raw = secret.encode("utf-8", "surrogatepass")
    # `readings` undo these, too, but not after a character that makes another escape of their beginning
    quoted = "".join(chr(byte) if byte in _UNQUOTED else f"%{byte:02X}" for byte in raw)
    for escaped in {quoted, quoted.replace("%20", "+"), json.dumps(secret)[1:-1]} - {secret}:
        yield _Needle(escaped, name, bits=False)
    for hexed in (raw.hex(), raw.hex().upper()):
        if len(hexed) >= ENCODED:
            yield _Needle(hexed, name, bits=False)
    for before in range(3):  # how many other bytes come before it in its group of three
        standard = base64.b64encode(bytes(before) + raw).decode().rstrip("=")
        whole = len(bytes(before) + raw) % 3 == 0
        first = (0, 2, 3)[before]
        sure = standard[first:] if whole else standard[first:-1]
        for text in {sure, sure.replace("+", "-").replace("/", "_")}:
            if len(text) >= ENCODED:
                yield _Needle(text, name, bits=True)


# ----------------------------------------------------------------------------------------------------- values and parts


_Whole = tuple[list[Any], int, list[Any], list[Any]]
"""A value with parts: the list and the index of its place, its parts after their redaction, and before."""


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _parts(value: Any) -> list[Any]:
    """Return the parts of a value; of a mapping the keys, then the values."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if _is_record(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return [*value, *value.values()] if isinstance(value, Mapping) else []


def _remake(whole: Sequence[_Whole], circles: Iterable[tuple[list[Any], int]]) -> None:
    """Put a copy of each value with a redacted part into its place; inner values are the last ones."""
    if circles and any(not all(map(operator.is_, parts, before)) for _, _, parts, before in whole):
        for parts, n in circles:  # no copy may lead back to an original
            parts[n] = CIRCLE
    for outer, n, parts, before in reversed(whole):
        if not all(map(operator.is_, parts, before)):
            outer[n] = _remade(outer[n], parts)


def _remade(value: Any, parts: list[Any]) -> Any:
    if isinstance(value, Mapping):
        remade: dict[Any, Any] = {}
        for key, redacted, part in zip(value, parts, parts[len(value) :], strict=False):
            name = redacted if isinstance(key, str) else key
            number = 1
            while name in remade:  # two keys that differed in their secrets
                number += 1
                name = f"{redacted}#{number}"
            remade[name] = part
        return remade
    if _is_record(value):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        changed = {f.name: part for f, part in zip(dataclasses.fields(value), parts, strict=True) if f.name in names}
        return dataclasses.replace(value, **changed)
    make = getattr(type(value), "_make", None)
    return make(parts) if make is not None else type(value)(parts)
