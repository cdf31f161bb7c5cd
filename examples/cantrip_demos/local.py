"""`cantrip demo local`: a real model on this machine, asked over HTTP like any other; nothing is scripted.

The server is llama.cpp's own, embedded (`xllamacpp`, the extra "local"), on a free port of the loopback; it runs in
threads of this process and ends with the `with` block. The model is SmolLM2 with 135 million parameters (Apache-2.0),
which `make local` fetches (`tools/local_model.py`); `--model` names any other GGUF file.

The server knows no tools for such a model. CRYSTAL-5's simulation lets it call gates all the same: its answers follow a
JSON Schema that allows only calls. Calls and arguments are the model's choice; one of this size has to be shown the
next step.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from cantrip_actors import Call, Cantrip, CantripError, Circle, gate
from cantrip_actors.crystals import Timeouts
from cantrip_actors.crystals import local as crystal_at
from cantrip_actors.wards import max_turns, timeout

__all__ = ["INTENT", "MODEL", "LocalMissing", "cache", "local_cantrip", "model_file", "serving"]

INTENT: Final = "What is the capital of France?"

MODEL: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONTEXT: Final = 4096
"""Tokens of the model's context that the server makes room for."""
_ANSWER: Final = 512
"""Tokens of an answer at most: a model of this size that has written more repeats itself, for minutes."""


class LocalMissing(CantripError):
    """Something that the demo needs is missing; the message says what, and how to get it."""


# --------------------------------------------------------------------------------------------------------- the model


def cache() -> Path:
    """Return the folder in which the model is kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cantrip-actors"


def model_file(named: Path | None = None) -> Path:
    """Return the GGUF file to use. Raises LocalMissing if it is not there."""
    if named is not None:
        if not named.is_file():
            raise LocalMissing(f"there is no model file {named}")
        return named
    file = cache() / MODEL
    if not file.is_file():
        raise LocalMissing(f"missing: the model {MODEL}: run `make local`, or name a GGUF file with --model FILE")
    return file


# -------------------------------------------------------------------------------------------------------- the server


@contextlib.contextmanager
def serving(model: Path) -> Iterator[str]:
    """Serve `model` for the block; yield the address. Raises LocalMissing without the extra "local"."""
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
    """Return a cantrip small enough for so small a model: look something up, and say it."""
    return Cantrip(
        crystal=crystal_at(address, model, tools="schema", timeouts=Timeouts(first=120, between=60)),
        call=Call("Look things up, then finish.", temperature=0, max_tokens=60, require_done_tool=True),
        circle=Circle([done, look_up], [max_turns(6), timeout(180)]),
        name="local",
    )
