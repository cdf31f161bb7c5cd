"""What the demo of long documents reads: a document made of what is on this machine, and a plain count of its figures.

The count is the yardstick that the entities' answer is held against. It goes over the document once, as bytes, and
shares no code and no method with their programs.
"""

from __future__ import annotations

import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path

__all__ = ["LARGE", "PLACES", "TERM", "TOP", "Figures", "a_sentence", "counted", "own_document"]

LARGE = 4_000_000
"""Characters of the document that is made here: about a million tokens."""

TERM = 6
"""Letters that a word has at least to count as a term."""

TOP = 10
"""Most frequent terms that are named."""

PLACES = 100
"""Places of the sentence that are told, the first ones."""

_FROM, _TRIED = 0.618, 2_000
"""Where in a document a sentence is looked for, and how many lines are tried."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What there is to know of a document. `places` are lines and columns, from 1, where the sentence begins."""

    characters: int
    lines: int
    words: int
    different: int
    terms: list[list[str | int]]
    places: list[list[int]]


def own_document(large: int = LARGE) -> str:
    """The licences of what is installed here, then the sources of the standard library, up to `large` characters.

    The same on every call: by name, in order.
    """
    parts: list[str] = []
    size = 0
    for name, path in _texts():
        try:
            text = f"===== {name}\n{path.read_text(encoding='utf-8')}\n"
        except (OSError, UnicodeDecodeError):  # listed by a package but not there, or in another encoding
            continue
        parts.append(text[: large - size])
        size += len(parts[-1])
        if size >= large:
            break
    return "".join(parts)


def _texts() -> Iterator[tuple[str, Path]]:
    for installed in sorted(metadata.distributions(), key=lambda one: one.name.lower()):
        for file in sorted(installed.files or (), key=str):
            if file.name.upper().startswith(("LICEN", "COPYING", "NOTICE")):
                yield f"{installed.name}: {file.name}", Path(str(file.locate()))
    for source in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield source.name, source


def a_sentence(document: str) -> str:
    """A line of some words that the document has exactly once; empty where it has none such."""
    rest = document[int(len(document) * _FROM) :].split("\n", _TRIED)
    for line in rest[1:-1]:
        said = line.strip()
        if 40 <= len(said) <= 100 and said.isascii() and len(said.split()) >= 6 and document.count(said) == 1:
            return said
    return ""


def counted(document: str, sentence: str) -> Figures:
    """The figures of `document`, counted in one piece."""
    raw = document.encode("utf-8", "replace")
    letters = bytes(sign if chr(sign).isascii() and chr(sign).isalpha() else 32 for sign in range(256))
    terms = Counter(word for word in raw.translate(letters).lower().split() if len(word) >= TERM)
    top = sorted(((count, word.decode()) for word, count in terms.items()), key=lambda one: (-one[0], one[1]))[:TOP]
    return Figures(
        len(document),
        raw.count(b"\n"),
        len(raw.split()),
        len(terms),
        [[word, count] for count, word in top],
        list(islice(_places(document, sentence), PLACES)),
    )


def _places(document: str, sentence: str) -> Iterator[list[int]]:
    at = document.find(sentence) if sentence else -1
    while at >= 0:
        yield [document.count("\n", 0, at) + 1, at - document.rfind("\n", 0, at)]
        at = document.find(sentence, at + 1)
