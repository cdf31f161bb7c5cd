"""The resources of one entity: what its gates hold open between calls, such as the tabs of a browser.

After each call the state of the gate's resource is a snapshot, which the record of the observation refers to. So an
entity that is resumed or forked, here or on another node, begins with the state that its log describes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.machine.accept import UNKNOWN
from cantrip_actors.machine.actions import Run
from cantrip_actors.records.blob import Snapshot
from cantrip_actors.runtime.circles.snapshots import Account, Snapshots
from cantrip_actors.terms.resource import BoundResource, Resource
from cantrip_actors.user_code.threads import run_apart

LARGEST: Final = 4_000_000
"""Bytes of a resource's state that are stored."""


async def _describe(bound: BoundResource, dependencies: Mapping[str, Any], **_: object) -> str:
    """Raise the observation of a call whose outcome is unknown."""
    raise GateError(f"{UNKNOWN}\n{await bound.describe(dependencies)}")


class Resources:
    """Binds the resources among the dependencies of an entity's gates, each at its first use."""

    def __init__(self, snapshots: Snapshots | None) -> None:
        self._snapshots = snapshots
        self._bound: dict[Resource, BoundResource] = {}

    async def lend(self, run: Run) -> Run:
        """Return the call with the entity's own resources among the dependencies of its gate."""
        gate = run.gate
        own = {
            name: await self._bind(value, run.resource)
            for name, value in gate.dependencies.items()
            if isinstance(value, Resource)
        }
        if not own:
            return run
        gate = replace(gate, dependencies={**gate.dependencies, **own})
        if run.is_unknown:
            gate = replace(gate, function=partial(_describe, next(iter(own.values())), gate.dependencies))
        return msgspec.structs.replace(run, gate=gate)

    async def _bind(self, resource: Resource, snapshot: Snapshot | None) -> BoundResource:
        bound = self._bound.get(resource)
        if bound is None:
            bound = self._bound[resource] = resource.bind(await self._load(snapshot, resource.form))
        return bound

    async def _load(self, snapshot: Snapshot | None, form: str) -> bytes | None:
        if snapshot is None or self._snapshots is None:
            return None
        content = await self._snapshots.load(snapshot, form, "idle")
        return None if content is None else content.image

    async def save(self, run: Run) -> Snapshot | None:
        """Return a snapshot of the resource that a gate has used; None if nothing has changed."""
        snapshots = self._snapshots
        if snapshots is None:
            return None
        for resource, bound in self._bound.items():
            if bound in run.gate.dependencies.values() and (state := bound.dump()) is not None:
                seal = partial(snapshots.seal, resource.form, "idle", state, "", Account(LARGEST))
                return await run_apart(seal)
        return None

    async def close(self) -> None:
        """Close all of them."""
        while self._bound:
            _, bound = self._bound.popitem()
            await bound.close()
