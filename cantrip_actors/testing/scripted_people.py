"""Scripted people: they reply to utterances of entities for a person."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType

import anyio
import anyio.abc

from cantrip_actors.runtime.face.runtime import Runtime
from cantrip_actors.runtime.people.request import Request
from cantrip_actors.terms.errors import AlreadyDecided
from cantrip_actors.terms.file import File


@dataclass(frozen=True)
class Declined:
    """In place of a reply: the person does not reply, and `note` says why."""

    note: str = ""


ScriptedReply = str | File | Sequence[str | File] | Declined
ReplyFunction = Callable[[Request], ScriptedReply | None]
ReplyScript = Iterable[ScriptedReply] | ReplyFunction


def people(runtime: Runtime, **scripts: ReplyScript) -> AbstractAsyncContextManager[list[Request]]:
    """Have people reply to the utterances and questions of all entities, for an `async with` block.

        async with people(runtime, anna=["Anna.", "Blue."]) as requests:
            episode = await runtime.cast(interview, "Find out who they are.")
        assert [request.text for request in requests] == ["What is your name?", "Which colour do you like?"]

    Each person has a script: a list of replies, or a function of the request, which returns the reply, or None to leave
    the request open. A reply is a text, or a list of texts, images and files, or `Declined(note)`. An utterance that
    addresses a person is for that person, and any other for the first one who has a reply. A request for which no
    person has a reply stays open. The block gets the list of the requests, which grows as they come.
    """
    return _ScriptedPeople(runtime, {name: _make_function(script) for name, script in scripts.items()})


class _ScriptedPeople:
    """Runs the task that replies, while a block runs; an error of the block leaves it as itself, not in a group."""

    def __init__(self, runtime: Runtime, functions: Mapping[str, ReplyFunction]) -> None:
        self._runtime = runtime
        self._functions = functions
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> list[Request]:
        seen: list[Request] = []
        await self._tasks.__aenter__()
        await self._tasks.start(_reply_to_all, self._runtime, self._functions, seen)
        return seen

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        if isinstance(error, Exception):
            await self._tasks.__aexit__(None, None, None)
            return False
        return await self._tasks.__aexit__(kind, error, trace)


async def _reply_to_all(
    runtime: Runtime,
    functions: Mapping[str, ReplyFunction],
    seen: list[Request],
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    async with runtime.requests(follow=True) as requests:
        task_status.started()
        async for request in requests:
            if request.kind == "question":
                seen.append(request)
                await _reply(runtime, request, functions)


async def _reply(runtime: Runtime, request: Request, functions: Mapping[str, ReplyFunction]) -> None:
    for name, function in functions.items():
        if request.to not in (None, name):
            continue
        reply = function(request)
        if reply is None:
            continue
        decide = partial(runtime.decide, request.id, by=name)
        with suppress(AlreadyDecided):
            await (decide("deny", note=reply.note) if isinstance(reply, Declined) else decide(answer=reply))
        return


def _make_function(script: ReplyScript) -> ReplyFunction:
    if callable(script):
        return script
    replies = iter([script] if isinstance(script, str) else script)
    return lambda _: next(replies, None)
