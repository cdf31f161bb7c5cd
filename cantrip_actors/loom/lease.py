"""Leases: who may write for an entity's tree, so that of two processes that would run it only one does.

Whoever runs a root entity claims it first, for a time and under a name of its own, and renews the claim while it
runs. The claim covers everything that the entity spawns. It comes with a token, a number that grows with every claim:
what is appended for the tree from then on has to carry it (`Store.append(records, leases)`), checked where the records
are written. Time only decides when somebody else may claim. A holder that was frozen past its lease, and then runs
again, finds its token outdated and is refused (`Fenced`), whatever its clock says; one that is merely late, and that
no other holder has replaced, continues.

That time is told by no wall clock, which people and programs set (C-66). Where all holders run on one machine, as those
of an SQLite file, it is the time since that machine started (`now`), and no time ends the lease of a process that is
there (`is_alive`). A Postgres server tells the time for its machines.

What nobody has claimed anybody may append to, which is all there is where no leases are used. A reward needs none: it
is said about a turn, not by the entity.

A name from `this_process` says where its holder runs. If that is here and the process is gone, its leases are free at
once: a process that was killed is taken up without waiting for its leases to run out. So are those of a holder that
has ended in a process that still runs, and could not release them (`no_more`): the store may have been out of reach.

An entity may be what kills its process. So each lease counts how many holders in a row did not release it while the
entity had work; after `DEATHS` of them the entity is quarantined, and a claim has to lift that (C-65). An idle entity
without mail kills no process: the deaths of its holders do not count.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from cantrip_actors.terms.errors import LoomError

__all__ = [
    "DEATHS",
    "NO_LEASES",
    "REMAINS",
    "Fenced",
    "Held",
    "Holder",
    "Lease",
    "Quarantined",
    "boot_id",
    "count_deaths",
    "gone",
    "is_alive",
    "no_more",
    "not_root",
    "now",
    "this_process",
]

NO_LEASES: Mapping[str, int] = MappingProxyType({})

REMAINS: Final = 3600.0
"""Seconds after which a holder that holds nothing is forgotten."""

DEATHS: Final = 3
"""Holders in a row that may die before an entity is quarantined."""


class Lease(NamedTuple):
    """The right to write for the tree of `entity_id`. `until` is seconds since 1970."""

    entity_id: str
    owner: str
    token: int
    until: float


class Holder(NamedTuple):
    """The row of a lease in a store: who has it, None for a quarantine, and for how many seconds it lasts."""

    token: int
    owner: str | None
    deaths: int
    """How many holders in a row did not release it."""
    left: float


class Held(LoomError):
    """A claim was refused: another holder runs that entity. `holder` names its process; None if that is this one."""

    holder: str | None = None

    @classmethod
    def by(cls, entity: str, owner: str, left: float) -> Held:
        """Say by whom, and for how long it is at least."""
        at = datetime.fromtimestamp(time.time() + left, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        lasts = f"its lease lasts until {at} unless it is renewed" if left > 0 else "its process is there"
        error = cls(
            f"entity {entity} is being run by {owner}; {lasts}. "
            "It can be had here once it has ended or is unloaded there, or that process is gone: try again then"
        )
        error.entity_id, error.holder = entity, owner
        return error


class Quarantined(LoomError):
    """A claim was refused: the processes that ran the entity died, several in a row."""

    @classmethod
    def after(cls, deaths: int, entity: str) -> Quarantined:
        """Say how many died, and what to do."""
        return cls(
            f"entity {entity} is quarantined: {deaths} processes in a row died, or were out of reach, while they ran "
            f'it. Look for the cause; then runtime.resume("{entity}") resumes it, runtime.abandon("{entity}") ends it'
        )


class Fenced(LoomError):
    """A late writer was refused: its lease on the entity is not, or no longer, the valid one."""

    @classmethod
    def out(cls, entity: str, root: str, token: int | None, valid: int | None) -> Fenced:
        """Say which token came and what would have been right."""
        whose = f"entity {entity}" if entity == root else f"entity {entity} (of the tree of {root})"
        if token is None:
            return cls(
                f"nothing was recorded for {whose}: it is being run under a lease, and only its holder may write"
            )
        now = "it was released since" if valid is None else "another one has claimed it since"
        return cls(f"nothing was recorded for {whose}: lease {token} is over, {now}; stop running it here")


def not_root(entity: str, root: str) -> LoomError:
    """What to raise where a child is claimed."""
    return LoomError(f"entity {entity} runs below entity {root}: claim that one, for both")


def count_deaths(deaths: int, last: str | None, owner: str) -> int:
    """Return how many holders died in a row when `owner` claims what `last`, who is not there, did not release."""
    return deaths if last is None or last == owner or last in _ended else deaths + 1


def this_process() -> str:
    """A name for a holder in this process, different at each call."""
    return "/".join((*_here(), str(os.getpid()), _started(os.getpid()), uuid.uuid4().hex[:8]))


def no_more(owner: str) -> None:
    """A holder in this process has ended, and claims, renews and appends nothing any more; it may have leases left."""
    _ended.add(owner)


_ended: set[str] = set()


def gone(owner: str) -> bool:
    """Whether `owner` is surely no more: it has ended here, or with its process, which ran on this machine."""
    return owner in _ended or _runs(owner) is False


def is_alive(owner: str) -> bool:
    """Whether `owner` surely has not ended: its process runs on this machine."""
    return owner not in _ended and _runs(owner) is True


def _runs(owner: str) -> bool | None:
    """Whether the process of `owner` runs; None if that cannot be known."""
    parts = owner.split("/")
    if len(parts) != 6 or tuple(parts[:3]) != _here() or not parts[3].isdigit():
        return None
    try:
        os.kill(int(parts[3]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, and so maybe a later process with the same number: its start tells
    if _started(int(parts[3])) != parts[4]:
        return False
    return True if parts[4] != _UNKNOWN else None


def boot_id() -> str:
    """Return what this run of the machine is called; another one after it was restarted."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return sys.platform


def now() -> float:
    """Return the seconds since this machine started, suspension included; the wall clock if the system cannot say."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.time()


def _here() -> tuple[str, str, str]:
    """The machine, this run of it, and the numbering of processes that ours is part of (a container has its own)."""
    return socket.gethostname().replace("/", "-"), boot_id()[:8], _numbering()


def _numbering() -> str:
    try:
        return Path("/proc/self/ns/pid").readlink().name.strip("pid:[]")
    except OSError:
        return "0"


def _started(pid: int) -> str:
    """When a process began, in ticks since the machine did; "0" where the system does not say or it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return _UNKNOWN
    state, *told = stat.rpartition(")")[2].split()  # proc(5); before it stands a name with anything in it
    return _UNKNOWN if state in "ZX" else told[18]  # killed, and not yet waited for


_UNKNOWN: Final = "0"
