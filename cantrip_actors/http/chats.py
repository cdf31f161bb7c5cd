"""Chats of front ends: the Vercel AI SDK's `useChat`, and AG-UI.

A chat is a long-lived entity whose name is the chat's id, so it outlives the page, the connection and the process. The
newest message of the user is its next intent, with the message's id as its key: a repeated request follows the same
episode. A client that hangs up ends its stream and not the episode.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
from starlette.responses import Response

from cantrip_actors import AlreadyDecided, Cantrip, CantripError, Entity, Request, Work
from cantrip_actors.http.ag_ui import AgUiEvents
from cantrip_actors.http.bodies import validate
from cantrip_actors.http.calls import BASE, HttpCall, JsonAnswer
from cantrip_actors.http.client_rounds import is_at_work, load, may_reply, select_later
from cantrip_actors.http.entities import check_path_name, find_cantrip
from cantrip_actors.http.episode_tools import add_tools, check_in_thread, read_tools
from cantrip_actors.http.files import file_of, image_of
from cantrip_actors.http.front_end_models import (
    AgUiApprovalJson,
    AgUiBody,
    AgUiMessageJson,
    AgUiToolJson,
    ChatQuery,
    UiChatBody,
    UiChatJson,
    UiMessageJson,
    UiPartJson,
)
from cantrip_actors.http.front_ends import FrontEndDialect, FrontEndEncoder, StreamPart, name_child_call
from cantrip_actors.http.nested_events import NestedEvent, NestedEvents
from cantrip_actors.http.problems import Problem, problem_of
from cantrip_actors.http.request_messages import LONGEST_NAME
from cantrip_actors.http.sessions import check_scope
from cantrip_actors.http.sse import COMMENT, HEADERS, QUIET, EventStreamResponse
from cantrip_actors.http.table import ApiRoute
from cantrip_actors.http.ui_history import KEY_PREFIX, UiMessage, list_ui_messages
from cantrip_actors.http.ui_messages import UiMessages, make_message_id
from cantrip_actors.loom import KeyUsed
from cantrip_actors.loom.export.exchanges import read_exchanges
from cantrip_actors.records.codec import dump_json
from cantrip_actors.records.instant import format_instant
from cantrip_actors.runtime.people.utterances import find_last_reply, find_newest_work, find_utterance, reply
from cantrip_actors.stream.events import DecidedEvent, RequestedEvent
from cantrip_actors.stream.reading import EventLog
from cantrip_actors.user_code.threads import run_for_client


class ChatDecision(NamedTuple):
    """The decision of a request that came with a chat's request."""

    request_id: str
    arguments: dict[str, Any]
    """Those of `Runtime.decide`; for a deferred call, those of `Runtime.deliver`."""
    is_delivery: bool = False


class ChatIntent(NamedTuple):
    """The newest message of the user."""

    key: str
    said: Any
    context: Mapping[str, Any] | None = None
    """The context that the page sends with it."""


class ChatMessage(NamedTuple):
    """The work that a client's request gave or continues; `decided` are the requests that it decided, for example as
    the reply to an utterance.
    """

    work: Work
    decided: Collection[str] = ()
    is_queued: bool = False
    """Whether it waits for the end of another intent."""


_ANSWERED: Final = ("approval-responded", "output-available", "output-error")
"""The states of a call that was answered on a page."""


# The Vercel AI SDK


async def chat_ui(call: HttpCall) -> Response:
    """Continue a chat of `useChat`: send the user's message, or decide what the entity waits for."""
    body: UiChatBody = call.body
    last = body.messages[-1]
    if last.role == "user":
        message = await _post(call, body.id, _read_ui_intent(last), regenerates=body.trigger == "regenerate-message")
        return _stream_ui(call, message)
    calls = {part.toolCallId for part in last.parts if part.state in _ANSWERED}
    expected = "a message of the user, or the decision of an open request"
    message = await _decide(call, body.id, partial(_read_ui_decisions, parts=last.parts), calls, expected)
    return _stream(call, message, UiMessages(message.work.id))


async def resume_ui(call: HttpCall) -> Response | JsonAnswer:
    """Return the stream of a chat's running episode again, from its beginning or its last reply.

    If none runs, it is the stream of the first message that waits, and 204 without one.
    """
    entity = await _find_begun_chat(call)
    if entity is None:
        return JsonAnswer(status=204)

    def look() -> ChatMessage | None:
        runtime = call.runtime
        if find_utterance(runtime, entity.id, with_children=False) is not None:
            return None
        waiting = runtime.loom.waiting_intents(entity.id)  # read first: one that is taken meanwhile is the newest work
        work = find_newest_work(runtime, entity) if runtime.loom.has_begun(entity.id) else None
        if work is not None and work.state in ("waiting", "working"):
            replied = find_last_reply(runtime, entity.id)
            return ChatMessage(work, () if replied is None else (replied,))
        return ChatMessage(runtime.receipt(entity, waiting[0].key or ""), is_queued=True) if waiting else None

    message = await call.read(look)
    return JsonAnswer(status=204) if message is None else _stream_ui(call, message)


async def list_messages(call: HttpCall) -> JsonAnswer:
    """List the messages of a chat, as `useChat` takes them: those of the newest intents, oldest first.

    The stream of the chat continues them: while an episode runs, it has the answer from its beginning. `waiting` are
    the messages that come after that answer.
    """
    wanted: ChatQuery = call.query
    entity = await _find_begun_chat(call)
    if entity is None:
        return JsonAnswer({"messages": [], "waiting": []})

    def read() -> dict[str, list[UiMessage]]:
        recorded, waiting = read_exchanges(call.runtime.loom, entity.id, wanted.limit)
        if not recorded or recorded[-1].is_over:  # the stream has the answer to the first one that waits
            recorded, waiting = [*recorded, *waiting[:1]], waiting[1:]
        shown = {"messages": recorded, "waiting": waiting}
        return {name: call.redact_for_token(list_ui_messages(entity.id, part)) for name, part in shown.items()}

    return JsonAnswer(await run_for_client(read))


def _stream_ui(call: HttpCall, message: ChatMessage) -> Response:
    """Return the stream of the answer to a message of the user: each reply has an answer with an id of its own."""
    return _stream(call, message, UiMessages(make_message_id(message.work.id, message.decided)))


def _read_ui_intent(message: UiMessageJson) -> ChatIntent:
    """Return a message as an intent. Raises Problem 422 for one without text."""
    texts = [part.text or "" for part in message.parts if part.type == "text"]
    files = [_read_file(part.url, part.mediaType, part.filename) for part in message.parts if part.type == "file"]
    return _make_intent(message.id, texts, files)


def _read_ui_decisions(call: HttpCall, entity_id: str, parts: Sequence[UiPartJson]) -> Iterator[ChatDecision]:
    """Yield the decisions of open requests that the parts of a message have. Reads the loom."""
    results = {
        str(part.toolCallId): {"result": part.output}
        if part.state == "output-available"
        else {"error": part.errorText or "failed"}
        for part in parts
        if part.state in ("output-available", "output-error")
    }
    for call_id, request in _list_requests(call, entity_id):
        part = next((part for part in parts if part.toolCallId is not None and part.toolCallId == call_id), None)
        if part is None:
            continue
        approval = part.approval
        if request.kind == "deferred" and call_id in results:
            yield _make_delivery(call, entity_id, request, results)
        elif request.kind == "question" and part.state == "output-available":
            yield ChatDecision(request.id, {"answer": part.output})
        elif part.state == "approval-responded" and approval is not None and approval.id == request.id:
            decision = "allow" if approval.approved else "deny"
            yield ChatDecision(request.id, {"decision": decision, "note": approval.reason or ""})


# AG-UI


async def run_ag_ui(call: HttpCall) -> Response:
    """Run an agent for a client of AG-UI: send the user's newest message, or answer the interrupts of the last run."""
    body: AgUiBody = call.body
    last = body.messages[-1] if body.messages else None
    if body.resume or (last is not None and last.role == "tool"):
        calls = {message.toolCallId for message in body.messages if message.role == "tool"}
        expected = "the result of a call that waits for it"
        message = await _decide(call, body.threadId, partial(_read_ag_ui_decisions, body=body), calls, expected)
    else:
        newest = next((message for message in reversed(body.messages) if message.role == "user"), None)
        if newest is None:
            raise Problem(422, "invalid", "messages: expected a message of the user")
        intent = _read_ag_ui_intent(newest)._replace(context=_read_ag_ui_context(body))
        cantrip = await check_in_thread(partial(_add_ag_ui_tools, call, body.tools)) if body.tools else None
        message = await _post(call, body.threadId, intent, cantrip)
    return _stream(call, message, AgUiEvents(body.threadId, body.runId, message.work.id))


def _read_ag_ui_intent(message: AgUiMessageJson) -> ChatIntent:
    """Return a message as an intent. Raises Problem 422 for one without text."""
    name = " ".join((message.name or "").split())[:LONGEST_NAME] or None
    if not isinstance(message.content, list):
        return _make_intent(message.id, [message.content or ""], [], name)
    texts, files = [], []
    for part in message.content:
        source = part.source or part
        url, media_type = source.url or source.value, source.mimeType
        if part.type == "text":
            texts.append(part.text or "")
        else:
            data = source.data or (url if source.type == "data" else None)
            address = url if data is None else f"data:{media_type or 'application/octet-stream'};base64,{data}"
            files.append(_read_file(address, media_type, part.filename))
    return _make_intent(message.id, texts, files, name)


def _read_ag_ui_context(body: AgUiBody) -> Mapping[str, Any] | None:
    """Return the facts and the state of a page as the context of an intent; None if it has none."""
    context = {"context": [fact.model_dump() for fact in body.context], "state": body.state}
    return {name: value for name, value in context.items() if value not in (None, [], {}, "")} or None


def _add_ag_ui_tools(call: HttpCall, tools: Sequence[AgUiToolJson]) -> Cantrip | None:
    """Return the cantrip of the path with a page's tools; None if it has a deferred gate for each of them already.

    Raises Problem 400 for a tool that cannot be a gate.
    """
    cantrip = find_cantrip(call, call.path["cantrip"])
    own = {gate.name for gate in cantrip.circle.gates if gate.kind == "deferred"}
    functions = [{"type": "function", "function": tool.model_dump()} for tool in tools if tool.name not in own]
    return add_tools(cantrip, read_tools(cantrip, functions)) if functions else None


def _read_ag_ui_decisions(call: HttpCall, entity_id: str, body: AgUiBody) -> Iterator[ChatDecision]:
    """Yield the decisions that a run is resumed with. Reads the loom.

    Raises Problem 409 for one that is not open, and 422 for an approval without `approved`.
    """
    listed = list(_list_requests(call, entity_id))
    open_requests = {request.id: request for _, request in listed}
    results = {
        str(message.toolCallId): {"result": message.content} if message.error is None else {"error": message.error}
        for message in body.messages
        if message.role == "tool"
    }
    for call_id, deferred in listed:
        if deferred.kind == "deferred" and call_id in results:
            yield _make_delivery(call, entity_id, deferred, results)
    for answer in body.resume:
        request, payload = open_requests.get(answer.interruptId), answer.payload
        if request is None:
            raise Problem(409, "conflict", f"resume: the thread has no open interrupt {answer.interruptId:.100}")
        is_resolved = answer.status == "resolved"
        if request.kind == "question" and is_resolved:
            yield ChatDecision(request.id, {"answer": payload})
            continue
        fields = payload if isinstance(payload, dict) else {"approved": payload if is_resolved else False}
        approval = validate(AgUiApprovalJson, fields if is_resolved else {**fields, "approved": False})
        args = approval.args if approval.approved else None
        decision = "allow" if approval.approved else "deny"
        yield ChatDecision(request.id, {"decision": decision, "note": approval.reason or "", "args": args})


# Both


def _list_requests(call: HttpCall, entity_id: str) -> Iterator[tuple[str | None, Request]]:
    """Yield the open requests of an entity and of those below it, with the ids of their calls in the chat.

    Reads the loom.
    """
    for member in call.runtime.loom.subtree(entity_id):
        for request in call.runtime.requests(entity=member):
            yield None if request.call is None else _name_call(entity_id, member, request.call), request


def _name_call(entity_id: str, member: str, call_id: str) -> str:
    """Return the id that a call of a member of an entity's tree has in the chat."""
    return call_id if member == entity_id else name_child_call(member, call_id)


def _make_delivery(
    call: HttpCall, entity_id: str, request: Request, results: Mapping[str, Mapping[str, Any]]
) -> ChatDecision:
    """Return the delivery of a call that waits and has a result, with the results of later calls of its answer."""
    name, member, call_id = partial(_name_call, entity_id), request.entity or "", request.call or ""
    later = select_later(call, member, call_id, results, name)
    return ChatDecision(request.id, {**results[name(member, call_id)], "later": later}, is_delivery=True)


def _read_file(url: str | None, media_type: str | None, filename: str | None) -> Any:
    if url is None:
        raise Problem(422, "invalid-file", "messages: expected the URL of a file")
    return image_of(url) if (media_type or "").startswith("image/") else file_of(url, filename)


def _make_intent(key: str, texts: list[str], files: list[Any], name: str | None = None) -> ChatIntent:
    """Return a message as an intent, which begins with the name of its speaker. Raises Problem 422 without a text."""
    text = "\n".join(texts)
    if not text.strip() and not files:
        raise Problem(422, "invalid-intent", "messages: expected a text in the newest message of the user")
    if name is not None:
        text = f"{name}: {text}"
    return ChatIntent(key, [text, *files] if files else text)


async def _post(
    call: HttpCall, chat: str, intent: ChatIntent, changed: Cantrip | None = None, *, regenerates: bool = False
) -> ChatMessage:
    """Send an intent to the entity of a chat, which begins with its first one; with `regenerates` in the last's place.

    `changed` is the cantrip with the client's additions. If the entity waits for the reply of a person, the message
    is the reply.

    Raises Problem 403, 404, 409 for a chat with another cantrip, for one that waits for a person, and for an edited
    message, and 429.
    """
    cantrip = find_cantrip(call, call.path["cantrip"])
    service, token, runtime = call.service, call.token, call.runtime
    async with service.key_lock(f"{token.tenant or ''}\0chat {chat}"):  # so that one request makes the entity
        is_new = await call.read(lambda: runtime.entity(chat)) is None
        check_scope(token, "cast" if is_new else "send")
        if is_new:
            check_path_name(chat)
            async with service.limiter.reserve_start(token) as count:
                entity = await runtime.ensure(chat, cantrip)
                count(entity.id)
        else:
            entity = await _find_chat(call, chat)
        key: str | None = call.key or f"{KEY_PREFIX}{intent.key}"
        if await call.read(partial(may_reply, call, entity.id, key)):
            find = partial(find_utterance, runtime, entity.id, with_children=False)
            if regenerates and await call.read(find) is not None:
                raise Problem(409, "conflict", "a reply cannot be taken back: send another message")
            who = {"by": token.name, "door": token.sender}  # a chat does not show what children say
            replied = await reply(runtime, entity.id, intent.said, **who, key=key, with_children=False)
            if replied is not None:
                return ChatMessage(await _get_newest_intent(call, entity), [replied])
        if regenerates:
            await runtime.check_allowance(by=token.sender)  # before anything is taken back
            await entity.undo(by=token.sender)
            key = call.key
        else:
            await call.read(partial(_check_not_asking, call, entity.id, key))
        entity = await call.read(partial(runtime.get_entity, entity.id, cantrip=changed))
        was_busy = await call.read(partial(is_at_work, call, entity.id))
        try:
            work = await entity.post(intent.said, context=intent.context, key=key, by=token.sender)
        except KeyUsed:
            if call.key is not None:
                raise
            raise Problem(
                409,
                "conflict",
                f"messages: the message {intent.key:.100} was sent before with other content, and an earlier message "
                "cannot be edited: send the new text with an id of its own, or fork the turn",
            ) from None
        is_queued = was_busy and await call.read(lambda: work.state == "waiting")
        return ChatMessage(work, is_queued=is_queued)


def _check_not_asking(call: HttpCall, entity_id: str, key: str | None) -> None:
    """Raise Problem 409 for a new message while the chat waits for a person, who would have to answer before it.

    A repeated message follows its own work. Reads the loom.
    """
    if key is not None and call.find_receipt(entity_id, key) is not None:
        return
    request = next((request for request in call.runtime.requests(entity=entity_id) if not request.is_utterance), None)
    if request is not None:
        raise Problem(
            409,
            "waits-for-person",
            f"the chat waits for the answer to {request.gate}: decide the request {request.id} before the next "
            "message, or interrupt the entity",
            entity_id=entity_id,
        )


async def _find_chat(call: HttpCall, chat: str) -> Entity:
    """Return the entity of a chat. Raises Problem 404, and 409 if it has another cantrip than the path names."""
    find_cantrip(call, call.path["cantrip"])

    def look() -> Entity:
        entity = call.runtime.entity(chat)
        if entity is None or not call.sees(entity.id):
            raise Problem(404, "unknown-entity", "no chat has this id")
        name = call.runtime.loom.header(entity.id).cantrip_name
        if name != call.path["cantrip"]:
            raise Problem(409, "conflict", f"the chat {chat:.100} is of the cantrip {name}", entity_id=entity.id)
        return entity

    return await call.read(look)


async def _find_begun_chat(call: HttpCall) -> Entity | None:
    """Return the entity of the chat that the path names; None before its first message."""
    if await call.read(lambda: call.runtime.entity(call.path["chat"])) is None:
        return None
    return await _find_chat(call, call.path["chat"])


async def _get_newest_intent(call: HttpCall, entity: Entity) -> Work:
    """Return the work on the newest intent of an entity."""

    def look() -> Work:
        if not call.runtime.loom.has_begun(entity.id):
            raise Problem(404, "unknown-entity", "this chat has no message yet")
        return find_newest_work(call.runtime, entity)

    return await call.read(look)


def _explain_refusal(call: HttpCall, entity_id: str, calls: Collection[str | None], expected: str) -> Exception:
    """Return why the answers for `calls` decide nothing: another one was first, or no call waits.

    Reads whole logs: call it in a thread.
    """
    refusal: Exception = Problem(422, "invalid", f"messages: expected {expected}")
    asked: set[str] = set()
    loom = call.runtime.loom
    for member in loom.subtree(entity_id):
        for event in EventLog().add_all(loom.records(member)):
            if isinstance(event, RequestedEvent):
                own, nested = event.tool_call_id, name_child_call(member, event.tool_call_id)
                asked |= {event.request_id} if (own if member == entity_id else nested) in calls else set()
            elif isinstance(event, DecidedEvent) and event.request_id in asked:
                at = format_instant(event.at)
                refusal = AlreadyDecided(event.request_id, event.decision, event.by, at, event.note)
    return refusal


async def _decide(
    call: HttpCall,
    chat: str,
    read: Callable[[HttpCall, str], Iterator[ChatDecision]],
    calls: Collection[str | None],
    expected: str,
) -> ChatMessage:
    """Decide what the entity of a chat waits for, as `read` returns it; return the work that continues.

    Raises the reason why the answers for `calls` decide nothing, if none is for an open request.
    """
    entity = await _find_chat(call, chat)
    decisions = await call.read(lambda: list(read(call, entity.id)))
    if not decisions:
        raise await run_for_client(_explain_refusal, call, entity.id, calls, expected)
    check_scope(call.token, "approve")
    for decision in decisions:
        decide = call.runtime.deliver if decision.is_delivery else call.runtime.decide
        await decide(decision.request_id, by=call.token.name, door=call.token.sender, **decision.arguments)
    await load(call, entity, None)
    work = await _get_newest_intent(call, entity)
    return ChatMessage(work, [decision.request_id for decision in decisions])


def _stream(call: HttpCall, message: ChatMessage, dialect: FrontEndDialect) -> Response:
    """Return the episode of a work as a stream of a dialect. Raises Problem 429."""
    limiter, headers = call.service.limiter, {**HEADERS, **dialect.headers}
    with ExitStack() as stack:
        stack.enter_context(limiter.stream(call.token))
        nested = NestedEvents(call, message.work)
        encoder = FrontEndEncoder(dialect, message.decided)
        events = _encode(call, message, nested, encoder, dialect)
        on_close, patience = stack.pop_all().close, limiter.limits.patience

        def fail(problem: Problem) -> bytes:
            return _fail(call, encoder, problem) + dialect.last

        return EventStreamResponse(events, patience, on_close, beside=nested.run, headers=headers, fail=fail)


def _fail(call: HttpCall, encoder: FrontEndEncoder, problem: Problem) -> bytes:
    return _write(call.redact_for_token(encoder.fail(problem.kind, problem.detail)))


async def _encode(
    call: HttpCall, message: ChatMessage, nested: NestedEvents, encoder: FrontEndEncoder, dialect: FrontEndDialect
) -> AsyncGenerator[bytes]:
    """Yield an episode as server-sent events, up to its end or to the first open request to a person."""
    yield _write(encoder.begin(is_queued=message.is_queued))
    try:
        while True:
            item = None
            with anyio.move_on_after(QUIET):
                item = await nested.receive()
            if item is None:
                yield COMMENT
                continue
            event = item.event
            add = encoder.add if item.is_own else encoder.add_child
            yield _write(call.redact_for_token(add(event)))
            question = await _find_question(call, encoder, item)
            if question is not None:
                yield _write(call.redact_for_token(question))
                break
    except anyio.EndOfStream:
        if not nested.has_ended:
            try:
                await message.work.episode()
            except CantripError as error:
                yield _fail(call, encoder, problem_of(error))
    finally:
        nested.close()
    yield dialect.last


async def _find_question(call: HttpCall, encoder: FrontEndEncoder, item: NestedEvent) -> list[StreamPart] | None:
    """Return the question of an open request with which the stream ends: of the entity, or of a child of a call."""
    event = item.event
    if item.is_own and isinstance(event, RequestedEvent) and await call.read(partial(_is_open, call, event)):
        return encoder.ask(event)
    while (request := encoder.find_child_request()) is not None:
        if await call.read(partial(_is_open, call, request)):
            return encoder.ask_for_child(request)
        encoder.drop_child_request(request)
    return None


def _is_open(call: HttpCall, event: RequestedEvent) -> bool:
    return any(request.id == event.request_id for request in call.runtime.requests(entity=event.entity_id))


def _write(parts: Iterable[StreamPart]) -> bytes:
    return b"".join(b"data: " + dump_json(part, mark=False) + b"\n\n" for part in parts)


_STREAM: Final = {200: "text/event-stream"}

CHAT_ROUTES: Final = (
    ApiRoute("POST", f"{BASE}/chat/{{cantrip}}", "read", chat_ui, _STREAM, UiChatBody),
    ApiRoute("GET", f"{BASE}/chat/{{cantrip}}/{{chat}}", "read", list_messages, {200: UiChatJson}, query=ChatQuery),
    ApiRoute("GET", f"{BASE}/chat/{{cantrip}}/{{chat}}/stream", "read", resume_ui, {**_STREAM, 204: None}),
    ApiRoute("POST", f"{BASE}/ag-ui/{{cantrip}}", "read", run_ag_ui, _STREAM, AgUiBody),
)
"""The routes of front ends. They check the scopes `cast`, `send` and `approve` themselves, depending on the request."""
