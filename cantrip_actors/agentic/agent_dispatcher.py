"""The dispatcher: calls agents, validates their answers against their schemas, and asks again if they do not fit.

Which failures are retried:

    what happens                                            becomes
    the answer does not fit the output schema, for          the same call again, with the very same input,
    whatever reason: no JSON, a wrong shape, both branches  up to `max_retries` calls in all, each call
    or neither, a rejection without feedback         counting for itself; then AgentExhausted
    the agent raises, or answers with no text        that error, after the one call
    an unknown worker                                       ValueError, without a call

`max_retries` counts all attempts, not the additional ones as `Retry` does: 1 is a single try, 0 means no call. It nests
around a crystal's own retries, which are for the transport. An attempt that failed leaves only its tokens.

The dispatcher holds no state between calls; any number of runs may share one.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from cantrip_actors import Usage
from cantrip_actors.agentic.agents import AgentProtocol
from cantrip_actors.agentic.schemas import AgentCallResult
from cantrip_actors.terms.arguments import check_whole

T = TypeVar("T")
R = TypeVar("R")
D = TypeVar("D")

LONGEST = 2_000
"""Characters of a payload that an error shows."""


class AgentExhausted(RuntimeError):
    """No answer of an agent fitted its schema. The text has the agent, the attempts and the last payload."""


@dataclass(frozen=True, kw_only=True)
class AgentDispatcher(Generic[T, R, D]):
    """The agents of a domain, bound to its task `T`, its result `R` and its decision `D`.

    `workers` are keyed by their routing ids. `max_retries` is the total number of attempts for each call.

    Raises ValueError for a `max_retries` below 0.
    """

    planner: AgentProtocol
    workers: Mapping[str, AgentProtocol]
    critic: AgentProtocol
    max_retries: int = 3

    def __post_init__(self) -> None:
        check_whole("max_retries", self.max_retries, 0)

    async def plan(self, planner_input: BaseModel) -> AgentCallResult[Any]:
        """Ask the planner. Raises AgentExhausted, and any exception of the planner."""
        return await self._call(self.planner, planner_input)

    async def work(self, worker_id: str, worker_input: BaseModel) -> AgentCallResult[Any]:
        """Ask a worker. Raises ValueError for an unknown one, AgentExhausted, and any exception of the worker."""
        return await self._call(self.find_worker(worker_id), worker_input)

    def find_worker(self, worker_id: str) -> AgentProtocol:
        """Return the worker with this routing id. Raises ValueError for an unknown one."""
        if worker_id not in self.workers:
            raise ValueError(f"Unknown worker_id '{worker_id}': there are {', '.join(self.workers) or 'none'}")
        return self.workers[worker_id]

    async def critique(self, critic_input: BaseModel) -> AgentCallResult[Any]:
        """Ask the critic. Raises AgentExhausted, and any exception of the critic."""
        return await self._call(self.critic, critic_input)

    async def _call(self, agent: AgentProtocol, agent_input: BaseModel) -> AgentCallResult[Any]:
        sent, schema = agent_input.model_dump_json(round_trip=True), agent.output_schema
        used, raw, wrong = Usage(), None, None
        for _ in range(self.max_retries):
            raw, usage = await _answer(agent, sent)
            used += usage
            try:
                output = schema.model_validate_json(raw, by_name=True)
            except Exception as error:
                wrong = error
            else:
                return AgentCallResult(output, agent.id, str(uuid4()), used)
        shown = raw if raw is None or len(raw) <= LONGEST else f"{raw[:LONGEST]}… ({len(raw):,} characters)"
        raise AgentExhausted(
            f"Agent '{agent.name}' failed after {self.max_retries} retries (attempts in all). "
            f"Last error: {join_in_one_line(wrong)}. Last raw payload: {shown}"
        ) from wrong


def join_in_one_line(wrong: Exception | None) -> str:
    """Return an exception in one line; a validation error as its problems, without links."""
    if not isinstance(wrong, ValidationError):
        return str(wrong) if wrong is None else f"{type(wrong).__name__}: {wrong}"
    problems = wrong.errors(include_url=False, include_input=False)
    return "; ".join(
        ": ".join(filter(None, (".".join(map(str, problem["loc"])), problem["msg"]))) for problem in problems
    )


async def _answer(agent: AgentProtocol, sent: str) -> tuple[str, Usage]:
    """Make one physical call. Raises TypeError for an answer that is not text, and any exception of the agent."""
    reply = getattr(agent, "reply", None)
    answer: Any = agent(sent) if reply is None else reply(sent)
    if inspect.isawaitable(answer):
        answer = await answer
    text, usage = (answer, Usage()) if reply is None else answer
    if not isinstance(text, str):
        raise TypeError(f"agent '{agent.name}' answered with {type(text).__name__}: expected JSON text")
    return text, usage
