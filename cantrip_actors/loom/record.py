"""A record as one line: `encode` and `decode`, the loom's format on every disk and wire.

A line is one JSON object without a newline inside. `kind` comes first, then `entity` and, where there is one, `turn`:
who reads a whole file needs no more of most lines. After that comes only what is set, never a null or a default, so
that a turn with one gate costs a few hundred bytes beyond what was said in it.

What is *not* here: where lines are kept (`store`) and what they add up to (`model/turn`).

orjson writes and reads almost everything. What JSON can say and orjson cannot (integers past 64 bits, lone surrogates,
nesting past 250 levels) or says wrongly (NaN and the infinities, which it turns into null) goes through the standard
library instead and is marked `"wide":true`, because orjson would read it back as something else. Whatever is no JSON
at all is refused: a log that cannot be read again is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.image import NO_IMAGES, Image
from cantrip_actors.model.messages import NO_USAGE, ToolCall, Usage
from cantrip_actors.model.snapshot import Snapshot
from cantrip_actors.model.turn import (
    ChildStarted,
    Committed,
    Ended,
    Folded,
    GateFinished,
    GateStarted,
    Header,
    IntentGiven,
    Observation,
    Record,
    Rewarded,
    Steered,
    Utterance,
)

__all__ = ["KINDS", "SCHEMA", "Newer", "decode", "dumps", "encode"]

SCHEMA = 1
"""The version of this format: in every header and, from 2 on, in every line; one without it is of version 1. Lines of
a later version are refused, not guessed at; those of an earlier one are read through `UPCASTS`.
"""

UPCASTS: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = ()
"""How a line of version 1, 2, … becomes one of the next version: pure functions of the parsed line, one a version.

What is stored is never rewritten. Whoever changes the format so that an older line would be misread adds one of these.
"""

_DIGEST = re.compile("[0-9a-f]{40}")
_PICTURE = re.compile("[0-9a-f]{64}")

DEEPEST = 500
"""How many levels a value may nest: the standard library's reader must manage it wherever it is called from."""


def encode(record: Record) -> bytes:
    """`record` as one line, without its newline. Raises LoomError for a value that JSON cannot say."""
    said = _SAY[type(record)](record)
    if SCHEMA > 1:
        said["schema"] = SCHEMA
    return dumps(said)


class Newer(LoomError):
    """A line that a later version wrote, and that is as it should be."""


def decode(line: bytes) -> Record:
    """The record of one line, with or without its newline. Raises LoomError for a line that is no record, or Newer."""
    try:
        said = orjson.loads(line)
        if "wide" in said:
            said = json.loads(line)
    except orjson.JSONDecodeError as error:
        said = _loads_wide(line, error)
    except TypeError as error:
        raise LoomError(f"{_shown(line)} is no record of a loom: expected a JSON object") from error
    try:
        version = said.get("schema", 1)
        return _READ[said["kind"]](said if version == SCHEMA else _upcast(said, version))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise LoomError(f"{_shown(line)} is no record of a loom: {_fault(error, said)}") from error


def _upcast(said: dict[str, Any], version: int) -> dict[str, Any]:
    if version > SCHEMA:
        raise Newer(f"is of schema {version}, this version reads up to {SCHEMA}: use a newer cantrip-actors")
    for upcast in UPCASTS[version - 1 :]:
        said = upcast(said)
    return said


def dumps(value: Mapping[str, Any], *, mark: bool = True) -> bytes:
    """An object as compact JSON on one line: by orjson or, marked as wide unless told not to, the standard library."""
    try:
        line = orjson.dumps(value, default=_plain)
    except TypeError:
        return _dumps_wide(value, mark=mark)
    # Every null may be a number that orjson has no word for. Nulls are rare: the loom writes none of its own.
    if b"null" in line and not _finite(value):
        return _dumps_wide(value, mark=mark)
    return line


# ----------------------------------------------------------------------------------------------- what orjson cannot say


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__}")


def _plain_wide(value: Any) -> Any:
    """What orjson has a word for and the standard library has not: dates, ids, dataclasses."""
    return dict(value) if isinstance(value, Mapping) else orjson.loads(orjson.dumps(value))


def _finite(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False, default=_plain_wide)
    except ValueError:
        return False
    return True


def _dumps_wide(value: Mapping[str, Any], *, mark: bool) -> bytes:
    try:
        _check(value)
        text = json.dumps({**value, "wide": True} if mark else value, separators=(",", ":"), default=_plain_wide)
    except (TypeError, ValueError) as error:
        raise LoomError(
            f"the loom cannot keep a {value.get('kind', 'value')} that JSON cannot say: {error}; expected text, "
            f"numbers, true, false, null, and lists and string-keyed objects of them"
        ) from error
    return text.encode()


def _check(value: Any) -> None:
    """Raise for what the standard library would write and read back as something else, or not at all."""
    todo: list[tuple[Any, int]] = [(value, 0)]
    while todo:
        one, depth = todo.pop()
        if depth > DEEPEST:
            raise ValueError(f"it nests deeper than {DEEPEST} levels")
        if isinstance(one, Mapping):
            for key, part in one.items():
                if not isinstance(key, str):
                    raise TypeError(f"a key of type {type(key).__name__}: {key!r}")
                todo.append((part, depth + 1))
        elif isinstance(one, (list, tuple)):
            todo.extend((part, depth + 1) for part in one)


def _loads_wide(line: bytes, error: orjson.JSONDecodeError) -> Any:
    reason = error.msg
    if b'"wide"' in line:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as worse:
            reason = str(worse)
    raise LoomError(f"{_shown(line)} is no record of a loom: {reason}") from error


def _shown(line: bytes) -> str:
    text = line[:60].decode(errors="replace")
    return repr(text + "…" if len(line) > 60 else text)


def _fault(error: Exception, said: Any) -> str:
    if not isinstance(said, dict):
        return "expected a JSON object"
    if said.get("kind") not in _READ:
        return f"unknown kind {said.get('kind')!r}; known: {', '.join(_READ)}"
    return f'"{error.args[0]}" is missing' if isinstance(error, KeyError) else str(error)


# ----------------------------------------------------------------------------------------------------- record to object
# One function a kind, written out: this runs for every record, and `dataclasses.asdict` costs twenty times as much.


def _say_header(r: Header) -> dict[str, Any]:
    said = {
        "kind": "header",
        "entity": r.entity_id,
        "schema": SCHEMA,
        "cantrip": r.cantrip_id,
        "at": r.at,
        "crystal": r.crystal,
        "call": r.call,
        "circle": r.circle,
    }
    if r.parent_entity is not None:
        said["parent_entity"] = r.parent_entity
    if r.parent_turn is not None:
        said["parent_turn"] = r.parent_turn
    if r.forked:
        said["forked"] = True
    if r.depth:
        said["depth"] = r.depth
    if r.name is not None:
        said["name"] = r.name
    if r.lasting:
        said["lasting"] = True
    return said


def _say_intent(r: IntentGiven) -> dict[str, Any]:
    said: dict[str, Any] = {"kind": "intent", "entity": r.entity_id, "intent": r.intent, "at": r.at}
    if r.context is not None:
        said["context"] = r.context
    if r.images:
        said["images"] = [_say_image(image) for image in r.images]
    return said


def _say_steer(r: Steered) -> dict[str, Any]:
    said: dict[str, Any] = {"kind": "steer", "entity": r.entity_id, "text": r.text, "at": r.at}
    if r.images:
        said["images"] = [_say_image(image) for image in r.images]
    return said


def _say_image(image: Image) -> dict[str, Any]:
    """What is known of an image; its bytes lie beside the lines, under its digest."""
    said: dict[str, Any] = {"type": image.media_type}
    if image.url is not None:
        said["url"] = image.url
    else:
        said["digest"] = image.digest
        said["size"] = image.size
        if image.width and image.height:
            said["width"], said["height"] = image.width, image.height
    if image.detail is not None:
        said["detail"] = image.detail
    if image.after is not None:
        said["after"] = image.after
    return said


def _say_utterance(r: Utterance) -> dict[str, Any]:
    said: dict[str, Any] = {"kind": "utterance", "entity": r.entity_id, "turn": r.turn_id}
    if r.content is not None:
        said["content"] = r.content
    if r.tool_calls:
        said["tool_calls"] = [_say_call(call) for call in r.tool_calls]
    if r.code is not None:
        said["code"] = r.code
    if r.thinking is not None:
        said["thinking"] = r.thinking
    if r.usage is not NO_USAGE:
        said["usage"] = _say_usage(r.usage)
    said["duration_ms"] = r.duration_ms
    if r.blocks:
        said["blocks"] = r.blocks
    if r.metadata:
        said["metadata"] = r.metadata
    return said


def _say_call(call: ToolCall) -> dict[str, Any]:
    said: dict[str, Any] = {"id": call.id, "gate": call.gate}
    if call.args is not None:
        said["args"] = call.args
    if call.raw is not None:
        said["raw"] = call.raw
    return said


def _say_gate_started(r: GateStarted) -> dict[str, Any]:
    said: dict[str, Any] = {
        "kind": "gate_started",
        "entity": r.entity_id,
        "turn": r.turn_id,
        "tool_call_id": r.tool_call_id,
        "gate": r.gate,
    }
    if r.args is not None:
        said["args"] = r.args
    if r.snapshot is not None:
        said["snapshot"] = r.snapshot.digest
    return said


def _say_gate_finished(r: GateFinished) -> dict[str, Any]:
    o = r.observation
    said: dict[str, Any] = {"kind": "gate_finished", "entity": r.entity_id, "turn": r.turn_id, "gate": o.gate}
    if o.tool_call_id is not None:
        said["tool_call_id"] = o.tool_call_id
    if o.args is not None:
        said["args"] = o.args
    if o.result is not None:
        said["result"] = o.result
    if o.is_error:
        said["is_error"] = True
    if o.ephemeral:
        said["ephemeral"] = True
    if o.images:
        said["images"] = [_say_image(image) for image in o.images]
    if r.duration_ms:
        said["duration_ms"] = r.duration_ms
    return said


def _say_turn(r: Committed) -> dict[str, Any]:
    said: dict[str, Any] = {"kind": "turn", "entity": r.entity_id, "turn": r.turn_id}
    if r.parent_id is not None:
        said["parent"] = r.parent_id
    said["sequence"] = r.sequence
    if r.utterance_id != r.turn_id:
        said["utterance"] = r.utterance_id
    said["at"] = r.at
    said["duration_ms"] = r.duration_ms
    if r.terminated:
        said["terminated"] = True
    if r.truncated:
        said["truncated"] = True
    if r.ward is not None:
        said["ward"] = r.ward
    if r.snapshot is not None:
        said["snapshot"] = r.snapshot.digest
    return said


def _say_child(r: ChildStarted) -> dict[str, Any]:
    said: dict[str, Any] = {
        "kind": "child",
        "entity": r.entity_id,
        "turn": r.turn_id,
        "tool_call_id": r.tool_call_id,
        "child": r.child_id,
    }
    if r.index:
        said["index"] = r.index
    return said


def _say_usage(usage: Usage) -> dict[str, Any]:
    used: dict[str, Any] = {}
    if usage.prompt_tokens:
        used["prompt_tokens"] = usage.prompt_tokens
    if usage.completion_tokens:
        used["completion_tokens"] = usage.completion_tokens
    if usage.cached_tokens:
        used["cached_tokens"] = usage.cached_tokens
    if usage.cost:
        used["cost"] = usage.cost
    return used


def _say_fold(r: Folded) -> dict[str, Any]:
    said = {"kind": "fold", "entity": r.entity_id, "first": r.first, "last": r.last, "marker": r.marker, "at": r.at}
    if r.usage != NO_USAGE:
        said["usage"] = _say_usage(r.usage)
    return said


def _say_reward(r: Rewarded) -> dict[str, Any]:
    return {"kind": "reward", "entity": r.entity_id, "turn": r.turn_id, "reward": r.reward, "at": r.at}


def _say_ended(r: Ended) -> dict[str, Any]:
    said: dict[str, Any] = {"kind": "ended", "entity": r.entity_id, "reason": r.reason, "at": r.at}
    if r.detail is not None:
        said["detail"] = r.detail
    if r.result is not None:
        said["result"] = r.result
    return said


_SAY: dict[type, Callable[[Any], dict[str, Any]]] = {
    Header: _say_header,
    IntentGiven: _say_intent,
    Steered: _say_steer,
    Utterance: _say_utterance,
    GateStarted: _say_gate_started,
    GateFinished: _say_gate_finished,
    Committed: _say_turn,
    ChildStarted: _say_child,
    Folded: _say_fold,
    Rewarded: _say_reward,
    Ended: _say_ended,
}

# ----------------------------------------------------------------------------------------------------- object to record


def _read_header(d: dict[str, Any]) -> Header:
    get = d.get
    return Header(
        d["entity"],
        d["cantrip"],
        d["at"],
        d["call"],
        d["circle"],
        d["crystal"],
        get("parent_entity"),
        get("parent_turn"),
        get("forked", False),
        get("depth", 0),
        get("name"),
        get("lasting", False),
    )


def _read_intent(d: dict[str, Any]) -> IntentGiven:
    return IntentGiven(d["entity"], d["intent"], d["at"], d.get("context"), _images(d))


def _read_steer(d: dict[str, Any]) -> Steered:
    return Steered(d["entity"], d["text"], d["at"], _images(d))


def _images(d: dict[str, Any]) -> tuple[Image, ...]:
    return tuple([_image(one) for one in d["images"]]) if "images" in d else NO_IMAGES


def _image(d: dict[str, Any]) -> Image:
    get = d.get
    digest, url = get("digest", ""), get("url")
    if url is None and not (isinstance(digest, str) and _PICTURE.fullmatch(digest)):
        raise ValueError(f'"images": expected a digest of 64 hexadecimal digits, got {digest!r}')
    return Image.known(
        d["type"],
        digest,
        get("size", 0),
        get("width"),
        get("height"),
        get("detail"),
        url=url,
        after=get("after"),
    )


def _read_utterance(d: dict[str, Any]) -> Utterance:
    get = d.get
    used = get("usage")
    return Utterance(
        d["entity"],
        d["turn"],
        get("content"),
        tuple(ToolCall(c["id"], c["gate"], c.get("args"), c.get("raw")) for c in get("tool_calls", ())),
        NO_USAGE if used is None else Usage(**used),
        d["duration_ms"],
        get("thinking"),
        get("code"),
        tuple(get("blocks", ())),
        get("metadata", {}),
    )


def _read_gate_started(d: dict[str, Any]) -> GateStarted:
    return GateStarted(d["entity"], d["turn"], d["tool_call_id"], d["gate"], d.get("args"), _snapshot(d))


def _read_gate_finished(d: dict[str, Any]) -> GateFinished:
    get = d.get
    seen = Observation(
        d["gate"],
        get("args"),
        get("result"),
        get("is_error", False),
        get("tool_call_id"),
        get("ephemeral", False),
        _images(d),
    )
    return GateFinished(d["entity"], d["turn"], seen, get("duration_ms", 0.0))


def _read_turn(d: dict[str, Any]) -> Committed:
    get = d.get
    turn = d["turn"]
    return Committed(
        turn,
        d["entity"],
        get("parent"),
        d["sequence"],
        get("utterance", turn),
        d["at"],
        d["duration_ms"],
        get("terminated", False),
        get("truncated", False),
        get("ward"),
        _snapshot(d),
    )


def _snapshot(d: dict[str, Any]) -> Snapshot | None:
    digest = d.get("snapshot")
    if digest is None:
        return None
    if not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
        raise ValueError(f'"snapshot": expected a digest of 40 hexadecimal digits, got {digest!r}')
    return Snapshot(digest)


def _read_child(d: dict[str, Any]) -> ChildStarted:
    return ChildStarted(d["entity"], d["turn"], d["tool_call_id"], d["child"], d.get("index", 0))


def _read_fold(d: dict[str, Any]) -> Folded:
    used = d.get("usage")
    usage = NO_USAGE if used is None else Usage(**used)
    return Folded(d["entity"], d["first"], d["last"], d["marker"], d["at"], usage)


def _read_reward(d: dict[str, Any]) -> Rewarded:
    return Rewarded(d["entity"], d["turn"], d["reward"], d["at"])


def _read_ended(d: dict[str, Any]) -> Ended:
    return Ended(d["entity"], d["reason"], d["at"], d.get("detail"), d.get("result"))


_READ: dict[str, Callable[[dict[str, Any]], Record]] = {
    "header": _read_header,
    "intent": _read_intent,
    "steer": _read_steer,
    "utterance": _read_utterance,
    "gate_started": _read_gate_started,
    "gate_finished": _read_gate_finished,
    "turn": _read_turn,
    "child": _read_child,
    "fold": _read_fold,
    "reward": _read_reward,
    "ended": _read_ended,
}

KINDS = frozenset(_READ)
