"""The document of `cantrip demo rlm`, made of texts on this machine, and a plain count of its figures.

The entities' answer is compared with the count, which shares no code and no method with their programs.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path

__all__ = ["LARGE", "PLACES", "Figures", "count", "find_sentence", "own_document"]

LARGE = 4_000_000
"""Characters of the document that is made here: about a million tokens."""

PLACES = 100
"""Places of the sentence that are reported, the first ones."""

_FROM, _TRIED = 0.618, 2_000
"""The positions in a document to look for a sentence, and the number of lines to try."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a document. `places` are lines and columns, from 1, where the sentence begins."""

    characters: int
    lines: int
    words: int
    places: list[list[int]]


def own_document(large: int = LARGE) -> str:
    """Return the licences of installed packages, then sources of the standard library, up to `large` characters.

    The order is by name, so that every call returns the same.
    """
    parts: list[str] = []
    size = 0
    for name, path in _read_texts():
        try:
            text = f"===== {name}\n{path.read_text(encoding='utf-8')}\n"
        except (OSError, UnicodeDecodeError):  # listed by a package but not there, or in another encoding
            continue
        parts.append(text[: large - size])
        size += len(parts[-1])
        if size >= large:
            break
    return "".join(parts)


def _read_texts() -> Iterator[tuple[str, Path]]:
    for installed in sorted(metadata.distributions(), key=lambda distribution: distribution.name.lower()):
        for file in sorted(installed.files or (), key=str):
            if file.name.upper().startswith(("LICEN", "COPYING", "NOTICE")):
                yield f"{installed.name}: {file.name}", Path(str(file.locate()))
    for source in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield source.name, source


def find_sentence(document: str) -> str:
    """Return a line of some words that the document has exactly once, or an empty text."""
    rest = document[int(len(document) * _FROM) :].split("\n", _TRIED)
    for line in rest[1:-1]:
        sentence = line.strip()
        if (
            40 <= len(sentence) <= 100
            and sentence.isascii()
            and len(sentence.split()) >= 6
            and document.count(sentence) == 1
        ):
            return sentence
    return ""


def count(document: str, sentence: str) -> Figures:
    """Return the figures of `document`, counted in one pass."""
    raw = document.encode("utf-8", "replace")
    places = list(islice(_find_places(document, sentence), PLACES))
    return Figures(len(document), raw.count(b"\n"), len(raw.split()), places)


def _find_places(document: str, sentence: str) -> Iterator[list[int]]:
    at = document.find(sentence) if sentence else -1
    while at >= 0:
        yield [document.count("\n", 0, at) + 1, at - document.rfind("\n", 0, at)]
        at = document.find(sentence, at + 1)
