"""The loom: an append-only log of records, and the tree of turns that users see of it (SPEC 6).

`open_store` opens a store of records, `Loom` reads it as turns, threads and subtrees, `open_loom` does both.
"""

# Names are imported when they are first used: a loom in memory needs neither SQLite nor verification nor backups.

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cantrip_actors.loom.export.thread import thread_jsonl as thread_jsonl
    from cantrip_actors.loom.integrity.copy import copy_loom as copy_loom
    from cantrip_actors.loom.integrity.repair import Repaired as Repaired
    from cantrip_actors.loom.integrity.verify import Fault as Fault
    from cantrip_actors.loom.integrity.verify import Heads as Heads
    from cantrip_actors.loom.integrity.verify import Verified as Verified
    from cantrip_actors.loom.integrity.verify import collect_heads as collect_heads
    from cantrip_actors.loom.integrity.verify import verify_loom as verify_loom
    from cantrip_actors.loom.maintenance.backup import Compacted as Compacted
    from cantrip_actors.loom.maintenance.backup import backup_loom as backup_loom
    from cantrip_actors.loom.maintenance.backup import compact_loom as compact_loom
    from cantrip_actors.loom.maintenance.forget import Forgotten as Forgotten
    from cantrip_actors.loom.maintenance.forget import Quote as Quote
    from cantrip_actors.loom.maintenance.forget import Wanted as Wanted
    from cantrip_actors.loom.maintenance.forget import begin_forget as begin_forget
    from cantrip_actors.loom.maintenance.forget import find_forks as find_forks
    from cantrip_actors.loom.maintenance.forget import forget_entities as forget_entities
    from cantrip_actors.loom.maintenance.retention import Duration as Duration
    from cantrip_actors.loom.maintenance.retention import Pruned as Pruned
    from cantrip_actors.loom.maintenance.retention import Retention as Retention
    from cantrip_actors.loom.maintenance.retention import find_expired as find_expired
    from cantrip_actors.loom.maintenance.retention import keep_for as keep_for
    from cantrip_actors.loom.maintenance.retention import parse_retention as parse_retention
    from cantrip_actors.loom.maintenance.retention import prune_loom as prune_loom
    from cantrip_actors.loom.memory.jsonl import JsonlStore as JsonlStore
    from cantrip_actors.loom.memory.memory import MemoryStore as MemoryStore
    from cantrip_actors.loom.opening import open_store as open_store
    from cantrip_actors.loom.opening import repair_loom as repair_loom
    from cantrip_actors.loom.reading.view import Loom as Loom
    from cantrip_actors.loom.reading.view import State as State
    from cantrip_actors.loom.reading.view import open_loom as open_loom
    from cantrip_actors.loom.seal.seal_key import SealKey as SealKey
    from cantrip_actors.loom.seal.seal_key import WrongSealKey as WrongSealKey
    from cantrip_actors.loom.sqlite.sqlite import SqliteStore as SqliteStore
    from cantrip_actors.loom.stores.checkpoints import StoredCheckpoint as StoredCheckpoint
    from cantrip_actors.loom.stores.checkpoints import Tip as Tip
    from cantrip_actors.loom.stores.damage import DamagedLoom as DamagedLoom
    from cantrip_actors.loom.stores.facts import EntityFacts as EntityFacts
    from cantrip_actors.loom.stores.inbox import InboxFull as InboxFull
    from cantrip_actors.loom.stores.inbox import KeyUsed as KeyUsed
    from cantrip_actors.loom.stores.inbox import QueueFull as QueueFull
    from cantrip_actors.loom.stores.inbox import Taken as Taken
    from cantrip_actors.loom.stores.lease import Fenced as Fenced
    from cantrip_actors.loom.stores.lease import Held as Held
    from cantrip_actors.loom.stores.lease import Lease as Lease
    from cantrip_actors.loom.stores.lease import Quarantined as Quarantined
    from cantrip_actors.loom.stores.lease import QuarantineRow as QuarantineRow
    from cantrip_actors.loom.stores.lease import mark_gone as mark_gone
    from cantrip_actors.loom.stores.lease import name_lease as name_lease
    from cantrip_actors.loom.stores.lease import service_lease as service_lease
    from cantrip_actors.loom.stores.lease import this_process as this_process
    from cantrip_actors.loom.stores.selection import ListedEntity as ListedEntity
    from cantrip_actors.loom.stores.selection import Page as Page
    from cantrip_actors.loom.stores.selection import Selection as Selection
    from cantrip_actors.loom.stores.store import Durability as Durability
    from cantrip_actors.loom.stores.store import Store as Store
    from cantrip_actors.loom.stores.store import Unsure as Unsure
    from cantrip_actors.loom.tables.migration import Migrate as Migrate
    from cantrip_actors.loom.tables.migration import Migrated as Migrated
    from cantrip_actors.machine.project import ClientCall as ClientCall
    from cantrip_actors.machine.project import Round as Round
    from cantrip_actors.records.blob import Blob as Blob
    from cantrip_actors.records.codec import SCHEMA as SCHEMA
    from cantrip_actors.records.codec import decode as decode
    from cantrip_actors.records.codec import encode as encode
    from cantrip_actors.records.mail import Mail as Mail
    from cantrip_actors.records.mail import MailRow as MailRow
    from cantrip_actors.records.mail import Pending as Pending
    from cantrip_actors.records.timers import Timer as Timer

_HOMES = {
    "cantrip_actors.loom.export.thread": ("thread_jsonl",),
    "cantrip_actors.loom.integrity.copy": ("copy_loom",),
    "cantrip_actors.loom.integrity.repair": ("Repaired",),
    "cantrip_actors.loom.integrity.verify": ("Fault", "Heads", "Verified", "collect_heads", "verify_loom"),
    "cantrip_actors.loom.maintenance.backup": ("Compacted", "backup_loom", "compact_loom"),
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
    "cantrip_actors.loom.opening": ("open_store", "repair_loom"),
    "cantrip_actors.loom.reading.view": ("Loom", "State", "open_loom"),
    "cantrip_actors.loom.seal.seal_key": ("SealKey", "WrongSealKey"),
    "cantrip_actors.loom.sqlite.sqlite": ("SqliteStore",),
    "cantrip_actors.loom.stores.checkpoints": ("StoredCheckpoint", "Tip"),
    "cantrip_actors.loom.stores.damage": ("DamagedLoom",),
    "cantrip_actors.loom.stores.facts": ("EntityFacts",),
    "cantrip_actors.loom.stores.inbox": ("InboxFull", "KeyUsed", "QueueFull", "Taken"),
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
    "cantrip_actors.loom.stores.selection": ("ListedEntity", "Page", "Selection"),
    "cantrip_actors.loom.stores.store": ("Durability", "Store", "Unsure"),
    "cantrip_actors.loom.tables.migration": ("Migrate", "Migrated"),
    "cantrip_actors.machine.project": ("ClientCall", "Round"),
    "cantrip_actors.records.blob": ("Blob",),
    "cantrip_actors.records.codec": ("SCHEMA", "decode", "encode"),
    "cantrip_actors.records.mail": ("Mail", "MailRow", "Pending"),
    "cantrip_actors.records.timers": ("Timer",),
}

_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value
