"""`python -m bench simulate`: how much simulated time passes in a second of CPU.

One entity of 20 turns with three children, as `testing.simulate` runs it: each query takes between 10 seconds and two
minutes, and each gate two minutes. The scenario begins with an empty loom, has no faults, and is repeated with other
seeds. *rate* is simulated minutes per second of CPU on one core; less than 300 is an error.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final

import anyio

from cantrip_actors import Cantrip, Circle, Invocation, gate, scripted
from cantrip_actors.testing import SimulatedProcess, simulate
from cantrip_actors.wards import max_turns

__all__ = ["main"]

TURNS: Final = 20
CHILDREN: Final = 3
LEAST: Final = 300.0
"""Simulated minutes per second of CPU."""


@gate
async def work(step: int) -> str:
    """Work for two minutes."""
    await anyio.sleep(120)
    return f"did step {step}"


def answer(context: Invocation) -> Any:
    """Begin three children, work, and end after 20 turns; a child works once."""
    turns = sum(message.role == "assistant" for message in context)
    is_child = "child" in str(context[0].content)
    if turns >= (1 if is_child else TURNS - 1):
        return {"tool_calls": [{"gate": "done", "args": {"answer": "all done"}}]}
    if turns == 0 and not is_child:
        requests = [{"intent": f"child {number}"} for number in range(CHILDREN)]
        return {"tool_calls": [{"gate": "call_agent_batch", "args": {"requests": requests}}]}
    return {"tool_calls": [{"gate": "work", "args": {"step": turns}}]}


worker = Cantrip(scripted(answer), circle=Circle(["done", "call_agent_batch", work], [max_turns(2 * TURNS)]))


async def cast(process: SimulatedProcess) -> int:
    """Cast the entity, and return how many turns it had."""
    async with process.open() as runtime:
        episode = await runtime.cast(worker, "do all")
        assert len(runtime.loom.below(episode.entity_id)) == CHILDREN
        return len(episode.thread) - 1  # without the call


def measure(backend: str, seeds: int) -> float:
    """Return the simulated minutes per second of CPU."""
    began, simulated = time.process_time(), 0.0
    for seed in range(seeds):
        result = simulate(cast, seed, backend=backend, faults=[], latency=(10.0, 120.0))
        assert result.value == TURNS
        simulated += result.seconds
    return simulated / 60 / (time.process_time() - began)


def main(argv: list[str]) -> int:
    """Measure both event loops, and return 1 if one is too slow."""
    parser = argparse.ArgumentParser(prog="python -m bench simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args(argv).seeds
    rates = {}
    for backend in ("asyncio", "trio"):
        measure(backend, 1)
        rates[backend] = measure(backend, seeds)
        print(f"{backend:8} {rates[backend]:8.0f} simulated minutes per second of CPU")
    slow = [backend for backend, rate in rates.items() if rate < LEAST]
    if slow:
        print(f"expected at least {LEAST:g} on {', '.join(slow)}", file=sys.stderr)
    return 1 if slow else 0
