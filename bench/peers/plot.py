"""The results as a page with bars, drawn as SVG, and a picture of that page by Chromium if there is one."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path

from bench.peers.measuring import Measured
from bench.peers.report import Column, as_text, describe, find_ratio
from bench.peers.subjects import SUBJECTS, Subject

__all__ = ["draw_svg", "write_plots"]

LABEL, BAR, ROW, WIDTH = 220, 560, 22, 980
"""Pixels: the labels' width, the longest bar, a row's height, the whole picture."""
COLOURS = {"ours": "#2f6f4f", "peer": "#8a97a8"}
CHARTS = (
    ("CPU a turn, 200 turns", "us", Column("", "200", "cpu_us")),
    ("CPU a turn, 200 agents of 20 turns at once", "us", Column("", "20x200", "cpu_us")),
    ("Bytes on disk a turn", "bytes", Column("", "20", "bytes")),
)


def draw_svg(measured: Measured) -> str:
    """Return the bars of the main figures, on a logarithmic scale, with the ratios to ours."""
    parts: list[str] = []
    top = 10
    for title, unit, column in CHARTS:
        rows = [(subject, value) for subject in SUBJECTS if (value := _find(measured, subject, column)) is not None]
        if rows:
            parts += _draw_chart(measured, f"{title} ({unit}, logarithmic; x: times ours)", column, rows, top)
            top += ROW * (len(rows) + 2)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}"'
    style = 'font-family="system-ui, sans-serif" font-size="13"'
    return "\n".join([f'{head} {style}><rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>"])


def _find(measured: Measured, subject: Subject, column: Column) -> float | None:
    figure = measured.figures.get((subject.name, column.work), {}).get(column.figure)
    return None if figure is None else max(figure, 1.0)


def _draw_chart(
    measured: Measured, title: str, column: Column, rows: list[tuple[Subject, float]], top: int
) -> Iterator[str]:
    least = 10 ** math.floor(math.log10(min(value for _, value in rows)))
    decades = max(math.log10(max(value for _, value in rows) / least), 1e-9)
    yield f'<text x="0" y="{top + 14}" font-weight="600">{escape(title)}</text>'
    for number, (subject, value) in enumerate(rows, 1):
        y = top + ROW * number
        length = max(2.0, math.log10(value / least) / decades * BAR)
        colour = COLOURS["peer" if subject.requirements else "ours"]
        ratio = find_ratio(measured, subject, column)
        times = f"  x {ratio:,.1f}" if ratio is not None and subject.requirements else ""
        yield f'<text x="{LABEL - 8}" y="{y + 14}" text-anchor="end">{escape(subject.name)}</text>'
        yield f'<rect x="{LABEL}" y="{y + 2}" width="{length:.1f}" height="{ROW - 6}" fill="{colour}"/>'
        yield f'<text x="{LABEL + length + 6:.1f}" y="{y + 14}">{value:,.0f}{times}</text>'


def render_page(measured: Measured) -> str:
    """Return the page: the bars, and below them the tables as text."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>The same work by other libraries</title>'
        '<body style="margin:20px;font-family:system-ui,sans-serif;background:#fff;color:#111">'
        f"<h1 style='font-size:20px'>The same work by other libraries</h1><p>{escape(describe(measured))}</p>"
        f"{draw_svg(measured)}<pre style='font-size:12px'>{escape(as_text(measured))}</pre></body></html>"
    )


def write_plots(measured: Measured, folder: Path) -> None:
    """Write peers.html, and peers.png where a Chromium is on PATH; without one, print that it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "peers.html").write_text(render_page(measured), encoding="utf-8")
    chromium = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
    if chromium is None:
        print("no peers.png: no Chromium on PATH", file=sys.stderr)
        return
    drawing = draw_svg(measured)
    height = drawing.partition('height="')[2].partition('"')[0]
    with tempfile.TemporaryDirectory(prefix="bench-") as profile:
        page = Path(profile) / "peers.svg"
        page.write_text(drawing, encoding="utf-8")
        subprocess.run(
            [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
             f"--screenshot={(folder / 'peers.png').resolve()}", f"--window-size={WIDTH},{height}", page.as_uri()],
            check=False, capture_output=True, timeout=120,
        )  # fmt: skip
    if not (folder / "peers.png").exists():
        print(f"no peers.png: {chromium} wrote none", file=sys.stderr)
