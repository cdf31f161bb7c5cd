"""A user for each shell of a host that is root, which no shell of another host has.

The kernel counts processes by user. So a host takes a block of user ids at random, looks that no process has one of
them, and holds a lock on the block as long as it lives: an abstract socket, which the kernel gives back however the
host ends, and which needs no file.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from cantrip_actors.terms.errors import InvalidCantrip

__all__ = ["next_user"]

FIRST: Final = 2_000_000_000
"""The first user id that a shell may have. No distribution assigns ids from here on."""

BLOCK: Final = 16_384
"""User ids of a block."""

BLOCKS: Final = 8_900
"""Blocks, all below 2**31: some programs take larger ids for negative numbers."""

TRIES: Final = 100


def next_user() -> int:
    """Return a user id that no shell of this machine has had from this process, or has from another one.

    Raises InvalidCantrip if no block of ids is free.
    """
    return next(_users(os.getpid()))


@cache
def _users(_process: int) -> Iterator[int]:
    """Return the ids of one process: a forked one claims its own."""
    return _claim_user()


def _claim_user() -> Iterator[int]:
    locks = []
    while True:
        lock, first = _claim()
        locks.append(lock)  # shells of an earlier block may still run
        yield from range(first, first + BLOCK)


def _claim() -> tuple[socket.socket, int]:
    chance = random.SystemRandom()
    for _ in range(TRIES):
        first = FIRST + chance.randrange(BLOCKS) * BLOCK
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            lock.bind(f"\0cantrip-shell-users-{first}")
        except OSError:  # another host of this machine has the block
            lock.close()
            continue
        if not any(first <= user < first + BLOCK for user in _present()):
            return lock, first
        lock.close()
    raise InvalidCantrip(f"no user ids are free for shells: {TRIES} blocks from {FIRST} on are in use on this machine")


def _present() -> Iterator[int]:
    """Yield the users of all processes, those of other containers included that this one can see."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield process.stat().st_uid
