"""Runs the services, interleaved: a round starts one service after the other, each with all numbers of clients."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.peers.environments import NotInstalledError
from bench.peers.places import NoStoreError, Place
from bench.service.load import LoadError, drive
from bench.service.servers import open_service, read_tree_cpu

__all__ = ["OURS", "SERVICES", "Cell", "LoadedService", "ServiceFigures", "measure", "start_service"]

OURS = "ours, SQLite"


class LoadedService(NamedTuple):
    """A service that is compared."""

    name: str
    app: str
    """The module of `bench.service.apps`."""
    requirements: tuple[str, ...] = ()
    """The packages to install for it; this project runs in the environment of the bench."""
    store: str = "memory"


_PEER = ("pydantic-ai-slim[openai]", "fastapi", "uvicorn")

SERVICES = (
    LoadedService(OURS, "ours", store="sqlite"),
    LoadedService("ours, Postgres", "ours", store="postgres"),
    LoadedService("pydantic-ai", "pydantic_ai_service", _PEER),
    LoadedService("OpenAI's client by hand", "by_hand", _PEER),
)


class Cell(NamedTuple):
    """One measurement."""

    service: str
    workers: int
    clients: int


Figures = Mapping[str, float]
Load = Callable[[int], Figures]
"""Puts a service under the load of so many clients, and returns its figures; raises LoadError."""
Start = Callable[[LoadedService, Path, int, Place], AbstractContextManager[Load]]
"""Starts a service with an interpreter and a number of workers; raises LoadError."""


class ServiceFigures(NamedTuple):
    """The medians and the reasons for gaps, both by cell."""

    figures: Mapping[Cell, Figures]
    gaps: Mapping[Cell, str]
    rounds: int
    versions: Mapping[str, str] = {}
    """The installed packages with their versions, by service."""


@contextmanager
def start_service(
    provider: str, seconds: float, service: LoadedService, python: Path, workers: int, place: Place
) -> Iterator[Load]:
    """Yield the load of a service that runs meanwhile."""
    local = {"sqlite": f"sqlite:{place.folder}/loom.db", "memory": "memory:"}
    loom = local.get(place.store, place.store)
    with open_service(python, service.app, workers, provider, loom) as (port, pid):
        yield lambda clients: asyncio.run(drive(port, clients, seconds, lambda: read_tree_cpu(pid)))


def measure(
    services: Sequence[LoadedService],
    workers: Sequence[int],
    clients: Sequence[int],
    rounds: int,
    *,
    find_python: Callable[[LoadedService], Path],
    open_place: Callable[[str], AbstractContextManager[Place]],
    start: Start,
) -> ServiceFigures:
    """Measure all cells and return the medians.

    A service that cannot be installed, has no store, does not start or does not answer has a reason in place of
    figures. `find_python` returns the interpreter of a service, or raises NotInstalledError.
    """
    samples: dict[Cell, list[Figures]] = {}
    gaps: dict[Cell, str] = {}
    for number in range(1, rounds + 1):
        for count in workers:
            for service in services:
                cells = [Cell(service.name, count, many) for many in clients]
                if any(cell in gaps for cell in cells):
                    continue
                _show(f"round {number} of {rounds}: {service.name}, {count} workers")
                try:
                    with open_place(service.store) as place, start(service, find_python(service), count, place) as load:
                        for cell in cells:
                            samples.setdefault(cell, []).append(load(cell.clients))
                except (LoadError, NoStoreError, NotInstalledError) as error:
                    gaps |= {cell: str(error) for cell in cells if cell not in samples}
    _show("")
    medians = {
        cell: {name: median(figures[name] for figures in measured) for name in measured[0]}
        for cell, measured in samples.items()
    }
    return ServiceFigures(medians, gaps, rounds)


def _show(text: str) -> None:
    print(f"\r{text:<79}", end="" if text else "\r", file=sys.stderr, flush=True)
