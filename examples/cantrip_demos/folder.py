"""`cantrip demo`: an entity and its children read a folder; supervision, gates, children and the loom are real.

Only the crystal is scripted: `policy` is a pure function of the messages, in the place of a language model. It learns
the files of the folder from `list`, the text of a file from `read`, and the figures of the report from its children.

Two roles share the script, as they would share a model, told apart by their system prompt. The *reader of a folder*
lists it and has a child read each of a few files, one of them under a misspelt name. The *reader of a file* counts what
it reads; if there is no such file it looks around and takes the file with the closest name.
"""

from __future__ import annotations

import difflib
import json
import mimetypes
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any, Final

import cantrip_actors
from cantrip_actors import Call, Cantrip, Circle, Invocation, Message
from cantrip_actors.gates import standard
from cantrip_actors.wards import max_depth, max_turns, timeout
from cantrip_demos.script import scripted_demo

__all__ = ["FILE_READER", "FOLDER_READER", "INTENT", "demo_cantrip", "own_folder", "policy", "report"]

FOLDER_READER: Final = "You read folders. List what is there, have a child read each file that matters, and report."
FILE_READER: Final = "You read one file and report what it holds. If it is not there, find the one that was meant."
INTENT: Final = "What does this folder hold? Read its files and report."

MANY: Final = 10
"""Files that are read, each by a child of its own."""

PAGES: Final = 5
"""Pages of a long listing that are asked for."""

SKIPPED: Final = frozenset(("__pycache__", "node_modules", "site-packages", "venv", "dist", "build", "target"))
_TEXT_TYPES: Final = re.compile(r"text/.*|application/(json|(x-)?javascript|toml|xml|(x-)?sh)|")
_MORE_FILES: Final = re.compile(r"continue with offset=(\d+)\]$")
_MORE_TEXT: Final = re.compile(r"\n?\[the file has more: [^\]\n]*\]$")

Answer = Mapping[str, Any]


def own_folder() -> Path:
    """Return the folder that the demo reads by default: this project if it is there, else the installed sources."""
    package = Path(cantrip_actors.__file__).parent
    project = package.parent
    return project if (project / "docs").is_dir() and (project / "pyproject.toml").is_file() else package


def demo_cantrip(folder: Path, pace: float = 0.0) -> Cantrip:
    """Return a reader of `folder`. Each answer of its crystal takes `pace` seconds, so that people can follow."""
    files = [standard(name).with_(root=folder) for name in ("list", "read")]
    return Cantrip(
        crystal=scripted_demo(policy, pace),
        call=Call(system_prompt=FOLDER_READER, require_done_tool=True),
        circle=Circle(["done", *files, "call_agent_batch"], [max_turns(20), max_depth(1), timeout(120)]),
        name="demo",
    )


def report(result: Any) -> Iterator[str]:
    """Yield the lines of the root entity's report."""
    text = result.get("report", "") if isinstance(result, dict) else str(result)
    yield from text.splitlines()


def policy(context: Invocation) -> dict[str, Any]:
    """Return what the crystal says next."""
    return _read_a_file(context) if context[0].content == FILE_READER else _read_a_folder(context)


def _call(content: str, gate: str, **args: Any) -> dict[str, Any]:
    return {"content": content, "tool_calls": [{"gate": gate, "args": args}]}


def _list_items(result: Message) -> list[Any]:
    """Return the list that a gate returned, an empty one for anything else."""
    try:
        items = json.loads(result.content or "")
    except json.JSONDecodeError:
        return []
    return items if isinstance(items, list) else []


# --------------------------------------------------------------------------------------------- the reader of a folder


def _read_a_folder(context: Invocation) -> dict[str, Any]:
    results = [message for message in context if message.role == "tool"]
    if not results:
        return _call("I begin with what is there.", "list", recursive=True)
    last = results[-1]
    if last.is_error and not _list_items(last):
        return _call("That did not work.", "done", answer={"report": f"No report: {last.content}"})
    names = _list_files(results)
    if last.gate == "call_agent_batch":
        return _call("Everybody is back: I put it together.", "done", answer=_build_report(names, _list_items(last)))
    onward = _MORE_FILES.search(str((_list_items(last) or [""])[-1]))
    if onward and len(results) < PAGES:
        return _call("The listing continues.", "list", recursive=True, offset=int(onward[1]))
    chosen = choose(filter(is_text, names))
    if not chosen:
        return _call("There is nothing to read.", "done", answer=_build_report(names, []))
    paths = [*chosen[:-1], misspell(chosen[-1], names)]
    words = f"{len(chosen)} files, a child for each" if len(chosen) > 1 else "one file, a child for it"
    return _call(words, "call_agent_batch", intents=[_make_request(path) for path in paths])


def _make_request(path: str) -> dict[str, Any]:
    return {
        "intent": f"Read the file {json.dumps(path, ensure_ascii=False)} and report what it holds.",
        "system_prompt": FILE_READER,
        "gates": ["read", "list", "done"],
        "max_turns": 8,
    }


def _list_files(results: Iterable[Message]) -> list[str]:
    """Return every path that was listed, without folders and notes."""
    listed = [
        path for result in results if result.gate == "list" and not result.is_error for path in _list_items(result)
    ]
    return [str(path) for path in listed if not str(path).endswith(("/", "]"))]


def is_text(name: str) -> bool:
    """Whether a file is likely a text, by its name: not hidden, not generated, no image or archive."""
    skipped = any(part.startswith(".") or part in SKIPPED for part in PurePosixPath(name).parts)
    kind, packed = mimetypes.guess_type(name)
    return not skipped and packed is None and _TEXT_TYPES.fullmatch(kind or "") is not None


def choose(names: Iterable[str], many: int = MANY) -> list[str]:
    """Return a few files that stand for all: of each top folder in turn, introductions first, then the highest."""
    groups: dict[str, list[str]] = {}
    for name in names:
        path = PurePosixPath(name)
        groups.setdefault(path.parts[0] if len(path.parts) > 1 else "", []).append(name)

    def rank(name: str) -> tuple[bool, bool, int, str]:
        path = PurePosixPath(name)
        introduces = path.stem.lower() in ("readme", "guide", "index", "design", "overview", "introduction")
        return not introduces, path.name.startswith("_"), len(path.parts), name

    rounds = zip_longest(*(sorted(group, key=rank) for group in groups.values()))
    return [name for names in rounds for name in names if name is not None][:many]


def misspell(path: str, names: Sequence[str]) -> str:
    """Return `path` with a slip of the pen: a name that no file has."""
    original = PurePosixPath(path)
    for slip in (original.stem[:-1], original.stem[1:], f"{original.stem}s", f"{original.stem}-copy"):
        wrong = str(original.with_name(slip + original.suffix)) if slip else ""
        if wrong and wrong not in names:
            return wrong
    return f"{path}.missing"


# ----------------------------------------------------------------------------------------------- the reader of a file


def _read_a_file(context: Invocation) -> dict[str, Any]:
    quoted = re.search(r'"(?:[^"\\]|\\.)*"', context[1].content or "")
    path = str(json.loads(quoted[0])) if quoted else ""
    tried = [str(call.args["path"]) for m in context for call in m.tool_calls if call.gate == "read" and call.args]
    if not tried:
        return _call("", "read", path=path)
    last = context[-1]
    text = last.content or ""
    if last.gate == "list" and not last.is_error:
        there = [name for name in _list_files([last]) if name not in tried]
        for meant in difflib.get_close_matches(path, there, n=1, cutoff=0.0):
            return _call(f'"{path}" must have meant "{meant}".', "read", path=meant)
        text = "it is not there"
    elif not last.is_error:
        answer = count(_MORE_TEXT.sub("", text)) | {"file": tried[-1], "whole": _MORE_TEXT.search(text) is None}
        if tried[-1] != path:
            answer["asked_for"] = path
        return _call(f"{answer['words']:,} words.", "done", answer=answer)
    elif last.gate == "read" and text.startswith("no such file") and len(tried) == 1:
        return _call("There is no such file. What is there?", "list", path=str(PurePosixPath(path).parent))
    return _call("I have to leave it.", "done", answer={"file": path, "problem": text})


def count(text: str) -> dict[str, Any]:
    """Return the figures of a text, as `wc` counts them."""
    return {"lines": text.count("\n"), "words": len(text.split()), "characters": len(text)}


# --------------------------------------------------------------------------------------------------------- the report


def _build_report(names: Sequence[str], answers: Sequence[Any]) -> dict[str, Any]:
    """Return the answer of the whole run: a text to read, and the figures in it for programs."""
    read = [answer for answer in answers if isinstance(answer, dict) and "lines" in answer]
    answer = {
        "files": read,
        "totals": {what: sum(answer[what] for answer in read) for what in ("lines", "words", "characters")},
        "steered": [
            {"asked_for": answer["asked_for"], "read": answer["file"]} for answer in read if "asked_for" in answer
        ],
        "problems": [
            _describe_problem(answer) for answer in answers if not (isinstance(answer, dict) and "lines" in answer)
        ],
        "listed": len(names),
        "texts": sum(map(is_text, names)),
    }
    return {"report": "\n".join(_render_lines(answer)), **answer}


def _describe_problem(answer: Any) -> str:
    if isinstance(answer, dict) and "problem" in answer:
        return f"{answer.get('file')}: {answer['problem']}"
    return str(answer.get("error") if isinstance(answer, dict) else answer)


def _render_lines(answer: Answer) -> Iterator[str]:
    read, listed = answer["files"], answer["listed"]
    if not listed:
        yield "The folder is empty."
        return
    files = "1 file" if listed == 1 else f"{listed:,} files"
    yield f"The folder lists {files}, {answer['texts']:,} of them texts by their names; {len(read)} were read."
    if read:
        rows = [(answer["file"] + ("" if answer["whole"] else " (begin)"), answer) for answer in read]
        rows.append(("all together", answer["totals"]))
        width = max(len(name) for name, _ in rows)
        yield f"\n| {'file':{width}} |   lines |     words | characters |"
        yield f"| {'-' * width} | ------: | --------: | ---------: |"
        for name, row in rows:
            yield f"| {name:{width}} | {row['lines']:>7,} | {row['words']:>9,} | {row['characters']:>10,} |"
        yield ""
    for row in answer["steered"]:
        yield f'"{row["asked_for"]}" was not there: "{row["read"]}" was read in its place.'
    for problem in answer["problems"]:
        yield f"Not read: {problem}"
