"""Planner, worker, critic: tasks that are done in one pass, checked, and traced step by step.

A *domain* defines task and result, the agents that plan, work and judge, and the tools. The *dispatcher* calls the
agents and validates their outputs. The *controller* takes one task through PLAN, WORK, TOOL, CRITIC to END, as an
entity whose steps are turns of the loom. `cantrip_demos.arithmetic` is a complete domain.
"""

from cantrip_actors.agentic.agent_dispatcher import AgentDispatcher, AgentExhausted
from cantrip_actors.agentic.agents import AgentProtocol, AgentReply, CrystalAgent, FunctionAgent, Player, make_agent
from cantrip_actors.agentic.controller import ControllerState
from cantrip_actors.agentic.execution import Controller, ControllerFailed
from cantrip_actors.agentic.schemas import (
    AgentCallResult,
    ControllerDomainInput,
    ControllerRequest,
    ControllerResponse,
    CriticInput,
    Decision,
    Feedback,
    FrozenModel,
    PlannerInput,
    PlannerOutput,
    ToolRequest,
    WorkerInput,
    WorkerOutput,
)
from cantrip_actors.agentic.tools import ToolFailed, ToolRegistry, UnknownTool
from cantrip_actors.agentic.trace import trace_of

__all__ = [
    "AgentCallResult",
    "AgentDispatcher",
    "AgentExhausted",
    "AgentProtocol",
    "AgentReply",
    "Controller",
    "ControllerDomainInput",
    "ControllerFailed",
    "ControllerRequest",
    "ControllerResponse",
    "ControllerState",
    "CriticInput",
    "CrystalAgent",
    "Decision",
    "Feedback",
    "FrozenModel",
    "FunctionAgent",
    "PlannerInput",
    "PlannerOutput",
    "Player",
    "ToolFailed",
    "ToolRegistry",
    "ToolRequest",
    "UnknownTool",
    "WorkerInput",
    "WorkerOutput",
    "make_agent",
    "trace_of",
]
