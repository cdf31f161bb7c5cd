"""The machine that decides, without agents and without an event loop: its table, and what holds for every history."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.agentic import ToolFailed, UnknownTool, controller
from cantrip_actors.agentic.arithmetic import (
    AddArgs,
    ArithmeticCriticInput,
    ArithmeticDecision,
    ArithmeticPlannerInput,
    ArithmeticPlannerOutput,
    ArithmeticResult,
    ArithmeticTask,
    ArithmeticWorkerInput,
    ArithmeticWorkerOutput,
    MulArgs,
)
from cantrip_actors.agentic.controller import (
    UTTERANCES,
    AskCritic,
    AskPlanner,
    AskWorker,
    End,
    Fail,
    Given,
    Judged,
    Parts,
    Phase,
    Planned,
    Standing,
    ToolErred,
    ToolUsed,
    UseTool,
    Worked,
    advance,
)
from cantrip_actors.agentic.schemas import PlannerOutput, ToolRequest, WorkerOutput
from tests.agentic.players import ADD
from tools import diagram

ROOT = Path(__file__).parent.parent.parent
TABLE = diagram.table(ROOT / "cantrip_actors" / "agentic" / "controller.py")
PARTS = Parts(
    ArithmeticPlannerInput,
    {"worker_addsub": ArithmeticWorkerInput, "worker_mul": ArithmeticWorkerInput},
    ArithmeticCriticInput,
    {"add": AddArgs, "mul": MulArgs},
)

RESULT = WorkerOutput(result=ArithmeticResult(value=3))
WISH = ArithmeticWorkerOutput(tool_request=ToolRequest(tool_name="add", args=AddArgs(a=1, b=2)))
EVENTS = [
    Given(ADD),
    Planned(ArithmeticPlannerOutput(task=ADD, worker_id="worker_addsub")),
    Planned(ArithmeticPlannerOutput(task=ADD, worker_id="worker_mul")),
    Planned(PlannerOutput(task=ADD, worker_id="nobody")),
    Planned(ArithmeticPlannerOutput(task=ArithmeticTask(op="ADD", a=1, b=3), worker_id="worker_addsub")),
    Worked(RESULT),
    Worked(WISH),
    Worked(WorkerOutput(tool_request=ToolRequest(tool_name="div", args=AddArgs(a=1, b=2)))),
    Worked(WorkerOutput(tool_request=ToolRequest(tool_name="mul", args=AddArgs(a=1, b=2)))),
    Worked(WorkerOutput(tool_request=ToolRequest(tool_name="add", args={"a": 1, "b": 2}))),
    Worked(WorkerOutput.model_construct()),
    ToolUsed('{"value":3}'),
    ToolErred("it failed"),
    Judged(ArithmeticDecision(decision="ACCEPT")),
    Judged(ArithmeticDecision.model_validate({"decision": "REJECT", "feedback": {"kind": "OTHER", "message": "no"}})),
]


START = Standing()


def every_step(standing=START):
    """Each transition that any history of EVENTS leads to."""
    for event in EVENTS:
        if (standing.phase, type(event)) in controller._HANDLERS:
            after, action = advance(PARTS, standing, event)
            yield standing, event, after, action
            yield from every_step(after)


STEPS = list(every_step())


class TestTable:
    def test_it_lists_exactly_what_happens(self):
        stated = {(row.phase, row.event, row.after, row.action) for row in TABLE}
        happened = {
            (before.phase.name, type(event).__name__, after.phase.name, type(action).__name__)
            for before, event, after, action in STEPS
        }
        assert stated == happened

    def test_it_lists_exactly_what_is_handled(self):
        assert {(row.phase, row.event) for row in TABLE} == {(p.name, e.__name__) for p, e in controller._HANDLERS}

    def test_every_other_event_is_a_bug_of_the_driver(self):
        for phase in Phase:
            for event in EVENTS:
                if (phase, type(event)) not in controller._HANDLERS:
                    with pytest.raises(AssertionError, match=f"cannot happen to a run in phase {phase}"):
                        advance(PARTS, Standing(phase), event)

    def test_the_picture_in_the_docs_shows_it(self):
        page = (ROOT / "docs" / "agentic.md").read_text(encoding="utf-8")
        drawn = set(re.findall(r"^    (\w+) --> (\w+): (\w+)", page, re.MULTILINE))
        assert drawn == {(row.phase, row.after, row.event) for row in TABLE}


class TestHistories:
    def histories(self, standing=START, path=()):
        moves = [e for e in EVENTS if (standing.phase, type(e)) in controller._HANDLERS]
        if not moves:
            yield path
        for event in moves:
            after, action = advance(PARTS, standing, event)
            yield from self.histories(after, (*path, (event, action)))

    @pytest.mark.rule("A-20", "A-21", "A-22", "A-29")
    def test_each_ends_after_at_most_four_calls_of_agents_and_one_of_a_tool(self):
        for history in self.histories():
            actions = [action for _, action in history]
            assert isinstance(actions[-1], (End, Fail))
            assert sum(isinstance(one, (AskPlanner, AskWorker, AskCritic)) for one in actions) <= UTTERANCES
            assert sum(isinstance(one, UseTool) for one in actions) <= 1
            assert sum(isinstance(one, AskPlanner) for one in actions) == 1
            assert sum(isinstance(one, AskCritic) for one in actions) == isinstance(actions[-1], End)

    @pytest.mark.rule("A-22", "A-23", "A-24", "A-25", "A-26", "A-27")
    def test_each_error_has_its_type_and_says_what_was_wrong(self):
        failed = {(type(action.error), str(action.error)) for _, _, _, action in STEPS if isinstance(action, Fail)}
        expected = {
            (RuntimeError, "Planner output task did not match requested task"),
            (ValueError, "Unknown worker_id 'nobody'"),
            (UnknownTool, "Unknown tool: div"),
            (TypeError, "Args for 'mul' must be MulArgs, got AddArgs"),
            (TypeError, "Args for 'add' must be AddArgs, got dict"),
            (RuntimeError, "Worker requested multiple tool invocations; not supported in atomic mode."),
            (RuntimeError, "WorkerOutput violated 'exactly one branch' invariant."),
            (ToolFailed, "it failed"),
        }
        assert {
            (kind, next(t for k, t in expected if k is kind and text.startswith(t))) for kind, text in failed
        } == expected

    @pytest.mark.rule("A-30")
    def test_the_critic_is_given_the_requested_task_the_last_result_and_the_route(self):
        asked = {
            (action.input.plan, action.input.worker_id, action.input.worker_answer)
            for _, _, _, action in STEPS
            if isinstance(action, AskCritic)
        }
        assert asked == {(ADD, worker, ArithmeticResult(value=3)) for worker in ("worker_addsub", "worker_mul")}

    @pytest.mark.rule("A-21")
    def test_only_the_second_work_has_the_tools_result(self):
        for before, _, _, action in STEPS:
            if isinstance(action, AskWorker):
                expected = ArithmeticResult(value=3) if before.phase is Phase.TOOL else None
                assert action.input.tool_result == expected
                assert action.input.task == ADD

    @given(st.lists(st.sampled_from(EVENTS), max_size=12))
    def test_a_step_never_changes_the_standing_it_came_from(self, events):
        standing = Standing()
        for event in events:
            if (standing.phase, type(event)) in controller._HANDLERS:
                before = standing
                standing, action = advance(PARTS, before, event)
                again = advance(PARTS, before, event)
                assert again[0] == standing
                assert type(again[1]) is type(action)
