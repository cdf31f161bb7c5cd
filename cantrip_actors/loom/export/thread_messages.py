"""The thread of an entity as messages that say who wrote each of them, when, and whether a fold has taken it away.

They are made from the same conversation as the exports, so they are whole: a fold removes nothing (LOOM-5), and the
messages that it left in the context are those that are not marked. The system prompt is not among them, and neither is
a turn that is not committed yet.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from cantrip_actors.loom.export.conversation import build_item_messages, read_path
from cantrip_actors.loom.view import Loom
from cantrip_actors.machine.project import drop_undone, fold_log
from cantrip_actors.machine.project.conversation import Heard, Said, build_conversation
from cantrip_actors.machine.state import Shape
from cantrip_actors.records.records import Folded, Record
from cantrip_actors.terms.messages import Message, ThreadMessage


def read_messages(loom: Loom, entity_id: str) -> list[ThreadMessage]:
    """Return the messages of an entity's thread, oldest first; a fork's begin with its original's. Raises LoomError."""
    records = drop_undone(read_path(loom, entity_id))
    conversation = build_conversation(records)
    items = conversation.items
    last_fold = max((at for at, item in enumerate(items) if isinstance(item, Folded) and not item.selective), default=0)
    thread = [
        (at, item, message)
        for at, item in enumerate(items)
        if isinstance(item, Heard | Said)
        for message in build_item_messages(item)
    ]
    before = [message for at, _, message in thread if at < last_fold]
    left = _find_left(before, _fold_context(Shape.of_header(conversation.header), records)) if before else set()
    name = conversation.header.name or entity_id
    return [
        _make_message(message, item, name, is_folded=number < len(before) and number not in left)
        for number, (_, item, message) in enumerate(thread)
    ]


def _fold_context(shape: Shape, records: Sequence[Record]) -> tuple[list[Message], list[Message]]:
    """Return what the last fold left in the context: the part up to its marker, and the part after it."""
    end = max(at for at, record in enumerate(records) if isinstance(record, Folded) and not record.selective)
    conversation = fold_log(shape, records[: end + 1]).conversation
    context = [item if isinstance(item, Message) else item.message for item in conversation.context]
    return context[: conversation.head], context[conversation.head :]


def _find_left(before: Sequence[Message], context: tuple[list[Message], list[Message]]) -> set[int]:
    """Return which of the messages before a fold are in the context that it left: the first ones, and the last ones."""
    wanted, left, begin = list(map(_identify, before)), set[int](), 0
    for message in context[0]:
        at = next((at for at in range(begin, len(wanted)) if wanted[at] == _identify(message)), None)
        if at is not None:
            left.add(at)
            begin = at + 1
    end = len(wanted)
    for message in reversed(context[1]):
        at = next((at for at in range(end - 1, begin - 1, -1) if wanted[at] == _identify(message)), None)
        if at is not None:
            left.add(at)
            end = at
    return left


def _identify(message: Message) -> Hashable:
    """Return what tells a message from others: of a result its call, because a context may show it in part."""
    calls = tuple(call.id for call in message.tool_calls)
    return (message.role, message.tool_call_id, calls, None if message.role == "tool" else message.content)


def _make_message(message: Message, item: Heard | Said, name: str, *, is_folded: bool) -> ThreadMessage:
    fields = {field: getattr(message, field) for field in Message.__struct_fields__}
    if isinstance(item, Heard):
        return ThreadMessage(**fields, by=item.by, at=item.at, is_folded=is_folded)
    turn = item.turns[-1]
    return ThreadMessage(**fields, by=name, at=turn.at, turn_id=turn.turn_id, is_folded=is_folded)
