"""Why a provider ended an answer before the model did, in one vocabulary for all providers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

CutOff = Literal["length", "filter"]
"""Why an answer is incomplete: it reached the limit on its length or the end of the context window ("length"), or a
filter of the provider or the model's own refusal ended it ("filter")."""

_LENGTH: Final = frozenset(
    {"length", "model_length", "max_tokens", "max_output_tokens", "MAX_TOKENS", "model_context_window_exceeded"}
)
_FILTER: Final = frozenset(
    {"content_filter", "content_filtered", "guardrail_intervened", "refusal"}
    | {"SAFETY", "RECITATION", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII"}
)
REASONS: Final[Mapping[str, CutOff]] = MappingProxyType(
    {**dict.fromkeys(_LENGTH, "length"), **dict.fromkeys(_FILTER, "filter")}
)
"""The reasons to stop of each provider that say so."""

_NOTES: Final[Mapping[CutOff, str]] = MappingProxyType(
    {
        "length": "the answer is cut off: it reached the limit on its length",
        "filter": "the answer is cut off: a filter of the provider ended it",
    }
)


def find_cut_off(metadata: Mapping[str, Any]) -> CutOff | None:
    """Return why an answer with this metadata of its provider is incomplete; None if the model ended it."""
    reason = metadata.get("stop_reason")
    return REASONS.get(reason) if isinstance(reason, str) else None


def render_cut_off(cut_off: CutOff) -> str:
    """Return a sentence that says why an answer is incomplete."""
    return _NOTES[cut_off]


def note_cut_off(result: Any, cut_off: CutOff | None) -> Any:
    """Return a result for another model to read, with a note if it is incomplete."""
    return result if cut_off is None else f"{result or ''}\n[{_NOTES[cut_off]}]".lstrip("\n")
