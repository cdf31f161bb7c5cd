"""The actors of a runtime and their supervision tree. They carry out what `machine/` decides.

`tree.py` draws the supervision tree. Each room holds one concept:

    face      what users call: Runtime, Entity, Episode, Work
    entity    one entity while it is loaded: its driver, its children, its beginning and its removal
    mail      inboxes, and the actor that loads the entities for which mail waits
    time      schedules, timers, queues
    people    requests that wait for people
    crystals  an actor for each crystal, and queries
    circles   the actors of gates and programs, snapshots, servers of tools
    nodes     membership in a cluster
    loom      the loom's writer, leases, redaction, retention
    events    events for subscribers, and the instrument of telemetry
"""

# Names are imported when they are first used: reading a loom or events does not import the runtime.

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cantrip_actors.runtime.face.blocking import BlockingEntity, BlockingRuntime
    from cantrip_actors.runtime.face.entity import Entity
    from cantrip_actors.runtime.face.episode import Episode
    from cantrip_actors.runtime.face.runtime import Runtime

__all__ = ["BlockingEntity", "BlockingRuntime", "Entity", "Episode", "Runtime"]

_HOME = {
    "BlockingEntity": "face.blocking",
    "BlockingRuntime": "face.blocking",
    "Entity": "face.entity",
    "Episode": "face.episode",
    "Runtime": "face.runtime",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return found
