"""A cantrip whose module and gate print, for servers that are processes of their own."""

import os
import sys
from pathlib import Path
from typing import Any

from cantrip_actors import Cantrip, Circle, ask_first, gate, scripted
from cantrip_actors.wards import max_turns
from tests.mcp_server.clients import answer, call, nap, pay

print("a program prints this")  # noqa: T201  # as users' code does

if "PID_FILE" in os.environ:
    Path(os.environ["PID_FILE"]).write_text(str(os.getpid()))


@gate
async def shout() -> str:
    """Print."""
    print("a gate prints this")  # noqa: T201
    os.write(1, b"and this\n")
    sys.stdout.flush()
    return "shouted"


def answers(context: Any) -> dict[str, Any]:
    return call("shout") if context[-1].content == "shout" else answer(context)


noisy = Cantrip(scripted(answers), circle=Circle(["done", nap, shout, ask_first(pay)], [max_turns(9)]), name="noisy")
