"""A user for each shell of a host that runs as root; no shell of another host has the same one.

The kernel counts processes by user. So a host takes a random block of user ids, checks that no process uses one of
them, and holds a lock on the block as long as it lives: an abstract socket, which needs no file. Nothing closes it,
since shells may run until the host ends; the kernel releases it then, however the host ends.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from functools import cache
from itertools import chain, count
from pathlib import Path
from typing import Final

from cantrip_actors.terms.errors import InvalidCantrip

FIRST: Final = 2_000_000_000
"""The first user id that a shell may have. Distributions assign no ids from here on."""

BLOCK: Final = 16_384
"""The number of user ids of a block."""

BLOCKS: Final = 8_900
"""The number of blocks; all ids are below 2**31, because some programs take larger ones for negative numbers."""

TRIES: Final = 100


def next_user() -> int:
    """Return a user id that no shell of this process has had before, and that no other process's shell has.

    Raises InvalidCantrip if no block of ids is free.
    """
    return next(_yield_users(os.getpid()))


@cache
def _yield_users(_process: int) -> Iterator[int]:
    """Return this process's ids; a forked process claims its own."""
    return chain.from_iterable(map(_claim_block, count()))


def _claim_block(_number: int) -> range:
    """Lock a block of user ids until this process ends."""
    chance = random.SystemRandom()
    for _ in range(TRIES):
        first = FIRST + chance.randrange(BLOCKS) * BLOCK
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            lock.bind(f"\0cantrip-shell-users-{first}")
        except OSError:  # another host of this machine has the block
            lock.close()
            continue
        block = range(first, first + BLOCK)
        if not any(user in block for user in _list_present()):
            lock.detach()  # it stays open
            return block
        lock.close()
    raise InvalidCantrip(f"no user ids are free for shells: {TRIES} blocks from {FIRST} on are in use on this machine")


def _list_present() -> Iterator[int]:
    """Yield the users of all visible processes, including those of other containers."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield process.stat().st_uid
