"""Reads values out of a document and collects every mistake, each with its line.

The values validate themselves: a part of a recipe is passed to the class or function that makes it, and what that
refuses becomes a mistake. Nothing here knows the fields of a recipe.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from cantrip_actors.recipes.document import Document, Mistake, RecipePath, redact_words
from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest
from cantrip_actors.terms.problems import shorten

T = TypeVar("T")

_EXPECTED: Mapping[type, str] = {
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
    str: "text",
    int: "a whole number",
}


class RecipeReader:
    """One reading of a document. `mistakes` are its mistakes."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.folder = document.path.absolute().parent
        self.mistakes: list[Mistake] = []

    def make_importable(self) -> None:
        """Have Python find the modules in the folder of the document."""
        if str(self.folder) not in sys.path:
            sys.path.insert(0, str(self.folder))

    def wrong(self, where: RecipePath, text: str, line: int | None = None) -> None:
        """Note a mistake at the value `where`."""
        self.mistakes.append(Mistake(redact_words(text), line if line is not None else self.document.line(where)))

    def at(self, where: RecipePath) -> AbstractContextManager[None, bool]:
        """Return a block in which an InvalidCantrip becomes a mistake at `where`."""
        return _Block(self, where)

    def keep_known(
        self, values: Mapping[str, Any], names: Collection[str], where: RecipePath, what: str
    ) -> dict[str, Any]:
        """Return the values that are not null; each key that is not among `names` is a mistake."""
        for name in values:
            if name not in names:
                hint = suggest_nearest(str(name), names)
                of = f" of {what}" if what else ""
                self.wrong((*where, name), f'unknown key "{name}"{of}: {hint}')
        return {name: value for name, value in values.items() if name in names and value is not None}

    def keep_typed(self, values: Mapping[str, Any], kinds: Mapping[str, type], where: RecipePath) -> dict[str, Any]:
        """Return the values of the right type; report each of the others as a mistake."""
        fine: dict[str, Any] = {}
        for name, value in values.items():
            kind = kinds.get(name)
            if kind is None or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
                fine[name] = value
            else:
                self.wrong((*where, name), f"{name}: expected {_EXPECTED[kind]}, got {describe(value)}")
        return fine

    def part(self, make: Callable[..., T], mapping: Any, where: RecipePath) -> T | None:
        """Return a value of the dataclass `make` from a mapping of its fields, or None after noting every mistake."""
        name = str(where[-1])
        if not isinstance(mapping, dict):
            self.wrong(where, f"{name}: expected a mapping, got {describe(mapping)}")
            return None
        fields: Mapping[str, Any] = make.__dataclass_fields__  # type: ignore[attr-defined]
        before = len(self.mistakes)
        values = self.keep_known(mapping, fields, where, name)
        part = self.make(make, values, where)
        return part if len(self.mistakes) == before else None

    def make(self, make: Callable[..., T], values: Mapping[str, Any], where: RecipePath) -> T | None:
        """Return `make(**values)`; if that is refused, note the values that are refused alone, or else the whole."""
        try:
            return make(**values)
        except InvalidCantrip as refused:
            before = len(self.mistakes)
            for name, value in values.items():
                with self.at((*where, name)):
                    make(**{name: value})
            if len(self.mistakes) == before:
                self.wrong(where, str(refused))
        return None


class _Block(AbstractContextManager[None, bool]):
    def __init__(self, reader: RecipeReader, where: RecipePath) -> None:
        self._reader = reader
        self._where = where

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if isinstance(error, InvalidCantrip):
            self._reader.wrong(self._where, str(error))
        return isinstance(error, InvalidCantrip)


def find_path(folder: Path, path: str) -> Path:
    """Return a path that a recipe in `folder` has. Raises InvalidCantrip for a path that there cannot be."""
    if not path.isprintable():
        raise InvalidCantrip(f"expected a path, got {shorten(path)}")
    try:
        return folder / Path(path).expanduser()
    except RuntimeError as error:  # the home of an unknown user
        raise InvalidCantrip(f"expected a path, got {shorten(path)}: {error}") from error


def describe(value: Any) -> str:
    """Return what a value is, in words of a reader: a short text as it is, since a misspelt word is best shown."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case str():
            return f'the text "{value}"' if len(value) <= 20 else "a longer text"
        case list():
            return "a list"
        case dict():
            return "a mapping"
    return f"a {type(value).__name__}"
