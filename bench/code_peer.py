"""smolagents' job of `python -m bench code`, for an environment that has it: `code_peer.py turn smolagents memory 220`.

A CodeAgent with a tool and a model that answers from a script. Nothing of this project is imported.
"""

from __future__ import annotations

import sys
from typing import Any

from smolagents import ChatMessage, CodeAgent, LogLevel, Model, Tool  # type: ignore[import-not-found]


class Look(Tool):  # type: ignore[misc]  # it has no types
    """The same gate as this project's."""

    name = "look"
    description = "Look for something."
    inputs = {"what": {"type": "string", "description": "what to look for"}}  # noqa: RUF012  # its own form
    output_type = "string"

    def forward(self, what: str) -> str:
        """Find it."""
        return "what was found " + what


class Script(Model):  # type: ignore[misc]
    """Answers the same program `count` times, and then that it is done."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._left = count

    def generate(self, messages: Any, **_: Any) -> Any:  # noqa: ARG002  # its form
        """Return the next message."""
        self._left -= 1
        program = "y = look('b')\nz = len(y)\nprint(z)" if self._left >= 0 else "final_answer(z)"
        return ChatMessage(role="assistant", content=f"Thought: go on.\n<code>\n{program}\n</code>")


def main(count: int) -> None:
    """Run an agent of this many steps."""
    agent = CodeAgent(tools=[Look()], model=Script(count), max_steps=count + 1, verbosity_level=LogLevel.OFF)
    assert agent.run("go") == len("what was found b")


if __name__ == "__main__":
    main(int(sys.argv[-1]))
