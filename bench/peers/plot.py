"""The results as a page with bars, drawn as SVG, and a picture of that page by Chromium if there is one."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from bench.peers.measuring import Measured
from bench.peers.report import Column, as_text, describe, find_ratio
from bench.peers.subjects import SUBJECTS

__all__ = ["Bar", "draw_charts", "draw_svg", "render_page", "write_page", "write_plots"]

LABEL, BAR, ROW, WIDTH = 220, 560, 22, 980
"""Pixels: the labels' width, the longest bar, a row's height, the whole picture."""
COLOURS = {"ours": "#2f6f4f", "peer": "#8a97a8"}
CHARTS = (
    ("CPU a turn, 200 turns", "us", Column("", "200", "cpu_us")),
    ("CPU a turn, 200 agents of 20 turns at once", "us", Column("", "20x200", "cpu_us")),
    ("Bytes on disk a turn", "bytes", Column("", "20", "bytes")),
)


class Bar(NamedTuple):
    """One bar of a chart."""

    label: str
    value: float
    note: str
    is_ours: bool


def draw_svg(measured: Measured) -> str:
    """Return the bars of the main figures, on a logarithmic scale, with the ratios to ours."""
    return draw_charts(
        (f"{title} ({unit}, logarithmic; x: times ours)", list(_list_bars(measured, column)))
        for title, unit, column in CHARTS
    )


def _list_bars(measured: Measured, column: Column) -> Iterator[Bar]:
    for subject in SUBJECTS:
        figure = measured.figures.get((subject.name, column.work), {}).get(column.figure)
        if figure is not None:
            ratio = find_ratio(measured, subject, column)
            note = f"  x {ratio:,.1f}" if ratio is not None and subject.requirements else ""
            yield Bar(subject.name, figure, note, is_ours=not subject.requirements)


def draw_charts(charts: Iterable[tuple[str, Sequence[Bar]]]) -> str:
    """Return an SVG with the bars below each title, on a logarithmic scale; a chart without bars is left out."""
    parts: list[str] = []
    top = 10
    for title, bars in charts:
        if bars:
            parts += _draw_chart(title, bars, top)
            top += ROW * (len(bars) + 2)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}"'
    style = 'font-family="system-ui, sans-serif" font-size="13"'
    return "\n".join([f'{head} {style}><rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>"])


def _draw_chart(title: str, bars: Sequence[Bar], top: int) -> Iterator[str]:
    values = [max(bar.value, 1.0) for bar in bars]
    least = 10 ** math.floor(math.log10(min(values)))
    decades = max(math.log10(max(values) / least), 1e-9)
    yield f'<text x="0" y="{top + 14}" font-weight="600">{escape(title)}</text>'
    for number, (bar, value) in enumerate(zip(bars, values, strict=True), 1):
        y = top + ROW * number
        length = max(2.0, math.log10(value / least) / decades * BAR)
        colour = COLOURS["ours" if bar.is_ours else "peer"]
        yield f'<text x="{LABEL - 8}" y="{y + 14}" text-anchor="end">{escape(bar.label)}</text>'
        yield f'<rect x="{LABEL}" y="{y + 2}" width="{length:.1f}" height="{ROW - 6}" fill="{colour}"/>'
        yield f'<text x="{LABEL + length + 6:.1f}" y="{y + 14}">{value:,.0f}{escape(bar.note)}</text>'


def render_page(title: str, about: str, drawing: str, tables: str) -> str:
    """Return a page: the bars, and below them the tables as text."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        '<body style="margin:20px;font-family:system-ui,sans-serif;background:#fff;color:#111">'
        f"<h1 style='font-size:20px'>{escape(title)}</h1><p>{escape(about)}</p>"
        f"{drawing}<pre style='font-size:12px'>{escape(tables)}</pre></body></html>"
    )


def write_plots(measured: Measured, folder: Path) -> None:
    """Write peers.html, and peers.png where a Chromium is on PATH; without one, print that it is missing."""
    drawing = draw_svg(measured)
    page = render_page("The same work by other libraries", describe(measured), drawing, as_text(measured))
    write_page("peers", page, drawing, folder)


def write_page(name: str, page: str, drawing: str, folder: Path) -> None:
    """Write the page, and the drawing as a picture where a Chromium is on PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.html").write_text(page, encoding="utf-8")
    chromium = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
    if chromium is None:
        print(f"no {name}.png: no Chromium on PATH", file=sys.stderr)
        return
    height = drawing.partition('height="')[2].partition('"')[0]
    picture = folder / f"{name}.png"
    with tempfile.TemporaryDirectory(prefix="bench-") as profile:
        source = Path(profile) / f"{name}.svg"
        source.write_text(drawing, encoding="utf-8")
        subprocess.run(
            [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
             f"--screenshot={picture.resolve()}", f"--window-size={WIDTH},{height}", source.as_uri()],
            check=False, capture_output=True, timeout=120,
        )  # fmt: skip
    if not picture.exists():
        print(f"no {name}.png: {chromium} wrote none", file=sys.stderr)
