"""Forget entities: delete their content, and leave tombstones that keep the tree and its hash chain intact.

An entity is forgotten with everything that it spawned. Its forks, and the turns of a parent that quote its result, are
listed. Meanwhile the trees and the unfinished forks are claimed: a fork that continued would write the deleted context
into a checkpoint. `begin_forget` does the work in two parts, for a store whose writer must wait; `forget_entities` does
both at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cantrip_actors.loom.stores.erasure import Erasure, check_ended
from cantrip_actors.loom.stores.lease import NO_LEASES, Held, Lease, mark_gone, this_process
from cantrip_actors.loom.stores.store import Store
from cantrip_actors.machine.project import Life, as_forgotten, list_turns_quoting
from cantrip_actors.records.instant import format_instant
from cantrip_actors.terms.arguments import check_kind
from cantrip_actors.terms.errors import LoomError, UnknownEntity

LEASE = 600.0
"""Seconds for which the trees are claimed: more than rewriting a large file takes."""


class Quote(NamedTuple):
    """A turn of a parent that contains the result of a forgotten child; it is not changed."""

    entity_id: str
    turn_id: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The result of `forget`: `records` and `bytes` of the lines that became tombstones, and deleted `blobs`.

    `forks` are the entities that were forked from turns of the forgotten ones and were not forgotten with them: their
    own turns are unchanged, and the context that they began with is empty. `quotes` are the turns of parents that still
    quote a result.
    """

    entities: tuple[str, ...]
    records: int = 0
    bytes: int = 0
    blobs: int = 0
    forks: tuple[str, ...] = ()
    quotes: tuple[Quote, ...] = ()


class Wanted(NamedTuple):
    """A request to forget entities with everything that they spawned.

    With `forks` their forks are forgotten too, and with `parents` the parents that quote their results.
    """

    entities: Sequence[str]
    by: str = ""
    why: str = ""
    forks: bool = False
    scrubs: bool = True
    parents: bool = False


def forget_entities(
    store: Store,
    wanted: Wanted,
    leases: Mapping[str, int] = NO_LEASES,
    is_loaded: Callable[[str], bool] = lambda _: False,
) -> Forgotten:
    """Forget entities, and return the result. Repeating the call finishes what a killed process began.

    `leases` are the tokens of the trees that this process runs, and `is_loaded` says which entities it runs. Raises
    LoomError for an entity that is not in the loom or has not ended, and for one with a fork that is loaded; Held if
    another process runs its tree.
    """
    check_kind("store", store, Store, "a store, as of open_store(…)", LoomError)
    return begin_forget(store, wanted, leases, is_loaded)()


def begin_forget(
    store: Store,
    wanted: Wanted,
    leases: Mapping[str, int] = NO_LEASES,
    is_loaded: Callable[[str], bool] = lambda _: False,
) -> Callable[[], Forgotten]:
    """Do the slow part of `forget_entities`; return a function that completes it."""
    entities, forks = _select(store, wanted)
    for entity in entities:
        _check(store, entity)
    unfinished = [fork for fork in forks if (life := store.life(fork)) is not None and life < Life.OVER]
    for fork in unfinished:
        if is_loaded(fork) or fork in leases or store.is_held(fork):
            raise _make_loaded(fork)
    quotes = tuple(_find_quotes(store, entities))
    roots = {find_root(store, entity) for entity in entities}
    owner, at = this_process(), format_instant(store.clock())
    claims: list[Lease] = []
    try:
        claims.extend(store.claim(root, owner, LEASE, lift=True) for root in sorted(roots - leases.keys()))
        claims.extend(_claim_fork(store, fork, owner) for fork in sorted(unfinished))
        tokens = {**leases, **{lease.entity_id: lease.token for lease in claims}}
        erasure = Erasure(entities, forks, at, wanted.by, wanted.why, wanted.scrubs)
        complete = store.prepare_forget(erasure, tokens)
    except BaseException:
        _release(store, claims)
        raise

    def finish() -> Forgotten:
        try:
            blobs = complete()
        finally:
            _release(store, claims)
        ends = [end for entity in entities if (end := as_forgotten(store.newest(entity, 1)[-1])) is not None]
        records, size = sum(end.records for end in ends), sum(end.bytes for end in ends)
        return Forgotten(tuple(entities), records, size, blobs, tuple(forks), quotes)

    return finish


def _release(store: Store, claims: Sequence[Lease]) -> None:
    """Release leases; this process may claim them again at once if the store is out of reach. Raises LoomError."""
    try:
        store.release(*claims)
    except LoomError:
        for lease in claims:
            mark_gone(lease.owner)
        raise


def _claim_fork(store: Store, fork: str, owner: str) -> Lease:
    try:
        return store.claim(fork, owner, LEASE, lift=True)
    except Held as held:
        raise _make_loaded(fork) from held


def _make_loaded(fork: str) -> LoomError:
    return LoomError(f"entity {fork}, a fork of an entity to be forgotten, is loaded: stop it first, or wait")


def find_forks(store: Store, entities: Iterable[str]) -> list[str]:
    """Return the entities that were forked from turns of these, and from turns of their forks, and so on."""
    found: dict[str, None] = {}
    todo = list(entities)
    while todo:
        new = [fork for fork in store.branches(todo.pop()) if fork not in found]
        found.update(dict.fromkeys(new))
        todo += new
    return list(found)


def find_root(store: Store, entity: str) -> str:
    """Return the root of an entity's tree. Raises LoomError for an entity that is not in the loom."""
    header = store.header(entity)
    if header is None:
        raise UnknownEntity(entity)
    return entity if header.parent_entity is None else find_root(store, header.parent_entity)


def _select(store: Store, wanted: Wanted) -> tuple[list[str], list[str]]:
    """Return the entities to forget, and the forks that remain."""
    entities: dict[str, None] = {}
    todo = list(reversed(wanted.entities))
    forks: list[str] = []
    while todo:
        while todo:
            entity = todo.pop()
            find_root(store, entity)
            entities[entity] = None
            todo.extend(one for one in reversed(store.below(entity)) if one not in entities)
        forks = [fork for fork in find_forks(store, entities) if fork not in entities]
        if wanted.parents:
            todo = list(dict.fromkeys(quote.entity_id for quote in _find_quotes(store, entities)))
        if wanted.forks:
            todo, forks = [*todo, *reversed(forks)], []
    return list(entities), forks


def _check(store: Store, entity: str) -> None:
    life, root = store.life(entity), find_root(store, entity)
    check_ended(entity, life or Life.BUSY)
    if store.life(root) in (Life.WAITING, Life.BUSY):
        raise LoomError(
            f"entity {entity} is not forgotten: entity {root}, below which it ran, is at work or waits for a person. "
            "Wait until it is idle or has ended, or stop it first"
        )


def _find_quotes(store: Store, entities: Collection[str]) -> Iterable[Quote]:
    for entity in entities:
        header = store.header(entity)
        parent = None if header is None else header.parent_entity
        if parent is not None and parent not in entities:
            yield from (Quote(parent, turn) for turn in list_turns_quoting(store.records(parent), entity))
