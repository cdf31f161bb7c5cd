"""Crystals that play roles: their input, their valid answers, the two kinds of retries, and their cost."""

import json

import anyio
import pytest

from cantrip_actors import CrystalError, ProviderError, Retry, Runtime, Usage, scripted
from cantrip_actors.agentic import AgentExhausted, CrystalAgent
from cantrip_actors.crystals import limited
from cantrip_demos import arithmetic
from cantrip_demos.arithmetic import (
    ArithmeticPlannerInput,
    ArithmeticPlannerOutput,
    make_agent_dispatcher,
    make_tool_registry,
    run,
)
from tests.agentic.players import ADD, MUL, states

PLAN = {"task": MUL.model_dump(), "worker_id": "worker_mul"}


def model(**instead):
    """A crystal that plays all roles correctly, except those with an override."""

    def play(context):
        told, given = context[0].content, json.loads(context[1].content)
        if "the planner" in told:
            role, answer = "planner", {"task": given["task"], "worker_id": "worker_mul"}
        elif "a worker" in told:
            role, answer = "worker", {"result": {"value": given["task"]["a"] * given["task"]["b"]}}
        else:
            role, answer = "critic", {"decision": "ACCEPT", "feedback": None}
        said = instead.get(role, answer)
        said = next(said) if hasattr(said, "__next__") else said
        if isinstance(said, dict) and "error" in said:
            return said
        return {"content": said if isinstance(said, str) else json.dumps(said), "usage": {"prompt_tokens": 10}}

    return scripted(play)


class TestRoles:
    @pytest.mark.rule("A-20")
    async def test_one_crystal_can_play_all_roles(self):
        crystal = model()
        async with Runtime.open() as runtime:
            dispatcher = make_agent_dispatcher(crystal)
            response = await run(MUL, dispatcher=dispatcher, tool_registry=make_tool_registry(), runtime=runtime)
            (header,) = runtime.loom.headers()
            turns = runtime.loom.turns(header.entity_id)
        assert response.worker_output.result.value == 84
        assert states(response.trace) == ["PLAN", "WORK", "CRITIC", "END"]
        assert [turn.usage.prompt_tokens for turn in turns] == [10, 10, 10]
        assert len(crystal.invocations) == 3

    async def test_each_crystal_gets_its_role_schema_and_input(self):
        crystal = model()
        await make_agent_dispatcher(crystal).plan(ArithmeticPlannerInput(task=MUL))
        (asked,) = crystal.invocations
        system, user = asked
        assert (system.role, user.role) == ("system", "user")
        assert arithmetic.PLANNER in system.content
        assert json.dumps(ArithmeticPlannerOutput.model_json_schema(), separators=(",", ":")) in system.content
        assert user.content == ArithmeticPlannerInput(task=MUL).model_dump_json()
        assert list(asked.tools) == []

    async def test_a_crystal_with_schema_support_gets_the_schema(self):
        class Able:
            async def invoke(self, messages, options):
                self.options = options
                return json.dumps(PLAN)

        able = Able()
        await make_agent_dispatcher(able).plan(ArithmeticPlannerInput(task=MUL))
        assert able.options["output_schema"] == ArithmeticPlannerOutput.model_json_schema()

    async def test_an_answer_in_a_code_fence_is_read(self):
        crystal = scripted([{"content": f"```json\n{json.dumps(PLAN)}\n```"}])
        result = await make_agent_dispatcher(crystal, 1).plan(ArithmeticPlannerInput(task=MUL))
        assert result.output.worker_id == "worker_mul"

    async def test_different_crystals_and_functions_can_play_the_roles(self):
        crystal = model(worker={"result": {"value": 85}})
        dispatcher = make_agent_dispatcher(worker=crystal)
        response = await run(MUL, dispatcher=dispatcher, tool_registry=make_tool_registry())
        assert response.critic_decision.feedback.kind == "MATH_ERROR"
        assert len(crystal.invocations) == 1

    def test_a_crystal_name_is_resolved_only_when_its_role_is_asked(self):
        assert make_agent_dispatcher("nowhere:model")

    async def test_an_invalid_crystal_ends_the_run_with_an_explanation(self):
        with pytest.raises(CrystalError.__base__, match='no crystal family "nowhere"'):
            await run(MUL, dispatcher=make_agent_dispatcher("nowhere:model"), tool_registry=make_tool_registry())


class TestRetries:
    @pytest.mark.rule("A-32", "A-34", "A-36")
    async def test_an_answer_that_does_not_fit_is_retried_and_its_tokens_count(self):
        crystal = model(worker=iter(["no json", {"result": {"value": 84}}]))
        async with Runtime.open() as runtime:
            dispatcher = make_agent_dispatcher(crystal)
            await run(MUL, dispatcher=dispatcher, tool_registry=make_tool_registry(), runtime=runtime)
            (header,) = runtime.loom.headers()
            assert [turn.usage.prompt_tokens for turn in runtime.loom.turns(header.entity_id)] == [10, 20, 10]
        _, first, second, _ = crystal.invocations
        assert list(first) == list(second)

    @pytest.mark.rule("A-33")
    async def test_a_crystal_that_never_fits_its_schema_is_an_error(self):
        with pytest.raises(AgentExhausted, match="'arithmetic-planner' failed after 3"):
            await run(MUL, dispatcher=make_agent_dispatcher(model(planner="…")), tool_registry=make_tool_registry())

    @pytest.mark.rule("A-35", "A-32")
    async def test_a_crystal_retries_a_busy_provider_within_one_attempt(self):
        busy = {"error": {"status": 429}}
        crystal = model(worker=iter([busy, busy, {"result": {"value": 84}}]))
        response = await run(MUL, dispatcher=make_agent_dispatcher(crystal, 1), tool_registry=make_tool_registry())
        assert response.worker_output.result.value == 84
        assert len(crystal.invocations) == 5

    @pytest.mark.rule("A-35")
    async def test_the_dispatcher_does_not_retry_a_busy_crystal(self):
        crystal = model(worker={"error": {"status": 503}})
        retry = Retry(max_retries=2)
        worker = CrystalAgent(crystal, arithmetic.WORKER, "w", *_schemas(), retry=retry)
        with pytest.raises(ProviderError) as error:
            await run(MUL, dispatcher=make_agent_dispatcher(worker=worker), tool_registry=make_tool_registry())
        assert (error.value.status, error.value.attempts) == (503, 3)
        assert len(crystal.invocations) == 3


def _schemas():
    worker = make_agent_dispatcher().workers["worker_mul"]
    return worker.input_schema, worker.output_schema


class TestSharedLimits:
    @pytest.mark.rule("A-41")
    async def test_the_limits_of_a_crystal_hold_for_all_runs_of_a_runtime(self):
        running, most = 0, 0

        async def slow(context):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await anyio.sleep(1)
            running -= 1
            return {"content": json.dumps({"result": {"value": 3}})}

        crystal = limited(scripted(slow), concurrency=2)
        dispatcher, registry = make_agent_dispatcher(worker=crystal), make_tool_registry()
        async with Runtime.open() as runtime:

            async def one():
                response = await run(ADD, dispatcher=dispatcher, tool_registry=registry, runtime=runtime)
                assert response.critic_decision.decision == "ACCEPT"

            async with anyio.create_task_group() as group:
                for _ in range(8):
                    group.start_soon(one)
        assert most == 2


async def test_an_agents_reply_has_its_usage():
    agent = make_agent_dispatcher(model()).planner
    given = ArithmeticPlannerInput(task=MUL).model_dump_json()
    assert (await agent.reply(given)).usage == Usage(prompt_tokens=10)
    assert json.loads(await agent(given)) == PLAN
