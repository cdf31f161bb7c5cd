"""The registry of tools: the one way to a tool, and the tools as gates.

A tool is a function of one typed argument. `call` checks the type and runs it, once. A gate's body is `call`, so that
everything that guards gates guards tools. A name registers once: a tool cannot change during a run.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter

from cantrip_actors import Gate
from cantrip_actors.terms.arguments import check

RESERVED: Final = frozenset({"done", "call_agent", "call_agent_batch", "call_entity", "call_entity_batch"})
"""The gates that the runtime provides itself."""

RAISED: Final[ContextVar[list[Exception] | None]] = ContextVar("cantrip_actors.agentic.raised", default=None)
"""The exceptions of the tools of the present run, for its caller; None outside of one."""


class UnknownTool(RuntimeError):
    """A call of a tool that is not registered."""


class ToolFailed(RuntimeError):
    """A tool gave no result. If it ran in this process, the run raises the tool's own exception instead."""


class _Tool(NamedTuple):
    description: str
    function: Callable[[Any], Any]
    arg_type: type[BaseModel]
    gate: Gate
    """The tool as a gate; made once, because a schema is slow to check."""


class ToolRegistry:
    """The tools of a domain, by name."""

    def __init__(self) -> None:
        self._tools: dict[str, _Tool] = {}

    def register(
        self,
        name: str,
        description: str,
        func: Callable[[Any], Any],
        arg_type: type[BaseModel],
        *,
        blocking: bool | None = None,
        idempotent: bool = False,
    ) -> None:
        """Add a tool. `func` takes one `arg_type` and may be async; it runs once for each call.

        As a gate, a plain function gets a worker thread unless `blocking` is False; an `idempotent` one may run again
        after a crash.

        Raises ValueError for a name that is taken, reserved, or not a gate's name, TypeError if `func` is not
        callable or `arg_type` is not a pydantic model.
        """
        if name in self._tools:
            raise ValueError(f'tool "{name}" is registered already: a name registers once')
        if name in RESERVED:
            raise ValueError(f'tool "{name}": this name is the runtime\'s own: {", ".join(sorted(RESERVED))}')
        check(callable(func), f'tool "{name}"', "a function of its arguments", func, TypeError)
        fits = isinstance(arg_type, type) and issubclass(arg_type, BaseModel)
        check(fits, f'tool "{name}"', "a pydantic model as the type of its arguments", arg_type, TypeError)
        waits = not inspect.iscoroutinefunction(func) if blocking is None else blocking
        schema = arg_type.model_json_schema()
        schema.pop("title", None)
        schema.pop("description", None)
        gate = Gate.of(
            func, name=name, parameters=schema, description=description, idempotent=idempotent, blocking=waits
        )
        self._tools[name] = _Tool(description, func, arg_type, replace(gate, model=arg_type, schema=None))

    def get(self, name: str) -> tuple[str, Callable[[Any], Any], type[BaseModel]] | None:
        """Return description, function and type of arguments of a tool, None for an unknown one."""
        tool = self._tools.get(name)
        return None if tool is None else (tool.description, tool.function, tool.arg_type)

    def call(self, name: str, args: Any) -> Any:
        """Run a tool, once, and return its result (a coroutine if it is async).

        Raises UnknownTool (a RuntimeError), TypeError for `args` of another type, and the exceptions of the tool.
        """
        self.check(name, args)
        return self._tools[name].function(args)

    def check(self, name: str, args: Any) -> None:
        """Raise UnknownTool for a tool that is not registered, TypeError for `args` of another type than the tool's."""
        tool = self._tools.get(name)
        if tool is None:
            raise UnknownTool(f"Unknown tool: {name} (there are: {', '.join(self._tools) or 'none'})")
        if not isinstance(args, tool.arg_type):
            raise TypeError(f"Args for '{name}' must be {tool.arg_type.__name__}, got {type(args).__name__}")

    def gates(self) -> list[Gate]:
        """Return the tools as gates, for the circle of a controller, or of a parent that starts one by `call_agent`.

        A gate returns the result as JSON. A text, and a result with whole numbers past 64 bits, is returned as its JSON
        text, which keeps it exactly.
        """
        return [replace(tool.gate, function=self._make_answering(name, tool)) for name, tool in self._tools.items()]

    def _make_answering(self, name: str, tool: _Tool) -> Callable[..., Any]:
        def answer(**fields: Any) -> Any:
            with _note_exception():
                result = self.call(name, tool.arg_type.model_construct(**fields))  # the gate has checked them
                return _await_result(result) if inspect.isawaitable(result) else _convert_exactly(result)

        return answer

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def __repr__(self) -> str:
        return f"<ToolRegistry of {', '.join(self._tools) or 'no tools'}>"


@contextmanager
def _note_exception() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raised = RAISED.get()
        if raised is not None:
            raised.append(error)
        raise


async def _await_result(result: Any) -> Any:
    with _note_exception():
        return _convert_exactly(await result)


_ANY: Final = TypeAdapter[Any](Any, config=ConfigDict(ser_json_inf_nan="constants"))


def as_json(value: Any, *, by_alias: bool | None = None, round_trip: bool = False) -> Any:
    """Return the value as plain JSON data; numbers stay exact. The options are pydantic's."""
    return _ANY.dump_python(value, mode="json", by_alias=by_alias, round_trip=round_trip)


def as_json_text(value: Any) -> str:
    """Return the JSON of a value, from which a model can be made again: without its computed fields."""
    return json.dumps(as_json(value, round_trip=True), ensure_ascii=False, separators=(",", ":"))


def _convert_exactly(result: Any) -> Any:
    """Return the result as a JSON value, or as JSON text if it is a text or a gate's answer could not keep it."""
    value = as_json(result)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    try:
        is_kept = orjson.loads(orjson.dumps(value)) == value
    except TypeError:  # a whole number past 64 bits
        is_kept = False
    return value if is_kept else json.dumps(value)
