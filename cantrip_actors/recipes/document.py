"""A YAML or TOML file as data, with the line of every value, so that a mistake can be shown where it was made.

This file knows syntax and no recipes. A message never repeats a value that may be a secret; see `redact_words`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.yaml_text import UNREADABLE

RecipePath = tuple[str | int, ...]
"""The path of a value: keys and indices from the top."""

SUFFIXES = (".yaml", ".yml", ".json", ".toml")
LARGEST = 1_000_000
"""Bytes. A recipe is written by hand; a larger file is not a recipe."""

MOST_VALUES = 100_000
"""Values of a recipe, each counted as often as aliases repeat it: nine aliases of nine aliases of … fill any memory."""

SECRETS = re.compile(
    r"\b(?:sk|pk|rk|ghp|gho|ghs|xox[abp]|AKIA|AIza)[-_]?[A-Za-z0-9_\-]{8,}"  # the keys of well-known providers
    r"|\b(?=[A-Za-z0-9]*[0-9])(?=[A-Za-z0-9]*[A-Z])(?=[A-Za-z0-9]*[a-z])[A-Za-z0-9]{24,}\b|\b[0-9a-fA-F]{32,}\b"
)


class Mistake(NamedTuple):
    """One thing that is wrong, and its line; None for the file as a whole."""

    text: str
    line: int | None = None


class InvalidRecipe(InvalidCantrip):
    """A recipe that cannot become a cantrip. `mistakes` is everything that is wrong, in the order of the file."""

    def __init__(self, path: Path, mistakes: Iterable[Mistake]) -> None:
        self.path = path
        self.mistakes: tuple[Mistake, ...] = tuple(mistakes)
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> list[str]:
        """A line for each mistake: `recipe.yaml:7: unknown ward …`."""
        return [
            f"{self.path}{'' if mistake.line is None else f':{mistake.line}'}: {mistake.text}"
            for mistake in self.mistakes
        ]


@dataclass(frozen=True)
class Document:
    """The data of a file, and the lines of its values: `line(("circle", "gates", 1))`."""

    path: Path
    data: Any
    lines: Mapping[RecipePath, int] = field(repr=False)

    def line(self, where: RecipePath) -> int | None:
        """Return the line of the value at `where`, or of the nearest value around it that has one."""
        return find_line(self.lines, where)


def find_line(lines: Mapping[RecipePath, int], where: RecipePath) -> int | None:
    """Return the line of the value at `where`, or of the nearest value around it that has one."""
    return next((lines[where[:length]] for length in range(len(where), 0, -1) if where[:length] in lines), None)


def read(path: Path, what: str = "recipe") -> Document:
    """Read a document; messages call it `what`. Raises InvalidRecipe with every mistake of its syntax."""
    text = read_text(path, what)
    if path.suffix == ".toml":
        return _parse_toml(path, text)
    return parse_yaml(path, text)


def redact_words(text: str) -> str:
    """Return `text` without words that look like keys: a message must not carry a key that was pasted by mistake."""
    return SECRETS.sub("[hidden]", text)


def read_text(path: Path, what: str, suffixes: Sequence[str] = SUFFIXES) -> str:
    """Return the text of a file of at most `LARGEST` bytes. Raises InvalidRecipe; messages call the file `what`."""
    if path.suffix not in suffixes:
        raise InvalidRecipe(path, [Mistake(f"expected the path of a {what}, which ends in {', '.join(suffixes)}")])
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise InvalidRecipe(path, [Mistake(f"there is no such file{_suggest_instead(path, suffixes)}")]) from None
    except IsADirectoryError:
        raise InvalidRecipe(path, [Mistake(f"this is a folder; a {what} is a file")]) from None
    except OSError as error:
        raise InvalidRecipe(path, [Mistake(f"cannot be read: {(error.strerror or str(error)).lower()}")]) from None
    if len(raw) > LARGEST:
        raise InvalidRecipe(path, [Mistake(f"too large for a {what}: more than {LARGEST:,} bytes")])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InvalidRecipe(path, [Mistake("expected text in UTF-8: is this a binary file?", line)]) from None
    if "\0" in text:
        raise InvalidRecipe(
            path, [Mistake(f"this is a binary file, not a {what}", text[: text.index("\0")].count("\n") + 1)]
        )
    return text


def _suggest_instead(path: Path, suffixes: Sequence[str]) -> str:
    """Name the files of that kind in the same folder."""
    try:
        beside = sorted(file.name for file in path.parent.iterdir() if file.suffix in suffixes)
    except OSError:
        return f"; nor is there a folder {path.parent}"
    return f"; beside it: {', '.join(beside[:8])}" if beside else ""


# --------------------------------------------------------------------------------------------------------------- YAML


def parse_yaml(
    path: Path, text: str, loader_type: type[yaml.SafeLoader | yaml.BaseLoader] = yaml.SafeLoader
) -> Document:
    """Return the data of a YAML text; with `BaseLoader` every scalar is a text. Raises InvalidRecipe."""
    lines: dict[RecipePath, int] = {}
    mistakes: list[Mistake] = []
    data = None
    try:
        loader = loader_type(text)
        node = loader.get_single_node()
        if node is not None:
            _walk(node, (), lines, mistakes, [], {})
        if node is not None and not mistakes:
            data = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InvalidRecipe(
            path, [Mistake(_describe_yaml_problem(error), None if mark is None else mark.line + 1)]
        ) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise InvalidRecipe(
            path, [Mistake("a character that YAML does not allow; is this a binary file?", line)]
        ) from None
    except UNREADABLE as error:
        raise InvalidRecipe(path, [Mistake(f"a value that YAML cannot read: {redact_words(str(error))}")]) from None
    except RecursionError:
        raise InvalidRecipe(path, [Mistake("nested too deeply")]) from None
    if mistakes:
        raise InvalidRecipe(path, mistakes)
    return Document(path, data, lines)


def _walk(
    node: yaml.Node,
    where: RecipePath,
    lines: dict[RecipePath, int],
    mistakes: list[Mistake],
    above: list[yaml.Node],
    sizes: dict[int, int],
) -> int:
    """Note the line of every key and item, and return the number of values, with those that aliases repeat.

    Duplicates, cycles and too many repetitions, which YAML accepts, become mistakes.
    """
    if node in above:
        mistakes.append(Mistake("an alias that contains itself", node.start_mark.line + 1))
        return 1
    if id(node) in sizes:  # an alias: it was walked at its anchor, and aliases of aliases would take for ever
        return sizes[id(node)]
    size = 1
    above.append(node)
    if isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            if not isinstance(key, yaml.ScalarNode):
                mistakes.append(Mistake("a key has to be a word", line))
            elif name in first and name != "<<":
                mistakes.append(Mistake(f'"{redact_words(name)}" stands here twice, first in line {first[name]}', line))
            elif name != "<<":
                key.tag = "tag:yaml.org,2002:str"  # a key is text: `on` is not a boolean, `1` is not a number
            first.setdefault(name, line)
            lines[*where, name] = line
            size += _walk(value, (*where, name), lines, mistakes, above, sizes)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[*where, index] = item.start_mark.line + 1
            size += _walk(item, (*where, index), lines, mistakes, above, sizes)
    above.pop()
    if size > MOST_VALUES:
        problem = f"aliases (*…) repeat more than {MOST_VALUES:,} values: write out what is meant"
        mistakes.append(Mistake(problem, node.start_mark.line + 1))
        size = 1  # the level above is not blamed for the same
    sizes[id(node)] = size
    return size


def _describe_yaml_problem(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "cannot be read as YAML"
    if "'\\t'" in problem:
        return "a tab: YAML is indented with spaces"
    if "mapping values are not allowed" in problem:
        return "a colon where YAML expects none: is the line indented as it should be, or does the text need quotes?"
    if "but found another document" in problem:
        return "a second document (---): expected one"
    if "could not determine a constructor" in problem:
        return "a tag (!…) that is not known here"
    context = f"{error.context}, " if error.context else ""
    return redact_words(f"not valid YAML: {context}{problem}")


# --------------------------------------------------------------------------------------------------------------- TOML

AT = re.compile(r" \(at line (\d+), column \d+\)$")
TABLE = re.compile(r"^\s*+(\[\[?)([^\[\]]++)\]\]?\s*+(?:#.*)?$")
KEY = re.compile(r"""^\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


def _parse_toml(path: Path, text: str) -> Document:
    try:
        data = tomllib.loads(text)
    except ValueError as error:  # not always a TOMLDecodeError: a number may have too many digits
        message = str(error)
        at = AT.search(message)
        raise InvalidRecipe(
            path, [Mistake(redact_words(f"not valid TOML: {AT.sub('', message)}"), int(at[1]) if at else None)]
        ) from None
    except RecursionError:
        raise InvalidRecipe(path, [Mistake("nested too deeply")]) from None
    return Document(path, data or None, _find_toml_lines(text))


def _find_toml_lines(text: str) -> dict[RecipePath, int]:
    """Return the lines of tables and keys: tomllib keeps none, so this looks at the beginning of each line."""
    lines: dict[RecipePath, int] = {}
    table: RecipePath = ()
    counts: dict[RecipePath, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := TABLE.match(line):
            table = _split_parts(header[2])
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                lines.setdefault(table, number)
                table = (*table, counts[table])
            elif table[:-1] in counts:  # a table of the newest item: [[circle.gates]], then [circle.gates.options]
                table = (*table[:-1], counts[table[:-1]], table[-1])
            lines.setdefault(table, number)
        elif key := KEY.match(line):
            name = _split_parts(key[1])
            for length in range(1, len(name) + 1):
                lines.setdefault((*table, *name[:length]), number)
    return lines


def _split_parts(dotted: str) -> RecipePath:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
