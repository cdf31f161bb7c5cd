"""The history of an entity, from its records: its turns, their rewards, and all other facts, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

from cantrip_actors.machine.project.conversation import Recalled, read_history_items
from cantrip_actors.records.records import (
    Adopted,
    ChildStarted,
    Committed,
    Decided,
    Ended,
    Folded,
    ForgottenRecord,
    GateFinished,
    GateStarted,
    Header,
    IntentGiven,
    Observation,
    Record,
    Resumed,
    Rewarded,
    Steered,
    Undone,
    Utterance,
)
from cantrip_actors.records.turn import Turn, TurnMetadata
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import NO_IMAGES
from cantrip_actors.terms.messages import NO_USAGE, Usage
from cantrip_actors.terms.server_tools import find_citations, find_server_calls


class Entry(NamedTuple):
    """One fact in the history of an entity: an intent, a message, a turn, a fold, an undo, a move to another cantrip,
    or an end.

    `text` is the intent, the message, the fold's marker, the new system prompt, the reason of the end (`reason` is the
    short form), or an utterance whose turn a crash interrupted. The `reason` of a move is the id of the new cantrip.
    """

    kind: Literal["intent", "steer", "fold", "turn", "end", "cut", "moved", "undo"]
    text: str
    at: str = ""
    images: tuple[File, ...] = NO_IMAGES
    context: Any = None
    reason: str = ""
    turn: Turn | None = None
    history: tuple[Recalled, ...] = ()
    """The messages before an intent."""
    sender: str = ""
    """The sender of an intent or a message."""


def read_entries(records: Sequence[Record]) -> Iterator[Entry]:
    """Yield the history of one entity, in order, from its whole log."""
    turns = read_turns(records)
    for record in records:
        make = _ENTRIES.get(type(record))
        if make is not None:
            yield make(record)
        if isinstance(record, Committed):
            yield Entry("turn", "", record.at, turn=next(turns))
    utterance = find_cut_utterance(records)
    if utterance is not None:
        yield Entry("cut", render_utterance(utterance), images=utterance.images)


def find_cut_utterance(records: Sequence[Record]) -> Utterance | None:
    """Return the utterance at the end of a log that is not yet a turn; None if there is none."""
    for record in reversed(records):
        match record:
            case Utterance():
                return record
            case Committed() | IntentGiven() | Undone() | ForgottenRecord():
                return None
            case _:
                pass
    return None


def collect_rewards(records: Iterable[Record]) -> dict[str, list[Rewarded]]:
    """Return the rewards of each turn, oldest first: the latest counts (LOOM-3)."""
    rewards: dict[str, list[Rewarded]] = {}
    for record in records:
        if isinstance(record, Rewarded):
            rewards.setdefault(record.turn_id, []).append(record)
    return rewards


def get_reward_key(record: Record) -> str:
    """Return the key of a reward; "" for a reward without one, and for every other record."""
    return record.key if isinstance(record, Rewarded) else ""


def read_turns(records: Iterable[Record]) -> Iterator[Turn]:
    """Yield the committed turns of one entity, oldest first, from its whole log: a reward may come much later."""
    rewards: dict[str, float] = {}
    undone: set[int] = set()
    turns: list[Turn] = []
    reader = TurnReader()
    for record in records:
        turn = reader.add(record)
        match record:
            case Committed() if turn is not None:
                turns.append(turn)
            case ChildStarted():
                # a child starts after its turn was committed: it belongs to the turn just made
                if turns and turns[-1].id == record.turn_id:
                    turns[-1] = replace(turns[-1], children=(*turns[-1].children, record.child_id))
            case Rewarded():
                rewards[record.turn_id] = record.reward
            case Undone():
                undone.update(range(record.first, record.last + 1))
            case ForgottenRecord():
                gone: dict[str, Any] = {"observation": "", "gate_calls": (), "gate_durations": ()}
                turns = [replace(turn, **gone, decisions=(), resumes=(), forgotten=True) for turn in turns]
            case _:
                pass
    for turn in turns:
        if turn.id in rewards or turn.sequence in undone:
            turn = replace(turn, reward=rewards.get(turn.id), undone=turn.sequence in undone)
        yield turn


def find_turn_in_force(turns: Sequence[Turn]) -> Turn | None:
    """Return the last of these turns of an entity that was not undone; None if all were."""
    return next((turn for turn in reversed(turns) if not turn.undone), None)


def split_asides(asides: Iterable[tuple[int, Record]], position: int) -> tuple[list[Record], list[Record]]:
    """Split the records of `ASIDES` at a position: the moves before it, and the later records about turns before it."""
    moves: list[Record] = []
    afterwards: list[Record] = []
    for at, record in asides:
        if not isinstance(record, Adopted):
            afterwards.append(record)
        elif at <= position:
            moves.append(record)
    return moves, afterwards


def begins_inside(records: Iterable[Record]) -> bool:
    """Return whether the first turn that these records complete continues an utterance from before them (LOOM-8)."""
    utterances: set[str] = set()
    for record in records:
        if isinstance(record, Utterance):
            utterances.add(record.turn_id)
        elif isinstance(record, Committed):
            return record.utterance_id not in utterances
    return False


class TurnReader:
    """Returns each turn of one entity as soon as it is committed, without its rewards and children: they come later."""

    def __init__(self) -> None:
        self._cantrip_id = ""
        self._said: Utterance | None = None
        self._gates: list[GateFinished] = []
        self._decisions: list[Decided] = []
        self._resumes: list[Resumed] = []

    def add(self, record: Record) -> Turn | None:
        """Add the next record of the log; return the turn if this record commits it."""
        match record:
            case GateFinished():
                self._gates.append(record)
            case Utterance():
                self._said, self._gates, self._decisions = record, [], []
            case Decided():
                self._decisions.append(record)
            case Resumed():
                self._resumes.append(record)
            case Committed():
                turn = _build_turn(record, self._said, self._gates, self._cantrip_id)
                if self._decisions or self._resumes:
                    turn = replace(turn, decisions=tuple(self._decisions), resumes=tuple(self._resumes))
                self._gates, self._decisions, self._resumes = [], [], []
                return turn
            case Header() | Adopted():
                self._cantrip_id = record.cantrip_id
            case _:
                pass
        return None


def list_started_calls(records: Iterable[Record]) -> set[tuple[str, str | None]]:
    """Return the gate calls whose start is recorded, each as its turn and its id: these ran, even if they failed."""
    return {(record.turn_id, record.tool_call_id) for record in records if isinstance(record, GateStarted)}


def list_finished_calls(records: Iterable[Record]) -> list[GateFinished]:
    """Return the gate calls that have a result, oldest first, with those of the turn under way."""
    return [record for record in records if isinstance(record, GateFinished)]


def _build_turn(done: Committed, utterance: Utterance | None, finished: list[GateFinished], cantrip: str) -> Turn:
    continues = done.utterance_id != done.turn_id
    usage = NO_USAGE if utterance is None or continues else utterance.usage
    calls = utterance.tool_calls if utterance is not None else ()
    gates = [record.observation for record in finished]
    if calls:
        args = {call.id: call.args for call in calls}
        gates = [
            Observation(
                o.gate,
                args.get(o.tool_call_id or ""),
                o.result,
                o.is_error,
                o.tool_call_id,
                o.ephemeral,
                o.images,
                o.attempts,
            )
            if o.args is None
            else o
            for o in gates
        ]
    return Turn(
        id=done.turn_id,
        parent_id=done.parent_id,
        cantrip_id=cantrip,
        entity_id=done.entity_id,
        sequence=done.sequence,
        utterance=render_utterance(utterance),
        observation="\n".join(o.content for o in gates),
        gate_calls=tuple(gates),
        metadata=TurnMetadata(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.cached_tokens,
            done.duration_ms,
            done.at,
            usage.cost,
            _count_written(utterance, usage),
        ),
        terminated=done.terminated,
        truncated=done.truncated,
        utterance_id=done.utterance_id,
        content=utterance.content if utterance is not None else None,
        tool_calls=calls,
        thinking=utterance.thinking if utterance is not None else None,
        code=utterance.code if utterance is not None else None,
        blocks=utterance.blocks if utterance is not None else (),
        ward=done.ward,
        made=utterance.images if utterance is not None and not continues else (),
        server_calls=find_server_calls(utterance.metadata) if utterance is not None and not continues else (),
        citations=find_citations(utterance.metadata) if utterance is not None and not continues else (),
        left_out=_read_left_out(utterance) if utterance is not None and not continues else (),
        adjusted=_read_adjusted(utterance) if utterance is not None and not continues else {},
        gate_durations=tuple(record.duration_ms for record in finished),
    )


def _read_left_out(utterance: Utterance) -> tuple[str, ...]:
    names = utterance.metadata.get("left_out")
    return tuple(map(str, names)) if isinstance(names, (list, tuple)) else ()


def _read_adjusted(utterance: Utterance) -> Mapping[str, Mapping[str, str]]:
    changes = utterance.metadata.get("adjusted")
    return (
        changes
        if isinstance(changes, Mapping) and all(isinstance(change, Mapping) for change in changes.values())
        else {}
    )


def _count_written(utterance: Utterance | None, usage: Usage) -> int:
    written = 0 if utterance is None or usage is NO_USAGE else utterance.metadata.get("cache_written_tokens", 0)
    return written if isinstance(written, int) else 0


def _explain_undone(record: Undone) -> str:
    by = f" by {record.sender}" if record.sender else ""
    match record.last - record.first:
        case -1:
            return f"undone{by}: no turn"
        case 0:
            return f"undone{by}: turn {record.first}"
        case _:
            return f"undone{by}: turns {record.first} to {record.last}"


def _explain_forgotten(record: ForgottenRecord) -> str:
    by = f" by {record.by}" if record.by else ""
    return f"forgotten{by}: {record.why}" if record.why else f"forgotten{by}"


def render_utterance(utterance: Utterance | None) -> str:
    """Return the text of an utterance, with its program and its calls."""
    if utterance is None:
        return ""
    parts = [utterance.content] if utterance.content else []
    if utterance.code:
        parts.append(utterance.code)
    parts += [f"{call.gate}({call.arguments})" for call in utterance.tool_calls]
    return "\n".join(parts)


_ENTRIES: Final[dict[type[Record], Callable[[Any], Entry]]] = {
    IntentGiven: lambda record: Entry(
        "intent",
        record.intent,
        record.at,
        record.own_images,
        record.context,
        history=tuple(read_history_items(record)),
        sender=record.sender or "",
    ),
    Steered: lambda record: Entry("steer", record.text, record.at, record.images, sender=record.sender or ""),
    Folded: lambda record: Entry("fold", record.marker, record.at),
    Undone: lambda record: Entry("undo", _explain_undone(record), record.at),
    Adopted: lambda record: Entry("moved", record.call.get("system_prompt") or "", record.at, reason=record.cantrip_id),
    Ended: lambda record: Entry("end", record.detail or "", record.at, reason=record.reason),
    ForgottenRecord: lambda record: Entry("end", _explain_forgotten(record), record.at, reason="forgotten"),
}
"""For each kind of record that becomes a history entry of its own, the function that makes the entry."""
