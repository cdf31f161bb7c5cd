"""Resuming from a log that ends anywhere: nothing is done twice, and the result equals that of an undisturbed run."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.machine.actions import Action, Ask, Finish, Run, Spawn, Step
from cantrip_actors.machine.events import (
    Begin,
    ChildOutcome,
    Event,
    Failed,
    Interrupt,
    Moment,
    Observed,
    Replied,
    Returned,
)
from cantrip_actors.machine.project import find_outcome, read_turns
from cantrip_actors.machine.state import Identity, Phase, Plan
from cantrip_actors.records.records import (
    ChildStarted,
    Committed,
    GateFinished,
    GateStarted,
    Observation,
    Record,
    Utterance,
)
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.folding import Folding
from cantrip_actors.terms.gate_function import gate
from cantrip_actors.terms.messages import Response
from cantrip_actors.terms.outcome import Outcome
from cantrip_actors.terms.ward import max_turns
from tests.machine.driver import Loop, call, done, say

Policy = Callable[[Ask], Response | str]


@gate
async def touch(n: int) -> str:
    """Change something in the world."""
    return f"touched {n}"


@gate(idempotent=True)
async def peek(n: int) -> str:
    """Look at something."""
    return f"peeked {n}"


def moments() -> Iterator[Moment]:
    return (Moment(float(n), 1e9 + n, f"t{n}") for n in count(1))


class World:
    """Where the effects are: what gates did and crystals were paid for, whatever the entity remembers of it."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.log: list[Record] = []
        self.ran: Counter[str] = Counter()
        self.asked: Counter[int] = Counter()
        self.moments = moments()
        self.children: dict[str, ChildOutcome] = {}

    def carry_out(self, action: Ask | Run | Spawn) -> Event:
        if isinstance(action, Ask):
            reply = self.policy(action)
            self.asked[sum(m.role == "assistant" for m in action.messages)] += 1
            return Failed(reply) if isinstance(reply, str) else Replied(reply)
        if isinstance(action, Run):
            self.ran[action.call.id] += 1
            return Observed(
                Observation(action.gate.name, None, f"{action.gate.name} {action.args['n']}", False, action.call.id)
            )
        outcomes = []
        for n, child in enumerate(action.children):
            known = action.started.get(n)
            if known is None:
                known = f"child {action.call.id} {n}"
                self.log.append(ChildStarted("e", action.turn_id, action.call.id, known, n))
            outcomes.append(self.children.setdefault(known, ChildOutcome(child.request.intent.upper())))
            assert len(self.children) <= 100
        return Returned(tuple(outcomes))

    def go(self, loop: Loop, action: Action) -> Outcome:
        while not isinstance(action, Finish):
            action = self.take(loop.advance(next(self.moments), self.carry_out(action)))
        return action.outcome

    def take(self, step: Step) -> Action:
        self.log.extend(step.records)
        return step.action

    def run(self, plan: Plan, intent: str = "go") -> Outcome:
        loop = Loop(plan, next(self.moments))
        return self.go(loop, self.take(loop.advance(next(self.moments), Begin(intent))))

    def again(self, plan: Plan) -> tuple[Loop, Step | None]:
        return Loop.again(plan, self.log, next(self.moments), next(self.moments))

    def resume(self, plan: Plan) -> Outcome | None:
        loop, step = self.again(plan)
        return None if step is None else self.go(loop, self.take(step))


def plan_of(*, folding: Folding | None = None, turns: int = 8, lasting: bool = False, **parts: Any) -> Plan:
    circle = Circle(["done", touch, peek, "call_agent", "call_agent_batch"], [max_turns(turns)])
    return Plan.of(Cantrip("local:model", circle=circle, folding=folding, **parts), Identity("e", lasting=lasting))


def by_script(script: list[Response]) -> Policy:
    """Return the script's n-th utterance for the n-th query, as a model would answer the same query again."""

    def policy(query: Ask) -> Response:
        said = [m for m in query.messages if m.role == "assistant"]
        n = len(said)
        for m in query.messages:  # folded utterances count too
            if m.role == "user" and m.content and m.content.startswith("[folded: turns 1-"):
                n += int(m.content.removeprefix("[folded: turns 1-").rstrip("]"))
        return script[n] if n < len(script) else say(done())

    return policy


calls = st.one_of(
    st.integers(0, 9).map(lambda n: call("touch", n=n)),
    st.integers(0, 9).map(lambda n: call("peek", n=n)),
    st.sampled_from(["a", "b"]).map(lambda text: call("call_agent", intent=text)),
    st.just(call("call_agent_batch", intents=["x", "y"])),
    st.just(call("nowhere")),
    st.just(call("touch", n="many")),
    st.just(done()),
)
utterances = st.one_of(
    st.lists(calls, min_size=1, max_size=4).map(lambda some: say(*some)),
    st.text("abc", min_size=1, max_size=5).map(lambda text: Response(content=text)),
)
scripts = st.lists(utterances, max_size=5)


def shape(log: list[Record]) -> list[Any]:
    """Return utterances and observations, without ids, times, and the texts for unknown outcomes."""
    return [
        (turn.sequence, turn.utterance, turn.terminated, turn.truncated, [seen.gate for seen in turn.gate_calls])
        for turn in read_turns(log)
    ]


@pytest.mark.rule("D-011", "LOOM-1")
@given(scripts, st.booleans(), st.data())
def test_a_run_cut_at_any_record_resumes_to_the_same_result(
    script: list[Response], require: bool, data: st.DataObject
) -> None:
    plan = plan_of(require_done_tool=require)
    whole = World(by_script(script))
    expected = whole.run(plan)
    cut = data.draw(st.integers(2, len(whole.log)))
    world = World(whole.policy)
    world.log = whole.log[:cut]
    world.moments = (replace_fresh(moment) for moment in moments())
    outcome = world.resume(plan)
    if outcome is None:
        assert cut == len(whole.log)
        outcome = find_outcome(world.log)
    assert outcome is not None
    assert (outcome.result, outcome.reason) == (expected.result, expected.reason)
    assert shape(world.log) == shape(whole.log)
    told = find_outcome(whole.log)
    assert told is not None
    assert (told.truncated, told.ward, told.summary) == (expected.truncated, expected.ward, expected.summary)
    assert_turns_are_whole(world.log)


def assert_turns_are_whole(log: list[Record]) -> None:
    """Each turn has an id of its own, and everything between two commits is of the same turn."""
    ids = [record.turn_id for record in log if isinstance(record, Committed)]
    assert len(ids) == len(set(ids))
    of: set[str] = set()
    for record in log:
        if isinstance(record, (Utterance, GateStarted, GateFinished, Committed)):
            of.add(record.turn_id)
            assert len(of) == 1
        if isinstance(record, Committed):
            of.clear()


def replace_fresh(moment: Moment) -> Moment:
    return replace(moment, fresh=f"r{moment.fresh}")


@pytest.mark.rule("D-011", "LOOM-1")
@given(scripts, st.data())
def test_no_effect_happens_twice_after_any_number_of_crashes(script: list[Response], data: st.DataObject) -> None:
    """A kill at any border, again and again: the effects of the whole world are counted, not the entity's memory."""
    plan = plan_of()
    world = World(by_script(script))

    class Killed(Exception):
        pass

    left = data.draw(st.lists(st.integers(0, 6), max_size=6))

    def dies() -> bool:
        if not left:
            return False
        left[0] -= 1
        if left[0] >= 0:
            return False
        left.pop(0)
        return True

    loop = Loop(plan, next(world.moments))
    step = loop.advance(next(world.moments), Begin("go"))
    world.log.extend(step.records)
    action: Action | None = step.action
    while True:
        try:
            while action is not None and not isinstance(action, Finish):
                if dies():  # after the records, before the action
                    raise Killed
                event = world.carry_out(action)
                if dies():  # after the action, before its result is written
                    raise Killed
                step = loop.advance(next(world.moments), event)
                world.log.extend(step.records)
                action = step.action
            break
        except Killed:
            loop, again = world.again(plan)
            if again is None:
                break
            world.log.extend(again.records)
            action = again.action
    names = {c.id: c.gate for r in world.log if isinstance(r, Utterance) for c in r.tool_calls}
    assert all(times == 1 for ran, times in world.ran.items() if names[ran] == "touch")
    assert find_outcome(world.log) is not None
    committed = [r for r in world.log if isinstance(r, Committed)]
    assert [r.sequence for r in committed] == list(range(1, len(committed) + 1))
    finished = Counter(r.observation.tool_call_id for r in world.log if isinstance(r, GateFinished))
    assert max(finished.values(), default=1) == 1


class TestTheMiddleOfATurn:
    def test_a_recorded_utterance_is_not_requested_again(self) -> None:
        world, plan = World(by_script([say(call("peek", n=1)), say(done())])), plan_of()
        world.run(plan)
        again = World(world.policy)
        again.log = world.log[:3]
        assert isinstance(again.log[-1], Utterance)
        again.resume(plan)
        assert again.asked == {1: 1}

    def test_a_started_gate_is_not_run_again_and_the_entity_observes_it(self) -> None:
        world, plan = World(by_script([say(call("touch", n=1)), say(done())])), plan_of()
        world.run(plan)
        again = World(world.policy)
        again.log = world.log[: next(n for n, r in enumerate(world.log) if isinstance(r, GateStarted)) + 1]
        again.resume(plan)
        assert not again.ran
        first = next(iter(read_turns(again.log)))
        assert first.gate_calls[0].is_error
        assert "outcome unknown" in first.observation

    def test_an_idempotent_gate_is_run_again(self) -> None:
        world, plan = World(by_script([say(call("peek", n=1)), say(done())])), plan_of()
        world.run(plan)
        again = World(world.policy)
        again.log = [*world.log[:3], GateStarted("e", world.log[2].turn_id, "call_1_1", "peek")]
        again.resume(plan)
        assert again.ran == {"call_1_1": 1}

    def test_started_children_are_awaited_and_not_started_again(self) -> None:
        script = [say(call("call_agent_batch", intents=["a", "b", "c"])), say(done())]
        world, plan = World(by_script(script)), plan_of()
        world.run(plan)
        started = [n for n, r in enumerate(world.log) if isinstance(r, ChildStarted)]
        again = World(world.policy)
        again.log = world.log[: started[1] + 1]
        loop, step = again.again(plan)
        assert loop.state.phase is Phase.WAITING
        assert isinstance(step.action, Spawn)
        assert step.action.started == {0: "child call_1_1 0", 1: "child call_1_1 1"}
        assert step.action.turn_id == loop.state.parent_id

    @pytest.mark.rule("D-008")
    def test_a_continuation_keeps_its_id_after_a_crash_and_the_next_turn_gets_another(self) -> None:
        """Half of a batch can be all that a killed process leaves: here the children's answer, without its turn."""
        script = [say(call("call_agent", intent="a")), say(call("peek", n=1)), say(done())]
        world, plan = World(by_script(script)), plan_of()
        world.run(plan)
        again = World(world.policy)
        again.moments = (replace_fresh(moment) for moment in moments())
        again.log = world.log[: next(n for n, r in enumerate(world.log) if isinstance(r, GateFinished)) + 1]
        continued = again.log[-1].turn_id
        again.resume(plan)
        assert continued in [record.turn_id for record in again.log if isinstance(record, Committed)]
        assert_turns_are_whole(again.log)

    def test_a_delegation_that_the_cantrip_no_longer_allows_is_answered_in_its_own_turn(self) -> None:
        world, plan = World(by_script([say(call("call_agent", intent="a")), say(done())])), plan_of()
        world.run(plan)
        again = World(world.policy)
        again.moments = (replace_fresh(moment) for moment in moments())
        again.log = world.log[: next(n for n, r in enumerate(world.log) if isinstance(r, Committed)) + 1]
        circle = Circle(["done", peek], [max_turns(8)])
        again.resume(Plan.of(Cantrip("local:model", circle=circle), Identity("e")))
        assert_turns_are_whole(again.log)
        assert len(list(read_turns(again.log))) == 3

    def test_an_entity_with_only_a_header_is_new(self) -> None:
        world, plan = World(by_script([say(done())])), plan_of()
        world.run(plan)
        loop, step = Loop.again(plan, world.log[:1], next(world.moments), next(world.moments))
        assert (loop.state.phase, step) == (Phase.NEW, None)

    def test_a_recorded_done_ends_the_episode_although_its_turn_was_not_written(self) -> None:
        world, plan = World(by_script([say(done("x"), call("touch", n=1))])), plan_of()
        world.run(plan)
        again = World(world.policy)
        again.log = world.log[: next(n for n, r in enumerate(world.log) if isinstance(r, GateFinished)) + 1]
        assert again.resume(plan).result == "x"
        assert not again.ran

    @pytest.mark.rule("LOOM-6", "CALL-5")
    def test_a_resumed_entity_has_its_folds(self) -> None:
        plan = plan_of(folding=Folding(trigger_after_turns=2, keep_turns=1))
        script = [say(call("peek", n=n)) for n in range(5)]
        world = World(by_script(script))
        seen: list[list[str | None]] = []
        world.policy = lambda query, by=world.policy: seen.append([m.content for m in query.messages]) or by(query)
        world.run(plan)
        for cut in range(2, len(world.log)):
            _, step = Loop.again(plan, world.log[:cut], Moment(0, 0, "x"), Moment(0, 0, "y"))
            if step is not None and isinstance(step.action, Ask):
                assert [m.content for m in step.action.messages] in seen

    def test_an_ended_entity_stays_ended(self) -> None:
        world, plan = World(by_script([])), plan_of()
        world.run(plan)
        loop, step = Loop.again(plan, world.log, Moment(0, 0, "x"), Moment(0, 0, "y"))
        assert step is None
        assert loop.state.phase is Phase.OVER


class TestLongLivedEntities:
    def run(self, script: list[Any]) -> tuple[World, Plan]:
        plan = plan_of(lasting=True)
        world = World(lambda _: script.pop(0))
        world.run(plan)
        return world, plan

    def test_a_long_lived_entity_waits_after_an_answer(self) -> None:
        world, plan = self.run([say(done("x"))])
        loop, step = world.again(plan)
        assert (loop.state.phase, step) == (Phase.IDLE, None)

    def test_a_long_lived_entity_waits_after_a_failure_and_does_not_query_again(self) -> None:
        world, plan = self.run(["no key"])
        loop, step = world.again(plan)
        assert (loop.state.phase, step) == (Phase.IDLE, None)

    def test_a_long_lived_entity_waits_after_an_interrupt(self) -> None:
        plan = plan_of(lasting=True)
        world = World(by_script([]))
        loop = Loop(plan, next(world.moments))
        world.take(loop.advance(next(world.moments), Begin("go")))
        step = loop.advance(next(world.moments), Interrupt("enough"))
        world.take(step)
        assert isinstance(step.action, Finish)
        assert step.action.outcome.reason == "interrupted"
        loop, again = world.again(plan)
        assert (loop.state.phase, again) == (Phase.IDLE, None)

    def test_a_resumed_entity_has_all_its_intents(self) -> None:
        world, plan = self.run([say(done("x"))])
        loop, _ = world.again(plan)
        step = loop.advance(next(world.moments), Begin("more"))
        assert [m.content for m in step.action.messages if m.role == "user"] == ["go", "more"]

    @pytest.mark.rule("LOOP-4")
    def test_turns_count_anew_for_each_intent(self) -> None:
        plan = plan_of(lasting=True, turns=2)
        script = [say(call("peek", n=1)), say(done("x")), say(call("peek", n=2)), say(done("y"))]
        world = World(lambda _: script.pop(0))
        world.run(plan)
        loop, _ = world.again(plan)
        step = loop.advance(next(world.moments), Begin("more"))
        world.take(step)
        loop, step = world.again(plan)
        assert step is not None
        assert world.go(loop, step.action).result == "y"
