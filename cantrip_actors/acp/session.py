"""One session of an editor: an entity, prompts that become its intents, and updates of its work.

A session has no state outside the loom. Its id is the id of its entity, which is derived from a key; a fork
of the session (`/undo`, `/fork`) begins with the next key of the session, so that any process finds the newest one. The
folders of the session are in the context of its first intent.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from typing import Any, Final

import anyio

from cantrip_actors import (
    AlreadyDecided,
    Cantrip,
    CantripError,
    Entity,
    EntityEnded,
    EntityStartedEvent,
    Episode,
    Held,
    InvalidDecision,
    Request,
    RequestedEvent,
    Runtime,
    StepCompleteEvent,
    UnknownRequest,
    Withdrawn,
    Work,
)
from cantrip_actors.acp.editor import Editor
from cantrip_actors.acp.jsonrpc import INTERNAL_ERROR, PeerGone, RequestError
from cantrip_actors.acp.options import Choices, list_choices, with_choices
from cantrip_actors.acp.prompts import EditorPrompt
from cantrip_actors.acp.server_prompts import ServerPrompts
from cantrip_actors.acp.updates import (
    COLUMNS,
    ROWS,
    Update,
    UpdateReplay,
    call_title,
    chunk_of,
    fence,
    is_file_write,
    kind_of,
    make_block,
    make_chunk,
    make_diff,
    program_of,
    question_text,
    read_choice,
    show_intent,
    stop_reason,
    title_of,
    tool_update,
)
from cantrip_actors.crystal.resolve import resolve
from cantrip_actors.observe import FellBehind, Output, ToolCallUpsert, TurnComplete, Upserts
from cantrip_actors.observe.batching import GROWTH
from cantrip_actors.observe.readers import count_reader
from cantrip_actors.observe.segments import Segments
from cantrip_actors.own_files.login import get_login
from cantrip_actors.records.records import Record
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.face.run import RunEvents, follow_through_outages
from cantrip_actors.runtime.face.work import list_open_work, wait_through_outages
from cantrip_actors.runtime.loom.outage_log import repeat_through_outages, write_through_outages
from cantrip_actors.runtime.people.utterances import find_newest_work, reply, rest
from cantrip_actors.stream.reading import END_OF_RECORD, EventId, EventLog
from cantrip_actors.terms.messages import as_text

KEY: Final = "acp:"
"""The prefix of the keys of sessions."""

MOST_FORMS: Final = 3
"""Forms in which the editor's user answers one question: a next one follows an answer that does not fit."""

WAITS: Final = "The entity works on an earlier message: this one waits for its end."
"""The thought that an editor shows while a message waits behind an intent that another door sent."""

Notify = Callable[[str, Update], Awaitable[None]]

_log = get_logger("cantrip_actors.acp")


@dataclass(frozen=True, slots=True)
class SessionHistory:
    """The ids of a session's turns, the records of the entities that made them, oldest first, and the open requests.

    `open_work` is the intent on which the entity works, and then those that wait in its inbox.
    """

    turns: frozenset[str]
    logs: Sequence[Sequence[Record]]
    open_work: Sequence[Work] = ()
    requests: Sequence[Request] = ()


NO_HISTORY: Final = SessionHistory(frozenset(), ())


class EditorSession:
    """An open session, with `forks` forks so far. `notify` sends one of its updates.

    `has_begun` and `thread` read the loom: use them in `Runtime.read`.
    """

    def __init__(
        self,
        runtime: Runtime,
        recipe: Cantrip,
        editor: Editor,
        key: str,
        notify: Notify,
        *,
        by: str,
        terminal: bool = False,
        forks: int = 0,
    ) -> None:
        self.runtime = runtime
        self.key = key
        self.id = runtime.id_of_key(key)
        self.recipe = recipe
        self.choices = Choices()
        self.by = by
        self.door = f"editor:{get_login()}"
        self.editor = editor
        self._notify = notify
        self._terminal = terminal
        self._turn = anyio.Lock()
        """Runs the prompts one at a time, in the order of their arrival."""
        self._cancels = 0
        """The number of cancellations: each also cancels the prompts that arrived before it."""
        self._cancelled = anyio.Event()
        """The next cancellation."""
        self._making: anyio.CancelScope | None = None
        """Cancels the making of a prompt by a server."""
        self._forks = forks
        self._fork_at: str | None = None
        """The turn that the next prompt continues from, if it is not the newest one; "" is before the first."""
        self._folds = False
        self._made: tuple[tuple[Choices, bool], Cantrip] | None = None
        """The cantrip, with the choices that it was made for."""
        self._restored: Cantrip | None = None
        """The cantrip of an episode that began before this session was opened."""
        self.server_prompts = ServerPrompts(runtime, self.cantrip().circle.servers)
        self._asked: dict[str, anyio.CancelScope] = {}
        """The requests that were sent to the editor's user, and what takes them back."""
        self._pump: _Pump | None = None
        """Sends the updates of the prompt under way."""
        self._diffs: dict[str, dict[str, Any]] = {}
        """The differences in the questions about calls of this prompt, until the calls are shown."""

    # Which entity

    @property
    def entity_id(self) -> str:
        """The current entity of this session: that of its newest fork."""
        return self.runtime.id_of_key(_make_fork_key(self.key, self._forks))

    @property
    def has_begun(self) -> bool:
        """True once its entity has an intent."""
        return self.runtime.loom.has_begun(self.entity_id)

    async def _read_has_begun(self) -> bool:
        return await self.runtime.read(lambda: self.has_begun)

    def cantrip(self) -> Cantrip:
        """Return the cantrip of the entity from its next intent on."""
        wanted = self.choices, self._folds
        if self._made is None or self._made[0] != wanted:
            self._made = wanted, _choose(self._lend(), *wanted)
        return self._made[1]

    def _lend(self) -> Cantrip:
        return self.editor.lend(self.recipe, terminal=self._terminal)

    def restore(self, cantrip_id: str) -> None:
        """Choose the options that the entity has, by the id of its cantrip; none if the recipe has changed since."""
        lent = self._lend()
        for folds, choices in product((False, True), list_choices(self.recipe)):
            cantrip = _choose(lent, choices, folds)
            if cantrip.id == cantrip_id:
                self.choices, self._restored = choices, cantrip
                return

    # Prompts

    async def prompt(self, prompt_or_maker: EditorPrompt | Callable[[], Awaitable[EditorPrompt]]) -> str:
        """Give the entity an intent, show its work, and return why it stopped. Raises RequestError, ToolServerError.

        `prompt_or_maker` is the prompt, or makes it when its turn has come.
        """
        cancels = self._cancels
        async with self._turn:
            prompt = None if self._cancels > cancels else await self._make(prompt_or_maker)
            if prompt is None or self._cancels > cancels:
                return "cancelled"
            return await self._work(prompt, cancels)

    async def _make(self, prompt_or_maker: EditorPrompt | Callable[[], Awaitable[EditorPrompt]]) -> EditorPrompt | None:
        """Return the prompt; None if it was cancelled before it was made."""
        if isinstance(prompt_or_maker, EditorPrompt):
            return prompt_or_maker
        prompt = None
        try:
            with anyio.CancelScope() as self._making:
                prompt = await prompt_or_maker()
        finally:
            self._making = None
        return prompt

    async def refresh(self) -> None:
        """Go to the newest fork of the session: another editor may have begun it."""
        entities = await self.runtime.read(partial(list_entities, self.runtime, self.key))
        self._forks = max(self._forks, len(entities) - 1)

    async def _work(self, prompt: EditorPrompt, cancels: int) -> str:
        episode = refusal = None
        try:
            work, after = await write_through_outages(partial(self._give, prompt), lambda: self._cancels <= cancels)
            events = work.events(after, deltas=True)  # before anything else is awaited: they begin now
            if not (work.key or self._forks):  # the first intent of the session
                await self.tell({"sessionUpdate": "session_info_update", "title": title_of(prompt.text)})
            episode = await self._show(events, partial(self._rest, work, work.cancel, cancels))
        except* CantripError as errors:
            refusal = _to_request_error(errors)
            refusal.__cause__ = errors
        if refusal is not None and self._cancels <= cancels:
            raise refusal  # in `except*`, it would be in a group with Python 3.11.3 and older
        if episode is None:
            return "cancelled"
        if isinstance(episode, Request):  # the next prompt is the reply
            return "end_turn"
        return stop_reason(episode)

    async def _show(
        self,
        events: RunEvents,
        wait: Callable[[], Awaitable[Episode | Request | None]],
        history: SessionHistory = NO_HISTORY,
    ) -> Episode | Request | None:
        """Send the updates for the events of an episode, which follow the history, while `wait` waits for it.

        The events are those of the loom, because another process may run the entity. The episode may rest with an
        utterance that waits for a reply.
        """
        pump = self._pump = _Pump(self, events, history)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pump.run)
            episode = await wait()
            if not isinstance(episode, Episode):  # the events do not end
                await pump.stop(episode)
        self._diffs.clear()
        if episode is not None:
            await pump.finish(episode)
            await self._tell_usage()
        return episode

    async def follow(self, history: SessionHistory) -> None:
        """Show what the entity does on the intents that it had before the editor opened the session, until they end."""
        cancels = self._cancels
        for number, work in enumerate(history.open_work):
            async with self._turn:
                rested = await self._follow(history, number, cancels)
            if isinstance(rested, Request):  # the next prompt is the reply, and shows what follows
                with suppress(CantripError):
                    await wait_through_outages(work)

    async def _follow(self, history: SessionHistory, number: int, cancels: int) -> Episode | Request | None:
        """Show one open work of a history, as `_show`; an error is a message in the session."""
        works, after = history.open_work[number:], EventId(len(history.logs[-1]), END_OF_RECORD)
        rested = None
        try:
            events = works[0].events(str(after), deltas=True)
            rested = await self._show(events, partial(self._await_work, works, cancels), history)
        except* CantripError as errors:
            await self.answer(_to_request_error(errors).message)
        return rested

    async def _await_work(self, works: Sequence[Work], cancels: int) -> Episode | Request | None:
        """Wait for the first of some works of the entity; cancelling it cancels them all."""

        async def cancel(why: str, *, now: bool, by: str) -> None:
            for open_work in reversed(works):  # what waits is taken back before the entity takes it
                await open_work.cancel(why, now=now, by=by)

        work = works[0]
        cantrip = self._restored or self.cantrip()  # an episode ends as it began, unless the recipe has changed
        with suppress(Held):
            await self.runtime.resume(work.entity_id, cantrip=cantrip, by=self.by)
        return await self._rest(work, cancel, cancels)

    async def _rest(
        self,
        work: Work,
        cancel: Callable[..., Awaitable[object]],
        cancels: int,
    ) -> Episode | Request | None:
        """Return the episode of a work, or the utterance with which it rests.

        `cancel` is called once the prompt is cancelled.
        """
        ended: Episode | Request | None = None

        async def cancel_if_asked() -> None:
            while self._cancels <= cancels:
                await self._cancelled.wait()
            await cancel("cancelled in the editor", now=True, by=self.by)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_if_asked)
            with suppress(Withdrawn):
                ended = await rest(self.runtime, work.entity_id, partial(wait_through_outages, work))
            tasks.cancel_scope.cancel()
        return ended

    async def _give(self, prompt: EditorPrompt) -> tuple[Work, str | None]:
        """Give the entity the prompt as its intent, or as the reply that it waits for; return the work, and the id of
        the event after which its answer begins, if that is not its first one.
        """
        await self.refresh()
        return await self._reply(prompt) or (await self._begin(prompt), None)

    async def _reply(self, prompt: EditorPrompt) -> tuple[Work, str] | None:
        """Give the entity the prompt as the reply that it waits for; return as `_give`, None if it waits for none."""
        entity = None if self._fork_at is not None else await self.find_entity()
        if entity is None or self.recipe.circle.medium != "person":
            return None
        after = EventId(await self.runtime.read(partial(self._count_records, entity.id)), END_OF_RECORD)
        if await reply(self.runtime, entity.id, prompt.intent, by=self.by, door=self.door) is None:
            return None
        find = partial(self.runtime.read, partial(find_newest_work, self.runtime, entity))
        return await repeat_through_outages(find), str(after)

    def _count_records(self, entity_id: str) -> int:
        return len(self.runtime.loom.records(entity_id))

    async def _begin(self, prompt: EditorPrompt) -> Work:
        """Give the entity the prompt, or begin it with the prompt; return its work.

        After a failure the next prompt begins where this one would have.
        """
        cantrip, folds, fork_at = self.cantrip(), self._folds, self._fork_at
        self._folds, self._fork_at = False, None
        if fork_at is not None:
            self._forks += 1
        try:
            return await self._begin_at(fork_at, cantrip, prompt)
        except CantripError:
            self._folds = folds or self._folds
            if fork_at is not None:
                self._forks, self._fork_at = self._forks - 1, fork_at
            raise

    async def _begin_at(self, fork_at: str | None, cantrip: Cantrip, prompt: EditorPrompt) -> Work:
        context = prompt.context
        if fork_at:
            entity = await self.runtime.start_fork(
                fork_at,
                intent=prompt.intent,
                cantrip=cantrip,
                context=context or None,
                lasting=True,
                key=_make_fork_key(self.key, self._forks),
                by=self.by,
            )
            return entity.work
        if fork_at == "" or not await self._read_has_begun():
            roots = [str(root) for root in self.editor.roots]
            entity = await self.runtime.invoke(
                cantrip,
                prompt.intent,
                context={"workspace": roots, **context},
                key=_make_fork_key(self.key, self._forks),
                by=self.by,
            )
            return entity.work
        entity = await self.runtime.read(lambda: self.runtime.get_entity(self.entity_id, cantrip=cantrip))
        was_busy = await self.runtime.read(lambda: self.runtime.loom.state(entity.id) != "idle")
        work = await entity.post(prompt.intent, context=context or None, by=self.by)
        read_state = partial(self.runtime.read, lambda: work.state)
        if was_busy and await repeat_through_outages(read_state) == "waiting":
            await self.tell(make_chunk("agent_thought_chunk", WAITS, uuid.uuid4().hex))
        return work

    def cancel(self) -> None:
        """Interrupt the running prompt and the waiting ones."""
        self._cancels += 1
        self._cancelled.set()
        self._cancelled = anyio.Event()
        if self._making is not None:
            self._making.cancel()

    async def leave(self) -> None:
        """Release the entity, and the servers of the session, once it is idle."""
        self.server_prompts.close()
        entity = await self.find_entity()
        if entity is not None:
            entity.unload()

    def hand_over(self) -> None:
        """Show and ask nothing more about the prompt under way: the editor has opened the session again."""
        self.server_prompts.close()
        if self._pump is not None:
            self._pump.is_muted = True
        for scope in self._asked.values():
            scope.cancel()

    async def find_entity(self) -> Entity | None:
        """Return the current entity of this session; None if it has no intent yet."""
        return await self.runtime.read(lambda: self.runtime.get_entity(self.entity_id) if self.has_begun else None)

    async def tell(self, update: Update) -> None:
        """Send the editor an update."""
        await self._notify(self.id, self.runtime.redact(update))

    async def answer(self, text: str) -> None:
        """Show the editor's user a message that is not from the entity."""
        await self.tell(make_chunk("agent_message_chunk", text, uuid.uuid4().hex))

    async def _tell_usage(self) -> None:
        size = getattr(resolve(self.cantrip().crystal), "context_window", None)
        if not size:
            return
        loom, own = self.runtime.loom, self.entity_id
        look = partial(self.runtime.read, lambda: (loom.turns(own), loom.subtree_usage(own)))
        turns, usage = await repeat_through_outages(look)
        if not turns:
            return
        last, cost = turns[-1].metadata, usage.cost
        update: Update = {
            "sessionUpdate": "usage_update",
            "used": last.tokens_prompt + last.tokens_completion,
            "size": size,
        }
        if cost:
            update["cost"] = {"amount": round(cost, 6), "currency": "USD"}
        await self.tell(update)

    # History

    async def read_history(self) -> SessionHistory:
        """Return the history of the session."""
        return await self.runtime.read(self._read_history)

    async def replay(self, history: SessionHistory) -> None:
        """Send the whole history of the session as updates."""
        turns = history.turns
        for records in history.logs:
            log, replay, waiting = EventLog(), UpdateReplay(self.editor.locate), list[Update]()
            for event in log.add_all(records):
                if isinstance(event, StepCompleteEvent) and event.turn_id not in turns:
                    waiting.clear()  # the session went back to before this turn, and so to before its intent
                    break
                waiting += replay.add(event, log.turn)
                if isinstance(event, StepCompleteEvent):
                    await self._tell_all(waiting)
                    waiting.clear()
            await self._tell_all(waiting)

    def _read_history(self) -> SessionHistory:
        if not self.has_begun:
            return SessionHistory(frozenset(), ())
        loom, entity = self.runtime.loom, self.runtime.get_entity(self.entity_id)
        open_work = list_open_work(entity)  # read first: its beginning may be in the logs
        requests = [self.runtime.requests(entity=member) for member in loom.subtree(entity.id)]
        return SessionHistory(
            frozenset(turn.id for turn in self.thread()),
            [loom.records(entity_id) for entity_id in loom.originals(entity.id)],
            open_work,
            requests=sorted(chain.from_iterable(requests), key=lambda request: request.asked_at),
        )

    async def _tell_all(self, updates: Iterable[Update]) -> None:
        for update in updates:
            await self.tell(update)

    def thread(self) -> list[Any]:
        """Return the turns of the session, including those before its forks."""
        loom = self.runtime.loom
        turn = loom.last_turn(self.entity_id) if self.has_begun else None
        return [] if turn is None else loom.thread(turn.id)

    # Going back

    def go_back(self, turn_id: str) -> None:
        """Let the next prompt continue from a turn; "" is the beginning."""
        self._fork_at = turn_id

    def count_turns_before_next(self, turns: Sequence[str]) -> int:
        """Return how many of the session's turns the next prompt continues, given the ids of all."""
        if self._fork_at is None:
            return len(turns)
        return turns.index(self._fork_at) + 1 if self._fork_at in turns else 0

    def fold_next(self) -> None:
        """Request a fold of older turns before the next query."""
        self._folds = True

    # Requests to people

    def concerns(self, request: Request) -> bool:
        """Return whether a request is of this session's entity, or of one below it."""
        return request.root == self.entity_id

    async def ask_user(self, request: Request) -> None:
        """Send a request to the editor's user and record the decision; without an answer the request stays open."""
        if request.id in self._asked or request.kind == "deferred":  # a program delivers the result, not the user
            return
        if request.is_utterance:  # the next prompt is the reply
            return
        try:
            with anyio.CancelScope() as self._asked[request.id]:
                why = await self._ask_and_decide(request)
                if why is not None:
                    _log.warning("a request stays open", entity=request.entity, why=why)
                    await self._tell_who_decides(request, why)
        except PeerGone:
            _log.info("a request stays open: the editor has gone", entity=request.entity)
        finally:
            del self._asked[request.id]

    async def _ask_and_decide(self, request: Request) -> str | None:
        """Ask the editor's user, and record the decision; return why the request stays open, if it does."""
        try:
            if request.kind != "question":
                await self._put_approval(request)
            elif not await self._put_question(request):
                return "the editor sent no answer"
        except (AlreadyDecided, EntityEnded, UnknownRequest):
            return None  # another door decided, or the prompt was cancelled
        except RequestError as error:
            return f"the editor did not ask you: {error.message}"
        except CantripError as error:
            return f"your decision was not recorded: {title_of(str(error))}"
        return None

    async def _put_approval(self, request: Request) -> None:
        call_id = f"{request.turn}:{request.call}" if request.call else request.id
        call: dict[str, Any] = {
            "toolCallId": call_id,
            "title": call_title(request.gate, request.args),
            "kind": kind_of(request.gate),
            "status": "pending",
            "rawInput": dict(request.args),
            "content": [make_block(fence(request.render(columns=COLUMNS, rows=ROWS)))],
        }
        if is_file_write(request.gate, request.args):
            self._diffs[call_id] = await self._make_diff(request.args)
            call["content"].append(self._diffs[call_id])
        options = [
            {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
            {"optionId": "always", "name": "Always allow", "kind": "allow_always"},
            {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
        ]
        question = self.runtime.redact({"toolCall": call, "options": options})
        outcome = await self.editor.ask("session/request_permission", question)
        choice = read_choice(outcome)
        if choice in ("allow", "always"):
            remember = "entity" if choice == "always" else "once"
            await self.runtime.decide(request.id, "allow", by=self.by, remember=remember, door=self.door)  # type: ignore[arg-type]
        elif choice == "reject":
            await self.runtime.decide(request.id, "deny", by=self.by, door=self.door)
        elif choice != "cancelled":
            note = f"the editor answered with {choice[:100]!r}, which is none of its options: allow, always, reject"
            await self.runtime.decide(request.id, "deny", by=self.by, note=note, door=self.door)
            await self.answer(f"{title_of(request.gate)} was not run: {note}")
        elif await self._is_open(request):
            self.cancel()  # the protocol's word for it: the user has cancelled the prompt

    async def get_diff(self, call_id: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the difference that a call of `write` makes: that of the question about it, if one was asked."""
        diff = await self._make_diff(args)  # perhaps after the write; the question's was read before it
        return self._diffs.pop(call_id, diff)

    async def _make_diff(self, args: Mapping[str, Any]) -> dict[str, Any]:
        old_text = await self.editor.read_old_text(args["path"])
        # an equal text was written already: the old one is lost
        return make_diff(args, None if old_text == args["content"] else old_text, self.editor.locate)

    async def _is_open(self, request: Request) -> bool:
        requests = await self.runtime.read(lambda: self.runtime.requests(entity=request.entity))
        return any(open_request.id == request.id for open_request in requests)

    async def _put_question(self, request: Request) -> bool:
        """Put a question as a form, again with the mistake if an answer does not fit; return whether it is decided."""
        if not self.editor.capabilities.asks:
            note = "this editor has no form for questions: put it in your answer, and the user will reply"
            await self.runtime.decide(request.id, "deny", by=self.by, note=note, door=self.door)
            return True
        schema = request.schema or {"type": "string"}
        is_object = schema.get("type") == "object"
        form = schema if is_object else {"type": "object", "properties": {"answer": schema}, "required": ["answer"]}
        question = {"mode": "form", "message": question_text(request), "requestedSchema": form}
        mistake: InvalidDecision | None = None
        for _ in range(MOST_FORMS):
            action, content = _read_form(await self.editor.ask("elicitation/create", self.runtime.redact(question)))
            if action == "decline":
                await self.runtime.decide(request.id, "deny", by=self.by, door=self.door)
                return True
            if action != "accept" or content is None:
                return False
            answer = content if is_object else content.get("answer")
            try:
                await self.runtime.decide(request.id, answer=answer, by=self.by, door=self.door)
            except InvalidDecision as invalid:
                mistake = invalid
                question["message"] = f"{title_of(str(invalid))}\n\n{question_text(request)}"
            else:
                return True
        assert mistake is not None, "each form had a mistake"
        raise mistake

    async def _tell_who_decides(self, request: Request, why: str) -> None:
        """Say in the session that its entity still waits for a person, and where one decides."""
        await self.answer(
            f"{title_of(request.gate)} still waits for a person ({why}). Decide with `cantrip requests {request.id}`, "
            "or cancel the prompt."
        )


def _read_form(reply: Any) -> tuple[Any, dict[str, Any] | None]:
    """Return what an editor's user did with a form, and what was filled in, from an answer of any shape."""
    if not isinstance(reply, Mapping):
        return None, None
    content = reply.get("content")
    return reply.get("action"), dict(content) if isinstance(content, Mapping) else None


class _Pump:
    """Sends the updates of an entity while it works, in whichever process."""

    def __init__(self, session: EditorSession, events: RunEvents, history: SessionHistory) -> None:
        self._session = session
        self._follows = bool(history.logs)
        """Whether the intent is not a prompt of this editor, so that the editor does not show it by itself."""
        self._shown = history.turns
        """The ids of turns that the editor has already."""
        self._events = events
        self._upserts = Upserts(GROWTH)
        self._subscription = self._upserts.subscribe()
        self._requests = {request.id for request in history.requests}
        """The ids of the requests that were published so far."""
        self._moved = anyio.Event()
        """Set with the next request, and with the end of the events."""
        self._segments = Segments()
        self._prefix = uuid.uuid4().hex[:8]
        self._calls: dict[str, ToolCallUpsert] = {}
        """The unfinished calls that the editor knows, by item."""
        self.is_muted = False
        """Whether another session shows the work now."""

    async def run(self) -> None:
        """Send updates until the events end."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._publish)
            try:
                with count_reader(self._session.runtime.telemetry, "acp"):
                    async for output in self._subscription:
                        await self._send(output)
            except FellBehind:  # the editor reads slowly: the answer follows in any case
                _log.warning("an editor reads too slowly: some updates were left out")

    async def _tell(self, update: Update) -> None:
        if not self.is_muted:
            await self._session.tell(update)

    async def _publish(self) -> None:
        async for event in follow_through_outages(self._events):
            if self._follows and isinstance(event, EntityStartedEvent):
                await self._tell(show_intent(event))
            self._upserts.publish((event,))
            if isinstance(event, RequestedEvent):
                self._requests.add(event.request_id)
                self._moved.set()
                self._moved = anyio.Event()
        self._upserts.close()
        self._moved.set()

    async def stop(self, utterance: Request | None) -> None:
        """Let the events end: with the utterance if it is the entity's own, else at once."""
        if utterance is not None and utterance.entity == self._session.entity_id:
            while utterance.id not in self._requests and not self._moved.is_set():
                await self._moved.wait()
        self._events.close()

    async def _send(self, output: Output) -> None:
        if output.turn_id in self._shown:
            return
        for piece in self._segments.add(output):
            chunk = chunk_of(piece, self._prefix)
            if chunk is not None:
                await self._tell(chunk)
        talks = self._session.recipe.circle.medium == "person"
        if isinstance(output, ToolCallUpsert) and output.tool_name not in ("done", *(("person",) if talks else ())):
            update = tool_update(output, self._session.editor.locate, is_new=output.item_id not in self._calls)
            if is_file_write(output.tool_name, output.tool_arguments) and "content" in update:
                update["content"] = [await self._session.get_diff(update["toolCallId"], output.tool_arguments)]
            await self._tell(update)
            self._calls[output.item_id] = output
            if output.terminal:
                self._calls.pop(output.item_id, None)
        elif isinstance(output, TurnComplete) and self._session.recipe.circle.has_programs:
            runtime = self._session.runtime
            turn = await repeat_through_outages(partial(runtime.read, partial(runtime.loom.turn, output.turn_id)))
            for update in program_of(turn, self._session.recipe.circle.medium_name):
                await self._tell(update)

    async def finish(self, episode: Episode | Request) -> None:
        """Send the rest: the ends of unfinished calls, and the answer, or the utterance with which it rests."""
        for upsert in self._calls.values():
            update = tool_update(upsert, self._session.editor.locate, is_new=False)
            await self._tell({**update, "status": "failed"})
        if isinstance(episode, Request):
            answer: str | None = episode.text
        else:
            answer = as_text(episode.raw_result) if episode.terminated else episode.summary
        for piece in self._segments.finish(answer):
            chunk = chunk_of(piece, self._prefix)
            if chunk is not None:
                await self._tell(chunk)


def _choose(lent: Cantrip, choices: Choices, folds: bool) -> Cantrip:
    """Return the cantrip with some options; one that `folds` folds older turns away before its next query."""
    chosen = with_choices(lent, choices)
    if not folds:
        return chosen
    return replace(chosen, folding=replace(chosen.folding, trigger_after_turns=1, keep_turns=1))


def _to_request_error(errors: BaseExceptionGroup[CantripError]) -> RequestError:
    """Return the error of a prompt as one sentence."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return RequestError(INTERNAL_ERROR, title_of(str(error)), {"error": type(error).__name__})


def _make_fork_key(key: str, number: int) -> str:
    """Return the key of the entity of a session that its forks began with; number 0 is the session's own."""
    return f"{key}/{number}" if number else key


def list_entities(runtime: Runtime, key: str) -> list[Entity]:
    """Return the entities of the session with a key: its own and those of its forks, oldest first. Reads the loom."""
    entities: list[Entity] = []
    while (entity := runtime.begun_with(_make_fork_key(key, len(entities)))) is not None:
        entities.append(entity)
    return entities


def workspace_of(runtime: Runtime, entity_id: str) -> Sequence[str]:
    """Return the folders that a session began with. Reads the loom."""
    first_intent = runtime.loom.first_intent(entity_id)
    context = None if first_intent is None else first_intent.context
    roots = context.get("workspace") if isinstance(context, Mapping) else None
    return [str(root) for root in roots] if isinstance(roots, Sequence) else []
