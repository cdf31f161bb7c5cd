"""The loom: an append-only log of records, and the tree of turns that users see of it (SPEC 6).

`open_store` opens a store of records, `Loom` reads it as turns, threads and subtrees, `open_loom` does both.
"""

from cantrip_actors.loom.export.thread import thread_jsonl
from cantrip_actors.loom.integrity.copy import copy_loom
from cantrip_actors.loom.integrity.repair import Repaired
from cantrip_actors.loom.integrity.verify import Fault, Heads, Verified, collect_heads, verify_loom
from cantrip_actors.loom.maintenance.backup import Compacted, backup_loom, compact_loom
from cantrip_actors.loom.maintenance.forget import Forgotten, Quote, Wanted, begin_forget, find_forks, forget_entities
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
