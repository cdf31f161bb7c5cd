"""Preference pairs from sibling forks with rewards: the same context, two continuations, one better than the other.

The siblings at a turn are its forks and, if it got the same intent, the original's own continuation. Only continuations
of *exactly* the same context make a pair: the same system prompt, tools and messages up to the first new utterance. A
fork with another intent is not a sibling in this sense.

A continuation's worth is the latest reward of the last of its turns that has one, up to the entity's next intent. A
continuation without any reward makes no pair, and neither do two of equal worth. Every other two of one context make
one, so three continuations make up to three pairs.

A line has `prompt`, `chosen` and `rejected` as messages, `tools`, and in `metadata` the turns. Lines are ordered by the
forked turns, then by the chosen's worth, the rejected's worth, and by creation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from cantrip_actors.loom.export.chat import build_chat_messages, build_tools
from cantrip_actors.loom.export.conversation import build_item_messages, conversation_of
from cantrip_actors.loom.reading.view import Loom
from cantrip_actors.machine.project.conversation import Conversation, Heard, Item, Said
from cantrip_actors.records.codec import dump_json
from cantrip_actors.terms.messages import Message


@dataclass(frozen=True, slots=True)
class _Way:
    """A continuation of a context, and its worth."""

    conversation: Conversation
    prompt: dict[str, Any]
    items: Sequence[Item]
    turn_id: str
    reward: float


def pairs_jsonl(loom: Loom, *, margin: float = 0.0) -> Iterator[bytes]:
    """Yield a line for each pair whose chosen continuation is worth over `margin` more than the rejected one."""
    done: set[str] = set()
    for header in loom.headers():
        if header.forked and header.parent_turn is not None and header.parent_turn not in done:
            done.add(header.parent_turn)
            yield from _build_pairs(loom, header.parent_turn, margin)


def _build_pairs(loom: Loom, turn_id: str, margin: float) -> Iterator[bytes]:
    siblings = [conversation_of(loom, fork) for fork in loom.forks(turn_id)]
    shared = siblings[0].inherited
    ways: dict[bytes, list[_Way]] = {}
    for conversation in [conversation_of(loom, loom.owner(turn_id)), *siblings]:
        way = _build_way(conversation, shared)
        if way is not None:
            ways.setdefault(dump_json(way.prompt, mark=False), []).append(way)
    for same in ways.values():
        for better, worse in combinations(sorted(same, key=lambda way: -way.reward), 2):
            if better.reward - worse.reward > margin:
                yield dump_json(_build_line(turn_id, better, worse), mark=False) + b"\n"


def _build_way(conversation: Conversation, shared: int) -> _Way | None:
    """Return the continuation after the first `shared` items; None if it has no rewarded utterance."""
    items = conversation.items[shared:]
    first = next((n for n, item in enumerate(items) if isinstance(item, Said)), None)
    if first is None:
        return None
    after = [n for n, item in enumerate(items) if n > first and isinstance(item, Heard) and item.kind == "intent"]
    said = items[first : after[0] if after else None]
    turn_id, reward = _find_worth(said)
    if reward is None:
        return None
    header = conversation.get_header_at(shared + first)
    prompt_text = replace(conversation, header=header).system_prompt
    before = [] if prompt_text is None else [Message("system", prompt_text)]
    for item in conversation.items[: shared + first]:
        before.extend(build_item_messages(item))
    prompt = {"prompt": build_chat_messages(before), "tools": build_tools(header)}
    return _Way(conversation, prompt, said, turn_id, reward)


def _find_worth(items: Sequence[Item]) -> tuple[str, float | None]:
    for item in reversed(items):
        if isinstance(item, Said):
            for turn, reward in zip(reversed(item.turns), reversed(item.rewards), strict=True):
                if reward is not None:
                    return turn.turn_id, reward
    return "", None


def _build_line(turn_id: str, better: _Way, worse: _Way) -> dict[str, Any]:
    return {
        "prompt": better.prompt["prompt"],
        "chosen": _build_completion(better),
        "rejected": _build_completion(worse),
        "tools": better.prompt["tools"],
        "metadata": {"from_turn": turn_id, "chosen": _build_metadata(better), "rejected": _build_metadata(worse)},
    }


def _build_completion(way: _Way) -> list[dict[str, Any]]:
    return build_chat_messages(message for item in way.items for message in build_item_messages(item))


def _build_metadata(way: _Way) -> dict[str, Any]:
    return {"entity": way.conversation.header.entity_id, "turn": way.turn_id, "reward": way.reward}
