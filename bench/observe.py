"""`python -m bench observe`: the cost of telemetry per turn, in one run.

Every variant does the same turns in short rounds of a random order, in one process and one event loop, so that other
load of the machine affects all of them alike. A figure is the quickest round, in CPU time per turn: a busy machine only
adds to it. The limits are for the differences to the variant without telemetry, and a ratio on SQLite.
"""

from __future__ import annotations

import argparse
import gc
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio

from cantrip_actors import Cantrip, Circle, Runtime, gate, scripted
from cantrip_actors.observe import Telemetry
from cantrip_actors.wards import max_turns

__all__ = ["main"]

TURNS = 50
WITHOUT_SDK_US = 15.0
WITH_SDK_US = 100.0
SQLITE_RATIO = 1.05
PAGE_MS = 2.0


@gate
async def look(what: str) -> str:
    """Look at something."""
    return what


def _spell() -> Cantrip:
    say = {
        "tool_calls": [{"gate": "look", "args": {"what": "x"}}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3},
    }
    crystal = scripted([*[say] * (TURNS - 1), {"tool_calls": [{"gate": "done", "args": {"answer": 1}}]}], record=False)
    return Cantrip(crystal, circle=Circle(["done", look], [max_turns(TURNS)]), name="bench")


def _with_sdk(*, meters: bool = True) -> Telemetry:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    metered = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False) if meters else None
    return Telemetry(tracer_provider=provider, meter_provider=metered)


VARIANTS: dict[str, Callable[[], Telemetry | None]] = {
    "none": lambda: None,
    "counting": partial(Telemetry, otel=False),
    "no SDK": Telemetry,
    "SDK, spans": partial(_with_sdk, meters=False),
    "SDK, spans and metrics": _with_sdk,
}


async def _measure(store: str, rounds: int) -> dict[str, list[float]]:
    """Return the CPU microseconds of a turn, for each variant and round. All runtimes are open at once."""
    figures: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            runtimes = {}
            for n, (name, make) in enumerate(VARIANTS.items()):
                url = "memory:" if store == "memory" else f"sqlite:{Path(folder) / f'{n}.db'}"
                runtimes[name] = await stack.enter_async_context(Runtime.open(url, telemetry=make()))
                await runtimes[name].cast(_spell(), "warm up")
            gc.collect()
            gc.freeze()
            for _ in range(rounds):
                for name in random.sample(list(VARIANTS), len(VARIANTS)):
                    began = time.process_time()
                    await runtimes[name].cast(_spell(), "go")
                    figures[name].append((time.process_time() - began) / TURNS * 1e6)
            gc.unfreeze()
    return figures


def _measure_page() -> float:
    """Return the milliseconds that a page of 1,000 series takes."""
    telemetry = Telemetry(otel=False)
    for n in range(1000):
        telemetry.counters.add("cantrip.entity.ends", (f"reason {n % 32}", f"ward {n // 32}"))
    times = []
    for _ in range(20):
        began = time.perf_counter()
        telemetry.prometheus()
        times.append((time.perf_counter() - began) * 1e3)
    return min(times)


def main(argv: list[str]) -> int:
    """Print the figures; the exit code says whether all are within their limits."""
    parser = argparse.ArgumentParser(prog="python -m bench observe", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60, help="rounds of each variant (default: 60)")
    options = parser.parse_args(argv)
    broken: list[str] = []

    def check(what: str, value: float, limit: float) -> str:
        if value > limit:
            broken.append(what)
        return f"{'over' if value > limit else 'within'} {limit:g}"

    for store in ("memory", "sqlite"):
        figures = anyio.run(_measure, store, options.rounds)
        plain = min(figures["none"])
        print(f"{store}: {plain:.1f} us CPU a turn without telemetry")
        for name, rounds in figures.items():
            figure, verdict = min(rounds), ""
            more = figure - plain
            if store == "memory" and name in ("counting", "no SDK"):
                verdict = check(name, more, WITHOUT_SDK_US)
            elif store == "memory" and name != "none":
                verdict = check(name, more, WITH_SDK_US)
            elif store == "sqlite" and name == "no SDK":
                verdict = check(f"{name} on sqlite", figure / plain, SQLITE_RATIO)
            print(f"  {name:<24} {figure:7.1f} us  {more:+6.1f} us  {figure / plain:5.3f} x  {verdict}")
    page = _measure_page()
    print(f"a page of 1,000 series: {page:.2f} ms  {check('page', page, PAGE_MS)}")
    if broken:
        print("over a limit:", ", ".join(broken))
    return bool(broken)
