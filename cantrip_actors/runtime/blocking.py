"""A blocking version of the runtime, for synchronous code.

The runtime runs in an event loop in a separate thread; each call runs there, and the caller waits. Several threads may
call at once.

Methods are made from those of the inner object, so parameters, types and docstrings are the same.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, Self, TypeVar, cast, overload

from anyio.from_thread import BlockingPortal, start_blocking_portal

from cantrip_actors.loom import Forgotten, Loom
from cantrip_actors.records.turn import Turn
from cantrip_actors.runtime.cluster import Cluster
from cantrip_actors.runtime.entity import Entity
from cantrip_actors.runtime.events import EntityEvent
from cantrip_actors.runtime.instrument import Instrument
from cantrip_actors.runtime.receipt import MailState, Receipt
from cantrip_actors.runtime.requests import Request
from cantrip_actors.runtime.runtime import Runtime
from cantrip_actors.runtime.schedules import Schedule
from cantrip_actors.runtime.submissions import Submission
from cantrip_actors.runtime.tool_servers import HeldServer
from cantrip_actors.stream.wire import Envelope
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.tool_server import ToolServer
from supervisors.events import Event

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _Blocking(Generic[S]):
    """An object that lives in the event loop's thread, and the portal that calls it."""

    def __init__(self, inner: S, portal: BlockingPortal) -> None:
        self._inner = inner
        self._portal = portal


class _Value(Generic[T]):
    """A property of the inner object, read directly, also while its event loop is blocked."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, blocking: _Blocking[Any] | None, owner: type) -> T:
        # on the class, tools that list its members get this descriptor
        return cast("T", self if blocking is None else getattr(blocking._inner, self._name))  # noqa: SLF001  # its owner


def _direct(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[_Blocking[S], P], T]:
    """Return a version of a method that runs in the caller's thread, also while the event loop is blocked."""

    @wraps(method)
    def call(self: _Blocking[S], /, *args: P.args, **named: P.kwargs) -> T:
        return method(self._inner, *args, **named)

    return call


def _in_loop(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[_Blocking[S], P], T]:
    """Return a version of a method that runs in the event loop's thread, and waits for its result."""

    @wraps(method)
    def call(self: _Blocking[S], /, *args: P.args, **named: P.kwargs) -> T:
        return self._portal.call(partial(method, self._inner, *args, **named))

    return call


def _blocking(method: Callable[Concatenate[S, P], Awaitable[T]]) -> Callable[Concatenate[_Blocking[S], P], T]:
    """Return a blocking version of an async method."""
    return cast("Callable[Concatenate[_Blocking[S], P], T]", _in_loop(method))  # the portal awaits it


def _blocking_object(
    wrap: Callable[[T, BlockingPortal], R], method: Callable[Concatenate[S, P], Awaitable[T] | T]
) -> Callable[Concatenate[_Blocking[S], P], R]:
    """Return a blocking version of a method whose result is wrapped in a blocking class."""
    waited = _in_loop(method)

    @wraps(method)
    def call(self: _Blocking[S], /, *args: P.args, **named: P.kwargs) -> R:
        return wrap(cast("T", waited(self, *args, **named)), self._portal)

    return call


class _Feed(Protocol[T_co]):
    """An object that can be iterated and closed."""

    @property
    def is_over(self) -> bool: ...
    def __anext__(self) -> Coroutine[Any, Any, T_co]: ...
    def close(self) -> None: ...


class _BlockingFeed(_Blocking[_Feed[T]], Iterator[T]):
    """A feed without `await`, to iterate in a thread of yours."""

    def __next__(self) -> T:
        try:
            following = self._portal.start_task_soon(self._inner.__anext__)
        except RuntimeError:
            if not self._inner.is_over:
                raise
            return self._read_rest()
        try:
            return cast("T", following.result())
        except StopAsyncIteration:
            raise StopIteration from None

    def _read_rest(self) -> T:
        """The items that arrived before the runtime closed. Reading them does not wait: its event loop is gone."""
        try:
            self._inner.__anext__().send(None)
        except StopIteration as read:
            return cast("T", read.value)
        except StopAsyncIteration:
            raise StopIteration from None
        raise AssertionError("a feed that is over waits for nothing")

    is_over: _Value[bool] = _Value()

    def close(self) -> None:
        """Take no further items; earlier items can still be read."""
        self._portal.call(self._inner.close)


class BlockingSubscription(_BlockingFeed[EntityEvent]):
    """`Subscription` without `await`: `for event in runtime.events(): …`, in a thread of yours."""


class BlockingRequestFeed(_BlockingFeed[Request]):
    """`RequestFeed` without `await`: `for request in runtime.requests(follow=True): …`, in a thread of yours."""


class BlockingLogFeed(_BlockingFeed[T]):
    """`LogFeed` without `await`: `for turn in entity.story(): …`, in a thread of yours."""


class BlockingReceipt(_Blocking[Receipt]):
    """`Receipt` without `await`."""

    entity_id: _Value[str] = _Value()
    key: _Value[str] = _Value()
    state: _Value[MailState] = _Value()
    episode = _blocking(Receipt.episode)


class BlockingSchedule(_Blocking[Schedule]):
    """`Schedule` without `await`: its methods wait, and all else is an attribute of `state`."""

    @property
    def state(self) -> Schedule:
        """The schedule, with its id, its rule and its next time."""
        return self._inner

    id: _Value[str] = _Value()
    pause = _blocking(Schedule.pause)
    resume = _blocking(Schedule.resume)
    remove = _blocking(Schedule.remove)


class BlockingSubmission(_Blocking[Submission]):
    """`Submission` without `await`."""

    entity_id: _Value[str] = _Value()
    key: _Value[str] = _Value()
    has_begun: _Value[bool] = _Value()
    is_new: _Value[bool] = _Value()
    episode = _blocking(Submission.episode)


class BlockingCluster(_Blocking[Cluster]):
    """`Cluster` without `await`: its methods wait."""

    is_ready: _Value[bool] = _Value()
    nodes = _blocking(Cluster.nodes)
    where = _blocking(Cluster.where)
    stranded = _blocking(Cluster.stranded)
    queues = _blocking(Cluster.queues)
    drain = _blocking(Cluster.drain)
    free = _blocking(Cluster.free)
    use_release = _blocking(Cluster.use_release)

    def events(self, entity: str) -> BlockingLogFeed[EntityEvent]:
        """Return the events recorded of an entity from now on, as `Cluster.events`, to iterate in a thread of yours."""
        return BlockingLogFeed(self._portal.call(self._inner.events, entity), self._portal)


class BlockingHeldServer(_Blocking[HeldServer]):
    """`HeldServer` without `await`: its methods wait."""

    prompts = _blocking(HeldServer.prompts)
    prompt = _blocking(HeldServer.prompt)
    changed = _blocking(HeldServer.changed)


class BlockingEntity(_Blocking[Entity]):
    """`Entity` without `await`: its methods wait."""

    id: _Value[str] = _Value()
    name: _Value[str | None] = _Value()
    loaded: _Value[bool] = _Value()
    held: _Value[bool] = _Value()

    @property
    def awake(self) -> bool:
        """The same as `loaded`."""
        return self.loaded

    episode = _blocking(Entity.episode)
    result = _blocking(Entity.result)
    send = _blocking(Entity.send)
    post = _blocking_object(BlockingReceipt, Entity.post)
    steer = _blocking(Entity.steer)
    interrupt = _blocking(Entity.interrupt)
    stop = _blocking(Entity.stop)
    unload = _in_loop(Entity.unload)

    def events(self) -> BlockingSubscription:
        """Return its own events from now on, as `Entity.events`, to iterate in a thread of yours.

        To see its beginning, subscribe with `BlockingRuntime.events` before it is started.
        """
        return BlockingSubscription(self._portal.call(self._inner.events), self._portal)

    def story(self, after: int = 0) -> BlockingLogFeed[Turn]:
        """Return its turns after a number, and those to come, as `Entity.story`, to iterate in a thread of yours."""
        return BlockingLogFeed(self._portal.call(self._inner.story, after), self._portal)


class BlockingRuntime(_Blocking[Runtime]):
    """`Runtime` without `await`: `with Runtime.blocking("memory:") as runtime: episode = runtime.cast(cantrip,
    intent)`. It has the methods of `Runtime`, and they wait.
    """

    @classmethod
    @contextmanager
    def open(
        cls, url: str | os.PathLike[str] = "memory:", *, backend: str = "asyncio", **options: Any
    ) -> Iterator[Self]:
        """A runtime on the loom at `url`, in a thread of its own; `backend` is "asyncio" or "trio", `options` as
        `Runtime.open`.
        """
        with (
            start_blocking_portal(backend=backend) as portal,
            portal.wrap_async_context_manager(Runtime.open(url, **options)) as runtime,
        ):
            yield cls(runtime, portal)

    loom: _Value[Loom] = _Value()
    shown_loom: _Value[Loom] = _Value()
    telemetry: _Value[Instrument | None] = _Value()

    @contextmanager
    def use_server(self, server: ToolServer) -> Iterator[BlockingHeldServer]:
        """Keep a server of tools while the context is open, as `Runtime.use_server`: `with`."""
        held = self._portal.call(self._inner.use_server, server)
        with self._portal.wrap_async_context_manager(held) as kept:
            yield BlockingHeldServer(kept, self._portal)

    def watch_actors(self, sink: Callable[[Event], object]) -> Callable[[], None]:
        """Have `sink` called with what happens to actors, in the runtime's thread, as `Runtime.watch_actors`."""
        return partial(self._portal.call, self._portal.call(self._inner.watch_actors, sink))

    def begun_with(self, key: str) -> BlockingEntity | None:
        """Return the entity that began with a key, as `Runtime.begun_with`."""
        found = self._portal.call(self._inner.begun_with, key)
        return None if found is None else BlockingEntity(found, self._portal)

    def has_mail(self, entity: BlockingEntity | str, key: str) -> bool:
        """Return whether mail was posted with a key, as `Runtime.has_mail`."""
        address = entity.id if isinstance(entity, BlockingEntity) else entity
        return self._portal.call(self._inner.has_mail, address, key)

    @property
    def cluster(self) -> BlockingCluster:
        """The nodes of the loom, as `Runtime.cluster`."""
        return BlockingCluster(self._inner.cluster, self._portal)

    def tenant(self, name: str) -> BlockingRuntime:
        """Return this runtime as a tenant sees it, as `Runtime.tenant`."""
        return BlockingRuntime(self._inner.tenant(name), self._portal)

    redact = _direct(Runtime.redact)
    derive_key = _direct(Runtime.derive_key)
    dump = _direct(Runtime.dump)
    inspect = _direct(Runtime.inspect)
    id_of_key = _direct(Runtime.id_of_key)

    cast = _blocking(Runtime.cast)
    batch = _blocking(Runtime.batch)
    start = _blocking_object(BlockingEntity, Runtime.start)
    submit = _blocking_object(BlockingSubmission, Runtime.submit)
    serve = _blocking(Runtime.serve)
    invoke = _blocking_object(BlockingEntity, Runtime.invoke)
    fork = _blocking(Runtime.fork)
    start_fork = _blocking_object(BlockingEntity, Runtime.start_fork)
    check_writer = _blocking(Runtime.check_writer)
    resume = _blocking_object(BlockingEntity, Runtime.resume)
    abandon = _blocking(Runtime.abandon)
    prune = _blocking(Runtime.prune)
    backup = _blocking(Runtime.backup)
    ask = _blocking(Runtime.ask)
    crystals = _blocking(Runtime.crystals)
    drain = _blocking(Runtime.drain)
    decide = _blocking(Runtime.decide)
    schedule = _blocking_object(BlockingSchedule, Runtime.schedule)
    find = _blocking_object(BlockingEntity, Runtime.find)
    would_adopt = _in_loop(Runtime.would_adopt)
    interrupted = _in_loop(Runtime.interrupted)
    add_request_source = _in_loop(Runtime.add_request_source)

    @overload
    def requests(self, *, follow: Literal[False] = False) -> list[Request]: ...
    @overload
    def requests(self, *, follow: Literal[True]) -> BlockingRequestFeed: ...
    def requests(self, *, follow: bool = False) -> list[Request] | BlockingRequestFeed:
        """Return the requests that wait for a person, or a feed of them, as `Runtime.requests`."""
        if follow:
            return BlockingRequestFeed(self._portal.call(lambda: self._inner.requests(follow=True)), self._portal)
        return self._portal.call(self._inner.requests)

    def entity(self, name: str, *, cantrip: Cantrip | None = None) -> BlockingEntity | None:
        """Return the long-lived entity of that name, as `Runtime.entity`."""
        found = self._portal.call(partial(self._inner.entity, name, cantrip=cantrip))
        return None if found is None else BlockingEntity(found, self._portal)

    def receipt(self, entity: BlockingEntity | str, key: str) -> BlockingReceipt:
        """Return the receipt of an intent that was posted or sent with `key`, as `Runtime.receipt`."""
        address = entity.id if isinstance(entity, BlockingEntity) else entity
        return BlockingReceipt(self._portal.call(self._inner.receipt, address, key), self._portal)

    def schedules(self) -> list[BlockingSchedule]:
        """Return all schedules, as `Runtime.schedules`."""
        return [BlockingSchedule(one, self._portal) for one in self._portal.call(self._inner.schedules)]

    def forget(
        self, entity: BlockingEntity | str, *, by: str = "", why: str = "", forks: bool = False, parents: bool = False
    ) -> Forgotten:
        """Delete the content of an entity that has ended, as `Runtime.forget`."""
        address = entity.id if isinstance(entity, BlockingEntity) else entity
        return self._portal.call(partial(self._inner.forget, address, by=by, why=why, forks=forks, parents=parents))

    def events(self, wanted: Callable[[EntityEvent], bool] | None = None) -> BlockingSubscription:
        """Return every entity's events from now on, as `Runtime.events`, to iterate in a thread of yours."""
        return BlockingSubscription(self._portal.call(self._inner.events, wanted), self._portal)

    def watch(self, publish: Callable[[Sequence[Envelope]], None]) -> Callable[[], None]:
        """Have `publish` called with the canonical stream, in the runtime's thread, as `Runtime.watch`."""
        return partial(self._portal.call, self._portal.call(self._inner.watch, publish))

    def reward(self, turn_id: str, value: float) -> None:
        """Reward a turn, as `runtime.loom.reward`."""
        self._portal.call(self._inner.loom.reward, turn_id, value)
