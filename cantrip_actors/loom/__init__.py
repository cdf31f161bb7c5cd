"""The loom: an append-only log of records, and the tree of turns that users see of it (SPEC 6).

`open_store` opens where records are kept, `Loom` reads them as turns, threads and subtrees, `open_loom` does both.
"""

from cantrip_actors.loom.checkpoints import StoredCheckpoint, Tip
from cantrip_actors.loom.copy import copy_loom
from cantrip_actors.loom.export.thread import thread_jsonl
from cantrip_actors.loom.inbox import InboxFull, KeyUsed, Taken
from cantrip_actors.loom.jsonl import JsonlStore, Recovered
from cantrip_actors.loom.lease import Fenced, Held, Lease, Quarantined, no_more, this_process
from cantrip_actors.loom.memory import MemoryStore
from cantrip_actors.loom.opening import open_store
from cantrip_actors.loom.sqlite import SqliteStore
from cantrip_actors.loom.store import Durability, Store, Unsure
from cantrip_actors.loom.verify import Fault, Verified, verify_loom
from cantrip_actors.loom.view import Loom, State, open_loom
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.codec import SCHEMA, decode, encode
from cantrip_actors.records.mail import Mail, MailRow, Pending
from cantrip_actors.records.timers import Timer

__all__ = [
    "SCHEMA",
    "Blob",
    "Durability",
    "Fault",
    "Fenced",
    "Held",
    "InboxFull",
    "JsonlStore",
    "KeyUsed",
    "Lease",
    "Loom",
    "Mail",
    "MailRow",
    "MemoryStore",
    "Pending",
    "Quarantined",
    "Recovered",
    "SqliteStore",
    "State",
    "Store",
    "StoredCheckpoint",
    "Taken",
    "Timer",
    "Tip",
    "Unsure",
    "Verified",
    "copy_loom",
    "decode",
    "encode",
    "no_more",
    "open_loom",
    "open_store",
    "this_process",
    "thread_jsonl",
    "verify_loom",
]
