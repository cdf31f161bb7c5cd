"""The loom: an append-only log of records, and the tree of turns that users see of it (SPEC 6).

`open_store` opens where records are kept, `Loom` reads them as turns, threads and subtrees, `open_loom` does both.
"""

from cantrip_actors.loom.copy import copy_loom
from cantrip_actors.loom.export import thread_jsonl
from cantrip_actors.loom.jsonl import JsonlStore, Recovered
from cantrip_actors.loom.lease import Fenced, Held, Lease, no_more, this_process
from cantrip_actors.loom.memory import MemoryStore
from cantrip_actors.loom.record import SCHEMA, decode, encode
from cantrip_actors.loom.sqlite import SqliteStore
from cantrip_actors.loom.store import Durability, Store, Unsure, open_store
from cantrip_actors.loom.tree import Loom, State, open_loom
from cantrip_actors.loom.verify import Fault, Verified, verify_loom

__all__ = [
    "SCHEMA",
    "Durability",
    "Fault",
    "Fenced",
    "Held",
    "JsonlStore",
    "Lease",
    "Loom",
    "MemoryStore",
    "Recovered",
    "SqliteStore",
    "State",
    "Store",
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
