"""`python -m bench`: one subcommand per measurement, each imported when it is called."""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = {
    "turns": ("bench.turns", "the cost of a turn, compared with the floor of this architecture"),
    "peers": ("bench.peers.command", "the same work by this project and by other libraries, side by side"),
    "service": (
        "bench.service.command",
        "a FastAPI service with a typed agent under load, by this project and by others",
    ),
    "check": ("bench.check", "a few ratios of turns, compared with a stored baseline, as a notice"),
    "counts": ("bench.counts", "the bytecodes and calls of a turn, a cast and a send, compared with another commit"),
    "code": ("bench.code", "the cost of a turn by a program, and of restoring a sandbox, compared with smolagents"),
    "crystals": ("bench.crystals", "the cost of a streamed chunk and of an encoded context, for each provider family"),
    "loom": ("bench.loom", "the cost of the stores, compared with SQLite alone, and a loom of a million turns"),
    "inbox": ("bench.inbox", "the cost of mail in each store, with 100 and with 100,000 waiting"),
    "timers": ("bench.timers", "the cost of timers in each store, and of 100,000 waiting ones in an idle runtime"),
    "requests": ("bench.requests", "the memory of entities that wait for people, and the cost of a decision"),
    "sends": ("bench.sends", "the cost of a send to an idle entity, and of loading one with a long history"),
    "serve": (
        "bench.serve",
        "the cost of HTTP compared with the same calls in the process, 500 event streams, and the pace of streams",
    ),
    "delays": ("bench.delays", "from a call to the provider's socket, from there to a subscriber, and round trips"),
    "gaps": ("bench.gaps", "the longest gap of the event loop while the loom is locked, pruned, copied or listed"),
    "reads": ("bench.reads", "the cost of reading an entity of 10,000 turns over HTTP, compared with one of 100"),
    "listings": ("bench.listings", "the cost of listing 100,000 entities, compared with 1,000"),
    "observe": ("bench.observe", "the cost of spans and metrics per turn, without and with an SDK"),
    "dispatch": ("bench.dispatch", "the cost of a turn of an entity with a dispatch, compared with one without"),
    "suspended": ("bench.suspended", "the memory of entities whose programs wait for children"),
    "entities": ("bench.entities", "the cost of a million unloaded entities, and of loading one"),
    "scale": (
        "bench.scale",
        "the cost of opening, listing, waking, sending and forgetting against the number of entities",
    ),
    "partition": ("bench.partition", "what several Postgres databases would carry, by a model with measured times"),
    "redact": ("bench.redact", "the cost of redacting clean text, compared with another commit"),
    "simulate": ("bench.simulate", "simulated minutes of an entity of 20 turns with three children, per second of CPU"),
    "cluster": ("bench.cluster", "nodes on Postgres: sends, takeovers, hand-overs, schedules, scaling"),
    "actors": ("bench.actors", "the cost of messages, calls, starts and restarts of actors"),
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
