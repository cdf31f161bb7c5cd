"""The scripted crystal: a list of responses, or a function of the context, for tests, demos and property tests.

Entities get the responses of a list in the order in which the entities were made (`bind`), not in the order in which
their tasks run: response *i* is reserved for the *i*-th of the children that share it (COMP-3, reading 11). A function
has no memory of its own, so it may be shared by any number of entities (CRYSTAL-1).

A script is checked when it is made. Breaches of the contract (no content, two calls with one id) are not refused: some
scripts exist to test them.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import count
from typing import Any, Final, NamedTuple

import anyio

from cantrip_actors.crystal.signature import is_async
from cantrip_actors.terms.arguments import check, check_kind, check_whole, is_finite, is_list, is_text, is_whole
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, ProviderError, suggest_nearest
from cantrip_actors.terms.messages import (
    NO_USAGE,
    Invocation,
    Message,
    Response,
    ToolChoice,
    ToolDefinition,
    Usage,
    parse_tool_choice,
)

ScriptedAnswer = Response | Mapping[str, Any] | str
Policy = Callable[[Invocation], ScriptedAnswer] | Callable[[Invocation], Awaitable[ScriptedAnswer]]
"""A function of the context that returns a response in one of the possible shapes."""

SHAPES: Final = frozenset(
    ("content", "tool_calls", "code", "error", "usage", "delay", "thinking", "blocks", "metadata")
)
MOST_INVOCATIONS: Final = 10_000
"""How many queries a scripted crystal records, the newest."""

_ERROR: Final = frozenset(("status", "message", "retry_after"))


class _ScriptedStep(NamedTuple):
    """One response of a script: after `delay` seconds, an answer or a failure of the provider."""

    response: Response | None
    error: tuple[str, int | None, float | None] | None = None
    delay: float = 0.0

    def play(self) -> Response:
        if self.error is not None:
            message, status, retry_after = self.error
            raise ProviderError(message, status=status, retry_after=retry_after)
        assert self.response is not None, "a step has an error or a response"
        return self.response


class Scripted:
    """A crystal with prepared answers. Make one with `scripted`.

    `invocations` holds what each query received, in order; crystals bound to entities share it. `name` is its name in
    the loom, `context_window` its size in tokens, None for no limit.
    """

    def __init__(
        self,
        steps: Sequence[_ScriptedStep] | None,
        policy: Policy | None,
        usage: Usage,
        name: str,
        context_window: int | None,
        record: bool,
    ) -> None:
        self.name = name
        self.context_window = context_window
        self.invocations: list[Invocation] = []
        self._steps = steps
        self._numbers = count()
        """The indexes of the unused responses; crystals bound to entities share it."""
        self._policy = policy
        self._usage = usage
        self._record = record
        self._reserved: int | None = None
        self._waits = is_async(policy) if steps is None else any(step.delay for step in steps)

    @property
    def respond(self) -> Callable[[Invocation], ScriptedAnswer] | None:
        """A function that answers an invocation at once, without a task; None if the script waits (an async function, a
        `delay`).
        """
        return None if self._waits else self._respond

    def bind(self) -> Scripted:
        """Return this crystal for one entity, whose first query gets the next response of the list.

        Call it once for each entity, in order. A function needs no such order.
        """
        if self._steps is None:
            return self
        bound: Scripted = copy(self)
        bound._reserved = next(self._numbers)
        return bound

    async def invoke(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        tool_choice: ToolChoice | None = None,
    ) -> Response:
        """Return the next response (CRYSTAL-1: it depends only on the messages, or on the list).

        Raises ProviderError if the script says so, CrystalError after the last response.
        """
        invocation = Invocation(messages, tools, parse_tool_choice(tool_choice))
        if self.respond is not None:
            return Response.of(self.respond(invocation))
        if self._record:
            self._note(invocation)
        if self._steps is not None:
            step = self._take_step(self._steps)
        else:
            assert self._policy is not None, "a scripted crystal has a list or a function"
            answer: Any = self._policy(invocation)
            step = self._read(await answer if inspect.isawaitable(answer) else answer)
        if step.delay:
            await anyio.sleep(step.delay)
        return Response.of(self._add_usage(step.play()))

    def _note(self, invocation: Invocation) -> None:
        self.invocations.append(invocation)
        if len(self.invocations) > MOST_INVOCATIONS:  # each holds the context of its entity
            del self.invocations[0]

    def _respond(self, invocation: Invocation) -> Any:
        if self._record:
            self._note(invocation)
        if self._steps is not None:
            return self._add_usage(self._take_step(self._steps).play())
        assert self._policy is not None, "a scripted crystal has a list or a function"
        answer = self._policy(invocation)
        if self._usage is NO_USAGE and not _is_step(answer):
            return answer  # `ask` checks it, once
        step = self._read(answer)
        if step.delay:
            raise CrystalError("a scripted function that answers with a delay has to be an async def")
        return self._add_usage(step.play())

    def _take_step(self, steps: Sequence[_ScriptedStep]) -> _ScriptedStep:
        index, self._reserved = self._reserved, None
        if index is None:
            index = next(self._numbers)
        if index >= len(steps):
            raise CrystalError(
                f"scripted crystal has no response left: it was given {len(steps)} and is asked for number "
                f"{index + 1}; add a response, or script a function of the context"
            )
        return steps[index]

    @staticmethod
    def _read(answer: Any) -> _ScriptedStep:
        """Return the response of a function: in a shape of the list, or another value, which `ask` checks."""
        if isinstance(answer, Response):
            return _ScriptedStep(answer)
        if _is_step(answer):
            try:
                return _parse_step(answer, "of the function")
            except InvalidCantrip as error:
                raise CrystalError(str(error)) from error
        return _ScriptedStep(Response.of(answer))

    def _add_usage(self, response: Response) -> Response:
        if self._usage is NO_USAGE or response.usage is not NO_USAGE:
            return response
        return replace(response, usage=self._usage)

    def __repr__(self) -> str:
        what = "a function" if self._steps is None else f"{len(self._steps)} responses"
        return f"<{self.name}: {what}, {len(self.invocations)} invocations>"


def scripted(
    responses: Iterable[ScriptedAnswer] | Policy,
    *,
    usage: Usage | Mapping[str, Any] | None = None,
    name: str = "scripted",
    context_window: int | None = None,
    record: bool = True,
) -> Scripted:
    """Return a crystal that answers with `responses`, in order, or with the results of a function of the context.

    A response is `{"content": …}`, `{"tool_calls": [{"gate": …, "args": {…}, "id"?}]}`, `{"code": …}` or
    `{"error": {"status": 429, "message": …}}`, each with optional `usage` (else the one given here) and `delay` in
    seconds; or a Response, or bare text. The function gets an `Invocation`, and may be async. With `record=False` no
    `invocations` are kept, else the newest 10,000.

    Raises InvalidCantrip for a malformed response, with its index and its fault.
    """
    try:
        default = Usage.of(usage)
    except CrystalError as error:
        raise InvalidCantrip(f"scripted crystal: {error}") from error
    check(is_text(name), "scripted crystal: name", "a text", name, InvalidCantrip)
    check_kind("scripted crystal: record", record, bool, "True or False", InvalidCantrip)
    check_whole("scripted crystal: context_window", context_window, 1, error=InvalidCantrip, or_none=True)
    if callable(responses):
        return Scripted(None, responses, default, name, context_window, record)
    expected = "a list of responses or a function of the context"
    check(is_list(responses), "scripted crystal", expected, responses, InvalidCantrip)
    steps = [_parse_step(response, str(index)) for index, response in enumerate(responses)]
    return Scripted(steps, None, default, name, context_window, record)


def _is_step(answer: Any) -> bool:
    """Return whether a function returned one of the shapes that only a script has: an error, or a delayed answer."""
    return isinstance(answer, (dict, Mapping)) and ("error" in answer or "delay" in answer)


def _parse_step(step: Any, which: str) -> _ScriptedStep:
    if isinstance(step, Response):
        return _ScriptedStep(step)
    if isinstance(step, str):
        return _ScriptedStep(Response(content=step))
    expected = "a mapping such as {'content': …}"
    check(isinstance(step, Mapping), f"scripted response {which}", expected, step, InvalidCantrip)
    for field in step:
        if field not in SHAPES:
            raise _make_error(which, f'unknown field "{field}": {suggest_nearest(str(field), SHAPES)}')
    delay = _parse_seconds(step.get("delay"), which, "delay") or 0.0
    if step.get("error") is not None:
        return _ScriptedStep(None, _parse_failure(step["error"], which), delay)
    response = {name: value for name, value in step.items() if name not in ("error", "delay")}
    try:
        return _ScriptedStep(Response.from_fields(response), None, delay)
    except CrystalError as error:
        raise _make_error(which, str(error).removeprefix("crystal ")) from error


def _parse_failure(failure: Any, which: str) -> tuple[str, int | None, float | None]:
    where = f"scripted response {which}: error"
    check(isinstance(failure, Mapping), where, "{'status': 429, 'message': …}", failure, InvalidCantrip)
    for field in failure:
        if field not in _ERROR:
            raise _make_error(which, f'error: unknown field "{field}": {suggest_nearest(str(field), _ERROR)}')
    status = failure.get("status")
    fits = status is None or is_whole(status, 100, 599)
    check(fits, f"{where}: status", "an HTTP status, or none for no answer at all", status, InvalidCantrip)
    message = failure.get("message")
    text = str(message) if message is not None else "scripted failure"
    return text, status, _parse_seconds(failure.get("retry_after"), which, "error: retry_after")


def _parse_seconds(seconds: Any, which: str, what: str) -> float | None:
    if seconds is None:
        return None
    check(is_finite(seconds, 0), f"scripted response {which}: {what}", "seconds >= 0", seconds, InvalidCantrip)
    return float(seconds)


def _make_error(which: str, problem: str) -> InvalidCantrip:
    return InvalidCantrip(f"scripted response {which}: {problem}")
