"""The dispatcher: the number of attempts, their input, and errors that are not retried."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import ProviderError, Usage
from cantrip_actors.agentic import AgentExhausted, AgentReply, FunctionAgent
from cantrip_demos.arithmetic import (
    ArithmeticCriticInput,
    ArithmeticPlannerInput,
    ArithmeticPlannerOutput,
    ArithmeticTask,
    ArithmeticWorkerInput,
    make_agent_dispatcher,
)
from tests.agentic.players import ACCEPT, ADD, Player, cast_of, route, value, wish

INPUT = ArithmeticWorkerInput(task=ADD)
BAD = "no json"
INVALID = {
    "no JSON": BAD,
    "nothing": "",
    "another shape": [],
    "both branches": {**value(3), **wish("add", a=1, b=2)},
    "neither branch": {},
    "arguments that cannot be": wish("add", a=1, b="2"),
    "arguments that are missing": wish("add"),
    "a number that is none": value("3"),
    "a tool's name that is too long": wish("x" * 65),
}


class TestAttempts:
    @pytest.mark.rule("A-32", "A-38")
    @given(st.integers(0, 6), st.integers(0, 6))
    def test_a_call_is_attempted_max_retries_times_at_most_and_ends_with_the_first_answer_that_fits(
        self, max_retries, wrong
    ):
        async def main():
            dispatcher, players = cast_of(worker=[*([BAD] * wrong), value(3)], max_retries=max_retries)
            if wrong < max_retries:
                result = await dispatcher.work("worker_addsub", INPUT)
                assert result.output.result.value == 3
                assert result.agent_id == "worker"
            else:
                with pytest.raises(AgentExhausted):
                    await dispatcher.work("worker_addsub", INPUT)
            assert len(players["worker"].given) == min(wrong + 1, max_retries)

        anyio.run(main)

    @pytest.mark.rule("A-32")
    async def test_every_call_has_its_own_id(self):
        dispatcher, _ = cast_of(worker=[BAD, value(3)])
        ids = {(await dispatcher.work("worker_addsub", INPUT)).call_id for _ in range(3)}
        assert len(ids) == 3

    @pytest.mark.rule("A-32")
    async def test_a_call_with_zero_attempts_fails_at_once(self):
        dispatcher, players = cast_of(worker=value(3), max_retries=0)
        with pytest.raises(RuntimeError, match=r"failed after 0 retries .* Last error: None"):
            await dispatcher.work("worker_addsub", INPUT)
        assert players["worker"].given == []

    @pytest.mark.rule("A-32")
    @pytest.mark.parametrize("given_", [-1, 1.5, True, None])
    def test_an_invalid_number_of_attempts_is_refused(self, given_):
        with pytest.raises(ValueError, match="max_retries"):
            make_agent_dispatcher(max_retries=given_)

    @pytest.mark.rule("A-33")
    async def test_exhaustion_names_the_agent_the_attempts_and_the_last_payload(self):
        dispatcher, _ = cast_of(worker=["first", "the last"], max_retries=2)
        with pytest.raises(RuntimeError, match=r"'worker' failed after 2 retries.*Last raw payload: the last") as error:
            await dispatcher.work("worker_addsub", INPUT)
        assert "first" not in str(error.value)

    @pytest.mark.rule("A-33")
    async def test_a_long_payload_is_cut(self):
        dispatcher, _ = cast_of(worker="x" * 100_000, max_retries=1)
        with pytest.raises(AgentExhausted) as error:
            await dispatcher.work("worker_addsub", INPUT)
        assert len(str(error.value)) < 5_000
        assert "(100,000 characters)" in str(error.value)

    @pytest.mark.rule("A-34")
    @pytest.mark.parametrize("answer", INVALID.values(), ids=INVALID.keys())
    async def test_an_output_that_does_not_fit_is_retried(self, answer):
        dispatcher, players = cast_of(worker=[answer, value(3)])
        assert (await dispatcher.work("worker_addsub", INPUT)).output.result.value == 3
        assert len(players["worker"].given) == 2

    @pytest.mark.rule("A-34", "A-16")
    @pytest.mark.parametrize("answer", [{"decision": "REJECT"}, {"decision": "ACCEPT", "feedback": {"kind": "x"}}])
    async def test_an_invalid_decision_is_retried(self, answer):
        dispatcher, players = cast_of(critic=[answer, ACCEPT])
        given_ = ArithmeticCriticInput(plan=ADD, worker_id="worker_addsub", worker_answer=None)
        assert (await dispatcher.critique(given_)).output.decision == "ACCEPT"
        assert len(players["critic"].given) == 2

    @pytest.mark.rule("A-34")
    async def test_an_output_that_makes_a_validator_raise_is_retried(self):
        class Stumbles(ArithmeticPlannerOutput):
            @classmethod
            def model_validate_json(cls, *_, **__):
                raise KeyError("odd")

        planner = Player("planner", {}, schemas=(ArithmeticPlannerInput, Stumbles))
        dispatcher = make_agent_dispatcher(planner=planner)
        with pytest.raises(AgentExhausted, match="odd"):
            await dispatcher.plan(ArithmeticPlannerInput(task=ADD))
        assert len(planner.given) == 3


class TestNoSecondAttempt:
    @pytest.mark.rule("A-35")
    @pytest.mark.parametrize(
        "error", [ZeroDivisionError("no"), ProviderError("busy", status=429), TimeoutError(), ValueError("x")]
    )
    async def test_an_exception_of_an_agent_is_not_retried(self, error):
        dispatcher, players = cast_of(worker=error)
        with pytest.raises(type(error)) as raised:
            await dispatcher.work("worker_addsub", INPUT)
        assert raised.value is error
        assert len(players["worker"].given) == 1

    @pytest.mark.rule("A-35")
    async def test_an_answer_that_is_not_text_is_not_retried(self):
        dispatcher, players = cast_of(worker=[None])
        players["worker"]._answers = (lambda _: None,)
        with pytest.raises(TypeError, match="answered with NoneType: expected JSON text"):
            await dispatcher.work("worker_addsub", INPUT)
        assert len(players["worker"].given) == 1

    @pytest.mark.rule("A-27")
    async def test_an_unknown_worker_is_an_error_without_a_call(self):
        dispatcher, players = cast_of(worker=value(3))
        with pytest.raises(ValueError, match="Unknown worker_id 'worker_div': there are worker_addsub, worker_mul"):
            await dispatcher.work("worker_div", INPUT)
        assert players["worker"].given == []

    @pytest.mark.rule("A-45")
    async def test_a_cancelled_call_is_not_retried(self):
        async def forever(_):
            await anyio.sleep_forever()

        dispatcher, players = cast_of(worker=forever)
        with anyio.move_on_after(1) as scope:
            await dispatcher.work("worker_addsub", INPUT)
        assert scope.cancelled_caught
        assert len(players["worker"].given) == 1


class TestInput:
    @pytest.mark.rule("A-36")
    async def test_every_attempt_gets_the_same_input(self):
        dispatcher, players = cast_of(worker=[BAD, "{}", value(3)])
        await dispatcher.work("worker_addsub", INPUT)
        assert players["worker"].raw == [INPUT.model_dump_json()] * 3

    @pytest.mark.rule("A-37")
    async def test_every_call_has_attempts_of_its_own(self):
        dispatcher, players = cast_of(planner=[BAD, BAD, route("worker_addsub")], worker=[BAD, BAD, value(3)])
        await dispatcher.plan(ArithmeticPlannerInput(task=ADD))
        await dispatcher.work("worker_addsub", INPUT)
        assert [len(player.given) for player in players.values()] == [3, 3]


class TestFunctions:
    async def test_a_plain_function_is_an_agent(self):
        def plan(given: ArithmeticPlannerInput) -> ArithmeticPlannerOutput:
            return ArithmeticPlannerOutput(task=given.task, worker_id="worker_mul")

        agent = FunctionAgent(plan)
        assert (agent.id, agent.name) == ("plan", "plan")
        assert (agent.input_schema, agent.output_schema) == (ArithmeticPlannerInput, ArithmeticPlannerOutput)
        answer = await agent(ArithmeticPlannerInput(task=ADD).model_dump_json())
        assert ArithmeticPlannerOutput.model_validate_json(answer).worker_id == "worker_mul"

    async def test_an_async_function_is_an_agent_and_may_answer_with_text(self):
        async def plan(_: ArithmeticPlannerInput) -> ArithmeticPlannerOutput:
            await anyio.sleep(3600)
            return "what?"

        assert await FunctionAgent(plan, id="p")(ArithmeticPlannerInput(task=ADD).model_dump_json()) == "what?"

    def test_a_function_without_schemas_is_refused(self):
        with pytest.raises(TypeError, match="input_schema: expected a pydantic model"):
            FunctionAgent(lambda given: given)
        with pytest.raises(TypeError, match="output_schema"):
            FunctionAgent(lambda given: given, input_schema=ArithmeticTask)

    async def test_an_object_with_a_synchronous_call_is_an_agent(self):
        class Sync:
            id = name = "sync"
            input_schema, output_schema = ArithmeticPlannerInput, ArithmeticPlannerOutput

            def __call__(self, input_json):
                return f'{{"worker_id":"worker_mul",{input_json[1:]}'

        result = await make_agent_dispatcher(planner=Sync()).plan(ArithmeticPlannerInput(task=ADD))
        assert result.output.task == ADD


async def test_the_tokens_of_all_attempts_are_counted():
    class Paid(Player):
        async def reply(self, input_json):
            return AgentReply(await self(input_json), Usage(10, 1))

    dispatcher = make_agent_dispatcher(worker=Paid("worker", BAD, value(3)))
    assert (await dispatcher.work("worker_addsub", INPUT)).usage == Usage(20, 2)
