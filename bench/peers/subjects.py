"""Who is compared, and by which work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bench.peers.programs.work import Job

__all__ = ["OURS", "SUBJECTS", "WORKS", "Subject", "Work"]


class Work(NamedTuple):
    """One piece of work; its figures are those of `job`."""

    name: str
    job: Job
    is_quick: bool = True
    """Whether `--quick` has it."""
    killed: Job | None = None
    """The job of an earlier process in the same store, which is killed."""
    less: Job | None = None
    """A smaller job with a store of its own: the difference of the two stores is what the other turns wrote."""

    @property
    def turns(self) -> int:
        """How many turns, children or chunks there are, without those of the smaller job."""
        return self.job.count * self.job.agents * self.job.repeat - (
            self.less.count * self.less.repeat if self.less else 0
        )


WORKS = (
    Work("20", Job("run", 20, repeat=6), less=Job("run", 20)),
    Work("200", Job("run", 200)),
    Work("children", Job("delegate", 100)),
    Work("stream", Job("stream", 1000)),
    Work("resume", Job("resume", 200), killed=Job("kill", 200)),
    Work("20x200", Job("run", 20, agents=200), is_quick=False),
    Work("2000", Job("run", 2000), is_quick=False),
)
"""Those that take long are the last ones, so that they are left out where a run has little time."""


class Subject(NamedTuple):
    """A library with a store."""

    name: str
    program: str
    """The module of `bench.peers.programs`."""
    requirements: tuple[str, ...] = ()
    """What is installed for it; nothing for this project, which runs in the environment of the bench."""
    store: str = "memory"
    """`memory`, `sqlite`, `sqlite sync` or `postgres`."""
    lacks: Mapping[str, str] = {}
    """The works that it cannot do, with the reason."""

    @property
    def ours(self) -> str:
        """The name of our subject with the same kind of store."""
        return OURS[self.store.split()[0]]


OURS = {"memory": "ours", "sqlite": "ours, SQLite", "postgres": "ours, Postgres"}

_NOTHING_KEPT = {"resume": "keeps nothing"}
_SAME = {"children": "as without a store", "stream": "as without a store"}
_LANGCHAIN = ("langchain", "langgraph")
_LANGGRAPH_SQLITE = (*_LANGCHAIN, "langgraph-checkpoint-sqlite")
_DBOS = ("pydantic-ai-slim[dbos]", "dbos")

SUBJECTS = (
    Subject("ours", "ours", lacks=_NOTHING_KEPT),
    Subject("ours, SQLite", "ours", store="sqlite"),
    Subject("ours, Postgres", "ours", store="postgres"),
    Subject("pydantic-ai", "pydantic_ai_agents", ("pydantic-ai-slim",), lacks=_NOTHING_KEPT),
    Subject("pydantic-ai, DBOS on SQLite", "pydantic_ai_agents", _DBOS, "sqlite", _SAME),
    Subject("pydantic-ai, DBOS on Postgres", "pydantic_ai_agents", _DBOS, "postgres", _SAME),
    Subject("LangGraph", "langgraph_agents", _LANGCHAIN, lacks=_NOTHING_KEPT),
    Subject("LangGraph, SQLite", "langgraph_agents", _LANGGRAPH_SQLITE, "sqlite", _SAME),
    Subject("LangGraph, SQLite, sync", "langgraph_agents", _LANGGRAPH_SQLITE, "sqlite sync", _SAME),
    Subject(
        "LangGraph, Postgres",
        "langgraph_agents",
        (*_LANGCHAIN, "langgraph-checkpoint-postgres", "psycopg[binary]"),
        "postgres",
        _SAME,
    ),
    Subject("OpenAI Agents", "openai_agents", ("openai-agents",), lacks=_NOTHING_KEPT),
    Subject(
        "OpenAI Agents, SQLite session",
        "openai_agents",
        ("openai-agents",),
        "sqlite",
        {**_SAME, "resume": "a session keeps messages; a run that was killed does not continue"},
    ),
    Subject("AutoGen", "autogen_agents", ("autogen-agentchat", "autogen-ext"), lacks=_NOTHING_KEPT),
    Subject("smolagents", "smolagents_agents", ("smolagents",), lacks=_NOTHING_KEPT),
)
