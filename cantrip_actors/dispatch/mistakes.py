"""The result of parsing a contract's text: its fields with their lines, and what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cantrip_actors.dispatch.contract import Contract, draft
from cantrip_actors.dispatch.status import ALIASES, STATUSES, Status
from cantrip_actors.dispatch.terms import ContractPath, Rule, Violation
from cantrip_actors.recipes.document import find_line
from cantrip_actors.terms.arguments import check_kind
from cantrip_actors.terms.errors import suggest_nearest


@dataclass(slots=True)
class Parsed:
    """A parsed text: its fields, the lines of values, and mistakes; `spoilt` names fields that could not be read."""

    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[ContractPath, int] = field(default_factory=dict)
    mistakes: list[Violation] = field(default_factory=list)
    spoilt: set[str] = field(default_factory=set)

    def note_mistake(self, text: str, line: int | None, name: str = "", rule: Rule = Rule.TYPE) -> None:
        """Note a mistake. The rules skip the field `name`, because they would only repeat it."""
        self.mistakes.append(Violation(rule, (), text, line))
        if name:
            self.spoilt.add(name)

    def set_field(self, name: str, value: Any, line: int, rule: Rule = Rule.TYPE) -> None:
        """Set a field's value; a second value is a mistake."""
        if (name,) in self.lines:
            self.note_mistake(f'"{name}" stands here twice, first in line {self.lines[name,]}', line, name, rule)
        else:
            self.data[name] = value
            self.lines[name,] = line


def build_contract(read: Parsed) -> Contract | tuple[Violation, ...]:
    """Return the contract, or every mistake in the order of lines; missing fields come first."""
    if "status" in read.data and "status" not in read.spoilt:
        cell = read.data["status"] or ""  # an empty cell
        status = status_of(cell) if isinstance(cell, str) else None
        if status is None:
            read.note_mistake(
                f'"{cell}" is not a status: {suggest_nearest(str(cell), STATUSES)}',
                read.lines["status",],
                "status",
                Rule.STATUS,
            )
        else:
            read.data["status"] = status
    contract = draft({name: _read_scalars(value) if name in _VALUES else value for name, value in read.data.items()})
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
