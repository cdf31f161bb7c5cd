"""What the entity is told of an exception that left its Python program, and which exceptions are limits.

The interpreter ends a program that is out of time or memory with an exception that the program cannot catch, and gives
no promise about its variables after that. So an exception of those types is a limit, whoever raised it: one that the
program raised itself is undone too, which is harmless, while a heap of which nobody knows the state would not be.
"""

from __future__ import annotations

from typing import Final

from pydantic_monty import Frame, MontyRuntimeError, MontySyntaxError

from cantrip_actors.circle.medium import Limit
from cantrip_actors.model.messages import encodable

__all__ = ["is_of_requests", "limit_of", "told"]

LONGEST: Final = 4_000
"""Characters of a message; a program can raise megabytes."""

FRAMES: Final = 5
"""Lines of the program that are named: where it began and where it ended count most."""

_LIMITS: Final[dict[str, Limit]] = {"TimeoutError": "seconds", "MemoryError": "memory", "RecursionError": "recursion"}
_FULL: Final = "SyntaxError: session defines too many"
"""Of functions, which an `eval` in a loop makes. A sandbox that is full could never define another one."""

_REQUESTS: Final = "RuntimeError: suspension limit"
_PARSER: Final = "The monty syntax parser does not yet support"
_CALLBACK: Final = "cannot suspend in this synchronous context"
_INTERNAL: Final = "Internal error in monty"


def limit_of(error: MontyRuntimeError | MontySyntaxError) -> Limit | None:
    """The limit that an exception stands for, if it does."""
    text = _line(error)
    if text.startswith(_FULL):
        return "memory"
    return _LIMITS.get(text.split(":", 1)[0])


def is_of_requests(error: MontyRuntimeError | MontySyntaxError) -> bool:
    """Whether the program was ended because it asked the host too often."""
    return _line(error).startswith(_REQUESTS)


def told(error: MontyRuntimeError | MontySyntaxError) -> str:
    """The exception's type and message, and the lines of the entity's own code that it came through."""
    frames = error.traceback()
    here = frames[0].filename if frames else ""
    if len(frames) > FRAMES:
        frames = [frames[0], *frames[1 - FRAMES :]]
    return "\n".join([_worded(_line(error)), *dict.fromkeys(f"  {_place(frame, here)}" for frame in frames)])


def _line(error: MontyRuntimeError | MontySyntaxError) -> str:
    text = encodable(error.display("type-msg"))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text) - LONGEST} more characters)"


def _worded(line: str) -> str:
    if _PARSER in line:
        return line.replace(_PARSER, "this Python does not have")
    if _CALLBACK in line:
        return (
            "NotImplementedError: a gate cannot be called from a callback such as sorted(key=…) or map(…): use a loop"
        )
    if _INTERNAL in line:
        return f"RuntimeError: this Python cannot do that: {line.rsplit(_INTERNAL, 1)[1].lstrip(': ')}"
    return line


def _place(frame: Frame, here: str) -> str:
    earlier = (
        "" if frame.filename == here else " of an earlier program" if frame.filename.startswith("<py") else " of eval"
    )
    function = f", in {frame.function_name}" if frame.function_name not in (None, "<module>") else ""
    source = (frame.source_line or "").strip()
    shown = f": {source if len(source) <= 120 else source[:119] + '…'}" if source else ""
    return encodable(f"line {frame.line}{earlier}{function}{shown}")
