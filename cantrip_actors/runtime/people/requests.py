"""Requests: list the open ones, follow them, decide them, and deliver the results of deferred calls.

A request is a record of the entity that waits, so the loom holds all of them, whether a process runs the entity or not.
A decision is mail to that entity: it is durable when `decide` returns, and a record takes it exactly once. Its key is
made of the request's id, so of two decisions about one request the first one counts.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, get_args, runtime_checkable

from cantrip_actors.circle.plain import NotPlain, Pictured, convert_with_images
from cantrip_actors.loom import KeyUsed, Loom
from cantrip_actors.loom.stores.selection import Page, Selection
from cantrip_actors.machine.project import Life, Verdict, find_decision, find_delivery
from cantrip_actors.records.door import check_door
from cantrip_actors.records.mail import Mail, MailRow, make_decision_key
from cantrip_actors.records.records import Decision, Requested
from cantrip_actors.runtime.events.events import Bus
from cantrip_actors.runtime.events.follower import Follower
from cantrip_actors.runtime.loom.core import Core
from cantrip_actors.runtime.loom.outage_log import OutageLog
from cantrip_actors.runtime.mail.inboxes import POLL_INTERVAL, Inboxes
from cantrip_actors.runtime.people.elicitations import Elicitation, Elicitations
from cantrip_actors.runtime.people.request import Request, make_request, redact_request
from cantrip_actors.stream.events import RequestedEvent
from cantrip_actors.terms.arguments import (
    check,
    check_choice,
    check_kind,
    check_name,
    check_texts,
    is_text,
    is_visible,
    show,
)
from cantrip_actors.terms.bounds import DEEPEST, TooLarge, check_value, is_deeper
from cantrip_actors.terms.errors import AlreadyDecided, EntityEnded, InvalidDecision, InvalidIntent, UnknownRequest
from cantrip_actors.terms.exact_json import dump_exactly, read_arguments
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import NO_IMAGES, split_message
from cantrip_actors.terms.json_schema import find_misfits, load
from cantrip_actors.terms.own_gate_names import MCP_APPROVAL, QUESTION
from cantrip_actors.terms.wrapper import Unattended
from cantrip_actors.user_code.threads import run_apart

LONGEST_SCHEMA: Final = 2_000
"""Characters of a schema in the error about an answer that does not fit it."""

Remember = Literal["once", "entity"]


@runtime_checkable
class RequestSource(Protocol):
    """Requests that are not records of entities, for example of dispatches. Equal sources are used once."""

    def __hash__(self) -> int: ...

    def has(self, request_id: str) -> bool:
        """Return whether the id belongs to this source, open or not. May read files, as `open`."""

    def open(self) -> Iterable[Request]:
        """Return the open requests. May read files; a feed calls it in a thread."""

    async def decide(
        self, request_id: str, decision: Literal["allow", "deny"], *, by: str, note: str, door: str = "", key: str = ""
    ) -> bool | None:
        """Make the decision durable; return True for one that repeats the decision of the same non-empty `key`.

        `door` says who vouches for `by`, as in `Runtime.decide`. Raises UnknownRequest, AlreadyDecided.
        """


class RequestFeed(Follower[Request]):
    """The open requests, then each new one: `async for request in runtime.requests(follow=True)`.

    While a feed is open, requests count as attended, unless it was opened with `attend=False`. While the loom cannot be
    read, it waits, and the log says so. Close it, or leave its `async with`, to stop following.
    """

    def __init__(self, requests: Requests, bus: Bus, tenant: str | None = None, to: str | None = None) -> None:
        super().__init__(bus.subscribe(lambda event: isinstance(event, RequestedEvent)))
        self._requests = requests
        self._tenant = tenant
        self._to = to
        self._known: set[tuple[str, str]] = set()
        self._log = OutageLog("requests could not be read", "requests are read again")

    def close(self) -> None:
        """Stop following."""
        self._requests.forget(self)
        super().close()

    def _choose_interval(self) -> float | None:
        return POLL_INTERVAL if self._requests.has_other_writers or self._log.has_failed else None

    async def _read(self) -> Iterable[Request]:
        requests: list[Request] = []
        with self._log.watch():
            requests = await self._requests.find_open(self._tenant, self._known)
        if self._log.has_failed:
            return ()
        known, self._known = self._known, {(request.id, request.asked_at) for request in requests}
        return [one for one in requests if (one.id, one.asked_at) not in known and one.is_for(self._to)]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


class Requests:
    """The requests of one runtime's loom."""

    def __init__(self, core: Core, inboxes: Inboxes, bus: Bus) -> None:
        self._core = core
        self._inboxes = inboxes
        self._bus = bus
        self._feeds: weakref.WeakSet[RequestFeed] = weakref.WeakSet()
        """The feeds that follow requests: while there are any, requests are attended."""
        self._sources: dict[RequestSource, str] = {}
        self._can_check = False
        """Whether jsonschema, which checks arguments and answers, is imported."""
        self.elicitations = Elicitations(core.make_moment, lambda: bool(self._feeds), self._publish)

    def add(self, source: RequestSource, tenant: str = "") -> None:
        """Also list and decide the requests of a source, which belong to a tenant."""
        self._sources[source] = tenant

    @property
    def has_other_writers(self) -> bool:
        """Whether requests may come from other processes, without an event in this one."""
        return self._core.store.shared or bool(self._sources)

    def denies(self, setting: Unattended | None) -> bool:
        """Whether a request is denied at once, because no program follows requests.

        `setting` is the `unattended` setting of its gate; None for the runtime's.
        """
        return (setting or self._core.limits.unattended) == "deny" and not self._feeds

    @property
    def followers(self) -> int:
        """The number of feeds in this process that follow requests."""
        return len(self._feeds)

    def follow(self, tenant: str | None = None, *, attend: bool = True, to: str | None = None) -> RequestFeed:
        """Return a feed of open and new requests, of all tenants or of one; they count as attended with `attend`.

        With `to`, the name of a person, without those that address another person.
        """
        feed = RequestFeed(self, self._bus, tenant, to)
        if attend:
            self._feeds.add(feed)
        return feed

    def forget(self, feed: RequestFeed) -> None:
        """Forget a feed that was closed."""
        self._feeds.discard(feed)

    def open(self, tenant: str | None = None) -> Iterator[Request]:
        """Yield the open requests of all tenants, or of one.

        Requests of entities come first, in the order in which the entities began.
        """
        yield from map(self._add_root, self.list_entity_requests(tenant))
        yield from self._list_server_requests(tenant)
        yield from self._list_source_requests(tenant)

    async def find_open(self, tenant: str | None, known: Collection[tuple[str, str]]) -> list[Request]:
        """Return the open requests; the sources are read in a thread. Those in `known` have no root."""

        def look() -> list[Request]:
            requests = self.list_entity_requests(tenant)
            return [one if (one.id, one.asked_at) in known else self._add_root(one) for one in requests]

        found = [*await self._core.in_store(look), *self._list_server_requests(tenant)]
        return [*found, *await run_apart(partial(self._list_source_requests, tenant))] if self._sources else found

    def _list_sources(self, tenant: str | None) -> list[RequestSource]:
        """Return the sources of all tenants, or of one. Any thread may call it."""
        return [source for source, whose in list(self._sources.items()) if tenant in (None, whose)]

    def _find_source(self, request_id: object, tenant: str | None) -> RequestSource | None:
        """Return the source of a request, which may read files; None for a request of an entity."""
        sources = self._list_sources(tenant) if isinstance(request_id, str) else []
        return next((source for source in sources if source.has(str(request_id))), None)

    def _list_source_requests(self, tenant: str | None) -> list[Request]:
        found = (request for source in self._list_sources(tenant) for request in source.open())
        return [redact_request(request, self._core.guard.redactor) for request in found]

    def _list_server_requests(self, tenant: str | None) -> Iterator[Request]:
        for elicitation in self.elicitations:
            if self._core.belongs_to_tenant(elicitation.call.entity_id, tenant):
                yield self._make_elicitation_request(elicitation)

    def _add_root(self, request: Request) -> Request:
        """Return the request of an entity with the root of the entity's tree. Reads the loom."""
        assert request.entity is not None, "an entity made it"
        return replace(request, root=self._core.find_root(request.entity))

    def _make_elicitation_request(self, one: Elicitation) -> Request:
        call = one.call
        request = Request(
            one.id,
            "question",
            call.entity_id,
            call.turn_id,
            call.call_id,
            call.gate,
            call.args,
            one.text,
            one.schema,
            one.moment.at,
            None,
            root=self._core.find_root(call.entity_id),
        )
        return redact_request(request, self._core.guard.redactor)

    def _publish(self, one: Elicitation) -> None:
        """Publish a new question of a server to subscribers and feeds."""
        call, asked = one.call, self._make_elicitation_request(one)
        self._bus.publish(
            [
                RequestedEvent(
                    call.entity_id, one.moment.wall, call.turn_id, one.id, call.gate, asked.args, asked.text, None
                )
            ]
        )

    def open_of(self, entity_id: str) -> list[Request]:
        """Return the open requests of one entity, the oldest first."""
        elicited = [elicitation for elicitation in self.elicitations if elicitation.call.entity_id == entity_id]
        own = self._find_entity_request(entity_id)
        requests = [*([] if own is None else [self._add_root(own)]), *map(self._make_elicitation_request, elicited)]
        return sorted(requests, key=lambda request: request.asked_at)

    async def read_page(self, loom: Loom, cursor: str | None, limit: int) -> Page[Request]:
        """Return the open requests of the next waiting entities of a loom, and first those that no entity records."""

        def look() -> Page[Request]:
            waiting = loom.page(Selection(state="waiting"), cursor=cursor, limit=limit, oldest_first=True)
            requests = [self._find_entity_request(listed.id) for listed in waiting]
            return Page([self._add_root(request) for request in requests if request is not None], waiting.next)

        page = await self._core.in_store(look)
        others = [] if cursor is not None else list(self._list_server_requests(loom.tenant))
        if cursor is None and self._sources:
            others += await run_apart(partial(self._list_source_requests, loom.tenant))
        return Page(sorted([*page, *others], key=lambda request: request.asked_at), page.next)

    def list_entity_requests(self, tenant: str | None) -> Iterator[Request]:
        """Yield the open requests of entities, in the order in which the entities began, without their roots."""
        for entity_id in self._core.store.entities_at(Life.WAITING, Life.WAITING):
            if self._core.belongs_to_tenant(entity_id, tenant):
                request = self._find_entity_request(entity_id)
                if request is not None:
                    yield request

    def _find_entity_request(self, entity_id: str) -> Request | None:
        """Return the open request that an entity's records have."""
        requested = self._core.loom.open_request(entity_id)
        return None if requested is None else self._make_request(requested)

    def _make_request(self, requested: Requested) -> Request:
        return redact_request(make_request(requested), self._core.guard.redactor)

    async def decide(
        self,
        request_id: str,
        decision: Literal["allow", "deny"] | None = None,
        *,
        answer: Any = None,
        by: str,
        note: str = "",
        args: Mapping[str, Any] | None = None,
        remember: Remember = "once",
        door: str = "",
        key: str | None = None,
        memo: Any = None,
        tenant: str | None = None,
    ) -> bool:
        """Decide a request of any tenant, or of one. See `Runtime.decide`."""
        _check_author(by, note, key, door)
        source = await run_apart(partial(self._find_source, request_id, tenant)) if self._sources else None
        if source is not None:
            if decision not in ("allow", "deny") or answer is not None or args is not None or remember != "once":
                raise InvalidDecision(
                    f'request {request_id}: expected "allow" or "deny", with a note, and nothing else'
                )
            return bool(await source.decide(request_id, decision, by=by, note=note, door=door, key=key or ""))
        answer, images = _split_answer(answer)
        if await self._settle_elicitation(request_id, tenant, decision, answer, args, remember, by, door):
            return False
        args = read_arguments(args) if isinstance(args, Mapping) else args
        who = self._describe_author(by, note, door, key, memo)
        body: dict[str, Any] = {"request": request_id, "decision": decision or "answer", **who}
        body |= {} if args is None else {"args": dict(args) if isinstance(args, Mapping) else args}
        body |= {"answer": answer} if decision is None else {}
        body |= {"remember": True} if remember == "entity" else {}
        make_mail = partial(self._make_mail, request_id, body, images)
        requested = await self._find_open(request_id, make_mail, tenant, may_repeat=key is not None)
        if requested is None:
            return True
        request = self._make_request(requested)
        if args is not None or (answer is not None and request.schema is not None):
            await self._load_checks()
        await self._check_decision(request, decision, answer, args, remember)
        if args is not None:
            await self._core.in_store(partial(self._check_args, requested, args))
        return not await self._post(request_id, make_mail)

    async def deliver(
        self,
        call_id: str,
        result: object = None,
        *,
        error: str | None = None,
        later: Mapping[str, Mapping[str, Any]] | None = None,
        by: str,
        door: str = "",
        key: str | None = None,
        memo: Any = None,
        tenant: str | None = None,
    ) -> bool:
        """Deliver the result of a deferred call of any tenant, or of one. See `Runtime.deliver`."""
        _check_author(by, "", key, door)
        decision, answer, images = _read_delivery(result, error)
        check_kind("later", later, Mapping | None, "an object of results by the ids of their calls", InvalidDecision)
        following = {}
        for id, named in (later or {}).items():
            following[id], more = _read_later(id, named)
            images += more
        entity_id = call_id.partition(":")[0]
        request_id = await self._core.in_store(lambda: find_delivery(self._core.store.records(entity_id), call_id))
        who = self._describe_author(by, "", door, key, memo)
        body = {"request": request_id, "decision": decision, "answer": answer, **who}
        body |= {"later": following} if following else {}
        make_mail = partial(self._make_mail, request_id, body, images)
        requested = await self._find_open(request_id, make_mail, tenant, may_repeat=key is not None)
        if requested is None:
            return True
        if not requested.deferred:
            raise InvalidDecision(
                f"request {request_id} is about a call of {requested.gate} that waits for a person: decide it"
            )
        return not await self._post(request_id, make_mail)

    def _describe_author(self, by: str, note: str, door: str, key: str | None, memo: Any) -> dict[str, Any]:
        no = self._core.make_moment().fresh if key is None else key  # two decisions are never the same mail
        more = {"door": door or None, "memo": memo}
        return {"by": by, "note": note, "no": no, **{name: value for name, value in more.items() if value is not None}}

    async def _find_open(
        self, request_id: str, make_mail: Callable[[], Mail], tenant: str | None, *, may_repeat: bool
    ) -> Requested | None:
        """Return an open request; None if it was decided by this mail, which its sender repeats.

        Raises UnknownRequest, AlreadyDecided.
        """
        in_store = self._core.in_store
        try:
            return await in_store(partial(self._find, request_id, tenant))
        except AlreadyDecided:
            row = await in_store(partial(self._find_row, request_id)) if may_repeat else None
            if row is None or row.digest != (await in_store(make_mail)).digest:
                raise
            return None

    async def _post(self, request_id: str, make_mail: Callable[[], Mail]) -> bool:
        """Post a decision; return whether it is new: False if its sender has posted it twice at the same time.

        Raises AlreadyDecided if another one was posted meanwhile, or the entity has ended.
        """
        in_store = self._core.in_store
        try:
            return (await self._inboxes.post(await in_store(make_mail))).is_new
        except (KeyUsed, EntityEnded) as why:
            raise await in_store(partial(self._make_already_decided, request_id)) from why

    async def _settle_elicitation(
        self,
        request_id: str,
        tenant: str | None,
        decision: object,
        answer: Any,
        args: object,
        remember: object,
        by: str,
        door: str,
    ) -> bool:
        """Give the answer to the server that asks, and return True; False if no server asks this."""
        if answer is not None and self.elicitations.get(request_id) is not None:
            await self._load_checks()
        elicitation = self.elicitations.get(request_id)
        if elicitation is None or not self._core.belongs_to_tenant(elicitation.call.entity_id, tenant):
            return False
        await self._check_decision(self._make_elicitation_request(elicitation), decision, answer, args, remember)
        if self.elicitations.get(request_id) is not elicitation:  # its call has ended meanwhile
            return False
        self.elicitations.settle(elicitation, answer, by, door)
        return True

    async def _check_decision(self, request: Request, decision: object, answer: object, *more: object) -> None:
        """Check a decision; in a thread if a schema is followed, because a model or a server wrote it."""
        work = partial(check_decision, request, decision, answer, *more)
        if answer is None or request.schema is None:
            work()
        else:
            await run_apart(work)

    async def _load_checks(self) -> None:
        """Import jsonschema in a thread, because that takes long; a decision without a schema never needs it."""
        if not self._can_check:
            await run_apart(load)
            self._can_check = True

    async def prepare(self, gate: str, args: Mapping[str, Any] | None) -> None:
        """Prepare the check of a question's schema, which happens on the event loop."""
        if gate == QUESTION and args is not None and args.get("schema") is not None:
            await self._load_checks()

    def _make_mail(self, request_id: str, body: dict[str, Any], images: tuple[File, ...] = NO_IMAGES) -> Mail:
        entity_id, key = request_id.partition(":")[0], make_decision_key(request_id)
        return self._inboxes.make_mail(entity_id, "decision", body, images, key=key, sender=body["by"])

    def _find(self, request_id: str, tenant: str | None) -> Requested:
        """Return an open request. Raises UnknownRequest, AlreadyDecided."""
        store = self._core.store
        entity_id = request_id.partition(":")[0] if isinstance(request_id, str) else ""
        is_here = bool(entity_id) and self._core.belongs_to_tenant(entity_id, tenant)
        found = find_decision(store.records(entity_id), request_id) if is_here else None
        if found is None:
            raise UnknownRequest(
                f"no request has the id {show(request_id)}: expected one of runtime.requests(), or of "
                "`cantrip requests`"
            )
        if isinstance(found, Verdict) or self._find_row(request_id) is not None:
            raise self._make_already_decided(request_id)
        if found.expires_at is not None and found.expires_at <= self._core.make_moment().at:  # its timer will say so
            raise AlreadyDecided(request_id, "expired", "", found.expires_at, "")
        return found

    def _find_row(self, request_id: str) -> MailRow | None:
        """Return the row of a decision that was posted, also if the entity has taken it while its records were read."""
        core = self._core
        return core.store.find_mail(core.find_root(request_id.partition(":")[0]), make_decision_key(request_id))

    def _make_already_decided(self, request_id: str) -> AlreadyDecided:
        """Return the error that carries the first decision."""
        row, core = self._find_row(request_id), self._core
        # all of it: a process with another `max_waiting` may have posted it
        waiting = () if row is None or row.taken is not None else core.store.pending(row.entity_id, sys.maxsize)
        mail = next((pending.mail for pending in waiting if row is not None and pending.no == row.no), None)
        if mail is not None:
            body = mail.body
            return AlreadyDecided(
                request_id, str(body["decision"]), str(body.get("by", "")), mail.at, str(body.get("note", ""))
            )
        found = find_decision(self._core.store.records(request_id.partition(":")[0]), request_id)
        assert isinstance(found, Verdict), "its mail was taken by a record, or its entity has ended"
        return AlreadyDecided(request_id, *found)

    def _check_args(self, requested: Requested, args: Mapping[str, Any]) -> None:
        """Raise InvalidDecision for arguments that do not fit the schema of the gate that the entity has now."""
        entity_id = requested.entity_id
        cell = self._core.living.get(entity_id)
        circle = self._core.loom.header_in_force(entity_id).circle if cell is None else cell.plan.circle.as_json()
        schema = next((gate["parameters"] for gate in circle["gates"] if gate["name"] == requested.gate), None)
        if schema is not None:
            servers = tuple(f"{server['name']}__" for server in circle.get("servers", ()))
            _check_json(f"args: {requested.gate}", args, schema, foreign=requested.gate.startswith(servers))


def _check_author(by: object, note: str, key: object, door: str) -> None:
    """Raise InvalidDecision for a decision that does not say who made it, or says it in a wrong way."""
    check(is_visible(by), "by", "the name of the person or program that decides", by, InvalidDecision)
    check_texts(InvalidDecision, by=by, note=note)
    if key is not None:
        check_name("key", key, InvalidDecision)
    try:
        check_door(door)
    except ValueError as error:
        raise InvalidDecision(str(error)) from error


def _read_later(id: str, delivered: object) -> tuple[dict[str, Any], tuple[File, ...]]:
    """Return the result of a later call as `Decided` has it, and its images. Raises InvalidDecision."""
    if not isinstance(delivered, Mapping) or set(delivered) not in ({"result"}, {"error"}):
        raise InvalidDecision(f'later: {id}: expected {{"result": …}} or {{"error": "…"}}, got {show(delivered)}')
    decision, answer, images = _read_delivery(delivered.get("result"), delivered.get("error"))
    return {"decision": decision, "answer": answer, "images": len(images)}, images


def _read_delivery(result: object, error: object) -> tuple[Decision, Any, tuple[File, ...]]:
    """Return a result as JSON with its images, or the text of an error. Raises InvalidDecision."""
    decision: Decision = "answer" if error is None else "error"
    if error is not None:
        if not is_text(error):
            raise InvalidDecision(f"error: expected a text that says what failed, got {error!r}")
        if result is not None:
            raise InvalidDecision("expected a result or an error, got both")
    return decision, *_convert("result", result if error is None else error)


def _convert(what: str, value: object) -> tuple[Any, tuple[File, ...]]:
    """Return a value as JSON, with its images. Raises InvalidDecision for one that no gate may return."""
    try:
        converted = convert_with_images(value)
    except NotPlain as problem:
        raise InvalidDecision(f"{what}: expected a JSON value, or what a gate may return, got {problem}") from None
    return (converted.value, converted.images) if isinstance(converted, Pictured) else (converted, NO_IMAGES)


def _split_answer(answer: object) -> tuple[Any, tuple[File, ...]]:
    """Return an answer as JSON, and the files in it: those of a message to an entity. Raises InvalidDecision."""
    parts = answer if isinstance(answer, list | tuple) else (answer,)
    if not any(isinstance(part, File) for part in parts):
        return _convert("answer", answer)
    try:
        return split_message(answer, "answer: expected a text")
    except InvalidIntent as problem:
        raise InvalidDecision(str(problem)) from None


def check_decision(request: Request, decision: object, answer: object, args: object, remember: object) -> None:
    """Check a decision. The schema of a question was written by a model or a server.

    Raises InvalidDecision for one that does not fit the request.
    """
    check_choice("remember", remember, get_args(Remember), InvalidDecision)
    expected = '"allow" or "deny", or an answer to a question'
    check(decision in ("allow", "deny", None), "decision", expected, decision, InvalidDecision)
    if args is not None and (decision != "allow" or not isinstance(args, Mapping)):
        raise InvalidDecision('args: expected an object with the changed arguments, together with "allow"')
    if args is not None and request.gate == MCP_APPROVAL:
        raise InvalidDecision("args: the provider makes this call itself: allow it as it is, or deny it with a note")
    for what, value in (("args", args), ("answer", answer)):
        if is_deeper(value, DEEPEST):
            raise InvalidDecision(f"{what}: expected a value of at most {DEEPEST} levels")
        try:
            check_value(value)
        except TooLarge as problem:
            raise InvalidDecision(f"{what}: expected what one call may have, got {problem}") from None
    if request.kind == "deferred":
        if decision == "allow" or (decision is None) == (answer is None) or remember != "once":
            raise InvalidDecision(
                f"request {request.id} waits for the result of {request.gate}: expected an answer, which is the "
                'result, or "deny"; `deliver` takes a result or an error'
            )
    elif request.kind != "question":
        if decision is None or answer is not None:
            raise InvalidDecision(f'request {request.id} is about a call of {request.gate}: expected "allow" or "deny"')
    elif decision == "allow" or (decision is None) == (answer is None):
        raise InvalidDecision(f'request {request.id} is a question: expected either an answer or "deny"')
    if decision is None:
        _check_answer(request, answer)


def _check_answer(request: Request, answer: object) -> None:
    if request.is_utterance and not is_text(answer):
        raise InvalidDecision(
            f"answer: expected the reply: a text, or a list of texts, images and files; got {answer!r:.300}"
        )
    if request.schema is not None:
        _check_json("answer", answer, request.schema, foreign=True)


def _check_json(what: str, value: object, schema: Mapping[str, Any], *, foreign: bool = False) -> None:
    problems = find_misfits(value, schema, foreign=foreign)
    if problems:
        raise InvalidDecision(
            f"{what}: {'; '.join(problems)}; expected a value that fits the schema {_render_schema(schema)}"
        )


def _render_schema(schema: Mapping[str, Any]) -> str:
    """Return a schema as JSON, without the rest of a long one."""
    try:
        text = dump_exactly(dict(schema)).decode()
    except ValueError:  # a whole number of more digits than Python writes
        text = show(schema)
    return text if len(text) <= LONGEST_SCHEMA else f"{text[:LONGEST_SCHEMA]} … ({len(text):,} characters)"
