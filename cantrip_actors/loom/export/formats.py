"""The exports that are lines, by the names of their formats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cantrip_actors.loom.export.atif import atif_json, trajectory
from cantrip_actors.loom.export.chat import chat_jsonl
from cantrip_actors.loom.export.conversation import conversation_of
from cantrip_actors.loom.export.pairs import pairs_jsonl
from cantrip_actors.loom.export.thread import thread_jsonl

if TYPE_CHECKING:
    from cantrip_actors.loom import Loom


def export_lines(loom: Loom, form: str, entity: str | None) -> Iterator[bytes]:
    """Yield the lines of an export of an entity with everything below it, or of the whole loom; `pairs` needs all."""
    wanted = loom.entities() if entity is None else loom.subtree(entity)
    match form:
        case "jsonl":
            yield from (thread_jsonl([turn]) for entity_id in wanted for turn in loom.turns(entity_id))
        case "chat":
            yield from chat_jsonl(conversation_of(loom, entity_id) for entity_id in wanted)
        case "pairs":
            yield from pairs_jsonl(loom)
        case "atif":
            roots = (
                (entity_id for entity_id in wanted if loom.header(entity_id).parent_entity is None)
                if entity is None
                else [entity]
            )
            yield from (atif_json(trajectory(loom, root)) for root in roots)
