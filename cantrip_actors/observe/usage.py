"""The token counts of an answer as attributes of its span, and by modality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cantrip_actors.observe import names
from cantrip_actors.terms.messages import Usage

MODALITIES: Final = ("text", "image", "audio")
"""The values of `gen_ai.token.modality`; tokens whose modality no provider says are "unknown"."""

COUNTED: Final = {"reasoning_tokens": names.REASONING, "cache_written_tokens": names.CACHE_WRITE}
SAID: Final = {"model": names.RESPONSE_MODEL, "id": names.RESPONSE_ID}


def read_modalities(metadata: Mapping[str, Any], side: str) -> Mapping[str, int]:
    """Return the tokens of each modality that a provider counted, of the "input" or the "output"."""
    both = metadata.get("modality_tokens")
    counts = both.get(side) if isinstance(both, Mapping) else None
    if not isinstance(counts, Mapping):
        return {}
    return {modality: count for modality, count in counts.items() if modality in MODALITIES and isinstance(count, int)}


def build_usage_attributes(usage: Usage, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a query's span that its answer gives: the model, the answer's id, and the tokens."""
    attributes: dict[str, Any] = {names.INPUT_TOKENS: usage.prompt_tokens, names.OUTPUT_TOKENS: usage.completion_tokens}
    if usage.cached_tokens:
        attributes[names.CACHE_READ] = usage.cached_tokens
    for key, name in COUNTED.items():
        if isinstance(metadata.get(key), int):
            attributes[name] = metadata[key]
    for key, name in SAID.items():
        if isinstance(metadata.get(key), str):
            attributes[name] = metadata[key]
    for side in ("input", "output"):
        for modality, count in read_modalities(metadata, side).items():
            attributes[names.OF_MODALITY.format(modality, side)] = count
    return attributes
