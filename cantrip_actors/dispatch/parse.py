"""Contracts as people write them: Markdown in the layout of dispatch files, or YAML with the fields' names.

The result is a contract, or all mistakes, each with its line. `parse_markdown.py` parses Markdown, and the reader of
recipes YAML and JSON; `terms.py` has the rules for all of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from cantrip_actors.dispatch.contract import Contract, draft, require_contract
from cantrip_actors.dispatch.parse_markdown import Parsed, read_markdown
from cantrip_actors.dispatch.status import ALIASES, STATUSES, Status
from cantrip_actors.dispatch.terms import Rule, Violation, find_field
from cantrip_actors.recipes.document import InvalidRecipe, find_line, parse_yaml, read_text
from cantrip_actors.terms.arguments import check_kind

_NULLS = ("", "~", "null")
"""The texts that say in YAML that a field is left out."""

MARKDOWN, YAML = (".md", ".markdown"), (".yaml", ".yml", ".json")


def load_contract(path: str | os.PathLike[str]) -> Contract:
    """Return the contract in a file that ends in .md, .yaml, .yml or .json.

    Raises InvalidContract with every mistake and its line, also for a missing file.
    """
    check_kind("load_contract", path, str | os.PathLike, "the path of a file")
    path = Path(path)
    try:
        text = read_text(path, "contract", (*MARKDOWN, *YAML))
    except InvalidRecipe as invalid:
        return require_contract(_list_violations(invalid), str(path))
    return require_contract(from_markdown(text) if path.suffix in MARKDOWN else from_yaml(text), str(path))


def from_markdown(text: str) -> Contract | tuple[Violation, ...]:
    """Return the contract of a Markdown text in the layout of `contract_template`, or all its mistakes."""
    check_kind("from_markdown", text, str, "a text")
    return build_contract(read_markdown(text))


def from_yaml(text: str) -> Contract | tuple[Violation, ...]:
    """Return the contract of a YAML text with fields' names, or all its mistakes."""
    check_kind("from_yaml", text, str, "a text")
    try:
        document = parse_yaml(Path("contract"), text, yaml.BaseLoader)
    except InvalidRecipe as invalid:
        return _list_violations(invalid)
    if not isinstance(document.data, dict) or not document.data:
        return (Violation(Rule.TYPE, (), "expected the fields of a contract, each with its name", 1),)
    read = Parsed()
    for title, value in document.data.items():
        read.set_field(find_field(title), None if value in _NULLS else value, document.lines[title,])
    for where, line in document.lines.items():
        read.lines.setdefault((find_field(str(where[0])), *where[1:]), line)
    return build_contract(read)


def _list_violations(invalid: InvalidRecipe) -> tuple[Violation, ...]:
    return tuple(Violation(Rule.TYPE, (), mistake.text, mistake.line) for mistake in invalid.mistakes)


def build_contract(read: Parsed) -> Contract | tuple[Violation, ...]:
    """Return the contract, or every mistake in the order of lines; missing fields come first."""
    data = {name: _read_scalars(value) if name in _VALUES else value for name, value in read.data.items()}
    if "status" in data:
        data["status"] = data["status"] or ""  # an empty one is not left out
    contract = draft(data)
    mistakes = list(read.mistakes)
    if not isinstance(contract, Contract):
        mistakes += (
            violation._replace(line=find_line(read.lines, violation.where))
            for violation in contract
            if violation.where[0] not in read.spoilt
        )
    elif not mistakes:
        return contract
    return tuple(sorted(dict.fromkeys(mistakes), key=lambda mistake: mistake.line or 0))


_VALUES = frozenset({"needs_approval", "budget", "max_iterations", "review_cap", "wards"})
"""Fields with numbers and flags; all others are texts, so that `priority: 1` and dates are texts."""

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _read_scalars(value: Any) -> Any:
    """Return a value with the number or flag that each text in it is; other texts stay."""
    if isinstance(value, list):
        return [_read_scalars(item) for item in value]
    if isinstance(value, dict):
        return {name: _read_scalars(part) for name, part in value.items()}
    if not isinstance(value, str):
        return value
    for read in (int, float):
        try:
            return read(value)
        except ValueError:
            continue
    return _WORDS.get(value.lower(), value)


def status_of(text: str) -> Status | None:
    """Return the status that a person's word means, None for an unknown word.

    >>> status_of("In-Progress"), status_of("done"), status_of("banana")
    ('active', 'completed', None)
    """
    check_kind("status_of", text, str, "a word as a text")
    word = text.strip().lower().replace(" ", "-").replace("_", "-")
    if word in ALIASES:
        return ALIASES[word]
    return next((status for status in STATUSES if status == word), None)
