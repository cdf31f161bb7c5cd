"""The gate `done`, with the answer as its argument (CIRCLE-8), and gates without a function (SPEC 4.4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, Field

from cantrip_actors.terms import own_gate_names as names
from cantrip_actors.terms.argument_model import GateArguments
from cantrip_actors.terms.gate import Gate, GateKind, provide
from cantrip_actors.terms.json_schema import strip_titles
from cantrip_actors.terms.risk import Risk


def make_own_gate(
    name: str,
    description: str,
    kind: GateKind,
    model: type[BaseModel],
    injected: tuple[str, ...] = (),
    risks: Iterable[Risk] = (),
) -> Gate:
    """Return a gate that the loop or the runtime carries out; `model` checks its arguments."""
    schema = strip_titles(model.model_json_schema())
    schema.pop("description", None)
    return Gate(
        name=name,
        description=description,
        parameters=schema,
        kind=kind,
        model=model,
        injected=injected,
        risks=frozenset(risks),
    )


class _Done(GateArguments):
    answer: Any = Field(description="the answer, or the result of the task")


DONE = make_own_gate(names.DONE, "Finish: the task is complete and this is its result.", "done", _Done)

provide(DONE)
