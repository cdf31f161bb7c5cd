"""The next step of a run, without agents and without an event loop: every history of results and its laws."""

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.agentic import ToolRegistry, UnknownTool, WorkerInput
from cantrip_actors.agentic.controller import UTTERANCES, AskAgent, End, Fail, UseTool, advance, one_pass
from cantrip_actors.agentic.schemas import PlannerOutput, ToolRequest, WorkerOutput
from cantrip_demos.arithmetic import (
    AddArgs,
    ArithmeticDecision,
    ArithmeticPlannerOutput,
    ArithmeticResult,
    ArithmeticTask,
    ArithmeticWorkerOutput,
    MulArgs,
    make_agent_dispatcher,
)
from tests.agentic.players import ADD

PAGE = Path(__file__).parent.parent.parent / "docs" / "agentic.md"
DISPATCHER = make_agent_dispatcher()
TOOLS = ToolRegistry()
TOOLS.register("add", "Add.", lambda args: args.a + args.b, AddArgs, blocking=False)
TOOLS.register("mul", "Multiply.", lambda args: args.a * args.b, MulArgs, blocking=False)

WISH = ArithmeticWorkerOutput(tool_request=ToolRequest(tool_name="add", args=AddArgs(a=1, b=2)))
RESULTS = {
    "PLAN": [
        ArithmeticPlannerOutput(task=ADD, worker_id="worker_addsub"),
        ArithmeticPlannerOutput(task=ADD, worker_id="worker_mul"),
        PlannerOutput(task=ADD, worker_id="nobody"),
        ArithmeticPlannerOutput(task=ArithmeticTask(op="ADD", a=1, b=3), worker_id="worker_addsub"),
    ],
    "WORK": [
        WorkerOutput(result=ArithmeticResult(value=3)),
        WISH,
        WorkerOutput(tool_request=ToolRequest(tool_name="div", args=AddArgs(a=1, b=2))),
        WorkerOutput(tool_request=ToolRequest(tool_name="mul", args=AddArgs(a=1, b=2))),
        WorkerOutput(tool_request=ToolRequest(tool_name="add", args={"a": 1, "b": 2})),
        WorkerOutput.model_construct(),
    ],
    "TOOL": ['{"value":3}'],
    "CRITIC": [
        ArithmeticDecision(decision="ACCEPT"),
        ArithmeticDecision.model_validate({"decision": "REJECT", "feedback": {"kind": "OTHER", "message": "no"}}),
    ],
}


def actions_after(results):
    """The actions of a run that is sent these results."""
    run = one_pass(DISPATCHER, TOOLS, ADD)
    return [advance(run), *(advance(run, result) for result in results)]


def state_of(action):
    return action.state.value if isinstance(action, AskAgent) else "TOOL" if isinstance(action, UseTool) else None


def histories(results=()):
    """The actions of every run that the RESULTS lead to, each with the results."""
    actions = actions_after(results)
    if (state := state_of(actions[-1])) is None:
        yield actions, results
        return
    for result in RESULTS[state]:
        yield from histories((*results, result))


HISTORIES = list(histories())


def edges():
    """The steps of every history as the docs draw them: the second WORK is REWORK."""
    for actions, _ in HISTORIES:
        names = [
            "REWORK" if state_of(one) == "WORK" and one.input.tool_result is not None else state_of(one)
            for one in actions[:-1]
        ]
        names.append("END" if isinstance(actions[-1], End) else "FAILED")
        yield from itertools.pairwise(names)


def test_the_diagram_in_the_docs_shows_every_transition():
    drawn = set(re.findall(r"^    (\w+) --> (\w+): ", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    raised = {("TOOL", "FAILED")}  # the driver's: a tool that raises gives no result
    assert drawn == {*edges(), *raised}


class TestHistories:
    @pytest.mark.rule("A-20", "A-21", "A-22", "A-29")
    def test_a_run_has_at_most_four_calls_of_agents_and_one_of_a_tool(self):
        for actions, _ in HISTORIES:
            states = [state_of(action) for action in actions]
            assert isinstance(actions[-1], (End, Fail))
            assert sum(isinstance(one, AskAgent) for one in actions) <= UTTERANCES
            assert states.count("TOOL") <= 1
            assert states.count("PLAN") == 1
            assert states.count("CRITIC") == isinstance(actions[-1], End)

    @pytest.mark.rule("A-22", "A-23", "A-24", "A-26", "A-27")
    def test_each_error_has_its_type_and_an_explanation(self):
        ends = [actions[-1] for actions, _ in HISTORIES]
        failed = {(type(end.error), str(end.error)) for end in ends if isinstance(end, Fail)}
        expected = {
            (RuntimeError, "Planner output task did not match requested task"),
            (ValueError, "Unknown worker_id 'nobody'"),
            (UnknownTool, "Unknown tool: div"),
            (TypeError, "Args for 'mul' must be MulArgs, got AddArgs"),
            (TypeError, "Args for 'add' must be AddArgs, got dict"),
            (RuntimeError, "Worker requested multiple tool invocations; not supported in atomic mode."),
            (RuntimeError, "WorkerOutput violated 'exactly one branch' invariant."),
        }
        assert {
            (kind, next(t for k, t in expected if k is kind and text.startswith(t))) for kind, text in failed
        } == expected

    @pytest.mark.rule("A-30")
    def test_the_critic_gets_the_requested_task_the_last_result_and_the_worker(self):
        asked = {
            (action.input.plan, action.input.worker_id, action.input.worker_answer)
            for actions, _ in HISTORIES
            for action in actions
            if state_of(action) == "CRITIC"
        }
        assert asked == {(ADD, worker, ArithmeticResult(value=3)) for worker in ("worker_addsub", "worker_mul")}

    @pytest.mark.rule("A-21")
    def test_only_the_second_work_has_the_tools_result(self):
        for actions, _ in HISTORIES:
            for before, action in itertools.pairwise(actions):
                if state_of(action) == "WORK":
                    expected = ArithmeticResult(value=3) if isinstance(before, UseTool) else None
                    assert action.input == WorkerInput(task=ADD, tool_result=expected)

    @given(st.sampled_from(HISTORIES))
    def test_the_same_results_lead_to_the_same_actions(self, history):
        actions, results = history
        again = actions_after(results)
        assert again[:-1] == actions[:-1]
        assert type(again[-1]) is type(actions[-1])
        assert str(again[-1]) == str(actions[-1])
