"""The cases of an evaluation, from YAML, JSON Lines, CSV, or any iterable; every mistake at once, with its line."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from cantrip_actors.recipes.document import SUFFIXES, Document, InvalidRecipe, Mistake, RecipePath, read, redact_words
from cantrip_actors.recipes.reader import describe
from cantrip_actors.terms.arguments import is_list, is_short_name, is_text
from cantrip_actors.terms.errors import suggest_nearest
from cantrip_actors.terms.exact_json import parse_exactly


class InvalidEvaluation(InvalidRecipe):
    """Cases, or a file of an evaluation, with mistakes. `mistakes` has all of them, in the order of the file."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case of an evaluation.

    Args:
        id: its name, unique in the evaluation.
        intent: what the cantrip is cast on.
        expected: what scorers compare the answer with; any JSON value.
        context: data for the entity, as for `Runtime.cast`; any JSON value.
        tags: labels, by which a report may be filtered.
    """

    id: str
    intent: str
    expected: Any = None
    context: Any = None
    tags: tuple[str, ...] = ()


FIELDS: Final = tuple(field.name for field in fields(Case))


class CaseRow(NamedTuple):
    """A case as it was written, and the line of each of its fields."""

    value: Any
    find_line: Callable[[str], int | None]
    label: str = ""
    """Where it is, for cases that have no lines."""


def load_cases(path: str | os.PathLike[str]) -> list[Case]:
    """Return the cases of a file: a YAML list, JSON Lines (`.jsonl`) or CSV with a header line (`.csv`).

    A case has an `id`, an `intent`, and optionally `expected`, `context` and `tags`, in CSV separated by commas.
    Raises InvalidEvaluation with every mistake.
    """
    file = Path(path)
    mistakes: list[Mistake] = []
    if file.suffix in SUFFIXES:
        document = read_document(file, "file of cases")
        rows = list_document_rows(document, document.data, (), mistakes)
    elif file.suffix in (".jsonl", ".csv"):
        rows = (_read_json_lines if file.suffix == ".jsonl" else _read_csv)(_read_text(file), mistakes)
    else:
        raise InvalidEvaluation(file, [Mistake(f"cases are in files that end in .jsonl, .csv, {', '.join(SUFFIXES)}")])
    cases = build_cases(rows, mistakes)
    if not mistakes and not cases:
        mistakes.append(Mistake("expected at least one case"))
    if mistakes:
        raise InvalidEvaluation(file, sorted(mistakes, key=lambda mistake: mistake.line or 0))
    return cases


def check_cases(cases: Iterable[Case | Mapping[str, Any]]) -> list[Case]:
    """Return the cases of a program. Raises InvalidEvaluation with every mistake."""
    rows = [
        CaseRow(asdict(case) if isinstance(case, Case) else case, lambda _: None, f"case {number}: ")
        for number, case in enumerate(cases, 1)
    ]
    mistakes: list[Mistake] = [] if rows else [Mistake("expected at least one case")]
    checked = build_cases(rows, mistakes)
    if mistakes:
        raise InvalidEvaluation(Path("cases"), mistakes)
    return checked


def read_document(file: Path, what: str) -> Document:
    """Read a YAML or TOML file. Raises InvalidEvaluation with the mistakes of its syntax."""
    try:
        return read(file, what)
    except InvalidRecipe as error:
        raise InvalidEvaluation(error.path, error.mistakes) from None


def list_document_rows(document: Document, value: Any, where: RecipePath, mistakes: list[Mistake]) -> list[CaseRow]:
    """Return the cases that a document has as a list at `where`."""

    def find_line(index: int) -> Callable[[str], int | None]:
        return lambda name: document.line((*where, index, name))

    if not isinstance(value, list):
        text = f"cases: expected a list of {{id: …, intent: …}}, got {describe(value)}"
        mistakes.append(Mistake(redact_words(text), document.line(where)))
        return []
    return [CaseRow(item, find_line(index)) for index, item in enumerate(value)]


def build_cases(rows: Iterable[CaseRow], mistakes: list[Mistake]) -> list[Case]:
    """Return the cases without mistakes, and add the mistakes of the other ones."""
    cases: dict[str, Case] = {}
    for row in rows:
        before = len(mistakes)
        values = dict(_check_fields(row, mistakes))
        if len(mistakes) > before:
            continue
        case = Case(**values)
        if case.id in cases:
            _add_mistake(mistakes, row, "id", f'id: "{case.id}" is the id of an earlier case, too')
        else:
            cases[case.id] = case
    return list(cases.values())


def _check_fields(row: CaseRow, mistakes: list[Mistake]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a case that are as they should be."""
    if not isinstance(row.value, Mapping):
        text = f"a case: expected a mapping with id and intent, got {describe(row.value)}"
        _add_mistake(mistakes, row, "", text)
        return
    values = {str(name): value for name, value in row.value.items()}
    for name in (name for name in values if name not in FIELDS):
        _add_mistake(mistakes, row, name, f'unknown key "{name}" of a case: {suggest_nearest(name, FIELDS)}')
    id, intent, tags = values.get("id"), values.get("intent"), values.get("tags") or ()
    if isinstance(id, int) and not isinstance(id, bool):
        id = str(id)
    if is_short_name(id):
        yield "id", id
    else:
        _add_mistake(mistakes, row, "id", f"id: expected a text of 1 to 200 characters, got {describe(id)}")
    if is_text(intent) and intent.strip():
        yield "intent", intent
    else:
        _add_mistake(mistakes, row, "intent", f"intent: expected a text, got {describe(intent)}")
    labels = [tag.strip() for tag in tags.split(",")] if isinstance(tags, str) else tags
    if is_list(labels) and all(is_text(tag) for tag in labels):
        yield "tags", tuple(labels)
    else:
        _add_mistake(mistakes, row, "tags", f"tags: expected a list of texts, got {describe(tags)}")
    for name in ("expected", "context"):
        if _is_json(values.get(name)):
            yield name, values.get(name)
        else:
            _add_mistake(mistakes, row, name, f"{name}: expected a JSON value, got {describe(values[name])}")


def _is_json(value: Any) -> bool:
    try:
        return bool(json.dumps(value, allow_nan=False)) and _has_text_keys(value)
    except (TypeError, ValueError, RecursionError):  # a date of YAML, for example
        return False


def _has_text_keys(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _has_text_keys(part) for key, part in value.items())
    return not isinstance(value, (list, tuple)) or all(map(_has_text_keys, value))


def _add_mistake(mistakes: list[Mistake], row: CaseRow, field: str, text: str) -> None:
    mistakes.append(Mistake(redact_words(f"{row.label}{text}"), row.find_line(field)))


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidEvaluation(file, [Mistake("expected text in UTF-8: is this a binary file?")]) from None
    except OSError as error:
        raise InvalidEvaluation(file, [Mistake(f"cannot be read: {(error.strerror or str(error)).lower()}")]) from None


def _at_line(number: int) -> Callable[[str], int | None]:
    return lambda _: number


def _read_json_lines(text: str, mistakes: list[Mistake]) -> list[CaseRow]:
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(CaseRow(parse_exactly(line), _at_line(number)))
        except ValueError as error:
            mistakes.append(Mistake(redact_words(f"not valid JSON: {error}"), number))
    return rows


def _read_csv(text: str, mistakes: list[Mistake]) -> list[CaseRow]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[CaseRow] = []
    names: Sequence[str] | None = None
    line = 1
    try:
        for cells in reader:
            if not cells:
                pass
            elif names is None:
                names = [name.strip() for name in cells]
                for at, name in enumerate(names):
                    if name in names[:at]:
                        mistakes.append(Mistake(redact_words(f'column "{name}" stands here twice'), line))
                    elif name not in FIELDS:
                        hint = suggest_nearest(name, FIELDS)
                        mistakes.append(Mistake(redact_words(f'unknown column "{name}": {hint}'), line))
            elif len(cells) != len(names):
                mistakes.append(Mistake(f"expected {len(names)} columns, got {len(cells)}", line))
            else:
                pairs = zip(names, cells, strict=True)
                values = {name: cell for name, cell in pairs if cell and name in FIELDS}
                rows.append(CaseRow(values, _at_line(line)))
            line = reader.line_num + 1
    except csv.Error as error:
        mistakes.append(Mistake(f"not valid CSV: {error}", line))
    return rows
