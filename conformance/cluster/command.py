"""`python -m conformance cluster`: kill, freeze and drain the nodes of a cluster on Postgres, and compare.

Three nodes run in processes of their own and serve long-lived entities, while a client posts intents to them, a tenth
of them twice. SIGKILL hits one node, two or all of them, at any moment; SIGSTOP freezes one for half of its ttl, or for
two or five, at any moment, inside a transaction, or in half of a message; SIGTERM drains one. With `--pooler`
the client reaches the server through pgbouncer. Afterwards every intent must be recorded once,
in the order of sending, and no effect twice. No sender may get an error.

A round has 100 kills and freezes on a loom of its own. The exit code is 0 only if there were no problems, and 2 if
there is no server; `CANTRIP_POSTGRES` names one, otherwise one is started. A seed repeats which node gets which
disturbance, but not the moments, because the processes are real.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Final
from uuid import uuid4

import anyio
import orjson

from conformance.cluster.campaign import Round, play
from conformance.crash.places import postgres, remove
from conformance.pooler import open_pooler

__all__ = ["main"]

ROUND: Final = 100
"""Kills and freezes on one loom."""


def main(argv: Sequence[str]) -> int:
    """Return the exit code: 0 without problems, 2 if nothing could be run."""
    options = _parser().parse_args(argv)
    began, rounds, left = time.monotonic(), list[Round](), options.kills
    with ExitStack() as stack:
        try:
            server = stack.enter_context(postgres())
            pooler = stack.enter_context(open_pooler(server)) if options.pooler else ""
        except (FileNotFoundError, ModuleNotFoundError) as missing:
            print(f"{missing}. Or name a server in CANTRIP_POSTGRES", file=sys.stderr)
            return 2
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cantrip-cluster-")))
        folder.mkdir(parents=True, exist_ok=True)
        while left > 0:
            seed = options.seed + len(rounds)
            schema, ledger = f"&schema=cluster_{uuid4().hex}", folder / f"{seed}" / "ledger"
            url, client_url = server + schema, pooler and pooler + schema
            ledger.parent.mkdir()
            faults = min(left, ROUND)
            rounds.append(anyio.run(_play, url, client_url, ledger, seed, faults, options.entities))
            left -= faults
            if not options.json:
                print(_line(rounds[-1]), flush=True)
                for fault in rounds[-1].wrong:
                    print(f"  {fault}", flush=True)
            if rounds[-1].wrong and options.keep:
                print(f"  kept: {ledger.parent} and the schema of {url}")
            else:
                remove(url, ledger.parent)
    wrong = sum(len(finished.wrong) for finished in rounds)
    if options.json:
        rows = [asdict(finished) for finished in rounds]
        print(orjson.dumps({"wrong": wrong, "rounds": rows}, option=orjson.OPT_INDENT_2).decode())
    else:
        total = Round(options.seed)
        for done in rounds:
            for name in ("kills", "freezes", "drains", "posts", "repeats", "unknown"):
                setattr(total, name, getattr(total, name) + getattr(done, name))
            total.longest = max(total.longest, done.longest)
        print(f"in all: {_counts(total)}; {wrong} wrong, {time.monotonic() - began:.0f} s")
    return int(wrong > 0)


async def _play(url: str, client_url: str, ledger: Path, seed: int, faults: int, entities: int) -> Round:
    return await play(url, ledger, seed, faults=faults, entities=entities, client_url=client_url)


def _line(done: Round) -> str:
    return f"seed {done.seed}: {_counts(done)}; {len(done.wrong)} wrong"


def _counts(done: Round) -> str:
    return (
        f"{done.kills} kills, {done.freezes} freezes, {done.drains} drains, "
        f"{done.posts} posts ({done.repeats} repeated), {done.unknown} outcomes unknown, "
        f"longest wait {done.longest:.1f} s"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m conformance cluster", description="Kill nodes, and compare.")
    parser.add_argument("--kills", type=int, default=100, help="kills and freezes in all; 1000 for a report")
    parser.add_argument("--entities", type=int, default=100)
    parser.add_argument("--pooler", action="store_true", help="the client reaches the server through pgbouncer")
    parser.add_argument("--seed", type=int, default=0, help="of the first round; the next ones follow it")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="for ledgers and logs of rounds with problems; their looms stay, too",
    )
    parser.add_argument("--json", action="store_true", help="the report as JSON, and nothing else")
    return parser
