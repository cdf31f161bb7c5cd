"""Programs: find the program in a crystal's response, and render its result for the crystal (SPEC 4.2).

A program runs in the circle's sandbox until it calls a gate, which is then treated like any other call, and continues
with the answer. The crystal sees its output, and its last value or its error (CIRCLE-4, CIRCLE-5). After `done` it runs
to its end with all gates closed, so that its variables get the values that the entity meant (D-003).

The state of a sandbox results from its programs. To rebuild a sandbox, after a crash or for a fork, the circle restores
the newest usable snapshot and runs the later programs again with their recorded answers: no gate runs again.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from cantrip_actors.terms.languages import Language
from cantrip_actors.terms.messages import Response, as_text

PREVIEW = 8_000
"""Characters of output, or of a value, that the crystal sees; the loom has all of them."""

END = 2_000
"""How many of these characters come from the end, where a program usually prints its result."""

UNDONE = "what this program changed in its sandbox is undone, what it did through gates is not"

_FENCE = re.compile(
    r"^(?P<indent>[ \t]*+)(?P<fence>`{3,}+|~{3,}+)[ \t]*+(?P<language>[A-Za-z0-9_+-]*+)[^`\n]*+\n"
    r"(?P<code>.*?)(?:^[ \t]*+(?P=fence)[`~]*+[ \t]*+$|(?P<unended>\Z))",
    re.MULTILINE | re.DOTALL,
)
"""A fenced block of Markdown: its lines may be indented, as in a list, and it may end at the end of the text.

No repetition gives characters back: a model may write a million tildes, and would hold up the process.
"""

_BEGINS = re.compile(r"\s*(?:`{3}|~{3})")


def extract_code(response: Response, language: Language | None) -> str | None:
    """Return the program of a response: the crystal's `code`, else the fenced blocks in the circle's language."""
    if language is None:
        return response.code
    fences = language.fences or (language.name, "")
    if response.code is None and response.content is not None and not response.tool_calls:
        return _extract_fenced_blocks(_normalise_lines(response.content), fences)
    if response.code is None:
        return None
    code = _normalise_lines(response.code)
    return (_BEGINS.match(code) and _extract_fenced_blocks(code, fences)) or code


def _normalise_lines(text: str) -> str:
    """Return a program's text with LF line ends and without a byte order mark, as all mediums read it."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _extract_fenced_blocks(text: str, fences: Collection[str]) -> str | None:
    """Return the blocks in the circle's language. A block without an end counts only if it names its language."""
    blocks = []
    for block in _FENCE.finditer(text):
        language = block["language"].lower()
        if language in fences and (language or block["unended"] is None):
            indent = len(block["indent"])
            blocks.append(re.sub(rf"^[ \t]{{0,{indent}}}", "", block["code"], flags=re.MULTILINE))
    return "\n".join(blocks) or None


def render_result_text(result: Any) -> str:
    """Return a program's result as the crystal reads it: output, value and error, each shortened if it is long."""
    parts = []
    if "output" in result:
        parts.append(_render_preview(result["output"].rstrip("\n"), "output"))
    if "value" in result:
        parts.append("=> " + _render_preview(as_text(result["value"]), "value"))
    if "error" in result:
        parts.append("error: " + _render_preview(result["error"], "error"))
    if "limit" in result:
        parts.append(f"limit exceeded: {result['limit']}; {UNDONE}")
    return "\n".join(parts) or "[no output]"


def _render_preview(text: str, what: str) -> str:
    if len(text) <= PREVIEW:
        return text
    left = len(text) - PREVIEW
    seen = (
        f"{left} of the {len(text)} characters of this {what} are left out here; keep it in a variable, look at parts"
    )
    return f"{text[: PREVIEW - END]}\n[{seen}]\n{text[-END:]}"
