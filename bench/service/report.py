"""The results as tables for people, as JSON for programs, and as bars."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.peers.plot import Bar, draw_charts, render_page, write_page
from bench.peers.report import describe_machine
from bench.service.measuring import OURS, SERVICES, Cell, ServiceFigures

__all__ = ["as_json", "as_text", "find_ratio", "write_bars"]

TABLES = {
    "cpu_us": "CPU microseconds a request, all workers together",
    "requests_s": "Requests a second",
    "events": "Events of an answer",
    "first_ms": "Milliseconds until the first text, median",
    "whole_ms": "Milliseconds until the answer, median",
}


def find_ratio(measured: ServiceFigures, cell: Cell, figure: str) -> float | None:
    """Return a figure divided by that of ours on SQLite with as many workers and clients; None if one is missing."""
    ours = measured.figures.get(cell._replace(service=OURS), {}).get(figure)
    figures = measured.figures.get(cell)
    return None if not ours or figures is None else figures[figure] / ours


def _describe(measured: ServiceFigures) -> str:
    return f"{describe_machine()}; medians of {measured.rounds} rounds"


def _list_columns(measured: ServiceFigures) -> list[tuple[int, int]]:
    return sorted({(cell.workers, cell.clients) for cell in (*measured.figures, *measured.gaps)})


def _list_services(measured: ServiceFigures) -> list[str]:
    names = {cell.service for cell in (*measured.figures, *measured.gaps)}
    return [service.name for service in SERVICES if service.name in names]


def as_text(measured: ServiceFigures) -> str:
    """Return the tables; behind each figure is the ratio to ours on SQLite."""
    columns = _list_columns(measured)
    lines = [_describe(measured), f"(w: workers, c: clients; x: times {OURS})"]
    for figure, title in TABLES.items():
        lines += ["", f"{title:<28}"]
        lines.append(f"{'':<28}" + "".join(f"{f'{workers} w, {clients} c':>20}" for workers, clients in columns))
        for name in _list_services(measured):
            cells = [_render_cell(measured, Cell(name, *column), figure) for column in columns]
            if any(cell != "-" for cell in cells):
                lines.append(f"{name:<28}" + "".join(f"{cell:>20}" for cell in cells))
    lines += ["", *_list_gaps(measured), *(f"{name}: {version}" for name, version in measured.versions.items())]
    return "\n".join(lines)


def _render_cell(measured: ServiceFigures, cell: Cell, figure: str) -> str:
    if cell not in measured.figures:
        return "-"
    ratio = find_ratio(measured, cell, figure)
    times = "" if ratio is None or cell.service == OURS else f" (x {ratio:,.2f})"
    return f"{measured.figures[cell][figure]:,.0f}{times}"


def _list_gaps(measured: ServiceFigures) -> Iterator[str]:
    """Yield a line for each service, number of workers and reason."""
    for name, workers, reason in dict.fromkeys(
        (cell.service, cell.workers, reason) for cell, reason in measured.gaps.items()
    ):
        yield f"{name}, workers: {workers}: {reason}"


def as_json(measured: ServiceFigures, command: str) -> dict[str, Any]:
    """Return everything for programs."""
    cells = [
        {**cell._asdict(), **figures, "cpu_ratio": find_ratio(measured, cell, "cpu_us")}
        for cell, figures in measured.figures.items()
    ]
    gaps = [{**cell._asdict(), "reason": reason} for cell, reason in measured.gaps.items()]
    about = {"about": _describe(measured), "command": command, "versions": dict(measured.versions)}
    return {**about, "cells": cells, "gaps": gaps}


def write_bars(measured: ServiceFigures, folder: Path) -> None:
    """Write service.html, and service.png where a Chromium is on PATH."""
    drawing = draw_charts(
        (f"CPU a request, workers: {workers}, clients: {clients} (us, logarithmic; x: times ours)", bars)
        for workers, clients in _list_columns(measured)
        if (bars := list(_list_bars(measured, workers, clients)))
    )
    page = render_page("One service, by different libraries", _describe(measured), drawing, as_text(measured))
    write_page("service", page, drawing, folder)


def _list_bars(measured: ServiceFigures, workers: int, clients: int) -> Iterator[Bar]:
    for service in SERVICES:
        cell = Cell(service.name, workers, clients)
        if cell in measured.figures:
            ratio = find_ratio(measured, cell, "cpu_us")
            note = "" if ratio is None or service.name == OURS else f"  x {ratio:,.2f}"
            yield Bar(service.name, measured.figures[cell]["cpu_us"], note, is_ours=not service.requirements)
