"""Small cantrips with scripted crystals, which the tests of the runtime cast."""

from cantrip_actors import Cantrip, Circle, scripted
from cantrip_actors.wards import max_turns


def done(answer: object) -> dict[str, object]:
    return {"tool_calls": [{"gate": "done", "args": {"answer": answer}}]}


def say(name: str, **args: object) -> dict[str, object]:
    return {"tool_calls": [{"gate": name, "args": args}]}


async def forever(_: object) -> dict[str, object]:
    """A policy that gives the same answer once a second."""
    return {**say("echo", text="x"), "delay": 1.0}


def cantrip(
    responses: object, *gates: object, wards: tuple[object, ...] = (max_turns(10),), **parts: object
) -> Cantrip:
    crystal = scripted(responses) if not hasattr(responses, "invoke") else responses
    return Cantrip(crystal, circle=Circle(["done", "echo", *gates], [*wards]), **parts)
