"""Reads a contract from Markdown: the layout of dispatch files, section by section and line by line.

    # Dispatch: <title>
    ## Metadata                a table of two columns: | Project | notes |
    ## Objective               text
    ### Acceptance Criteria    - [ ] one open box each
    ### Scope Boundaries       - what is not addressed
    ## Background              text
    ## Related Files
    ### Source Files           - `/path/in/full` — why it matters
    ### Files Modified         empty: the log has them
    ## Technical Context       text
    ## Tasks                   1. numbered
    ## Verification Gate       text
    ## Outputs, Lessons        - lists; may be left out
    ## Steps                   1. numbered, below each `- inputs:`, `- actions:`, …; may be left out
    ## Progress                empty: the log has it

It does not parse Markdown in general: only headings, tables of two columns and lists have a meaning, and in sections of
text everything is text. Fenced lines are text, comments are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from cantrip_actors.dispatch.mistakes import Parsed
from cantrip_actors.dispatch.terms import ROWS, Rule, field_titled
from cantrip_actors.terms.errors import nearest

__all__ = ["SOURCE", "read_markdown"]

SOURCE = re.compile(r"`(?P<path>[^`]+)`\s*(?:—|–|-|:)+\s*(?P<why>\S.*)")
"""A source file and the reason why it matters."""

_HEADING = re.compile(r"(#{1,3})\s+(.+?)\s*#*")
_FENCE = re.compile(r"\s*(```|~~~)")
_BULLET = re.compile(r"[-*+]\s+(.*)")
_BOX = re.compile(r"\[(.)\]\s+(.*)")
_NUMBER = re.compile(r"\d+[.)]\s+(.*)")
_FACT = re.compile(r"\s+[-*+]\s+(inputs|actions|expected|verification):\s*(.*)", re.IGNORECASE)
_CELL = re.compile(r"(?<!\\)\|")
_TITLE = "Dispatch:"


class Line(NamedTuple):
    """One line of the text; `fenced` ones are never headings or items."""

    number: int
    text: str
    fenced: bool = False


Lines: TypeAlias = list[Line]


class Section(NamedTuple):
    """A heading and the lines below it."""

    line: int
    body: Lines


def read_markdown(text: str) -> Parsed:
    """Parse a contract in Markdown: its fields, their lines, and the mistakes of its layout."""
    read = Parsed()
    sections = _sections(list(_lines(text)), read)
    for name, section in sections.items():
        SECTIONS[name](section, read)
    return read


def _lines(text: str) -> Iterator[Line]:
    """Yield the lines, without comments, marked if they are in a fence."""
    fence, comment = "", False
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        marker = _FENCE.match(line)
        if not comment and marker and (not fence or marker[1] == fence):
            fence = "" if fence else marker[1]
            yield Line(number, line, fenced=True)
            continue
        kept = line
        if not fence:
            kept, comment = _uncommented(line, comment)
        yield Line(number, kept.rstrip(), fenced=bool(fence))


def _uncommented(line: str, comment: bool) -> tuple[str, bool]:
    """Return the line without comments, and whether one continues on the next line."""
    kept = ""
    while line:
        before, mark, line = line.partition("-->" if comment else "<!--")
        kept += "" if comment else before
        if not mark:
            break
        comment = not comment
    return kept, comment


def _sections(lines: Lines, read: Parsed) -> dict[str, Section]:
    found: dict[str, Section] = {}
    here: Section | None = None
    for line in lines:
        heading = None if line.fenced else _HEADING.fullmatch(line.text)
        level, name = (len(heading[1]), heading[2]) if heading else (0, "")
        key = name.lower()
        if level == 1:
            _title(name, line.number, read)
            here = Section(line.number, [])
        elif key in SECTIONS and (level == 2 or key in INNER):
            if key in found:
                text = f'the section "{name}" stands here twice, first in line {found[key].line}'
                read.wrong(text, line.number, field_titled(key), Rule.SECTIONS)
            here = Section(line.number, [])
            found.setdefault(key, here)
        elif level == 2 or (level == 3 and here is None):
            text = f'no contract has a section "{name}": {nearest(key, SECTIONS)}'
            read.wrong(text, line.number, rule=Rule.SECTIONS)
            here = Section(line.number, [])
        elif here is not None:
            here.body.append(line)
        elif line.text.strip():
            read.wrong("this stands in no section", line.number, rule=Rule.SECTIONS)
    return found


def _title(name: str, line: int, read: Parsed) -> None:
    if ("title",) in read.lines:
        read.wrong(f"a second title, the first is in line {read.lines['title',]}", line, rule=Rule.SECTIONS)
    elif not name.startswith(_TITLE):
        read.wrong(f'expected "# {_TITLE} <title>", got "# {name}"', line, "title", Rule.SECTIONS)
        read.lines["title",] = line
    else:
        read.set_field("title", name.removeprefix(_TITLE).strip(), line)


# ------------------------------------------------------------------------------------------------------------ metadata

_ROWS = {title.lower(): field_titled(title) for title in ROWS}
OF_THE_LOG = frozenset({"worker", "started", "completed", "commit", "pr", "result", "blocker"})
"""Rows that belong to the log; in a contract they are empty."""

_NOTHING = frozenset({"", "-", "–", "—"})


def _metadata(section: Section, read: Parsed) -> None:
    rows = [line for line in section.body if line.text.strip()]
    for at, line in enumerate(rows):
        text = line.text.strip()
        cells = [cell.strip().replace("\\|", "|") for cell in _CELL.split(text.strip("|") if text[0] == "|" else text)]
        if text[0] != "|" or len(cells) != 2:
            read.wrong("expected a row of two cells: | Field | Value |", line.number, rule=Rule.METADATA)
            continue
        if all(re.fullmatch(r":?-+:?", cell) for cell in cells) and at == 1:
            continue
        name, value = cells[0].strip("*").strip().lower(), cells[1].strip("`").strip()
        if at == 0 and name == "field":
            continue
        _row(name, "" if value in _NOTHING else value, line.number, read)


def _row(name: str, value: str, line: int, read: Parsed) -> None:
    if name in OF_THE_LOG:
        if value:
            read.wrong(f'"{name}" is what the log says, not the contract: leave it empty', line, rule=Rule.METADATA)
    elif name not in _ROWS:
        read.wrong(f'no contract has a row "{name}": {nearest(name, _ROWS)}', line, rule=Rule.METADATA)
    elif (_ROWS[name],) in read.lines:
        first = read.lines[_ROWS[name],]
        read.wrong(f'the row "{name}" stands here twice, first in line {first}', line, _ROWS[name], Rule.METADATA)
    else:
        field = _ROWS[name]
        read.set_field(field, CELLS.get(field, str)(value) if value else None, line)


def _listed(value: str) -> list[str]:
    return [part.strip().strip("`") for part in value.split(",")]


def _number(value: str) -> Any:
    return int(value) if value.isdecimal() else value


def _amount(value: str) -> Any:
    found = re.fullmatch(r"\$?\s*(\d+(?:\.\d+)?)\s*(?:\$|USD)?", value, re.IGNORECASE)
    return float(found[1]) if found else value


def _wards(value: str) -> list[Any]:
    """`max_turns: 10, require_done_tool`."""
    wards: list[Any] = []
    for part in _listed(value):
        name, said, number = part.partition(":")
        wards.append({name.strip(): _scalar(number.strip())} if said else name)
    return wards


def _scalar(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


CELLS: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {
        "skill_chain": _listed,
        "gates": _listed,
        "wards": _wards,
        "budget": _amount,
        "max_iterations": _number,
        "review_cap": _number,
    }
)

# ------------------------------------------------------------------------------------------------------------ sections


def _text(name: str) -> Callable[[Section, Parsed], None]:
    def read_section(section: Section, read: Parsed) -> None:
        read.set_field(name, "\n".join(line.text for line in section.body).strip(), section.line)

    return read_section


class Item(NamedTuple):
    """An item of a list, with its continuation lines."""

    line: int
    text: str
    more: tuple[Line, ...] = ()


def _items(section: Section, mark: re.Pattern[str], read: Parsed, name: str, expected: str) -> list[Item]:
    """Return the items of a list; other lines are mistakes."""
    items: list[Item] = []
    for line in section.body:
        found = None if line.fenced else mark.match(line.text)
        if found:
            items.append(Item(line.number, found[1]))
        elif items and (line.fenced or line.text.startswith((" ", "\t"))):
            items[-1] = items[-1]._replace(more=(*items[-1].more, line))
        elif line.text.strip():
            read.wrong(
                f"expected {expected}, got {line.text.strip()[:60]!r}", line.number, name, RULES.get(name, Rule.TYPE)
            )
    return items


def _text_of(item: Item) -> str:
    return "\n".join([item.text, *(line.text.strip() for line in item.more)]).strip()


def _list(name: str, mark: re.Pattern[str], expected: str) -> Callable[[Section, Parsed], None]:
    def read_section(section: Section, read: Parsed) -> None:
        items = _items(section, mark, read, name, expected)
        read.set_field(name, [_text_of(item) for item in items], section.line)
        read.lines.update({(name, at): item.line for at, item in enumerate(items)})

    return read_section


def _acceptance(section: Section, read: Parsed) -> None:
    criteria: list[str] = []
    for item in _items(section, _BULLET, read, "acceptance", "- [ ] and a criterion"):
        box = _BOX.fullmatch(item.text)
        if box is None:
            read.wrong("expected an open box, - [ ], before the criterion", item.line, "acceptance", Rule.ACCEPTANCE)
        elif box[1] != " ":
            text = "this criterion is ticked already: evidence meets it, no tick"
            read.wrong(text, item.line, "acceptance", Rule.ACCEPTANCE)
        else:
            read.lines["acceptance", len(criteria)] = item.line
            criteria.append(_text_of(item._replace(text=box[2])))
    read.set_field("acceptance", criteria, section.line)


def _scope(section: Section, read: Parsed) -> None:
    """Bullets, or lines of text: "Not addressing: …"."""
    plain = [not _BULLET.match(line.text) and line.text[:1].strip() for line in section.body]
    body = [
        line._replace(text=f"- {line.text}") if bare else line for line, bare in zip(section.body, plain, strict=True)
    ]
    _list("scope", _BULLET, "- what is not addressed")(section._replace(body=body), read)


def _sources(section: Section, read: Parsed) -> None:
    sources: list[dict[str, str]] = []
    for item in _items(section, _BULLET, read, "sources", "- `/path` — why it matters"):
        found = SOURCE.fullmatch(_text_of(item).replace("\n", " "))
        if found is None:
            text = f"expected - `/path/in/full` — why it matters, got {item.text[:60]!r}"
            read.wrong(text, item.line, "sources", Rule.SOURCES)
        else:
            read.lines["sources", len(sources)] = item.line
            sources.append({"path": found["path"].strip(), "description": found["why"]})
    read.set_field("sources", sources, section.line)


def _steps(section: Section, read: Parsed) -> None:
    steps: list[dict[str, str]] = []
    for item in _items(section, _NUMBER, read, "steps", "1. and a step"):
        step = {"purpose": item.text}
        last = "purpose"
        for line in item.more:
            if fact := _FACT.fullmatch(line.text):
                last = fact[1].lower()
                step[last] = fact[2]
            else:
                step[last] += f"\n{line.text.strip()}"
        read.lines["steps", len(steps)] = item.line
        steps.append(step)
    read.set_field("steps", steps, section.line)


def _of_the_log(what: str, entry: re.Pattern[str]) -> Callable[[Section, Parsed], None]:
    """Return a reader of a section that the log fills: it may have a note, but no entries."""

    def read_section(section: Section, read: Parsed) -> None:
        for line in section.body:
            if entry.match(line.text):
                text = f"{what} is what the log says, not the contract: leave it empty"
                read.wrong(text, line.number, rule=Rule.SECTIONS)

    return read_section


def _nothing(section: Section, read: Parsed) -> None:
    for line in section.body:
        if line.text.strip():
            read.wrong("this stands in no section", line.number, rule=Rule.SECTIONS)


INNER = frozenset({"acceptance criteria", "scope boundaries", "source files", "files modified"})
SECTIONS: Mapping[str, Callable[[Section, Parsed], None]] = MappingProxyType(
    {
        "metadata": _metadata,
        "objective": _text("objective"),
        "acceptance criteria": _acceptance,
        "scope boundaries": _scope,
        "background": _text("background"),
        "related files": _nothing,
        "source files": _sources,
        "files modified": _of_the_log("a modified file", _BULLET),
        "technical context": _text("technical_context"),
        "tasks": _list("tasks", _NUMBER, "1. and a task"),
        "verification gate": _text("verification"),
        "outputs": _list("outputs", _BULLET, "- a path"),
        "lessons": _list("lessons", _BULLET, "- what was learned"),
        "steps": _steps,
        "progress": _of_the_log("progress", _HEADING),
    }
)
RULES: Mapping[str, Rule] = MappingProxyType(
    {"acceptance": Rule.ACCEPTANCE, "sources": Rule.SOURCES, "tasks": Rule.TASKS, "scope": Rule.SECTIONS}
)
