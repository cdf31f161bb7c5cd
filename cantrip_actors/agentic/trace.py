"""The steps of a run as the loom has them: one turn for each call of an agent, its trace entry as the turn's text.

A trace has an entry for each step. PLAN, WORK and CRITIC have `state`, `agent_id`, `call_id`, `tool_name`,
`input` and `output`; the planner's input is not repeated, since it is the task. A TOOL has no entry of its own in the
loom: it is a gate call of the turn whose WORK asked for it. END has only `state` and `decision`, and is the call of
`done` in the turn of the CRITIC.

Everything here is pure. It reads messages, for a controller that has to find its place, or turns, for the trace of a
run, including a failed one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pydantic import TypeAdapter

from cantrip_actors import CrystalError, Message, Turn
from cantrip_actors.agentic.controller import ControllerState
from cantrip_actors.agentic.schemas import AgentCallResult
from cantrip_actors.agentic.tools import as_json

_CONTEXT: Final = "context:\n"
_FOLDED: Final = "[folded: turns "


def utterance(state: ControllerState, result: AgentCallResult[Any], agent_input: Any) -> str:
    """Return the trace entry of one call of an agent as the text of its turn, with the most important fields first."""
    entry = {
        "state": state.value,
        "agent_id": result.agent_id,
        "output": as_json(result.output, round_trip=True),
        "input": None if state is ControllerState.PLAN else as_json(agent_input),
        "tool_name": None,
        "call_id": result.call_id,
    }
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":"))


def read(wanted: TypeAdapter[Any], text: str) -> Any:
    """Return a value of type `wanted` from an intent: JSON, or the text itself if that is such a value.

    Raises ValidationError for the JSON if it is neither.
    """
    try:
        return wanted.validate_json(text, by_name=True)
    except ValueError as no_json:
        try:
            return wanted.validate_python(text, strict=True)
        except ValueError:
            raise no_json from None


def run_of(messages: Iterable[Message]) -> tuple[str, list[Message]]:
    """Return the task of the current run, as text, and its steps so far: utterances, and the results of tools.

    An intent begins a run. If data came with it, the data are the task. A steering message changes nothing: the next
    step follows from the results alone.

    Raises CrystalError if the first steps were folded away.
    """
    task, steps = "", list[Message]()
    for message in messages:
        content = message.content or ""
        if message.role == "user" and content.startswith(_FOLDED):
            raise CrystalError("a controller needs to see all of its steps: its cantrip may not fold them away")
        if message.role == "user" and not message.is_steering:
            task, steps = content.removeprefix(_CONTEXT), []
        elif message.role == "assistant" or (message.role == "tool" and message.gate != "done"):
            steps.append(message)
    if not task:
        raise CrystalError("a controller was asked without a task: cast it on one")
    return task, steps


def read_entry(text: str | None) -> dict[str, Any]:
    """Return the trace entry that is the text of a turn. Raises CrystalError for another text."""
    try:
        entry: dict[str, Any] = json.loads(text or "")
        entry["output"]
        ControllerState(entry["state"])
    except (ValueError, KeyError, TypeError) as error:
        raise CrystalError(f"a controller continues only from its own steps, not from: {(text or '')[:200]}") from error
    return entry


def trace_of(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return the trace of a run from its turns: `trace_of(runtime.loom.turns(entity_id))`, also of a failed run.

    Raises CrystalError for turns of an entity that no controller drove.
    """
    return [entry for turn in turns for entry in _list_entries(turn)]


def _list_entries(turn: Turn) -> Iterator[dict[str, Any]]:
    entry = read_entry(turn.content)
    yield {name: entry[name] for name in ("state", "agent_id", "call_id", "tool_name", "input", "output")}
    for seen in turn.gate_calls:
        if seen.gate == "done":
            yield {"state": ControllerState.END.value, "decision": entry["output"]}
        else:
            args = entry["output"]["tool_request"]["args"] if seen.args is None else seen.args
            output = seen.result if seen.is_error or not isinstance(seen.result, str) else json.loads(seen.result)
            yield {
                "state": ControllerState.TOOL.value,
                "agent_id": None,
                "call_id": None,
                "tool_name": seen.gate,
                "input": dict(args),
                "output": output,
            }
