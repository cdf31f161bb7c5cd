"""The types of the core: valid values, invalid values, and immutable responses."""

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from cantrip_actors.agentic import (
    ControllerDomainInput,
    ControllerRequest,
    ControllerResponse,
    Decision,
    Feedback,
    ToolRequest,
    WorkerOutput,
)
from cantrip_demos.arithmetic import AddArgs, ArithmeticDecision, ArithmeticWorkerOutput

RESULT, REQUEST = {"value": 3}, {"tool_name": "add", "args": {"a": 1, "b": 2}}
FEEDBACK = {"kind": "OTHER", "message": "no"}


class TestWorkerOutput:
    @pytest.mark.rule("A-15", "A-38")
    @pytest.mark.parametrize("branches", [{}, {"result": RESULT, "tool_request": REQUEST}, {"result": None}])
    def test_a_worker_output_has_exactly_one_branch(self, branches):
        with pytest.raises(ValidationError, match="exactly one of result and tool_request"):
            ArithmeticWorkerOutput.model_validate(branches)

    @pytest.mark.rule("A-15")
    @pytest.mark.parametrize("branches", [{"result": RESULT}, {"tool_request": REQUEST}])
    def test_each_branch_of_a_worker_output_is_accepted(self, branches):
        assert ArithmeticWorkerOutput.model_validate_json(json.dumps(branches))

    @pytest.mark.rule("A-24", "A-34", "A-38")
    def test_arguments_of_a_tool_request_are_validated_by_the_tools_schema(self):
        output = ArithmeticWorkerOutput.model_validate({"tool_request": REQUEST})
        assert output.tool_request.args == AddArgs(a=1, b=2)
        for args in ({"a": 1}, {"a": 1, "b": "2"}, {"a": 1, "b": 2, "c": 3}, None):
            with pytest.raises(ValidationError):
                ArithmeticWorkerOutput.model_validate({"tool_request": {"tool_name": "add", "args": args}})

    def test_arguments_of_an_unknown_tool_are_kept_unchanged(self):
        output = ArithmeticWorkerOutput.model_validate({"tool_request": {"tool_name": "div", "args": {"a": 1}}})
        assert output.tool_request.args == {"a": 1}

    @pytest.mark.rule("A-19")
    def test_a_tools_name_has_at_most_64_characters(self):
        assert ToolRequest(tool_name="x" * 64)
        with pytest.raises(ValidationError, match="64"):
            ToolRequest(tool_name="x" * 65)


class TestDecision:
    @pytest.mark.rule("A-16")
    def test_a_rejection_has_feedback(self):
        with pytest.raises(ValidationError, match="feedback"):
            Decision(decision="REJECT")
        assert Decision.model_validate({"decision": "REJECT", "feedback": FEEDBACK})

    @pytest.mark.rule("A-16")
    def test_an_acceptance_needs_no_feedback_and_arithmetic_refuses_it(self):
        assert Decision(decision="ACCEPT").feedback is None
        assert Decision.model_validate({"decision": "ACCEPT", "feedback": FEEDBACK}).feedback
        with pytest.raises(ValidationError, match="no feedback"):
            ArithmeticDecision.model_validate({"decision": "ACCEPT", "feedback": FEEDBACK})

    @pytest.mark.rule("A-16")
    @pytest.mark.parametrize("feedback", [{"kind": "", "message": "x"}, {"kind": "x", "message": " "}, {"kind": "x"}])
    def test_empty_feedback_is_refused(self, feedback):
        with pytest.raises(ValidationError):
            Feedback.model_validate(feedback)

    def test_a_decision_is_accept_or_reject(self):
        with pytest.raises(ValidationError):
            Decision(decision="MAYBE")


class TestRequest:
    @pytest.mark.rule("A-17")
    @pytest.mark.parametrize("task", [None, [], [1], (1,), {1}, frozenset({1})])
    def test_the_controller_input_is_one_task_and_not_a_collection(self, task):
        with pytest.raises(ValidationError, match="exactly one task"):
            ControllerDomainInput(task=task)

    @pytest.mark.rule("A-17")
    @pytest.mark.parametrize("task", [{"a": 1}, "text", 0, AddArgs(a=1, b=2), object()])
    def test_any_object_can_be_the_task(self, task):
        assert ControllerRequest(domain=ControllerDomainInput(task=task)).domain.task == task

    def test_the_controller_request_has_no_other_fields(self):
        assert set(ControllerRequest.model_fields) == {"domain"}
        assert set(ControllerDomainInput.model_fields) == {"task"}


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def mutable_parts(value):
    if isinstance(value, dict):
        yield value
        for one in value.values():
            yield from mutable_parts(one)
    elif isinstance(value, list):
        yield value
        for one in value:
            yield from mutable_parts(one)


class TestResponse:
    def response(self, **parts):
        given_ = {"task": 1, "worker_id": "w", "worker_output": {}, "critic_decision": {}, "trace": []}
        return ControllerResponse(**given_ | parts)

    @pytest.mark.rule("A-18")
    def test_the_controller_response_has_exactly_these_fields(self):
        fields = ["task", "worker_id", "worker_output", "critic_decision", "trace"]
        assert list(ControllerResponse.model_fields) == fields == list(self.response().model_dump())

    @pytest.mark.rule("A-18")
    @given(trees)
    def test_a_response_is_deeply_frozen_and_serialises_unchanged(self, tree):
        response = self.response(worker_output=tree)
        with pytest.raises(ValidationError, match="frozen"):
            response.worker_output = 1
        for part in mutable_parts(response.worker_output):
            with pytest.raises(TypeError, match="immutable"):
                part[0] = 1
            with pytest.raises(TypeError, match="immutable"):
                part.clear()
        assert response.worker_output == tree
        assert json.loads(json.dumps(response.worker_output)) == tree
        assert response.model_dump()["worker_output"] == tree
        assert json.loads(response.model_dump_json())["worker_output"] == tree
        assert copy.deepcopy(response) == response == pickle.loads(pickle.dumps(response))

    @pytest.mark.rule("A-18")
    @pytest.mark.parametrize(
        "change",
        [
            lambda r: r.worker_output.update(x=1),
            lambda r: r.worker_output.setdefault("x", 1),
            lambda r: r.worker_output.popitem(),
            lambda r: setattr(r.worker_output, "x", 1),
            lambda r: r.worker_output.__ior__({"x": 1}),
            lambda r: r.worker_output.pop("a"),
            lambda r: r.worker_output.__delitem__("a"),
            lambda r: r.trace.append({}),
            lambda r: r.trace.extend([]),
            lambda r: r.trace.insert(0, {}),
            lambda r: r.trace.remove({}),
            lambda r: r.trace.sort(),
            lambda r: r.trace.reverse(),
            lambda r: r.trace.__iadd__([1]),
        ],
    )
    def test_a_response_cannot_be_changed_in_any_way(self, change):
        response = self.response(worker_output={"a": {"b": 1}}, trace=[{}])
        with pytest.raises(TypeError, match="immutable"):
            change(response)

    def test_a_dumped_response_is_a_copy(self):
        response = self.response(trace=[{"a": 1}])
        response.model_dump()["trace"][0]["a"] = 2
        assert response.trace[0].a == 1

    def test_fields_can_be_read_as_attributes(self):
        response = self.response(critic_decision={"decision": "ACCEPT"})
        assert response.critic_decision.decision == "ACCEPT"
        with pytest.raises(AttributeError, match="there are decision"):
            _ = response.critic_decision.feedback


def test_all_shapes_are_frozen():
    output = WorkerOutput[AddArgs](result=AddArgs(a=1, b=2))
    for model, name in ((output, "result"), (Decision(decision="ACCEPT"), "decision")):
        assert isinstance(model, BaseModel)
        with pytest.raises(ValidationError, match="frozen"):
            setattr(model, name, None)
