"""Several dispatches at once: which may run in parallel, and which may start without a human. Pure.

Two that run in parallel never write the same file (F-46): `overlaps` compares what their contracts declare as outputs.
A folder overlaps with everything in it. Paths that are not declared cannot be compared: wards are for those.

A heartbeat is a round without a human. It starts only dispatches that need no approval (F-48): `startable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from posixpath import join, normpath
from typing import NamedTuple

from cantrip_actors.dispatch.contract import Contract
from cantrip_actors.dispatch.record import Record


class Overlap(NamedTuple):
    """Two dispatches that would write the same path."""

    first: str
    second: str
    path: str

    def __str__(self) -> str:
        return f"{self.first} and {self.second} both declare {self.path} as output: run one after the other"


def overlaps(contracts: Sequence[Contract]) -> tuple[Overlap, ...]:
    """Return every pair of contracts whose declared outputs overlap, and the path they would both write (F-46).

    A path is relative to its contract's repository, or absolute.
    """
    found = []
    for one, other in combinations(contracts, 2):
        for here in one.outputs:
            for there in other.outputs:
                inner = _find_common(_join_path(one, here), _join_path(other, there))
                if inner is not None:
                    found.append(Overlap(one.dispatch_id, other.dispatch_id, inner))
    return tuple(dict.fromkeys(found))


def _join_path(contract: Contract, path: str) -> str:
    return normpath(join(contract.repo, path))


def _find_common(here: str, there: str) -> str | None:
    """Return the deeper of two paths of which one lies in the other, or equals it; None for others."""
    shallow, deep = sorted((here, there), key=len)
    return deep if deep == shallow or deep.startswith(shallow.rstrip("/") + "/") else None


def startable(records: Iterable[Record], *, heartbeat: bool = False) -> tuple[Record, ...]:
    """Return the queued dispatches that may be started now, in the order given.

    One that needs approval and has none is never startable. A `heartbeat` starts none that needs approval, approved or
    not: a decision that a human wanted is carried out while a human is there (F-48).
    """
    return tuple(
        record
        for record in records
        if record.status == "queued" and not (record.contract.needs_approval and (heartbeat or not record.approved))
    )
