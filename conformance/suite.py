"""`python -m conformance suite FILE…`: behavioural suites against the public API, strictly.

Prints a line for each case, the mismatches below each failed case, and `N passed, M failed` as the last line. The exit
code is 0 only if M is 0 and every file was read. Cases whose medium the product does not have yet, cases of text alone,
and cases that the suite itself skips are listed but not counted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from conformance.cases import NoSuite, read_suite
from conformance.run import BACKENDS, Verdict, run_case

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suites named on the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance suite", description="Run behavioural suites against the public API."
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a suite (docs/conformance.md describes the format)")
    parser.add_argument("--backend", choices=[*BACKENDS, "both"], default="both", help="default: %(default)s")
    options = parser.parse_args(argv)
    backends = BACKENDS if options.backend == "both" else (options.backend,)
    try:
        suites = [(file, read_suite(file)) for file in options.files]
    except NoSuite as error:
        print(error, file=sys.stderr)
        return 2
    verdicts: list[Verdict] = []
    for file, cases in suites:
        if len(suites) > 1:
            print(f"{file}:")
        for case in cases:
            verdicts.append(run_case(case, backends))
            _print_case(verdicts[-1])
    _print_sums(verdicts)
    return 1 if any(verdict.status == "FAIL" for verdict in verdicts) else 0


def _print_case(verdict: Verdict) -> None:
    case = verdict.case
    note = f" ({verdict.note})" if verdict.note else ""
    print(f"{verdict.status:<8}{case.rule:<12} {case.name}{note}")
    for problem in verdict.problems:
        print(f"        - {problem}")


def _print_sums(verdicts: Sequence[Verdict]) -> None:
    for status, what in (("text", "of text alone"), ("skip", "skipped by the suite"), ("not yet", "not yet")):
        some = [verdict for verdict in verdicts if verdict.status == status]
        if some:
            print(f"{len(some)} {what}: {_rules(some)}")
    counts = {status: sum(verdict.status == status for verdict in verdicts) for status in ("ok", "FAIL")}
    print(f"{counts['ok']} passed, {counts['FAIL']} failed")


def _rules(verdicts: Iterable[Verdict]) -> str:
    return ", ".join(verdict.case.rule for verdict in verdicts)
