"""The output of the command line: the answer on standard output, everything else on standard error.

So `answer=$(cantrip cast …)` holds the answer alone. With `--json` standard output is one JSON value, whatever happens;
`docs/cli.md` has its fields, which only grow.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cantrip_actors import CantripError, Episode

from cantrip_actors.redact.urls import render_url

LOOM = "sqlite:.cantrip/loom.db"


def as_json(value: Any, *, indent: bool = False) -> str:
    """Return `value` as JSON, even if orjson cannot write it: big whole numbers, lone surrogates, unknown objects."""
    import orjson

    try:
        return orjson.dumps(value, default=_convert_unknown, option=orjson.OPT_INDENT_2 if indent else 0).decode()
    except TypeError:
        return json.dumps(value, default=_convert_unknown, indent=2 if indent else None)


def _convert_unknown(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, tuple):
        return list(value)
    return str(value)


def as_text(result: Any) -> str:
    """Return an answer for people: text as it is, everything else as JSON."""
    return result if isinstance(result, str) else as_json(result, indent=True)


def print_json(value: Any) -> None:
    """Print a JSON value on standard output."""
    print_lines([as_json(value, indent=sys.stdout.isatty())])


def print_lines(lines: Iterable[str]) -> None:
    """Print lines on standard output."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def show(value: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print an answer: as JSON for programs, or its lines for people."""
    if as_json:
        print_json(value)
    else:
        print_lines(lines)


def show_receipt(receipt: Mapping[str, Any], loom: str, lines: Iterable[str], *, as_json: bool) -> None:
    """Print what a command has changed in a loom; as JSON with the loom, without its password."""
    show({**receipt, "loom": render_url(loom)}, lines, as_json=as_json)


def print_note(text: str) -> None:
    """Print a remark on standard error. One that cannot be printed does not change how the command ends."""
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def episode_json(episode: Episode, loom: str) -> dict[str, Any]:
    """Return how an episode ended, for programs."""
    from cantrip_actors.loom.export.shapes import usage_shape

    return {
        "entity_id": episode.entity_id,
        "result": episode.raw_result,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "reason": episode.reason,
        "ward": episode.ward,
        "cut_off": episode.cut_off,
        "summary": episode.summary,
        "turns": len(episode.thread),
        "usage": usage_shape(episode.usage),
        "subtree_usage": usage_shape(episode.subtree_usage),
        "error": None,
        "loom": render_url(loom),
    }


def error_json(error: CantripError, loom: str | None = None) -> dict[str, Any]:
    """Return an error for programs, with those keys of an episode that are known."""
    mistakes = getattr(error, "mistakes", None)
    value: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if mistakes is not None:
        value["mistakes"] = [{"line": mistake.line, "message": mistake.text} for mistake in mistakes]
    return {
        "entity_id": error.entity_id,
        "result": None,
        "terminated": False,
        "truncated": False,
        "reason": "failed",
        "error": value,
        "loom": render_url(loom),
    }


def render_loom_option(loom: str) -> str:
    """Return the option that names a loom in a proposed command; empty for the default one."""
    import shlex

    return "" if loom == os.environ.get("CANTRIP_LOOM", LOOM) else f" --loom {shlex.quote(render_url(loom))}"


def short(id: str) -> str:
    """Return the last eight characters of an id, because ids that were made together begin alike."""
    return id[-8:]


def name_state(state: str) -> str:
    """Return a state, or the reason of an end, as people read it: "done" for SPEC's word `terminated`."""
    return "done" if state == "terminated" else state


def tokens(count: int) -> str:
    """Return a count of tokens in a few characters."""
    return f"{count:,} tokens" if count < 10_000 else f"{count / 1000:,.0f}k tokens"


def turns(count: int) -> str:
    """Return a count of turns in words."""
    return "1 turn" if count == 1 else f"{count:,} turns"


def one_line(text: str, width: int) -> str:
    """Return the text in one line of at most `width` characters, without control characters."""
    words = " ".join(text.split(maxsplit=width))[: width + 1]  # more words do not fit, and a text may be very long
    flat = "".join(sign if sign.isprintable() else " " for sign in words)
    return flat if len(flat) <= width else f"{flat[: width - 1]}…"
