"""The actors and the tree they stand in. The decisions are `model/`'s; here they are carried out.

`runtime` and `entities` are the face, `house` is the tree behind it, `cell` and `entity` are one entity, `crystal`,
`circle` and `loom` are whom it talks to, `composition` is how it gets children, `events` what can be seen of it.
"""

from cantrip_actors.runtime.blocking import BlockingEntity, BlockingRuntime
from cantrip_actors.runtime.entities import Entity
from cantrip_actors.runtime.episode import Episode
from cantrip_actors.runtime.runtime import Runtime

__all__ = ["BlockingEntity", "BlockingRuntime", "Entity", "Episode", "Runtime"]
