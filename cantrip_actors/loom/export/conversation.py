"""Conversations of a loom's entities, and their messages: the source of all exports."""

from __future__ import annotations

from collections.abc import Iterator

from cantrip_actors.loom.reading.view import Loom
from cantrip_actors.machine.context import render_reply, render_result, render_unanswered, render_utterance
from cantrip_actors.machine.program import render_result_text
from cantrip_actors.machine.project import collect_rewards
from cantrip_actors.machine.project.conversation import (
    Conversation,
    Heard,
    Item,
    Recalled,
    Said,
    build_conversation,
    list_heard_by_turn,
)
from cantrip_actors.records.records import Record
from cantrip_actors.terms.messages import Message

__all__ = ["Heard", "build_item_messages", "build_messages", "conversation_of", "list_messages_by_turn", "read_path"]


def list_messages_by_turn(loom: Loom, entity_id: str) -> dict[str | None, list[Heard]]:
    """Return the messages to an entity by the turns that they came before; None for those that no turn follows yet."""
    return list_heard_by_turn(loom.records(entity_id))


def conversation_of(loom: Loom, entity_id: str, until: str | None = None) -> Conversation:
    """Return the conversation of an entity; a fork's begins with its original's, a child's with its own.

    `until` ends it at that turn of the entity, or of the originals that it was forked from. Raises LoomError.
    """
    if until is None:
        return build_conversation(read_path(loom, entity_id))
    rewards = collect_rewards(loom.records(loom.owner(until))).values()
    return build_conversation(
        [*loom.lineage(until), *(reward for rewards_of_turn in rewards for reward in rewards_of_turn)]
    )


def read_path(loom: Loom, entity_id: str) -> list[Record]:
    """Return the records of an entity; before those of a fork, those that led to it. Raises LoomError."""
    header = loom.header(entity_id)
    before = loom.lineage(header.parent_turn) if header.forked and header.parent_turn is not None else []
    return [*before, *loom.records(entity_id)]


def build_messages(conversation: Conversation, *, hide_ephemeral: bool = False) -> list[Message]:
    """Return the conversation as messages: system prompt, users, assistant with calls, a message for every result."""
    prompt = conversation.system_prompt
    messages = [Message("system", prompt)] if prompt else []
    for item in conversation.items:
        messages.extend(build_item_messages(item, hide_ephemeral=hide_ephemeral))
    return messages


def build_item_messages(item: Item, *, hide_ephemeral: bool = False) -> Iterator[Message]:
    """Yield the messages of one item; a fold has none."""
    match item:
        case Heard():
            is_steering = item.kind in ("steer", "reminder")
            yield Message(
                "user",
                item.text,
                gate=item.gate,
                images=item.images,
                is_steering=is_steering,
                is_pinned=item.is_pinned,
            )
        case Recalled():
            yield item.message
            yield from item.results
        case Said():
            yield render_utterance(item.utterance)
            for result, call in zip(item.results, item.utterance.tool_calls, strict=True):
                seen = result.observation
                if seen is None:
                    yield from render_unanswered([call], result.text)
                else:
                    hidden = hide_ephemeral and seen.ephemeral and not seen.is_error
                    yield render_result(seen, hidden=hidden)
            if item.reply is not None and item.reply.observation is not None:
                yield render_reply(item.reply.observation)
            for other in item.others:  # results for a program, which may not have shown them to the crystal
                if other.observation is not None and other.observation.tool_call_id is None:
                    ended, images = other.observation.result, other.observation.images
                    text = render_result_text(ended) if isinstance(ended, dict) else other.text
                    yield Message("user", text, gate=other.gate, images=images)
        case _:
            pass
