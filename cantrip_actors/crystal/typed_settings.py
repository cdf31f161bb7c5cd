"""Settings of a call that at least two families share, in the form of each family.

A table has, by the name of a setting, the function that writes its value into a request. A family without a row lacks
the setting, which the answer reports (`metadata["left_out"]`). A row may write nothing for a query (for example without
tools).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from cantrip_actors.crystal.shapes import mapping, objects

Table = Mapping[str, Callable[[Any, bool], Mapping[str, Any]]]
"""For each setting: its value, and whether the query offers tools, to fields of the request."""


def _write_as(name: str, within: str = "") -> Callable[[Any, bool], Mapping[str, Any]]:
    return lambda value, _tools: {within: {name: value}} if within else {name: value}


def _write_tier(value: Any, _tools: bool) -> Mapping[str, Any]:
    return {"service_tier": {"default": "standard_only"}.get(value, value)}


def _write_parallel(value: bool, tools: bool) -> Mapping[str, Any]:
    return {"parallel_tool_calls": value} if tools else {}


def _write_anthropic_parallel(value: bool, tools: bool) -> Mapping[str, Any]:
    return {"tool_choice": {"type": "auto", "disable_parallel_tool_use": not value}} if tools else {}


ANTHROPIC: Final[Table] = {
    "parallel_tool_calls": _write_anthropic_parallel,
    "service_tier": _write_tier,
    "reasoning_summary": lambda value, _: {"thinking": {"display": "omitted" if value == "none" else "summarized"}},
}
RESPONSES: Final[Table] = {
    "parallel_tool_calls": _write_parallel,
    "service_tier": _write_as("service_tier"),
    "logprobs": lambda value, _: {"top_logprobs": value, "include": ["message.output_text.logprobs"]},
    "verbosity": lambda value, _: {"text": {"verbosity": value}},
    "reasoning_summary": lambda value, _: {"reasoning": {"summary": None if value == "none" else value}},
}
CHAT: Final[Table] = {
    "parallel_tool_calls": _write_parallel,
    "service_tier": _write_as("service_tier"),
    "frequency_penalty": _write_as("frequency_penalty"),
    "presence_penalty": _write_as("presence_penalty"),
    "logprobs": lambda value, _: {"logprobs": True, **({"top_logprobs": value} if value else {})},
    "seed": _write_as("seed"),
    "verbosity": _write_as("verbosity"),
}
MISTRAL: Final[Table] = {
    "parallel_tool_calls": _write_parallel,
    "service_tier": _write_tier,
    "frequency_penalty": _write_as("frequency_penalty"),
    "presence_penalty": _write_as("presence_penalty"),
    "logprobs": CHAT["logprobs"],
    "seed": _write_as("random_seed"),
}
COHERE: Final[Table] = {
    "frequency_penalty": _write_as("frequency_penalty"),
    "presence_penalty": _write_as("presence_penalty"),
    "seed": _write_as("seed"),
}
OLLAMA: Final[Table] = {
    "frequency_penalty": _write_as("frequency_penalty", "options"),
    "presence_penalty": _write_as("presence_penalty", "options"),
    "logprobs": CHAT["logprobs"],
    "seed": _write_as("seed", "options"),
}
GOOGLE: Final[Table] = {
    "service_tier": lambda value, _: {"serviceTier": {"default": "standard"}.get(value, value)},
    "frequency_penalty": _write_as("frequencyPenalty", "generationConfig"),
    "presence_penalty": _write_as("presencePenalty", "generationConfig"),
    "logprobs": lambda value, _: {
        "generationConfig": {"responseLogprobs": True, **({"logprobs": value} if value else {})}
    },
    "seed": _write_as("seed", "generationConfig"),
    "reasoning_summary": lambda value, _: {
        "generationConfig": {"thinkingConfig": {"includeThoughts": value != "none"}}
    },
}

PATTERNS: Final[Mapping[str, str]] = {
    "parallel_tool_calls": r"parallel_tool_(?:calls|use)",
    "service_tier": r"service.?tier",
    "frequency_penalty": r"frequency.?penalty|penalty is not enabled",
    "presence_penalty": r"presence.?penalty|penalty is not enabled",
    "logprobs": r"logprobs",
    "seed": r"\bseed\b",
    "verbosity": r"verbosity",
    "reasoning_summary": r"reasoning.?summary|include.?thoughts|thinking\.display|thinking\.\w+\.display",
}
"""The patterns of refusals, of any family."""


# -------------------------------------------------------------------------------------------------- log probabilities


def read_logprobs(entries: Any) -> list[list[Any]]:
    """Return the log probabilities that OpenAI's interfaces send: `[token, probability, [[other token, probability],
    …]]` each.
    """
    return [
        [
            entry.get("token"),
            entry.get("logprob"),
            [[o.get("token"), o.get("logprob")] for o in objects(entry.get("top_logprobs"))],
        ]
        for entry in objects(entries)
    ]


def read_google_logprobs(content: Any) -> list[list[Any]]:
    """Return the log probabilities that Google sends, in the same form."""
    result = mapping(content)
    tops = [objects(top.get("candidates")) for top in objects(result.get("topCandidates"))]
    chosen = objects(result.get("chosenCandidates"))
    return [
        [
            entry.get("token"),
            entry.get("logProbability"),
            [[o.get("token"), o.get("logProbability")] for o in (tops[n] if n < len(tops) else [])],
        ]
        for n, entry in enumerate(chosen)
    ]
