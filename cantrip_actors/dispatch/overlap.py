"""Several dispatches at once: which may run in parallel, and which may start without a human. Pure.

Two that run in parallel never write the same file: `overlaps` compares what their contracts declare as outputs,
`find_common_paths` what any writers declare. A folder overlaps with everything in it. Paths that are not declared
cannot be compared: wards are for those.

A heartbeat is a round without a human. It starts only dispatches that need no approval: `startable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product, starmap
from posixpath import join, normpath
from typing import NamedTuple, TypeVar

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
    """Return every pair of contracts whose declared outputs overlap, and the path they would both write.

    A path is relative to its contract's repository, or absolute.
    """
    paths = [(contract.dispatch_id, [join(contract.repo, path) for path in contract.outputs]) for contract in contracts]
    return tuple(Overlap(*overlap) for overlap in find_common_paths(paths))


W = TypeVar("W")


def find_common_paths(writers: Iterable[tuple[W, Sequence[str]]]) -> Iterator[tuple[W, W, str]]:
    """Yield each pair of writers, each given with its paths, that would write the same path, and that path."""
    for (writer, mine), (other, others) in combinations(writers, 2):
        pairs = product(map(normpath, mine), map(normpath, others))
        yield from ((writer, other, path) for path in dict.fromkeys(starmap(_find_common, pairs)) if path is not None)


def _find_common(here: str, there: str) -> str | None:
    """Return the deeper of two paths of which one lies in the other, or equals it; None for others."""
    shallow, deep = sorted((here, there), key=len)
    return deep if shallow in (deep, ".") or deep.startswith(shallow.rstrip("/") + "/") else None


def startable(records: Iterable[Record], *, heartbeat: bool = False) -> tuple[Record, ...]:
    """Return the queued dispatches that may be started now, in the order given.

    One that needs approval and has none is never startable. A `heartbeat` starts none that needs approval, approved or
    not: a decision that a human wanted is carried out while a human is there.
    """
    return tuple(
        record
        for record in records
        if record.status == "queued" and not record.waits_for and not (heartbeat and record.contract.needs_approval)
    )
