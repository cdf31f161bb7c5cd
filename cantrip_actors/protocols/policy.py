"""The script of the demo: what its crystal says, as a pure function of the context.

It stands where a language model would. So it knows nothing but its messages: what is in the folder it learns from
`list`, what is in a file from `read`, what its children found from their answers. Every figure of the report is counted
from text that a gate has given it.

Two roles share it, told apart by their system prompt, as they would be with a model. The *reader of a folder* lists it
and sends a child to each of a few files, one of them, by a slip of the pen, to a file that does not exist. The *reader
of a file* reads and counts; if there is no such file it looks around and takes the one that was meant.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import PurePosixPath
from typing import Any, Final

from cantrip_actors import Invocation, Message

__all__ = ["FILE_READER", "FOLDER_READER", "INTENT", "policy"]

FOLDER_READER: Final = "You read folders. List what is there, have a child read each file that matters, and report."
FILE_READER: Final = "You read one file and report what it holds. If it is not there, find the one that was meant."
INTENT: Final = "What does this folder hold? Read its files and report."

MANY: Final = 10
"""Files that are read, each by a child of its own."""

PAGES: Final = 5
"""Pages of a long listing that are asked for."""

PIECES: Final = 4
"""Pieces of a long file that are read: about 200,000 characters."""

BINARY = re.compile(
    r"\.(7z|a|avif|bin|bmp|bz2|class|db|dll|docx?|dylib|egg|eot|exe|gif|gz|ico|jar|jpe?g|lock|mo|mp[34]|o|odt|otf|parquet"
    r"|pdf|png|py[cdo]|so|sqlite|tar|tgz|tiff?|ttf|wasm|wav|web[mp]|whl|woff2?|xlsx?|xz|zip|zst)$",
    re.IGNORECASE,
)
PASSED_OVER: Final = frozenset(("__pycache__", "node_modules", "site-packages", "venv", "dist", "build", "target"))
COMMON = re.compile(
    "about|after|also|async|await|been|before|being|both|class|could|does|each|else|false|first|from|have|hence|here"
    "|import|into|itself|just|like|made|make|more|most|much|must|none|once|only|other|over|return|same|self|should|some"
    "|such|than|that|their|them|then|there|these|they|this|those|through|true|under|until|upon|very|what|when|where"
    "|which|while|whose|will|with|without|would|your"
)
"""Words that say nothing about a text."""
PROSE: Final = frozenset(("", ".adoc", ".csv", ".htm", ".html", ".md", ".org", ".rst", ".tex", ".txt"))
DEFINITION: Final = re.compile(
    r"\s*(?:export |public |static |pub |async )*(?:def|class|fn|func|function|struct|interface) \w"
)

Said = Mapping[str, Any]


def policy(context: Invocation) -> dict[str, Any]:
    """What the crystal says next, with tokens as a model would be billed for it (four characters each, roughly)."""
    system = context[0].content or ""
    said = _read_a_file(context) if system == FILE_READER else _read_a_folder(context)
    asked = sum(len(message.content or "") for message in context) // 4
    return {**said, "usage": {"prompt_tokens": asked, "completion_tokens": len(json.dumps(said)) // 4}}


def _call(content: str, gate: str, **args: Any) -> dict[str, Any]:
    return {"content": content, "tool_calls": [{"gate": gate, "args": args}]}


# --------------------------------------------------------------------------------------------- the reader of a folder


def _read_a_folder(context: Invocation) -> dict[str, Any]:
    results = [message for message in context if message.role == "tool"]
    if not results:
        return _call("I begin with what is there.", "list", recursive=True)
    last = results[-1]
    if last.gate == "call_agent_batch":
        names = _names(results)
        if last.is_error and not _parsed(last):
            return _call("Nobody could read anything.", "done", answer={"report": f"No report: {last.content}"})
        answer = _report(names, list(_texts(names)), _parsed(last))
        return _call("Everybody is back: I put it together.", "done", answer=answer)
    if last.is_error:
        return _call("I cannot look into the folder.", "done", answer={"report": f"No report: {last.content}"})
    onward = re.search(r"go on with offset=(\d+)\]$", str((_parsed(last) or [""])[-1]))
    if onward and len(results) < PAGES:
        return _call("The listing goes on.", "list", recursive=True, offset=int(onward[1]))
    names = _names(results)
    chosen = choose(_texts(names))
    if not chosen:
        return _call("There is nothing to read.", "done", answer=_report(names, [], []))
    asked = [*chosen[:-1], misspelt(chosen[-1], names)]
    words = f"{len(chosen)} files, a child for each" if len(chosen) > 1 else "one file, a child for it"
    return _call(words, "call_agent_batch", intents=[_request(path) for path in asked])


def _request(path: str) -> dict[str, Any]:
    return {
        "intent": f"Read the file {json.dumps(path, ensure_ascii=False)} and report what it holds.",
        "system_prompt": FILE_READER,
        "gates": ["read", "list", "done"],
        "max_turns": PIECES + 6,
    }


def _names(results: Iterable[Message]) -> list[str]:
    """Every path that was listed, folders and notes left out."""
    listed = [path for result in results if result.gate == "list" and not result.is_error for path in _parsed(result)]
    return [str(path) for path in listed if not str(path).endswith(("/", "]"))]


def _texts(names: Iterable[str]) -> Iterator[str]:
    """Those that may be texts, by their names: not hidden, not somebody's leftovers, no pictures or archives."""
    for name in names:
        path = PurePosixPath(name)
        hidden = any(part.startswith(".") or part in PASSED_OVER for part in path.parts)
        if not hidden and not BINARY.search(name):
            yield name


def choose(names: Iterable[str], many: int = MANY) -> list[str]:
    """A few files that stand for all: of each top folder in turn, first what introduces it, then what lies highest."""
    groups: dict[str, list[str]] = {}
    for name in names:
        path = PurePosixPath(name)
        groups.setdefault(path.parts[0] if len(path.parts) > 1 else "", []).append(name)

    def rank(name: str) -> tuple[bool, bool, int, str]:
        path = PurePosixPath(name)
        introduces = path.stem.lower() in ("readme", "guide", "index", "design", "overview", "introduction")
        return not introduces, path.name.startswith("_"), len(path.parts), name

    rounds = zip_longest(*(sorted(group, key=rank) for group in groups.values()))
    return [name for one in rounds for name in one if name is not None][:many]


def misspelt(path: str, names: Sequence[str]) -> str:
    """`path` as somebody in a hurry writes it: a name that nobody has."""
    given = PurePosixPath(path)
    for slip in (given.stem[:-1], given.stem[1:], f"{given.stem}s", f"{given.stem}-copy"):
        wrong = str(given.with_name(slip + given.suffix)) if slip else ""
        if wrong and wrong not in names:
            return wrong
    return f"{path}.missing"


# ----------------------------------------------------------------------------------------------- the reader of a file


def _read_a_file(context: Invocation) -> dict[str, Any]:
    asked = _asked(context[1].content or "")
    calls = {call.id: call for message in context for call in message.tool_calls}
    results = [message for message in context if message.role == "tool"]
    if not results:
        return _call("", "read", path=asked)
    last = results[-1]
    called = calls[last.tool_call_id or ""]
    tried = [str(call.args["path"]) for call in calls.values() if call.gate == "read" and call.args]
    if called.gate == "list":
        return _pick(asked, tried, last)
    if last.is_error:
        text = last.content or ""
        if text.startswith("no such file") and len(tried) == 1:
            folder = str(PurePosixPath(asked).parent)
            return _call("There is no such file. What is there?", "list", path=folder)
        return _call("I have to leave it.", "done", answer={"file": asked, "problem": text})
    path = tried[-1]
    pieces = [_piece(result.content or "") for result in results if result.gate == "read" and not result.is_error]
    onward = pieces[-1][1]
    if onward and len(pieces) < PIECES:
        return _call("It goes on.", "read", path=path, **onward)
    code = PurePosixPath(path).suffix.lower() not in PROSE
    figures = digest("".join(text for text, _ in pieces), code=code)
    answer = {"file": path, **figures, "whole": onward is None}
    if path != asked:
        answer["asked_for"] = asked
    return _call(f"{figures['words']:,} words.", "done", answer=answer)


def _asked(intent: str) -> str:
    found = re.search(r'"(?:[^"\\]|\\.)*"', intent)
    return str(json.loads(found[0])) if found else intent


def _pick(asked: str, tried: Sequence[str], listing: Message) -> dict[str, Any]:
    """The next file to try: of those that are really there, the one whose name is closest."""
    if not listing.is_error:
        there = [name for name in _names([listing]) if name not in tried]
        close = difflib.get_close_matches(asked, there, n=1, cutoff=0.0)
        if close:
            return _call(f'"{asked}" must have meant "{close[0]}".', "read", path=close[0])
    return _call("Nothing here could have been meant.", "done", answer={"file": asked, "problem": "it is not there"})


def _piece(text: str) -> tuple[str, dict[str, int] | None]:
    """What was read, without the note that follows a piece; and, from the note, where it goes on."""
    note = re.search(r"\n?\[(?:the file goes on: read it with offset=(\d+)(?:, column=(\d+))?)?[^\]\n]*\]$", text)
    if note is None:
        return text, None
    if note[1]:
        onward = {"offset": int(note[1])} | ({"column": int(note[2])} if note[2] else {})
        return text[: note.start()] + ("" if note[2] else "\n"), onward
    if "not UTF-8" in note[0]:
        return text[: note.start()], None
    return text, None


def digest(text: str, *, code: bool) -> dict[str, Any]:
    """What a text holds, in figures: what `wc` counts, and the headings of prose or the definitions of code."""
    lines = text.split("\n")
    terms = Counter(word for word in re.findall(r"[^\W\d_]{4,}", text.lower()) if not COMMON.fullmatch(word))
    return {
        "lines": text.count("\n"),
        "words": len(text.split()),
        "characters": len(text),
        "headings": 0 if code else sum(1 for _ in _headings(lines)),
        "definitions": sum(1 for line in lines if DEFINITION.match(line)) if code else 0,
        "longest_line": max(map(len, lines)),
        "terms": [[term, count] for term, count in sorted(terms.items(), key=lambda one: (-one[1], one[0]))[:8]],
    }


def _headings(lines: Iterable[str]) -> Iterator[str]:
    fenced = False
    for line in lines:
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and re.match(r"#{1,6} \S", line):
            yield line


# --------------------------------------------------------------------------------------------------------- the report


def _parsed(result: Message) -> list[Any]:
    """A result that is a list, as the list it was."""
    try:
        found = json.loads(result.content or "")
    except json.JSONDecodeError:
        return []
    return found if isinstance(found, list) else []


def _report(names: Sequence[str], texts: Sequence[str], answers: Sequence[Any]) -> dict[str, Any]:
    """The answer of the whole run: a text to read, and the figures in it for whoever wants to check them."""
    read = [one for one in answers if isinstance(one, dict) and "lines" in one]
    problems = [_trouble(one) for one in answers if not (isinstance(one, dict) and "lines" in one)]
    totals = {
        what: sum(one[what] for one in read) for what in ("lines", "words", "characters", "headings", "definitions")
    }
    terms: Counter[str] = Counter()
    for one in read:
        terms.update(dict(one["terms"]))
    common = [[term, count] for term, count in sorted(terms.items(), key=lambda one: (-one[1], one[0]))[:10]]
    steered = [{"asked_for": one["asked_for"], "read": one["file"]} for one in read if "asked_for" in one]
    return {
        "report": "\n".join(_prose(len(names), len(texts), read, totals, common, steered, problems)),
        "files": read,
        "totals": totals,
        "terms": common,
        "steered": steered,
        "problems": problems,
        "listed": len(names),
    }


def _trouble(answer: Any) -> str:
    if isinstance(answer, dict) and "problem" in answer:
        return f"{answer.get('file')}: {answer['problem']}"
    return str(answer.get("error") if isinstance(answer, dict) else answer)


def _prose(
    listed: int,
    texts: int,
    read: Sequence[Said],
    totals: Said,
    terms: Sequence[Sequence[Any]],
    steered: Sequence[Said],
    problems: Sequence[str],
) -> Iterator[str]:
    if not read and not problems:
        yield "The folder is empty." if not listed else f"Nothing to read among {_files(listed)}: no text by its name."
        return
    yield f"The folder lists {_files(listed)}, {texts:,} of them texts by their names; {len(read)} were read."
    if read:
        yield ""
        yield from _table(read, totals)
    if terms:
        yield ""
        yield "Most frequent: " + ", ".join(f"{term} ({count})" for term, count in terms) + "."
    for one in steered:
        yield f'"{one["asked_for"]}" was not there: "{one["read"]}" was read in its place.'
    for problem in problems:
        yield f"Not read: {problem}"


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def _table(read: Sequence[Said], totals: Said) -> Iterator[str]:
    """The figures, in columns that a terminal and Markdown both show well."""
    head = ("file", "lines", "words", "heads", "defs", "longest", "speaks of")
    rows: list[tuple[str, ...]] = [
        (
            str(one["file"]) + ("" if one["whole"] else " (begin)"),
            f"{one['lines']:,}",
            f"{one['words']:,}",
            f"{one['headings']:,}",
            f"{one['definitions']:,}",
            f"{one['longest_line']:,}",
            ", ".join(term for term, _ in one["terms"][:3]),
        )
        for one in read
    ]
    sums = (f"{totals[what]:,}" for what in ("lines", "words", "headings", "definitions"))
    rows.append(("all together", *sums, "", ""))
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, tuple("-" * width for width in widths), *rows):
        cells = [
            cell.ljust(width) if column in (0, 6) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"| {' | '.join(cells)} |"
