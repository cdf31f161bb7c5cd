"""Draw docs/loop.md, and the phases in docs/recovery.md, from the table in cantrip_actors/machine/loop.py.

The table is the only list of the loop's transitions; tests/machine/test_loop.py compares it with the loop. A row
names phases and what may come next; `as X`: the next phases and actions of the rows of event X.
"""

import argparse
import ast
import re
import sys
from pathlib import Path
from typing import NamedTuple

from tools.pages import ROOT, settle

SOURCE = ROOT / "cantrip_actors" / "machine" / "loop.py"
PAGE = ROOT / "docs" / "loop.md"
RECOVERY = ROOT / "docs" / "recovery.md"

BEGIN = "<!-- Made by `python -m tools.diagram` from the table in cantrip_actors/machine/loop.py; do not edit. -->\n"
END = "<!-- The end of the made part. -->\n"

HEAD = f"""\
{BEGIN}
# The loop of an entity

A pure state machine decides what an entity does next: an event comes in, and the next phase, the records for the loom
and one action come out. The entity's actor appends the records before it carries out the action.
[Resume entities after a crash](recovery.md) shows the phases alone.
"""


class Row(NamedTuple):
    """One transition: in `phase`, `event` leads to `after`, and `action` is to be carried out."""

    phase: str
    event: str
    after: str
    action: str
    when: str


def table(source: Path = SOURCE) -> list[Row]:
    """Return the transitions in the module's docstring, one a row, with `as X` spelled out."""
    doc = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    lines = doc.splitlines()
    at = next(n for n, line in enumerate(lines) if re.match(r"\s+phase\s+event\s+next phase", line))
    starts = [lines[at].index(title) for title in ("phase", "event", "next phase", "action", "when")]
    rows: list[Row] = []
    for line in lines[at + 1 :]:
        if not line.strip():
            break
        ends = [*starts[1:], len(line)]
        phases, event, after, action, when = (line[a:b].strip() for a, b in zip(starts, ends, strict=True))
        for phase in phases.split(", "):
            if after.startswith("as "):
                like = [row for row in rows if row.event == after[3:]]
                rows += [Row(phase, event, row.after, row.action, row.when) for row in like]
            else:
                rows += [Row(phase, event, after_phase, action, when) for after_phase in after.split(", ")]
    return rows


def render() -> str:
    """Return the page: the diagram, then the table."""
    rows = table()
    arrows: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        labels = arrows.setdefault((row.phase, row.after), [])
        if (label := f"{row.event} / {row.action}") not in labels:
            labels.append(label)
    lines = [HEAD, "```mermaid", "stateDiagram-v2", f"    [*] --> {rows[0].phase}"]
    lines += [f"    {phase} --> {after}: {', '.join(labels)}" for (phase, after), labels in arrows.items()]
    lines += ["    OVER --> [*]", "```", "", "| phase | event | next phase | action | when |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join((*lines, ""))


def render_phases() -> str:
    """Return a diagram of the phases alone, with the possible actions in each and the events on each arrow."""
    rows = table()
    arrows: dict[tuple[str, str], dict[str, None]] = {}
    actions: dict[str, dict[str, None]] = {}
    for row in rows:
        actions.setdefault(row.after, {})[row.action] = None
        if row.phase != row.after:
            arrows.setdefault((row.phase, row.after), {})[row.event] = None
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {rows[0].phase}"]
    lines += [f"    {phase}: {phase} ({', '.join(under_way)})" for phase, under_way in actions.items()]
    lines += [f"    {phase} --> {after}: {', '.join(events)}" for (phase, after), events in arrows.items()]
    return "\n".join((*lines, "    OVER --> [*]", "```", ""))


def replace_made_part(page: str, part: str) -> str:
    """Return a page with the text between its marks replaced by `part`."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{part}\n{END}{after}"


def main(arguments: list[str] | None = None) -> int:
    """Write docs/loop.md and the generated part of docs/recovery.md, or compare them."""
    parser = argparse.ArgumentParser(prog="python -m tools.diagram", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    check = parser.parse_args(arguments).check
    recovery = replace_made_part(RECOVERY.read_text(encoding="utf-8"), render_phases())
    return max(settle(PAGE, render(), check=check), settle(RECOVERY, recovery, check=check))


if __name__ == "__main__":
    sys.exit(main())
