"""`python -m bench peers`: this project and other libraries do the same work, interleaved in one run.

Each library is installed in its newest version into an environment in the user's cache, with the Python that runs the
bench. Each measurement is a process of its own: its CPU is what the work took after the imports and a first short run.
The models are the libraries' own test models, or scripts of their interface, and answer at once; tracing is off. A
library that cannot be installed, fails or takes too long has a line with the reason, and the others go on.

CPU of a Postgres server is not counted. Ratios can be compared between machines and at other loads; times cannot.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import orjson

from bench.peers.environments import find_cache, install, list_versions
from bench.peers.measuring import measure, run_program
from bench.peers.places import open_stores
from bench.peers.plot import write_plots
from bench.peers.report import as_json, as_text
from bench.peers.subjects import SUBJECTS, WORKS, Subject

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Measure, print the tables and write the files; the exit code is 0, whatever the figures are."""
    options = _parse_options(argv)
    subjects = [subject for subject in SUBJECTS if _is_chosen(subject, options.only)]
    works = [work for work in WORKS if work.name in options.works and (work.is_quick or not options.quick)]
    rounds = options.rounds or (1 if options.quick else 3)
    limit = options.limit or (30.0 if options.quick else 180.0)
    end = time.monotonic() + 60 * (options.minutes or (15 if options.quick else 120))
    find_python, versions = _make_installer(options.cache)
    with open_stores(options.postgres) as stores:
        measured = measure(
            subjects,
            works,
            rounds,
            find_python=find_python,
            open_place=stores.open,
            run=partial(run_program, limit=limit),
            is_over=lambda: time.monotonic() > end,
        )._replace(versions=versions)
    print(as_text(measured))
    if options.json:
        command = shlex.join(["python", "-m", "bench", "peers", *argv])
        options.json.write_bytes(orjson.dumps(as_json(measured, command), option=orjson.OPT_INDENT_2) + b"\n")
    if options.plot:
        write_plots(measured, options.plot)
    return 0


def _parse_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench peers", description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="one round without the long runs: a few minutes")
    parser.add_argument("--rounds", type=int, help="default: 3, or 1 with --quick")
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", help="of one process; default: 180, or 30 with --quick"
    )
    parser.add_argument(
        "--minutes", type=float, help="after which nothing more begins; default: 120, or 15 with --quick"
    )
    parser.add_argument(
        "--only", default="", metavar="NAME,…", help="subjects whose name has one of these in it; ours run anyway"
    )
    names = [work.name for work in WORKS]
    parser.add_argument("--works", type=lambda text: text.split(","), default=names, help=f"default: {','.join(names)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument(
        "--plot", type=Path, metavar="FOLDER", help="write peers.html there, and peers.png if there is a Chromium"
    )
    parser.add_argument("--postgres", metavar="URL", help="a server to use; without it the bench starts one")
    parser.add_argument(
        "--cache", type=Path, default=find_cache(), help="folder of the environments; default: %(default)s"
    )
    options = parser.parse_args(argv)
    if unknown := set(options.works) - set(names):
        parser.error(f"expected works out of {', '.join(names)}, not {', '.join(sorted(unknown))}")
    return options


def _is_chosen(subject: Subject, only: str) -> bool:
    return not subject.requirements or any(name.lower() in subject.name.lower() for name in only.split(","))


def _make_installer(folder: Path) -> tuple[Callable[[Subject], Path], dict[str, str]]:
    """Return the function that finds a subject's interpreter, and the versions that it has found so far."""
    versions: dict[str, str] = {}
    install_once = cache(install)

    def find_python(subject: Subject) -> Path:
        if not subject.requirements:
            return Path(sys.executable)
        print(f"\rinstalling {', '.join(subject.requirements)}\033[K", end="", file=sys.stderr, flush=True)
        python = install_once(subject.requirements, folder)
        versions[subject.name] = list_versions(python, subject.requirements)
        return python

    return find_python, versions
