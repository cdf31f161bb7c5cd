"""Leases: the right to write for an entity's tree, so that only one of two processes runs it.

A holder claims a root entity, for a time and under a name of its own, and renews the claim while it runs the entity.
The claim covers everything that the entity spawns. It comes with a token, a number that grows with every claim: records
appended for the tree from then on must carry it (`Store.append(records, leases)`), and it is checked where they are
written. Time only decides when another holder may claim. A holder that was frozen past its lease and then runs again
finds its token outdated and is refused (`Fenced`), whatever its clock says; a holder that is merely late, and has not
been replaced, continues.

That time is not a wall clock, which people and programs set. If all holders run on one machine, as those of an
SQLite file, it is the time since that machine started (`read_boot_clock`), and no time ends the lease of a process that
still runs (`is_alive`). A Postgres server provides the time for its machines.

Any process may append to a tree without a lease, which is the only case where no leases are used. A reward needs no
lease: it is a remark about a turn, not by the entity.

A name from `this_process` says where its holder runs. If that is this machine and the process is gone, its leases are
free at once: the entities of a killed process are resumed without waiting for its leases to expire. The same holds for
the leases of a holder that has ended in a running process and could not release them (`mark_gone`), because the store
may have been out of reach.

An entity may cause the death of its process. So each lease counts how many holders in a row did not release it while
the entity had work; after `DEATHS` of them the entity is quarantined. An idle entity without mail cannot kill a
process, so the deaths of its holders do not count. The count begins anew after a holder that took the entity over and
recorded something for it: a lease has the last link of the tree as it was when it was claimed. A holder may also
quarantine its entity, because it crashes again and again. A quarantine ends at its time, or when a claim lifts it; one
that follows it without progress lasts twice as long (`compute_length`).
"""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import orjson

from cantrip_actors.terms.errors import EntityCrashed, LoomError

NO_LEASES: Mapping[str, int] = MappingProxyType({})

REMAINS: Final = 86_400.0
"""Seconds after which a dead holder without leases is forgotten, and a dead node no longer listed."""

DEATHS: Final = 3
"""Holders in a row that may die before an entity is quarantined."""

QUARANTINE_FOR: Final = 600.0
"""Seconds that the first quarantine of an entity lasts, unless `Runtime.open(quarantine_for=…)` says otherwise."""

LONGEST: Final = 86_400.0
"""Seconds up to which quarantines double."""


class Lease(NamedTuple):
    """The right to write for the tree of `entity_id`. `until` is seconds since 1970."""

    entity_id: str
    owner: str
    token: int
    until: float


class Holder(NamedTuple):
    """The row of a lease in a store: its owner, None for a quarantine, and for how many seconds it lasts."""

    token: int
    owner: str | None
    deaths: int
    """The number of holders in a row that did not release it."""
    left: float
    until: float | None = None
    """When a quarantine ends by itself, in seconds since 1970; None if a claim has to lift it."""
    why: str = ""
    """Why it is quarantined."""
    head: str = ""
    """The last link of the tree when it was claimed; "" if it had none yet."""


def make_holder(token: int, owner: str | None, deaths: int, left: float, until: float | None, note: str) -> Holder:
    """Return a row of a store, in which one text is the head of the tree, or says why it is quarantined."""
    return Holder(token, owner, deaths, left, until, *((note, "") if owner is None else ("", note)))


class QuarantineRow(NamedTuple):
    """A quarantined entity: why it does not run, and until when."""

    entity_id: str
    why: str
    until: float | None
    """When it ends by itself, in seconds since 1970; None if a person has to lift it."""


class Held(LoomError):
    """A claim was refused: another holder runs that entity. `holder` names its process; None if that is this one."""

    holder: str | None = None

    @classmethod
    def by(cls, entity: str, owner: str, left: float) -> Held:
        """Return the error for an entity that `owner` runs, with the least time that it lasts."""
        at = datetime.fromtimestamp(time.time() + left, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        lasts = f"its lease lasts until {at} unless it is renewed" if left > 0 else "its process runs"
        error = cls(
            f"entity {entity} is being run by {owner}; {lasts}. "
            "Try again once it has ended or is unloaded there, or that process has ended"
        )
        error.entity_id, error.holder = entity, owner
        return error


class Quarantined(EntityCrashed, LoomError):
    """The entity does not run now: it crashed again and again, or the processes that ran it died, several in a row.

    It keeps its name, its inbox and its memory. `why` is the first crash, and `until` the time of the next automatic
    attempt, in seconds since 1970; None if it has to be resumed.
    """

    def __init__(self, entity_id: str, why: str, until: float | None) -> None:
        then = "It is not tried again by itself"
        if until is not None:
            at = datetime.fromtimestamp(min(until, _LAST_TIME), UTC).isoformat(timespec="seconds")
            then = f"It is tried again at {at.replace('+00:00', 'Z')}"
        super().__init__(
            f"entity {entity_id} is quarantined, and what it was sent waits: {why}. {then}; to try it at once, resume "
            "it; to end it, abandon it"
        )
        self.entity_id = entity_id
        self.why = why
        self.until = until


class Fenced(LoomError):
    """A late writer was refused: its lease on the entity is not, or no longer, the valid one."""

    @classmethod
    def out(cls, entity: str, root: str, token: int | None, valid: int | None) -> Fenced:
        """Return the error for a token that is not the valid one."""
        whose = f"entity {entity}" if entity == root else f"entity {entity} (of the tree of {root})"
        if token is None:
            return cls(
                f"nothing was recorded for {whose}: it is being run under a lease, and only its holder may write"
            )
        now = "it was released since" if valid is None else "another one has claimed it since"
        return cls(f"nothing was recorded for {whose}: lease {token} is over, {now}; stop running it here")


def name_lease(name: str) -> str:
    """Return the text on which a lease claims a name; it cannot be an entity's id."""
    return f"name:{name}"


SERVICE: Final = "serves:"
"""The prefix of the lease in which a process lists the cantrips that it serves."""


def service_lease(owner: str, cantrips: Iterable[str]) -> str:
    """Return the text on which a process has a lease while it serves cantrips with these names and content ids."""
    return SERVICE + orjson.dumps([owner, *sorted(cantrips)]).decode()


def read_service(text: str) -> list[str]:
    """Return the names and content ids of the cantrips that are served under the lease with this text."""
    cantrips: list[str] = orjson.loads(text.removeprefix(SERVICE))[1:]
    return cantrips


def compute_length(quarantine_for: float | None, repeats: int) -> float | None:
    """Return how many seconds a quarantine lasts after `repeats` others without progress; None for no end.

    >>> [compute_length(600.0, repeats) for repeats in (0, 1, 2, 99)]
    [600.0, 1200.0, 2400.0, 86400.0]
    """
    if quarantine_for is None:
        return None
    return min(quarantine_for * 2.0 ** min(repeats, 32), max(quarantine_for, LONGEST))


def count_deaths(deaths: int, last: str | None, owner: str) -> int:
    """Return the deaths in a row when `owner` claims a lease that `last`, a holder that is gone, did not release."""
    return deaths if last is None or last == owner or last in _ended else deaths + 1


def this_process() -> str:
    """Return a name for a holder in this process, different at each call."""
    return "/".join((*_identify_machine(), str(os.getpid()), _read_start_time(os.getpid()), uuid.uuid4().hex[:8]))


def mark_gone(owner: str) -> None:
    """Declare that a holder in this process has ended and appends nothing any more; it may still have leases."""
    _ended.add(owner)


_ended: set[str] = set()


def is_gone(owner: str) -> bool:
    """Return whether `owner` has surely ended: here, or with its process, which ran on this machine."""
    return owner in _ended or _is_running(owner) is False


def is_alive(owner: str) -> bool:
    """Return whether `owner` is surely alive: its process runs on this machine."""
    return owner not in _ended and _is_running(owner) is True


def _is_running(owner: str) -> bool | None:
    """Return whether the process of `owner` runs; None if that is unknown."""
    parts = owner.split("/")
    if len(parts) != 6 or tuple(parts[:3]) != _identify_machine() or not parts[3].isdigit():
        return None
    try:
        os.kill(int(parts[3]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # the process is another user's, so the id may have been reused: the start time decides
    if _read_start_time(int(parts[3])) != parts[4]:
        return False
    return True if parts[4] != _UNKNOWN else None


@cache
def read_boot_id() -> str:
    """Return the id of the machine's current boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return sys.platform


def read_boot_clock() -> float:
    """Return the seconds since this machine started, suspension included; the wall clock if the system cannot say."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.time()


def _identify_machine() -> tuple[str, str, str]:
    """Return the machine, its boot, and the process namespace, which differs between containers."""
    return socket.gethostname().replace("/", "-"), read_boot_id()[:8], _identify_pid_namespace()


def _identify_pid_namespace() -> str:
    try:
        return Path("/proc/self/ns/pid").readlink().name.strip("pid:[]")
    except OSError:
        return "0"


def _read_start_time(pid: int) -> str:
    """Return a process's start in ticks since the boot; "0" if it is unknown or the process has ended."""
    return _read_own_start_time(pid) if pid == os.getpid() else _read_start_time_now(pid)


def _read_start_time_now(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return _UNKNOWN
    state, *fields = stat.rpartition(")")[2].split()  # proc(5); the preceding name may contain anything
    return _UNKNOWN if state in "ZX" else fields[18]  # killed, but not reaped yet


_read_own_start_time = cache(_read_start_time_now)
"""This process lives whenever it runs this code, and reading its start time takes longer the more threads it has."""

_UNKNOWN: Final = "0"
_LAST_TIME: Final = 253_402_300_799.0
"""The last second of the year 9999, after which there is no `datetime`."""
