"""The actors and the tree they stand in. The decisions are `model/`'s; here they are carried out.

`runtime` and `entities` are the face, `house` is the tree behind it, `cell` and `entity` are one entity, `crystal`,
`circle` and `loom` are whom it talks to, `composition` is how it gets children, `events` what can be seen of it.
"""

# Names are imported when they are first used: who reads a loom, or looks at events, needs no runtime.

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cantrip_actors.runtime.blocking import BlockingEntity, BlockingRuntime
    from cantrip_actors.runtime.entities import Entity
    from cantrip_actors.runtime.episode import Episode
    from cantrip_actors.runtime.runtime import Runtime

__all__ = ["BlockingEntity", "BlockingRuntime", "Entity", "Episode", "Runtime"]

_HOME = {
    "BlockingEntity": "blocking",
    "BlockingRuntime": "blocking",
    "Entity": "entities",
    "Episode": "episode",
    "Runtime": "runtime",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return found
