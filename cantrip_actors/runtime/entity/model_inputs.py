"""The input of a crystal for one answer, as exactly as this process knows the cantrip that was in force."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from cantrip_actors.circle.capability import make_capability
from cantrip_actors.crystal import resolve
from cantrip_actors.loom import Loom
from cantrip_actors.loom.export.model_input import read_model_input
from cantrip_actors.machine.state import Identity, Plan, Shape
from cantrip_actors.records.records import Header
from cantrip_actors.runtime.crystals.crystal_pool import find_window
from cantrip_actors.runtime.loom.core import Core
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.errors import CantripUnknown, DependenciesUnknown, InvalidCantrip
from cantrip_actors.terms.model_input import ModelInput


async def find_model_input(core: Core, loom: Loom, turn_id: str) -> ModelInput:
    """Return the input of the call of a model that a turn answers. Raises LoomError."""
    header = await core.in_store(partial(loom.header_at, turn_id))
    living = core.living.get(header.entity_id)
    shape: Shape | None = None
    if living is not None and living.plan.cantrip.id == header.cantrip_id:
        shape = living.plan.shape
    else:
        with suppress(CantripUnknown, DependenciesUnknown, InvalidCantrip):  # of another process, or without its extra
            shape = _make_shape(await core.find_cantrip_at(turn_id), header)
    return await core.in_store(partial(read_model_input, loom, turn_id, shape))


def _make_shape(cantrip: Cantrip, header: Header) -> Shape:
    """Return the shape of an entity with its cantrip. Raises InvalidCantrip if its medium is not installed."""
    plan = Plan.of(
        cantrip,
        Identity.of_header(header),
        window=find_window(resolve(cantrip.crystal)),
        capability=make_capability(cantrip.circle),
    )
    return plan.shape
