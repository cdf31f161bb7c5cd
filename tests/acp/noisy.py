"""A cantrip whose module and gate print, for agents that are processes of their own."""

import os
import subprocess
import sys
import warnings
from typing import Any

import structlog

from cantrip_actors import Cantrip, Circle, gate, scripted
from cantrip_actors.wards import max_turns
from tests.acp.editors import answer, ask_first, nap, pay

print("a program prints this")  # noqa: T201  # as users' code does


@gate
async def shout() -> str:
    """Print."""
    print("a gate prints this")  # noqa: T201
    os.write(1, b"and this\n")
    sys.stdout.flush()
    structlog.get_logger().debug("a gate logs this")
    warnings.warn("a gate warns of this", stacklevel=1)
    subprocess.run(["echo", "a program of a gate prints this"], check=True)  # noqa: ASYNC221  # a short one
    return "shouted"


def answers(context: Any) -> dict[str, Any]:
    last = context[-1]
    said = [one for one in context if one.role == "user" and not str(one.content).startswith("context:")]
    if last.role != "tool" and said[-1].content == "shout":
        return {"tool_calls": [{"gate": "shout", "args": {}}]}
    if said[-1].content == "secret":
        return {"content": os.environ["TEAM_KEY"]}
    return answer(context)


noisy = Cantrip(scripted(answers), circle=Circle(["done", nap, shout, ask_first(pay)], [max_turns(9)]), name="noisy")
