"""A Hypothesis state machine over a live system, on both backends: whatever is done in whatever order,

- no mail is lost: each cast is handled once, was the poison that crashed its actor, or became a dead letter;
- no caller is stuck: each call ends, with its reply or a named error;
- the supervisors' books equal what runs;
- no task is left behind.

The machine's rules are synchronous and a running loop cannot be held between them: the machine collects what is to be
done, and lives it through on a fresh loop at its end, with the books checked after each step. Time is virtual.
"""

import asyncio
import math
from collections import Counter
from contextlib import suppress

import anyio
import anyio.lowlevel
import pytest
import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from supervisors import (
    Actor,
    ActorRef,
    ActorSystem,
    Backoff,
    ChildSpec,
    DynamicSupervisor,
    Shutdown,
    Stop,
    Supervisor,
    SupervisorsError,
)
from supervisors.events import DeadLetter
from supervisors.ref import identify
from supervisors.testing import virtual
from tests.exhaustive import EXHAUSTIVE


class Poison(Exception):
    pass


class Book:
    """What the world should be like."""

    def __init__(self) -> None:
        self.cast: Counter[int] = Counter()
        self.handled: Counter[int] = Counter()
        self.cut: Counter[int] = Counter()  # being handled when its actor ended
        self.dead: Counter[int] = Counter()
        self.running: set[int] = set()  # ids of actor objects between init and their end
        self.calls = 0
        self.answered = 0


class Subject(Actor):
    def __init__(self, book: Book, *, slow_stop: float, fails: list[bool]) -> None:
        self.book = book
        self.slow_stop = slow_stop
        self.fails = fails

    async def init(self) -> None:
        await anyio.sleep(0.25)
        if self.fails and self.fails.pop():
            raise Poison
        self.book.running.add(id(self))

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            self.book.running.discard(id(self))

    async def _work(self, message: object) -> None:
        match message:
            case "crash":
                raise Poison
            case "stop":
                raise Stop
            case "slow":
                await anyio.sleep(1)
            case _:
                await anyio.lowlevel.checkpoint()

    async def handle_cast(self, message: tuple[int, object]) -> None:
        number, what = message
        done = False
        try:
            await self._work(what)
            done = True
        finally:
            (self.book.handled if done else self.book.cut)[number] += 1

    async def handle_call(self, message: object, caller: object) -> object:
        await self._work(message)
        return message

    async def terminate(self, reason: object) -> None:
        if self.slow_stop:
            await anyio.sleep(self.slow_stop)


class Subclassed(Subject):
    """With a loop of its own: `Subject` overrides `run` too, this one receives by hand."""

    async def run(self) -> None:
        try:
            while True:
                item = await self.receive()
                if isinstance(item, tuple):
                    await self.handle_cast(item)
                else:
                    await self._work(item.message)
                    item.reply(item.message)
        finally:
            self.book.running.discard(id(self))


class Plain(Subject):
    """Is up at once, and has nothing to do at its end."""

    init, run, terminate = Actor.init, Actor.run, Actor.terminate


def drive(backend: str, plan: "list[tuple]") -> None:
    """Run what the machine has decided on, from the beginning, on a fresh loop."""
    name, options = virtual(backend, stuck_after=5)
    anyio.run(_live, plan, name, backend=name, backend_options=options)


def _tasks(backend: str) -> int:
    if backend == "asyncio":
        return len(asyncio.all_tasks())
    return trio.lowlevel.current_statistics().tasks_living


async def _live(plan: "list[tuple]", backend: str) -> None:
    book = Book()
    before = _tasks(backend)
    async with anyio.create_task_group() as users:
        scope = users.cancel_scope
        async with ActorSystem(reports=None, max_restarts=10**6) as system:
            system.sinks.append(lambda event: _note(book, event))
            world = World(system, book, users)
            await world.begin(plan[0])
            for step in plan[1:]:
                await world.do(step)
                world.check_books()
            await anyio.sleep(1000)  # everything settles
            world.check_books(settled=True)
        await anyio.sleep(1)
        assert book.answered == book.calls, "a caller is stuck"
        scope.cancel()
    assert book.running == set()
    for number, times in book.cast.items():
        ends = book.handled[number] + book.cut[number] + book.dead[number]
        assert ends == times, f"message {number} was cast {times} times and ended {ends} times"
    await anyio.sleep(1)
    assert _tasks(backend) == before, "a task is left behind"


def _note(book: Book, event: object) -> None:
    if isinstance(event, DeadLetter) and isinstance(event.message, tuple):
        book.dead[event.message[0]] += 1


class World:
    def __init__(self, system: ActorSystem, book: Book, users: anyio.abc.TaskGroup) -> None:
        self.system = system
        self.book = book
        self.users = users
        self.refs: list[ActorRef] = []
        self.count = 0

    def spec(self, restart: str, kind: int) -> ChildSpec[Actor]:
        self.count += 1
        made = (Subject, Subclassed, Plain)[kind // 7 % 3]
        slow = (0.0, 0.5, math.inf)[kind % 3]
        backoff = Backoff(first=0.5, jitter=0) if kind % 5 == 0 else None
        fails = [kind % 4 == 3, False] if kind % 4 else []
        return ChildSpec(
            f"c{self.count}",
            lambda: made(self.book, slow_stop=slow, fails=fails),
            restart=restart,
            shutdown=(2.0, "kill")[kind % 7 == 0],
            backoff=backoff,
        )

    async def begin(self, step: tuple) -> None:
        _, strategy, children = step
        specs = [self.spec(restart, kind) for restart, kind in children if kind % 4 != 3]
        self.static = await self.system.start(
            ChildSpec("static", lambda: Supervisor(specs, strategy=strategy, max_restarts=10**6))
        )
        self.dynamic = await self.system.start(ChildSpec("dynamic", lambda: DynamicSupervisor(max_restarts=10**6)))
        self.refs = [self.static.child(spec.id) for spec in specs]

    async def do(self, step: tuple) -> None:
        match step:
            case ("start", where, restart, kind):
                self.users.start_soon(self._start, (self.static, self.dynamic)[where], self.spec(restart, kind))
            case ("pause", seconds):
                await anyio.sleep(seconds)
            case ("yield", times):
                for _ in range(times):
                    await anyio.lowlevel.checkpoint()
            case ("restart supervisor", where, how):
                supervisor = (self.static, self.dynamic)[where]
                supervisor.kill() if how else supervisor.exit(Shutdown("test"))
            case (verb, at, *more) if self.refs:
                await getattr(self, "_" + verb)(self.refs[at % len(self.refs)], *more)

    async def _start(self, supervisor: object, spec: ChildSpec[Actor]) -> None:
        with suppress(SupervisorsError):
            self.refs.append(await supervisor.start_child(spec))

    async def _cast(self, ref: ActorRef, what: object) -> None:
        self.count += 1
        self.book.cast[self.count] += 1
        ref.cast((self.count, what))

    async def _kill(self, ref: ActorRef) -> None:
        ref.kill()

    async def _exit(self, ref: ActorRef) -> None:
        ref.exit(Shutdown("test"))

    async def _terminate(self, ref: ActorRef) -> None:
        async def terminate() -> None:
            with suppress(SupervisorsError):
                await ref.parent.terminate_child(ref)

        self.users.start_soon(terminate)

    async def _call(self, ref: ActorRef, what: object, timeout: float | None, leave: int | None) -> None:
        """Ask, and be cancelled after so many checkpoints."""
        self.book.calls += 1

        async def ask() -> None:
            try:
                with anyio.CancelScope() as scope:
                    if leave is not None:
                        self.users.start_soon(cancel, scope)
                    with suppress(SupervisorsError):
                        assert await ref.call(what, timeout=timeout) == what
            finally:
                self.book.answered += 1

        async def cancel(scope: anyio.CancelScope) -> None:
            for _ in range(leave):
                await anyio.lowlevel.checkpoint()
            scope.cancel()

        self.users.start_soon(ask)

    def check_books(self, *, settled: bool = False) -> None:
        """What the supervisors believe is what is there."""
        live = set()
        for supervisor in (self.static, self.dynamic):
            if identify(supervisor).incarnation is None:
                continue
            for child in identify(supervisor).incarnation.actor.children.records.values():
                incarnation = child.incarnation
                if incarnation is None:
                    continue
                if not incarnation.is_over:
                    assert identify(child.ref).incarnation is incarnation
                    if incarnation.is_up and not isinstance(incarnation.actor, Plain):
                        live.add(id(incarnation.actor))
                if settled:
                    assert incarnation.is_up
                    assert child.ref.alive
        if settled:
            assert self.static.alive
            assert self.dynamic.alive
            assert live == self.book.running


RESTARTS = st.sampled_from(["permanent", "transient", "temporary"])
KINDS = st.integers(0, 210)
AT = st.integers(0, 20)
WORK = st.sampled_from(["ok", "ok", "slow", "crash", "stop"])


class Machine(RuleBasedStateMachine):
    """Collects what is done, and lives it through at the end."""

    backend: str

    @initialize(
        strategy=st.sampled_from(["one_for_one", "one_for_all", "rest_for_one"]),
        children=st.lists(st.tuples(RESTARTS, KINDS), min_size=1, max_size=4),
    )
    def begin(self, strategy, children):
        self.plan = [("begin", strategy, children)]

    @rule(where=st.integers(0, 1), restart=RESTARTS, kind=KINDS)
    def start(self, where, restart, kind):
        self.plan.append(("start", where, restart, kind))

    @rule(at=AT, what=WORK)
    def cast(self, at, what):
        self.plan.append(("cast", at, what))

    @rule(at=AT, what=WORK, timeout=st.sampled_from([None, 0.1, 5.0]), leave=st.none() | st.integers(0, 6))
    def call(self, at, what, timeout, leave):
        self.plan.append(("call", at, what, timeout, leave))

    @rule(at=AT, verb=st.sampled_from(["kill", "exit", "terminate"]))
    def end(self, at, verb):
        self.plan.append((verb, at))

    @rule(where=st.integers(0, 1), how=st.booleans())
    def restart_supervisor(self, where, how):
        self.plan.append(("restart supervisor", where, how))

    @rule(seconds=st.sampled_from([0.1, 0.25, 1.0, 3.0]))
    def pause(self, seconds):
        self.plan.append(("pause", seconds))

    @rule(times=st.integers(1, 5))
    def yield_(self, times):
        self.plan.append(("yield", times))

    def teardown(self):
        if hasattr(self, "plan"):
            drive(self.backend, self.plan)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_random_operations_lose_no_mail_and_leave_no_waiting_caller_and_no_orphan(backend):
    machine = type("Machine", (Machine,), {"backend": backend})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=100 if EXHAUSTIVE else 35,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
