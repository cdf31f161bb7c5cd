"""Provide the dependencies of an entity's gates for each of its episodes: `Runtime.open(dependencies=…)`."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cantrip_actors.machine.events import Begin
from cantrip_actors.machine.state import Episode
from cantrip_actors.runtime.entity.cell import Cell
from cantrip_actors.runtime.entity.known_cantrips import KnownCantrips
from cantrip_actors.runtime.entity.unavailable import call_until_available
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.episode_scope import EpisodeScope, Provide
from cantrip_actors.terms.errors import DependenciesUnknown, InvalidCantrip
from cantrip_actors.terms.mcp_approvals import list_callable_gates

CACHED: Final = 16
"""How many sets of dependencies of one entity are cached, those used last."""


class Providing:
    """The dependencies of one incarnation of an entity; `cantrips` has the function that provides them, if any."""

    def __init__(self, cell: Cell, cantrips: KnownCantrips) -> None:
        self._cell = cell
        self._cantrips = cantrips
        self._provide = cantrips.provide
        self._cached: OrderedDict[tuple[str, ...], Mapping[str, Any]] = OrderedDict()

    @property
    def _takes_some(self) -> bool:
        return self._cell.parent is None and self._cell.plan.cantrip.circle.takes_injected  # a child: of its parent

    @property
    def mark(self) -> str | None:
        """The mark of the dependencies, for the record of an intent."""
        return self._cantrips.make_mark(self._cell.plan.cantrip) if self._takes_some else None

    async def provide(self, intent: Begin | Episode) -> None:
        """Give the gates the dependencies for an intent; until then they have none.

        Raises DependenciesUnknown if one is missing, and what the function of the user raises.
        """
        if not self._takes_some:
            return
        cell, cantrip = self._cell, self._cell.plan.cantrip.unprovided
        if self._provide is not None:
            self._use(cantrip)
            plan = cell.plan
            whose = (plan.tenant, cantrip, intent.sender or "", intent.key or plan.key, intent.context)
            episode = EpisodeScope(cell.entity_id, plan.name, *whose)
            cantrip = cantrip.with_dependencies(await self._find(self._provide, episode))
            self._use(cantrip)
        if missing := cantrip.circle.provided:
            raise DependenciesUnknown(
                f"entity {cell.entity_id} waits: its gates need {', '.join(missing)}, which "
                + (
                    "only Runtime.open(…, dependencies=provide) provides: open this runtime with it, or start the "
                    "command with --dependencies MODULE:FUNCTION"
                    if self._provide is None
                    else "the function of Runtime.open(dependencies=…) did not return for this episode"
                )
            )

    def _use(self, cantrip: Cantrip) -> None:
        cell = self._cell
        cell.plan = msgspec.structs.replace(cell.plan, cantrip=cantrip, gates=list_callable_gates(cantrip))

    async def _find(self, provide: Provide, episode: EpisodeScope) -> Mapping[str, Any]:
        """Return the dependencies for an episode, from the cache if there was one of the same scope."""
        scope = episode.scope
        values = self._cached.get(scope)
        if values is None:

            async def call() -> object:
                answer: Any = provide(episode)
                return await answer if inspect.isawaitable(answer) else answer

            provided = await call_until_available(call, episode.id)
            if not isinstance(provided, Mapping):
                raise InvalidCantrip(
                    "Runtime.open(dependencies=…): expected the function to return a mapping of dependencies by their "
                    f"names, as in {{'user': episode.sender}}, got a {type(provided).__name__}"
                )
            values = self._cached[scope] = provided
            if len(self._cached) > CACHED:
                self._cached.popitem(last=False)
        self._cached.move_to_end(scope)
        return values
