"""Pictures for the documentation, made of what tests see: `PICTURES=1` writes them to docs/pictures."""

import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from rich.console import Console
from rich.text import Text

__all__ = ["folder_for", "screen_svg", "trace_svg"]

DOCS = Path(__file__).parents[1] / "docs" / "pictures"

ROW, NAMES, BARS, EDGE = 28, 330, 470, 18
"""Pixels: the height of a row, the width of the names, of the bars, and of the edge."""

STYLE = """
  .page { fill: #fbfaf7; stroke: #e0dbd0 } .row { fill: #eeebe4; opacity: .5 } .dim { fill: #635e56 }
  text { font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1d1f27 }
  .invoke_agent { fill: #7a62e0 } .chat { fill: #2f7fd1 } .execute_tool { fill: #2d9a66 } .other { fill: #98928a }
  .error { fill: #c9352c }
  @media (prefers-color-scheme: dark) {
    .page { fill: #14151c; stroke: #2a2d3a } .row { fill: #232530 } text { fill: #e9e7e1 } .dim { fill: #a3a0ab }
    .invoke_agent { fill: #b3a4ff } .chat { fill: #7cb8ff } .execute_tool { fill: #71d39e } .error { fill: #ff9189 }
  }"""


def folder_for(tmp_path: Path) -> Path:
    """Return where a test writes its pictures."""
    return DOCS if os.environ.get("PICTURES") else tmp_path


def trace_svg(spans: Sequence[Any]) -> str:
    """Draw ended spans as a back end shows a trace: a row each, indented below its parent, with a bar for its time."""
    known = {span.context.span_id for span in spans}
    begin = min(span.start_time for span in spans)
    whole = max(span.end_time for span in spans) - begin
    rows: list[str] = []

    def draw(parent: int | None, depth: int) -> None:
        for span in spans:
            above = None if span.parent is None or span.parent.span_id not in known else span.parent.span_id
            if above != parent:
                continue
            top = EDGE + ROW * len(rows)
            kind = span.name.partition(" ")[0]
            kind = kind if kind in ("invoke_agent", "chat", "execute_tool") else "other"
            error = span.attributes.get("error.type")
            left = EDGE + NAMES + BARS * (span.start_time - begin) / whole
            width = max(2.0, BARS * (span.end_time - span.start_time) / whole)
            shade = f'<rect class="row" x="1" y="{top}" width="{WIDTH - 2}" height="{ROW}"/>' if len(rows) % 2 else ""
            told = f"{(span.end_time - span.start_time) / 1e6:.0f} ms" + (f"  {error}" if error else "")
            beside = left + width + 6 if left + width < EDGE + NAMES + BARS * 0.72 else left - 6
            anchor = "start" if beside > left else "end"
            kind = "error" if error else kind
            rows.append(
                f'{shade}<text x="{EDGE + 16 * depth}" y="{top + 18}">{escape(span.name)}</text>\n'
                f'<rect class="{kind}" x="{left:.1f}" y="{top + 8}" width="{width:.1f}" height="12" rx="3"/>\n'
                f'<text class="dim" x="{beside:.1f}" y="{top + 18}" text-anchor="{anchor}">{escape(told)}</text>'
            )
            draw(span.context.span_id, depth + 1)

    draw(None, 0)
    height = 2 * EDGE + ROW * len(rows)
    body = "\n".join(rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
        f'<style>{STYLE}</style><rect class="page" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="12"/>\n'
        f"{body}\n</svg>\n"
    )


WIDTH = 2 * EDGE + NAMES + BARS

FORMAT = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
line-height: {line_height}px; font-variant-east-asian: full-width }} {styles}</style>
<defs>{lines}</defs>
<rect width="{width}" height="{height}" rx="8" fill="#0f1015"/>
<g transform="translate(9, 14)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def screen_svg(lines: Iterable[Text], columns: int) -> str:
    """Draw the lines of a terminal."""
    console = Console(record=True, width=columns, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    for line in lines:
        console.print(line, no_wrap=True, crop=True)
    return console.export_svg(title="", code_format=FORMAT)
