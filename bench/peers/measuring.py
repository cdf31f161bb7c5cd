"""Runs each program in a process of its own, interleaved: each round does all works, and each work by all subjects."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.peers.environments import NotInstalledError
from bench.peers.places import NoStoreError, Place
from bench.peers.programs.work import Job
from bench.peers.subjects import Subject, Work

__all__ = ["Measured", "ProgramError", "interleave", "measure", "run_program"]

ROOT = Path(__file__).parent.parent.parent

Figures = Mapping[str, float]


class ProgramError(Exception):
    """A program that did not do its work; the text is the reason."""


class Measured(NamedTuple):
    """The medians and the reasons for gaps, both by subject and work."""

    figures: Mapping[tuple[str, str], Figures]
    gaps: Mapping[tuple[str, str], str]
    rounds: int
    versions: Mapping[str, str] = {}
    """What was installed, by subject."""


Run = Callable[[Path, str, Job], Figures]
"""Runs a program by an interpreter, and returns its figures."""


def interleave(subjects: Sequence[Subject], works: Sequence[Work], rounds: int) -> Iterator[tuple[int, Work, Subject]]:
    """Yield all measurements in their order: in each round each work, by one subject after the other."""
    for number in range(1, rounds + 1):
        for work in works:
            for subject in subjects:
                yield number, work, subject


def measure(
    subjects: Sequence[Subject],
    works: Sequence[Work],
    rounds: int,
    *,
    find_python: Callable[[Subject], Path],
    open_place: Callable[[str], AbstractContextManager[Place]],
    run: Run,
    is_over: Callable[[], bool] = lambda: False,
) -> Measured:
    """Measure everything and return the medians.

    A subject that cannot be installed, lacks a work, fails or takes too long has a reason in place of figures.
    `find_python` returns the interpreter of a subject, or raises NotInstalledError. Nothing more begins when `is_over`.
    """
    pythons: dict[str, Path] = {}
    samples: dict[tuple[str, str], list[Figures]] = {}
    gaps: dict[tuple[str, str], str] = {}
    for subject in subjects:
        try:
            pythons[subject.name] = find_python(subject)
        except NotInstalledError as error:
            gaps |= {(subject.name, work.name): str(error) for work in works}
        else:
            gaps |= {(subject.name, name): reason for name, reason in subject.lacks.items()}
    for number, work, subject in interleave(subjects, works, rounds):
        key = subject.name, work.name
        if key in gaps:
            continue
        if is_over():
            if key not in samples:
                gaps[key] = "not measured: the time of the run was over"
            continue
        _show(f"round {number} of {rounds}: {work.name}, {subject.name}")
        try:
            figures = _do(work, subject, partial(run, pythons[subject.name], subject.program), open_place)
        except (ProgramError, NoStoreError) as error:
            gaps[key] = str(error)
            samples.pop(key, None)
        else:
            samples.setdefault(key, []).append(figures)
    _show("")
    medians = {
        key: {name: median(figures[name] for figures in rounds_of) for name in rounds_of[0]}
        for key, rounds_of in samples.items()
    }
    return Measured(medians, gaps, rounds)


def _do(
    work: Work,
    subject: Subject,
    run: Callable[[Job], Figures],
    open_place: Callable[[str], AbstractContextManager[Place]],
) -> Figures:
    with open_place(subject.store) as place:
        if work.killed is not None:
            run(_put(work.killed, place))
        figures = run(_put(work.job, place))
        if work.less is None or subject.store == "memory":
            return figures
        size = place.measure_size()
    with open_place(subject.store) as place:
        run(_put(work.less, place))
        return {**figures, "bytes": (size - place.measure_size()) / work.turns}


def _put(job: Job, place: Place) -> Job:
    return replace(job, store=place.store, folder=str(place.folder))


def _show(text: str) -> None:
    print(f"\r{text:<79}", end="" if text else "\r", file=sys.stderr, flush=True)


def run_program(python: Path, program: str, job: Job, *, limit: float) -> Figures:
    """Run a program to its end and return its figures; raise ProgramError if it fails or takes longer than `limit`."""
    command = [str(python), "-m", f"bench.peers.programs.{program}", json.dumps(asdict(job))]
    try:
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise ProgramError(f"took longer than {limit:.0f} s") from None
    if job.what == "kill" and ran.returncode == -signal.SIGKILL:
        return {}
    if ran.returncode:
        lines = ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"]
        raise ProgramError(f"failed: {lines[-1].strip()[:200]}")
    try:
        figures: Figures = json.loads(ran.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise ProgramError(f"printed no figures: {ran.stdout[-200:]!r}") from None
    return figures
