"""What the tests of running dispatches cast: workers with scripted crystals, and what they say."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cantrip_actors import Cantrip, Circle, Turn, scripted
from cantrip_actors.dispatch import Dispatcher, Record
from cantrip_actors.wards import max_turns


def say(name: str, **args: object) -> dict[str, Any]:
    return {"tool_calls": [{"gate": name, "args": args}]}


def progress(text: str = "did it", kind: str = "milestone", **more: object) -> dict[str, Any]:
    return say("progress", kind=kind, text=text, **more)


def proof(item: int = 1) -> dict[str, Any]:
    return progress(f"ran the tests of {item}: 12 passed", "verification", item=item)


def complete(result: str = "all is done") -> dict[str, Any]:
    return say("set_status", status="completed", result=result)


def block(blocker: str = "the key is missing") -> dict[str, Any]:
    return say("set_status", status="blocked", blocker=blocker)


DONE = say("done", answer="ok")

FINISH = (progress(), proof(1), proof(2), complete(), DONE)
"""The shortest way to a completed dispatch with two acceptance criteria."""


def in_order(*responses: dict[str, Any]) -> Any:
    """A policy that derives the next utterance from the context, so that no crash loses a line."""

    def policy(context: Any) -> dict[str, Any]:
        return responses[sum(message.role == "assistant" for message in context)]

    return policy


def worker(responses: Any, *gates: Any, wards: Sequence[Any] = (), **parts: Any) -> Cantrip:
    crystal = responses if hasattr(responses, "invoke") else scripted(responses)
    circle = Circle(["done", "echo", *gates], [*wards] or [max_turns(40)], parts.pop("medium", "tools"))
    return Cantrip(crystal, circle=circle, **parts)


def seen(turns: Sequence[Turn]) -> list[tuple[str, bool, Any]]:
    """Every observation: gate, whether it is an error, result."""
    return [(one.gate, one.is_error, one.result) for turn in turns for one in turn.gate_calls]


def errors(turns: Sequence[Turn]) -> list[str]:
    return [str(result) for _, is_error, result in seen(turns) if is_error]


def kinds(record: Record) -> list[str]:
    """The log in short: kinds of entries, of a status which."""
    return [f"{entry.kind} {entry.event.status}" if entry.kind == "status" else entry.kind for entry in record.entries]


def lines(dispatcher: Dispatcher, dispatch_id: str) -> bytes:
    return dispatcher.log.path(dispatch_id).read_bytes()


def folder(tmp_path: Path) -> Path:
    return tmp_path / "dispatches"
