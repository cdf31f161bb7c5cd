"""Threads as chat JSONL with tools, in the form of OpenAI's interfaces and most trainers: one conversation per line.

A line has `messages` and, if the entity had gates, `tools`. Every tool call has its tool message, in order; a spawned
child does not split an assistant message (LOOM-8), and folded turns are included (LOOM-5). An entity that moved to
another cantrip has a line for each call under which it spoke: its system prompt and tools, and the messages up to the
next move, as the crystal saw them. An ephemeral result is complete, unless the caller asks for the later form that the
crystal saw (D-010). Images are parts of a user's message, as data URLs; results and assistant messages cannot hold any,
so their images follow in a user's message that says where they came from. Other files are described in text. The bytes
depend on the records alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from cantrip_actors.loom.export.conversation import build_messages
from cantrip_actors.loom.stores.blobs import address_of
from cantrip_actors.machine.project.conversation import Conversation
from cantrip_actors.records.codec import dump_json
from cantrip_actors.records.records import Header
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import Message


def chat_jsonl(
    conversation: Iterable[Conversation], *, hide_ephemeral: bool = False, metadata: bool = False
) -> Iterator[bytes]:
    """Yield a line for each conversation in which the entity spoke, newline included; one for each call in force.

    With `metadata` each line names its entity and turn, its ending, and its rewards. It is optional, because some
    services refuse lines with unknown fields.
    """
    for one in (part for whole in conversation for part in whole.split_by_call()):
        messages = build_messages(one, hide_ephemeral=hide_ephemeral)
        if not any(message.role == "assistant" for message in messages):
            continue
        line: dict[str, Any] = {"messages": build_chat_messages(messages)}
        if tools := build_tools(one.header):
            line["tools"] = tools
        if metadata:
            line["metadata"] = _build_metadata(one)
        yield dump_json(line, mark=False) + b"\n"


def build_chat_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return messages in the form of a chat interface."""
    made: list[dict[str, Any]] = []
    images_of_results: list[dict[str, Any]] = []  # images of results, held until the last result of a run of results
    for message in messages:
        if message.role != "tool" and images_of_results:
            made.append({"role": "user", "content": images_of_results})
            images_of_results = []
        made.append(_build_message(message))
        if message.images and message.role in ("assistant", "tool"):
            whose = f"[from the result of {message.gate}, call {message.tool_call_id}]"
            whose = whose if message.role == "tool" else "[made by the assistant]"
            images_of_results += [{"type": "text", "text": whose}, *map(_build_image, message.images)]
    return [*made, {"role": "user", "content": images_of_results}] if images_of_results else made


def split_parts(text: str, images: Iterable[File]) -> Iterator[str | File]:
    """Yield a text and its images, in order."""
    done = 0
    for image in images:
        at = len(text) if image.after is None else image.after
        if before := text[done:at].strip("\n"):
            yield before
        yield image
        done = max(done, at)
    if rest := text[done:].strip("\n"):
        yield rest


def _build_image(image: File) -> dict[str, Any]:
    address = address_of(image)
    if address is None or not isinstance(image, Image):
        return {"type": "text", "text": image.label}
    return {"type": "image_url", "image_url": {"url": address}}


def _build_message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content or ""}
    if message.images and message.role == "user":
        parts = split_parts(message.content or "", message.images)
        conversation = [
            {"type": "text", "text": part} if isinstance(part, str) else _build_image(part) for part in parts
        ]
        return {"role": message.role, "content": conversation}
    said: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.gate, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return said


def build_tools(header: Header) -> list[dict[str, Any]]:
    """Return the gates whose definitions an entity was shown, as function definitions."""
    tools = []
    for gate in header.circle.get("gates", ()):
        # the conformance suite's looms, and handwritten ones, may name a gate and nothing else
        known = gate if isinstance(gate, dict) else {"name": gate}
        if known.get("on_demand"):
            continue
        function = {"name": known["name"]}
        if known.get("description"):
            function["description"] = known["description"]
        function["parameters"] = known.get("parameters") or {"type": "object", "properties": {}}
        tools.append({"type": "function", "function": function})
    return tools


def _build_metadata(conversation: Conversation) -> dict[str, Any]:
    turns = [turn for item in conversation.said for turn in item.turns]
    rewards = {
        turn.turn_id: reward
        for item in conversation.said
        for turn, reward in zip(item.turns, item.rewards, strict=True)
    }
    return {
        "entity": conversation.header.entity_id,
        "turn": turns[-1].turn_id,
        "crystal": conversation.header.crystal,
        "terminated": turns[-1].terminated,
        "truncated": turns[-1].truncated,
        "rewards": {turn: reward for turn, reward in rewards.items() if reward is not None},
    }
