"""A loom into another store, of whichever kind: `copy_loom` appends every record in the order in which it was recorded.

So each tree has the same chain, each thread the same bytes, and both looms have the same fingerprint. That is checked
once all is there, by reading the copy again. Leases are not copied: they are about processes, not about what happened.
"""

from __future__ import annotations

from collections.abc import Iterator

from cantrip_actors.loom.chain import sealed_with
from cantrip_actors.loom.record import decode, encode
from cantrip_actors.loom.store import Store
from cantrip_actors.loom.verify import Trees, Verified, verify_loom
from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.turn import Record

__all__ = ["copy_loom"]

BATCH = 1000
"""Records that are appended at once."""


def copy_loom(source: Store, target: Store) -> Verified:
    """Copy everything in `source` to `target`, which may hold other entities already; what `target` holds then.

    Raises LoomError where an entity is in both (before anything is written), where `source` cannot be read or `target`
    not be written, and where the copy turns out to be another one.
    """
    for header in source.headers():
        if target.header(header.entity_id) is not None:
            raise LoomError(f"{target!r} holds entity {header.entity_id} already: nothing was copied")
    trees = Trees()
    batch: list[Record] = []
    for record in _records(source):
        trees.add(record, encode(record))
        batch.append(record)
        if len(batch) == BATCH:
            target.append(batch)
            batch = []
    target.append(batch)
    return _compared(trees, target)


def _records(source: Store) -> Iterator[Record]:
    for number, line in source.lines():
        try:
            yield decode(sealed_with(line)[0])
        except LoomError as error:
            raise LoomError(f"record {number} cannot be copied: {error}") from error


def _compared(trees: Trees, target: Store) -> Verified:
    found = verify_loom(target)
    copied = Trees()
    for _, line in target.lines():
        plain = sealed_with(line)[0]
        record = decode(plain)
        if copied.root(record) in trees.heads:
            copied.add(record, plain)
    if found.faults or copied.heads != trees.heads:
        why = found.faults[0] if found.faults else "its records are other ones"
        raise LoomError(f"the copy in {target!r} is not what was copied: {why}")
    return found
