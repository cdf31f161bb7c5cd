"""The Agent Client Protocol: editors work with an entity over standard input and output (`cantrip acp`, protocol 1)."""

from cantrip_actors.acp.agent import Agent
from cantrip_actors.acp.stdio import run_agent

__all__ = ["Agent", "run_agent"]
