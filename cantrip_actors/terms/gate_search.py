"""Search in the definitions of gates: BM25 over the words of names, descriptions and parameters.

A name counts more than a description. A word that no definition contains is replaced by the words nearest to it, so a
misspelt name still finds its gate.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from cantrip_actors.terms.errors import find_nearest
from cantrip_actors.terms.messages import ToolDefinition

NAME, TEXT = 4.0, 1.0
"""How much a word counts in the name of a gate, and elsewhere."""

NEAR: Final = 0.5
"""How much a word counts that is near to a word of the query, and not equal."""

_SATURATION, _LENGTH = 1.2, 0.6
"""The parameters k and b of BM25."""

_CLOSE: Final = 0.74
"""The least similarity of a near word, as difflib measures it."""

_WORDS: Final = 20
"""Words of a query that count."""

_TRIED: Final = 40
"""Near words whose similarity is measured."""

_DEEPEST: Final = 6
"""Levels of a schema whose words are searched."""

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD: Final = re.compile(r"[^\W_]+")


class GateIndex:
    """An index of definitions. Making it takes about 50 µs for each."""

    def __init__(self, definitions: Sequence[ToolDefinition]) -> None:
        self._definitions = definitions
        self._names: dict[str, int] = {}
        self._weights: dict[str, dict[int, float]] = defaultdict(dict)
        """For each word: the definitions that have it, each with the weight of the word there."""
        self._lengths: list[float] = []
        for at, definition in enumerate(definitions):
            self._names[definition.name.lower()] = at
            weights = _weigh_words(definition)
            for word, weight in weights.items():
                self._weights[word][at] = weight
            self._lengths.append(sum(weights.values()))
        self._usual_length = sum(self._lengths) / len(self._lengths) if self._lengths else 1.0
        self._pairs: dict[str, set[str]] = defaultdict(set)
        """For each pair of letters: the words that have it."""
        for word in self._weights:
            for pair in _list_pairs(word):
                self._pairs[pair].add(word)

    def search(self, query: str) -> list[ToolDefinition]:
        """Return the definitions that have a word of the query, best first; those that it names come before others."""
        named = [self._names[part] for part in re.split(r"[\s,;]+", query.lower()) if part in self._names]
        scores: dict[int, float] = defaultdict(float)
        for word in dict.fromkeys(_split_words(query)[:_WORDS]):
            nearest = [(word, 1.0)] if word in self._weights else self._find_near_words(word)
            for near, weight in nearest:
                self._add_scores(scores, near, weight)
        ranked = sorted(scores, key=lambda at: (-scores[at], at))
        return [self._definitions[at] for at in dict.fromkeys((*named, *ranked))]

    def _add_scores(self, scores: dict[int, float], word: str, weight: float) -> None:
        entries = self._weights[word]
        rarity = math.log(1 + (len(self._definitions) - len(entries) + 0.5) / (len(entries) + 0.5))
        for at, count in entries.items():
            length = 1 - _LENGTH + _LENGTH * self._lengths[at] / self._usual_length
            scores[at] += weight * rarity * count * (_SATURATION + 1) / (count + _SATURATION * length)

    def _find_near_words(self, word: str) -> list[tuple[str, float]]:
        """Return the words of the index that begin as a word does, or are spelt nearly as it is, with their weights."""
        shared = Counter(near for pair in _list_pairs(word) for near in self._pairs.get(pair, ()))
        candidates = [near for near, _ in shared.most_common(_TRIED)]
        close = [near for near in candidates if min(len(near), len(word)) > 3 and _begins_alike(near, word)]
        close += [near for near in candidates if difflib.SequenceMatcher(None, word, near).ratio() >= _CLOSE]
        return [(near, NEAR) for near in dict.fromkeys(close)]

    def find_nearest(self, query: str) -> list[ToolDefinition]:
        """Return the definitions whose names are nearest to a query, nearest first."""
        return [self._definitions[self._names[name]] for name in find_nearest(query.lower(), self._names)]


def _begins_alike(first: str, other: str) -> bool:
    return first.startswith(other) or other.startswith(first)


def _weigh_words(definition: ToolDefinition) -> Mapping[str, float]:
    weights: dict[str, float] = defaultdict(float)
    for word in _split_words(definition.name):
        weights[word] += NAME
    for text in (definition.description, *_list_texts(definition.parameters, 0)):
        for word in _split_words(text):
            weights[word] += TEXT
    return weights


def _list_texts(schema: Any, depth: int) -> Iterator[str]:
    """Yield the names and the descriptions of parameters."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return
    for key in ("title", "description"):
        if isinstance(schema.get(key), str):
            yield schema[key]
    for key in ("properties", "$defs", "definitions"):
        parts = schema.get(key)
        if isinstance(parts, Mapping):
            for name, part in parts.items():
                yield str(name)
                yield from _list_texts(part, depth + 1)
    yield from _list_texts(schema.get("items"), depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        options = schema.get(key)
        for option in options if isinstance(options, (list, tuple)) else ():
            yield from _list_texts(option, depth + 1)


def _split_words(text: str) -> list[str]:
    """Return the words of a text or a name in lower case, without the s of a plural."""
    return [_strip_plural(word) for word in _WORD.findall(_CAMEL.sub(" ", text).lower())]


def _strip_plural(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _list_pairs(word: str) -> Iterable[str]:
    return {word[at : at + 2] for at in range(len(word) - 1)}
