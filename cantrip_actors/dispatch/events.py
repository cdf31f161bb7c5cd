"""The events of a dispatch's log, each a fact that was written once, and their lines.

An `Entry` is an event with its place in the log: number, time, author and capacity, turn, lease. `rules.py` decides
which event may come when, `log.py` writes the lines. No operation changes or removes an entry: a correction is a new
entry with the number of the old one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal, TypeAlias, get_args

import msgspec
import orjson

from cantrip_actors.dispatch.contract import Contract, draft
from cantrip_actors.dispatch.status import Capacity, Status
from cantrip_actors.records.codec import dump_json
from cantrip_actors.terms.value import Value

ProgressKind: TypeAlias = Literal[
    "milestone", "checkpoint", "step", "discovery", "what_failed", "blocker", "verification"
]
PROGRESS_KINDS: tuple[str, ...] = get_args(ProgressKind)


class _Event(Value, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of events; an event's `tag` is its name in the log."""


class Dispatched(_Event, frozen=True, tag="contract"):
    """The first entry of every log: the contract. With it the dispatch is queued."""

    contract: Contract


class StatusChanged(_Event, frozen=True, tag="status"):
    """A step of the status machine. `result` goes with completed, `blocker` with blocked, `reason` with the rest."""

    status: Status
    result: str = ""
    blocker: str = ""
    reason: str = ""


class Recovered(_Event, frozen=True, tag="recovery"):
    """A crash or an expired lease queued the dispatch again, for its next attempt. The supervisor says why."""

    reason: str


class Progressed(_Event, frozen=True, tag="progress"):
    """Progress, in words. A `verification` with `item` is evidence for that acceptance item, counted from 1.

    `corrects` is the number of an earlier progress entry that this one replaces; the earlier one stays.
    """

    progress: ProgressKind
    text: str
    item: int | None = None
    corrects: int | None = None


class OutputWritten(_Event, frozen=True, tag="output"):
    """A modified or new file, and its description."""

    path: str
    description: str = ""


class Decided(_Event, frozen=True, tag="decision"):
    """A decision, its reason, the rejected alternatives, and the implications. All four are needed."""

    decided: str
    why: str
    rejected: str
    implications: str


class Approved(_Event, frozen=True, tag="approval"):
    """A human's approval of a dispatch before it starts, or of a blocked one."""

    note: str = ""


class Unblocked(_Event, frozen=True, tag="unblock"):
    """A blocker was removed; `note` says how."""

    note: str


class Folded(_Event, frozen=True, tag="fold"):
    """The entity's context was folded: turns `first` to `last` are not in it any more."""

    first: int
    last: int


class DoneRefused(_Event, frozen=True, tag="done_refused"):
    """`done` was refused, because the exit contract was not met."""

    text: str


class StepAdvanced(_Event, frozen=True, tag="step_advanced"):
    """Step `step` of the plan, the current one, is done, with its actual output."""

    step: int
    output: str


class StepSkipped(_Event, frozen=True, tag="step_skipped"):
    """The current step is skipped, with the reason."""

    step: int
    reason: str


class StepReturned(_Event, frozen=True, tag="step_returned"):
    """A return to an earlier step, because a test failed or a review rejected; the steps after it are repeated."""

    step: int
    reason: str


class PhasePassed(_Event, frozen=True, tag="phase_passed"):
    """The current phase's exit criteria are met by this evidence: pairs of a criterion's name and words.

    A mapping will do too.
    """

    phase: str
    evidence: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        pairs = self.evidence.items() if isinstance(self.evidence, Mapping) else self.evidence
        msgspec.structs.force_setattr(self, "evidence", tuple((name, words) for name, words in pairs))


class PhaseFailed(_Event, frozen=True, tag="phase_failed"):
    """An attempt at the current phase did not meet its criteria, which counts one more iteration."""

    phase: str
    unmet: tuple[str, ...]


class PhaseApproved(_Event, frozen=True, tag="phase_approved"):
    """A human approves the phase that waits for it; that advances it."""

    phase: str
    note: str = ""


class ReviewReturned(_Event, frozen=True, tag="review_returned"):
    """The review found problems: continue with fix-feedback, and then with the review again."""

    findings: str


class Closed(_Event, frozen=True, tag="close"):
    """The record is archived and takes no more entries. `override` gives the reason if criteria are unmet."""

    override: str = ""


Event: TypeAlias = (
    Dispatched
    | StatusChanged
    | Recovered
    | Progressed
    | OutputWritten
    | Decided
    | Approved
    | Unblocked
    | Folded
    | DoneRefused
    | StepAdvanced
    | StepSkipped
    | StepReturned
    | PhasePassed
    | PhaseFailed
    | PhaseApproved
    | ReviewReturned
    | Closed
)

KINDS: Mapping[str, type[Any]] = {cls.__struct_config__.tag: cls for cls in get_args(Event)}


class Entry(Value, frozen=True):
    """An event with its position in the log. `seq` counts from 1, `ts` is RFC 3339 in UTC.

    `author` wrote it in the capacity `by`, on which the permitted events depend. `token` is the fencing token of the
    lease under which it was written, None without one; `contract_hash` names the contract that it belongs to. `door` is
    the door through which a human's decision came (`records/door.py`). `key` is the key of the request that wrote it,
    with a digest of that request after a space, so that a repeated one is known.
    """

    seq: int
    ts: str
    by: Capacity
    author: str
    event: Event
    contract_hash: str
    turn_id: str | None = None
    token: int | None = None
    door: str = ""
    key: str = ""

    @property
    def kind(self) -> str:
        """The event's name in the log."""
        return str(self.event.__struct_config__.tag)


def make_entry_key(key: str | None, content: Sequence[Any]) -> str:
    """Return the key of the entries of a request with this content (see `Entry`); empty if the request has no key."""
    return f"{key} {sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}" if key else ""


# msgspec describes a class at its first use, and the process crashes if two threads do that at once: describe it now
msgspec.json.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    """Return an entry as one line of JSON, without the fields that have their defaults, and without a newline.

    Raises LoomError for values that JSON cannot express.
    """
    event = entry.event
    fields = {"contract": event.contract.as_json()} if isinstance(event, Dispatched) else msgspec.to_builtins(event)
    place = {"turn_id": entry.turn_id, "token": entry.token, "door": entry.door or None, "key": entry.key or None}
    return dump_json(
        {
            "seq": entry.seq,
            "ts": entry.ts,
            "kind": entry.kind,
            "by": entry.by,
            "author": entry.author,
            **{name: value for name, value in place.items() if value is not None},
            **fields,
            "contract_hash": entry.contract_hash,
        }
    )


def decode_entry(line: bytes) -> Entry:
    """Return the entry of one line. Raises ValueError for another line, such as a kind of a later version."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        value = json.loads(line)
    if not isinstance(value, dict) or value.get("kind") not in KINDS:
        raise ValueError("it is not an entry of a dispatch that this version knows")
    value.pop("wide", None)
    place = {name: value.pop(name) for name in Entry.__struct_fields__ if name in value}
    try:
        event = _decode_contract(value) if value["kind"] == "contract" else msgspec.convert(value, Event)
        return msgspec.convert({**place, "event": event}, Entry)
    except msgspec.ValidationError as error:
        raise ValueError(f"it is not a whole entry of a dispatch: {error}") from error


def _decode_contract(value: dict[str, Any]) -> Dispatched:
    fields = value.get("contract")
    contract = draft(fields if isinstance(fields, dict) else {})
    if not isinstance(contract, Contract):
        raise ValueError(f"its contract is invalid: {contract[0]}")  # noqa: TRY004  # the line is wrong
    return Dispatched(contract)
