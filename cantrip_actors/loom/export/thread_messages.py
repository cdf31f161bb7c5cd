"""The thread of an entity as messages that say who wrote each of them, when, and whether a fold has taken it away.

They are made from the same conversation as the exports, so they are whole: a fold removes nothing (LOOM-5), and the
messages that it left in the context are those that are not marked. The system prompt is not among them, and neither is
a turn that is not committed yet.
"""

from __future__ import annotations

from cantrip_actors.loom.export.conversation import build_item_messages, read_path
from cantrip_actors.loom.export.folded import read_folds
from cantrip_actors.loom.reading.view import Loom
from cantrip_actors.machine.project.conversation import Heard, Recalled, Said, build_conversation
from cantrip_actors.terms.messages import Message, ThreadMessage


def read_messages(loom: Loom, entity_id: str) -> list[ThreadMessage]:
    """Return the messages of an entity's thread, oldest first; a fork's begin with its original's. Raises LoomError."""
    records = read_path(loom, entity_id)
    conversation = build_conversation(records)
    name = conversation.header.name or entity_id
    turn_folds = {at: fold.left for at, fold in read_folds(records, conversation).items() if fold.left is not None}
    last = max(turn_folds, default=-1)
    shown = {*range(max(last, 0), len(conversation.items))}
    if last in turn_folds:
        shown |= {*turn_folds[last].before, *turn_folds[last].after}
    return [
        _make_message(message, item, name, is_folded=at not in shown)
        for at, item in enumerate(conversation.items)
        if isinstance(item, Heard | Recalled | Said)
        for message in build_item_messages(item)
    ]


def _make_message(message: Message, item: Heard | Recalled | Said, name: str, *, is_folded: bool) -> ThreadMessage:
    fields = {field: getattr(message, field) for field in Message.__struct_fields__}
    if not isinstance(item, Said):
        return ThreadMessage(**fields, by=item.by, at=item.at, is_folded=is_folded)
    turn = item.turns[-1]
    if item.reply is not None and message.role == "user":
        at = item.decisions[-1].at if item.decisions else turn.at
        return ThreadMessage(**fields, by=item.replier, at=at, turn_id=turn.turn_id, is_folded=is_folded)
    return ThreadMessage(**fields, by=name, at=turn.at, turn_id=turn.turn_id, is_folded=is_folded)
