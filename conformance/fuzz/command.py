"""`python -m conformance fuzz`: run every target for its share of some minutes; the exit code tells of failures."""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
from pathlib import Path
from typing import Final

from conformance.fuzz.campaign import fuzz
from conformance.fuzz.sandboxes import has_shell
from conformance.fuzz.targets import TARGETS

__all__ = ["main"]

HANGS: Final = 120
"""Seconds past its time after which a target counts as hanging: the process ends, and prints its stack."""


def main(argv: list[str]) -> int:
    """Fuzz the chosen targets; return 0 if none failed."""
    parser = argparse.ArgumentParser(prog="python -m conformance fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="for all targets together (1)")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="the number that the inputs follow from (0)")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"), help="where inputs that failed are written")
    args = parser.parse_args(argv)
    chosen = [TARGETS[name] for name in args.target or TARGETS]
    if not has_shell():
        print("not run: targets of the shell, because no shell can be confined by bubblewrap here")
        chosen = [target for target in chosen if not target.name.startswith("shell-")]
    seconds = args.minutes * 60 / max(1, len(chosen))
    failed = 0
    for target in chosen:
        faulthandler.dump_traceback_later(seconds + HANGS, exit=True, file=sys.__stderr__ or 2)
        began = time.monotonic()
        outcome = fuzz(target, seconds=seconds, seed=args.seed)
        line = f"{target.name}, {target.attacks}: {outcome.tried:,} inputs in {time.monotonic() - began:.1f} s"
        if outcome.finding is None:
            print(f"passed {line}", flush=True)
            continue
        failed += 1
        file = outcome.finding.keep(args.keep / target.name)
        error = outcome.finding.error
        print(f"FAILED {line}\n  {type(error).__name__}: {error}\n  input: {file}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    print(f"{len(chosen) - failed} passed, {failed} failed")
    if failed:
        print("Fix the cause, put the input among the seeds (conformance/fuzz/seeds) and add a test.", file=sys.stderr)
    return int(failed > 0)
