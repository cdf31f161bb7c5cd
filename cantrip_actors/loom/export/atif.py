"""Entities as trajectories in the Agent Trajectory Interchange Format, ATIF v1.8.

An entity is a trajectory, an utterance with the results of its calls a step; where a child ran there is no seam
(LOOM-8). Children are embedded below their parents, and the result of the call that made them refers to them. What a
fork begins with is there as steps marked `is_copied_context`, which trainers leave out: it is in the original already.

A fold destroys nothing (LOOM-5): `trajectory` has all steps, with a system step where one happened. A move to another
cantrip is a system step with the new system prompt and tools. `segments` cuts at folds and moves instead: a trajectory
for each stretch in which the crystal saw what it saw, beginning with what was left in sight, marked as copied.

The agent's name is the entity's or "cantrip", its version the cantrip's id, which is a hash of what it is made of. How
turns of the loom were rewarded and ended stands in `extra`. Images are parts of what was said or came back, with their
bytes in the address that the format asks for. The bytes depend on the records alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from cantrip_actors.loom.blobs import address_of
from cantrip_actors.loom.export.chat import parts_of, tools_of
from cantrip_actors.loom.export.conversation import Conversation, Heard, Item, Moved, Result, Said, conversation_of
from cantrip_actors.loom.export.thread import as_decision
from cantrip_actors.loom.view import Loom
from cantrip_actors.machine.context import render_utterance
from cantrip_actors.records.codec import dumps
from cantrip_actors.records.records import Folded
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import NO_USAGE, ToolCall

__all__ = ["VERSION", "atif_json", "segments", "trajectory"]

VERSION = "ATIF-v1.8"


def atif_json(document: dict[str, Any]) -> bytes:
    """A trajectory as one line of JSON, newline included."""
    return dumps(document, mark=False) + b"\n"


def trajectory(loom: Loom, entity_id: str) -> dict[str, Any]:
    """An entity and everything below it, with all of its steps. Raises LoomError."""
    told = conversation_of(loom, entity_id)
    return _document(loom, told, entity_id, list(_steps(told, told.items, told.inherited)), loom.below(entity_id))


def segments(loom: Loom, entity_id: str) -> list[dict[str, Any]]:
    """The same, cut where folds and moves to another cantrip happened.

    Each says by `continued_trajectory_ref` which one follows it.

    A child is embedded in the segment in which it was asked for.
    """
    told = conversation_of(loom, entity_id)
    parts = list(_cut(told))
    left = list(loom.below(entity_id))
    documents = []
    for number, (told, copied, items) in enumerate(parts, 1):
        here = [child for child in _children(items) if child in left] if number < len(parts) else list(left)
        left = [child for child in left if child not in here]
        steps = list(_steps(told, (*copied, *items), len(copied)))
        document = _document(loom, told, _segment_id(entity_id, number), steps, here)
        if number < len(parts):
            document["continued_trajectory_ref"] = _segment_id(entity_id, number + 1)
        documents.append(document)
    return documents


def _segment_id(entity_id: str, number: int) -> str:
    return entity_id if number == 1 else f"{entity_id}#{number}"


def _document(
    loom: Loom, told: Conversation, name: str, steps: list[dict[str, Any]], children: Sequence[str]
) -> dict[str, Any]:
    header = told.header
    if told.system_prompt is not None:
        first = {"timestamp": header.at, "source": "system", "message": told.system_prompt}
        steps = [first | ({"is_copied_context": True} if steps and "is_copied_context" in steps[0] else {}), *steps]
    steps = [{"step_id": number, **step} for number, step in enumerate(steps, 1)]
    agent: dict[str, Any] = {
        "name": header.name or "cantrip",
        "version": header.cantrip_id,
        "model_name": header.crystal,
        "tool_definitions": tools_of(header),
    }
    document: dict[str, Any] = {
        "schema_version": VERSION,
        "session_id": _root(loom, header.entity_id),
        "trajectory_id": name,
        "agent": agent,
        "steps": steps,
        "final_metrics": _totals(steps),
        "extra": _kin(loom, told),
    }
    if children:
        document["subagent_trajectories"] = [trajectory(loom, child) for child in children]
    return document


def _root(loom: Loom, entity_id: str) -> str:
    while (parent := loom.header(entity_id).parent_entity) is not None:
        entity_id = parent
    return entity_id


def _kin(loom: Loom, told: Conversation) -> dict[str, Any]:
    header = told.header
    kin: dict[str, Any] = {"entity": header.entity_id, "state": loom.state(header.entity_id), "depth": header.depth}
    if header.parent_turn is not None:
        kin["forked_from" if header.forked else "spawned_by"] = header.parent_turn
    if told.ended is not None and told.ended.detail is not None:
        kin["detail"] = told.ended.detail
    return kin


# -------------------------------------------------------------------------------------------------------------- steps


def _steps(told: Conversation, items: Iterable[Item], copied: int) -> Iterator[dict[str, Any]]:
    """A step for each item; the first `copied` are marked so, and refer to no children: these are not embedded here.

    After a move to another crystal, the steps of the agent name it.
    """
    crystal = told.header.crystal
    for number, item in enumerate(items):
        step = _step(item, refer=number >= copied)
        if isinstance(item, Moved) and number >= copied:
            crystal = item.header.crystal
        elif isinstance(item, Said) and crystal != told.header.crystal:
            step["model_name"] = crystal
        yield step | ({"is_copied_context": True} if number < copied else {})


def _step(item: Item, *, refer: bool) -> dict[str, Any]:
    if isinstance(item, Said):
        return _said(item, refer=refer)
    if isinstance(item, Moved):
        now = item.header
        moved = {"kind": "adopted", "cantrip": now.cantrip_id, "tool_definitions": tools_of(now)}
        prompt = now.call.get("system_prompt") or ""
        return {"timestamp": item.at, "source": "system", "message": prompt, "extra": moved}
    if not isinstance(item, Heard):
        extra: dict[str, Any] = {"kind": "fold", "first": item.first, "last": item.last}
        return {"timestamp": item.at, "source": "system", "message": item.marker, "extra": extra}
    source = "system" if item.kind == "reminder" else "user"
    step: dict[str, Any] = {"timestamp": item.at, "source": source, "message": _content(item.text, item.images)}
    return step if item.kind == "intent" else step | {"extra": {"kind": item.kind}}


def _said(item: Said, *, refer: bool) -> dict[str, Any]:
    utterance, last = item.utterance, item.turns[-1]
    step: dict[str, Any] = {
        "timestamp": item.turns[0].at,
        "source": "agent",
        "message": _content(render_utterance(utterance).content or "", utterance.images),
        "llm_call_count": 1,
    }
    if utterance.thinking:
        step["reasoning_content"] = utterance.thinking
    if utterance.tool_calls:
        step["tool_calls"] = [_call(call) for call in utterance.tool_calls]
    results = [_result(one, one.call_id, refer=refer) for one in item.results]
    results += [_result(one, None, refer=refer) for one in item.others]
    if results:
        step["observation"] = {"results": results}
    usage = utterance.usage
    if usage != NO_USAGE:
        metrics: dict[str, Any] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
        }
        step["metrics"] = metrics | ({"cost_usd": usage.cost} if usage.cost else {})
    extra: dict[str, Any] = {
        "turns": [turn.turn_id for turn in item.turns],
        "duration_ms": sum(turn.duration_ms for turn in item.turns),
    }
    if item.decisions:
        extra["decisions"] = [as_decision(one) for one in item.decisions]
    rewards = [reward for reward in item.rewards if reward is not None]
    if rewards:
        extra["reward"] = rewards[-1]
    if last.terminated or last.truncated:
        extra["ended"] = "terminated" if last.terminated else f"truncated by {last.ward or 'its surroundings'}"
    step["extra"] = extra
    return step


def _call(call: ToolCall) -> dict[str, Any]:
    said: dict[str, Any] = {"tool_call_id": call.id, "function_name": call.gate, "arguments": dict(call.args or {})}
    if call.args is None and call.raw is not None:
        said["extra"] = {"raw": call.raw}
    return said


def _result(one: Result, call_id: str | None, *, refer: bool) -> dict[str, Any]:
    seen = one.observation
    result: dict[str, Any] = {"content": one.text if seen is None else _content(one.text, seen.images)}
    if call_id is not None:
        result = {"source_call_id": call_id, **result}
    extra: dict[str, Any] = {} if call_id is not None else {"gate": one.gate}
    if seen is None:
        extra["not_run"] = True
    elif seen.is_error:
        extra["is_error"] = True
    if seen is not None and seen.ephemeral:
        extra["ephemeral"] = True
    if one.children and refer:
        result["subagent_trajectory_ref"] = [{"trajectory_id": child} for child in one.children]
    elif one.children:
        extra["children"] = list(one.children)
    return result | ({"extra": extra} if extra else {})


def _content(text: str, images: Sequence[File]) -> str | list[dict[str, Any]]:
    """A text; with images, the parts of both."""
    return [_part(part) for part in parts_of(text, images)] if images else text


def _part(part: str | File) -> dict[str, Any]:
    address = None if isinstance(part, str) else address_of(part)
    if isinstance(part, str) or address is None or not isinstance(part, Image):
        return {"type": "text", "text": part if isinstance(part, str) else part.label}
    return {"type": "image", "source": {"media_type": part.media_type, "path": address}}


def _totals(steps: Iterable[dict[str, Any]]) -> dict[str, Any]:
    steps = list(steps)
    metrics = [step["metrics"] for step in steps if "metrics" in step and "is_copied_context" not in step]
    return {
        "total_prompt_tokens": sum(one["prompt_tokens"] for one in metrics),
        "total_completion_tokens": sum(one["completion_tokens"] for one in metrics),
        "total_cached_tokens": sum(one["cached_tokens"] for one in metrics),
        "total_cost_usd": sum(one.get("cost_usd", 0.0) for one in metrics),
        "total_steps": len(steps),
    }


# ------------------------------------------------------------------------------------------------------------ segments


def _cut(told: Conversation) -> Iterator[tuple[Conversation, Sequence[Item], Sequence[Item]]]:
    """Each segment: the conversation with its header in force, the items that are copied into it, and its own."""
    copied: list[Item] = [item for item in told.items[: told.inherited] if not isinstance(item, Moved)]
    own: list[Item] = []
    now = told
    fold: Folded | None = None
    for at, item in enumerate(told.items[told.inherited :], told.inherited):
        if isinstance(item, Heard | Said):
            own.append(item)
            continue
        yield now, copied, own
        if isinstance(item, Moved):
            now = replace(told, header=item.header)
        else:
            fold = item
        copied, own = list(_in_sight(told.items[:at], fold)), []
    yield now, copied, own


def _in_sight(items: Sequence[Item], fold: Folded | None) -> Iterator[Item]:
    """What the crystal still sees after a fold: the first intent, the marker, the newest intent, unfolded turns."""
    if fold is None:
        yield from (item for item in items if isinstance(item, Heard | Said))
        return
    first = next((n for n, item in enumerate(items) if isinstance(item, Said)), len(items))
    intents = [n for n, item in enumerate(items) if isinstance(item, Heard) and item.kind == "intent"]
    cut, turns = len(items), 0
    for n, item in enumerate(items):
        if isinstance(item, Said):
            if turns >= fold.last:
                cut = n
                break
            turns += len(item.turns)
    yield from (item for item in items[:first] if isinstance(item, Heard | Said))
    yield fold
    if intents and first <= intents[-1] < cut:
        yield items[intents[-1]]
        following = items[intents[-1] + 1] if intents[-1] + 1 < len(items) else None
        if isinstance(following, Heard) and following.kind == "context":
            yield following
    yield from (item for item in items[cut:] if isinstance(item, Heard | Said))


def _children(items: Iterable[Item]) -> Iterator[str]:
    for item in items:
        if isinstance(item, Said):
            for result in (*item.results, *item.others):
                yield from result.children
