"""The parameters and values that a model refused, remembered for an hour.

A refusal has one of four causes, and the crystal learns only from the first three:

- a level of thinking: the nearest level that the refusal names is sent instead; if it names none, the next level, and
  if that is refused too, none;
- a value, together with the other parameters of that query: it is left out of queries with the same parameters;
- a parameter that the server or the model lacks: it is left out, whatever its value;
- a mistake of the caller: a number out of range, an invalid tool. That is an error, and the crystal learns nothing from
  it.

Each response reports the changes that were made for it: `metadata["left_out"]` and `metadata["adjusted"]`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

LASTS: Final = 3600.0
"""Seconds after which a refused parameter is tried again: models and gateways change."""

LEVELS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Levels of thinking, the lowest first. `Call(effort=…)` accepts others too, which are sent unchanged."""

_RANGE: Final = re.compile(
    r"must be (?:between|greater|less|at (?:least|most)|>|<|a |an |of type)|out of range|\brange: "
    r"|should be (?:less|greater)"
    r"|(?:greater|less) than or equal|(?:above|below|exceeds) the (?:maximum|minimum)|(?:minimum|maximum) (?:value|of)"
    r"|invalid type|expected (?:a|an) |is not a valid (?:number|integer)",
    re.IGNORECASE,
)
_RANGED: Final = frozenset(
    {"temperature", "top_p", "stop", "max_tokens", "max_completion_tokens"}
    | {"frequency_penalty", "presence_penalty", "logprobs", "seed"}
)
_TOOLS: Final = re.compile(
    r"\btools?(?:\.|\[|\b['\"]?:)|input_schema|invalid schema for function|function_declarations|\bfunctions?\[",
    re.IGNORECASE,
)
_ABSENT: Final = re.compile(
    r"unsupported parameter|\bunknown\b|unrecognized|unexpected (?:keyword|field)"
    r"|extra (?:inputs|fields)|not permitted",
    re.IGNORECASE,
)


class Adjusted(NamedTuple):
    """A setting that was sent with a different value."""

    asked: str
    sent: str


class Lessons:
    """The recent refusals of one model. `clock` returns seconds.

    A refusal is of a parameter, or of a parameter, its value and the other parameters of the query.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._until: dict[tuple[Hashable, ...], float] = {}
        """When each refusal is forgotten."""
        self._instead: dict[str, str] = {}
        """The level of thinking to send for each refused one."""

    def has(self, *refused: Hashable) -> bool:
        """Return whether this was refused."""
        return self._until.get(refused, -1.0) > self.clock()

    def note(self, *refused: Hashable) -> None:
        """Record that this was refused."""
        now = self.clock()
        self._until = {key: until for key, until in self._until.items() if until > now}
        self._until[refused] = now + LASTS

    def find_level(self, wanted: str) -> str:
        """Return the level of thinking to send for this one."""
        sent, seen = wanted, {wanted}
        while self.has("level", sent) and (instead := self._instead[sent]) not in seen:
            sent = instead
            seen.add(sent)
        return sent

    def note_level(self, refused: str, refusal: str) -> str | None:
        """Record that the level was refused with this text; return the level to send instead, None if none is left."""
        gone = {level for level in self._instead if self.has("level", level)} | {refused}
        instead = find_nearest_level(refused, refusal, gone)
        if instead is not None:
            self.note("level", refused)
            self._instead[refused] = instead
        return instead


def find_nearest_level(refused: str, refusal: str, gone: set[str]) -> str | None:
    """Return the level nearest to a refused one, the lower of two: of the levels that the refusal names, else of all.

    >>> find_nearest_level("xhigh", "Supported levels: high, low, max, medium", {"xhigh"})
    'high'
    >>> find_nearest_level("none", "the budget is invalid", {"none"}), find_nearest_level("banana", "what?", set())
    ('minimal', None)
    """
    if refused not in LEVELS:
        return None
    words = set(re.findall(r"[a-z]+", refusal.lower()))
    named = [level for level in LEVELS if level in words and level not in gone]
    if (
        len(named) < 2 and "support" not in refusal.lower()
    ):  # a word such as "none" or "high" may be part of the sentence
        named = []
    left = named or ([level for level in LEVELS if level not in gone] if len(gone) <= 1 else [])  # one guess
    at = LEVELS.index(refused)
    return min(left, key=lambda level: (abs(LEVELS.index(level) - at), LEVELS.index(level)), default=None)


def is_mistake(parameter: str, refusal: str) -> bool:
    """Return whether a refusal is about a mistake of the caller, which must not affect other queries."""
    if parameter in ("schema", "thinking", "effort") and _TOOLS.search(refusal):
        return True
    return parameter in _RANGED and bool(_RANGE.search(refusal))


def is_absent(refusal: str) -> bool:
    """Return whether a refusal says that the parameter does not exist."""
    return _ABSENT.search(refusal) is not None
