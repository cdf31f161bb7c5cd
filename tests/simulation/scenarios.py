"""Programs to simulate, and what must be true of them whatever happens to their processes.

Each is a class. `run` is the scenario, which may begin again at any time; `check` looks at the
loom in the end. An instance also counts the effects in the outside world, which outlast all processes, until `reset`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import anyio

from cantrip_actors import (
    AlreadyDecided,
    Call,
    Cantrip,
    CantripUnknown,
    Circle,
    Entity,
    EntityInterrupted,
    Episode,
    Invocation,
    Runtime,
    ask_first,
    gate,
    scripted,
)
from cantrip_actors.loom import Loom
from cantrip_actors.runtime.nodes.membership import Node
from cantrip_actors.testing.simulation import SimulatedProcess
from cantrip_actors.testing.simulation.outside import EPOCH
from cantrip_actors.wards import max_tokens, max_turns

UNKNOWN = "outcome unknown"


class Program:
    """A scenario, with the arguments of `simulate` that it needs."""

    options: ClassVar[dict[str, Any]] = {}

    async def run(self, process: SimulatedProcess) -> None:
        """Do the work of one process."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget the effects of the run before."""

    def check(self, loom: Loom) -> None:
        """No intent is recorded twice."""
        for entity in loom.entities():
            keys = [intent.key for intent in loom.intents(entity) if intent.key]
            doubled = [key for key, count in Counter(keys).items() if count > 1]
            assert not doubled, f"recorded twice: {doubled}"


def call_then_say(name: str, argument: str) -> Any:
    """Return a model that calls a gate with the newest intent, and then answers with the observation."""

    def answer(context: Invocation) -> Any:
        last = context[-1]
        if last.role == "user":
            return {"tool_calls": [{"gate": name, "args": {argument: last.content}}]}
        return {"tool_calls": [{"gate": "done", "args": {"answer": last.content}}]}

    return scripted(answer, usage={"prompt_tokens": 10, "completion_tokens": 2})


class Orders(Program):
    """Several senders send orders to one entity, and repeat them after a crash: each is shipped at most once."""

    options: ClassVar[dict[str, Any]] = {"within": 20.0, "latency": (0.05, 2.0), "lasts": 900.0}
    senders = 2
    orders = 3
    passivate_after = 3.0
    pauses: ClassVar[tuple[float, ...]] = (0.0, 0.3, 4.0)

    def __init__(self) -> None:
        self.shipped: Counter[str] = Counter()

        @gate
        async def ship(order: str) -> str:
            """Ship an order."""
            await anyio.sleep(random.choice((0.0, 0.2)))
            self.shipped[order] += 1
            await anyio.sleep(random.choice((0.0, 0.2)))
            return f"{order} is on its way"

        circle = Circle(["done", ship], [max_turns(5)])
        self.clerk = Cantrip(call_then_say("ship", "order"), circle=circle, name="clerk")

    async def run(self, process: SimulatedProcess) -> None:
        async with process.open(cantrips=[self.clerk], passivate_after=self.passivate_after) as runtime:
            await self.send_all(process, runtime)
        self.check_shipped()

    def reset(self) -> None:
        self.shipped.clear()

    async def send_all(self, process: SimulatedProcess, runtime: Runtime) -> None:
        """Send all orders from several senders at once."""
        entity = await runtime.ensure("desk", self.clerk)
        async with anyio.create_task_group() as senders:
            for number in range(self.senders):
                senders.start_soon(self._send, process, entity, f"sender {number}", range(self.orders))

    async def _send(self, process: SimulatedProcess, entity: Entity, sender: str, orders: Iterable[int]) -> None:
        for number in orders:
            await anyio.sleep(process.random.choice(self.pauses) * process.random.random())
            order = f"order {number} of {sender}"
            reply = await entity.send(order, key=order)
            assert UNKNOWN in str(reply.result) or str(reply.result).startswith(order), f"{order}: {reply.result}"

    def check_shipped(self) -> None:
        """Raise AssertionError for an order that was shipped twice."""
        doubled = [order for order, count in self.shipped.items() if count > 1]
        assert not doubled, f"shipped twice: {doubled}"


class Rush(Orders):
    """The same, with more senders that send at the same time, to an entity that is unloaded soon."""

    options: ClassVar[dict[str, Any]] = {**Orders.options, "latency": (0.01, 0.05)}
    senders = 5
    passivate_after = 0.1
    pauses: ClassVar[tuple[float, ...]] = (0.0, 0.02, 0.5)


class TakeOver(Orders):
    """The same, with two nodes that run the entity in turns, because each may be stopped for a while."""

    options: ClassVar[dict[str, Any]] = {**Orders.options, "nodes": 2}

    async def run(self, process: SimulatedProcess) -> None:
        node = Node(process.name, beat=0.5, ttl=2.0, passivate_after=3.0)
        async with process.open(cantrips=[self.clerk], node=node) as runtime:
            if process.number > 1:
                await anyio.sleep_forever()
            await self.send_all(process, runtime)
        self.check_shipped()


class Approvals(Program):
    """A person decides each payment, and repeats a decision that was not acknowledged: only allowed ones are paid."""

    options: ClassVar[dict[str, Any]] = {"within": 15.0, "latency": (0.05, 1.0), "lasts": 900.0}
    payments = 4

    def __init__(self) -> None:
        self.paid: Counter[str] = Counter()

        @gate
        async def pay(bill: str) -> str:
            """Pay a bill."""
            self.paid[bill] += 1
            return f"paid {bill}"

        circle = Circle(["done", ask_first(pay, expires=1.0)], [max_turns(5)])
        self.payer = Cantrip(call_then_say("pay", "bill"), circle=circle, name="payer")

    async def run(self, process: SimulatedProcess) -> None:
        async with process.open(cantrips=[self.payer], passivate_after=3) as runtime:
            entity = await runtime.ensure("payer", self.payer)
            async with anyio.create_task_group() as people:
                for name in ("anna", "ben"):
                    people.start_soon(self._decide, process, runtime, name)
                for number in range(self.payments):
                    await entity.send(f"bill {number}", key=f"bill {number}")
                people.cancel_scope.cancel()
        assert all(self.may_pay(bill) for bill in self.paid), f"paid without permission: {dict(self.paid)}"
        doubled = [bill for bill, count in self.paid.items() if count > 1]
        assert not doubled, f"paid twice: {doubled}"

    def reset(self) -> None:
        self.paid.clear()

    @staticmethod
    def may_pay(bill: str) -> bool:
        """Return whether people allow a payment."""
        return int(bill.rsplit(maxsplit=1)[-1]) % 2 == 0

    async def _decide(self, process: SimulatedProcess, runtime: Runtime, name: str) -> None:
        while True:
            await anyio.sleep(0.1)
            for request in runtime.requests():
                await anyio.sleep(1.5 * process.random.random())  # somebody else, or the time, may be faster
                bill = str(request.args["bill"])
                with suppress(AlreadyDecided):
                    await runtime.decide(request.id, "allow" if self.may_pay(bill) else "deny", by=name)


class Family(Program):
    """A parent has children, and is interrupted: none of its children acts after its episode is over."""

    options: ClassVar[dict[str, Any]] = {"within": 10.0, "latency": (0.05, 2.0), "lasts": 900.0}

    def __init__(self) -> None:
        self.is_over = False
        self.acted: list[str] = []

        @gate
        async def act(what: str) -> str:
            """Do something."""
            await anyio.sleep(0.5)
            self.acted.append(f"{what} after the end" if self.is_over else what)
            return f"did {what}"

        def answer(context: Invocation) -> Any:
            intent, last = context[-1].content, context[-1]
            if last.role != "user":
                calls = sum(message.role == "assistant" for message in context)
                if "child" in str(context[1].content) and calls < 4:
                    return {"tool_calls": [{"gate": "act", "args": {"what": f"step {calls}"}}]}
                return {"tool_calls": [{"gate": "done", "args": {"answer": last.content}}]}
            if "child" in intent:
                return {"tool_calls": [{"gate": "act", "args": {"what": intent}}]}
            requests = [{"intent": f"child {number}"} for number in range(3)]
            return {"tool_calls": [{"gate": "call_agent_batch", "args": {"requests": requests}}]}

        circle = Circle(["done", "call_agent_batch", act], [max_turns(9)])
        self.parent = Cantrip(scripted(answer), call=Call(system_prompt="Do it."), circle=circle, name="parent")

    async def run(self, process: SimulatedProcess) -> None:
        self.is_over = False
        async with process.open(cantrips=[self.parent]) as runtime:
            entity = await runtime.ensure("parent", self.parent)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._interrupt, process, entity)
                await entity.send("do all", key="all")
                self.is_over = True
                await anyio.sleep(10)
                tasks.cancel_scope.cancel()
        late = [what for what in self.acted if what.endswith("after the end")]
        assert not late, f"acted: {late}"

    def reset(self) -> None:
        self.acted.clear()

    def check(self, loom: Loom) -> None:
        super().check(loom)
        parent = loom.named("parent")
        assert parent is not None
        assert len(loom.below(parent)) <= 3, f"{len(loom.below(parent))} children began"

    async def _interrupt(self, process: SimulatedProcess, entity: Entity) -> None:
        await anyio.sleep(6 * process.random.random())
        await entity.interrupt(now=True)


class Clock(Program):
    """A schedule fires every two seconds: each firing happens once, whatever was down."""

    options: ClassVar[dict[str, Any]] = {"within": 20.0, "latency": (0.05, 0.5), "lasts": 900.0}
    lasts = 20.0
    least = 9
    """The firings that there have to be in this time."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.clerk = Cantrip(scripted(lambda _: "done"), circle=Circle(["done"], [max_turns(2)]), name="clerk")

    async def run(self, process: SimulatedProcess) -> None:
        async with process.open(cantrips=[self.clerk], passivate_after=1) as runtime:
            await runtime.ensure("clock", self.clerk)
            schedule = await runtime.schedule(
                "clock", "tick", every=2.0, id="tick", catch_up="all", overlap="queue", to="entity"
            )
            if self.began is None:
                self.began = anyio.current_time()
            while self._find_next(runtime) < self.began + self.lasts:  # some firings may be late
                await anyio.sleep(1)
            await schedule.remove()
            while self._count_fired(runtime.loom) < self.least and anyio.current_time() < self.began + 600:
                await anyio.sleep(5)  # the loom may be slow

    def reset(self) -> None:
        self.began = None

    @staticmethod
    def _find_next(runtime: Runtime) -> float:
        (schedule,) = runtime.schedules()
        assert schedule.next_at is not None
        return schedule.next_at.timestamp() - EPOCH

    def check(self, loom: Loom) -> None:
        super().check(loom)
        fired = self._count_fired(loom)
        assert fired >= self.least, f"fired {fired} times in {self.lasts:g} seconds"

    @staticmethod
    def _count_fired(loom: Loom) -> int:
        entity = loom.named("clock")
        assert entity is not None
        return len(loom.intents(entity))


class Budget(Program):
    """A parent casts one child after the other until the budget for all of them is used up, and not longer."""

    options: ClassVar[dict[str, Any]] = {"within": 15.0, "latency": (0.05, 1.0), "lasts": 900.0}
    tokens = 120

    def __init__(self) -> None:
        def answer(context: Invocation) -> Any:
            number = sum(message.role == "assistant" for message in context)
            if any("child" in message.content for message in context if message.role == "user"):
                return "done"
            return {"tool_calls": [{"gate": "call_agent", "args": {"intent": f"child {number}"}}]}

        crystal = scripted(answer, usage={"prompt_tokens": 10, "completion_tokens": 2})
        circle = Circle(["done", "call_agent"], [max_turns(20), max_tokens(self.tokens)])
        self.parent = Cantrip(crystal, circle=circle, name="parent")

    async def run(self, process: SimulatedProcess) -> None:
        async with process.open(cantrips=[self.parent]) as runtime:
            entity = await runtime.invoke(self.parent, "do all", name="parent", key="all")
            episode = await entity.episode()
            assert episode.truncated, "it has spent its budget"

    def check(self, loom: Loom) -> None:
        super().check(loom)
        parent = loom.named("parent")
        assert parent is not None
        spent = loom.subtree_usage(parent).total_tokens
        assert spent <= self.tokens + 24, f"{spent} tokens of {self.tokens}"


class Visitors(Orders):
    """A process without cantrips uses an entity that two others run in turns: each operation ends as its page says."""

    options: ClassVar[dict[str, Any]] = {**Orders.options, "nodes": 3, "latency": (0.05, 1.0)}
    visitors = 3
    visits = 4

    def __init__(self) -> None:
        super().__init__()
        self.planned: dict[str, Any] = {}
        """The operation by which each order is given: a process that begins again repeats it."""

    def reset(self) -> None:
        super().reset()
        self.planned.clear()

    async def run(self, process: SimulatedProcess) -> None:
        if process.number > 1:
            node = Node(process.name, beat=0.5, ttl=2.0, passivate_after=3.0)
            async with process.open(cantrips=[self.clerk], node=node) as runtime:
                await runtime.ensure("desk", self.clerk)
                await anyio.sleep_forever()
        async with process.open() as runtime:
            while (desk := runtime.entity("desk")) is None:
                await anyio.sleep(0.2)
            async with anyio.create_task_group() as visitors:
                for number in range(self.visitors):
                    visitors.start_soon(self._visit, process, runtime, desk, f"visitor {number}")
        self.check_shipped()

    async def _visit(self, process: SimulatedProcess, runtime: Runtime, desk: Entity, visitor: str) -> None:
        for number in range(self.visits):
            await anyio.sleep(process.random.choice((0.0, 0.3, 4.0)) * process.random.random())
            order = f"order {number} of {visitor}"
            operations = (self._follow, self._stream, self._change, self._cancel, self._submit)
            operate = self.planned.setdefault(order, process.random.choice(operations))
            with anyio.fail_after(300), suppress(CantripUnknown, EntityInterrupted):  # both processes may be dead
                await operate(process, runtime, desk, order)

    async def _follow(self, _: SimulatedProcess, __: Runtime, desk: Entity, order: str) -> None:
        work = await desk.post(order, key=order)
        seen = [event.id async for event in work.events() if event.id]
        assert seen == sorted(set(seen), key=lambda id: [int(part) for part in id.split(".")]), f"events: {seen}"
        self._check_reply(await work.result(), order)
        self._check_reply(await desk.send(order, key=order), order)

    async def _stream(self, _: SimulatedProcess, __: Runtime, desk: Entity, order: str) -> None:
        async with desk.stream(order, key=order) as run:
            async for _event in run.events():
                pass
            self._check_reply(await run.result(), order)

    async def _change(self, process: SimulatedProcess, _: Runtime, desk: Entity, order: str) -> None:
        work = await desk.post(order, key=order)
        await anyio.sleep(process.random.random())
        change = process.random.choice((desk.interrupt, partial(desk.interrupt, now=True), desk.compact, desk.undo))
        await change()
        self._check_reply(await work.result(), order)

    async def _cancel(self, process: SimulatedProcess, _: Runtime, desk: Entity, order: str) -> None:
        work = await desk.post(order, key=order)
        await anyio.sleep(process.random.random())
        if await work.cancel(now=process.random.random() < 0.5) != "withdrawn":
            self._check_reply(await work.result(), order)

    async def _submit(self, process: SimulatedProcess, runtime: Runtime, _: Entity, order: str) -> None:
        submission = await runtime.submit("clerk", order, key=order)
        await anyio.sleep(process.random.random())
        if await submission.withdraw() != "withdrawn":
            self._check_reply(await submission.result(), order)

    @staticmethod
    def _check_reply(episode: Episode, order: str) -> None:
        is_reply = UNKNOWN in str(episode.result) or str(episode.result).startswith(order)
        assert is_reply or episode.truncated, f"{order}: {episode.result}"


PROGRAMS = {one.__name__: one for one in (Orders, Rush, TakeOver, Approvals, Family, Clock, Budget, Visitors)}
