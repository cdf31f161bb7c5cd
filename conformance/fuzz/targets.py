"""All targets, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Final

from conformance.fuzz import parsers, sandboxes, terminal
from conformance.fuzz.campaign import Target

__all__ = ["TARGETS"]

SEEDS: Final = Path(__file__).parent / "seeds"
WIRE: Final = Path(__file__).parents[2] / "tests" / "wire"
"""Recordings of providers."""


def _read_kept(name: str) -> Sequence[bytes]:
    folder = SEEDS / name
    return [file.read_bytes() for file in sorted(folder.iterdir())] if folder.is_dir() else []


def _seeds(name: str) -> Callable[[], Sequence[bytes]]:
    return lambda: _read_kept(name)


def _stream_seeds(family: str) -> Sequence[bytes]:
    return [*_read_kept(family), *parsers.frame_recordings(WIRE / family)]


def _snapshot_seeds(language: str) -> Sequence[bytes]:
    return [*_read_kept(f"{language}-snapshot"), *sandboxes.snapshots(language)]


_CONTRACT: Final = (
    b"## ",
    b"# ",
    b"- [ ] ",
    b"- [x] ",
    b"| ",
    b"**",
    b"`/a/b`",
    b"max_turns",
    b"yes",
    b"\xe2\x80\x94",
    b"```",
)
_RECIPE: Final = (b"crystal", b"circle", b"gates", b"wards", b"scripted", b"name", b"root", b"max_turns", b"fallback")
_STREAM: Final = (
    b"data: ",
    b"\n\n",
    b"event: ",
    b"[DONE]",
    b'"type"',
    b'"index":',
    b'"error"',
    b'"text"',
    b"\xef\xbb\xbf",
)

_ALL: Final = (
    Target("record", "the codec of records", lambda: nullcontext(parsers.check_record), _seeds("record")),
    *(
        Target(
            family,
            "the decoder of a stream",
            partial(parsers.open_stream, family),
            partial(_stream_seeds, family),
            _STREAM,
        )
        for family in ("anthropic", "cohere", "google", "mistral", "ollama", "openai-chat", "openai-responses")
    ),
    Target(
        "contract-markdown",
        "the parser of contracts",
        lambda: nullcontext(parsers.check_contract_markdown),
        _seeds("contract-markdown"),
        _CONTRACT,
    ),
    Target(
        "contract-yaml",
        "the parser of contracts",
        lambda: nullcontext(parsers.check_contract_yaml),
        _seeds("contract-yaml"),
        _CONTRACT,
    ),
    Target(
        "recipe-yaml", "the reader of recipes", partial(parsers.open_recipes, ".yaml"), _seeds("recipe-yaml"), _RECIPE
    ),
    Target(
        "recipe-toml", "the reader of recipes", partial(parsers.open_recipes, ".toml"), _seeds("recipe-toml"), _RECIPE
    ),
    *(
        Target(
            f"{language}-snapshot",
            "the loader of snapshots",
            partial(sandboxes.open_snapshots, language),
            partial(_snapshot_seeds, language),
        )
        for language in ("python", "javascript", "shell")
    ),
    Target("python-worker", "the protocol of workers", sandboxes.open_python_worker, _seeds("python-worker")),
    Target(
        "javascript-texts",
        "the texts of guests",
        lambda: nullcontext(sandboxes.check_javascript_texts),
        _seeds("javascript-texts"),
        (b"\\u0000n", b"\\ud800", b"name", b"message", b"stack"),
    ),
    Target(
        "shell-protocol",
        "the pipes of a shell",
        sandboxes.open_shell_protocol,
        _seeds("shell-protocol"),
        (b"end\0", b"echo\0", b"2\0", b"1\0", b"exit\0"),
    ),
    Target(
        "terminal", "what is printed", terminal.open_terminal, _seeds("terminal"), (b"\xc2\x85", b"\xe2\x80\xa8", b"\a")
    ),
)

TARGETS: Final[Mapping[str, Target]] = {target.name: target for target in _ALL}
