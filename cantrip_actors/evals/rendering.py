"""A report for people: the lines of a table for a terminal, and one HTML file without scripts or links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any, Final

from cantrip_actors.evals.bootstrap import Interval
from cantrip_actors.evals.report import Comparison, Report, Trial
from cantrip_actors.evals.scorers import render_value

LISTED: Final = 10
"""How many cases a line names."""

_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{border-bottom:1px solid #ccc;padding:.3rem .8rem;"
    "text-align:left;vertical-align:top;overflow-wrap:anywhere}.problem{color:#a00}"
)


def render_lines(report: Report, comparison: Comparison | None = None) -> list[str]:
    """Return a report, and its comparison with an earlier one, as lines for a terminal."""
    lines = [f"{report.name}: {_describe_size(report)}", ""]
    lines += _align([("SCORE", "MEAN", "95% INTERVAL"), *_list_scores(report)])
    lines += ["", *_align(_list_figures(report))]
    lines += [f"failed: {reason} ({count:,})" for reason, count in report.failures.items()]
    if report.left:
        lines.append(f"left: {report.left:,} answers and judgements; a larger budget continues")
    if comparison is not None:
        lines += ["", f"compared with {comparison.baseline}:"]
        lines += _align([("SCORE", "BEFORE", "AFTER", "DIFFERENCE", "IS"), *_list_changes(comparison)])
        lines += _list_moves(comparison)
    return [_flatten(line) for line in lines]


def render_html(report: Report, comparison: Comparison | None = None) -> str:
    """Return a report, and its comparison with an earlier one, as one HTML page."""
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(report.name)}</title>',
        f"<style>{_STYLE}</style><h1>{escape(report.name)}</h1><p>{escape(_describe_size(report))}</p>",
        _render_table(("score", "mean", "95% interval"), _list_scores(report)),
        _render_table(("", ""), _list_figures(report)),
    ]
    if comparison is not None:
        parts.append(f"<h2>Compared with {escape(comparison.baseline)}</h2>")
        parts.append(_render_table(("score", "before", "after", "difference", "is"), _list_changes(comparison)))
        parts += [f"<p>{escape(line)}</p>" for line in _list_moves(comparison)]
    if report.failures:
        rows = [(reason, str(count)) for reason, count in report.failures.items()]
        parts += ["<h2>Failures</h2>", _render_table(("reason", "times"), rows)]
    head = ("case", "ended", *report.scorers, "answer", "turns", "cost", "seconds", "entity")
    parts += ["<h2>Trials</h2>", _render_table(head, (_list_trial(report, trial) for trial in report.trials))]
    return "\n".join([*parts, "</html>\n"])


def _describe_size(report: Report) -> str:
    cases = len({trial.case for trial in report.trials})
    return f"{len(report.trials):,} trials of {cases:,} cases{'' if report.is_complete else ', not complete'}"


def _list_scores(report: Report) -> Iterator[tuple[str, ...]]:
    for name in report.scorers:
        mean = report.summarize(name)
        yield (name, "-", "-") if mean is None else (name, f"{mean.mean:.3f}", _show_ends(mean))


def _list_figures(report: Report) -> list[tuple[str, ...]]:
    trials = report.trials
    seconds = sorted(trial.seconds for trial in trials)
    turns = sum(trial.turns for trial in trials) / max(1, len(trials))
    judging = f" (and judges ${report.judging_cost:.4f})" if report.judging_cost else ""
    return [
        ("cost", f"${report.cost:.4f}{judging}"),
        ("tokens", f"{sum(trial.tokens for trial in trials):,}"),
        ("turns", f"{turns:.1f} on average"),
        ("latency", f"{_pick(seconds, 0.5):.2f} s at the median, {_pick(seconds, 0.95):.2f} s at the 95th percentile"),
    ]


def _pick(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _list_changes(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    for change in comparison.changes:
        difference = f"{change.difference.mean:+.3f} {_show_ends(change.difference)}"
        yield change.scorer, f"{change.before:.3f}", f"{change.after:.3f}", difference, change.verdict


def _list_moves(comparison: Comparison) -> Iterator[str]:
    for change in comparison.changes:
        for word, cases in (("better", change.better), ("worse", change.worse)):
            if cases:
                yield f"{change.scorer} {word} in {len(cases):,}: {_list_cases(cases)}"
    if comparison.unpaired:
        yield f"only in one of the two: {_list_cases(comparison.unpaired)}"


def _list_cases(cases: Sequence[str]) -> str:
    more = f" and {len(cases) - LISTED:,} more" if len(cases) > LISTED else ""
    return ", ".join(cases[:LISTED]) + more


def _show_ends(interval: Interval) -> str:
    return f"[{interval.low:.3f}, {interval.high:.3f}]"


def _list_trial(report: Report, trial: Trial) -> tuple[str, ...]:
    scores = [trial.problems.get(name) or f"{trial.scores[name]:g}" for name in report.scorers]
    answer = render_value(trial.answer) if trial.reason == "terminated" else trial.detail or ""
    figures = (str(trial.turns), f"${trial.cost:.4f}", f"{trial.seconds:.2f}", trial.entity_id)
    return (f"{trial.case} #{trial.repeat + 1}", trial.reason, *scores, answer, *figures)


def _render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table><tr>{titles}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _align(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the rows as lines whose columns begin below each other."""
    table = [[*row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _flatten(text: str) -> str:
    """Return a text in one line, without control characters: a model or a file has chosen it."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
