"""`python -m bench`: one subcommand a measurement, each imported when it is asked for."""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = {
    "turns": ("bench.turns", "what a turn costs, beside the floor of this architecture"),
    "code": ("bench.code", "what a turn by a program costs, and how a sandbox comes back, beside smolagents"),
    "crystals": ("bench.crystals", "what a streamed chunk and an encoded context cost, for each provider family"),
    "loom": ("bench.loom", "what the stores cost, beside SQLite alone, and what a loom of a million turns does"),
    "inbox": ("bench.inbox", "what mail costs in each store, with 100 and with 100,000 waiting"),
    "timers": ("bench.timers", "what timers cost in each store, and what 100,000 that wait cost an idle runtime"),
    "requests": ("bench.requests", "what entities hold that wait for people, and what a decision costs"),
    "sends": ("bench.sends", "what a send to an idle entity costs, and loading one with a long history"),
    "serve": ("bench.serve", "what HTTP costs beside the same calls in the process, and 500 event streams"),
    "observe": ("bench.observe", "what spans and metrics cost a turn, without and with an SDK"),
    "dispatch": ("bench.dispatch", "what a turn costs an entity that has a dispatch, beside one that has none"),
    "suspended": ("bench.suspended", "what entities hold while their programs wait for children"),
    "entities": ("bench.entities", "what a million entities cost that are asleep, and what it costs to wake one"),
    "redact": ("bench.redact", "what it costs to take secrets out of clean text, beside another commit"),
    "cluster": ("bench.cluster", "what nodes on Postgres do: sends, takeovers, hand-overs, schedules, scaling"),
    "actors": ("bench.actors", "what messages, calls, starts and restarts of actors cost"),
}


def main(argv: list[str]) -> int:
    """Run the subcommand, and return its exit code."""
    if not argv or argv[0] not in COMMANDS:
        wanted_help = argv[:1] in (["-h"], ["--help"])
        lines = [f"  python -m bench {name} …    {what}" for name, (_, what) in COMMANDS.items()]
        print("expected a subcommand:", *lines, sep="\n", file=sys.stdout if wanted_help else sys.stderr)
        return 0 if wanted_help else 2
    module, _ = COMMANDS[argv[0]]
    code: int = import_module(module).main(argv[1:])
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
