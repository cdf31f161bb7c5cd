"""The results as tables for people and as JSON for programs."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from bench.peers.measuring import Measured
from bench.peers.subjects import SUBJECTS, WORKS, Subject

__all__ = ["TABLES", "Column", "Table", "as_json", "as_text", "describe_machine", "find_ratio"]


class Column(NamedTuple):
    """One figure of one work."""

    title: str
    work: str
    figure: str
    has_ratio: bool = True


class Table(NamedTuple):
    """Figures with one unit."""

    title: str
    columns: tuple[Column, ...]


def _list_columns(figure: str) -> tuple[Column, ...]:
    titles = {
        "20": "20 turns",
        "200": "200",
        "2000": "2,000",
        "20x200": "200 x 20",
        "children": "a child",
        "stream": "a chunk",
    }
    return tuple(Column(title, work, figure) for work, title in titles.items())


TABLES = (
    Table("CPU microseconds a turn", _list_columns("cpu_us")),
    Table("Wall clock microseconds a turn", _list_columns("wall_us")),
    Table(
        "Memory, disk and resuming",
        (
            Column("MB, 200 turns", "200", "peak_mb"),
            Column("MB, 2,000", "2000", "peak_mb"),
            Column("MB, 200 x 20", "20x200", "peak_mb"),
            Column("bytes a turn", "20", "bytes"),
            Column("resume, CPU ms", "resume", "cpu_ms"),
            Column("asked again", "resume", "queries_again", has_ratio=False),
        ),
    ),
)


def find_ratio(measured: Measured, subject: Subject, column: Column) -> float | None:
    """Return a subject's figure divided by that of ours with the same kind of store; None if either is missing."""
    figures = measured.figures.get((subject.name, column.work))
    ours = measured.figures.get((subject.ours, column.work))
    if not figures or not ours or not column.has_ratio or not ours.get(column.figure):
        return None
    return figures[column.figure] / ours[column.figure]


def describe(measured: Measured) -> str:
    """Return the sentence about the machine, the day and the way."""
    return f"{describe_machine()}; medians of {measured.rounds} rounds"


def describe_machine() -> str:
    """Return the day, the machine and its load."""
    load = f", load {os.getloadavg()[0]:.0f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{datetime.now(UTC):%d %B %Y}; Python {platform.python_version()}, {platform.machine()}, "
        f"{os.cpu_count()} cores{load}"
    )


def as_text(measured: Measured) -> str:
    """Return the tables; behind each figure is the ratio to ours with the same kind of store."""
    lines = [describe(measured), "(x: times ours with the same kind of store)"]
    for table in TABLES:
        columns = [column for column in table.columns if any(work == column.work for _, work in measured.figures)]
        lines += ["", f"{table.title:<32}" + "".join(f"{column.title:>18}" for column in columns)]
        for subject in _list_subjects(measured):
            cells = [f"{_render_cell(measured, subject, column):>18}" for column in columns]
            if any(cell.strip() != "-" for cell in cells):
                lines.append(f"{subject.name:<32}" + "".join(cells))
    lines += ["", *list_gaps(measured), "", *(f"{name}: {version}" for name, version in measured.versions.items())]
    return "\n".join(lines)


def _list_subjects(measured: Measured) -> list[Subject]:
    names = {name for name, _ in (*measured.figures, *measured.gaps)}
    return [subject for subject in SUBJECTS if subject.name in names]


def _render_cell(measured: Measured, subject: Subject, column: Column) -> str:
    figures = measured.figures.get((subject.name, column.work), {})
    if column.figure not in figures:
        return "-"
    ratio = find_ratio(measured, subject, column)
    times = "" if ratio is None or subject.name == subject.ours else f" (x {ratio:,.1f})"
    return f"{figures[column.figure]:,.0f}{times}"


def list_gaps(measured: Measured) -> Iterator[str]:
    """Yield a line for each subject and reason, with the works that have no figures because of it."""
    for subject in _list_subjects(measured):
        works: dict[str, list[str]] = {}
        for (name, work), reason in measured.gaps.items():
            if name == subject.name:
                works.setdefault(reason, []).append(work)
        for reason, names in works.items():
            yield f"{subject.name}: {', '.join(names)}: {reason}"


def as_json(measured: Measured, command: str) -> dict[str, Any]:
    """Return everything for programs: figures, ratios and gaps, by subject and work."""
    subjects: dict[str, Mapping[str, Any]] = {}
    for subject in _list_subjects(measured):
        works: dict[str, Mapping[str, Any]] = {}
        for work in WORKS:
            key = subject.name, work.name
            if key in measured.gaps:
                works[work.name] = {"reason": measured.gaps[key]}
            elif key in measured.figures:
                works[work.name] = measured.figures[key]
        subjects[subject.name] = {"versions": measured.versions.get(subject.name, ""), "works": works}
    ratios = {
        f"{subject.name}: {column.work} {column.figure}": ratio
        for subject in _list_subjects(measured)
        for table in TABLES
        for column in table.columns
        if subject.name != subject.ours and (ratio := find_ratio(measured, subject, column)) is not None
    }
    return {"about": describe(measured), "command": command, "subjects": subjects, "ratios": ratios}
