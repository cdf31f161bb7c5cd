"""A blocking version of the runtime, for synchronous code.

The runtime runs in an event loop in a separate thread; each call runs there, and the caller waits. Several threads may
call at once.

Methods are made from those of the inner object, so parameters, types and docstrings are the same.
"""

from __future__ import annotations

import atexit
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial, wraps
from importlib import import_module
from threading import Thread, current_thread, get_ident, main_thread
from types import TracebackType
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    TypeVarTuple,
    Unpack,
    cast,
    overload,
)

import anyio
from anyio import get_all_backends
from anyio.from_thread import BlockingPortal

from cantrip_actors.loom import Loom
from cantrip_actors.loom.stores.selection import Page
from cantrip_actors.records.turn import Turn
from cantrip_actors.runtime.circles.tool_servers import HeldServer
from cantrip_actors.runtime.events.instrument import Instrument
from cantrip_actors.runtime.face.entity import Entity
from cantrip_actors.runtime.face.run import EpisodeRun
from cantrip_actors.runtime.face.runtime import HasId, Runtime
from cantrip_actors.runtime.face.work import MailState, NoAnswer, Work
from cantrip_actors.runtime.nodes.cluster import Cluster
from cantrip_actors.runtime.people.request import Request
from cantrip_actors.runtime.time.schedules import Schedule
from cantrip_actors.runtime.time.submissions import Submission
from cantrip_actors.stream.events import EntityEvent
from cantrip_actors.terms.answer import Answer_co
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.errors import RuntimeClosed
from cantrip_actors.terms.tool_server import ToolServer

Arguments = TypeVarTuple("Arguments")
P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


CLOSED = "the runtime is not open: use it inside `with Runtime.blocking(…) as runtime`"
FORKED = (
    "the runtime was opened in another process, of which this one is a fork without the runtime's thread: open a "
    "runtime here, after the fork"
)
INSIDE = (
    "a blocking runtime was called in its own event loop, which would wait for itself: make the gate a plain function, "
    "which runs in a thread, or use Runtime.open and await"
)


class Portal:
    """Calls functions in a blocking runtime's event loop, from the other threads of its process."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._process = os.getpid()
        self._thread = portal.call(get_ident)
        self._entered: set[anyio.Event] = set()
        """An event for each context that is entered, which lets its task leave it."""
        self._is_ending = False

    @property
    def is_of_this_process(self) -> bool:
        """Whether the event loop runs in this process, and not in one that this process is a fork of."""
        return os.getpid() == self._process

    @overload
    def call(self, function: Callable[[Unpack[Arguments]], Awaitable[T]], *args: *Arguments) -> T: ...
    @overload
    def call(self, function: Callable[[Unpack[Arguments]], T], *args: *Arguments) -> T: ...
    def call(self, function: Callable[[Unpack[Arguments]], Any], *args: *Arguments) -> Any:
        """Call a function in the event loop, and wait for its result. Ctrl-C cancels the call."""
        running: Future[Any] | None = None
        try:
            with _delay_interrupt():
                running = self.start(function, *args)
            return running.result()
        except KeyboardInterrupt:
            if running is not None:
                running.cancel()
            raise

    @overload
    def start(self, function: Callable[[Unpack[Arguments]], Awaitable[T]], *args: *Arguments) -> Future[T]: ...
    @overload
    def start(self, function: Callable[[Unpack[Arguments]], T], *args: *Arguments) -> Future[T]: ...
    def start(self, function: Callable[[Unpack[Arguments]], Any], *args: *Arguments) -> Future[Any]:
        """Call a function in the event loop, and return the future of its result.

        Raises RuntimeClosed if no other thread of this process runs the event loop.
        """
        self.check_caller()
        try:
            return self._portal.start_task_soon(function, *args)
        except RuntimeError as gone:
            raise RuntimeClosed(CLOSED) from gone

    def check_caller(self) -> None:
        """Raise RuntimeClosed in the event loop's thread, and in another process."""
        if not self.is_of_this_process:
            raise RuntimeClosed(FORKED)
        if get_ident() == self._thread:
            raise RuntimeClosed(INSIDE)

    def enter(self, context: AbstractAsyncContextManager[T]) -> AbstractContextManager[T]:
        """Return a blocking version of a context manager."""
        return _HeldContext(self, context)

    async def wait_to_leave(self, left: anyio.Event) -> None:
        """Wait until the block of a context is left, or the event loop is about to end."""
        self._entered.add(left)
        try:
            if not self._is_ending:
                await left.wait()
        finally:
            self._entered.remove(left)

    def leave_all(self) -> None:
        """Leave the contexts whose blocks other threads have not left, so that the event loop can end."""
        self.call(self._leave_all)

    def _leave_all(self) -> None:
        self._is_ending = True
        for left in self._entered:
            left.set()


class _HeldContext(AbstractContextManager[T]):
    """A blocking version of a context manager: a task of the event loop holds it.

    It is not anyio's `wrap_async_context_manager`. If Ctrl-C interrupts the beginning, the task of anyio's version
    waits for ever, and so the end of its portal does.
    """

    def __init__(self, portal: Portal, context: AbstractAsyncContextManager[T]) -> None:
        self._portal = portal
        self._context = context
        self._entered: Future[T] = Future()
        self._holding: Future[bool | None] | None = None
        self._left: anyio.Event
        self._error: tuple[type[BaseException] | None, BaseException | None, TracebackType | None] = (None, None, None)

    async def _hold(self) -> bool | None:
        self._left = anyio.Event()
        self._entered.set_result(await self._context.__aenter__())
        try:
            await self._portal.wait_to_leave(self._left)
        finally:
            is_suppressed = await self._context.__aexit__(*self._error)
        return is_suppressed

    def __enter__(self) -> T:
        try:
            with _delay_interrupt():
                self._holding = self._portal.start(self._hold)
            wait((cast("Future[Any]", self._entered), self._holding), return_when=FIRST_COMPLETED)
            if not self._entered.done():
                self._holding.result()  # it raises
        except BaseException:
            if self._holding is not None:
                self._holding.cancel()
            raise
        return self._entered.result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool | None:
        self._error = kind, error, where
        self._portal.check_caller()
        with suppress(RuntimeClosed):  # it has left all contexts
            self._portal.call(self._left.set)
        assert self._holding is not None, "it is left after it was entered"
        return self._holding.result()


def _start_event_loop(backend: str, opened: ExitStack) -> BlockingPortal:
    """Start an event loop in a thread of its own, which `opened` ends, and return its portal.

    It is not anyio's `start_blocking_portal`, which waits for its thread when it is garbage collected: in a process
    that exits, or was forked, that thread does not run any more.
    """
    started: Future[BlockingPortal] = Future()

    async def serve() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    def run() -> None:
        try:
            anyio.run(serve, backend=backend)
        except OSError as error:  # the process has no descriptor left for an event loop
            if started.done():
                raise
            started.set_exception(error)

    thread = Thread(target=run, name="cantrip_actors runtime", daemon=True)

    def end() -> None:
        if started.exception() is None:
            portal = started.result()
            portal.call(portal.stop)
        thread.join()

    thread.start()
    opened.callback(end)
    return started.result()


@contextmanager
def _delay_interrupt() -> Iterator[None]:
    """Raise the `KeyboardInterrupt` of Ctrl-C at the end of the block.

    The block opens or closes something. An interrupt between two of its steps would lose the resource that the first
    step had opened. A second Ctrl-C is raised at once.
    """
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    has_come = False

    def note(*_: object) -> None:
        nonlocal has_come
        has_come = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if not has_come:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if has_come:
            raise KeyboardInterrupt


class _Blocking(Generic[S]):
    """An object that lives in the event loop's thread, and the portal that calls it."""

    def __init__(self, inner: S, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal


class _Value(Generic[T]):
    """A property of the inner object, read directly, also while its event loop is blocked."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, blocking: _Blocking[Any] | None, owner: type) -> T:
        # on the class, tools that list its members get this descriptor
        return cast("T", self if blocking is None else getattr(blocking._inner, self._name))  # noqa: SLF001  # its owner


def _call_directly(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[_Blocking[S], P], T]:
    """Return a version of a method that runs in the caller's thread, also while the event loop is blocked."""

    @wraps(method)
    def call(self: _Blocking[S], /, *args: P.args, **named: P.kwargs) -> T:
        return method(self._inner, *args, **named)

    return call


def _call_in_loop(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[_Blocking[S], P], T]:
    """Return a version of a method that runs in the event loop's thread, and waits for its result."""

    @wraps(method)
    def call(self: _Blocking[S], /, *args: P.args, **named: P.kwargs) -> T:
        try:
            return self._portal.call(partial(method, self._inner, *args, **named))
        except NoAnswer as error:
            error.receipt = cast("Any", _wrap_known_work(error.receipt, self._portal))
            raise

    return call


def _call_blocking(method: Callable[Concatenate[S, P], Awaitable[T]]) -> Callable[Concatenate[_Blocking[S], P], T]:
    return cast("Callable[Concatenate[_Blocking[S], P], T]", _call_in_loop(method))  # the portal awaits it


def _wrap_result(
    wrap: Callable[[T, Portal], R], method: Callable[Concatenate[S, P], Awaitable[T] | T]
) -> Callable[Concatenate[_Blocking[S], P], R]:
    """Return a blocking version of a method whose result is wrapped in a blocking class."""
    waited = _call_in_loop(method)

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
    """A feed without `await`, to iterate in a thread of yours. If Ctrl-C interrupts a wait, no item is lost."""

    def __init__(self, inner: _Feed[T], portal: Portal) -> None:
        super().__init__(inner, portal)
        self._ready: deque[T] = deque()
        """Items that were read and not returned yet."""

    def __next__(self) -> T:
        try:
            while True:
                with suppress(IndexError):  # several threads may iterate
                    return self._ready.popleft()
                self._portal.call(self._read)
        except RuntimeClosed:
            if not self._inner.is_over:
                raise
            return self._read_rest()
        except StopAsyncIteration:
            raise StopIteration from None

    async def _read(self) -> None:
        self._ready.append(await self._inner.__anext__())  # here, and not in the caller, which may be interrupted

    def _read_rest(self) -> T:
        """Return the items that arrived before the runtime closed, without waiting: its event loop is gone."""
        try:
            self._inner.__anext__().send(None)
        except StopIteration as read:
            return cast("T", read.value)
        except StopAsyncIteration:
            raise StopIteration from None
        raise AssertionError("a feed that is over waits for nothing")

    is_over: _Value[bool] = _Value()

    def close(self) -> None:
        """Take no further items; earlier items can still be read. A feed of a runtime that has closed is closed."""
        try:
            self._portal.call(self._inner.close)
        except RuntimeClosed:
            if not self._inner.is_over:
                raise


class BlockingSubscription(_BlockingFeed[EntityEvent]):
    """`Subscription` or `EventFeed` without `await`: `for event in runtime.events(): …`, in a thread of yours."""


class BlockingRequestFeed(_BlockingFeed[Request]):
    """`RequestFeed` without `await`: `for request in runtime.requests(follow=True): …`, in a thread of yours. It can be
    used in a `with`, which closes it.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


class BlockingLogFeed(_BlockingFeed[T]):
    """`LogFeed` without `await`: `for turn in entity.story(): …`, in a thread of yours."""


class BlockingSchedule(_Blocking[Schedule]):
    """`Schedule` without `await`: its methods wait, and all else is an attribute of `state`."""

    @property
    def state(self) -> Schedule:
        """The schedule, with its id, its rule and its next time."""
        return self._inner

    id: _Value[str] = _Value()
    pause = _call_blocking(Schedule.pause)
    resume = _call_blocking(Schedule.resume)
    remove = _call_blocking(Schedule.remove)


class BlockingCluster(_Blocking[Cluster]):
    """`Cluster` without `await`: its methods wait."""

    is_ready: _Value[bool] = _Value()
    nodes = _call_blocking(Cluster.nodes)
    where = _call_blocking(Cluster.where)
    stranded = _call_blocking(Cluster.stranded)
    queues = _call_blocking(Cluster.queues)
    drain = _call_blocking(Cluster.drain)
    free = _call_blocking(Cluster.free)
    use_release = _call_blocking(Cluster.use_release)

    events = _wrap_result(BlockingSubscription, Cluster.events)


class BlockingHeldServer(_Blocking[HeldServer]):
    """`HeldServer` without `await`: its methods wait."""

    prompts = _call_blocking(HeldServer.prompts)
    prompt = _call_blocking(HeldServer.prompt)
    changed = _call_blocking(HeldServer.changed)


class BlockingText(_BlockingFeed[str]):
    """`RunText` without `await`: `for piece in run.text(): …`."""


class BlockingEpisodeRun(_Blocking[EpisodeRun[Answer_co]], Generic[Answer_co]):
    """`EpisodeRun` without `await`: `with runtime.stream(cantrip, intent) as run: …`."""

    def __init__(self, inner: EpisodeRun[Answer_co], portal: Portal) -> None:
        super().__init__(inner, portal)
        self._entered: AbstractContextManager[EpisodeRun[Answer_co]] | None = None

    def __enter__(self) -> Self:
        self._entered = self._portal.enter(self._inner)
        self._entered.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self._entered is not None, "it is left after it was entered"
        self._entered.__exit__(kind, error, where)

    entity_id: _Value[str] = _Value()
    position: _Value[str] = _Value()
    events = _wrap_result(BlockingSubscription, EpisodeRun.events)
    text = _wrap_result(BlockingText, EpisodeRun.text)
    result = _call_blocking(EpisodeRun[Answer_co].result)


def _return_run(
    method: Callable[Concatenate[S, P], EpisodeRun[A]],
) -> Callable[Concatenate[_Blocking[S], P], BlockingEpisodeRun[A]]:
    return _wrap_result(BlockingEpisodeRun[A], method)


def _wrap_known_work(work: Work[Answer_co], portal: Portal) -> BlockingWork[Answer_co]:
    return BlockingSubmission(work, portal) if isinstance(work, Submission) else BlockingWork(work, portal)


def _return_work(
    method: Callable[Concatenate[S, P], Awaitable[Work[A]]],
) -> Callable[Concatenate[_Blocking[S], P], BlockingWork[A]]:
    return _wrap_result(_wrap_known_work, method)


class BlockingWork(_Blocking[Work[Answer_co]], Generic[Answer_co]):
    """`Work` without `await`: its methods wait."""

    id: _Value[str] = _Value()
    entity_id: _Value[str] = _Value()
    key: _Value[str] = _Value()
    state: _Value[MailState] = _Value()
    is_known: _Value[bool] = _Value()
    takes_more: _Value[bool] = _Value()
    note: _Value[Any] = _Value()
    find_outcome = _call_in_loop(Work.find_outcome)
    requests = _call_in_loop(Work.requests)
    check = _call_in_loop(Work.check)
    result = _call_blocking(Work[Answer_co].result)
    episode = _call_blocking(Work[Answer_co].episode)
    events = _wrap_result(BlockingSubscription, Work.events)
    withdraw = _call_blocking(Work.withdraw)
    cancel = _call_blocking(Work.cancel)

    @property
    def entity(self) -> BlockingEntity[Answer_co]:
        """The entity that works on it."""
        return BlockingEntity(self._inner.entity, self._portal)

    continue_with = _return_work(Work[Answer_co].continue_with)
    fork_with = _return_work(Work[Answer_co].fork_with)


class BlockingEntity(_Blocking[Entity[Answer_co]], Generic[Answer_co]):
    """`Entity` without `await`: its methods wait."""

    id: _Value[str] = _Value()
    name: _Value[str | None] = _Value()
    loaded: _Value[bool] = _Value()
    held: _Value[bool] = _Value()
    is_new: _Value[bool] = _Value()

    @property
    def work(self) -> BlockingWork[Answer_co]:
        """The intent that the entity began with, as a piece of work."""
        return BlockingWork(self._inner.work, self._portal)

    episode = _call_blocking(Entity[Answer_co].episode)
    result = _call_blocking(Entity[Answer_co].result)
    send = _call_blocking(Entity[Answer_co].send)
    post = _return_work(Entity[Answer_co].post)
    stream = _return_run(Entity[Answer_co].stream)
    steer = _call_blocking(Entity.steer)
    interrupt = _call_blocking(Entity.interrupt)
    undo = _call_blocking(Entity.undo)
    compact = _call_blocking(Entity.compact)
    stop = _call_blocking(Entity.stop)
    messages = _call_blocking(Entity.messages)
    spending = _call_blocking(Entity.spending)
    unload = _call_in_loop(Entity.unload)

    def events(self, after: str | None = None, *, deltas: bool = False) -> BlockingSubscription:
        """Return the entity's events, as `Entity.events`, to iterate in a thread of yours.

        To see its beginning, pass `after="0"`, or subscribe with `BlockingRuntime.events` before it is started.
        """
        feed = self._portal.call(partial(self._inner.events, after, deltas=deltas))
        return BlockingSubscription(feed, self._portal)

    story = _wrap_result(BlockingLogFeed[Turn], Entity.story)


def _return_entity(
    method: Callable[Concatenate[S, P], Awaitable[Entity[A]]],
) -> Callable[Concatenate[_Blocking[S], P], BlockingEntity[A]]:
    return _wrap_result(BlockingEntity[A], method)


class BlockingSubmission(BlockingWork):
    """`Submission` without `await`: its methods wait."""

    has_begun: _Value[bool] = _Value()
    is_new: _Value[bool] = _Value()
    cantrip_name: _Value[str | None] = _Value()
    find_outcome = _call_in_loop(Submission.find_outcome)
    withdraw = _call_blocking(Submission.withdraw)


def _or_none(wrap: Callable[[T, Portal], R]) -> Callable[[T | None, Portal], R | None]:
    """Return a version of `wrap` that leaves None as it is."""
    return lambda inner, portal: None if inner is None else wrap(inner, portal)


def _wrap_submissions(page: Page[Submission], portal: Portal) -> Page[BlockingSubmission]:
    return Page([BlockingSubmission(submission, portal) for submission in page], page.next)


def _wrap_schedules(found: list[Schedule], portal: Portal) -> list[BlockingSchedule]:
    return [BlockingSchedule(one, portal) for one in found]


def _wrap_stop(stop: Callable[[], None], portal: Portal) -> Callable[[], None]:
    return partial(portal.call, stop)


class BlockingRuntime(_Blocking[Runtime]):
    """`Runtime` without `await`: `with Runtime.blocking("memory:") as runtime: episode = runtime.cast(cantrip,
    intent)`. It has the methods of `Runtime`, and they wait. Without `with`, call `close` at the end.
    """

    def __init__(self, inner: Runtime, portal: Portal, opened: ExitStack | None = None) -> None:
        super().__init__(inner, portal)
        self._opened = opened or ExitStack()
        """The runtime and its thread; empty once they are closed."""

    @classmethod
    def open(cls, url: str | os.PathLike[str] = "memory:", *, backend: str = "asyncio", **options: Any) -> Self:
        """Open a runtime on the loom at `url`, in a thread of its own, and return it; `options` as `Runtime.open`.

        Raises ValueError unless `backend` is "asyncio" or "trio"; else as `Runtime.open` and as entering it does.
        """
        if backend not in (known := get_all_backends()):
            raise ValueError(f"backend: expected one of {', '.join(map(repr, known))}, got {backend!r}")
        import_module(backend)  # it may not be installed
        managed = Runtime.open(url, **options)
        with ExitStack() as interrupted:
            with _delay_interrupt():
                with ExitStack() as opened:
                    portal = Portal(_start_event_loop(backend, opened))
                    opened.callback(portal.leave_all)
                    runtime = cls(opened.enter_context(portal.enter(managed)), portal, opened.pop_all())
                atexit.register(runtime.close)
                interrupted.callback(runtime.close)
            interrupted.pop_all()
        return runtime

    def close(self) -> None:
        """Close the runtime, as leaving the `with` does; at once if it is closed. Any thread may call it.

        A runtime that is still open when the process exits is closed then. A process that was forked closes nothing.
        """
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        self._inner._check_not_tenant("entering")  # noqa: SLF001  # this is its blocking version
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._inner._check_not_tenant("closing")  # noqa: SLF001  # this is its blocking version
        if self._portal.is_of_this_process:
            self._portal.check_caller()
            with _delay_interrupt():
                atexit.unregister(self.close)
                self._opened.pop_all().__exit__(kind, error, where)

    loom: _Value[Loom] = _Value()
    shown_loom: _Value[Loom] = _Value()
    telemetry: _Value[Instrument | None] = _Value()
    cantrips: _Value[Sequence[Cantrip]] = _Value()
    not_resumed: _Value[Mapping[str, str]] = _Value()

    @contextmanager
    def use_server(self, server: ToolServer) -> Iterator[BlockingHeldServer]:
        """Keep a server of tools while the context is open, as `Runtime.use_server`: `with`."""
        held = self._portal.call(self._inner.use_server, server)
        with self._portal.enter(held) as kept:
            yield BlockingHeldServer(kept, self._portal)

    @property
    def cluster(self) -> BlockingCluster:
        """The nodes of the loom, as `Runtime.cluster`."""
        return BlockingCluster(self._inner.cluster, self._portal)

    def tenant(self, name: str) -> BlockingRuntime:
        """Return this runtime as a tenant sees it, as `Runtime.tenant`."""
        return BlockingRuntime(self._inner.tenant(name), self._portal)

    redact = _call_directly(Runtime.redact)
    derive_key = _call_directly(Runtime.derive_key)
    dump = _call_directly(Runtime.dump)
    inspect = _call_directly(Runtime.inspect)
    id_of_key = _call_directly(Runtime.id_of_key)

    cast = _call_blocking(Runtime.cast)
    batch = _call_blocking(Runtime.batch)
    start = _return_entity(Runtime.start)
    stream = _return_run(Runtime.stream)
    set_allowance = _call_in_loop(Runtime.set_allowance)
    check_allowance = _call_blocking(Runtime.check_allowance)
    submit = _wrap_result(BlockingSubmission, Runtime.submit)
    submission = _wrap_result(_or_none(BlockingSubmission), Runtime.submission)
    get_submission = _wrap_result(BlockingSubmission, Runtime.get_submission)
    serve = _call_blocking(Runtime.serve)
    invoke = _return_entity(Runtime.invoke)
    ensure = _return_entity(Runtime.ensure)
    fork = _call_blocking(Runtime.fork)
    start_fork = _return_entity(Runtime.start_fork)
    check_writer = _call_blocking(Runtime.check_writer)
    resume = _return_entity(Runtime.resume)
    abandon = _call_blocking(Runtime.abandon)
    forget = _call_blocking(Runtime.forget)
    prune = _call_blocking(Runtime.prune)
    backup = _call_blocking(Runtime.backup)
    ask = _call_blocking(Runtime.ask)
    read = _call_blocking(Runtime.read)
    crystals = _call_blocking(Runtime.crystals)
    drain = _call_blocking(Runtime.drain)
    decide = _call_blocking(Runtime.decide)
    deliver = _call_blocking(Runtime.deliver)
    schedule = _wrap_result(BlockingSchedule, Runtime.schedule)
    schedules = _wrap_result(_wrap_schedules, Runtime.schedules)
    find = _wrap_result(_or_none(BlockingEntity), Runtime.find)
    entity = _wrap_result(_or_none(BlockingEntity), Runtime.entity)
    get_entity = _wrap_result(BlockingEntity, Runtime.get_entity)
    begun_with = _wrap_result(_or_none(BlockingEntity), Runtime.begun_with)
    has_mail = _call_in_loop(Runtime.has_mail)
    work = _wrap_result(_or_none(_wrap_known_work), Runtime.work)
    get_work = _wrap_result(_wrap_known_work, Runtime.get_work)
    receipt = _wrap_result(BlockingWork, Runtime.receipt)

    def run(self, function: Callable[Concatenate[Runtime, P], Awaitable[T]], /, *args: P.args, **named: P.kwargs) -> T:
        """Call an async function of a runtime with this one, and wait for its result: `runtime.run(evaluate, cantrip,
        cases)` is `await evaluate(runtime, cantrip, cases)`. The function runs in the event loop of the runtime.

        Raises RuntimeClosed, and as the function.
        """
        return self._portal.call(partial(function, self._inner, *args, **named))

    def events(
        self,
        wanted: Callable[[EntityEvent], bool] | None = None,
        *,
        entity: str | None = None,
        deltas: bool = False,
        after: str | None = None,
    ) -> BlockingSubscription:
        """Subscribe to the events of all entities, as `Runtime.events`, to iterate in a thread of yours."""
        work = partial(self._inner.events, wanted, entity=entity, deltas=deltas, after=after)
        return BlockingSubscription(self._portal.call(work), self._portal)

    watch = _wrap_result(_wrap_stop, Runtime.watch)
    watch_actors = _wrap_result(_wrap_stop, Runtime.watch_actors)
    would_adopt = _call_in_loop(Runtime.would_adopt)
    interrupted = _call_in_loop(Runtime.interrupted)
    is_interrupted = _call_in_loop(Runtime.is_interrupted)
    entities = _call_blocking(Runtime.entities)
    messages = _call_blocking(Runtime.messages)
    model_input = _call_blocking(Runtime.model_input)
    submissions = _wrap_result(_wrap_submissions, Runtime.submissions)
    list_requests = _call_blocking(Runtime.list_requests)
    add_request_source = _call_in_loop(Runtime.add_request_source)

    @overload
    def requests(
        self, *, follow: Literal[False] = False, entity: HasId | str | None = None, to: str | None = None
    ) -> list[Request]: ...
    @overload
    def requests(self, *, follow: Literal[True], attend: bool = True, to: str | None = None) -> BlockingRequestFeed: ...
    def requests(
        self,
        *,
        follow: bool = False,
        attend: bool = True,
        entity: HasId | str | None = None,
        to: str | None = None,
    ) -> list[Request] | BlockingRequestFeed:
        """Return the requests that wait for a person, or a feed of them, as `Runtime.requests`."""
        if follow:
            return BlockingRequestFeed(
                self._portal.call(lambda: self._inner.requests(follow=True, attend=attend, to=to)), self._portal
            )
        return self._portal.call(lambda: self._inner.requests(entity=entity, to=to))

    def reward(self, turn_id: str, value: float) -> None:
        """Reward a turn, as `runtime.loom.reward`."""
        self._portal.call(self._inner.loom.reward, turn_id, value)
