"""The loom: an append-only log of records, and the tree of turns that users see of it (SPEC 6).

`open_store` opens a store of records, `Loom` reads it as turns, threads and subtrees, `open_loom` does both.
"""

# Names are imported when they are first used: a loom in memory needs neither SQLite nor verification nor backups.

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cantrip_actors.loom.export.thread import thread_jsonl
    from cantrip_actors.loom.integrity.copy import copy_loom
    from cantrip_actors.loom.integrity.repair import Repaired
    from cantrip_actors.loom.integrity.verify import Fault, Heads, Verified, collect_heads, verify_loom
    from cantrip_actors.loom.maintenance.backup import Compacted, backup_loom, compact_loom
    from cantrip_actors.loom.maintenance.forget import (
        Forgotten,
        Quote,
        Wanted,
        begin_forget,
        find_forks,
        forget_entities,
    )
    from cantrip_actors.loom.maintenance.retention import (
        Duration,
        Pruned,
        Retention,
        find_expired,
        keep_for,
        parse_retention,
        prune_loom,
    )
    from cantrip_actors.loom.memory.jsonl import JsonlStore
    from cantrip_actors.loom.memory.memory import MemoryStore
    from cantrip_actors.loom.opening import open_store, repair_loom
    from cantrip_actors.loom.reading.view import Loom, State, open_loom
    from cantrip_actors.loom.seal.seal_key import SealKey, WrongSealKey
    from cantrip_actors.loom.sqlite.sqlite import SqliteStore
    from cantrip_actors.loom.stores.checkpoints import StoredCheckpoint, Tip
    from cantrip_actors.loom.stores.damage import DamagedLoom
    from cantrip_actors.loom.stores.facts import EntityFacts
    from cantrip_actors.loom.stores.inbox import InboxFull, KeyUsed, QueueFull, Taken
    from cantrip_actors.loom.stores.lease import (
        Fenced,
        Held,
        Lease,
        Quarantined,
        QuarantineRow,
        mark_gone,
        name_lease,
        service_lease,
        this_process,
    )
    from cantrip_actors.loom.stores.selection import ListedEntity, Page, Selection
    from cantrip_actors.loom.stores.store import Durability, Store, Unsure
    from cantrip_actors.loom.tables.migration import Migrate, Migrated
    from cantrip_actors.machine.project import ClientCall, Round
    from cantrip_actors.records.blob import Blob
    from cantrip_actors.records.codec import SCHEMA, decode, encode
    from cantrip_actors.records.mail import Mail, MailRow, Pending
    from cantrip_actors.records.timers import Timer

__all__ = [
    "SCHEMA",
    "Blob",
    "ClientCall",
    "Compacted",
    "DamagedLoom",
    "Durability",
    "Duration",
    "EntityFacts",
    "Fault",
    "Fenced",
    "Forgotten",
    "Heads",
    "Held",
    "InboxFull",
    "JsonlStore",
    "KeyUsed",
    "Lease",
    "ListedEntity",
    "Loom",
    "Mail",
    "MailRow",
    "MemoryStore",
    "Migrate",
    "Migrated",
    "Page",
    "Pending",
    "Pruned",
    "QuarantineRow",
    "Quarantined",
    "QueueFull",
    "Quote",
    "Repaired",
    "Retention",
    "Round",
    "SealKey",
    "Selection",
    "SqliteStore",
    "State",
    "Store",
    "StoredCheckpoint",
    "Taken",
    "Timer",
    "Tip",
    "Unsure",
    "Verified",
    "Wanted",
    "WrongSealKey",
    "backup_loom",
    "begin_forget",
    "collect_heads",
    "compact_loom",
    "copy_loom",
    "decode",
    "encode",
    "find_expired",
    "find_forks",
    "forget_entities",
    "keep_for",
    "mark_gone",
    "name_lease",
    "open_loom",
    "open_store",
    "parse_retention",
    "prune_loom",
    "repair_loom",
    "service_lease",
    "this_process",
    "thread_jsonl",
    "verify_loom",
]

_HOMES = {
    "cantrip_actors.loom.export.thread": ("thread_jsonl",),
    "cantrip_actors.loom.integrity.copy": ("copy_loom",),
    "cantrip_actors.loom.integrity.repair": ("Repaired",),
    "cantrip_actors.loom.integrity.verify": (
        "Fault",
        "Heads",
        "Verified",
        "collect_heads",
        "verify_loom",
    ),
    "cantrip_actors.loom.maintenance.backup": (
        "Compacted",
        "backup_loom",
        "compact_loom",
    ),
    "cantrip_actors.loom.maintenance.forget": (
        "Forgotten",
        "Quote",
        "Wanted",
        "begin_forget",
        "find_forks",
        "forget_entities",
    ),
    "cantrip_actors.loom.maintenance.retention": (
        "Duration",
        "Pruned",
        "Retention",
        "find_expired",
        "keep_for",
        "parse_retention",
        "prune_loom",
    ),
    "cantrip_actors.loom.memory.jsonl": ("JsonlStore",),
    "cantrip_actors.loom.memory.memory": ("MemoryStore",),
    "cantrip_actors.loom.opening": (
        "open_store",
        "repair_loom",
    ),
    "cantrip_actors.loom.reading.view": (
        "Loom",
        "State",
        "open_loom",
    ),
    "cantrip_actors.loom.seal.seal_key": (
        "SealKey",
        "WrongSealKey",
    ),
    "cantrip_actors.loom.sqlite.sqlite": ("SqliteStore",),
    "cantrip_actors.loom.stores.checkpoints": (
        "StoredCheckpoint",
        "Tip",
    ),
    "cantrip_actors.loom.stores.damage": ("DamagedLoom",),
    "cantrip_actors.loom.stores.facts": ("EntityFacts",),
    "cantrip_actors.loom.stores.inbox": (
        "InboxFull",
        "KeyUsed",
        "QueueFull",
        "Taken",
    ),
    "cantrip_actors.loom.stores.lease": (
        "Fenced",
        "Held",
        "Lease",
        "Quarantined",
        "QuarantineRow",
        "mark_gone",
        "name_lease",
        "service_lease",
        "this_process",
    ),
    "cantrip_actors.loom.stores.selection": (
        "ListedEntity",
        "Page",
        "Selection",
    ),
    "cantrip_actors.loom.stores.store": (
        "Durability",
        "Store",
        "Unsure",
    ),
    "cantrip_actors.loom.tables.migration": (
        "Migrate",
        "Migrated",
    ),
    "cantrip_actors.machine.project": (
        "ClientCall",
        "Round",
    ),
    "cantrip_actors.records.blob": ("Blob",),
    "cantrip_actors.records.codec": (
        "SCHEMA",
        "decode",
        "encode",
    ),
    "cantrip_actors.records.mail": (
        "Mail",
        "MailRow",
        "Pending",
    ),
    "cantrip_actors.records.timers": ("Timer",),
}

_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value
