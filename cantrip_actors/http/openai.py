"""OpenAI's API over the same entities: models, chat completions and responses.

A model is a cantrip, or `entity:NAME`. A chat completion casts a one-shot entity. A response begins a long-lived one,
or continues from an earlier response: with `send` at the end of an entity's thread, else with `fork`. The id of a
response names its entity and the mail with the intent, so it is known at once and can be found after a restart.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import anyio
import orjson
from starlette.responses import Response

from cantrip_actors import Cantrip, CantripError, Entity, EntityEnded, Gate, Held, UnfinishedWork, Work
from cantrip_actors.http import openai_models as models
from cantrip_actors.http.answer_form import AnswerForm, ClientTool, find_form, is_endless, make_form, write_note
from cantrip_actors.http.calls import REPLAYED, HttpCall, JsonAnswer, json_response
from cantrip_actors.http.client_rounds import (
    ClientPause,
    ClientResult,
    Results,
    check_results,
    deliver,
    find_offered,
    find_tools,
    is_at_work,
    load,
    make_round_key,
    may_reply,
    measure,
    name_steering,
    read_last_words,
    read_pause,
    rest,
)
from cantrip_actors.http.entities import begin_once, begin_work, find_cantrip, hang_up
from cantrip_actors.http.episode_tools import (
    Rest,
    add_tools,
    ask_for_form,
    check_in_thread,
    check_schema,
    get_function,
    read_tools,
)
from cantrip_actors.http.input_items import list_input_items
from cantrip_actors.http.openai_encoders import ChatEncoder, EpisodeEncoder, ResponseEncoder
from cantrip_actors.http.past_answers import has_asked_person, read_past_answers
from cantrip_actors.http.person_waits import describe_wait
from cantrip_actors.http.problems import Problem, problem_of
from cantrip_actors.http.request_messages import ID, ChatInput, Past, parse_messages, select_news
from cantrip_actors.http.sessions import check_scope
from cantrip_actors.http.sse import COMMENT, HEADERS, QUEUED, QUIET, EventStreamResponse
from cantrip_actors.http.stored_items import (
    ROUND,
    SETTINGS,
    find_intent,
    find_memo,
    find_noted_form,
    find_previous_id,
    find_response,
    find_stored,
    get_round_key,
    has_references,
    read_settings,
    resolve_references,
    write_settings,
)
from cantrip_actors.http.table import ApiRoute
from cantrip_actors.observe import FellBehind, UpsertSubscription
from cantrip_actors.observe.readers import count_reader
from cantrip_actors.runtime.face.work import MailState
from cantrip_actors.runtime.mail.inboxes import POLL_INTERVAL
from cantrip_actors.runtime.people.utterances import find_newest_work, reply
from cantrip_actors.terms.outcome import Outcome
from cantrip_actors.user_code.threads import run_for_client

ENTITY: Final = "entity:"


def as_openai_error(answer: Response) -> Response:
    """Return a problem in OpenAI's shape, and any other answer as it is."""
    return convert_problem(answer, lambda status, problem: {"error": _build_error(status, problem)})


def convert_problem(answer: Response, build: Callable[[int, Mapping[str, Any]], dict[str, Any]]) -> Response:
    """Return a problem in the shape that `build` returns, and any other answer as it is."""
    if answer.media_type != "application/problem+json":
        return answer
    problem = orjson.loads(bytes(answer.body))
    status = 400 if answer.status_code == 422 else answer.status_code  # these APIs have no 422
    kept_headers = ("retry-after", "www-authenticate", "allow")
    headers = {name: value for name, value in answer.headers.items() if name in kept_headers}
    if "retry-after" not in headers or "entity_id" in problem:
        headers["x-should-retry"] = "false"  # their clients try 409 and 5xx again, which would begin a second entity
    return json_response(build(status, problem), status, headers)


def _build_error(status: int, problem: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    code = problem["type"].rpartition(":")[2]
    mistakes = problem.get("mistakes") or [{"path": problem.get("param")}]
    shown = {"unknown-cantrip": "model_not_found", "too-many": "rate_limit_exceeded"}.get(code, code)
    return {"message": problem["detail"], "type": kind, "param": mistakes[0]["path"], "code": shown}


# Models


async def list_models(call: HttpCall) -> JsonAnswer:
    """List the names that may be given as a model: cantrips, and long-lived entities with a name."""
    names = [(name, 0) for name in call.service.cantrips if call.token.may_cast(name)]
    loom = call.runtime.loom
    headers = await call.read(
        lambda: [loom.header(entity_id) for entity_id in loom.unfinished() if call.sees(entity_id)]
    )
    named = [header for header in headers if header.name is not None and header.lasting]
    names += [(f"{ENTITY}{header.name}", _parse_seconds(header.at)) for header in named]
    ends = {"first_id": names[0][0], "last_id": names[-1][0]} if names else {"first_id": None, "last_id": None}
    shown = [_find_model(*name) for name in names]
    return JsonAnswer({"object": "list", "data": shown, "has_more": False, **ends})


async def get_model(call: HttpCall) -> JsonAnswer:
    """Return one model."""
    name = call.path["id"]
    if name.startswith(ENTITY):
        header = await call.read(lambda: call.runtime.loom.header(find_named(call, name).id))
        return JsonAnswer(_find_model(name, _parse_seconds(header.at)))
    find_cantrip(call, name)
    return JsonAnswer(_find_model(name, 0))


def _find_model(name: str, created: int) -> dict[str, Any]:
    at = datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z")
    of_anthropic = {"type": "model", "display_name": name, "created_at": at}
    return {"id": name, "object": "model", "created": created, "owned_by": "cantrip", **of_anthropic}


def find_named(call: HttpCall, model: str) -> Entity:
    """Return the long-lived entity that a model names. Raises Problem 404."""
    entity = call.runtime.entity(model.removeprefix(ENTITY))
    if entity is None or not call.sees(entity.id):
        raise Problem(404, "model_not_found", f"no long-lived entity is called {model.removeprefix(ENTITY)!r}")
    return entity


def _parse_seconds(at: str) -> int:
    return int(datetime.fromisoformat(at).timestamp())


# Requests


class _Target(NamedTuple):
    """The model that a body names: a cantrip with the tools of the client, or an entity and the offered cantrip of
    its name, if there is one; the form of answer that it asks for, and the tools.
    """

    entity: Entity | None
    cantrip: Cantrip | None
    form: AnswerForm | None
    tools: Mapping[str, Gate]
    changed: Cantrip | None
    """The cantrip, if it is another one than that which is offered."""


async def find_target(call: HttpCall, body: models.ChatBody | models.ResponseBody, form_name: str) -> _Target:
    """Return the model that a body names; `form_name` is the parameter of the form of answer in a dialect.

    Raises Problem 404, and 400 for a parameter that would change the answer and is not supported.
    """
    entity, cantrip = await _read_model(call, body.model)
    work = partial(_add_wishes, entity, cantrip, body, form_name)
    return await check_in_thread(work) if body.tools or body.answer_format is not None else work()


def _add_wishes(
    entity: Entity | None, cantrip: Cantrip | None, body: models.ChatBody | models.ResponseBody, form_name: str
) -> _Target:
    """Return a target with the tools and the form of answer that a body asks for. Raises Problem 400."""
    for name in ("functions", "logprobs", "top_logprobs", "audio", "web_search_options", "conversation", "prompt"):
        if getattr(body, name, None):
            raise refuse_parameter(name)
    if body.n not in (None, 1):
        raise refuse_parameter("n")
    if isinstance(body, models.ChatBody) and set(body.modalities or ()) - {"text"}:
        raise refuse_parameter("modalities")
    offered, form, wanted = cantrip, None, body.answer_format
    if wanted is not None and wanted.type != "text":
        cantrip, form = _ask_for_form(cantrip, wanted)
        if form is None:
            raise refuse_parameter(form_name)
        schema = wanted.model_dump(by_alias=True, exclude_none=True)
        form = replace(form, format={**schema, **schema.pop("json_schema", {})})
    tools: dict[str, Gate] = {}
    if body.tools and body.tool_choice != "none":
        cantrip, tool_form, tools = _add_tools(cantrip, body, form)
        if not tools and tool_form is None:
            raise refuse_parameter("tools")
        form = tool_form or form
    elif not body.tools and body.tool_choice not in (None, "auto", "none"):
        text = f"tool_choice: expected auto or none in a request without tools, got {body.tool_choice!r}"
        raise Problem(400, "invalid", text, param="tool_choice")
    return _Target(entity, cantrip, form, tools, None if cantrip is offered else cantrip)


def refuse_parameter(name: str) -> Problem:
    """Return the error for a parameter that would change the answer."""
    text = f"{name}: not supported here; gates, wards and the form of the answer are the cantrip's own"
    return Problem(400, "unsupported_parameter", text, param=name)


async def _read_model(call: HttpCall, model: str) -> tuple[Entity | None, Cantrip | None]:
    if not model.startswith(ENTITY):
        return None, find_cantrip(call, model)

    def look() -> tuple[Entity, Cantrip | None]:
        entity = find_named(call, model)
        return entity, find_offered(call, entity.id)

    return await call.read(look)


def _ask_for_form(
    cantrip: Cantrip | None, wanted: models.AnswerFormat, tool: ClientTool | None = None
) -> tuple[Cantrip | None, AnswerForm | None]:
    """Return a cantrip whose answers have the form that a client asks for: that cantrip, if they do already.

    Without a form the cantrip has one of its own that does not fit. Raises Problem 400 for an invalid schema.
    """
    if wanted.type not in ("json_object", "json_schema"):
        return cantrip, None
    asked = {"type": "object"} if wanted.type == "json_object" else (wanted.json_schema or wanted).schema_
    param = "tools" if tool is not None else "the schema of the answer"
    if is_endless(asked):
        raise Problem(400, "invalid", f"{param}: expected a schema, got a reference that leads to itself", param=param)
    if cantrip is None or (form := find_form(cantrip, asked, tool)) is not None:
        return cantrip, None if cantrip is None else form
    check_schema(param, asked)
    typed = ask_for_form(cantrip, asked)
    return (cantrip, None) if typed is None else (typed, make_form(asked, tool))


def _add_tools(
    cantrip: Cantrip | None, body: models.ChatBody | models.ResponseBody, form: AnswerForm | None
) -> tuple[Cantrip | None, AnswerForm | None, dict[str, Gate]]:
    """Return a cantrip with a client's tools. A single tool that it has to call is the form of its answer instead,
    unless the client asks for another form, too.
    """
    if cantrip is None:
        return None, None, {}
    choice, listed = body.tool_choice, list(body.tools or ())
    asked = get_function(choice).get("name") if isinstance(choice, dict) else None
    gates = read_tools(cantrip, listed)
    if choice not in (None, "auto", "required") and not (isinstance(asked, str) and asked in gates):
        text = f"tool_choice: expected auto, none, required, or one of the functions in tools, got {choice!r}"
        raise Problem(400, "invalid", text, param="tool_choice")
    chosen = gates.get(asked) if asked else next(iter(gates.values())) if len(gates) == 1 else None
    is_form = chosen is not None and (form is None or form.schema.node == chosen.parameters)
    if chosen is not None and is_form and (asked or choice == "required"):
        wanted = models.AnswerFormat.model_validate({"type": "json_schema", "schema": dict(chosen.parameters)})
        typed, tool_form = _ask_for_form(cantrip, wanted, ClientTool(chosen.name, is_named=choice != "required"))
        if tool_form is not None:
            return typed, tool_form, {}
    must_call, one_call = choice == "required" or asked is not None, body.parallel_tool_calls is False
    return add_tools(cantrip, gates, must_call=must_call, one_call=one_call), None, gates


def _apply_form(form: AnswerForm | None, outcome: Outcome) -> Outcome:
    """Return an outcome with its answer in the form that the client asked for. Raises AnswerMisfit."""
    return replace(outcome, result=form.apply(outcome.result)) if form is not None and outcome.terminated else outcome


# Episodes


class _Run(NamedTuple):
    """A running episode, and its stream."""

    work: Work
    outputs: UpsertSubscription
    tools: Mapping[str, Gate] = MappingProxyType({})
    results: Results = MappingProxyType({})
    form: AnswerForm | None = None
    is_stateless: bool = False
    """Whether the client's next request begins another entity, with this conversation as its history."""
    has_begun: bool = False
    """Whether an answer to an earlier request had the beginning of the episode."""
    is_queued: bool = False
    """Whether the intent waits for the end of another one."""
    is_replay: bool = False
    """Whether an earlier request with this key gave the intent."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer."""
        return REPLAYED if self.is_replay else {}

    @property
    def comment(self) -> bytes:
        """The comment that keeps a quiet connection: it says whether the intent still waits."""
        return QUEUED if self.is_queued and self.outputs.is_muted else COMMENT

    async def reach(self, call: HttpCall) -> Rest | Outcome:
        """Wait until the episode has ended, or waits for the client or for a person. Raises the error that ended it.

        Ends an entity that waits for a reply which no request can bring.
        """
        # a form has no place for other texts
        pause = await rest(call, self.work, self.tools, can_reply=self.form is None)
        if pause is None:
            return await call.read(partial(self._read_outcome, call))
        reached = await call.read(partial(_describe_pause, call, self.work, pause))
        if self.is_stateless and pause.text is not None:
            with anyio.CancelScope(shield=True):
                await hang_up(call, self.work)
        return reached

    def _read_outcome(self, call: HttpCall) -> Outcome:
        outcome = self.work.find_outcome(redacted=True)
        if outcome is None:
            raise EntityEnded(f"entity {self.work.entity_id} has no end of this episode")
        if self.has_begun:  # the client had the rest with its calls
            outcome = replace(outcome, subtree_usage=measure(call, self.work.entity_id))
        return _apply_form(self.form, outcome)


def _describe_pause(call: HttpCall, work: Work, pause: ClientPause) -> Rest:
    """Return where an episode rests that waits for its client or for a person. Reads the loom."""
    shown = (item._replace(arguments=call.redact_for_token(item.arguments)) for item in pause.calls)
    words = pause.text or read_last_words(call, work.entity_id)
    wait = describe_wait(call, work, pause.requests) if pause.requests else None
    return Rest(tuple(shown), call.redact_for_token(words), measure(call, work.entity_id), wait)


async def send_intent(call: HttpCall, entity: Entity, post: Callable[..., Awaitable[Work]]) -> _Run:
    """Send an intent to an entity, with a key. Raises Problem 403."""
    check_scope(call.token, "send")
    key = call.key or str(uuid.uuid4())
    outputs = call.service.growth.subscribe(entity.id, snapshot=False, intent=key)

    def look() -> tuple[bool, bool]:
        is_replay = call.key is not None and call.find_receipt(entity.id, key) is not None
        return is_at_work(call, entity.id), is_replay

    was_busy, is_replay = await call.read(look)
    work = await post(key=key)
    state = await call.read(lambda: work.state)
    if state == "working":  # also one that this process has resumed, or that a repeated request follows
        outputs.unmute()
    return _Run(work, outputs, is_queued=was_busy and state == "waiting", is_replay=is_replay)


async def send_to_named(call: HttpCall, target: _Target, entity: Entity, chat_input: ChatInput) -> _Run:
    """Send an intent to the entity that is called as a model, with the messages of the conversation that it does not
    have.

    Raises Problem 403.
    """
    run = await reply_to_entity(call, target, entity, chat_input)
    if run is not None:
        return run
    history = await call.read(partial(_find_news, call, entity.id, chat_input.history, is_whole=True))
    entity = await call.read(partial(call.runtime.get_entity, entity.id, cantrip=target.changed))
    given: dict[str, Any] = {"history": history, "note": _write_note(call, target)}
    post = partial(entity.post, chat_input.intent, **given, by=call.token.sender)
    return await send_intent(call, entity, post)


async def reply_to_entity(call: HttpCall, target: _Target, entity: Entity, chat_input: ChatInput) -> _Run | None:
    """Give an entity that waits for the reply of a person the newest message as the reply; None if it does not wait.

    Raises Problem 403.
    """
    if not await call.read(partial(may_reply, call, entity.id, call.key)):
        return None
    check_scope(call.token, "send")
    who, outputs = call.token, call.service.growth.subscribe(entity.id, snapshot=False)
    given: dict[str, Any] = {"by": who.name, "door": who.sender, "key": call.key, "memo": _write_note(call, target)}
    replied = await reply(call.runtime, entity.id, chat_input.intent, **given)
    if replied is None:
        outputs.close()
        return None
    work = await call.read(partial(find_newest_work, call.runtime, entity))
    return _Run(work, outputs, results={replied: ClientResult(chat_input.intent)}, has_begun=True)


def _write_note(call: HttpCall, target: _Target) -> dict[str, Any] | None:
    """Return what a stored response repeats of its request."""
    note = write_note(target.form)
    return {**(note or {}), SETTINGS: write_settings(call.body)} if isinstance(call.body, models.ResponseBody) else note


def _find_news(call: HttpCall, entity_id: str, history: Sequence[Past], *, is_whole: bool) -> list[Past]:
    """Return the messages of a history that an entity was not given before this request."""
    if not history:
        return []
    repeated = call.key if call.key is not None and call.find_receipt(entity_id, call.key) is not None else None
    texts = call.service.given_texts.find(call.runtime.loom, entity_id, repeated)
    return select_news(history, texts, is_whole=is_whole)


async def start_run(call: HttpCall, begin: Callable[[], Awaitable[Work]]) -> _Run:
    """Begin an entity. Raises Problem 403 and 429."""
    check_scope(call.token, "cast")
    work, is_replay = await begin_once(call, begin)
    is_whole = not is_replay or await call.read(lambda: work.state == "working")  # then there is no later intent
    if is_whole:
        return _Run(work, call.service.growth.subscribe(work.entity_id), is_replay=is_replay)
    outputs = call.service.growth.subscribe(work.entity_id, snapshot=False, intent=work.key)
    return _Run(work, outputs, is_replay=is_replay)


async def start_one_shot(call: HttpCall, target: _Target, chat_input: ChatInput) -> _Run:
    """Cast a cantrip on the newest message, with those before as its history. Raises Problem 403 and 429."""
    assert target.cantrip is not None, "a model is an entity or a cantrip"
    given: dict[str, Any] = {"history": chat_input.history, "note": write_note(target.form)}
    start = partial(call.runtime.start, target.cantrip, chat_input.intent, **given)
    run = await start_run(call, partial(begin_work, start, key=call.key, by=call.token.sender))
    return run._replace(is_stateless=call.key is None)  # with a key the request may come again


async def _leave(call: HttpCall, run: _Run) -> None:
    """Cancel an episode whose client has gone, unless its result can be retrieved later, or it waits for a person.

    The work of a client that hangs up while a person decides is not cancelled.
    """
    if call.key is None and not (isinstance(call.body, models.ResponseBody) and call.body.background):
        with anyio.CancelScope(shield=True):
            if not await call.read(run.work.requests):
                await hang_up(call, run.work)


async def continue_calls(call: HttpCall, target: _Target, chat_input: ChatInput, param: str) -> _Run:
    """Continue an entity with the results of its calls, which the client has carried out."""
    check_scope(call.token, "cast")
    entity, key = await call.read(partial(check_results, call, chat_input.results, param))
    tools = await call.read(partial(find_tools, call, entity.id))
    outputs = call.service.growth.subscribe(entity.id, snapshot=False)
    await load(call, entity, target.changed)
    news = await call.read(partial(_find_news, call, entity.id, chat_input.history, is_whole=False))
    if news:
        contents = (past["content"] for past in news)
        parts = [part for content in contents for part in (content if isinstance(content, list) else [content])]
        await entity.steer(parts, key=name_steering(make_round_key(chat_input.results)), by=call.token.sender)
    await deliver(call, chat_input.results, _write_note(call, target))
    work = await call.read(lambda: call.runtime.receipt(entity, key)) if key else entity.work
    return _Run(work, outputs, tools, chat_input.results, has_begun=True)


async def continue_wait(call: HttpCall, target: _Target, work_id: str, param: str) -> _Run:
    """Follow work again that waited for a person in an earlier answer. Raises Problem 404."""

    def look() -> tuple[Work, Mapping[str, Gate]]:
        work = call.runtime.work(work_id)
        if work is None or not call.sees(work.entity_id):
            raise Problem(
                404, "not_found", f"{param}: no call has the id {work_id!r} that an answer names", param=param
            )
        return work, dict(target.tools) or find_tools(call, work.entity_id)

    work, tools = await call.read(look)
    outputs = call.service.growth.subscribe(work.entity_id, snapshot=False)
    await load(call, work.entity, target.changed)
    return _Run(work, outputs, tools, has_begun=True)


@contextmanager
def reserve_stream(call: HttpCall) -> Iterator[ExitStack]:
    """Count the stream that a request asks for, until the yielded stack is closed. Raises Problem 429, before any
    work.
    """
    with ExitStack() as stack:
        if call.body.stream:
            stack.enter_context(call.service.limiter.stream(call.token))
        yield stack


async def answer_run(
    call: HttpCall, run: _Run, encoder: EpisodeEncoder, stack: ExitStack
) -> JsonAnswer | EventStreamResponse:
    """Return the whole answer of an episode, or, if the request asks for it, a stream that closes `stack` at its end.

    Waits until the episode has ended, or waits for the client or a person. Raises the error that ended it.
    """
    if call.body.stream:
        return _stream_run(call, run, encoder, stack.pop_all().close)
    with closing(run.outputs):
        reached = await call.wait_for(partial(run.reach, call), partial(_leave, call, run))
    if reached is None:  # the client hung up
        return JsonAnswer(status=499)
    return JsonAnswer(call.redact_for_token(encoder.build(reached)), headers=run.headers)


def _stream_run(
    call: HttpCall, run: _Run, encoder: EpisodeEncoder, on_close: Callable[[], object]
) -> EventStreamResponse:
    """Return an episode as a stream of one dialect, and call `on_close` at the end of the stream."""
    reached: list[Rest | Outcome | CantripError] = []
    has_rested = anyio.Event()

    async def wait() -> None:
        try:
            reached.append(await run.reach(call))
        except CantripError as error:
            reached.append(error)
        has_rested.set()
        run.outputs.close()

    async def find_end() -> Rest | Outcome | CantripError:
        await has_rested.wait()
        return reached[0]

    events, patience = _follow_events(call, run, encoder, find_end), call.service.limiter.limits.patience
    fail, headers = partial(_fail, call, encoder), {**HEADERS, **run.headers}
    return EventStreamResponse(events, patience, on_close, beside=wait, headers=headers, fail=fail)


def _fail(call: HttpCall, encoder: EpisodeEncoder, problem: Problem) -> bytes:
    """Return the end of a stream with an error."""
    shown = call.runtime.redact({"type": problem.kind, "detail": problem.detail})
    return b"".join(encoder.fail(_build_error(problem.status, shown)))


async def _follow_events(
    call: HttpCall,
    run: _Run,
    encoder: EpisodeEncoder,
    find_end: Callable[[], Awaitable[Rest | Outcome | CantripError]],
) -> AsyncGenerator[bytes]:
    """Yield the events of an episode; `find_end` waits until it rests, and returns where, or its error."""
    is_done = False
    try:
        yield b"".join((*encoder.begin(), *([run.comment] if run.is_queued else ())))
        with suppress(StopAsyncIteration, FellBehind), count_reader(call.service.telemetry, "openai"):
            while True:
                with anyio.move_on_after(QUIET) as quiet:
                    output = await anext(run.outputs)
                yield run.comment if quiet.cancelled_caught else b"".join(encoder.add(output))
        reached = await find_end()  # after a reader has fallen behind, the answer comes whole
        if isinstance(reached, CantripError):
            yield _fail(call, encoder, problem_of(reached))
        else:
            yield b"".join(encoder.rest(reached) if isinstance(reached, Rest) else encoder.end(reached))
        is_done = True
    finally:
        run.outputs.close()
        if not is_done:
            await _leave(call, run)


# Chat completions


async def chat_completions(call: HttpCall) -> JsonAnswer | Response:
    """Cast a cantrip on the last message of the user, or send it to a long-lived entity."""
    body: models.ChatBody = call.body
    target = await find_target(call, body, "response_format")
    chat_input = parse_messages(call, body.messages, "messages")
    created = int(time.time())
    with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    with reserve_stream(call) as stack:
        run = await begin_run(call, target, chat_input, "messages", start_one_shot)
        id = f"chatcmpl-{name_run(run)}"
        encoder = ChatEncoder(id, body.model, created, with_usage=with_usage, form=target.form)
        return await answer_run(call, run, encoder, stack)


async def begin_run(
    call: HttpCall,
    target: _Target,
    chat_input: ChatInput,
    param: str,
    begin: Callable[[HttpCall, _Target, ChatInput], Awaitable[_Run]],
) -> _Run:
    """Begin or continue the episode of a request, whose messages are in `param`. `begin` begins a new entity, or
    continues the one of an earlier response.
    """
    if chat_input.results:
        run = await continue_calls(call, target, chat_input, param)
    elif chat_input.waits is not None:
        run = await continue_wait(call, target, chat_input.waits, param)
    elif target.entity is not None and getattr(call.body, "previous_response_id", None) is None:
        run = await send_to_named(call, target, target.entity, chat_input)
    else:
        run = await begin(call, target, chat_input)
    return run._replace(tools={**run.tools, **target.tools}, form=target.form)


def name_run(run: _Run) -> str:
    """Return the id of an answer: that of the work, and of the results that it continues with."""
    return f"{run.work.id}{ROUND}{make_round_key(run.results)}" if run.results else run.work.id


# Responses


async def create_response(call: HttpCall) -> JsonAnswer | Response:
    """Begin a long-lived entity, or continue after an earlier response."""
    body: models.ResponseBody = call.body
    target = await find_target(call, body, "text")
    messages = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else list(body.input)
    places = [f"input[{number}]" for number in range(len(messages))]
    if has_references(messages):
        places, messages = await call.read(partial(resolve_references, call, places, messages))
    if body.instructions:
        messages, places = [{"role": "system", "content": body.instructions}, *messages], ["instructions", *places]
    chat_input = parse_messages(call, messages, "input", places)
    with reserve_stream(call) as stack:
        run = await begin_run(call, target, chat_input, "input", _continue)
        id, previous = ID + name_run(run), body.previous_response_id
        encoder = ResponseEncoder(
            id,
            body.model,
            int(time.time()),
            previous,
            target.form,
            is_queued=run.is_queued,
            settings=write_settings(body),
        )
        if body.background and not body.stream:
            run.outputs.close()
            return JsonAnswer(encoder.describe("queued"), headers=run.headers)
        return await answer_run(call, run, encoder, stack)


async def _continue(call: HttpCall, target: _Target, chat_input: ChatInput) -> _Run:
    """Continue after an earlier response, or begin a long-lived entity."""
    intent, previous, cantrip = chat_input.intent, call.body.previous_response_id, target.cantrip
    given: dict[str, Any] = {"history": chat_input.history, "key": call.key, "by": call.token.sender}
    given["note"] = _write_note(call, target)
    if previous is not None:
        work = await call.read(lambda: find_response(call, previous))
        is_working = await call.read(lambda: work.state == "working")
        if is_working and (run := await reply_to_entity(call, target, work.entity, chat_input)) is not None:
            return run
        if is_working and await call.read(partial(has_asked_person, call, work)):
            return await continue_wait(call, target, work.id, "previous_response_id")
        post = partial(work.continue_with, intent, cantrip=cantrip, **given)
        if not await call.read(lambda: _sends(call, work)):
            return await start_run(call, post)
        news = await call.read(partial(_find_news, call, work.entity_id, chat_input.history, is_whole=False))
        given["history"] = news
        post = partial(work.continue_with, intent, cantrip=cantrip, **given)
        return await send_intent(call, work.entity, post)
    return await start_run(call, partial(begin_work, call.runtime.invoke, cantrip, intent, **given))


def _sends(call: HttpCall, work: Work) -> bool:
    """Return whether a response continues by a further intent. Raises Problem 409."""
    if call.runtime.loom.is_forgotten(work.entity_id):
        raise Problem(409, "forgotten", "the content of the previous response was erased")
    try:
        return work.takes_more
    except UnfinishedWork as error:
        raise Problem(409, "conflict", f"the previous response: {error}", param="previous_response_id") from error


async def get_response(call: HttpCall) -> JsonAnswer:
    """Return a response, from the loom."""
    if call.query.stream:
        raise refuse_parameter("stream")
    return await _answer_response(call)


async def _answer_response(call: HttpCall) -> JsonAnswer:
    return JsonAnswer(await run_for_client(_read_response, call, call.path["id"]))


def _read_response(call: HttpCall, id: str) -> dict[str, Any]:
    work = find_stored(call, id)
    header, intent = call.runtime.shown_loom.header(work.entity_id), find_intent(call, work)
    model, first_note, outcome = header.cantrip_name or header.cantrip_id, work.note, work.find_outcome(redacted=True)
    can_reply = find_noted_form(call, work, first_note, outcome) is None
    past = read_past_answers(call, work.entity_id, work.key, get_round_key(id), can_reply=can_reply)
    begun = _parse_seconds(header.at if intent is None else intent.at)
    created = int(past.before[-1].at) if past.before else begun
    note = find_memo(call, past.before[-1]) if past.before else first_note
    form, settings = find_noted_form(call, work, note, outcome), read_settings(note)
    previous = settings.get("previous_response_id") if settings else find_previous_id(call, work, past)
    encoder = ResponseEncoder(id, model, created, previous, form, settings=settings)
    if past.after:
        shown = encoder.build(past.after[0].rest)
    elif outcome is not None:
        usage = past.usage if past.before else outcome.subtree_usage
        shown = encoder.build(_apply_form(form, replace(outcome, subtree_usage=usage)))
    elif (pause := read_pause(call, work, can_reply=can_reply)) is not None:
        shown = encoder.build(_describe_pause(call, work, pause))
    else:
        shown = encoder.describe(_STATUSES[work.state])
    return dict(call.redact_for_token(shown))


async def cancel_response(call: HttpCall) -> JsonAnswer:
    """Withdraw the intent of a response, or interrupt its episode."""
    work = await call.read(lambda: find_response(call, call.path["id"]))
    await work.cancel(now=True, by=call.token.sender)
    return await _answer_response(call)


async def delete_response(call: HttpCall) -> JsonAnswer:
    """End the entity that a response began, and erase its content, unless it has further responses or a name."""
    work = await call.read(lambda: find_stored(call, call.path["id"]))
    entity_id = work.entity_id

    def has_others() -> bool:
        loom = call.runtime.loom
        intents = [*loom.waiting_intents(entity_id), *loom.intents(entity_id)]
        return loom.header(entity_id).name is not None or any(intent.key for intent in intents)

    if await call.read(has_others):
        text = "a response is deleted with its entity, and this one has a name or further responses: delete the content"
        raise Problem(409, "conflict", f"{text} of the entity {entity_id} with `cantrip loom forget`")
    why, by = "its response was deleted", call.token.sender
    await work.entity.stop(why, by=by)
    while not await call.read(partial(call.runtime.loom.is_forgotten, entity_id)):
        try:
            await call.runtime.forget(entity_id, by=by, why=why)
        except Held:  # by another request, to another server, that erases it
            await anyio.sleep(POLL_INTERVAL)
    return JsonAnswer({"id": call.path["id"], "object": "response", "deleted": True})


_STATUSES: Final[Mapping[MailState, str]] = {
    "waiting": "queued",
    "working": "in_progress",
    "settled": "completed",
    "refused": "failed",
    "withdrawn": "cancelled",
}
"""OpenAI's words for the states of an intent whose episode has no outcome."""


_OBJECT = {200: models.Opaque}

OPENAI_ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute("GET", "/v1/models", "read", list_models, {200: models.ModelList}, query=models.AnyQuery, style="openai"),
    ApiRoute("GET", "/v1/models/{id:path}", "read", get_model, _OBJECT, style="openai"),
    ApiRoute("POST", "/v1/chat/completions", "read", chat_completions, _OBJECT, models.ChatBody, style="openai"),
    ApiRoute("POST", "/v1/responses", "read", create_response, _OBJECT, models.ResponseBody, style="openai"),
    ApiRoute("GET", "/v1/responses/{id}", "read", get_response, _OBJECT, query=models.ResponseQuery, style="openai"),
    ApiRoute("DELETE", "/v1/responses/{id}", "admin", delete_response, {200: models.DeletedObject}, style="openai"),
    ApiRoute(
        "GET",
        "/v1/responses/{id}/input_items",
        "read",
        list_input_items,
        {200: models.ItemList},
        query=models.ItemsQuery,
        style="openai",
    ),
    ApiRoute("POST", "/v1/responses/{id}/cancel", "steer", cancel_response, _OBJECT, models.Ignored, style="openai"),
)
"""OpenAI's API. Chat and responses check the scope `cast` or `send` themselves, whichever the request needs."""
