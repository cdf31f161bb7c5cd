"""An `EpisodeScope`, and the function that provides dependencies for it: `Runtime.open(dependencies=provide)`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from cantrip_actors.terms.cantrip import Cantrip


class EpisodeScope(NamedTuple):
    """One episode of an entity, for the function that provides the dependencies of its gates.

    `sender` is the `by` of the intent, `key` its key, and `context` its context, as JSON; the loom has all three. They
    are "" and None if the caller gave none.
    """

    id: str
    """The entity's id."""
    name: str | None
    """The name of a long-lived entity."""
    tenant: str
    cantrip: Cantrip
    """The cantrip that the entity works with in this process."""
    sender: str
    key: str | None
    context: Any

    @property
    def by(self) -> str:
        """The sender of the intent, under the name of the argument that says it."""
        return self.sender

    @property
    def scope(self) -> tuple[str, ...]:
        """Whose episode it is: everything but the key. While an entity is loaded, equal scopes share dependencies."""
        context = json.dumps(self.context, sort_keys=True, default=dict)
        return (self.id, self.name or "", self.tenant, self.cantrip.id, self.sender, context)


Provide = Callable[[EpisodeScope], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
"""Returns the dependencies for an episode, by the names of the parameters that are `Injected`."""
