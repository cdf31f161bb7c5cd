"""One job of `python -m bench code`, in a process of its own: `code_worker.py turn python sqlite 220`.

The job is what a user would write: a crystal that is a function, an async gate, a loom. `restore` forks from a turn
with many programs before it, by a snapshot or by those programs, and prints the milliseconds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import anyio

from bench.code import AGAIN
from cantrip_actors import Cantrip, Circle, Invocation, Runtime, gate, scripted
from cantrip_actors.wards import max_turns

PROGRAMS: Mapping[str, str] = {
    "python": "y = look('b')\nz = len(y)\nprint(z)",
    "javascript": "var y = look('b'); var z = y.length; console.log(z)",
    "shell": "y=$(look b); z=${#y}; echo $z",
}
ENDS: Mapping[str, str] = {"python": "done(z)", "javascript": "done(z);", "shell": 'done "$z"'}
ANSWER = "what was found "


@gate
async def look(what: str) -> str:
    """Look for something."""
    return ANSWER + what


async def turns(language: str, store: str, count: int) -> None:
    """Run an entity of this many turns."""
    with tempfile.TemporaryDirectory() as folder:
        async with Runtime.open("memory:" if store == "memory" else f"sqlite:{folder}/loom.db") as runtime:
            episode = await runtime.cast(_spell(language, count), "go")
            assert str(episode.result) == str(len(ANSWER) + 1), episode


async def restore(language: str, how: str) -> float:
    """Return the milliseconds of a fork whose sandbox ran many programs; the engine itself is warm."""
    count = AGAIN
    redact: Any = "exports" if how == "snapshot" else "at_rest"  # no snapshots are made if secrets must not be at rest
    async with Runtime.open(redact=redact) as runtime:
        episode = await runtime.cast(_spell(language, count), "go")
        turn = episode.thread[count - 1].id
        took = []
        for _ in range(3):
            began = time.perf_counter()
            ends = scripted([{"code": ENDS[language]}])
            fork = await runtime.fork(turn, intent="the same", crystal=ends)
            took.append((time.perf_counter() - began) * 1e3)
            assert str(fork.result) == str(len(ANSWER) + 1), fork
    return min(took)


def _spell(language: str, count: int) -> Cantrip:
    def policy(context: Invocation) -> Mapping[str, Any]:
        turn = (len(context) - 2) // 2
        return {"code": PROGRAMS[language] if turn < count else ENDS[language]}

    circle = Circle(["done", look], [max_turns(count + 1)], medium=language)
    return Cantrip(scripted(policy, record=False), circle=circle)


def main(job: str, language: str, how: str, count: str = "0") -> None:
    """Do the job."""
    if job == "turn":
        anyio.run(turns, language, how, int(count))
    else:
        print(anyio.run(restore, language, how))


if __name__ == "__main__":
    main(*sys.argv[1:])
