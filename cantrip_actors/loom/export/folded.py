"""The items of a conversation that are left in the context after folds.

The log is folded up to each fold, as the runtime does it, and the messages that are left
are found among those of the items.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from cantrip_actors.loom.export.conversation import build_item_messages
from cantrip_actors.machine.project.conversation import Conversation, Item
from cantrip_actors.machine.project.undone import apply_part, split_branches
from cantrip_actors.machine.state import Shape, State
from cantrip_actors.records.records import Record
from cantrip_actors.terms.messages import Message


class LeftItems(NamedTuple):
    """The items that a fold of turns leaves before its marker and after it, by their indexes."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


class Fold(NamedTuple):
    """A fold of turns with the items that it `left`, or of results: `without_results` utterances have none since."""

    left: LeftItems | None
    without_results: int = 0


def read_folds(records: Iterable[Record], conversation: Conversation) -> dict[int, Fold]:
    """Return each fold by the index of its item. The conversation was made from `records`."""
    shape, folds = Shape.of_header(conversation.header), dict[int, Fold]()
    state, parts = State(shape.parent_turn), iter(split_branches(records))
    for at, record in conversation.folds:
        for part in parts:
            apply_part(shape, state, part)
            if part is record:
                break
        context = state.conversation
        if record.selective:
            folds[at] = Fold(None, context.without_results)
            continue
        messages = [item if isinstance(item, Message) else item.message for item in context.context]
        left = _find_left(conversation.items[:at], messages[: context.head], messages[context.head :])
        folds[at] = Fold(left)
    return folds


def _find_left(items: Sequence[Item], before: Sequence[Message], after: Sequence[Message]) -> LeftItems:
    """Return which items have these messages: the first ones that are there before the marker, the last ones after."""
    places = [(_identify(message), at) for at, item in enumerate(items) for message in build_item_messages(item)]
    first = list(_match(before, range(len(places)), places))
    rest = range(len(places) - 1, (first[-1] if first else -1), -1)
    last = list(_match(reversed(after), rest, places))
    return LeftItems(_list_items(first, places), _list_items(reversed(last), places))


def _match(
    messages: Iterable[Message], numbers: Sequence[int], places: Sequence[tuple[Hashable, int]]
) -> Iterator[int]:
    """Yield the number of the next place of each message that has one, in the order of the numbers."""
    for message in messages:
        wanted = _identify(message)
        index = next((index for index, number in enumerate(numbers) if places[number][0] == wanted), None)
        if index is not None:
            yield numbers[index]
            numbers = numbers[index + 1 :]


def _list_items(numbers: Iterable[int], places: Sequence[tuple[Hashable, int]]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(places[number][1] for number in numbers))


def _identify(message: Message) -> Hashable:
    """Return what tells a message from others; of a result not its text, because a context may show it in part."""
    is_result = message.role == "tool" or message.gate is not None
    calls = tuple(call.id for call in message.tool_calls)
    return message.role, message.tool_call_id, calls, None if is_result else message.content
