"""The loom: an append-only log of records, and the tree of turns that users see of it (SPEC 6).

`open_store` opens a store of records, `Loom` reads it as turns, threads and subtrees, `open_loom` does both.
"""

# Names are imported when they are first used: a loom in memory needs neither SQLite nor verification nor backups.

from typing import TYPE_CHECKING

from cantrip_actors.lazy_exports import export_lazily

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
else:
    __getattr__, __dir__ = export_lazily(__name__)
