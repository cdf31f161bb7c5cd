"""The command `cantrip eval`: run or continue an evaluation, report it, and compare it with an earlier one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cantrip_actors.cli import output
from cantrip_actors.cli.command import (
    FAILED,
    LOOM,
    TRUNCATED,
    Backend,
    Json,
    Loop,
    Quiet,
    Url,
    examples,
    report_errors,
    run,
)
from cantrip_actors.terms.exact_json import parse_exactly

if TYPE_CHECKING:
    from cantrip_actors import Runtime
    from cantrip_actors.evals import Evaluation, Report

app = typer.Typer(rich_markup_mode=None)


@app.command(
    "eval",
    epilog=examples(
        "cantrip eval vowels-eval.yaml",
        "cantrip eval vowels-eval.yaml --name short-prompt --compare long-prompt",
        "cantrip eval vowels-eval.yaml --json > monday.json",
        "cantrip eval vowels-eval.yaml --compare monday.json --html report.html",
    ),
)
def eval_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A .yaml or .toml file with the cantrip, the cases and the scorers.")
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The evaluation's name; left out: the file's, or the cantrip's."),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare", metavar="RUN", help="An earlier evaluation: its name, or its report as a .json file."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the report as a page, too.")
    ] = None,
    loom: Url = LOOM,
    as_json: Json = False,
    quiet: Quiet = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Cast a cantrip on many cases, score the answers, and report.

    Repeated, it continues where it was killed, and pays for no answer twice. It exits with 3 if the budget was used up
    before all cases were answered, and with 1 if a crystal failed, a score is missing, or a score is worse than in RUN
    by its whole confidence interval.
    """
    with report_errors(json=as_json, loom=loom):
        from cantrip_actors.evals import evaluate, load_evaluation
        from cantrip_actors.evals.rendering import render_html, render_lines

        evaluation = load_evaluation(file)
        options = {**evaluation.options, **({"name": name} if name is not None else {})}

        async def work(runtime: Runtime) -> tuple[Report, Report | None]:
            baseline = None if compare is None else await _find_baseline(runtime, compare, evaluation)
            report = await evaluate(
                runtime, evaluation.cantrip, evaluation.cases, scorers=evaluation.scorers, **options
            )
            return report, baseline

        report, baseline = run(loom, work, backend=backend, quiet=quiet or as_json)
        comparison = None if baseline is None else report.compare(baseline)
        if as_json:
            compared = {} if comparison is None else {"comparison": comparison.to_json()}
            output.print_json({**report.to_json(), **compared})
        else:
            output.print_lines(render_lines(report, comparison))
        if html is not None:
            _write(html, render_html(report, comparison))
        if not report.is_complete:
            raise typer.Exit(TRUNCATED)
        if _has_failures(report) or (comparison is not None and comparison.is_worse):
            raise typer.Exit(FAILED)


def _has_failures(report: Report) -> bool:
    """Return whether a crystal failed, or a score is missing: then the figures say little about the cantrip."""
    return any(trial.reason == "failed" or trial.problems for trial in report.trials)


async def _find_baseline(runtime: Runtime, source: str, evaluation: Evaluation) -> Report:
    """Return the earlier report that a name or the path of a file means. Raises InvalidEvaluation."""
    from cantrip_actors.evals import InvalidEvaluation, Report, read_report
    from cantrip_actors.recipes import Mistake

    if source.endswith(".json"):
        try:
            return Report.from_json(parse_exactly(Path(source).read_bytes()))
        except (OSError, ValueError) as error:
            raise InvalidEvaluation(
                Path(source), [Mistake(f"not a report of `cantrip eval --json`: {error}")]
            ) from None
    repeat = evaluation.options.get("repeat", 1)
    baseline = await read_report(runtime, source, evaluation.cases, scorers=evaluation.scorers, repeat=repeat)
    if not baseline.trials:
        raise InvalidEvaluation(Path(source), [Mistake("no evaluation of that name has answers to these cases")])
    return baseline


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot write {file}: {error}", param_hint="--html") from error
