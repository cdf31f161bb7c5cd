"""The content of a page as text: Playwright's accessibility snapshot, read line by line and written anew.

The texts of a page stand in quotes, so that none of them can pass for an element with a ref, or for words of ours.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple

LINES: Final = 150
"""Lines of one part of a page."""

LINES_AFTER_ACTION: Final = 30
"""New lines that an action shows."""

LONGEST: Final = 300
"""Characters of a text in one line."""

ELEMENTS: Final = 20_000
"""Lines of a page that are read."""

REF: Final = re.compile(r"(?:f\d+)?e\d+")

_KEY: Final = re.compile(
    r'(?P<role>[\w/-]+)(?: (?P<name>"(?:[^"\\]|\\.)*"))?(?P<marks>(?: \[[^\[\]]*\])*)(?::(?: (?P<text>.*))?)?'
)
_MARK: Final = re.compile(r"\[([^\[\]]*)\]")
_UNSEEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


class Element(NamedTuple):
    """One line of a page: an element, or a text in it. `ref` is "" for a line that no gate can act on."""

    depth: int
    ref: str
    role: str
    name: str
    text: str
    marks: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = [self.ref, "" if self.role in ("text", "generic") else self.role, quote_text(self.name), *self.marks]
        if self.text:
            words.append(
                f"= {quote_text(self.text)}"
                if self.role in ("textbox", "searchbox", "spinbutton")
                else quote_text(self.text)
            )
        return " ".join(filter(None, words))


class ShownPage(NamedTuple):
    """A page as it was shown: its URL, its title and its lines."""

    url: str
    title: str
    elements: Sequence[Element]


def read_snapshot(snapshot: str) -> list[Element]:
    """Return the elements of an accessibility snapshot that a reader can tell apart."""
    elements: list[Element] = []
    depths: list[tuple[int, int]] = []
    """The indentations around the present line, with the depth at which what is in them is shown."""
    for line in snapshot.splitlines()[:ELEMENTS]:
        body = line.lstrip(" ")
        indent = len(line) - len(body)
        while depths and depths[-1][0] >= indent:
            depths.pop()
        depth = depths[-1][1] if depths else 0
        element = _read_line(body.removeprefix("- "), depth)
        if element.role == "/url" and elements:
            elements[-1] = elements[-1]._replace(marks=(*elements[-1].marks, f"-> {quote_text(element.text)}"))
            continue
        is_shown = bool(element.name or element.text) or (element.role not in ("generic", "text") and element.ref != "")
        if is_shown or "cursor=pointer" in element.marks:
            marks = tuple(mark for mark in element.marks if mark != "cursor=pointer")
            elements.append(element._replace(marks=marks))
            depth += 1
        depths.append((indent, depth))
    return elements


def _read_line(line: str, depth: int) -> Element:
    if line.startswith("'"):  # YAML puts a key with a colon in quotes
        key, _, rest = line[1:].replace("''", "\0").partition("'")
        line = (key + rest).replace("\0", "'")
    parts = _KEY.fullmatch(line)
    if parts is None:
        return Element(depth, "", "text", "", line)
    marks, ref = [], ""
    for mark in _MARK.findall(parts["marks"]):
        if mark.startswith("ref="):
            ref = mark.removeprefix("ref=")
        else:
            marks.append(mark)
    return Element(depth, ref, parts["role"], _unquote(parts["name"]), _unquote(parts["text"]), tuple(marks))


def _unquote(text: str | None) -> str:
    if text and text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:  # YAML has escapes of its own
            return text[1:-1]
    return text or ""


def render_part(shown: ShownPage, before: ShownPage | None, part: int) -> Iterator[str]:
    """Yield the lines of one part of a page; `+` marks those that are new since it was shown before."""
    lines = [f"{'  ' * min(element.depth, 12)}{element}" for element in shown.elements]
    if before is not None and before.url == shown.url:
        is_new = _find_new(shown, before)
        gone = len(before.elements) - (len(lines) - sum(is_new))
        lines = [f"{'+' if new else ' '} {line}" for new, line in zip(is_new, lines, strict=True)]
        yield f"[since the last look: {sum(is_new)} new lines, marked with +, and {gone} gone]"
    parts = max(1, -(-len(lines) // LINES))
    part = min(part, parts)
    yield from lines[(part - 1) * LINES : part * LINES]
    if part < parts:
        yield f"[part {part} of {parts}: look(part={part + 1}) shows the next]"


def render_changes(shown: ShownPage, before: ShownPage | None) -> Iterator[str]:
    """Yield the lines that are new on a page after an action."""
    if before is None or before.url != shown.url:
        yield from render_part(shown, None, 1)
        return
    new = [str(element) for element, is_new in zip(shown.elements, _find_new(shown, before), strict=True) if is_new]
    gone = len(before.elements) - (len(shown.elements) - len(new))
    if not new and not gone:
        yield "[the page shows what it showed before]"
        return
    yield f"[{len(new)} new lines, {gone} gone]"
    yield from (f"+ {line}" for line in new[:LINES_AFTER_ACTION])
    if len(new) > LINES_AFTER_ACTION:
        yield f"[{len(new) - LINES_AFTER_ACTION} more: look() shows them]"


def _find_new(shown: ShownPage, before: ShownPage) -> list[bool]:
    left = Counter(map(str, before.elements))
    is_new = []
    for line in map(str, shown.elements):
        is_new.append(not left[line])
        left[line] -= bool(left[line])
    return is_new


def suggest_elements(target: str, shown: ShownPage | None, most: int = 6) -> str:
    """Return the elements that a target without a match may have meant, for a message."""
    usable = [
        element for element in (shown.elements if shown else ()) if element.ref and (element.name or element.text)
    ]
    if not usable:
        return "look() shows the elements of the page"
    words = {f"{element.name} {element.text}".lower(): element for element in usable}
    wanted = re.sub(r"^\w+=|[\"'\[\]#.]", " ", target).strip().lower()
    nearest = [words[key] for key in words if wanted and wanted in key][:most]
    nearest += [words[key] for key in get_close_matches(wanted, list(words), most, 0.5) if words[key] not in nearest]
    listed = "; ".join(map(str, (nearest or usable)[:most]))
    return f"the page has for example: {listed}"


def quote_text(text: str) -> str:
    """Return a text in quotes, on one line, visible and not too long; an empty one stays empty."""
    return json.dumps(shorten_text(_UNSEEN.sub(" ", text)), ensure_ascii=False) if text else ""


def shorten_text(text: str) -> str:
    """Return a text on one line, and not too long."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


def read_first_line(error: Exception) -> str:
    """Return the message of an error of Playwright, without its log."""
    return shorten_text(re.split("\n(?:Call log|Browser logs):", str(error))[0])
