"""Runs as entities: their steps, their ends, and their records in the loom."""

import json
from collections import Counter

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors import (
    Cantrip,
    Circle,
    Companion,
    CrystalError,
    EntityEndedEvent,
    Folding,
    InvalidIntent,
    Runtime,
    scripted,
)
from cantrip_actors.agentic import (
    AgentDispatcher,
    AgentExhausted,
    Controller,
    ControllerDomainInput,
    ControllerFailed,
    ControllerRequest,
    Decision,
    PlannerInput,
    PlannerOutput,
    ToolRegistry,
    UnknownTool,
    WorkerInput,
    WorkerOutput,
    trace_of,
)
from cantrip_actors.agentic.schemas import CriticInput
from cantrip_actors.loom import open_store
from cantrip_actors.wards import max_depth, max_turns
from cantrip_demos import arithmetic
from cantrip_demos.arithmetic import (
    ArithmeticResult,
    ArithmeticTask,
    ArithmeticWorkerInput,
    MulArgs,
    make_agent_dispatcher,
    make_controller,
    make_tool_registry,
    run,
)
from tests.agentic.players import ACCEPT, MUL, REJECT, Counted, Player, cast_of, route, states, value, wish
from tests.exhaustive import EXHAUSTIVE

DIRECT = ["PLAN", "WORK", "CRITIC", "END"]
TOOLED = ["PLAN", "WORK", "TOOL", "WORK", "CRITIC", "END"]
WRONG_ROUTE = route("worker_addsub")


def used(tool_result):
    return {"result": tool_result}


def asks_then_answers(tool="mul", **args):
    """A worker that asks for a tool and repeats what it gave."""
    return lambda given_: wish(tool, **args) if given_["tool_result"] is None else {"result": given_["tool_result"]}


async def steps_of(runtime, entity_id=None):
    """The states in the loom of the run, or of the last entity."""
    wanted = entity_id or runtime.loom.entities()[-1]
    return states(trace_of(runtime.loom.turns(wanted)))


async def failing(error, *, task=MUL, registry=None, **scripts):
    """Run with these scripts, which ends in `error`; the error, the players, and the states in the loom."""
    dispatcher, players = cast_of(**scripts)
    async with Runtime.open() as runtime:
        with pytest.raises(error) as raised:
            await run(task, dispatcher=dispatcher, tool_registry=registry or make_tool_registry(), runtime=runtime)
        (header,) = runtime.loom.headers()
        assert runtime.loom.state(header.entity_id) == "failed"
        return raised.value, players, await steps_of(runtime)


class TestPaths:
    @pytest.mark.rule("A-20", "A-31")
    async def test_a_run_without_a_tool_succeeds(self):
        tools = Counted()
        dispatcher, players = cast_of(planner=route("worker_mul"), worker=value(84), critic=ACCEPT)
        response = await run(MUL, dispatcher=dispatcher, tool_registry=tools.registry)
        assert states(response.trace) == DIRECT
        assert [len(player.given) for player in players.values()] == [1, 1, 1]
        assert tools.ran == []
        assert response.model_dump(exclude={"trace"}) == {
            "task": {"op": "MUL", "a": 12, "b": 7},
            "worker_id": "worker_mul",
            "worker_output": {"result": {"value": 84}, "tool_request": None},
            "critic_decision": {"decision": "ACCEPT", "feedback": None},
        }

    @pytest.mark.rule("A-21", "A-31")
    async def test_a_run_with_a_tool_succeeds(self):
        tools = Counted()
        dispatcher, players = cast_of(worker=asks_then_answers(a=12, b=7))
        response = await run(MUL, dispatcher=dispatcher, tool_registry=tools.registry)
        assert states(response.trace) == TOOLED
        assert tools.ran == [("mul", MulArgs(a=12, b=7))]
        assert [given_["tool_result"] for given_ in players["worker"].given] == [None, {"value": 84}]
        assert response.worker_output.result.value == 84

    @pytest.mark.rule("A-31", "A-18")
    async def test_a_trace_has_the_documented_keys_and_unique_ids(self):
        dispatcher, _ = cast_of(planner=WRONG_ROUTE)
        response = await run(MUL, dispatcher=dispatcher, tool_registry=make_tool_registry())
        keys = ["state", "agent_id", "call_id", "tool_name", "input", "output"]
        *steps, end = response.trace
        assert [list(step) for step in steps] == [keys] * 5
        assert end == {"state": "END", "decision": response.critic_decision}
        plan, work, tool, _, critic = steps
        assert plan["input"] is None
        assert (work["agent_id"], critic["agent_id"]) == ("worker_addsub", "arithmetic-critic")
        assert (tool["agent_id"], tool["call_id"], tool["tool_name"]) == (None, None, "mul")
        assert (tool["input"], tool["output"]) == ({"a": 12, "b": 7}, {"value": 84})
        ids = [step["call_id"] for step in steps if step["state"] != "TOOL"]
        assert len(set(ids)) == 4
        assert json.loads(json.dumps(response.trace)) == response.trace

    @pytest.mark.rule("A-28", "A-09")
    async def test_a_known_but_wrong_worker_runs_and_the_critic_decides(self):
        dispatcher, _ = cast_of(planner=WRONG_ROUTE)
        response = await run(MUL, dispatcher=dispatcher, tool_registry=make_tool_registry())
        assert response.worker_id == "worker_addsub"
        assert response.worker_output.result.value == 84
        assert response.critic_decision.feedback.kind == "ROUTING_ERROR"

    @pytest.mark.rule("A-29", "A-11")
    async def test_a_rejection_ends_the_run(self):
        dispatcher, players = cast_of(planner=route("worker_mul"), worker=[value(85), value(84)])
        response = await run(MUL, dispatcher=dispatcher, tool_registry=make_tool_registry())
        assert response.critic_decision.decision == "REJECT"
        assert response.critic_decision.feedback.kind == "MATH_ERROR"
        assert [len(player.given) for player in players.values()] == [1, 1]
        again = await run(MUL, dispatcher=dispatcher, tool_registry=make_tool_registry())
        assert again.critic_decision.decision == "ACCEPT"
        assert players["worker"].given[1]["previous_result"] is None

    @pytest.mark.rule("A-30")
    async def test_the_critic_gets_the_request_the_last_result_and_the_worker(self):
        dispatcher, players = cast_of(worker=asks_then_answers(a=2, b=2), critic=ACCEPT)
        await run(MUL, dispatcher=dispatcher, tool_registry=make_tool_registry())
        assert players["critic"].given == [
            {"plan": {"op": "MUL", "a": 12, "b": 7}, "worker_id": "worker_mul", "worker_answer": {"value": 4}}
        ]

    @pytest.mark.rule("A-42")
    async def test_a_repeated_run_differs_only_in_its_ids(self):
        def without_ids(response):
            told = response.model_dump()
            for entry in told["trace"]:
                entry.pop("call_id", None)
            return told

        responses = []
        for _ in range(2):
            dispatcher, _ = cast_of(planner=["no", WRONG_ROUTE])
            responses.append(await run(MUL, dispatcher=dispatcher, tool_registry=make_tool_registry()))
        assert without_ids(responses[0]) == without_ids(responses[1])
        assert responses[0] != responses[1]

    @pytest.mark.rule("A-43")
    async def test_run_only_calls_the_controller(self, monkeypatch):
        seen = []

        class Spy:
            def __init__(self, **parts):
                self.parts = parts

            async def __call__(self, request, *, runtime=None):
                seen.append((request, runtime, self.parts))
                return "whatever it says"

        monkeypatch.setattr(arithmetic, "Controller", Spy)
        dispatcher, registry = make_agent_dispatcher(), make_tool_registry()
        assert await run(MUL, dispatcher=dispatcher, tool_registry=registry) == "whatever it says"
        ((request, runtime, parts),) = seen
        assert request == ControllerRequest(domain=ControllerDomainInput(task=MUL))
        assert (runtime, parts) == (None, {"dispatcher": dispatcher, "tool_registry": registry})


class Odd(Exception):
    """An error that the package does not know."""


class TestErrors:
    @pytest.mark.rule("A-22", "A-46")
    async def test_a_second_tool_request_is_an_error(self):
        tools = Counted()
        error, players, steps = await failing(
            RuntimeError, worker=wish("mul", a=1, b=2), critic=ACCEPT, registry=tools.registry
        )
        assert "multiple tool invocations" in str(error)
        assert len(tools.ran) == 1
        assert players["critic"].given == []
        assert steps == ["PLAN", "WORK", "TOOL", "WORK"]

    @pytest.mark.rule("A-23", "A-46")
    async def test_an_unknown_tool_is_an_error(self):
        error, players, steps = await failing(UnknownTool, worker=wish("div", a=1, b=2), critic=ACCEPT)
        assert isinstance(error, RuntimeError)
        assert str(error) == "Unknown tool: div (there are: add, sub, mul)"
        assert players["critic"].given == []
        assert steps == ["PLAN", "WORK"]

    @pytest.mark.rule("A-24")
    async def test_arguments_of_another_type_are_an_error(self):
        ran = []
        registry = ToolRegistry()
        registry.register("add", "takes those of another", ran.append, MulArgs)
        error, players, _ = await failing(TypeError, worker=wish("add", a=1, b=2), critic=ACCEPT, registry=registry)
        assert str(error) == "Args for 'add' must be MulArgs, got AddArgs"
        assert ran == players["critic"].given == []

    @pytest.mark.rule("A-25")
    @pytest.mark.parametrize("asynchronous", [False, True])
    async def test_an_exception_of_a_tool_is_raised_unchanged_after_one_call(self, asynchronous):
        odd = Odd("no")

        def fails(_):
            raise odd

        async def fails_later(_):
            raise odd

        tools = Counted(mul=fails_later if asynchronous else fails)
        error, players, steps = await failing(Odd, worker=wish("mul", a=1, b=2), critic=ACCEPT, registry=tools.registry)
        assert error is odd
        assert len(tools.ran) == 1
        assert len(players["worker"].given) == 1
        assert players["critic"].given == []
        assert steps == ["PLAN", "WORK", "TOOL"]

    @pytest.mark.rule("A-26", "A-46")
    async def test_a_planner_that_changes_the_task_is_an_error(self):
        other = {"task": {"op": "MUL", "a": 12, "b": 8}, "worker_id": "worker_mul"}
        error, players, steps = await failing(RuntimeError, planner=other, worker=value(84))
        assert "did not match requested task" in str(error)
        assert (len(players["planner"].given), players["worker"].given) == (1, [])
        assert steps == ["PLAN"]

    @pytest.mark.rule("A-27")
    async def test_an_unknown_worker_is_an_error_in_a_domain_whose_schema_allows_it(self):
        schemas = (PlannerInput[ArithmeticTask, int], PlannerOutput[ArithmeticTask])
        planner = Player("planner", {"task": MUL.model_dump(), "worker_id": "nobody"}, schemas=schemas)
        worker = Player("worker", value(84))
        dispatcher = AgentDispatcher(planner=planner, workers={"worker_mul": worker}, critic=Player("critic", ACCEPT))
        controller = Controller(dispatcher=dispatcher, tool_registry=make_tool_registry())
        with pytest.raises(ValueError, match="Unknown worker_id 'nobody'"):
            await controller(ControllerRequest(domain=ControllerDomainInput(task=MUL)))
        assert worker.given == []

    @pytest.mark.rule("A-27")
    async def test_in_arithmetic_an_unknown_worker_does_not_fit_the_schema(self):
        error, players, steps = await failing(AgentExhausted, planner=route("nobody"), worker=value(84))
        assert "worker_id" in str(error)
        assert (len(players["planner"].given), players["worker"].given, steps) == (3, [], [])

    @pytest.mark.rule("A-35", "A-46")
    @pytest.mark.parametrize("odd", [Odd("no"), TimeoutError("late"), ConnectionError("gone"), CrystalError("odd")])
    async def test_an_agents_exception_is_raised_unchanged_after_one_call(self, odd):
        error, players, steps = await failing(type(odd), worker=odd)
        assert error is odd
        assert len(players["worker"].given) == 1
        assert steps == ["PLAN"]
        assert any("its steps up to here are in the loom" in note for note in error.__notes__)

    @pytest.mark.rule("A-33")
    async def test_an_agent_that_never_fits_its_schema_is_an_error(self):
        error, _, steps = await failing(AgentExhausted, critic={"decision": "REJECT"})
        assert "'critic' failed after 3" in str(error)
        assert steps == ["PLAN", "WORK"]

    @pytest.mark.rule("A-46")
    async def test_subscribers_see_the_error_of_a_failed_run(self):
        dispatcher, players = cast_of(worker=Odd("no"))
        async with Runtime.open() as runtime:
            events = runtime.events(lambda event: isinstance(event, EntityEndedEvent))
            with pytest.raises(Odd):
                await run(MUL, dispatcher=dispatcher, tool_registry=make_tool_registry(), runtime=runtime)
            ended = await anext(events)
            events.close()
        assert (ended.reason, ended.detail) == ("failed", "Odd: no")
        assert len(players["worker"].given) == 1  # it was not restarted

    @pytest.mark.rule("A-43", "C-17")
    @pytest.mark.parametrize("when", ["planner", "worker", "critic"])
    async def test_a_steering_message_does_not_become_the_task_of_a_run(self, when):
        async def steers(answer):
            await entity.steer("hurry")
            return answer

        scripts = {"planner": {"task": {"op": "MUL", "a": 12, "b": 7}, "worker_id": "worker_mul"}, "worker": value(84)}
        scripts["critic"] = ACCEPT
        dispatcher, players = cast_of(**scripts | {when: lambda _: steers(scripts[when])})
        async with Runtime.open() as runtime:
            entity = await runtime.start(make_controller(dispatcher=dispatcher).cantrip(), "12 * 7")
            episode = await entity.episode()
            assert episode.result["worker_output"]["result"]["value"] == 84
            assert await steps_of(runtime) == DIRECT
        assert [len(player.given) for player in players.values()] == [1, 1, 1]

    @pytest.mark.rule("A-43", "C-17")
    async def test_a_steering_message_between_two_tasks_begins_no_run(self):
        async with Runtime.open() as runtime:
            entity = await runtime.invoke(make_controller().cantrip(), "6 * 7")
            await entity.episode()
            await entity.steer("hurry")
            again = await entity.send("12 * 7")
            assert again.result["worker_output"]["result"]["value"] == 84

    @pytest.mark.rule("A-43")
    async def test_a_companions_message_does_not_become_the_task_of_a_run(self):
        class Greets(Companion):
            async def begins(self, here):
                return "welcome"

        spell = make_controller().cantrip()
        circle = Circle(spell.circle.gates, spell.circle.wards, companion=Greets())
        async with Runtime.open() as runtime:
            episode = await runtime.cast(Cantrip(spell.crystal, spell.call, circle), "12 * 7")
            assert episode.result["worker_output"]["result"]["value"] == 84

    async def test_an_error_is_raised_when_run_opens_its_own_runtime(self):
        dispatcher, _ = cast_of(worker=Odd("no"))
        with pytest.raises(Odd):
            await run(MUL, dispatcher=dispatcher, tool_registry=make_tool_registry())

    async def test_an_intent_that_is_not_a_task_is_an_error(self):
        async with Runtime.open() as runtime:
            controller = Controller(dispatcher=make_agent_dispatcher(), tool_registry=make_tool_registry())
            with pytest.raises(ControllerFailed, match=r"got 'nonsense': Invalid JSON: [\w ]+$") as error:
                await runtime.cast(controller.cantrip(), "nonsense")
            assert isinstance(error.value.__cause__, InvalidIntent)

    async def test_a_controller_whose_steps_were_folded_raises_an_error_that_says_so(self):
        spell = make_controller().cantrip()
        folded = Cantrip(spell.crystal, spell.call, spell.circle, folding=Folding(trigger_after_turns=1))
        dispatcher, _ = cast_of(planner=WRONG_ROUTE)
        folded = folded.with_crystal(make_controller(dispatcher=dispatcher))
        async with Runtime.open() as runtime:
            with pytest.raises(ControllerFailed, match="needs to see all of its steps"):
                await runtime.cast(folded, "12 * 7")


class TestRetries:
    @pytest.mark.rule("A-32", "A-36", "A-37")
    async def test_failed_attempts_leave_no_trace_in_the_loom(self):
        dispatcher, players = cast_of(
            planner=["SECRET", "{}", route("worker_mul")],
            worker=["SECRET", {"SECRET": 1}, value(84)],
            critic=["SECRET", ACCEPT],
        )
        async with Runtime.open() as runtime:
            response = await run(MUL, dispatcher=dispatcher, tool_registry=make_tool_registry(), runtime=runtime)
            records = [record for one in runtime.loom.entities() for record in runtime.loom.records(one)]
        assert states(response.trace) == DIRECT
        assert [len(player.given) for player in players.values()] == [3, 3, 2]
        assert "SECRET" not in repr(records)
        assert "SECRET" not in response.model_dump_json()
        assert not any("SECRET" in raw for player in players.values() for raw in player.raw)


class TestConcurrency:
    @pytest.mark.rule("A-41", "A-03")
    async def test_a_hundred_runs_on_one_dispatcher_and_registry(self):
        dispatcher, _ = cast_of(planner=lambda given_: {"task": given_["task"], "worker_id": "worker_mul"})
        registry = make_tool_registry()
        ops = {"ADD": int.__add__, "SUB": int.__sub__, "MUL": int.__mul__}
        tasks = [ArithmeticTask(op=list(ops)[n % 3], a=n * 10**30 - n, b=(-1) ** n * (10**20 + n)) for n in range(100)]
        responses = {}
        async with Runtime.open() as runtime:

            async def one(n, task):
                responses[n] = await run(task, dispatcher=dispatcher, tool_registry=registry, runtime=runtime)

            async with anyio.create_task_group() as group:
                for n, task in enumerate(tasks):
                    group.start_soon(one, n, task)
        for n, task in enumerate(tasks):
            response = responses[n]
            assert response.task == task.model_dump()
            assert response.worker_output.result.value == ops[task.op](task.a, task.b)
            assert states(response.trace) == (DIRECT if task.op == "MUL" else TOOLED)
            assert response.critic_decision.decision == ("ACCEPT" if task.op == "MUL" else "REJECT")
        ids = Counter(entry.get("call_id") for one in responses.values() for entry in one.trace)
        assert all(count == 1 for id, count in ids.items() if id)

    @pytest.mark.rule("A-45")
    async def test_cancelling_a_run_is_prompt_and_recorded(self):
        async def forever(_):
            await anyio.sleep_forever()

        dispatcher, players = cast_of(worker=forever, critic=ACCEPT)
        async with Runtime.open() as runtime:
            before = anyio.current_time()
            with anyio.move_on_after(5) as scope:
                await run(MUL, dispatcher=dispatcher, tool_registry=make_tool_registry(), runtime=runtime)
            assert scope.cancelled_caught
            assert anyio.current_time() - before < 6
            (header,) = runtime.loom.headers()
            assert runtime.loom.state(header.entity_id) == "cancelled"
            assert await steps_of(runtime) == ["PLAN"]
        assert len(players["worker"].given) == 1
        assert players["critic"].given == []

    @pytest.mark.rule("A-45")
    async def test_a_tool_that_is_cancelled_is_not_run_again(self):
        started = []

        async def forever(args):
            started.append(args)
            await anyio.sleep_forever()

        registry = ToolRegistry()
        registry.register("mul", "never ends", forever, MulArgs)
        dispatcher, _ = cast_of(worker=wish("mul", a=1, b=2))
        async with Runtime.open() as runtime:
            with anyio.move_on_after(5) as scope:
                await run(MUL, dispatcher=dispatcher, tool_registry=registry, runtime=runtime)
            assert scope.cancelled_caught
            assert runtime.interrupted() == []
        assert len(started) == 1


def parent(controller, *requests, after=None):
    """A cantrip that has the controller among its crystals and its tools among its gates."""
    asks = [{"tool_calls": [{"gate": "call_agent", "args": {"crystal": "arithmetic", **one}}]} for one in requests]
    end = after or (lambda _: {"tool_calls": [{"gate": "done", "args": {"answer": "the parent lives"}}]})
    count = iter([*asks])
    gates = ["done", "call_agent", *controller.tool_registry.gates()]
    return Cantrip(
        scripted(lambda ctx: next(count, None) or end(ctx)),
        circle=Circle(gates, [max_turns(20), max_depth(1)]),
        crystals={"arithmetic": controller},
    )


TASK = '{"op": "MUL", "a": 12, "b": 7}'


class TestBelowAParent:
    async def under(self, controller, *requests):
        async with Runtime.open() as runtime:
            episode = await runtime.cast(parent(controller, *requests), "compute")
            heard = [seen for turn in episode.thread for seen in turn.gate_calls if seen.gate == "call_agent"]
            children = [id for turn in episode.thread for id in turn.children]
            return episode, heard, [await steps_of(runtime, id) for id in children]

    @pytest.mark.rule("A-47")
    async def test_a_response_is_the_result_of_call_agent(self):
        episode, (seen,), (steps,) = await self.under(make_controller(), {"intent": TASK})
        assert episode.result == "the parent lives"
        assert not seen.is_error
        assert seen.result["worker_output"]["result"]["value"] == 84
        assert steps == DIRECT

    @pytest.mark.rule("A-47")
    async def test_a_rejection_is_the_result_of_call_agent(self):
        dispatcher, _ = cast_of(planner=WRONG_ROUTE)
        _, (seen,), (steps,) = await self.under(make_controller(dispatcher=dispatcher), {"intent": TASK})
        assert not seen.is_error
        assert seen.result["critic_decision"]["feedback"]["kind"] == "ROUTING_ERROR"
        assert steps == TOOLED

    @pytest.mark.rule("A-46")
    async def test_an_error_is_an_error_observation_and_the_parent_continues(self):
        dispatcher, players = cast_of(worker=Odd("no"))
        episode, (seen,), (steps,) = await self.under(make_controller(dispatcher=dispatcher), {"intent": TASK})
        assert seen.is_error
        assert seen.result == "child failed: Odd: no"
        assert steps == ["PLAN"]
        assert len(players["worker"].given) == 1
        assert episode.terminated

    @pytest.mark.rule("A-46", "A-25")
    async def test_a_tool_that_raises_is_an_error_observation(self):
        def fails(_):
            raise Odd("no")

        dispatcher, _ = cast_of(worker=wish("mul", a=1, b=2))
        controller = Controller(dispatcher=dispatcher, tool_registry=Counted(mul=fails).registry)
        _, (seen,), (steps,) = await self.under(controller, {"intent": TASK})
        assert seen.is_error
        assert seen.result == "child failed: ToolFailed: Odd: no"
        assert steps == ["PLAN", "WORK", "TOOL"]

    async def test_the_task_may_be_an_expression_or_data(self):
        requests = [{"intent": "6 × 7"}, {"intent": "this", "context": {"op": "SUB", "a": 1, "b": 10**30}}]
        _, heard, _ = await self.under(make_controller(), *requests)
        assert [seen.result["worker_output"]["result"]["value"] for seen in heard] == [42, 1 - 10**30]

    async def test_a_controller_does_not_get_its_parents_call(self):
        controller = make_controller()
        spell = parent(controller, {"intent": TASK})
        insists = Cantrip(
            spell.crystal,
            call=type(spell.call)("You are a poet.", tool_choice="required"),
            circle=spell.circle,
            crystals=spell.crystals,
        )
        async with Runtime.open() as runtime:
            episode = await runtime.cast(insists, "compute")
            (child,) = [id for turn in episode.thread for id in turn.children]
            assert await steps_of(runtime, child) == DIRECT

    async def test_a_tool_that_the_parent_did_not_grant_is_an_error(self):
        dispatcher, _ = cast_of(planner=WRONG_ROUTE)
        controller = make_controller(dispatcher=dispatcher)
        _, (seen,), _ = await self.under(controller, {"intent": TASK, "gates": ["done"]})
        assert seen.is_error
        assert "ToolFailed" in seen.result


async def killed(spell, intent, folder):
    """The loom that a process leaves behind which is killed while its run hangs: its url."""
    async with Runtime.open() as runtime:
        await runtime.start(spell, intent)
        await anyio.sleep(60)
        records = [record for one in runtime.loom.entities() for record in runtime.loom.records(one)]
    url = f"jsonl:{folder / 'loom.jsonl'}"
    with open_store(url) as store:
        store.append(records)
    return url


class TestRecovery:
    @pytest.mark.rule("A-25", "A-45")
    async def test_a_tool_that_was_under_way_is_not_run_again(self, tmp_path):
        started = []

        async def hangs(args):
            started.append(args)
            await anyio.sleep_forever()

        dispatcher, _ = cast_of(planner=WRONG_ROUTE)
        registry = ToolRegistry()
        registry.register("mul", "never ends", hangs, MulArgs)
        spell = Controller(dispatcher=dispatcher, tool_registry=registry).cantrip()
        url = await killed(spell, MUL.model_dump_json(), tmp_path)
        async with Runtime.open(url, cantrips=[spell]) as runtime:
            (header,) = runtime.interrupted()
            with pytest.raises(ControllerFailed, match="outcome unknown"):
                await (await runtime.resume(header.entity_id)).episode()
        assert len(started) == 1

    @pytest.mark.rule("A-36", "A-45")
    @pytest.mark.parametrize("kill", range(1, 5))
    async def test_a_run_resumes_from_the_loom_and_repeats_nothing(self, kill, tmp_path):
        """The process dies during call number `kill` of an agent; the next process resumes the run."""
        calls, tools = [], Counted()

        def mortal(dies):
            async def called(agent, given_):
                calls.append(agent)
                if dies and len(calls) == kill:
                    await anyio.sleep_forever()
                return given_

            def worker(given_):
                return wish("mul", a=12, b=7) if given_["tool_result"] is None else used(given_["tool_result"])

            scripts = {"planner": WRONG_ROUTE, "worker": worker, "critic": REJECT}

            def script(role, answer):
                async def answered(given_):
                    await called(role, given_)
                    return answer(given_) if callable(answer) else answer

                return answered

            dispatcher, _ = cast_of(**{role: script(role, answer) for role, answer in scripts.items()})
            return Controller(dispatcher=dispatcher, tool_registry=tools.registry)

        dying = mortal(dies=True).cantrip()
        intent = MUL.model_dump_json()
        url = await killed(dying, intent, tmp_path)
        assert len(calls) == kill
        async with Runtime.open(url, cantrips=[mortal(dies=False).cantrip()]) as runtime:
            (header,) = runtime.interrupted()
            episode = await (await runtime.resume(header.entity_id)).episode()
            assert episode.result["critic_decision"]["decision"] == "REJECT"
            assert states(trace_of(episode.thread)) == TOOLED
        assert tools.ran == [("mul", MulArgs(a=12, b=7))]
        assert len(calls) == 5

    async def test_a_long_lived_entity_takes_one_task_after_another(self):
        async with Runtime.open() as runtime:
            dispatcher, _ = cast_of(worker=[Odd("no"), value(84)])
            entity = await runtime.invoke(make_controller(dispatcher=dispatcher).cantrip(), "6 * 7")
            with pytest.raises(ControllerFailed, match="Odd: no"):
                await entity.episode()
            again = await entity.send("12 * 7")
            assert again.result["worker_output"]["result"]["value"] == 84
            more = await entity.send("12 * 7")
            assert more.result["critic_decision"]["decision"] == "ACCEPT"


class TestOtherDomains:
    async def test_a_domain_may_use_plain_data_without_types_of_its_own(self):
        def schemas(*pair):
            return pair

        planner = Player(
            "planner", lambda _: {"task": {"n": 1}, "worker_id": "w"}, schemas=schemas(PlannerInput, PlannerOutput)
        )
        worker = Player("worker", {"result": [1, 2]}, schemas=schemas(WorkerInput, WorkerOutput))
        critic = Player("critic", ACCEPT, schemas=schemas(CriticInput, Decision))
        dispatcher = AgentDispatcher(planner=planner, workers={"w": worker}, critic=critic)
        controller = Controller(dispatcher=dispatcher, tool_registry=ToolRegistry())
        response = await controller(ControllerRequest(domain=ControllerDomainInput(task={"n": 1})))
        assert response.worker_output.result == [1, 2]
        assert worker.given[0]["task"] == {"n": 1}
        assert "task" not in planner.given[0]


# ------------------------------------------------------------------------------------------ every scripted misbehaviour

PLANS = {
    "right": None,
    "other worker": lambda given_: {
        "task": given_["task"],
        "worker_id": "worker_addsub" if given_["task"]["op"] == "MUL" else "worker_mul",
    },
    "other task": lambda given_: {
        "task": {**given_["task"], "a": given_["task"]["a"] + 1},
        "worker_id": "worker_mul",
    },
    "unknown worker": route("nobody"),
    "no json": "…",
    "raises": Odd("planner"),
}
ANSWERS = {
    "right": None,
    "a result": value(1),
    "a tool": wish("add", a=1, b=2),
    "an unknown tool": wish("div"),
    "args that do not fit": wish("add", a=1, b="2"),
    "a tool that raises": wish("sub", a=1, b=2),
    "both": {**value(1), **wish("add", a=1, b=2)},
    "neither": {},
    "no json": "…",
    "raises": Odd("worker"),
}
DECISIONS = {
    "right": None,
    "accept": ACCEPT,
    "reject": REJECT,
    "reject without feedback": {"decision": "REJECT"},
    "no json": "…",
    "raises": Odd("critic"),
}
tasks = st.builds(
    ArithmeticTask,
    op=st.sampled_from(["ADD", "SUB", "MUL"]),
    a=st.integers(-(10**30), 10**30),
    b=st.integers(-(10**30), 10**30),
).filter(lambda task: (task.a, task.b) != (1, 2))  # those are the arguments that make a tool raise


def sub_or_raise(args):
    if (args.a, args.b) == (1, 2):
        raise Odd("tool")
    return ArithmeticResult(value=args.a - args.b)


def foreseen(plan, answers):
    """The outcome of section 6 and the states in the loom, for a planner and the two answers of a worker.

    The outcome is the type of the error, or None where the critic is reached.
    """
    if plan in {"unknown worker", "no json"}:
        return AgentExhausted, []
    if plan in {"raises", "other task"}:
        return (Odd, []) if plan == "raises" else (RuntimeError, ["PLAN"])
    steps = ["PLAN"]
    for number, answer in enumerate(answers):
        if answer == "right":  # the domain's own worker: by itself, or by a tool where it was sent what it cannot
            answer = "a tool" if plan == "other worker" and number == 0 else "a result"
        if answer in {"args that do not fit", "both", "neither", "no json"}:
            return AgentExhausted, steps
        if answer == "raises":
            return Odd, steps
        steps.append("WORK")
        if answer == "a result":
            return None, steps
        if number:
            return RuntimeError, steps
        if answer == "an unknown tool":
            return UnknownTool, steps
        steps.append("TOOL")
        if answer == "a tool that raises":
            return Odd, steps
    raise AssertionError("a worker is asked twice at most")


class Worker(Player):
    """The answers of a script by name; "right" is the domain's own worker."""

    def __init__(self, id, names):
        super().__init__(id, None, schemas=(ArithmeticWorkerInput, cast_of()[0].workers[id].output_schema))
        own = make_agent_dispatcher().workers[id]
        self._names = names
        self._own = own

    async def __call__(self, input_json):
        second = json.loads(input_json)["tool_result"] is not None
        name = self._names[second]
        if name == "right":
            return await self._own(input_json)
        if isinstance(ANSWERS[name], Exception):
            raise ANSWERS[name]
        return ANSWERS[name] if isinstance(ANSWERS[name], str) else json.dumps(ANSWERS[name])


@pytest.mark.rule("A-20", "A-21", "A-22", "A-23", "A-25", "A-26", "A-27", "A-29", "A-34", "A-35", "A-46")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=150 if EXHAUSTIVE else 20)
@given(
    tasks,
    st.sampled_from(sorted(PLANS)),
    st.tuples(st.sampled_from(sorted(ANSWERS)), st.sampled_from(sorted(ANSWERS))),
    st.sampled_from(sorted(DECISIONS)),
    st.integers(1, 3),
)
def test_every_run_ends_in_an_outcome_of_the_contract_with_its_steps_in_the_loom(
    backend, task, plan, answers, decision, tries
):
    async def main():
        dispatcher, _ = cast_of(planner=PLANS[plan], critic=DECISIONS[decision], max_retries=tries)
        workers = {id: Worker(id, answers) for id in dispatcher.workers}
        parts = {"planner": dispatcher.planner, "critic": dispatcher.critic, "max_retries": tries}
        dispatcher = type(dispatcher)(workers=workers, **parts)
        tools = Counted(sub=sub_or_raise)
        error, steps = foreseen(plan, answers)
        if error is None:
            if decision in {"reject without feedback", "no json"}:
                error = AgentExhausted
            elif decision == "raises":
                error = Odd
            else:
                steps = [*steps, "CRITIC", "END"]
        async with Runtime.open() as runtime:
            if error is None:
                response = await run(task, dispatcher=dispatcher, tool_registry=tools.registry, runtime=runtime)
                assert states(response.trace) == steps
                assert response.task == task.model_dump()
                if decision in {"accept", "reject"}:
                    assert response.critic_decision.decision == decision.upper()
            else:
                with pytest.raises(error) as raised:
                    await run(task, dispatcher=dispatcher, tool_registry=tools.registry, runtime=runtime)
                assert raised.type is error
            (header,) = runtime.loom.headers()
            assert runtime.loom.state(header.entity_id) == ("terminated" if error is None else "failed")
            assert await steps_of(runtime) == steps
        assert len(tools.ran) <= 1

    anyio.run(main, backend=backend)
