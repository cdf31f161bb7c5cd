"""Reads a contract from Markdown: the layout of dispatch files, section by section and line by line.

`TEMPLATE` shows the layout, and its comment the rows and sections that may be left out. The facts of a step stand below
it: `   - inputs: …`, `actions`, `expected`, `verification`.

It does not parse Markdown in general: only headings, tables of two columns and lists have a meaning, and in sections of
text everything is text. Fenced lines are text, comments are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from cantrip_actors.dispatch.terms import ROWS, ContractPath, Rule, Violation, find_field
from cantrip_actors.terms.errors import suggest_nearest

_HEADING = re.compile(r"(#{1,3})\s+(\S.*)")
_FENCED_OR_COMMENT = re.compile(
    r"^[^\S\n]*(?P<fence>```|~~~).*?(?:\n[^\S\n]*(?P=fence)[^\n]*|\Z)|<!--.*?(?:-->|\Z)", re.MULTILINE | re.DOTALL
)  # whichever begins first: what looks like a comment in a fence is text
_BULLET = re.compile(r"[-*+]\s+(.*)")
_LINE = re.compile(r"(?:[-*+]\s+)?(\S.*)")  # a bullet, or a line of text: "Not addressing: …"
_BOX = re.compile(r"\[(.)\]\s+(.*)")
_NUMBER = re.compile(r"^\d+[.)]\s+(.*)")
_FACT = re.compile(r"\s+[-*+]\s+(inputs|actions|expected|verification):\s*(.*)", re.IGNORECASE)
_CELL = re.compile(r"(?<!\\)\|")
_TITLE = "Dispatch:"


TEMPLATE = """\
# Dispatch: {TITLE}

<!--
This text is frozen when it is dispatched. Progress, status and results go to the log.
Every {VARIABLE} has to be filled in. These rows may be added below: Decision Needed, Role (worker, loop, orchestrator),
Intent, Type, Source, Skill Chain, Gates, Wards, Budget Cap, Supersedes, Depth (minimal, standard, full),
Max Iterations, Review Cap, Dispatch (an id of your own); and the sections Outputs, Lessons and Steps.
-->

## Metadata

| Field | Value |
| --- | --- |
| Project | {PROJECT} |
| Repo | {REPO} |
| Priority | {PRIORITY} |
| Dispatched | {DATE} |
| Status | queued |
| Needs Approval | no |

## Objective

{OBJECTIVE}

### Acceptance Criteria

- [ ] {CRITERION}

### Scope Boundaries

- {NOT_ADDRESSED}

## Background

{BACKGROUND}

## Related Files

### Source Files

- `{SOURCE_FILE}` — {WHY_IT_MATTERS}

### Files Modified

## Technical Context

{TECHNICAL_CONTEXT}

## Tasks

1. {TASK}

## Verification Gate

{VERIFICATION}

## Progress
"""


def contract_template() -> str:
    """Return a contract to fill in: Markdown with a {VARIABLE} in each place. With all filled in, it can be parsed."""
    return TEMPLATE


class MarkdownLine(NamedTuple):
    """One line of the text; `fenced` ones are never headings or items."""

    number: int
    text: str
    fenced: bool = False


MarkdownLines: TypeAlias = list[MarkdownLine]


class Section(NamedTuple):
    """A heading and the lines below it."""

    line: int
    body: MarkdownLines


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


def read_markdown(text: str) -> Parsed:
    """Parse a contract in Markdown: its fields, their lines, and the mistakes of its layout."""
    read = Parsed()
    sections = _read_sections(list(_read_lines(text)), read)
    for name, section in sections.items():
        SECTIONS[name](section, read)
    return read


def _read_lines(text: str) -> Iterator[MarkdownLine]:
    """Yield the lines, without comments, marked if they are in a fence."""
    mark = "\0"  # marks the beginning of each fenced line

    def keep(match: re.Match[str]) -> str:
        if match["fence"]:
            return mark + match[0].replace("\n", f"\n{mark}")
        return "\n" * match[0].count("\n")

    for number, line in enumerate(_FENCED_OR_COMMENT.sub(keep, text.replace("\r\n", "\n")).split("\n"), 1):
        yield MarkdownLine(number, line.removeprefix(mark).rstrip(), fenced=line.startswith(mark))


def _read_sections(lines: MarkdownLines, read: Parsed) -> dict[str, Section]:
    sections: dict[str, Section] = {}
    here: Section | None = None
    for line in lines:
        heading = None if line.fenced else _HEADING.fullmatch(line.text)
        level, name = (len(heading[1]), heading[2].rstrip("#").rstrip()) if heading else (0, "")
        key = name.lower()
        if level == 1:
            _read_title(name, line.number, read)
            here = Section(line.number, [])
        elif key in SECTIONS and (level == 2 or key in INNER):
            if key in sections:
                text = f'the section "{name}" stands here twice, first in line {sections[key].line}'
                read.note_mistake(text, line.number, find_field(key), Rule.SECTIONS)
            here = Section(line.number, [])
            sections.setdefault(key, here)
        elif level == 2 or (level == 3 and here is None):
            text = f'no contract has a section "{name}": {suggest_nearest(key, SECTIONS)}'
            read.note_mistake(text, line.number, rule=Rule.SECTIONS)
            here = Section(line.number, [])
        elif here is not None:
            here.body.append(line)
        elif line.text.strip():
            read.note_mistake("this stands in no section", line.number, rule=Rule.SECTIONS)
    return sections


def _read_title(name: str, line: int, read: Parsed) -> None:
    if not name.startswith(_TITLE):
        read.note_mistake(f'expected "# {_TITLE} <title>", got "# {name}"', line, "title", Rule.SECTIONS)
    read.set_field("title", name.removeprefix(_TITLE).strip(), line, Rule.SECTIONS)


# ------------------------------------------------------------------------------------------------------------ metadata

_ROWS = {title.lower(): find_field(title) for title in ROWS}
OF_THE_LOG = frozenset({"worker", "started", "completed", "commit", "pr", "result", "blocker"})
"""Rows that belong to the log and are empty in a contract."""

_NOTHING = frozenset({"", "-", "–", "—"})


def _read_metadata(section: Section, read: Parsed) -> None:
    rows = [line for line in section.body if line.text.strip()]
    for at, line in enumerate(rows):
        text = line.text.strip()
        cells = [cell.strip().replace("\\|", "|") for cell in _CELL.split(text.strip("|") if text[0] == "|" else text)]
        if text[0] != "|" or len(cells) != 2:
            read.note_mistake("expected a row of two cells: | Field | Value |", line.number, rule=Rule.METADATA)
            continue
        if all(re.fullmatch(r":?-+:?", cell) for cell in cells) and at == 1:
            continue
        name, value = cells[0].strip("*").strip().lower(), cells[1].strip("`").strip()
        if at == 0 and name == "field":
            continue
        _read_row(name, "" if value in _NOTHING else value, line.number, read)


def _read_row(name: str, value: str, line: int, read: Parsed) -> None:
    if name in OF_THE_LOG:
        if value:
            read.note_mistake(
                f'"{name}" is what the log says, not the contract: leave it empty', line, rule=Rule.METADATA
            )
    elif name not in _ROWS:
        read.note_mistake(f'no contract has a row "{name}": {suggest_nearest(name, _ROWS)}', line, rule=Rule.METADATA)
    else:
        field = _ROWS[name]
        read.set_field(field, CELLS.get(field, str)(value) if value else None, line, Rule.METADATA)


def _split_list(value: str) -> list[str]:
    return [part.strip().strip("`") for part in value.split(",")]


def _read_amount(value: str) -> str:
    match = re.fullmatch(r"\$?\s*(\d+(?:\.\d+)?)\s*(?:\$|USD)?", value, re.IGNORECASE)
    return match[1] if match else value


def _read_wards(value: str) -> list[Any]:
    """Read a list of wards, such as `max_turns: 10, require_done_tool`."""
    wards = (part.partition(":") for part in _split_list(value))
    return [{name.strip(): number.strip()} if colon else name for name, colon, number in wards]


CELLS: Mapping[str, Callable[[str], Any]] = {
    "skill_chain": _split_list,
    "gates": _split_list,
    "wards": _read_wards,
    "budget": _read_amount,
}

# ------------------------------------------------------------------------------------------------------------ sections


def _read_prose(name: str, section: Section, read: Parsed) -> None:
    read.set_field(name, "\n".join(line.text for line in section.body).strip(), section.line)


class ListItem(NamedTuple):
    """An item of a list, with its continuation lines."""

    line: int
    text: str
    more: tuple[MarkdownLine, ...] = ()


def _read_items(section: Section, mark: re.Pattern[str], read: Parsed, name: str, expected: str) -> list[ListItem]:
    """Return the items of a list; other lines are mistakes."""
    items: list[ListItem] = []
    for line in section.body:
        match = None if line.fenced else mark.match(line.text)
        if match:
            items.append(ListItem(line.number, match[1]))
        elif items and (line.fenced or line.text.startswith((" ", "\t"))):
            items[-1] = items[-1]._replace(more=(*items[-1].more, line))
        elif line.text.strip():
            read.note_mistake(
                f"expected {expected}, got {line.text.strip()[:60]!r}", line.number, name, RULES.get(name, Rule.TYPE)
            )
    return items


def _read_text(item: ListItem) -> str:
    return "\n".join([item.text, *(line.text.strip() for line in item.more)]).strip()


def _read_list(
    name: str, mark: re.Pattern[str], expected: str, value_of: Callable[[ListItem], Any], section: Section, read: Parsed
) -> None:
    """Read a list; `value_of` returns the value of an item, or raises ValueError with what is wrong."""
    values: list[Any] = []
    for item in _read_items(section, mark, read, name, expected):
        try:
            value = value_of(item)
        except ValueError as wrong:
            read.note_mistake(str(wrong), item.line, name, RULES.get(name, Rule.TYPE))
        else:
            read.lines[name, len(values)] = item.line
            values.append(value)
    read.set_field(name, values, section.line)


def _read_criterion(item: ListItem) -> str:
    box = _BOX.fullmatch(item.text)
    if box is None:
        raise ValueError("expected an open box, - [ ], before the criterion")
    if box[1] != " ":
        raise ValueError("this criterion is ticked already: evidence meets it, not a tick")
    return _read_text(item._replace(text=box[2]))


def _read_step(item: ListItem) -> dict[str, str]:
    step, last = {"purpose": item.text}, "purpose"
    for line in item.more:
        if fact := _FACT.fullmatch(line.text):
            last = fact[1].lower()
            step[last] = fact[2]
        else:
            step[last] += f"\n{line.text.strip()}"
    return step


def _refuse_entries(what: str, entry: re.Pattern[str], section: Section, read: Parsed) -> None:
    """Read a section that the log fills: it may have a note, but no entries."""
    for line in section.body:
        if entry.match(line.text):
            text = f"{what} is what the log says, not the contract: leave it empty"
            read.note_mistake(text, line.number, rule=Rule.SECTIONS)


def _skip_section(section: Section, read: Parsed) -> None:
    for line in section.body:
        if line.text.strip():
            read.note_mistake("this stands in no section", line.number, rule=Rule.SECTIONS)


INNER = frozenset({"acceptance criteria", "scope boundaries", "source files", "files modified"})
SECTIONS: Mapping[str, Callable[[Section, Parsed], None]] = {
    "metadata": _read_metadata,
    "objective": partial(_read_prose, "objective"),
    "acceptance criteria": partial(_read_list, "acceptance", _BULLET, "- [ ] and a criterion", _read_criterion),
    "scope boundaries": partial(_read_list, "scope", _LINE, "- what is not addressed", _read_text),
    "background": partial(_read_prose, "background"),
    "related files": _skip_section,
    "source files": partial(_read_list, "sources", _BULLET, "- `/path` — why it matters", _read_text),
    "files modified": partial(_refuse_entries, "a modified file", _BULLET),
    "technical context": partial(_read_prose, "technical_context"),
    "tasks": partial(_read_list, "tasks", _NUMBER, "1. and a task", _read_text),
    "verification gate": partial(_read_prose, "verification"),
    "outputs": partial(_read_list, "outputs", _BULLET, "- a path", _read_text),
    "lessons": partial(_read_list, "lessons", _BULLET, "- what was learned", _read_text),
    "steps": partial(_read_list, "steps", _NUMBER, "1. and a step", _read_step),
    "progress": partial(_refuse_entries, "progress", _HEADING),
}
RULES: Mapping[str, Rule] = {
    "acceptance": Rule.ACCEPTANCE,
    "sources": Rule.SOURCES,
    "tasks": Rule.TASKS,
    "scope": Rule.SECTIONS,
}
