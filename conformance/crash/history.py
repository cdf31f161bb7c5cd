"""A history: the lives of one loom, all but the last of them killed, and what is to be said of it in the end.

It can be written down and lived again: `sqlite/process 37 ~0.0213 5` is a loom in SQLite whose first life dies at its
37th point, whose second is killed from outside after 21.3 ms, and whose third dies at its 5th point. After a kill from
outside things never happen quite the same way twice, so that may take several attempts.

A life is a fork of this process, which has everything imported and no thread of its own: a kill costs what the life
did until then, and no start of an interpreter.
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

from conformance.crash.compare import Seen, Story, compared, look
from conformance.crash.ledger import lines
from conformance.crash.life import RECOVERIES, Life, live
from conformance.crash.places import remove, url_of
from conformance.crash.programs import CODE, SCRIPT
from conformance.crash.workload import LARGE, NUDGED, SMALL, TINY, Root

__all__ = ["FORK", "PATIENCE", "UNSENT", "WORKLOADS", "History", "Kill", "Told", "alone", "live_through", "undisturbed"]

PATIENCE = 60.0
"""Seconds after which a life hangs."""

UNSENT: tuple[Root, ...] = tuple(Root(root.cantrip, root.intent) for root in SMALL if not root.sends)
"""Entities that are cast at once, so that none is left for a thawed process to make a second time (`rivals`)."""
WORKLOADS: dict[str, tuple[Root, ...]] = {
    "tiny": TINY,
    "small": SMALL,
    "large": LARGE,
    "code": CODE,
    "script": SCRIPT,
    "nudged": NUDGED,
    "unsent": UNSENT,
}

FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Kill:
    """At a point that the process counts to, or after so many seconds."""

    point: int | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        return str(self.point) if self.point is not None else f"~{self.seconds:.4f}"

    @classmethod
    def of(cls, text: str) -> Kill:
        """The other way round."""
        return cls(seconds=float(text[1:])) if text.startswith("~") else cls(int(text))


@dataclass(frozen=True)
class History:
    """Which loom, and how its lives end."""

    store: str
    durability: str
    kills: tuple[Kill, ...] = ()
    workload: str = "small"

    def __str__(self) -> str:
        return " ".join([f"{self.store}/{self.durability}/{self.workload}", *map(str, self.kills)])

    @classmethod
    def of(cls, text: str) -> History:
        """The other way round. Raises ValueError."""
        where, *kills = text.split()
        store, durability, workload = where.split("/")
        return cls(store, durability, tuple(map(Kill.of, kills)), workload)


@dataclass
class Told:
    """What came of a history."""

    history: History
    wrong: list[str] = field(default_factory=list)
    at_points: int = 0
    """Lives that died at a point."""
    from_outside: int = 0
    """Lives that were killed by another process."""
    in_recovery: int = 0
    """Those of both that were not the first."""
    unknown: int = 0
    """Outcomes that nobody will ever know."""
    refused: int = 0
    """How often the workload was told that something could not be recorded, or is run elsewhere."""
    points: int = 0
    """Of the last life, which saw the end."""
    seconds: float = 0.0

    @property
    def kills(self) -> int:
        """How many lives were ended by force."""
        return self.at_points + self.from_outside


def live_through(history: History, expected: Story | None, server: str | None, keep: Path | None = None) -> Told:
    """Live a history and compare; where something is wrong its folder is kept in `keep`."""
    began = time.perf_counter()
    told = Told(history)
    folder = Path(tempfile.mkdtemp(prefix="crash-"))
    url = url_of(history.store, history.durability, folder, server)
    try:
        looks, ended = _lives(history, url, folder, told)
        ledger = lines(folder / "ledger")
        if ended:
            told.points = next((line.told["points"] for line in reversed(ledger) if line.what == "closed"), 0)
            told.wrong, told.unknown = compared(url, ledger, looks, expected)
        if told.wrong and keep is not None:
            shutil.copytree(folder, keep / folder.name)
    finally:
        remove(url, folder)
    told.seconds = time.perf_counter() - began
    return told


def undisturbed(workload: str, folder: Path) -> str:
    """The URL of a loom that nobody disturbed."""
    url = url_of("jsonl", "process", folder, None)
    told = Told(History("jsonl", "process", (), workload))
    _, ended = _lives(told.history, url, folder, told)
    if not ended:
        raise RuntimeError("\n".join(told.wrong))
    return url


def _lives(history: History, url: str, folder: Path, told: Told) -> tuple[list[Seen], bool]:
    """Live, be killed, look (every other time: a look is a reader's recovery of what was left, too), live again."""
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
            said = (folder / "log").read_text(encoding="utf-8", errors="replace")[-4000:]
            told.wrong.append(f"life {number} {'hangs' if outside else f'ended with {code}'}: {said}")
            return looks, False
        told.from_outside += outside
        told.at_points += not outside
        told.in_recovery += number > 0
        if chance.random() < 0.5:
            written = lines(folder / "ledger")
            if any(line.what == "acked" for line in written):  # before that there may be no loom to look at
                looks.append(look(url, written))
    raise AssertionError("the last life of a history is not killed")


def alone(living: Callable[[Life], None], life: Life, log: Path) -> None:
    """Live as a process of one's own: what it has to say goes into a file."""
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(said, stream)
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(os.fdopen(said, "a", buffering=1)))
    faulthandler.dump_traceback_later(PATIENCE / 2)
    tempfile.tempdir = str(log.parent)  # what a killed life leaves there goes with its loom
    living(life)
