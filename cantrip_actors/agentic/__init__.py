"""Planner, worker, critic: tasks that are done in one pass, checked, and traced step by step.

A *domain* defines task and result, the agents that plan, work and judge, and the tools. The *dispatcher* calls the
agents and validates their outputs. The *controller* takes one task through PLAN, WORK, TOOL, CRITIC to END, as an
entity whose steps are turns of the loom. `cantrip_demos.arithmetic` is a complete domain.
"""

from typing import TYPE_CHECKING

from cantrip_actors.lazy_exports import export_lazily

if TYPE_CHECKING:
    from cantrip_actors.agentic.agent_dispatcher import AgentDispatcher as AgentDispatcher
    from cantrip_actors.agentic.agent_dispatcher import AgentExhausted as AgentExhausted
    from cantrip_actors.agentic.agents import AgentProtocol as AgentProtocol
    from cantrip_actors.agentic.agents import AgentReply as AgentReply
    from cantrip_actors.agentic.agents import CrystalAgent as CrystalAgent
    from cantrip_actors.agentic.agents import FunctionAgent as FunctionAgent
    from cantrip_actors.agentic.agents import Player as Player
    from cantrip_actors.agentic.agents import make_agent as make_agent
    from cantrip_actors.agentic.controller import ControllerState as ControllerState
    from cantrip_actors.agentic.execution import Controller as Controller
    from cantrip_actors.agentic.execution import ControllerFailed as ControllerFailed
    from cantrip_actors.agentic.schemas import AgentCallResult as AgentCallResult
    from cantrip_actors.agentic.schemas import ControllerDomainInput as ControllerDomainInput
    from cantrip_actors.agentic.schemas import ControllerRequest as ControllerRequest
    from cantrip_actors.agentic.schemas import ControllerResponse as ControllerResponse
    from cantrip_actors.agentic.schemas import CriticInput as CriticInput
    from cantrip_actors.agentic.schemas import Decision as Decision
    from cantrip_actors.agentic.schemas import Feedback as Feedback
    from cantrip_actors.agentic.schemas import FrozenModel as FrozenModel
    from cantrip_actors.agentic.schemas import PlannerInput as PlannerInput
    from cantrip_actors.agentic.schemas import PlannerOutput as PlannerOutput
    from cantrip_actors.agentic.schemas import ToolRequest as ToolRequest
    from cantrip_actors.agentic.schemas import WorkerInput as WorkerInput
    from cantrip_actors.agentic.schemas import WorkerOutput as WorkerOutput
    from cantrip_actors.agentic.tools import ToolFailed as ToolFailed
    from cantrip_actors.agentic.tools import ToolRegistry as ToolRegistry
    from cantrip_actors.agentic.tools import UnknownTool as UnknownTool
    from cantrip_actors.agentic.trace import trace_of as trace_of
else:
    __getattr__, __dir__ = export_lazily(__name__)
