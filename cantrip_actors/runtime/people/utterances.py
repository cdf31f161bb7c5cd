"""Utterances that wait for the reply of a person, in circles with medium="person": for doors that hold a conversation.

Such a door shows an utterance as the answer to the message before, and the next message is the reply. It is a request
like any other, so that another door may reply first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from cantrip_actors.machine.project import read_last_reply
from cantrip_actors.runtime.loom.outage_log import repeat_through_outages
from cantrip_actors.stream.events import EntityEvent, RequestedEvent
from cantrip_actors.terms.errors import AlreadyDecided, CantripError, RuntimeClosed

if TYPE_CHECKING:
    from cantrip_actors.runtime.face.entity import Entity
    from cantrip_actors.runtime.face.runtime import Runtime
    from cantrip_actors.runtime.face.work import Work
    from cantrip_actors.runtime.people.request import Request


LOOK: Final = 0.5
"""Seconds between two looks for an utterance of an entity that another process runs."""

T = TypeVar("T")


def talks(runtime: Runtime, entity_id: str) -> bool:
    """Return whether texts of an entity are for a person. Reads the loom."""
    return runtime.loom.header_in_force(entity_id).circle.get("medium") == "person"


def find_utterance(runtime: Runtime, entity_id: str, *, with_children: bool = True) -> Request | None:
    """Return the oldest utterance of an entity, or of those below it, that waits for a reply. Reads the loom.

    Raises LoomError.
    """
    if not talks(runtime, entity_id):  # then no child does
        return None
    asking = runtime.loom.subtree(entity_id) if with_children else [entity_id]
    waiting = [request for below in asking for request in runtime.requests(entity=below)]
    return min((one for one in waiting if one.is_utterance), key=lambda request: request.asked_at, default=None)


async def reply(
    runtime: Runtime,
    entity_id: str,
    message: Any,
    *,
    by: str,
    door: str = "",
    key: str | None = None,
    memo: Any = None,
    with_children: bool = True,
) -> str | None:
    """Give a message to an entity as the reply to the utterance that waits for one; return the id of the request.

    Return None if none waits: then the message is an intent. A message is a text, or a list of texts, images and files.
    With a `key` it may be sent again: that replies to nothing else. `memo` is as for `decide`.
    Raises InvalidDecision, LoomError.
    """
    before = None if key is None else await runtime.read(partial(find_last_reply, runtime, entity_id))
    if before is not None:
        try:
            await runtime.decide(before, answer=message, by=by, door=door, key=key, memo=memo)
        except AlreadyDecided:  # with another key: this message is a new one
            pass
        else:
            return before
    find = partial(find_utterance, runtime, entity_id, with_children=with_children)
    while (request := await runtime.read(find)) is not None:
        try:
            await runtime.decide(request.id, answer=message, by=by, door=door, key=key, memo=memo)
        except AlreadyDecided:  # another door was faster; it may wait for the next reply by now
            continue
        return request.id
    return None


async def rest(
    runtime: Runtime, entity_id: str, episode: Callable[[], Awaitable[T]], *, with_children: bool = True
) -> T | Request:
    """Return what `episode` returns; or first an utterance that waits for a reply, which outages only delay.

    Raises the error of the episode, and LoomError.
    """
    if not await _read(runtime, partial(talks, runtime, entity_id)):
        return await episode()
    find = partial(find_utterance, runtime, entity_id, with_children=with_children)
    return await race(episode, partial(_wait_for_utterance, runtime, find))


async def _read(runtime: Runtime, read: Callable[[], T]) -> T:
    return await repeat_through_outages(partial(runtime.read, read))


async def race(*works: Callable[[], Awaitable[T]]) -> T:
    """Return the result of the first of some works to end, or raise its error; the others are cancelled."""
    results: list[T] = []
    errors: list[CantripError] = []

    async def run(work: Callable[[], Awaitable[T]]) -> None:
        try:
            results.append(await work())
        except CantripError as error:
            errors.append(error)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for work in works:
            tasks.start_soon(run, work)
    if not results:
        raise errors[0]
    return results[0]


async def _wait_for_utterance(runtime: Runtime, find: Callable[[], Request | None]) -> Request:
    with suppress(RuntimeClosed, StopAsyncIteration), closing(runtime.events(_is_utterance)) as news:
        while True:
            request = await _read(runtime, find)
            if request is not None:
                return request
            with anyio.move_on_after(LOOK):
                await anext(news)
    await anyio.sleep_forever()
    raise AssertionError("the error of the episode says what to do")


def _is_utterance(event: EntityEvent) -> bool:
    return isinstance(event, RequestedEvent) and event.is_utterance


def find_newest_work(runtime: Runtime, entity: Entity) -> Work:
    """Return the work on an entity's newest intent. Reads the loom."""
    key = runtime.loom.newest_round(entity.id).key if runtime.loom.header(entity.id).lasting else None
    return runtime.receipt(entity, key) if key else entity.work


def find_last_reply(runtime: Runtime, entity_id: str) -> str | None:
    """Return the id of the last request in an entity's episode that was replied to. Reads the loom."""
    return read_last_reply(runtime.loom.records(entity_id))
