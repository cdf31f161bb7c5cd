"""Standing at the borders of a store's appends: to count them, to die there, and to say what was acknowledged.

This is the one file of the bench that reaches behind the public face. Whoever is to die between a record and the next
has to stand there, and no user ever should; so the runtime's `open_store` is replaced inside the workload's process, by
one that puts a watch on the store that it opened. Nothing of the product is changed, and nothing in it knows.

A kill in the middle of an append is what a store has to be ready for and can hardly be hit from outside: a JSONL store
is cut off after half of its bytes, an SQLite store just before its COMMIT, a Postgres store wherever its server happens
to be.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from conformance.crash.fate import Fate, die
from conformance.crash.ledger import Ledger

__all__ = ["AWAY", "watch"]

AWAY = 0.002
"""Seconds that a server takes over an append, about."""


def watch(ledger: Ledger, fate: Fate, spoil: Callable[[Any], None] | None = None) -> None:
    """From here on every store that a runtime of this process opens is watched; `spoil` may make its disk a bad one."""
    house: Any = import_module("cantrip_actors.runtime.tree")
    whole = house.open_store

    def opened(url: str, **options: Any) -> Any:
        fate.meet()
        store = whole(url, **options)
        fate.meet()
        kind = type(store).__name__
        if spoil is not None:
            spoil(store)
        _MIDDLE[kind](store, fate)
        _around(store, ledger, fate)
        return store

    house.open_store = opened


def _around(store: Any, ledger: Ledger, fate: Fate) -> None:
    append = store.append

    def watched(records: Any, *leases: Any, **mail: Any) -> None:
        fate.meet()
        append(records, *leases, **mail)
        fate.meet()
        ledger.acked(records)

    store.append = watched


def _half_written(store: Any, fate: Fate) -> None:
    write = store._disk.write  # noqa: SLF001  # see the head of this file

    def torn(fd: int, data: bytes) -> int:
        if fate.is_next:
            write(fd, bytes(data)[: len(data) // 2])
        fate.meet(middle=True)
        written: int = write(fd, data)
        return written

    store._disk = replace(store._disk, write=torn)  # noqa: SLF001  # likewise


def _uncommitted(store: Any, fate: Fate) -> None:
    def told(statement: str) -> None:
        if statement == "commit":
            fate.meet(middle=True)

    store._writer.set_trace_callback(told)  # noqa: SLF001  # likewise


def _anywhere(store: Any, fate: Fate) -> None:
    append = store.append

    def doomed(records: Any, *leases: Any, **mail: Any) -> None:
        if fate.is_next:
            threading.Thread(target=_die_soon, daemon=True).start()
        else:
            fate.meet(middle=True)
        append(records, *leases, **mail)

    store.append = doomed


def _die_soon() -> None:
    time.sleep(random.random() * AWAY)
    die()


_MIDDLE: dict[str, Callable[[Any, Fate], None]] = {
    "JsonlStore": _half_written,
    "SqliteStore": _uncommitted,
    "PostgresStore": _anywhere,
    "MemoryStore": lambda _store, _fate: None,
}
