"""Programs: the turns of a code circle, as the loop decides them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.machine.actions import Answer, Compute, Finish, Run, SnapshotAfter, Spawn
from cantrip_actors.machine.events import (
    Begin,
    Called,
    ChildOutcome,
    Computed,
    Moment,
    Observed,
    Replied,
    Returned,
    Stopped,
)
from cantrip_actors.machine.program import PREVIEW, extract_code, render_result_text
from cantrip_actors.machine.project import make_fork_state, read_turns
from cantrip_actors.machine.state import Identity, Phase, Plan
from cantrip_actors.records.blob import Blob, Snapshot
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
from cantrip_actors.terms.messages import Response
from cantrip_actors.terms.outcome import Outcome
from cantrip_actors.terms.ward import max_depth, max_turns, remove_gate
from tests.machine.driver import Drive, Loop, echo, look, moments

GATES = ("done", look, echo, "call_agent", "call_agent_batch")
CODE = Response(code="x = 1")
PYTHON = Circle(medium="python").language
DONE = Called("done", {"answer": 42})


def circle(*wards: Any) -> Cantrip:
    return Cantrip("local:model", circle=Circle(GATES, [max_turns(9), *wards], medium="python"))


def drive(*replies: Any, wards: tuple[Any, ...] = (), **plan: Any) -> Drive:
    return Drive(circle(*wards), *replies, **plan)


class TestParsing:
    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ("```python\nx = 1\n```", "x = 1\n"),
            ("Let me see.\n```py\na\n```\nand\n```\nb\n```\n", "a\n\nb\n"),
            ("```javascript\nx\n```", None),
            ("no code at all", None),
            ("Yes:\n```python\nprint(1)", "print(1)"),  # what a stop sequence leaves, or a limit of tokens
            ("print(1)\n```\nor so", None),
            ("```python\r\nx = 1\r\n```\r\n", "x = 1\n"),
            ("1. First\n   ```python\n   if x:\n       y\n\n   z\n   ```\n", "if x:\n    y\n\nz\n"),
            ('````python\nx = ""\n```\ny\n````', 'x = ""\n```\ny\n'),
            ("~~~python\nx\n~~~", "x\n"),
            ("```text in a line``` and\n```python\nx\n```", "x\n"),
            ("```tool_code\nx\n```", "x\n"),
        ],
    )
    def test_the_program_is_the_fenced_blocks_in_the_circles_language(self, text: str, code: str | None) -> None:
        assert extract_code(Response(content=text), PYTHON) == code

    @pytest.mark.parametrize(
        ("said", "code"),
        [
            ("```python\nx = 1\n```", "x = 1\n"),
            ("\n``` py\nx = 1", "x = 1"),
            ("\ufeffx = 1\r\ny = 2", "x = 1\ny = 2"),
            ("x = 1  # or\n```python", "x = 1  # or\n```python"),
            ("```json\n{}\n```", "```json\n{}\n```"),
            ("", ""),
        ],
    )
    def test_a_given_program_may_still_be_in_a_fenced_block(self, said: str, code: str) -> None:
        assert extract_code(Response(code=said), PYTHON) == code

    def test_a_response_in_a_tools_circle_has_no_program(self) -> None:
        assert extract_code(Response(content="```python\nx\n```"), None) is None

    @pytest.mark.rule("D-004")
    def test_text_without_a_program_ends_the_episode(self) -> None:
        assert drive(Response(content="the answer")).go().result == "the answer"


class TestTurn:
    @pytest.mark.rule("CIRCLE-4", "LOOP-1")
    def test_the_observation_has_the_output_and_the_last_value(self) -> None:
        run = drive(CODE, Computed([1, 2], "hello\n"), CODE, DONE, Computed())
        run.go()
        assert [m.role for m in run.queries[1]] == ["user", "assistant", "user"]
        assert run.queries[1][-1].content == "hello\n=> [1,2]"

    @pytest.mark.rule("CIRCLE-5")
    def test_the_error_of_a_program_is_an_observation(self) -> None:
        run = drive(CODE, Computed(error="NameError: y"), CODE, DONE, Computed())
        run.go()
        (seen,) = run.turns[0].gate_calls
        assert (seen.gate, seen.is_error) == ("python", True)
        assert "NameError: y" in run.queries[1][-1].content

    @pytest.mark.rule("CIRCLE-3", "D-005")
    def test_a_gate_call_of_a_program_is_answered_and_recorded_with_its_arguments(self) -> None:
        run = drive(CODE, Called("echo", {"text": "hi"}), Computed("hi"), CODE, DONE, Computed())
        run.go()
        (answer,) = [t.action for t in run.transitions if isinstance(t.action, Answer)][:1]
        assert answer == Answer("hi")
        called, ended = run.turns[0].gate_calls
        assert (called.gate, called.args, called.result) == ("echo", {"text": "hi"}, "hi")
        assert ended.result == {"value": "hi"}

    @pytest.mark.rule("D-003", "CIRCLE-8")
    def test_done_ends_the_episode_after_the_program_has_finished_without_gates(self) -> None:
        run = drive(CODE, DONE, Called("echo", {"text": "late"}), Computed(error="RuntimeError"))
        outcome = run.go()
        assert (outcome.result, outcome.terminated) == (42, True)
        assert run.ran == []
        late = [t.action for t in run.transitions if isinstance(t.action, Answer)][-1]
        assert late.is_error
        assert late.closed

    @pytest.mark.rule("D-003")
    def test_submit_answer_is_done(self) -> None:
        assert drive(CODE, Called("submit_answer", {"answer": 7}), Computed()).go().result == 7

    @pytest.mark.rule("CIRCLE-6", "COMP-6")
    @pytest.mark.parametrize(
        ("ward", "call", "text"),
        [
            (remove_gate("echo"), Called("echo", {"text": "x"}), "gate not available: echo"),
            (max_depth(0), Called("call_agent", {"intent": "x"}), "max_depth is 0"),
        ],
    )
    def test_a_removed_gate_answers_a_program_with_an_error(self, ward: Any, call: Called, text: str) -> None:
        run = drive(CODE, call, Computed(), CODE, DONE, Computed(), wards=(ward,))
        run.go()
        (answer,) = [t.action for t in run.transitions if isinstance(t.action, Answer)][:1]
        assert answer.is_error
        assert text in answer.value

    @pytest.mark.rule("COMP-1")
    def test_a_refused_delegation_is_an_error_that_the_program_can_catch(self) -> None:
        call = Called("call_agent", {"intent": "x", "gates": ["fetch"]})
        run = drive(CODE, call, Computed(error="cannot grant gate"), CODE, DONE, Computed())
        run.go()
        assert len(run.turns) == 2
        assert run.turns[0].gate_calls[0].is_error

    @pytest.mark.rule("LOOM-8", "COMP-5")
    def test_a_delegation_splits_the_turn_of_a_program(self) -> None:
        run = drive(CODE, Called("call_agent", {"intent": "sub"}), DONE, Computed())
        run.go()
        first, second = run.turns
        assert run.spawned[0].turn_id == first.id
        assert (second.parent_id, second.utterance_id) == (first.id, first.id)
        assert [seen.gate for seen in second.gate_calls] == ["call_agent", "done", "python"]

    @pytest.mark.rule("LOOP-4")
    def test_a_ward_truncates_after_the_program(self) -> None:
        outcome = drive(CODE, Computed(), CODE, Computed(), wards=(max_turns(2),)).go()
        assert (outcome.truncated, outcome.ward) == (True, "max_turns")

    def test_a_stopped_program_is_committed_with_its_results_so_far(self) -> None:
        run = drive(CODE, Called("echo", {"text": "x"}), Stopped("timeout", "timeout(1)"))
        assert run.go().ward == "timeout"
        (turn,) = run.turns
        assert [seen.is_error for seen in turn.gate_calls] == [False, True]

    def test_the_data_of_an_intent_is_a_variable_and_never_in_the_prompt(self) -> None:
        run = drive(CODE, Computed(), CODE, DONE, Computed())
        run.go(Begin("go", {"documents": ["a"]}))
        first, second = [t.action for t in run.transitions if isinstance(t.action, Compute)]
        assert (first.variables, second.variables) == ({"context": {"documents": ["a"]}}, None)
        assert [m.content for m in run.queries[0]] == ["go"]

    def test_a_long_result_is_shown_as_size_beginning_and_end(self) -> None:
        text = render_result_text({"output": "begin" + "x" * PREVIEW + "end"})
        assert text.startswith("beginx")
        assert text.endswith("xend")
        assert f"[8 of the {PREVIEW + 8} characters of this output are left out here; keep it" in text
        assert len(text) < PREVIEW + 200

    def test_a_result_at_the_limit_is_shown_whole(self) -> None:
        assert render_result_text({"output": "x" * PREVIEW}) == "x" * PREVIEW

    def test_the_error_of_a_limit_names_the_undone_changes(self) -> None:
        assert render_result_text({"output": "a", "limit": "5 s of computing"}) == (
            "a\nlimit exceeded: 5 s of computing; what this program changed in its sandbox is undone, what it did "
            "through gates is not"
        )

    def test_a_tool_call_in_a_code_circle_is_carried_out(self) -> None:
        reply = Response.of({"tool_calls": [{"gate": "done", "args": {"answer": 5}}]})
        assert drive(reply).go().result == 5


steps = st.lists(
    st.one_of(
        st.just(Called("echo", {"text": "x"})),
        st.just(Called("look", {})),
        st.just(Called("nowhere", {})),
        st.just(Called("call_agent", {"intent": "sub"})),
        st.just(DONE),
    ),
    max_size=4,
)
ends = st.sampled_from([Computed("v", "out"), Computed(error="e"), Computed(limit="time")])


class Machine:
    """A sandbox that does what the script says, the n-th program its n-th line, and counts what reaches the world."""

    def __init__(self, script: list[tuple[list[Called], Computed]]) -> None:
        self.script = script
        self.log: list[Record] = []
        self.ran: list[str] = []
        self.moments = moments()
        self.said = 0
        self.at: tuple[int, int] = (0, 0)

    def event_for(self, action: Any) -> Any:
        if isinstance(action, Compute):
            n = int(action.code)
            assert [p.code for p in action.before] == [str(i) for i in range(n)]
            calls = self.script[n][0]
            assert len(action.answers) <= len(calls)
            self.at = (n, len(action.answers))
            return self.next_call()
        if isinstance(action, Answer):
            n, k = self.at
            self.at = (n, k + 1)
            return self.next_call()
        if isinstance(action, Run):
            self.ran.append(action.call.id)
            return Observed(Observation(action.gate.name, None, "ok", False, action.call.id))
        if isinstance(action, Spawn):
            for n, _ in enumerate(action.children):
                if n not in action.started:
                    self.log.append(ChildStarted("e1", action.turn_id, action.call.id, f"c{action.call.id}", n))
            return Returned(tuple(ChildOutcome("sub") for _ in action.children))
        n = sum(m.role == "assistant" for m in action.messages)
        code = Response(code=str(n)) if n < len(self.script) else Response(content="over")
        return Replied(code)

    def next_call(self) -> Any:
        n, k = self.at
        calls, end = self.script[n]
        return calls[k] if k < len(calls) else end

    def run(self, loop: Loop, action: Any, upto: int | None = None) -> Outcome | None:
        while not isinstance(action, Finish):
            step = loop.advance(next(self.moments), self.event_for(action))
            self.log += step.records
            if upto is not None and len(self.log) >= upto:
                return None
            action = step.action
        return action.outcome


@pytest.mark.rule("D-011", "CIRCLE-9")
@given(st.lists(st.tuples(steps, ends), min_size=1, max_size=3), st.data())
def test_a_program_cut_at_any_record_resumes_to_the_same_result(script: Any, data: st.DataObject) -> None:
    plan = Plan.of(circle(), Identity("e1"))
    whole = Machine(script)
    loop = Loop(plan, next(whole.moments))
    step = loop.advance(next(whole.moments), Begin("go"))
    whole.log += step.records
    expected = whole.run(loop, step.action)
    cut = data.draw(st.integers(2, len(whole.log)))
    again = Machine(script)
    again.log = whole.log[:cut]
    again.moments = (Moment(m.now, m.wall, f"again {m.fresh}") for m in moments())
    loop, resumed = Loop.again(plan, again.log, next(again.moments), next(again.moments))
    if resumed is None:
        assert loop.state.phase is Phase.OVER
        return
    again.log += resumed.records
    outcome = again.run(loop, resumed.action)
    assert outcome is not None
    assert expected is not None
    assert (outcome.result, outcome.reason) == (expected.result, expected.reason)

    def shape(log: list[Record]) -> list[Any]:
        return [
            (t.sequence, t.code, [(o.gate, o.tool_call_id) for o in t.gate_calls], t.terminated)
            for t in read_turns(log)
        ]

    assert shape(again.log) == shape(whole.log)
    started = [(record.turn_id, record.tool_call_id) for record in again.log if isinstance(record, GateStarted)]
    assert len(started) == len(set(started))  # also where it was cut between a start and the seam that goes with it


@pytest.mark.rule("LOOM-4")
def test_a_fork_gets_the_sandbox_of_its_turn() -> None:
    run = drive(
        Response(code="a"), Called("echo", {"text": "x"}), Computed(), Response(code="b"), Computed(limit="time"),
        Response(code="c"), DONE, Computed(),
    )  # fmt: skip
    run.go()
    upto = next(n for n, r in enumerate(run.records) if isinstance(r, Committed) and r.sequence == 2) + 1
    sandbox = make_fork_state(
        Plan.of(circle(), Identity("fork", parent_turn="t", forked=True)).shape, run.records[:upto]
    ).sandbox
    assert [(p.code, p.answers, p.undone) for p in sandbox.programs] == [("a", (Answer("x"),), False), ("b", (), True)]


def snapshot(name: str) -> Snapshot:
    blob = Blob.of_snapshot("toy", name.encode(), b"a key")
    return Snapshot(blob.digest, blob)


class TestSnapshots:
    """What records refer to is what is asked for again."""

    @pytest.mark.rule("CIRCLE-9", "LOOM-1")
    def test_a_turn_refers_to_the_sandbox_as_its_program_left_it(self) -> None:
        run = drive(CODE, Computed(1, snapshot=snapshot("a")), CODE, DONE, Computed(2, snapshot=snapshot("b")))
        run.go()
        committed = [record.snapshot for record in run.records if isinstance(record, Committed)]
        assert committed == [snapshot("a"), snapshot("b")]
        assert all(one is not None and one.blob is not None for one in committed), "they are on their way to the store"

    @pytest.mark.rule("CIRCLE-9")
    def test_the_next_program_gets_the_snapshot_to_restore(self) -> None:
        run = drive(CODE, Computed(1), CODE, Computed(2, snapshot=snapshot("b")), CODE, DONE, Computed())
        run.go()
        asked = [step.action for step in run.transitions if isinstance(step.action, Compute)]
        assert [list(one.snapshots) for one in asked] == [[], [], [SnapshotAfter(2, snapshot("b"))]]
        (left,) = asked[2].snapshots
        assert left.snapshot.blob is None, "a state holds no images"

    @pytest.mark.rule("CIRCLE-9")
    def test_the_record_of_a_gate_start_refers_to_the_snapshot_of_the_waiting_program(self) -> None:
        calls = [Called("echo", {"text": "a"}, "", snapshot("one")), Called("look", {}, "", snapshot("two"))]
        run = drive(CODE, *calls, Computed(), CODE, DONE, Computed())
        run.go()
        started = [record for record in run.records if isinstance(record, GateStarted)]
        assert [(one.gate, one.snapshot) for one in started] == [("echo", snapshot("one"))]
        (turn, _) = [record for record in run.records if isinstance(record, Committed)]
        assert turn.snapshot is None, "what belongs to a call is not the turn's"

    @pytest.mark.rule("CIRCLE-9", "LOOM-8")
    def test_a_turn_that_a_delegation_splits_commits_no_snapshot(self) -> None:
        called = Called("call_agent", {"intent": "go"}, "", snapshot("midway"))
        run = drive(CODE, called, Computed(snapshot=snapshot("after")), CODE, DONE, Computed())
        run.go()
        committed = [record.snapshot for record in run.records if isinstance(record, Committed)]
        assert committed == [None, snapshot("after"), None]
        (started,) = [record for record in run.records if isinstance(record, GateStarted)]
        assert started.snapshot == snapshot("midway")

    @pytest.mark.rule("CIRCLE-9", "D-011")
    def test_the_log_cut_at_any_record_requests_the_recorded_snapshots(self) -> None:
        """Cut at every record: the requested snapshots are those that the records up to there refer to."""
        run = drive(
            CODE,
            Computed(1, snapshot=snapshot("turn")),
            CODE,
            Called("echo", {"text": "a"}, "", snapshot("first")),
            Called("echo", {"text": "b"}, "", snapshot("second")),
            DONE,
            Computed(2),
        )
        run.go()
        seen = set()
        for cut in range(3, len(run.records)):
            records = run.records[:cut]
            loop, step = Loop.again(run.plan, records, Moment(0, 0, "t0"), Moment(99, 99, "fresh"))
            if step is None or not isinstance(step.action, Compute):
                continue
            asked = step.action
            turns = [r.snapshot for r in records if isinstance(r, Committed)]
            assert [left.snapshot for left in asked.snapshots] == [one for one in turns if one is not None]
            utterance = max(n for n, r in enumerate(records) if isinstance(r, Utterance))
            calls = [r for r in records[utterance:] if isinstance(r, GateStarted)]
            ended = [r for r in records[utterance:] if isinstance(r, GateFinished)]
            assert len(asked.answers) == len(ended)
            if calls:
                assert asked.midway == SnapshotAfter(len(calls) - 1, calls[-1].snapshot)
                assert asked.midway.after <= len(asked.answers)
            else:
                assert asked.midway is None
            assert loop.state.sandbox.programs is asked.before
            seen.add((len(calls), len(ended)))
        assert seen == {(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (2, 3)}

    @pytest.mark.rule("LOOM-4", "CIRCLE-9")
    def test_a_fork_has_the_snapshots_of_its_inherited_turns(self) -> None:
        ends = [Computed(n, snapshot=snapshot(str(n))) for n in range(3)]
        run = drive(CODE, ends[0], CODE, ends[1], CODE, DONE, ends[2])
        run.go()
        for n, at in enumerate(n for n, record in enumerate(run.records) if isinstance(record, Committed)):
            sandbox = make_fork_state(run.plan.shape, run.records[: at + 1]).sandbox
            assert list(sandbox.snapshots) == [SnapshotAfter(m + 1, snapshot(str(m))) for m in range(n + 1)]
            assert len(sandbox.programs) == n + 1

    @pytest.mark.rule("CIRCLE-6")
    def test_a_program_undone_by_a_limit_leaves_no_trace(self) -> None:
        run = drive(CODE, Computed(limit="5 s of computing"), CODE, DONE, Computed())
        run.go()
        assert [record.snapshot for record in run.records if isinstance(record, Committed)] == [None, None]

    @pytest.mark.rule("CIRCLE-6")
    def test_the_next_program_gets_the_variables_of_an_undone_one(self) -> None:
        limited = Computed(limit="5 s of computing")
        run = drive(CODE, limited, CODE, limited, CODE, Computed(), CODE, DONE, Computed())
        run.go(Begin("go", [1, 2]))
        given = [one.action.variables for one in run.transitions if isinstance(one.action, Compute)]
        assert given == [{"context": [1, 2]}] * 3 + [None]
        cut = [n for n, record in enumerate(run.records) if isinstance(record, Committed)]
        assert [make_fork_state(run.plan.shape, run.records[: at + 1]).sandbox.data for at in cut] == [
            [1, 2],
            [1, 2],
            None,
            None,
        ]

    @pytest.mark.rule("INTENT-3")
    def test_undelivered_variables_reach_the_programs_of_the_next_intent(self) -> None:
        first = drive(Response(content="nothing to do"))
        first.go(Begin("go", [1, 2]))
        run = Drive(circle(), CODE, DONE, Computed(), lineage=first.records)
        run.go("go on")
        given = [one.action.variables for one in run.transitions if isinstance(one.action, Compute)]
        assert given == [{"context": [1, 2]}]


@pytest.mark.rule("LOOM-8", "CIRCLE-4")
def test_output_before_and_after_a_child_is_shown_as_one() -> None:
    run = drive(
        CODE, Called("call_agent", {"intent": "go"}, "before\n"), Computed(output="after"), CODE, DONE, Computed()
    )
    run.go()
    assert run.queries[1][-1].content == "before\nafter"
