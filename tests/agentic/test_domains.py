"""Domains whose schemas have names of their own in JSON, computed fields, or numbers that JSON lacks."""

import math
from typing import Any

import pytest
from pydantic import ConfigDict, ValidationError, computed_field
from pydantic.alias_generators import to_camel

from cantrip_actors import Runtime
from cantrip_actors.agentic import (
    AgentDispatcher,
    Controller,
    ControllerDomainInput,
    ControllerRequest,
    CriticInput,
    Decision,
    FrozenModel,
    FunctionAgent,
    PlannerInput,
    PlannerOutput,
    ToolRegistry,
    WorkerInput,
    WorkerOutput,
    trace_of,
)
from tests.agentic.players import states


class Camel(FrozenModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, extra="forbid")


class Order(Camel):
    unit_price: float
    item_count: int

    @computed_field
    @property
    def total_price(self) -> float:
        return self.unit_price * self.item_count


class Lookup(Camel):
    item_count: int


class Plan(Camel, PlannerInput[Order, Order]):
    task: Order


class Planned(Camel, PlannerOutput[Order]):
    pass


class Work(Camel, WorkerInput[Order, Order]):
    pass


class Worked(Camel, WorkerOutput[Order]):
    tool_args = {"reprice": Lookup}  # noqa: RUF012  # a ClassVar of the base


class Judge(Camel, CriticInput[Order, Order]):
    worker_id: str


class JudgeOfMore(Judge):
    currency: str


def controller(reprice: Any = None, judge: type[Judge] = Judge) -> Controller:
    """Orders are worked on by `w`, which asks for the tool `reprice` if there is one."""

    def work(given: Work) -> Worked:
        if reprice is not None and given.tool_result is None:
            request = {"toolName": "reprice", "args": {"itemCount": given.task.item_count}}
            return Worked.model_validate({"tool_request": {"tool_name": "reprice", **request}}, by_name=True)
        return Worked(result=given.tool_result or given.task)

    tools = ToolRegistry()
    if reprice is not None:
        tools.register("reprice", "Reprice.", reprice, Lookup, blocking=False)
    return Controller(
        dispatcher=AgentDispatcher(
            planner=FunctionAgent(lambda given: Planned(task=given.task, workerId="w"), "p", "p", Plan, Planned),
            workers={"w": FunctionAgent(work, "w", "w", Work, Worked)},
            critic=FunctionAgent(lambda _: Decision(decision="ACCEPT"), "c", "c", judge, Decision),
        ),
        tool_registry=tools,
    )


def request(task: Any) -> ControllerRequest:
    return ControllerRequest(domain=ControllerDomainInput(task=task))


ORDER = Order(unitPrice=2.5, itemCount=2)


@pytest.mark.rule("A-44", "A-26", "A-30")
async def test_a_domain_with_other_names_in_json_and_computed_fields_runs() -> None:
    response = await controller()(request(ORDER))
    assert states(response.trace) == ["PLAN", "WORK", "CRITIC", "END"]
    assert response.worker_output.result == {"unit_price": 2.5, "item_count": 2, "total_price": 5.0}


@pytest.mark.rule("A-44", "A-24", "A-39")
async def test_a_tool_whose_arguments_have_other_names_in_json_runs_once() -> None:
    ran: list[Lookup] = []

    def reprice(args: Lookup) -> dict[str, Any]:
        ran.append(args)
        return {"unitPrice": math.inf, "itemCount": args.item_count}

    response = await controller(reprice)(request(ORDER))
    assert ran == [Lookup(itemCount=2)]
    assert response.worker_output.result.unit_price == math.inf


@pytest.mark.rule("A-02", "A-26")
async def test_an_infinite_number_of_a_task_stays_one() -> None:
    response = await controller()(request(Order(unitPrice=math.inf, itemCount=1)))
    assert response.task == {"unit_price": math.inf, "item_count": 1, "total_price": math.inf}


@pytest.mark.rule("A-46")
async def test_a_run_whose_schemas_do_not_fit_each_other_keeps_the_steps_before_the_error() -> None:
    async with Runtime.open() as runtime:
        with pytest.raises(ValidationError, match="currency"):
            await controller(judge=JudgeOfMore)(request(ORDER), runtime=runtime)
        (header,) = runtime.loom.headers()
        assert states(trace_of(runtime.loom.turns(header.entity_id))) == ["PLAN", "WORK"]
