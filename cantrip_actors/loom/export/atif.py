"""Entities as trajectories in the Agent Trajectory Interchange Format, ATIF v1.8.

An entity is a trajectory, and an utterance with the results of its calls is a step; a spawned child does not split a
step (LOOM-8). Children are embedded below their parents, and the result of the call that made them refers to them. The
context that a fork begins with becomes steps marked `is_copied_context`, which trainers leave out, because the original
has them already.

A fold destroys nothing (LOOM-5): `trajectory` has all steps, with a system step for each fold. A move to another
cantrip is a system step with the new system prompt and tools. `segments` cuts at folds and moves instead: it returns a
trajectory for each stretch with one context, which begins with the context that remained, marked as copied.

The agent's name is the entity's or "cantrip", and its version is the cantrip's id, a hash of its parts. Rewards and
endings of turns are in `extra`. Images are parts of messages and results, with their bytes in a data URL, as the format
requires. The bytes depend on the records alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cantrip_actors.loom.export.chat import build_tools, split_parts
from cantrip_actors.loom.export.conversation import conversation_of, read_path
from cantrip_actors.loom.export.folded import Fold, LeftItems, read_folds
from cantrip_actors.loom.export.thread import build_decision, build_resume
from cantrip_actors.loom.reading.view import Loom
from cantrip_actors.loom.stores.blobs import address_of
from cantrip_actors.machine.context import render_utterance
from cantrip_actors.machine.project.conversation import (
    Conversation,
    Heard,
    Item,
    Moved,
    Recalled,
    Result,
    Said,
    build_conversation,
)
from cantrip_actors.records.codec import dump_json
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import NO_USAGE, ToolCall
from cantrip_actors.terms.on_demand import restore_call

VERSION = "ATIF-v1.8"


def atif_json(document: dict[str, Any]) -> bytes:
    """Return a trajectory as one line of JSON, newline included."""
    return dump_json(document, mark=False) + b"\n"


def trajectory(loom: Loom, entity_id: str) -> dict[str, Any]:
    """Return the trajectory of an entity and everything below it, with all of its steps. Raises LoomError."""
    conversation = conversation_of(loom, entity_id)
    return _build_document(
        loom,
        conversation,
        entity_id,
        list(_build_steps(conversation, conversation.items, conversation.inherited)),
        loom.below(entity_id),
        is_copied=conversation.inherited > 0,
    )


def segments(loom: Loom, entity_id: str) -> list[dict[str, Any]]:
    """Return the trajectory of an entity, cut where folds and moves to another cantrip happened.

    Each segment names its successor in `continued_trajectory_ref`. A child is embedded in the segment that called it.
    """
    records = read_path(loom, entity_id)
    conversation = build_conversation(records)
    parts = list(_cut(conversation, read_folds(records, conversation)))
    left = list(loom.below(entity_id))
    documents = []
    for number, (conversation, copied, items) in enumerate(parts, 1):
        here = [child for child in _find_children(items) if child in left] if number < len(parts) else list(left)
        left = [child for child in left if child not in here]
        steps = list(_build_steps(conversation, (*copied, *items), len(copied)))
        id = _make_segment_id(entity_id, number)
        document = _build_document(loom, conversation, id, steps, here, is_copied=bool(copied))
        if number < len(parts):
            document["continued_trajectory_ref"] = _make_segment_id(entity_id, number + 1)
        documents.append(document)
    return documents


def _make_segment_id(entity_id: str, number: int) -> str:
    return entity_id if number == 1 else f"{entity_id}#{number}"


def _build_document(
    loom: Loom,
    conversation: Conversation,
    name: str,
    steps: list[dict[str, Any]],
    children: Sequence[str],
    *,
    is_copied: bool,
) -> dict[str, Any]:
    """Return a trajectory; `is_copied` says whether its first steps, and so its system prompt, are copied."""
    header = conversation.header
    if conversation.system_prompt is not None:
        first = {"timestamp": header.at, "source": "system", "message": conversation.system_prompt}
        steps = [first | ({"is_copied_context": True} if is_copied else {}), *steps]
    steps = [{"step_id": number, **step} for number, step in enumerate(steps, 1)]
    agent: dict[str, Any] = {
        "name": header.name or "cantrip",
        "version": header.cantrip_id,
        "model_name": header.crystal,
        "tool_definitions": build_tools(header),
    }
    document: dict[str, Any] = {
        "schema_version": VERSION,
        "session_id": loom.ancestry(header.entity_id)[-1],
        "trajectory_id": name,
        "agent": agent,
        "steps": steps,
        "final_metrics": _sum_totals(steps),
        "extra": _describe_kin(loom, conversation),
    }
    if children:
        document["subagent_trajectories"] = [trajectory(loom, child) for child in children]
    return document


def _describe_kin(loom: Loom, conversation: Conversation) -> dict[str, Any]:
    header = conversation.header
    kin: dict[str, Any] = {"entity": header.entity_id, "state": loom.state(header.entity_id), "depth": header.depth}
    if header.parent_turn is not None:
        kin["forked_from" if header.forked else "spawned_by"] = header.parent_turn
    if conversation.ended is not None and conversation.ended.detail is not None:
        kin["detail"] = conversation.ended.detail
    return kin


# -------------------------------------------------------------------------------------------------------------- steps


def _build_steps(conversation: Conversation, items: Iterable[Item], copied: int) -> Iterator[dict[str, Any]]:
    """Yield a step for each item; the first `copied` are marked as copied and refer to no children.

    After a move to another crystal, the agent's steps name the crystal.
    """
    crystal = conversation.header.crystal
    for number, item in enumerate(items):
        step = _build_step(item, refer=number >= copied)
        if isinstance(item, Moved) and number >= copied:
            crystal = item.header.crystal
        elif isinstance(item, Said) and crystal != conversation.header.crystal:
            step["model_name"] = crystal
        yield step | ({"is_copied_context": True} if number < copied else {})


def _build_step(item: Item, *, refer: bool) -> dict[str, Any]:
    if isinstance(item, Said):
        return _build_utterance_step(item, refer=refer)
    if isinstance(item, Moved):
        now = item.header
        moved = {"kind": "adopted", "cantrip": now.cantrip_id, "tool_definitions": build_tools(now)}
        prompt = now.call.get("system_prompt") or ""
        return {"timestamp": item.at, "source": "system", "message": prompt, "extra": moved}
    if isinstance(item, Recalled):
        return _build_recalled_step(item)
    if not isinstance(item, Heard):
        extra: dict[str, Any] = {"kind": "fold", "first": item.first, "last": item.last}
        return {"timestamp": item.at, "source": "system", "message": item.marker, "extra": extra}
    source = "system" if item.kind == "reminder" else "user"
    step: dict[str, Any] = {"timestamp": item.at, "source": source, "message": _build_content(item.text, item.images)}
    return step if item.kind == "intent" else step | {"extra": {"kind": item.kind}}


def _build_recalled_step(item: Recalled) -> dict[str, Any]:
    """Return a message of an intent's history: no model was called for it here, so it counts as copied."""
    message = item.message
    source = {"assistant": "agent", "system": "system"}.get(message.role, "user")
    step: dict[str, Any] = {
        "timestamp": item.at,
        "source": source,
        "message": _build_content(message.content or "", message.images),
        "is_copied_context": True,
        "extra": {"kind": "history"},
    }
    if message.thinking and source == "agent":
        step["reasoning_content"] = message.thinking
    if message.tool_calls:
        step["tool_calls"] = list(map(_call, message.tool_calls))
    if item.results:
        results = [
            {"source_call_id": result.tool_call_id, "content": _build_content(result.content or "", result.images)}
            for result in item.results
        ]
        step["observation"] = {"results": results}
    return step


def _build_utterance_step(item: Said, *, refer: bool) -> dict[str, Any]:
    utterance, last = item.utterance, item.turns[-1]
    step: dict[str, Any] = {
        "timestamp": item.turns[0].at,
        "source": "agent",
        "message": _build_content(render_utterance(utterance).content or "", utterance.images),
        "llm_call_count": 1,
    }
    if utterance.thinking:
        step["reasoning_content"] = utterance.thinking
    if utterance.tool_calls:
        step["tool_calls"] = [_call(call) for call in utterance.tool_calls]
    results = [_build_result(result, result.call_id, refer=refer) for result in item.results]
    replies = () if item.reply is None else (item.reply,)
    results += [_build_result(result, None, refer=refer) for result in (*item.others, *replies)]
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
        extra["decisions"] = [build_decision(decision) for decision in item.decisions]
    if item.resumes:
        extra["resumes"] = list(map(build_resume, item.resumes))
    rewards = [reward for reward in item.rewards if reward is not None]
    if rewards:
        extra["reward"] = rewards[-1]
    if last.terminated or last.truncated:
        extra["ended"] = "terminated" if last.terminated else f"truncated by {last.ward or 'its surroundings'}"
    step["extra"] = extra
    return step


def _call(call: ToolCall) -> dict[str, Any]:
    call = restore_call(call)
    said: dict[str, Any] = {"tool_call_id": call.id, "function_name": call.gate, "arguments": dict(call.args or {})}
    if call.args is None and call.raw is not None:
        said["extra"] = {"raw": call.raw}
    return said


def _build_result(one: Result, call_id: str | None, *, refer: bool) -> dict[str, Any]:
    seen = one.observation
    result: dict[str, Any] = {"content": one.text if seen is None else _build_content(one.text, seen.images)}
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


def _build_content(text: str, images: Sequence[File]) -> str | list[dict[str, Any]]:
    return [_build_part(part) for part in split_parts(text, images)] if images else text


def _build_part(part: str | File) -> dict[str, Any]:
    address = None if isinstance(part, str) else address_of(part)
    if isinstance(part, str) or address is None or not isinstance(part, Image):
        return {"type": "text", "text": part if isinstance(part, str) else part.label}
    return {"type": "image", "source": {"media_type": part.media_type, "path": address}}


def _sum_totals(steps: Iterable[dict[str, Any]]) -> dict[str, Any]:
    steps = list(steps)
    metrics = [step["metrics"] for step in steps if "metrics" in step and "is_copied_context" not in step]
    return {
        "total_prompt_tokens": sum(metric["prompt_tokens"] for metric in metrics),
        "total_completion_tokens": sum(metric["completion_tokens"] for metric in metrics),
        "total_cached_tokens": sum(metric["cached_tokens"] for metric in metrics),
        "total_cost_usd": sum(metric.get("cost_usd", 0.0) for metric in metrics),
        "total_steps": len(steps),
    }


# ------------------------------------------------------------------------------------------------------------ segments


def _cut(
    conversation: Conversation, folds: Mapping[int, Fold]
) -> Iterator[tuple[Conversation, Sequence[Item], Sequence[Item]]]:
    """Yield each segment: the conversation with its header in force, the items that are copied into it, and its own."""
    copied: list[Item] = [item for item in conversation.items[: conversation.inherited] if not isinstance(item, Moved)]
    own: list[Item] = []
    now = conversation
    for at, item in enumerate(conversation.items[conversation.inherited :], conversation.inherited):
        if isinstance(item, Heard | Recalled | Said):
            own.append(item)
            continue
        yield now, copied, own
        if isinstance(item, Moved):
            now = replace(conversation, header=item.header)
        copied, own = list(_select_visible(conversation.items[: at + 1], folds)), []
    yield now, copied, own


def _select_visible(items: Sequence[Item], folds: Mapping[int, Fold]) -> Iterator[Item]:
    """Yield what the crystal sees after the last of these items: what the folds left, with their last marker."""
    last, left = max(
        ((at, fold.left) for at, fold in folds.items() if at < len(items) and fold.left is not None),
        default=(-1, LeftItems()),
    )
    marker = () if last < 0 else (last,)
    without_results = max((fold.without_results for at, fold in folds.items() if at < len(items)), default=0)
    answers = [at for at, item in enumerate(items) if isinstance(item, Said)]
    bare = frozenset(answers[:without_results])
    for at in (*left.before, *marker, *left.after, *range(last + 1, len(items))):
        item = items[at]
        if at in bare and isinstance(item, Said):
            yield _hide_results(item)
        elif at == last or isinstance(item, Heard | Recalled | Said):
            yield item


def _hide_results(item: Said) -> Said:
    def hide(results: Iterable[Result]) -> tuple[Result, ...]:
        return tuple(Result(result.call_id, result.gate, f"[folded:{result.gate}]") for result in results)

    return replace(item, results=hide(item.results), others=hide(item.others))


def _find_children(items: Iterable[Item]) -> Iterator[str]:
    for item in items:
        if isinstance(item, Said):
            for result in (*item.results, *item.others, *(() if item.reply is None else (item.reply,))):
                yield from result.children
