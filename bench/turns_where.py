"""`python -m bench turns --where`: the phases in which the time of a turn goes.

A signal at each millisecond of CPU time looks at the stack, and books the sample for the innermost frame that belongs
to a phase: time in a library in C counts for its caller. This costs a hundredth of the time. A profiler that counts
calls would double it, and most of all that of small functions.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from bench.turns_worker import Job, run_job

__all__ = ["PHASES", "Phases", "Samples", "find_phase", "measure_phases", "take_samples"]

EVERY = 0.001
"""Seconds of CPU time between two samples."""

OTHER = "everything else"

PHASES: Mapping[str, str] = {
    "cantrip_actors.machine": "the machine: accept, evolve, due, context",
    "cantrip_actors.records": "records: lines and their hashes",
    "cantrip_actors.loom": "the loom: rules and store",
    "cantrip_actors.runtime.loom": "the loom's writer",
    "cantrip_actors.runtime.entity": "the entity: driver, recorder, performer",
    "cantrip_actors.runtime.events": "events and telemetry",
    "cantrip_actors.stream": "events and telemetry",
    "cantrip_actors.runtime.crystals": "the crystal: admission, query, utterance",
    "cantrip_actors.crystal": "the crystal: admission, query, utterance",
    "cantrip_actors.runtime.circles": "the circle: arguments, call, observation",
    "cantrip_actors.circle": "the circle: arguments, call, observation",
    "cantrip_actors.user_code": "the circle: arguments, call, observation",
    "cantrip_actors.terms": "terms: values, bounds, arguments",
    "cantrip_actors.redact": "redaction",
    "cantrip_actors.runtime": "the rest of the runtime",
    "supervisors": "actors: mailboxes, calls, starts, ends",
    "anyio": "the event loop, and anyio",
    "asyncio": "the event loop, and anyio",
    "selectors": "the event loop, and anyio",
    "trio": "the event loop, and anyio",
    "outcome": "the event loop, and anyio",
    "bench": "the bench's own crystal and gate",
}
"""The phase of each package: that of the longest name that fits."""


class Phases(NamedTuple):
    """Where the time of a turn goes on one store: CPU microseconds a turn, and the samples of each phase."""

    job: Job
    cpu_us: float
    samples: Mapping[str, int]

    def render(self) -> str:
        """Return the phases as a table, the most expensive first."""
        total = sum(self.samples.values()) or 1
        rows = [f"{self.job.entities} x {self.job.turns} turns, {self.job.store}: {self.cpu_us:.0f} us a turn"]
        rows += [
            f"{count / total * self.cpu_us:>9.1f} us {count / total:>6.1%}  {phase}"
            for phase, count in Counter(self.samples).most_common()
        ]
        return "\n".join(rows)


def find_phase(module: str, phases: Mapping[str, str] = PHASES) -> str | None:
    """Return the phase of a module, or None for one of a library that works for its caller."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((phases[name] for name in names if name in phases), None)


class Samples:
    """Counts samples by phase. It is the handler of a signal."""

    def __init__(self, phases: Mapping[str, str] = PHASES) -> None:
        self.count: Counter[str] = Counter()
        self._of = phases
        self._phases: dict[str, str | None] = {}

    def __call__(self, _signal: int, frame: FrameType | None) -> None:
        """Book a sample for the phase of the innermost frame that has one."""
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if module not in self._phases:
                self._phases[module] = find_phase(module, self._of)
            phase = self._phases[module]
            if phase is not None:
                self.count[phase] += 1
                return
            frame = frame.f_back
        self.count[OTHER] += 1


@contextmanager
def take_samples(phases: Mapping[str, str] = PHASES) -> Iterator[Samples]:
    """Yield the samples of the block, which must be in the main thread."""
    samples = Samples(phases)
    before: Any = signal.signal(signal.SIGPROF, samples)
    signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
    try:
        yield samples
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def measure_phases(job: Job) -> Phases:
    """Return where the time of the job's turns goes. It runs in this process, after a run that warms up."""
    run_job(job)
    with take_samples() as samples:
        figures = run_job(job)
    return Phases(job, figures["cpu_us"], samples.count)
