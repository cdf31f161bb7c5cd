"""The input of the call of a model that a turn answers, computed from the loom.

The log is folded up to the utterance of the turn, as the runtime folds it, and the view of that state is what the query
showed. Nothing is recorded for this, because a record never repeats earlier content (0002).
"""

from __future__ import annotations

from typing import Any

from cantrip_actors.loom.export.shapes import message_shape
from cantrip_actors.loom.reading.view import Loom
from cantrip_actors.machine.context import build_view
from cantrip_actors.machine.evolve import renew_call
from cantrip_actors.machine.project import fold_log, make_fork_state
from cantrip_actors.machine.project.query import list_folded_turns, list_records_before_query
from cantrip_actors.machine.state import Shape, State
from cantrip_actors.records.records import Record
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.terms.model_input import ModelInput


def read_model_input(loom: Loom, turn_id: str, shape: Shape | None = None) -> ModelInput:
    """Return the input of the call that a turn answers; `shape` is that of its cantrip, if it is known.

    Raises LoomError for an unknown or forgotten turn, and for one that no call of a model led to.
    """
    header = loom.header_at(turn_id)
    if loom.is_forgotten(header.entity_id):
        raise LoomError(f"the content of turn {turn_id} was erased: its input is not in the loom any more")
    records = list_records_before_query(loom.records(header.entity_id), turn_id)
    if records is None:
        raise LoomError(f"turn {turn_id} answers no call of a model: expected a turn with an utterance")
    is_exact, shape = shape is not None, shape or Shape.of_header(header)
    before: list[Record] = []
    state = State(shape.parent_turn)
    if header.forked and header.parent_turn is not None:
        before = loom.lineage(header.parent_turn)
        state = make_fork_state(shape, before)
    fold_log(shape, records, state)
    renew_call(shape, state)
    gates = [gate if isinstance(gate, dict) else {"name": gate} for gate in header.circle.get("gates", ())]
    settings = {name: value for name, value in header.call.items() if name != "system_prompt"}
    return ModelInput(
        turn_id=turn_id,
        entity_id=header.entity_id,
        crystal=header.crystal,
        messages=tuple(build_view(shape, state)),
        tools=tuple(gate for gate in gates if not gate.get("on_demand")),
        settings=settings,
        folded_turns=list_folded_turns(state, [*before, *records]),
        is_exact=is_exact,
    )


def build_input_fields(model_input: ModelInput) -> dict[str, Any]:
    """Return the input of a model's call as JSON values; fields of a message that are empty are left out."""
    return {
        "turn_id": model_input.turn_id,
        "entity_id": model_input.entity_id,
        "crystal": model_input.crystal,
        "messages": list(map(message_shape, model_input.messages)),
        "tools": list(model_input.tools),
        "settings": dict(model_input.settings),
        "folded_turns": list(model_input.folded_turns),
        "is_exact": model_input.is_exact,
    }
