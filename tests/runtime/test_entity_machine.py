"""`EntityMachine`: the bugs of users' code and breaches of laws that it finds, and correct code that passes."""

from __future__ import annotations

import re
from collections import Counter
from types import SimpleNamespace
from typing import Any, ClassVar

import anyio
import pytest
from crash_points import Books, EffectAfterCancel, MarkedBefore, NotIdempotent, Shop
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from cantrip_actors import Cantrip, Circle, GateCall, Invocation, Observation, ask_first, gate, scripted, wrap
from cantrip_actors.loom import MemoryStore
from cantrip_actors.terms.messages import Message, ToolCall
from cantrip_actors.testing import EntityMachine
from cantrip_actors.testing.entity_laws import LawChecker, find_broken_context
from cantrip_actors.testing.stepped_loop import SteppedLoop
from cantrip_actors.wards import max_turns

pytestmark = pytest.mark.rule("Y-42")

QUICK = settings(max_examples=100, stateful_step_count=20, phases=[Phase.generate], derandomize=True, database=None)
"""It stops at the first failure, and does not shrink it."""


def find(machine: type[EntityMachine], *, examples: int = 100) -> None:
    run_state_machine_as_test(machine, settings=settings(QUICK, max_examples=examples))


def sell_each_order(context: Invocation) -> dict[str, Any]:
    """Sell what the newest intent orders, then say so."""
    last = [message for message in context if not message.is_steering][-1]
    if last.role == "user":
        return {"tool_calls": [{"gate": "sell", "args": {"item": last.content}}]}
    return {"tool_calls": [{"gate": "done", "args": {"answer": last.content}}]}


class ShopMachine(EntityMachine):
    """Orders, and a parcel for each."""

    shops: type[Shop] = Shop

    def __init__(self) -> None:
        self.books = Books()
        super().__init__()

    def make_cantrip(self) -> Cantrip:
        circle = Circle(["done", self.shops(self.books).make_gate()], [max_turns(4)])
        return Cantrip(scripted(sell_each_order), circle=circle, name="clerk")

    def answers(self) -> None:
        return None

    @invariant()
    def no_order_is_sent_twice(self) -> None:
        assert max(self.books.parcels.values(), default=0) <= 1, "sent twice"

    def check_end(self) -> None:
        for entity in self.runtime.loom.entities():
            for turn in self.runtime.loom.turns(entity):
                for seen in turn.gate_calls:
                    if seen.gate == "sell" and not seen.is_error:
                        parcels = self.books.parcels[seen.args["item"]]
                        assert parcels == 1, f"{parcels} parcels"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_shop_that_keeps_the_rules_passes(backend: str) -> None:
    find(type("Machine", (ShopMachine,), {"backend": backend}), examples=5)


@pytest.mark.parametrize(
    ("shops", "problem"),
    [
        (NotIdempotent, "sent twice|2 parcels"),
        (MarkedBefore, "0 parcels"),
        (EffectAfterCancel, "sent twice|2 parcels"),
    ],
)
def test_a_gate_that_a_crash_breaks_is_found(shops: type[Shop], problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        find(type("Machine", (ShopMachine,), {"shops": shops}))


class CountingMachine(EntityMachine):
    """A step after a gate counts the calls in a database: it reads, waits, and writes."""

    def __init__(self) -> None:
        self.count = 0
        self.calls = 0
        super().__init__()

    def make_cantrip(self) -> Cantrip:
        @gate(idempotent=True)
        async def look(call: GateCall) -> str:
            """Look around."""
            self.calls += 1
            return "nothing"

        async def count(_call: GateCall, _seen: Observation) -> None:
            before = self.count
            await anyio.sleep(1)
            self.count = before + 1

        return Cantrip(
            scripted(["x"]), circle=Circle(["done", look, wrap("look", post=[count])], [max_turns(4)]), name="looker"
        )

    def answers(self) -> st.SearchStrategy[Any]:
        return st.just({"tool_calls": [{"gate": "look", "args": {}}]})

    def check_end(self) -> None:
        finished = [
            seen
            for entity in self.runtime.loom.entities()
            for turn in self.runtime.loom.turns(entity)
            for seen in turn.gate_calls
            if seen.gate == "look" and not seen.is_error
        ]
        assert self.count >= len(finished), "a call was not counted"


def test_a_step_that_loses_an_update_is_found() -> None:
    with pytest.raises(AssertionError, match="a call was not counted"):
        find(CountingMachine)


class StubbornMachine(EntityMachine):
    """A gate that cannot be cancelled: its entity is reported as interrupted, and it goes on."""

    def make_cantrip(self) -> Cantrip:
        @gate(idempotent=True)
        async def stay() -> str:
            """Stay."""
            with anyio.CancelScope(shield=True):
                await anyio.sleep(10_000)
            return "here"

        return Cantrip(scripted(["x"]), circle=Circle(["done", stay], [max_turns(4)]), name="stubborn")

    def answers(self) -> st.SearchStrategy[Any]:
        return st.just({"tool_calls": [{"gate": "stay", "args": {}}]})


class AskingMachine(EntityMachine):
    """A clerk whose sales are approved, with a model that does anything; it counts what the rules have reached."""

    seen: ClassVar[Counter[str]] = Counter()
    backend = "trio"
    options: ClassVar[dict[str, Any]] = {"passivate_after": 5}

    def make_cantrip(self) -> Cantrip:
        @gate(idempotent=True)
        async def pay(amount: int) -> str:
            """Pay."""
            await anyio.sleep(1)
            return f"paid {amount}"

        @gate(deferred=True)
        async def deliver(to: str) -> str:
            """Deliver."""
            raise NotImplementedError

        circle = Circle(["done", "question", ask_first(pay), deliver], [max_turns(6)])
        return Cantrip(scripted(["x"]), circle=circle, name="payer")

    @rule()
    def pay(self) -> None:
        assert self.run(self.send_and_wait) == "settled"

    async def send_and_wait(self) -> str:
        self.seen["pay"] += 1
        return "settled"

    def check_end(self) -> None:
        self.seen["crashes"] += self.crashes
        for entity in self.runtime.loom.entities():
            self.seen["forks"] += self.runtime.loom.header(entity).forked
            for record in self.runtime.loom.records(entity):
                self.seen[type(record).__name__] += 1


def test_the_rules_reach_all_that_can_happen_to_an_entity_and_its_laws_hold() -> None:
    AskingMachine.seen.clear()
    find(AskingMachine, examples=12)
    expected = {"crashes", "forks", "pay", "Decided", "Steered", "Committed"}
    assert expected <= {name for name, times in AskingMachine.seen.items() if times}


def test_a_gate_that_goes_on_after_the_reported_end_of_its_entity_is_found() -> None:
    with pytest.raises(AssertionError, match=r"the gate stay runs, and its entity .* is "):
        find(StubbornMachine)


class TamperingMachine(ShopMachine):
    """Somebody changes records behind the back of the runtime."""

    @rule()
    def change_intents(self) -> None:
        lines = self._process.store._lines
        lines[:] = [line.replace(b'"intent ', b'"insult ') for line in lines]


def test_a_record_that_has_changed_is_found() -> None:
    with pytest.raises(AssertionError, match="have changed or are gone"):
        find(TamperingMachine)


class ForgetfulMachine(ShopMachine):
    """The witness misses an answer, so the loom has tokens that nobody gave."""

    async def _answer(self, *args: Any) -> Any:
        response = await super()._answer(*args)
        self._laws._spent.pop()
        return response


def test_tokens_that_no_crystal_gave_are_found() -> None:
    with pytest.raises(AssertionError, match="tokens, and the crystal gave only 0"):
        find(ForgetfulMachine)


def make_work(state: str, result: object = None) -> Any:
    outcome = None if result is None else SimpleNamespace(result=result, reason="terminated", terminated=True)
    return SimpleNamespace(id="7", state=state, find_outcome=lambda: outcome)


def test_an_accepted_intent_without_an_answer_is_found() -> None:
    with pytest.raises(AssertionError, match="7 was accepted, everything has come to rest, and it is still waiting"):
        LawChecker().check_end([make_work("waiting")], MemoryStore())
    with pytest.raises(AssertionError, match="7 is settled, and the loom has no answer"):
        LawChecker().check_end([make_work("settled")], MemoryStore())
    LawChecker().check_end([make_work("withdrawn"), make_work("settled", "x")], MemoryStore())


def test_a_second_answer_to_an_intent_is_found() -> None:
    witness = LawChecker()
    witness.check_answers([make_work("settled", "yes")])
    witness.check_answers([make_work("settled", "yes")])
    with pytest.raises(AssertionError, match=r"7 was answered twice: 'yes' .*, then 'no'"):
        witness.check_answers([make_work("settled", "no")])


CALL = Message("assistant", None, tool_calls=(ToolCall("1", "look", {}), ToolCall("2", "look", {})))
RESULTS = [Message("tool", "x", tool_call_id="1"), Message("tool", "x", tool_call_id="2")]


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([Message("system", "s"), Message("user", "u"), CALL, *RESULTS], None),
        ([Message("user", "u"), CALL, *RESULTS, Message("user", "steered"), Message("user", "again")], None),
        ([Message("user", "u"), CALL, RESULTS[0]], "the call '2' has no result"),
        ([Message("user", "u"), CALL, RESULTS[0], Message("user", "v")], "message 3 .* before the result of .* '2'"),
        ([Message("user", "u"), *RESULTS], "message 1 .* the result of '1', which was not called"),
        ([Message("user", "u"), Message("assistant", "a")], "ends with a message of the assistant"),
        ([Message("assistant", "a"), Message("assistant", "b")], "messages 0 and 1 .* both of the assistant"),
        ([Message("user", "u"), Message("system", "s")], "message 1 .* system prompt in the middle"),
    ],
)
def test_a_query_that_no_provider_would_take_is_found(messages: list[Message], fault: str | None) -> None:
    if fault is None:
        assert find_broken_context(messages) is None
    else:
        assert re.search(fault, find_broken_context(messages) or "")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_loop_stands_still_between_two_steps(backend: str) -> None:
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await anyio.sleep(10)
            ticks.append(anyio.current_time())

    async def begin() -> float:
        loop.spawn(tick)
        return anyio.current_time()

    async def fail() -> None:
        raise LookupError

    loop = SteppedLoop(backend)
    began = loop.run(begin)
    loop.run(lambda: anyio.sleep(25))
    with pytest.raises(LookupError):
        loop.run(fail)
    loop.run(lambda: anyio.sleep(10))
    loop.close()
    assert [time - began for time in ticks] == [10, 20, 30]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_error_of_a_task_between_two_steps_ends_the_loop(backend: str) -> None:
    async def fail() -> None:
        raise LookupError

    async def begin() -> None:
        loop.spawn(fail)

    loop = SteppedLoop(backend)
    with pytest.RaisesGroup(LookupError, flatten_subgroups=True, allow_unwrapped=True):
        loop.run(begin)
        loop.run(lambda: anyio.sleep(1))
    loop.close()
