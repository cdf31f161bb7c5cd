"""`python -m conformance`: one subcommand for each comparison with an outside reference.

Each is imported when it is called, so that a missing requirement of one does not keep the others from running.
"""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = {
    "suite": ("conformance.suite", "behavioural suites (YAML) against the public API"),
    "wire": ("conformance.wire", "recordings of providers' streams, decoded however the network cuts them"),
    "crash": ("conformance.crash.command", "processes killed at every border: the effects compared with the records"),
    "cluster": ("conformance.cluster.command", "nodes killed, frozen and drained while mail arrives"),
    "cancel": ("conformance.cancel.command", "calls cancelled at random moments: leaks, and effects after an end"),
    "fuzz": ("conformance.fuzz.command", "hostile bytes for every parser of what entities and providers say"),
    "otp": ("conformance.otp", "supervision compared with Erlang/OTP itself"),
}


def main(argv: list[str]) -> int:
    """Run the subcommand; return its exit code."""
    if not argv or argv[0] not in COMMANDS:
        wanted_help = argv[:1] in (["-h"], ["--help"])
        lines = [f"  python -m conformance {name} …    {what}" for name, (_, what) in COMMANDS.items()]
        print("expected a subcommand:", *lines, sep="\n", file=sys.stdout if wanted_help else sys.stderr)
        return 0 if wanted_help else 2
    module, _ = COMMANDS[argv[0]]
    code: int = import_module(module).main(argv[1:])
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
