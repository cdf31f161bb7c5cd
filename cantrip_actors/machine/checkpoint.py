"""Checkpoints: encode and decode a state, so that loading an entity costs its context and not its history.

The log is the truth, not the checkpoint. A checkpoint of another version, or a damaged one, is ignored, and the state
is folded from the log instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args, get_origin

import msgspec

from cantrip_actors.machine.state import CantripRef, Plan, State
from cantrip_actors.records.blob import Snapshot
from cantrip_actors.records.codec import get_image_facts, make_image
from cantrip_actors.terms.context import Shared
from cantrip_actors.terms.file import File
from cantrip_actors.terms.messages import NO_USAGE, Usage

FORMAT: Final = 12
"""Increment it with any change of `State` or of its folding: older checkpoints are then ignored."""


class Checkpoint(msgspec.Struct, frozen=True):
    """The state of an entity after a record, and the usage of the subtrees of its children until then.

    `cantrip_id` and `is_measured` say for which shape the records were folded. `adopted` is the cantrip in force, and
    `dependencies` the mark of the dependencies in force.
    """

    state: State
    cantrip_id: str
    adopted: CantripRef
    is_measured: bool
    below: Usage = NO_USAGE
    dependencies: str | None = None
    format: int = FORMAT

    def is_for(self, plan: Plan) -> bool:
        """Return whether folding the whole log with this plan would give the same state."""
        return (self.cantrip_id, self.is_measured) == (plan.cantrip.id, plan.shape.is_measured)


class CheckpointSummary(msgspec.Struct, frozen=True):
    """The cantrip that an entity works with, and the mark of its dependencies: a checkpoint without its state."""

    adopted: CantripRef
    dependencies: str | None = None
    format: int = FORMAT


def read_summary(data: bytes) -> CheckpointSummary | None:
    """Return the summary of a checkpoint, without decoding its state; None for an unusable checkpoint."""
    try:
        summary = msgspec.msgpack.decode(data, type=CheckpointSummary)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return summary if summary.format == FORMAT else None


def encode_checkpoint(plan: Plan, state: State, below: Usage) -> bytes | None:
    """Return a state as bytes; None for one with values that only JSON can express, such as very large numbers."""
    try:
        adopted = CantripRef(state.cantrip_id, state.cantrip_name)
        mark = state.episode.dependencies
        return _ENCODER.encode(Checkpoint(state, plan.cantrip.id, adopted, plan.shape.is_measured, below, mark))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def decode_checkpoint(data: bytes, attach: Callable[[File], File]) -> Checkpoint | None:
    """Return what `encode_checkpoint` wrote, or None. `attach` connects an image to its stored bytes."""

    def convert_from_plain(kind: Any, value: Any) -> Any:
        if kind is File:
            return attach(make_image(value))
        if kind is Snapshot:
            return Snapshot(value)
        if get_origin(kind) is Shared:
            (item,) = get_args(kind)
            items = msgspec.convert(value, list[item], dec_hook=convert_from_plain)  # type: ignore[valid-type]  # a type at run time
            return Shared(items)
        raise NotImplementedError(f"a {kind}")

    try:
        checkpoint = msgspec.msgpack.decode(data, type=Checkpoint, dec_hook=convert_from_plain)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, RecursionError):
        return None
    return checkpoint if checkpoint.format == FORMAT else None


def _convert_to_plain(value: object) -> Any:
    if isinstance(value, Shared):
        return list(value)
    if isinstance(value, File):
        return get_image_facts(value)
    if isinstance(value, Snapshot):
        return value.digest
    raise TypeError(f"a {type(value).__name__}")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_convert_to_plain)

# msgspec describes a class at its first use, and the process crashes if two threads do that at once: describe it now
msgspec.msgpack.Decoder(Checkpoint)
