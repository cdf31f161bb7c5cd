"""The actors of a runtime and their supervision tree. They carry out what `machine/` decides.

`runtime` and `entity` are the public interface, and `tree` is the supervision tree behind them. `cell` and
`entity_actor` implement one entity; `crystal_actor`, `gates_actor`, `program_actor` and `loom_writer` work for it.
`inboxes` delivers its mail, `delegation` runs its children, and `events` publishes its events.
"""

# Names are imported when they are first used: reading a loom or events does not import the runtime.

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cantrip_actors.runtime.blocking import BlockingEntity, BlockingRuntime
    from cantrip_actors.runtime.entity import Entity
    from cantrip_actors.runtime.episode import Episode
    from cantrip_actors.runtime.runtime import Runtime

__all__ = ["BlockingEntity", "BlockingRuntime", "Entity", "Episode", "Runtime"]

_HOME = {
    "BlockingEntity": "blocking",
    "BlockingRuntime": "blocking",
    "Entity": "entity",
    "Episode": "episode",
    "Runtime": "runtime",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return found
