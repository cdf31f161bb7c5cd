"""Wrap the appends of stores: count their borders, die there, and write acknowledged records to the ledger.

Only this file of the bench uses internals of the product. To die between two records, the workload's process has to run
code there; so this module replaces the runtime's `open_store`, inside that process, by a function that wraps the store.
The product itself is not changed.

A store must survive a kill in the middle of an append, which can hardly be hit from outside. So a JSONL store is
stopped after half of its bytes, an SQLite store just before its COMMIT, and a Postgres store at a random moment.
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
"""The approximate number of seconds that a server takes for an append."""


def watch(ledger: Ledger, fate: Fate, spoil: Callable[[Any], None] | None = None) -> None:
    """Watch every store that a runtime of this process opens from now on; `spoil` may replace its disk."""
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
        _watch_appends(store, ledger, fate)
        return store

    house.open_store = opened


def _watch_appends(store: Any, ledger: Ledger, fate: Fate) -> None:
    append, replace_timer = store.append, store.replace_timer

    def watch_append(records: Any, *leases: Any, **mail: Any) -> None:
        fate.meet()
        append(records, *leases, **mail)
        fate.meet()
        ledger.write_acked(records)

    def watch_timer(*timers: Any) -> Any:
        fate.meet()
        done = replace_timer(*timers)
        fate.meet()
        return done

    store.append, store.replace_timer = watch_append, watch_timer


def _half_written(store: Any, fate: Fate) -> None:
    file = store._file  # noqa: SLF001  # see the head of this file
    write = file.disk.write

    def tear(fd: int, data: bytes) -> int:
        if fate.is_next:
            write(fd, bytes(data)[: len(data) // 2])
        fate.meet(middle=True)
        written: int = write(fd, data)
        return written

    file.disk = replace(file.disk, write=tear)


def _leave_uncommitted(store: Any, fate: Fate) -> None:
    def watch_commit(statement: str) -> None:
        if statement == "commit":
            fate.meet(middle=True)

    store._writer.set_trace_callback(watch_commit)  # noqa: SLF001  # likewise


def _anywhere(store: Any, fate: Fate) -> None:
    append = store.append

    def fail_append(records: Any, *leases: Any, **mail: Any) -> None:
        if fate.is_next:
            threading.Thread(target=_die_soon, daemon=True).start()
        else:
            fate.meet(middle=True)
        append(records, *leases, **mail)

    store.append = fail_append


def _die_soon() -> None:
    time.sleep(random.random() * AWAY)
    die()


_MIDDLE: dict[str, Callable[[Any, Fate], None]] = {
    "JsonlStore": _half_written,
    "SqliteStore": _leave_uncommitted,
    "PostgresStore": _anywhere,
    "MemoryStore": lambda _store, _fate: None,
}
