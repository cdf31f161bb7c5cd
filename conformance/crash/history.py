"""A history: the lives of one loom, all but the last of them killed, and the verdict at the end.

A history has a text form, so it can be repeated: `sqlite/process 37 ~0.0213 5` is a loom in SQLite. Its first life dies
at its 37th point, the second is killed from outside after 21.3 ms, and the third dies at its 5th point. A kill from
outside never hits the same moment twice, so repeating it may take several attempts.

A life is a fork of this process, which has imported all modules and has no threads: so a kill does not cost the start
of an interpreter.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from conformance.crash.asked import ASKED
from conformance.crash.compare import Seen, Story, compare_histories, look
from conformance.crash.ledger import lines
from conformance.crash.life import RECOVERIES, Life, live
from conformance.crash.places import remove, url_of
from conformance.crash.programs import CODE, CONSULTING, SCRIPT
from conformance.crash.timed import TIMED
from conformance.crash.workload import LARGE, MOVED, NUDGED, SMALL, TINY, Root

__all__ = [
    "FORK",
    "PATIENCE",
    "UNSENT",
    "WORKLOADS",
    "History",
    "HistoryResult",
    "Kill",
    "alone",
    "live_through",
    "run_undisturbed",
]

PATIENCE = 60.0
"""Seconds after which a life counts as hanging."""

UNSENT: tuple[Root, ...] = tuple(Root(root.cantrip, root.intent) for root in SMALL if not root.sends)
"""Entities that are cast concurrently: all of them, so that a thawed process has no entity left to make again
(`rivals`)."""
WORKLOADS: dict[str, tuple[Root, ...]] = {
    "tiny": TINY,
    "small": SMALL,
    "large": LARGE,
    "code": CODE,
    "script": SCRIPT,
    "nudged": NUDGED,
    "timed": TIMED,
    "asked": ASKED,
    "consulting": CONSULTING,
    "moved": MOVED,
    "unsent": UNSENT,
}

FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Kill:
    """The end of a life: at a point that the process counts to, or after this many seconds."""

    point: int | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        return str(self.point) if self.point is not None else f"~{self.seconds:.4f}"

    @classmethod
    def of(cls, text: str) -> Kill:
        """Parse the text form of a kill."""
        return cls(seconds=float(text[1:])) if text.startswith("~") else cls(int(text))


@dataclass(frozen=True)
class History:
    """The loom of a history, and the ends of its lives."""

    store: str
    durability: str
    kills: tuple[Kill, ...] = ()
    workload: str = "small"

    def __str__(self) -> str:
        return " ".join([f"{self.store}/{self.durability}/{self.workload}", *map(str, self.kills)])

    @classmethod
    def of(cls, text: str) -> History:
        """Parse the text form of a history. Raises ValueError."""
        where, *kills = text.split()
        store, durability, workload = where.split("/")
        return cls(store, durability, tuple(map(Kill.of, kills)), workload)


@dataclass
class HistoryResult:
    """The verdict on a history."""

    history: History
    wrong: list[str] = field(default_factory=list)
    at_points: int = 0
    """Lives that died at a point."""
    from_outside: int = 0
    """Lives that were killed by another process."""
    in_recovery: int = 0
    """The number of both kinds that were not the first life."""
    unknown: int = 0
    """Outcomes that stay unknown."""
    refused: int = 0
    """How often the workload got an error because a record could not be written, or another process ran the entity."""
    points: int = 0
    """The content at the end of the last life."""
    seconds: float = 0.0

    @property
    def kills(self) -> int:
        """The number of lives that were killed."""
        return self.at_points + self.from_outside


def live_through(
    history: History, expected: Story | None, server: str | None, keep: Path | None = None
) -> HistoryResult:
    """Run a history and compare; if there are problems, move its folder to `keep`."""
    began = time.perf_counter()
    result = HistoryResult(history)
    folder = Path(tempfile.mkdtemp(prefix="crash-"))
    url = url_of(history.store, history.durability, folder, server)
    try:
        looks, ended = _lives(history, url, folder, result)
        ledger = lines(folder / "ledger")
        if ended:
            result.points = next((line.data["points"] for line in reversed(ledger) if line.what == "closed"), 0)
            result.wrong, result.unknown = compare_histories(url, ledger, looks, expected)
        if result.wrong and keep is not None:
            shutil.copytree(folder, keep / folder.name)
    finally:
        remove(url, folder)
    result.seconds = time.perf_counter() - began
    return result


def run_undisturbed(workload: str, folder: Path) -> str:
    """Return the URL of a loom of an undisturbed run."""
    url = url_of("jsonl", "process", folder, None)
    result = HistoryResult(History("jsonl", "process", (), workload))
    _, ended = _lives(result.history, url, folder, result)
    if not ended:
        raise RuntimeError("\n".join(result.wrong))
    return url


def _lives(history: History, url: str, folder: Path, result: HistoryResult) -> tuple[list[Seen], bool]:
    """Run the lives one after the other, and read the loom after every second kill: reading recovers the loom, too."""
    looks: list[Seen] = []
    chance = random.Random(str(history))
    for number, kill in enumerate([*history.kills, None]):
        recover = chance.choice(RECOVERIES)
        at = None if kill is None else kill.point
        life = Life(number, url, folder / "ledger", WORKLOADS[history.workload], recover, at)
        process = FORK.Process(target=alone, args=(live, life, folder / "log"))
        process.start()
        process.join(kill.seconds if kill is not None and kill.point is None else PATIENCE)
        outside = process.exitcode is None
        process.kill()
        process.join()
        code = process.exitcode
        process.close()
        if code == 0:
            return looks, True
        if code != -signal.SIGKILL or (outside and (kill is None or kill.point is not None)):
            output = (folder / "log").read_text(encoding="utf-8", errors="replace")[-4000:]
            result.wrong.append(f"life {number} {'hangs' if outside else f'ended with {code}'}: {output}")
            return looks, False
        result.from_outside += outside
        result.at_points += not outside
        result.in_recovery += number > 0
        if chance.random() < 0.5:
            written = lines(folder / "ledger")
            if any(line.what == "acked" for line in written):  # before that the loom may not exist yet
                looks.append(look(url, written))
    raise AssertionError("the last life of a history is not killed")


def alone(living: Callable[[Life], None], life: Life, log: Path) -> None:
    """Run a life in a separate process; its output goes into a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(os.fdopen(descriptor, "a", buffering=1)))
    faulthandler.dump_traceback_later(PATIENCE / 2)
    tempfile.tempdir = str(log.parent)  # removed with the loom, even after a kill
    living(life)
