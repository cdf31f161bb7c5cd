"""A dispatch whose process is killed by SIGKILL at each border, and resumed by the next process.

    python -m tests.dispatch.killed FOLDER [EVERY [FIRST]]

A border is the moment before or after the loom or the dispatch's log is written, and the one before the log's disk is
waited for; with EVERY, one in so many, from the FIRST. Prints a line of JSON for each: what the record says in the end,
and how often the world was changed. Each process is a fork of this one, which has run a dispatch on each backend and so
has everything imported, and has no event loop.
"""

import gc
import itertools
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from cantrip_actors import Runtime, gate, scripted
from cantrip_actors.dispatch import Dispatcher, Dispatches
from cantrip_actors.loom.memory.jsonl import JsonlStore
from cantrip_actors.loom.seal.line_file import Disk
from tests.dispatch.contracts import contract
from tests.dispatch.entities import FINISH, in_order, progress, say, worker

LAST = 10_000


class Fate:
    """Counts borders, and kills the process at one of them."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.passed = 0

    def border(self) -> None:
        self.passed += 1
        if self.passed == self._at:
            os.kill(os.getpid(), signal.SIGKILL)


def disk(fate: Fate) -> Disk:
    """A disk on whose way something may happen."""

    def write(fd: int, data: Any) -> int:
        fate.border()
        return os.write(fd, data)

    def sync(fd: int) -> None:
        fate.border()
        os.fsync(fd)
        fate.border()

    return Disk(write, sync=sync)


def live(folder: Path, fate: Fate) -> None:
    """One process: dispatch what is not there, and run it."""
    watch(fate)
    run(folder, fate)


def watch(fate: Fate) -> None:
    """Make the borders of the loom's appends those of this fate."""
    append = JsonlStore.append

    def fatal(self: JsonlStore, *records: Any, **with_them: Any) -> None:
        fate.border()
        append(self, *records, **with_them)
        fate.border()

    JsonlStore.append = fatal  # type: ignore[method-assign]  # this process has no other use for it


def run(folder: Path, fate: Fate) -> None:
    """Dispatch what is not there, and run it."""

    @gate
    async def press(key: str) -> str:
        with (folder / "ledger").open("a") as ledger:
            ledger.write(f"{key}\n")
        return f"pressed {key}"

    said = in_order(say("press", key="a"), progress("pressed a"), say("press", key="b"), *FINISH)

    async def main() -> None:
        async with Runtime.open(f"jsonl:{folder}/loom.jsonl") as runtime:
            dispatcher = Dispatcher(runtime, Dispatches(folder / "dispatches", disk=disk(fate)), effectful=["press"])
            if not dispatcher.log.ids():
                await dispatcher.dispatch(contract(dispatch_id="d1"), author="ada")
            await dispatcher.run("d1", worker(scripted(said), press))
            assert runtime.interrupted() == []

    anyio.run(main, backend=("asyncio", "trio")[fate._at % 2])


def in_a_fork(work: Callable[[], None]) -> int:
    """The wait status of a fork that does `work`."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # a fork must not come back into its parent's code
            traceback.print_exc()
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def main(where: Path, every: int = 1, first: int = 1) -> None:
    for backend in range(2):  # a first run imports and compiles: the forks need not
        folder = where / f"warm{backend}"
        folder.mkdir()
        run(folder, Fate(LAST + backend))
    gc.freeze()
    for at in itertools.count(first, every):
        folder = where / str(at)
        folder.mkdir()
        killed = os.WIFSIGNALED(in_a_fork(lambda folder=folder, at=at: live(folder, Fate(at))))  # type: ignore[misc]
        again = in_a_fork(lambda folder=folder, at=at: live(folder, Fate(LAST + at)))  # type: ignore[misc]
        record = Dispatches(folder / "dispatches").read("d1")
        ledger = folder / "ledger"
        told = {
            "at": at,
            "killed": killed,
            "next": again,
            "status": record.status,
            "attempt": record.attempt,
            "recoveries": sum(entry.kind == "recovery" for entry in record.entries),
            "progress": [event.text for _, event in record.progress()],
            "pressed": ledger.read_text().split() if ledger.exists() else [],
        }
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        if not killed:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
