"""`python -m conformance crash`: kill, resume, compare, and report the results.

Without `--kills` it runs the campaign of CI: every point of the tiniest workload, and some random kills, for JSONL and
SQLite. With `--kills`, that number of kills is divided among the chosen stores and durabilities. Failures that a
process survives follow, and then two processes with one loom.

The exit code is 0 only if there were no problems, and 2 if nothing could be run. Each problem is printed when it is
found, with its history; `--again` repeats that history.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import orjson

from conformance.crash.campaign import Where, campaign
from conformance.crash.compare import Story, story_of
from conformance.crash.faults import faults, suffer
from conformance.crash.history import WORKLOADS, History, HistoryResult, live_through, run_undisturbed
from conformance.crash.ledger import lines
from conformance.crash.life import warm_up
from conformance.crash.outages import outages, survive
from conformance.crash.places import DURABILITIES, STORES, postgres
from conformance.crash.rivals import freeze

__all__ = ["main"]

AT_RANDOM = 20
"""The default number of random kills for each store."""
PLACES = (17, 5)
"""The distance between the calls that fail: without `--kills`, and with it."""
FROZEN = ((70,), (55, 70, 85, 100, 115))
"""The points at which a process is frozen: without `--kills`, and with it."""

SHARES = {
    "small": 0.3,
    "nudged": 0.15,
    "code": 0.15,
    "script": 0.1,
    "moved": 0.1,
    "asked": 0.1,
    "consulting": 0.05,
    "timed": 0.05,
}
"""The shares of kills if no workload is named. A life that runs JavaScript takes ten times as long as any other."""

Row = dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """Return the exit code: 0 without problems, 2 if nothing could be run."""
    options = _parser().parse_args(argv)
    warm_up()
    with ExitStack() as stack:
        wanted = list(_parse_wanted(options))
        server = None
        if any(where.store == "postgres" for where in wanted):
            try:
                server = stack.enter_context(postgres())
            except (FileNotFoundError, ModuleNotFoundError) as missing:
                print(f"{missing}. Or name a server in CANTRIP_POSTGRES", file=sys.stderr)
                return 2
        if options.again is not None:
            return _again(options, server)
        rows = []
        if "kills" in options.parts:
            rows += [_kills(where, options, server) for where in wanted]
        if "faults" in options.parts:
            rows.append(_faults(options, server, {where.store for where in wanted}))
        if "rivals" in options.parts:
            rows += [_rivals(store, options, server) for store in dict.fromkeys(where.store for where in wanted)]
        if "outages" in options.parts and server is not None:
            rows.append(_outages(options))
    kills, wrong = sum(row.get("kills", 0) for row in rows), sum(len(row["wrong"]) for row in rows)
    if options.json:
        print(orjson.dumps({"kills": kills, "wrong": wrong, "rows": rows}, option=orjson.OPT_INDENT_2).decode())
    else:
        print(f"{kills} kills, {wrong} wrong, {sum(row['seconds'] for row in rows):.0f} s")
    return int(wrong > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m conformance crash", description="Kill, resume, compare.")
    parser.add_argument("--kills", type=int, help="kills in all; left out: each point once, and some at random")
    parser.add_argument("--store", choices=[*STORES, "all"], help="left out: jsonl and sqlite; all with --kills")
    parser.add_argument("--durability", choices=[*DURABILITIES, "all"], help="left out: process; all with --kills")
    parser.add_argument(
        "--workload", choices=sorted(WORKLOADS), help="left out: tiny; all but tiny and large with --kills"
    )
    parser.add_argument("--seed", type=int, default=0, help="of where the kills fall")
    parser.add_argument("--jobs", type=int, default=2, help="histories at a time")
    parser.add_argument("--parts", default="kills,faults,rivals,outages", help="some of these")
    parser.add_argument("--keep", type=Path, help="a folder for looms and ledgers of histories with problems")
    parser.add_argument("--again", metavar="HISTORY", help='one, as a report names it: "sqlite/process/small 37"')
    parser.add_argument("--json", action="store_true", help="the report as JSON, and nothing else")
    return parser


def _parse_wanted(options: argparse.Namespace) -> list[Where]:
    """Return the requested kinds of looms, each with its share of the kills."""
    if options.again is not None:
        history = History.of(options.again)
        return [Where(history.store, history.durability)]
    stores = {None: STORES if options.kills else STORES[:2], "all": STORES}.get(options.store, (options.store,))
    each = {None: DURABILITIES if options.kills else DURABILITIES[:1], "all": DURABILITIES}
    kinds = [
        (store, durability) for store in stores for durability in each.get(options.durability, (options.durability,))
    ]
    if not options.kills:
        return [Where(*kind, None, AT_RANDOM, options.workload or "tiny") for kind in kinds]
    shares = {options.workload: 1.0} if options.workload else SHARES
    of_all = [(kind, workload, share) for kind in kinds for workload, share in shares.items()]
    parts, allotted, due = [], 0, 0.0
    for kind, workload, share in of_all:
        due += options.kills * share / len(kinds)
        parts.append(Where(*kind, round(due) - allotted, 0, workload))
        allotted = round(due)
    return [part for part in parts if part.kills]


@cache
def _run_expected(workload: str) -> Story:
    """Return the story of an undisturbed run."""
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        return story_of(run_undisturbed(workload, Path(folder)), lines(Path(folder) / "ledger"))


def _kills(where: Where, options: argparse.Namespace, server: str | None) -> Row:
    came = campaign(
        where,
        _run_expected(where.workload),
        options.seed,
        server=server,
        keep=options.keep,
        jobs=options.jobs,
        heard=partial(_report_result, options),
    )
    row = came.as_json()
    each = came.seconds / max(came.kills, 1) * 1e3
    _print_note(
        options,
        f"{where.store:9} {where.durability:8} {where.workload:7} {came.kills:5} kills ({came.at_points} at points, "
        f"{came.from_outside} from outside, {came.in_recovery} in recovery), {came.unknown} outcomes unknown, "
        f"{len(came.wrong)} of {came.histories} histories wrong, {came.seconds:.1f} s, {each:.0f} ms a kill",
    )
    return row


def _faults(options: argparse.Namespace, server: str | None, stores: set[str]) -> Row:
    is_whole = bool(options.kills)
    all_of_them = [fault for fault in faults(PLACES[is_whole], server, is_whole=is_whole) if fault.store in stores]
    began = time.perf_counter()
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("fork")) as lanes:
        results = list(lanes.map(partial(suffer, expected=_run_expected("small"), server=server), all_of_them))
    return _row(options, "faults", results, time.perf_counter() - began)


def _rivals(store: str, options: argparse.Namespace, server: str | None) -> Row:
    began = time.perf_counter()
    results = [freeze(store, at, _run_expected("unsent"), server) for at in FROZEN[bool(options.kills)]]
    return _row(options, f"frozen, {store}", results, time.perf_counter() - began)


def _outages(options: argparse.Namespace) -> Row:
    """Run the outages one after the other, with a separate server."""
    from conformance.postgres import Server

    began = time.perf_counter()
    with Server() as server:
        results = [survive(outage, _run_expected("small"), server) for outage in outages(PLACES[bool(options.kills)])]
    return _row(options, "outages", results, time.perf_counter() - began)


def _row(options: argparse.Namespace, what: str, results: Iterable[HistoryResult], seconds: float) -> Row:
    came = list(results)
    for result in came:
        _report_result(options, result)
    wrong = [{"history": str(result.history), "what": result.wrong} for result in came if result.wrong]
    refused, unknown = sum(result.refused for result in came), sum(result.unknown for result in came)
    _print_note(
        options,
        f"{what:18} {len(came):5} histories, {refused} refusals, {unknown} outcomes unknown, {len(wrong)} wrong, "
        f"{seconds:.1f} s",
    )
    return {
        "part": what,
        "histories": len(came),
        "refused": refused,
        "unknown": unknown,
        "seconds": seconds,
        "wrong": wrong,
    }


def _again(options: argparse.Namespace, server: str | None) -> int:
    history = History.of(options.again)
    result = live_through(history, _run_expected(history.workload), server, options.keep)
    print(f"{result.history}: {result.kills} kills, {result.unknown} unknown outcomes", *result.wrong, sep="\n")
    return int(bool(result.wrong))


def _report_result(options: argparse.Namespace, result: HistoryResult) -> None:
    for what in result.wrong:
        _print_note(options, f"WRONG  {result.history}: {what}")


def _print_note(options: argparse.Namespace, text: str) -> None:
    if not options.json:
        print(text, flush=True)
