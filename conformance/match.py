"""Compare expected values of a case with actual ones: values, matchers, references.

Values must be equal, types included: `true` is not 1, `"1"` is not 1, a list has as many items as expected, and a
mapping the same keys. A case may state only a part of a subject if it has `Facts`, which are named checks. Looser
expectations need a matcher: `not_null`, `greater_than(0)`, `less_than(100)`, `matches(^a.*z$)`, `turns[0].id`, `{}` for
anything. This module does not depend on cantrips; `facts.py` defines the facts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

__all__ = ["PATTERN", "Check", "Facts", "Scope", "check_items", "contains", "fact", "mismatches", "render", "symbol"]

T = TypeVar("T")

_BOUND = re.compile(r"^(greater_than|less_than)\((-?\d+(?:\.\d+)?)\)$")
PATTERN = re.compile(r"^matches\((.*)\)$", re.DOTALL)
_REFERENCE = re.compile(r"^turns\[(\d+)\]\.(\w+)$")


@dataclass(slots=True)
class Scope:
    """The values of names in a case: the turns that `turns[0].id` refers to, and symbols such as `parent`."""

    turns: Sequence[Any] = ()
    symbols: dict[str, Any] = field(default_factory=dict)


Check = Callable[[T, Any, str, Scope], Iterator[str]]
"""Takes a subject, the expected value, its location in the case, and the scope; yields mismatches, a line each."""


@dataclass(frozen=True, slots=True)
class Facts(Generic[T]):
    """A subject and the checks that can be made on it, by the keys that a case uses."""

    subject: T
    checks: Mapping[str, Check[T]]

    def compare(self, expected: Any, where: str, scope: Scope) -> Iterator[str]:
        """Yield the mismatches of the subject, by the keys of `expected`; a key without a check is a mismatch."""
        if expected == "not_null":
            return
        if not isinstance(expected, Mapping):
            yield f"{where}: expected {render(expected)}, which is no mapping of facts"
            return
        for key, value in expected.items():
            inner = f"{where}.{key}" if where else str(key)
            check = self.checks.get(key)
            if check is None:
                yield f"{inner}: the runner knows no such key; known here: {', '.join(sorted(self.checks))}"
            else:
                yield from check(self.subject, value, inner, scope)


def fact(read: Callable[[T], Any]) -> Check[T]:
    """Return a check that a fact of the subject has the expected value."""

    def check(subject: T, expected: Any, where: str, scope: Scope) -> Iterator[str]:
        yield from mismatches(expected, read(subject), where, scope)

    return check


def contains(read: Callable[[T], Any]) -> Check[T]:
    """Return a check that a text of the subject contains the expected text, or each of several."""

    def check(subject: T, expected: Any, where: str, scope: Scope) -> Iterator[str]:
        del scope
        text = read(subject)
        for part in expected if isinstance(expected, list) else [expected]:
            if not isinstance(part, str) or not part:
                yield f"{where}: expected {render(part)}, which is no text to look for"
            elif not isinstance(text, str) or part not in text:
                yield f"{where}: expected a text with {render(part)} in it, got {render(text)}"

    return check


def symbol(read: Callable[[T], Any]) -> Check[T]:
    """Return a check of an id that a case names by a word: the first use binds it, and different words differ."""

    def check(subject: T, expected: Any, where: str, scope: Scope) -> Iterator[str]:
        actual = read(subject)
        if not isinstance(expected, str) or expected == "not_null" or actual is None:
            yield from mismatches(expected, actual, where, scope)
        elif expected in scope.symbols:
            if scope.symbols[expected] != actual:
                yield f"{where}: expected {expected}, which is {render(scope.symbols[expected])}, got {render(actual)}"
        else:
            for name, bound in scope.symbols.items():
                if bound == actual:
                    yield f"{where}: expected {expected}, another than {name}, got {render(actual)} for both"
            scope.symbols[expected] = actual

    return check


def check_items(
    items: Sequence[Facts[Any]], expected: Any, where: str, scope: Scope, *, whole: bool = True
) -> Iterator[str]:
    """Compare item by item; with `whole` no further items may follow the expected ones."""
    if not isinstance(expected, list):
        yield f"{where}: expected {render(expected)}, which is no list"
        return
    if len(items) < len(expected) or (whole and len(items) != len(expected)):
        yield f"{where}: expected {len(expected)}{'' if whole else ' or more'}, got {len(items)}"
    for n, (facts, stated) in enumerate(zip(items, expected, strict=False)):
        yield from facts.compare(stated, f"{where}[{n}]", scope)


def mismatches(expected: Any, actual: Any, where: str, scope: Scope) -> Iterator[str]:
    """Yield the mismatches of a value, a line each."""
    if isinstance(expected, Mapping):
        yield from _mapping(expected, actual, where, scope)
    elif isinstance(expected, list):
        yield from _list(expected, actual, where, scope)
    elif isinstance(expected, str):
        yield from _word(expected, actual, where, scope)
    elif not _equal(expected, actual):
        yield f"{where}: expected {render(expected)}, got {render(actual)}"


def _mapping(expected: Mapping[str, Any], actual: Any, where: str, scope: Scope) -> Iterator[str]:
    if not expected:  # {}: anything
        return
    if not isinstance(actual, Mapping):
        yield f"{where}: expected {render(expected)}, got {render(actual)}"
        return
    for key, value in expected.items():
        if key in actual:
            yield from mismatches(value, actual[key], f"{where}.{key}", scope)
        else:
            yield f"{where}.{key}: expected {render(value)}, got nothing of that name in {render(actual)}"
    for key in actual:
        if key not in expected:
            yield f"{where}.{key}: expected nothing of that name, got {render(actual[key])}"


def _list(expected: list[Any], actual: Any, where: str, scope: Scope) -> Iterator[str]:
    if isinstance(actual, (str, bytes, Mapping)) or not isinstance(actual, Sequence):
        yield f"{where}: expected {render(expected)}, got {render(actual)}"
    elif len(actual) != len(expected):
        yield f"{where}: expected {len(expected)} items, {render(expected)}, got {len(actual)}: {render(list(actual))}"
    else:
        for n, (stated, item) in enumerate(zip(expected, actual, strict=True)):
            yield from mismatches(stated, item, f"{where}[{n}]", scope)


def _word(expected: str, actual: Any, where: str, scope: Scope) -> Iterator[str]:
    if expected == "not_null":
        if actual is None:
            yield f"{where}: expected anything but null, got null"
    elif bound := _BOUND.match(expected):
        limit, number = float(bound[2]), isinstance(actual, (int, float)) and not isinstance(actual, bool)
        if not number or not (actual > limit if bound[1] == "greater_than" else actual < limit):
            yield f"{where}: expected {expected}, got {render(actual)}"
    elif pattern := PATTERN.match(expected):
        if not isinstance(actual, str) or re.search(pattern[1], actual) is None:
            yield f"{where}: expected {expected}, got {render(actual)}"
    elif reference := _REFERENCE.match(expected):
        yield from _check_referred(expected, int(reference[1]), reference[2], actual, where, scope)
    elif not _equal(expected, actual):
        yield f"{where}: expected {render(expected)}, got {render(actual)}"


def _check_referred(expected: str, index: int, name: str, actual: Any, where: str, scope: Scope) -> Iterator[str]:
    if index >= len(scope.turns) or not hasattr(scope.turns[index], name):
        yield f"{where}: expected {expected}, but there are {len(scope.turns)} turns to refer to, or no such field"
        return
    referred = getattr(scope.turns[index], name)
    if referred is None or not _equal(referred, actual):
        yield f"{where}: expected {expected}, which is {render(referred)}, got {render(actual)}"


def _equal(expected: Any, actual: Any) -> bool:
    """Return whether two values are equal and of one kind; integers and floats are both numbers."""
    numbers = [isinstance(number, (int, float)) and not isinstance(number, bool) for number in (expected, actual)]
    return (all(numbers) or type(expected) is type(actual)) and bool(expected == actual)


def render(value: Any) -> str:
    """Return a value as a line of the report."""
    text = repr(value)
    return text if len(text) <= 300 else text[:297] + "..."
