"""The state of one HTTP service: its runtime and cantrips, tokens and limits, feeds of events, and its shutdown."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup, TaskStatus
from starlette.authentication import AuthenticationBackend

from cantrip_actors import Cantrip, EntityEvent, RequestFeed, Runtime
from cantrip_actors.http.addresses import parse_origin
from cantrip_actors.http.feeds import Feed
from cantrip_actors.http.given_texts import GivenTexts
from cantrip_actors.http.limits import Limiter, ServiceLimits
from cantrip_actors.http.logins import Logins
from cantrip_actors.http.problems import Problem, make_revoked, problem_of
from cantrip_actors.http.request_watch import RequestWatch
from cantrip_actors.http.supervision import Supervision
from cantrip_actors.http.token import SCOPES, Token
from cantrip_actors.http.tokens import Tokens
from cantrip_actors.observe import Telemetry, Upserts
from cantrip_actors.observe.batching import GROWTH, WHOLE_TEXTS
from cantrip_actors.observe.overview import Overview
from cantrip_actors.terms.cantrip import by_name
from cantrip_actors.terms.errors import RuntimeClosed

LOOK_AT_TOKENS: Final = 1.0
"""Seconds until an answer under way notices that its token was revoked."""


class Service:
    """The state that all requests share. Enter it with `async with` in the event loop of its runtime.

    Clients may cast the cantrips that the runtime offers, by their names: the runtime continues entities of an earlier
    process with these, and begins submissions. They may also submit cantrips that other nodes of the loom offer. With
    `cantrips`, clients may cast and submit those only; for any that the runtime does not offer, entities of an earlier
    process and submissions wait.

    `tokens` are the accepted ones. With None any client may do everything (`--no-auth`), unless `authentication`, a
    backend of Starlette, decides about requests: it returns the scopes, and the user, who may be a `Token`. `hosts` are
    the names by which clients reach the service, and `origins` those of other sites whose pages may use it. `telemetry`
    is that of the runtime, for `/metrics`. With `access_log` each request is a line in the log.
    """

    def __init__(
        self,
        runtime: Runtime,
        cantrips: Mapping[str, Cantrip] | Iterable[Cantrip] | None = None,
        *,
        tokens: Tokens | None = None,
        authentication: AuthenticationBackend | None = None,
        limits: ServiceLimits | None = None,
        hosts: Iterable[str] = ("localhost", "127.0.0.1", "::1"),
        origins: Iterable[str] = (),
        page: bool = True,
        system_messages: str = "data",
        telemetry: Telemetry | None = None,
        access_log: bool = False,
    ) -> None:
        self.runtime = runtime
        self.cantrips: dict[str, Cantrip] = _choose_cantrips(runtime, cantrips)
        self.serves_nodes: bool = cantrips is None
        """Whether clients may also submit the cantrips that other nodes of the loom offer."""
        if tokens is not None and authentication is not None:
            raise ValueError("expected tokens or an authentication backend, got both: the backend may know the tokens")
        self.tokens = tokens
        self.logins: Logins | None = None if authentication is None else Logins(authentication)
        self.scopes: Sequence[str] = SCOPES
        """The scopes that tokens may have: those of extensions are among them once they are served."""
        self.hosts: frozenset[str] = frozenset(host.lower().strip("[]") for host in hosts)
        self.origins: frozenset[str] = frozenset(map(parse_origin, origins))
        self.page = page
        self.system_messages = system_messages
        self.telemetry = telemetry
        self.access_log = access_log
        if telemetry is not None:
            telemetry.counters.read_gauges_of(self._gauges)
        self.limiter: Limiter = Limiter(limits or ServiceLimits(), self._find_busy)
        self.upserts: Upserts
        """For readers that get whole texts."""
        self.growth: Upserts
        """For readers that get only new text."""
        self.requests: RequestWatch
        self.given_texts: GivenTexts = GivenTexts()
        self.is_ending: bool = False
        """True once the event streams are ending."""
        self.has_no_readers: anyio.Event = anyio.Event()
        """Set once they have ended."""
        self._feeds: dict[str | None, Feed] = {}
        self._locks: weakref.WeakValueDictionary[str, anyio.Lock] = weakref.WeakValueDictionary()
        self._attending: dict[str, tuple[RequestFeed, int]] = {}
        self._supervision: tuple[Supervision, int] | None = None
        self._overviews: dict[str | None, Overview] = {}
        self._doors: list[anyio.CancelScope] = []
        self._answering: dict[anyio.CancelScope, Token | None] = {}
        """The answers under way, with the token of each."""
        self.expressions: anyio.CapacityLimiter = anyio.CapacityLimiter(2)
        """Searches for regular expressions at a time: each is a process that may compute for seconds."""
        self._is_looking = False
        """Whether a task looks at the tokens of answers."""
        self._tasks: TaskGroup
        self.is_open: bool = False

    async def _find_busy(self, entities: Iterable[str]) -> frozenset[str]:
        """Return the entities that work, or below which one works: the others wait for people, or for their clients."""
        loom = self.runtime.loom

        def works(entity_id: str) -> bool:
            states = {id: loom.state(id) for id in loom.subtree(entity_id)}
            unfinished = [id for id, state in states.items() if state in ("active", "waiting")]
            parents = {loom.header(id).parent_entity for id in unfinished}
            return any(states[id] == "active" and id not in parents for id in unfinished)

        return await self.runtime.read(lambda: frozenset(id for id in entities if loom.has(id) and works(id)))

    def runtime_of(self, token: Token) -> Runtime:
        """Return the runtime as a token sees it: of its tenant, with its allowance."""
        runtime = self.runtime if token.tenant is None else self.runtime.tenant(token.tenant)
        runtime.set_allowance(token.max_cost_per_day, by=token.sender)
        return runtime

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Follow the runtime's streams while the block runs."""
        self.upserts, self.growth = Upserts(WHOLE_TEXTS), Upserts(GROWTH)

        def publish(events: Sequence[EntityEvent]) -> None:
            self.upserts.publish(events)
            self.growth.publish(events)

        with ExitStack() as stack:
            stack.callback(self.upserts.close)
            stack.callback(self.growth.close)
            stack.callback(self.runtime.watch(publish))
            async with anyio.create_task_group() as tasks:
                self._tasks, self.is_open = tasks, True
                self.requests = RequestWatch(self.runtime, tasks.start_soon)
                stack.callback(setattr, self, "is_open", False)
                yield
                tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def key_lock(self, key: str) -> AsyncIterator[None]:
        """Serialize requests with the same key."""
        lock = self._locks.setdefault(key, anyio.Lock())
        async with lock:
            yield

    # Streams

    @contextmanager
    def feed(self, entity_id: str | None) -> Iterator[Feed]:
        """Use the feed of an entity, or of all entities. The first reader creates it; it ends with the last one."""
        feed = self._feeds.get(entity_id)
        if feed is None or feed.is_finished:
            feed = self._feeds[entity_id] = Feed(self.runtime, self.upserts, entity_id, self._count_dropped)
            if self.is_ending:
                feed.drain()
            self._tasks.start_soon(feed.run)
        feed.readers += 1
        try:
            yield feed
        finally:
            feed.readers -= 1
            if not feed.readers:
                feed.close()
                if self._feeds.get(entity_id) is feed:
                    del self._feeds[entity_id]
                if self.is_ending and not self._feeds:
                    self.has_no_readers.set()

    async def read_late(self, entity_id: str) -> None:
        """Send the readers of an entity's events the records that have no event, such as a reward."""
        for feed in [self._feeds[key] for key in (None, entity_id) if key in self._feeds]:
            await feed.read()

    def overview(self, runtime: Runtime) -> Overview:
        """Return the cached reader of the loom for a tenant, or for all tenants."""
        loom = runtime.loom
        return self._overviews.setdefault(loom.tenant, Overview(loom, shown=runtime.shown_loom))

    @property
    def readers(self) -> int:
        """The number of readers of event streams."""
        return sum(feed.readers for feed in list(self._feeds.values()))

    def _gauges(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        yield "cantrip.streams", ("native",), self.readers

    def _count_dropped(self) -> None:
        if self.telemetry is not None:
            self.telemetry.counters.add("cantrip.streams.dropped", ("native",))

    @contextmanager
    def follow_supervision(self) -> Iterator[Supervision]:
        """Add the supervision tree to the feed of all entities while the block runs."""
        reports = () if self.telemetry is None else self.telemetry.crashes
        supervision, readers = self._supervision or (Supervision(self.runtime, self._publish_actors, reports), 0)
        if not readers:
            self._tasks.start_soon(supervision.run)
        self._supervision = supervision, readers + 1
        try:
            yield supervision
        finally:
            readers = self._supervision[1] - 1
            self._supervision = (supervision, readers) if readers else None
            if not readers:
                supervision.close()

    def _publish_actors(self, data: dict[str, Any]) -> None:
        feed = self._feeds.get(None)
        if feed is not None:
            feed.add_actors(data)

    @contextmanager
    def count_as_person(self, runtime: Runtime) -> Iterator[None]:
        """Count as a person who can be asked (`unattended="deny"`) while the block runs."""
        tenant = runtime.loom.tenant or ""
        feed, readers = self._attending.get(tenant) or (runtime.requests(follow=True), 0)
        self._attending[tenant] = feed, readers + 1
        try:
            yield
        finally:
            feed, readers = self._attending[tenant]
            if readers > 1:
                self._attending[tenant] = feed, readers - 1
            else:
                del self._attending[tenant]
                feed.close()

    @contextmanager
    def answering(self, token: Token | None) -> Iterator[anyio.CancelScope]:
        """Run the block, which answers a request, only as long as its token is valid and the service is not ending. The
        scope records whether the block was cut off.
        """
        with anyio.CancelScope() as scope:
            has_tokens = self.tokens is not None or self.logins is not None
            if token is not None and has_tokens and not self._is_looking:
                self._is_looking = True
                self._tasks.start_soon(self._watch_tokens)
            self._answering[scope] = token
            try:
                yield scope
            finally:
                del self._answering[scope]

    def explain_cut(self) -> Problem:
        """Return why an answer was cut off."""
        return problem_of(RuntimeClosed()) if self.is_ending else make_revoked()

    def cut_answers(self) -> None:
        """Cut all answers under way, because the service ends."""
        for scope in self._answering:
            scope.cancel()

    async def _watch_tokens(self) -> None:
        """Cut the answers to tokens that are revoked, expire or lose a right, as long as there are any answers."""
        try:
            while self._answering:
                await anyio.sleep(LOOK_AT_TOKENS)
                async with anyio.create_task_group() as looks:
                    for scope, token in list(self._answering.items()):
                        looks.start_soon(self._cut_if_lost, scope, token)
        finally:
            self._is_looking = False  # also if the service is closed, and opened again

    async def _cut_if_lost(self, answer: anyio.CancelScope, token: Token | None) -> None:
        if token is None:
            return
        if self.logins is not None:
            has_lost = await self.logins.has_lost(token)
        else:
            has_lost = self.tokens is not None and self.tokens.has_lost(token)
        if has_lost:
            answer.cancel()

    async def start_door(self, run: Callable[..., Awaitable[Any]]) -> Any:
        """Start a task that runs until the event streams end; return the value it reports when started."""

        async def run_until_end(*, task_status: TaskStatus[Any]) -> None:
            with anyio.CancelScope() as scope:
                self._doors.append(scope)
                await run(task_status=task_status)

        return await self._tasks.start(run_until_end)

    def end_streams(self) -> None:
        """End every event stream with `drain`, after its unsent events, and the tasks of `start_door`."""
        self.is_ending = True
        for scope in self._doors:
            scope.cancel()
        for feed in self._feeds.values():
            feed.drain()
        if not self._feeds:
            self.has_no_readers.set()


def _choose_cantrips(
    runtime: Runtime, cantrips: Mapping[str, Cantrip] | Iterable[Cantrip] | None
) -> dict[str, Cantrip]:
    """Return the cantrips that a service offers, by their names: those of its runtime, if none were chosen."""
    if cantrips is None:
        return by_name(cantrip for cantrip in runtime.cantrips if cantrip.name is not None)
    return dict(cantrips) if isinstance(cantrips, Mapping) else by_name(cantrips)
