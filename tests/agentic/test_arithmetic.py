"""The Arithmetic domain, role by role: accepted tasks, routing, computation, rejections."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cantrip_actors import InvalidIntent
from cantrip_demos import arithmetic
from cantrip_demos.arithmetic import (
    WORKERS,
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
    SubArgs,
    critique,
    make_agent_dispatcher,
    make_tool_registry,
    parse,
    run,
)
from tests.agentic.players import cast_of

OPS = {"ADD": int.__add__, "SUB": int.__sub__, "MUL": int.__mul__}
whole = st.integers() | st.integers(-(10**60), 10**60)
tasks = st.builds(ArithmeticTask, op=st.sampled_from(sorted(OPS)), a=whole, b=whole)


def right(task):
    return OPS[task.op](task.a, task.b)


class TestTask:
    @pytest.mark.rule("A-01")
    @pytest.mark.parametrize("op", ["DIV", "add", "", None, 1])
    def test_arithmetic_has_three_operations(self, op):
        with pytest.raises(ValidationError):
            ArithmeticTask(op=op, a=1, b=2)

    @pytest.mark.rule("A-01")
    @pytest.mark.parametrize("number", [1.5, None, "1", 1.0, True, [1], float("inf")])
    def test_a_value_that_is_not_a_whole_number_is_refused(self, number):
        for model, rest in (
            (ArithmeticTask, {"op": "ADD", "b": 1}),
            (AddArgs, {"b": 1}),
            (SubArgs, {"b": 1}),
            (MulArgs, {"b": 1}),
        ):
            with pytest.raises(ValidationError):
                model(a=number, **rest)
        with pytest.raises(ValidationError):
            ArithmeticResult(value=number)

    @pytest.mark.rule("A-01")
    @pytest.mark.parametrize("text", ['"1"', "1.0", "true", "null", "1.5"])
    def test_a_json_value_that_is_not_a_whole_number_is_refused(self, text):
        with pytest.raises(ValidationError):
            ArithmeticTask.model_validate_json(f'{{"op":"ADD","a":{text},"b":1}}')

    @pytest.mark.rule("A-02")
    def test_a_task_cannot_be_changed(self):
        task = ArithmeticTask(op="ADD", a=1, b=2)
        with pytest.raises(ValidationError, match="frozen"):
            task.a = 3
        assert task == ArithmeticTask(op="ADD", a=1, b=2)

    @pytest.mark.rule("A-02")
    async def test_a_run_does_not_change_its_task(self):
        task = ArithmeticTask(op="SUB", a=1, b=2)
        before = task.model_copy(deep=True)
        await run(task, dispatcher=make_agent_dispatcher(), tool_registry=make_tool_registry())
        assert task == before

    @pytest.mark.rule("A-03")
    @pytest.mark.parametrize("planner", [None, lambda given: {"task": given["task"], "worker_id": "worker_addsub"}])
    async def test_large_numbers_are_exact_with_and_without_a_tool(self, planner):
        dispatcher, _ = cast_of(planner=planner)
        task = ArithmeticTask(op="MUL", a=10**40 + 1, b=-(10**40) + 1)
        response = await run(task, dispatcher=dispatcher, tool_registry=make_tool_registry())
        assert response.worker_output["result"]["value"] == (10**40 + 1) * (-(10**40) + 1)
        assert response.task["a"] == 10**40 + 1

    @pytest.mark.rule("A-03", "V-02")
    async def test_numbers_of_4300_digits_are_exact(self):
        task = ArithmeticTask(op="SUB", a=10**4300 - 1, b=1)
        response = await run(task, dispatcher=make_agent_dispatcher(), tool_registry=make_tool_registry())
        assert response.worker_output["result"]["value"] == 10**4300 - 2


class TestPlanner:
    @pytest.mark.rule("A-04")
    @given(tasks)
    def test_the_planner_routes_by_operation_and_keeps_the_task(self, task):
        plans = [arithmetic.plan(ArithmeticPlannerInput(task=task)) for _ in range(3)]
        assert {plan.worker_id for plan in plans} == {"worker_mul" if task.op == "MUL" else "worker_addsub"}
        assert all(plan.task == task for plan in plans)

    @pytest.mark.rule("A-04", "A-27")
    def test_a_plan_with_an_unknown_worker_is_refused(self):
        task = {"op": "ADD", "a": 1, "b": 2}
        with pytest.raises(ValidationError, match="worker_id"):
            ArithmeticPlannerOutput.model_validate({"task": task, "worker_id": "worker_div"})


class TestWorkers:
    @pytest.mark.rule("A-05")
    def test_two_workers_share_no_operation(self):
        assert set(WORKERS) == {"worker_addsub", "worker_mul"} == set(make_agent_dispatcher().workers)
        assert not WORKERS["worker_addsub"] & WORKERS["worker_mul"]
        assert WORKERS["worker_addsub"] | WORKERS["worker_mul"] == set(OPS)

    @pytest.mark.rule("A-06")
    @given(tasks)
    def test_each_worker_computes_its_own_operations(self, task):
        worker_id = next(name for name, ops in WORKERS.items() if task.op in ops)
        output = arithmetic.make_worker(worker_id)(ArithmeticWorkerInput(task=task))
        assert output == ArithmeticWorkerOutput(result=ArithmeticResult(value=right(task)))

    @pytest.mark.rule("A-07")
    @given(tasks)
    def test_each_worker_requests_a_tool_for_other_operations(self, task):
        worker_id = next(name for name, ops in WORKERS.items() if task.op not in ops)
        work = arithmetic.make_worker(worker_id)
        output = work(ArithmeticWorkerInput(task=task))
        assert output.result is None
        assert output.tool_request.tool_name == task.op.lower()
        assert (output.tool_request.args.a, output.tool_request.args.b) == (task.a, task.b)
        result = ArithmeticResult(value=right(task))
        assert work(ArithmeticWorkerInput(task=task, tool_result=result)).result == result

    @pytest.mark.rule("A-07")
    def test_a_worker_has_no_access_to_the_tool_registry(self):
        assert "registry" not in inspect.getsource(arithmetic.make_worker)


class TestCritic:
    def judged(self, op="ADD", worker="worker_addsub", answer=3):
        value = None if answer is None else {"value": answer}
        task = {"op": op, "a": 1, "b": 2}
        return critique(
            ArithmeticCriticInput.model_validate({"plan": task, "worker_id": worker, "worker_answer": value})
        )

    @pytest.mark.rule("A-08", "A-16")
    @given(tasks)
    def test_a_correct_answer_is_accepted_without_feedback(self, task):
        worker_id = arithmetic.plan(ArithmeticPlannerInput(task=task)).worker_id
        given_ = ArithmeticCriticInput(
            plan=task, worker_id=worker_id, worker_answer=ArithmeticResult(value=right(task))
        )
        assert critique(given_) == ArithmeticDecision(decision="ACCEPT", feedback=None)

    @pytest.mark.rule("A-09")
    @pytest.mark.parametrize(
        ("op", "worker", "answer"), [("ADD", "worker_mul", 3), ("MUL", "worker_addsub", 2), ("ADD", "nobody", 3)]
    )
    def test_the_wrong_worker_is_rejected_even_with_the_right_value(self, op, worker, answer):
        assert self.judged(op, worker, answer).feedback.kind == "ROUTING_ERROR"

    @pytest.mark.rule("A-10")
    def test_no_answer_is_rejected(self):
        assert self.judged(answer=None).feedback.kind == "EMPTY_RESULT"

    @pytest.mark.rule("A-11")
    @given(tasks, st.integers().filter(bool))
    def test_a_wrong_value_is_rejected_with_a_message(self, task, off):
        worker_id = arithmetic.plan(ArithmeticPlannerInput(task=task)).worker_id
        answer = ArithmeticResult(value=right(task) + off)
        decision = critique(ArithmeticCriticInput(plan=task, worker_id=worker_id, worker_answer=answer))
        assert decision.decision == "REJECT"
        assert decision.feedback.kind == "MATH_ERROR"
        assert decision.feedback.message

    @pytest.mark.rule("A-12")
    def test_the_critic_checks_the_worker_then_the_presence_and_then_the_value_of_the_answer(self):
        assert self.judged(worker="worker_mul", answer=None).feedback.kind == "ROUTING_ERROR"
        assert self.judged(worker="worker_mul", answer=99).feedback.kind == "ROUTING_ERROR"
        assert self.judged(worker="worker_addsub", answer=None).feedback.kind == "EMPTY_RESULT"


class TestTools:
    @pytest.mark.rule("A-13")
    @given(st.sampled_from(["add", "sub", "mul"]), whole, whole)
    def test_each_tool_computes_its_operation(self, name, a, b):
        registry = make_tool_registry()
        _, _, arg_type = registry.get(name)
        assert registry.call(name, arg_type(a=a, b=b)) == ArithmeticResult(value=OPS[name.upper()](a, b))

    @pytest.mark.rule("A-13")
    @pytest.mark.parametrize("name", ["add", "sub", "mul"])
    def test_each_tool_refuses_the_arguments_of_others(self, name):
        registry = make_tool_registry()
        _, _, own = registry.get(name)
        for other in {AddArgs, SubArgs, MulArgs} - {own}:
            with pytest.raises(TypeError, match=own.__name__):
                registry.call(name, other(a=1, b=2))

    @pytest.mark.rule("A-14")
    def test_arithmetic_has_three_tools(self):
        assert sorted(make_tool_registry()) == ["add", "mul", "sub"]


class TestExpression:
    @given(tasks, st.sampled_from(["", " ", "  "]))
    def test_an_expression_is_parsed_to_its_task(self, task, space):
        signs = {"ADD": "+", "SUB": "-", "MUL": "*"}
        assert parse(f"{task.a}{space}{signs[task.op]}{space}{task.b}") == task

    @pytest.mark.parametrize("sign", ["*", "x", "X", "×"])
    def test_an_expression_may_have_any_multiplication_sign(self, sign):
        assert parse(f"12{sign}7") == ArithmeticTask(op="MUL", a=12, b=7)

    @pytest.mark.parametrize(
        "text", ["", "1", "1 +", "1 / 2", "1.5 + 2", "1 + 2 + 3", "a + b", "1 ** 2", "٣ + ٤", "1 2"]
    )
    def test_another_expression_is_refused_with_an_explanation(self, text):
        with pytest.raises(InvalidIntent, match="expected two whole numbers"):
            parse(text)

    def test_a_number_with_more_than_2000_digits_is_refused(self):
        assert parse(f"{'9' * 2000} * {'9' * 2000}").a == 10**2000 - 1
        with pytest.raises(InvalidIntent, match="at most 2,000 digits"):
            parse(f"{'9' * 2001} * 2")


def test_the_domain_exports_its_documented_names():
    assert all(hasattr(arithmetic, name) for name in arithmetic.__all__)
