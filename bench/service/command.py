"""`python -m bench service`: one FastAPI service under load: by this project, by pydantic-ai, and by hand.

The service answers `POST /ask` with a stream of server-sent events. Its agent calls a tool and returns a typed report;
the model behind it is a fake provider in a process of its own, which speaks OpenAI's API over HTTP and answers at once.
The services run under uvicorn with the same settings. The CPU is that of all processes of the service, user and system;
the provider, the clients and a Postgres server are not counted. `--where` says in which phases that of ours goes.

A library that cannot be installed, or a service that does not start or answer, has a line with the reason.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import orjson

from bench.peers.environments import find_cache, install, list_versions
from bench.peers.places import open_stores
from bench.service.measuring import OURS, SERVICES, LoadedService, measure, start_service
from bench.service.report import as_json, as_text, write_bars
from bench.service.servers import open_provider
from bench.service.where import FILE, render_phases

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Measure, print the tables and write the files; the exit code is 0, whatever the figures are."""
    options = _parse_options(argv)
    with open_provider() as provider:
        if options.where:
            _print_phases(provider, options.seconds)
            return 0
        services = [service for service in SERVICES if service.name in options.only]
        workers, clients = ([1], [1, 50]) if options.quick else (options.workers, options.clients)
        find_python, versions = _make_installer(options.cache)
        with open_stores(options.postgres) as stores:
            measured = measure(
                services,
                workers,
                clients,
                1 if options.quick else options.rounds,
                find_python=find_python,
                open_place=stores.open,
                start=partial(start_service, provider, 2.0 if options.quick else options.seconds),
            )._replace(versions=versions)
    print(as_text(measured))
    if options.json:
        command = shlex.join(["python", "-m", "bench", "service", *argv])
        options.json.write_bytes(orjson.dumps(as_json(measured, command), option=orjson.OPT_INDENT_2) + b"\n")
    if options.plot:
        write_bars(measured, options.plot)
    return 0


def _parse_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench service", description=(__doc__ or "").split("\n\n", 1)[0])
    names = [service.name for service in SERVICES]
    parser.add_argument("--quick", action="store_true", help="one round, one worker, 1 and 50 clients: about a minute")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 50, 500])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement, at least")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--where", action="store_true", help="the phases of a request of ours, in memory and on SQLite")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="write service.html and service.png there")
    parser.add_argument("--postgres", metavar="URL", help="a server; default: one of its own")
    parser.add_argument("--cache", type=Path, default=find_cache(), metavar="FOLDER")
    return parser.parse_args(argv)


def _make_installer(folder: Path) -> tuple[Callable[[LoadedService], Path], dict[str, str]]:
    """Return a function that finds the interpreter of a service, and the versions that it has installed."""
    versions: dict[str, str] = {}
    install_once = cache(partial(install, cache=folder))

    def find_python(service: LoadedService) -> Path:
        if not service.requirements:
            return Path(sys.executable)
        python = install_once(service.requirements)
        versions.setdefault(service.name, list_versions(python, service.requirements))
        return python

    return find_python, versions


def _print_phases(provider: str, seconds: float) -> None:
    (ours,) = [service for service in SERVICES if service.name == OURS]
    with open_stores(None) as stores, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = Path(folder) / "phases.json"
        os.environ[FILE] = str(path)
        for store in ("memory", "sqlite"):
            with (
                stores.open(store) as place,
                start_service(provider, seconds, ours, Path(sys.executable), 1, place) as load,
            ):
                figures = load(1)
            print(
                f"{store}: {figures['cpu_us']:,.0f} us of CPU a request",
                render_phases(path, figures["cpu_us"]),
                sep="\n",
            )
        del os.environ[FILE]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
