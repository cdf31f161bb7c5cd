"""`python -m bench service --where`: the phases in which the CPU of one request goes, in the worker itself."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.turns_where import PHASES, take_samples

__all__ = ["FILE", "note_phases", "render_phases"]

FILE = "BENCH_PHASES"
"""The variable with the file into which a worker writes its samples; without it the worker takes no samples."""

_SERVER = "the service: uvicorn, starlette, fastapi, the handler"
_CLIENT = "the connection to the provider: httpx, httpcore"
SERVICE_PHASES: Mapping[str, str] = {
    **PHASES,
    "bench": _SERVER,
    "uvicorn": _SERVER,
    "starlette": _SERVER,
    "fastapi": _SERVER,
    "httpx": _CLIENT,
    "httpcore": _CLIENT,
}


@contextmanager
def note_phases() -> Iterator[None]:
    """Sample the block, and write the samples where the environment says."""
    path = os.environ.get(FILE)
    if path is None:
        yield
        return
    with take_samples(SERVICE_PHASES) as samples:
        yield
    Path(path).write_text(json.dumps(samples.count), encoding="utf-8")


def render_phases(path: Path, cpu_us: float) -> str:
    """Return the phases of a request that took this CPU as a table, the most expensive first."""
    counts: Counter[str] = Counter(json.loads(path.read_text(encoding="utf-8")))
    total = counts.total() or 1
    return "\n".join(
        f"{count / total * cpu_us:>9,.0f} us {count / total:>6.1%}  {phase}" for phase, count in counts.most_common()
    )
