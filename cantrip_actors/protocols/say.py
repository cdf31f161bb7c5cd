"""What the command line says: the answer on standard output, everything about it on standard error.

So `answer=$(cantrip cast …)` holds the answer alone. With `--json` standard output is one JSON value, whatever happens;
what that value holds is written down in `docs/cli.md` and only grows.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from cantrip_actors import CantripError, Episode, Usage

__all__ = ["as_json", "failed", "finished", "note", "plain", "shown", "value"]


def as_json(said: Any, *, indent: bool = False) -> str:
    """`said` as JSON; also what orjson cannot write: whole numbers of any size, lone surrogates, unknown objects."""
    try:
        return orjson.dumps(said, default=_default, option=orjson.OPT_INDENT_2 if indent else 0).decode()
    except TypeError:
        return json.dumps(said, default=_default, indent=2 if indent else None)


def _default(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    return str(value)


def shown(result: Any) -> str:
    """An answer as people read it: text as it is, everything else as JSON."""
    return result if isinstance(result, str) else as_json(result, indent=True)


def value(said: Any) -> None:
    """A JSON value on standard output."""
    plain([as_json(said, indent=sys.stdout.isatty())])


def plain(lines: Iterable[str]) -> None:
    """Lines on standard output."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def note(text: str) -> None:
    """A remark on standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def finished(episode: Episode, loom: str) -> dict[str, Any]:
    """How a cast ended, for programs."""
    return {
        "entity_id": episode.entity_id,
        "result": episode.result,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "reason": episode.reason,
        "ward": episode.ward,
        "summary": episode.summary,
        "turns": len(episode.thread),
        "usage": _usage(episode.usage),
        "subtree_usage": _usage(episode.subtree_usage),
        "error": None,
        "loom": loom,
    }


def failed(error: CantripError, loom: str | None = None) -> dict[str, Any]:
    """That something failed, for programs; with the same keys as an end that was none."""
    mistakes = getattr(error, "mistakes", None)
    said: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if mistakes is not None:
        said["mistakes"] = [{"line": mistake.line, "message": mistake.text} for mistake in mistakes]
    return {
        "entity_id": error.entity_id,
        "result": None,
        "terminated": False,
        "truncated": False,
        "reason": "failed",
        "error": said,
        "loom": loom,
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "total_tokens": usage.total_tokens,
        "cost": usage.cost,
    }
