"""Rounds with a client that carries out calls: an entity waits for results, and continues with those of a request.

The client's next request has the results, with the ids that name the entity. They are delivered together, those of the
later calls of an answer with that of its first one; then the entity works on until its episode ends, or it waits for
the client again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

from cantrip_actors import (
    Cantrip,
    Entity,
    EntityEnded,
    File,
    Gate,
    Held,
    Request,
    Usage,
    Work,
)
from cantrip_actors.http.calls import HttpCall
from cantrip_actors.http.episode_tools import (
    ToolCallItem,
    list_calls,
    make_client_id,
    split_client_id,
)
from cantrip_actors.http.problems import Problem
from cantrip_actors.runtime.people.utterances import race, talks
from cantrip_actors.terms.additions import Additions
from cantrip_actors.terms.extended_cantrip import extend, find_additions
from cantrip_actors.terms.messages import ToolCall, as_text

V = TypeVar("V")


class ClientPause(NamedTuple):
    """Where an episode waits: for `calls` that its client carries out, for the client's reply to a `text`, or for a
    person to decide `requests`.
    """

    calls: tuple[ToolCallItem, ...] = ()
    text: str | None = None
    requests: Sequence[Request] = ()


class ClientResult(NamedTuple):
    """The result of a call that a client has carried out: a text, or a list of texts, images and files.

    An error is a text: it has the labels of its images and files.
    """

    content: Any
    is_error: bool = False

    @property
    def text(self) -> str:
        """The text of the result, as the loom has it."""
        parts = [self.content] if isinstance(self.content, str) else self.content
        if self.is_error:
            return "\n".join(part.label if isinstance(part, File) else part for part in parts) or "failed"
        return self.content if isinstance(self.content, str) else as_text([p for p in parts if isinstance(p, str)])

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `Runtime.deliver`; an error is a text."""
        return {"error": self.text} if self.is_error else {"result": self.content}


Results = Mapping[str, ClientResult]
"""The results of a client's request by the ids of their calls."""


async def rest(call: HttpCall, work: Work, tools: Mapping[str, Gate], *, can_reply: bool = False) -> ClientPause | None:
    """Wait until an episode has ended, and return None; or until it waits for its client, or for a person. With
    `can_reply` the client replies to its utterances.

    Raises the error that ended the episode.
    """

    async def end() -> None:
        await work.result()

    return await race(end, partial(_find_pause, call, work, tools, can_reply=can_reply))


async def _find_pause(call: HttpCall, work: Work, tools: Mapping[str, Gate], *, can_reply: bool) -> ClientPause:
    """Wait until an entity waits, and return its calls, the utterance that waits for a reply, or the requests to
    people.
    """
    with call.service.requests.follow(work.entity) as news:
        while True:
            news.reset()
            waiting, requests = await call.read(partial(_look, call, work, tools))
            calls = await call.read(partial(_list_calls, call, work.entity_id, waiting, tools)) if waiting else ()
            pause = _choose_pause(calls, requests, can_reply=can_reply)
            if pause is not None:
                return pause
            await news.wait()


async def deliver(call: HttpCall, results: Results, memo: Any) -> None:
    """Deliver the results for which entities have come to wait, with a memo; those of later calls come with the first
    one.

    Raises AlreadyDecided for a call that has another result.
    """
    loom, who, arguments = call.runtime.loom, call.token, {id: result.arguments for id, result in results.items()}

    def look() -> Iterator[tuple[str, str, dict[str, Any]]]:
        for id in results:
            entity_id, call_id = split_client_id(id) or ("", "")
            client_call = loom.find_call(entity_id, call_id)
            if client_call is None or client_call.request_id is None or client_call.result is not None:
                continue
            yield id, client_call.request_id, select_later(call, entity_id, call_id, arguments, make_client_id)

    for id, request_id, later in await call.read(lambda: list(look())):
        delivery = {**arguments[id], "later": later, "memo": memo}
        await call.runtime.deliver(request_id, **delivery, by=who.name, door=who.sender, key=id)


def _choose_pause(
    calls: tuple[ToolCallItem, ...], requests: Sequence[Request], *, can_reply: bool
) -> ClientPause | None:
    """Return for what an episode waits first: its client, or a person; None if it waits for neither."""
    if calls:
        return ClientPause(calls)
    utterance = next((request for request in requests if request.is_utterance), None)
    if can_reply and utterance is not None:
        return ClientPause(text=utterance.text)
    return ClientPause(requests=requests) if requests else None


def read_pause(call: HttpCall, work: Work, *, can_reply: bool) -> ClientPause | None:
    """Return where the episode of a work waits now; None if it does not. Reads the loom."""
    if work.state != "working":
        return None
    tools = find_tools(call, work.entity_id)
    calls = _list_calls(call, work.entity_id, _list_waiting(call, work.entity_id, tools), tools)
    return _choose_pause(calls, work.requests(), can_reply=can_reply)


def _look(call: HttpCall, work: Work, tools: Mapping[str, Gate]) -> tuple[list[Request], list[Request]]:
    """Return the calls of tools and the requests to people for which an entity, and those below it, wait.

    While a work waits for the end of another one, the calls are those of another client.
    """
    waiting = _list_waiting(call, work.entity_id, tools) if tools and work.state == "working" else []
    return waiting, work.requests()


def _list_waiting(call: HttpCall, entity_id: str, tools: Mapping[str, Gate]) -> list[Request]:
    """Return the calls and the utterance for which an entity, and those below it, wait for their client."""
    runtime = call.runtime
    below = runtime.loom.subtree(entity_id)
    requests = [request for id in below for request in runtime.requests(entity=id)]
    return [request for request in requests if request.kind == "deferred" and request.gate in tools]


def _list_calls(
    call: HttpCall, root: str, waiting: list[Request], tools: Mapping[str, Gate]
) -> tuple[ToolCallItem, ...]:
    """Return the client's calls for which an entity and those below it wait; only the first if the client wants one
    call at a time.
    """
    calls = tuple(item for request in waiting for item in _list_answer_calls(call, request, tools))
    return calls[:1] if calls and find_client_additions(call, root).one_call else calls


def _list_answer_calls(call: HttpCall, request: Request, tools: Mapping[str, Gate]) -> list[ToolCallItem]:
    """Return the call that waits, and those after it of the same answer of a crystal."""
    first = ToolCall(request.call or "", request.gate, request.args)
    return [*list_calls(request.entity or "", first, _list_utterance_calls(call, request.entity or ""), tools)]


def _list_utterance_calls(call: HttpCall, entity_id: str) -> Sequence[ToolCall]:
    newest = call.runtime.loom.newest_round(entity_id).utterance
    return () if newest is None else newest.tool_calls


def select_later(
    call: HttpCall, entity_id: str, call_id: str, results: Mapping[str, V], name: Callable[[str, str], str]
) -> dict[str, V]:
    """Return those of a client's results that are of later calls of the same answer as the call that waits.

    `name` returns the name that the client has for a call of an entity. Reads the loom.
    """
    calls = [tool_call.id for tool_call in _list_utterance_calls(call, entity_id)]
    later = calls[calls.index(call_id) + 1 :] if call_id in calls else []
    names = {id: name(entity_id, id) for id in later}
    return {id: results[named] for id, named in names.items() if named in results}


def is_at_work(call: HttpCall, entity_id: str) -> bool:
    """Return whether an intent of an entity is under way, so that a further one waits. Reads the loom."""
    return call.runtime.loom.state(entity_id) in ("active", "waiting")


def may_reply(call: HttpCall, entity_id: str, key: str | None) -> bool:
    """Return whether a message with a key may be a reply: its entity talks, and none of its intents has the key."""
    loom = call.runtime.loom
    is_repeated = key is not None and any(intent.key == key for intent in loom.intents(entity_id))
    return not is_repeated and talks(call.runtime, entity_id)


def find_offered(call: HttpCall, entity_id: str) -> Cantrip | None:
    """Return the offered cantrip of an entity's name; None if none is offered by it. Reads the loom."""
    return call.service.cantrips.get(call.runtime.loom.header(entity_id).cantrip_name or "")


def find_client_additions(call: HttpCall, entity_id: str, turn_id: str | None = None) -> Additions:
    """Return the additions of a client to an entity's cantrip, for the newest intent or at a turn. Reads the loom."""
    loom = call.runtime.loom
    header = loom.header_in_force(entity_id) if turn_id is None else loom.header_at(turn_id)
    return find_additions(find_offered(call, entity_id), header.circle, header.call)


def find_tools(call: HttpCall, entity_id: str, turn_id: str | None = None) -> dict[str, Gate]:
    """Return the tools that a client gave an entity, for the newest intent or at a turn: the deferred gates that the
    offered cantrip does not have.
    """
    return {tool.name: tool.make_gate() for tool in find_client_additions(call, entity_id, turn_id).tools}


def check_results(call: HttpCall, results: Results, param: str) -> tuple[Entity, str]:
    """Return the entity that a client's results continue, and the key of its intent.

    Raises Problem 400 for results of other calls, or not of all calls of an utterance, and 409 for a call that has a
    result.
    """
    loom, entities = call.runtime.loom, set()
    for id, result in results.items():
        entity_id, call_id = split_client_id(id) or ("", "")
        is_ours = bool(entity_id) and loom.has(entity_id) and call.sees(entity_id)
        made = loom.find_call(entity_id, call_id) if is_ours else None
        if made is None:
            raise make_unknown_call(param, id)
        if made.result is not None and as_text(made.result.result) != result.text:
            text = f"{param}: the call {id!r} has a result already, or its episode has ended: the first one counts"
            raise Problem(409, "already-decided", text, param=param)
        entities.add(loom.ancestry(entity_id)[-1])
    if len(entities) != 1:
        raise Problem(
            400, "invalid", f"{param}: expected results of one answer, got those of {len(entities)}", param=param
        )
    (root,) = entities
    tools = find_tools(call, root)
    for request in _list_waiting(call, root, tools):
        ids = [item.id for item in _list_calls(call, root, [request], tools)]
        missing = [id for id in ids if id not in results]
        if missing and len(missing) < len(ids):  # a child may have come to wait since
            text = f"{param}: expected a result of each call, got none of {missing[0]!r}"
            raise Problem(400, "invalid", text, param=param)
    key = loom.newest_round(root).key if loom.header(root).lasting else None
    return call.runtime.get_entity(root), key or ""


def make_unknown_call(param: str, id: str) -> Problem:
    """Return the error for the result of a call that neither an entity nor the conversation has."""
    text = f"{param}: no call has the id {id!r}: send the results of the calls of the answer before, as they are"
    return Problem(400, "unknown-call", text, param=param)


def make_round_key(results: Iterable[str]) -> str:
    """Return a key of the results of these calls, which is the same if the client sends them again."""
    return blake2b(" ".join(sorted(results)).encode(), digest_size=8).hexdigest()


def name_steering(round_key: str) -> str:
    """Return the key of the message that a client sends with the results of a round."""
    return f"round {round_key}"


async def load(call: HttpCall, entity: Entity, changed: Cantrip | None) -> None:
    """Have an entity that waits run here, unless another process runs it: with the additions of this request, or, if it
    is not loaded, with those that it has, to the cantrip that is offered now.
    """

    def find_extended() -> Cantrip | None:
        if entity.loaded:
            return None
        offered, additions = find_offered(call, entity.id), find_client_additions(call, entity.id)
        return extend(offered, additions) if offered is not None and additions else None

    cantrip = changed or await call.read(find_extended)
    if cantrip is not None:
        with suppress(Held, EntityEnded):  # the results of a repeated request have come: it works, or has ended
            await call.runtime.resume(entity.id, cantrip=cantrip, by=call.token.sender)


def measure(call: HttpCall, entity_id: str) -> Usage:
    """Return the usage since the client's last results, or since the intent: each answer to a client has its own."""
    return call.runtime.loom.newest_round(entity_id).usage


def read_last_words(call: HttpCall, entity_id: str) -> str | None:
    """Return the text beside the calls of an entity's newest answer."""
    newest = call.runtime.shown_loom.newest_round(entity_id).utterance
    return None if newest is None else newest.content
