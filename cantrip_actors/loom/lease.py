"""Leases: who may write for an entity's tree, so that of two processes that would run it only one does.

Whoever runs a root entity claims it first, for a time and under a name of its own, and renews the claim while it
runs. The claim covers everything that the entity spawns. It comes with a token, a number that grows with every claim:
what is appended for the tree from then on has to carry it (`Store.append(records, leases)`), checked where the records
are written. Time only decides when somebody else may claim. A holder that was frozen past its lease, and then goes on,
finds its token outdated and is refused (`Fenced`), whatever its clock says; one that is merely late, and that nobody
has replaced, goes on.

What nobody has claimed anybody may append to, which is all there is where no leases are used. A reward needs none: it
is said about a turn, not by the entity.

A name from `this_process` says where its holder runs. If that is here and the process is gone, its leases are free at
once: a process that was killed is taken up without waiting for its leases to run out. So are those of a holder that
has ended in a process that goes on, and could not let go of them (`no_more`): the store may have been out of reach.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.turn import Record, Rewarded

__all__ = ["NO_LEASES", "Fenced", "Held", "Lease", "LeasesHere", "gone", "no_more", "not_root", "this_process"]

NO_LEASES: Mapping[str, int] = MappingProxyType({})


class Lease(NamedTuple):
    """The right to write for the tree of `entity_id`. `until` is seconds since 1970, by the store's clock."""

    entity_id: str
    owner: str
    token: int
    until: float


class Held(LoomError):
    """A claim was refused: another holder runs that entity."""

    @classmethod
    def by(cls, entity: str, owner: str, until: float) -> Held:
        """Say by whom, and until when it is at least."""
        at = datetime.fromtimestamp(until, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return cls(
            f"entity {entity} is being run by {owner}; its lease lasts until {at} unless it is renewed. "
            "It can be had here once it has ended or sleeps there, or that process is gone: try again then"
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


class LeasesHere:
    """The leases of a store with one writer: nobody but its own process can claim, so they live and die with it."""

    def __init__(self) -> None:
        self._held: dict[str, Lease] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._held)

    def claim(self, entity: str, owner: str, ttl: float) -> Lease:
        """The right to write for a tree. Raises Held while another owner has it."""
        now = time.time()
        held = self._held.get(entity)
        if held is not None and held.owner != owner and held.until > now and not gone(held.owner):
            raise Held.by(entity, held.owner, held.until)
        self._last += 1
        lease = self._held[entity] = Lease(entity, owner, self._last, now + ttl)
        return lease

    def renew(self, owner: str, ttl: float) -> None:
        """Prolong all that `owner` has."""
        until = time.time() + ttl
        for entity, lease in self._held.items():
            if lease.owner == owner:
                self._held[entity] = lease._replace(until=until)

    def release(self, lease: Lease) -> None:
        """Let go of a lease, if it is not over."""
        held = self._held.get(lease.entity_id)
        if held is not None and held.token == lease.token:
            del self._held[lease.entity_id]

    def check(self, records: Iterable[Record], roots: Iterable[str], tokens: Mapping[str, int]) -> None:
        """Raise Fenced where a record of the tree of its root needs a lease, and `tokens` has not the right one."""
        for record, root in zip(records, roots, strict=True):
            held = self._held.get(root)
            token, valid = tokens.get(root), None if held is None else held.token
            if token != valid and not (token is None and isinstance(record, Rewarded)):
                raise Fenced.out(record.entity_id, root, token, valid)


def this_process() -> str:
    """A name for a holder in this process, different at each call."""
    return "/".join((*_here(), str(os.getpid()), _started(os.getpid()), uuid.uuid4().hex[:8]))


def no_more(owner: str) -> None:
    """A holder in this process has ended, and claims, renews and appends nothing any more; it may have leases left."""
    _ended.add(owner)


_ended: set[str] = set()


def gone(owner: str) -> bool:
    """Whether `owner` is surely no more: it has ended here, or with its process, which ran on this machine."""
    if owner in _ended:
        return True
    parts = owner.split("/")
    if len(parts) != 6 or tuple(parts[:3]) != _here() or not parts[3].isdigit():
        return False
    try:
        os.kill(int(parts[3]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # somebody else's, and so maybe a later process with the same number: its start tells
    return _started(int(parts[3])) != parts[4]


def _here() -> tuple[str, str, str]:
    """The machine, this run of it, and the numbering of processes that ours is part of (a container has its own)."""
    return socket.gethostname().replace("/", "-"), _boot(), _numbering()


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
    except OSError:
        return sys.platform


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
        return "0"
    state, *told = stat.rpartition(")")[2].split()  # proc(5); before it stands a name with anything in it
    return "0" if state in "ZX" else told[18]  # killed, and not yet waited for
