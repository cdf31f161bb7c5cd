"""Claim and release the trees of root entities. Both block: call them in a thread."""

from __future__ import annotations

from collections.abc import Container, Sequence

from cantrip_actors.loom import Lease, Store, Unsure


def claim_lease(
    store: Store, entity_id: str, owner: str, ttl: float, *, lift: bool = False, now: float | None = None
) -> Lease:
    """Claim the tree of a root entity. Raises as `Store.claim`."""
    try:
        return store.claim(entity_id, owner, ttl, lift=lift, now=now)
    except Unsure:  # it may have been granted, and renewals would keep an unused lease; claiming again is harmless
        return store.claim(entity_id, owner, ttl, lift=lift, now=now)


def release_leases(store: Store, leases: Sequence[Lease], *, is_member: bool) -> list[Lease]:
    """Release leases; return the leases that are kept, because mail waits that would load their entities.

    A member of a cluster keeps none: every node looks for mail of entities without an owner, and this node may be full.
    """
    if is_member:
        store.release(*leases)
        return []
    return store.release_if_empty(*leases)


def release_strays(store: Store, owner: str, tokens: Container[int]) -> list[str]:
    """Release the leases of `owner` with tokens that it does not know; return their entities, which may have mail.

    A server that failed over may have forgotten that they were released. Their holder renews them, so that no other
    process can run their entities. Call it after each new connection to the server.
    """
    strays = [lease for lease in store.leases_of(owner) if lease.token not in tokens]
    if strays:
        store.release(*strays)
    return [stray.entity_id for stray in strays]
