"""A thread as JSON Lines: one whole turn per line, with the field names of SPEC 6.1.

The loom's own file holds records, several of which make a turn; this is the form for readers of turns. The bytes depend
on the turns alone, not on the store that held them.

The other forms are `export_chat` (for chat models), `export_pairs` (for preference training), `export_atif` (for tools
that read trajectories) and `html` (for people). None of them redacts secrets: that is done by the loom that they read
from (`redaction`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from cantrip_actors.loom.stores.blobs import address_of
from cantrip_actors.records.codec import dump_json
from cantrip_actors.records.records import Decided, Observation, Resumed
from cantrip_actors.records.turn import Turn
from cantrip_actors.terms.file import File


def thread_jsonl(turns: Iterable[Turn]) -> bytes:
    """Return `turns` as JSON Lines, every field of SPEC 6.1 in each, nulls included."""
    return b"".join(dump_json(build_turn_fields(turn), mark=False) + b"\n" for turn in turns)


def build_turn_fields(turn: Turn) -> dict[str, Any]:
    """Return a turn with the field names of SPEC 6.1."""
    m = turn.metadata
    decided = {"decisions": [build_decision(decision) for decision in turn.decisions]} if turn.decisions else {}
    return {
        "id": turn.id,
        "parent_id": turn.parent_id,
        "cantrip_id": turn.cantrip_id,
        "entity_id": turn.entity_id,
        "sequence": turn.sequence,
        "utterance": turn.utterance,
        "observation": turn.observation,
        "gate_calls": [_build_gate_call(o) for o in turn.gate_calls],
        **({"images": [build_image_fields(image) for image in turn.made]} if turn.made else {}),
        **decided,
        **({"resumes": list(map(build_resume, turn.resumes))} if turn.resumes else {}),
        **_build_served(turn),
        **({"left_out": list(turn.left_out)} if turn.left_out else {}),
        **({"adjusted": dict(turn.adjusted)} if turn.adjusted else {}),
        "metadata": {
            "tokens_prompt": m.tokens_prompt,
            "tokens_completion": m.tokens_completion,
            "tokens_cached": m.tokens_cached,
            "duration_ms": m.duration_ms,
            "timestamp": m.timestamp,
        },
        "reward": turn.reward,
        "terminated": turn.terminated,
        "truncated": turn.truncated,
        **({"undone": True} if turn.undone else {}),
    }


def _build_served(turn: Turn) -> dict[str, Any]:
    """Return what the provider did with tools of its own, and the sources it named; {} for other turns."""
    made = {"server_calls": list(map(asdict, turn.server_calls)), "citations": list(map(asdict, turn.citations))}
    return {name: told for name, told in made.items() if told}


def _build_gate_call(o: Observation) -> dict[str, Any]:
    """Return a gate call in the form of D-005, with `images` if it has any, and `attempts` if there were several."""
    told = {"gate": o.gate, "args": o.args, "result": o.result, "is_error": o.is_error, "tool_call_id": o.tool_call_id}
    images = {"images": [build_image_fields(image) for image in o.images]} if o.images else {}
    return told | images | ({"attempts": o.attempts} if o.attempts != 1 else {})


def build_decision(record: Decided) -> dict[str, Any]:
    """Return a decision: its author, the evidence for that name, and the call."""
    return {
        "tool_call_id": record.tool_call_id,
        "decision": record.decision,
        "by": record.by,
        "door": record.door,
        "at": record.at,
        "note": record.note,
    }


def build_resume(record: Resumed) -> dict[str, Any]:
    """Return who resumed the entity, and when."""
    return {"by": record.by, "at": record.at}


_NAMED: Final = ("filename", "provider", "file_id")


def build_image_fields(image: File) -> dict[str, Any]:
    """Return an image as a data URL, null without bytes; another file as a description."""
    named = {name: value for name in _NAMED if (value := getattr(image, name)) is not None}
    return {
        **named,
        "media_type": image.media_type,
        "digest": image.digest or None,
        "size": image.size,
        "width": image.width,
        "height": image.height,
        "url": address_of(image),
    }
