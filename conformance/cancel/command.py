"""`python -m conformance cancel`: cancel calls at random moments, and report what does not hold afterwards."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from conformance.cancel.campaign import NAMES, Example, pick, run

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Run examples; return 0 if every law holds after each of them."""
    parser = argparse.ArgumentParser(prog="python -m conformance cancel", description=__doc__)
    parser.add_argument("--examples", type=int, default=200, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the number that the examples follow from (%(default)s)")
    parser.add_argument("--backend", action="append", choices=("asyncio", "trio"), help="only this one")
    parser.add_argument("--act", action="append", choices=NAMES, help="only this one; may be repeated")
    parser.add_argument("--again", metavar="EXAMPLE", help="one example, as a report names it")
    options = parser.parse_args(argv)
    began = time.monotonic()
    if options.again is not None:
        examples = [Example.of(options.again)]
    else:
        backends, acts = tuple(options.backend or ("asyncio", "trio")), tuple(options.act or NAMES)
        examples = list(islice(pick(random.Random(options.seed), backends=backends, acts=acts), options.examples))
    counted: Counter[str] = Counter()
    for example in examples:
        counted[example.act] += 1
        faults = run(example)
        if faults:
            counted["wrong"] += 1
            print(f"WRONG {example}", *(f"    {fault}" for fault in faults), sep="\n", flush=True)
    wrong = counted.pop("wrong", 0)
    acts_run = ", ".join(f"{n} {act}" for act, n in sorted(counted.items()))
    print(f"{len(examples)} cancellations ({acts_run}), {wrong} wrong, {time.monotonic() - began:.0f} s")
    if wrong:
        print('Repeat one with --again "…".', file=sys.stderr)
    return int(wrong > 0)
