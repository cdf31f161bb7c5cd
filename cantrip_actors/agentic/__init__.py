"""Planner, worker, critic: tasks that are done in one pass, checked, and traced step by step.

A *domain* says what a task and a result are, who plans, works and judges, and which tools there are. The *dispatcher*
calls its agents and insists on their schemas, the *controller* takes one task through PLAN, WORK, TOOL, CRITIC to END,
as an entity whose steps are turns of the loom. `arithmetic` and `sentiment` are domains.
"""

from cantrip_actors.agentic.agents import AgentProtocol, AgentReply, CrystalAgent, FunctionAgent
from cantrip_actors.agentic.controller import ControllerState
from cantrip_actors.agentic.dispatcher import AgentDispatcher, AgentExhausted
from cantrip_actors.agentic.execution import Controller, ControllerFailed
from cantrip_actors.agentic.schemas import (
    AgentCallResult,
    ControllerDomainInput,
    ControllerRequest,
    ControllerResponse,
    CriticInput,
    Decision,
    Feedback,
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
    "FunctionAgent",
    "PlannerInput",
    "PlannerOutput",
    "ToolFailed",
    "ToolRegistry",
    "ToolRequest",
    "UnknownTool",
    "WorkerInput",
    "WorkerOutput",
    "trace_of",
]
