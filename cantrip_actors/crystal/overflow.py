"""Recognises a provider's refusal of a context that is too long, and reads the model's window from it.

Each provider words it in its own way, and gateways pass the words on, so one table of words is for all of them. A
shorter context does not help if the refusal is about the length of the *answer* (`max_tokens`), or about a rate. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from cantrip_actors.crystal.shapes import mapping
from cantrip_actors.terms.arguments import is_whole

NAMES: Final = frozenset(
    {
        "context_length_exceeded",  # OpenAI, Groq, Cerebras, OpenRouter
        "exceed_context_size_error",  # llama.cpp
        "model_max_prompt_tokens_exceeded",  # GitHub
        "request_too_large",  # Anthropic
        "context_window_exceeded",
    }
)
"""The names of such errors."""

_WORDINGS: Final = re.compile(
    r"prompt is too long"  # Anthropic, Fireworks
    r"|exceeds? (?:the )?context (?:limit|window|length|size)"  # Anthropic, OpenAI, LiteLLM
    r"|context window (?:exceeds|is full)|exceeds (?:the|this) model'?s? (?:context|maximum)"  # MiniMax
    r"|maximum (?:context|prompt|model|input) length"  # OpenAI, vLLM, OpenRouter, xAI, Mistral, DeepSeek
    r"|context length is only|longer than the (?:model'?s )?(?:context|maximum model) length"  # vLLM, SGLang, Together
    r"|(?:exceeds|greater than) the (?:available |maximum |max )?context (?:size|length)"  # llama.cpp, Ollama
    r"|exceeded max context length|context (?:size|length) (?:has been )?exceeded|context overflow"  # Ollama, llama.cpp
    r"|loaded with context length of only"  # LM Studio
    r"|input token count\b.{0,80}\b(?:exceeds|supports? (?:only )?up to)"  # Gemini
    r"|model only supports up to"  # Vertex AI
    r"|input is too long|too many input tokens|input tokens exceeded"  # Bedrock
    r"|too large for model with \d+"  # Mistral
    r"|too many tokens: (?:total number|size limit)"  # Cohere
    r"|reduce the length of (?:the messages|the prompt|either one|your)"  # OpenAI, Groq, OpenRouter
    r"|(?:exceeded|exceeds) (?:the )?(?:model )?token limit"  # Moonshot
    r"|prompt token count of \d+ exceeds|prompt exceeds max length|range of input length should be"  # GitHub, Qwen
    r"|request too large for|input tokens exceed the configured limit"  # Groq, OpenAI: also of a limit on tokens
    r"|\b(?:messages|input)\[\d+\][^:]{0,60}: string too long"  # OpenAI
    r"|`?inputs`?(?: tokens)? \+ `?max_new_tokens`? must be <=",  # Text Generation Inference
    re.IGNORECASE,
)
_OF_THE_ANSWER: Final = re.compile(
    r"max_(?:completion_|output_)?tokens\W{1,3}(?:or \W?max_completion_tokens\W )?is too large"
    r"|max(?:imum)?_?(?:completion|output)_?tokens?\b.{0,40}(?:at most|exceeds the model)"
    r"|please wait before trying",  # Bedrock limits a rate so
    re.IGNORECASE,
)
_WINDOWS: Final = re.compile(
    r"(?:maximum (?:context|prompt|model|input) length (?:is|of)|maximum allowed|model only supports up to"
    r"|context length is only|maximum number of tokens allowed \(|available context size \(|context limit:[^>]*>"
    r"|context length of only|model length of|token limit:|too large for model with|\d tokens >|context length \()"
    r"\s*(\d[\d,_]*)",
    re.IGNORECASE,
)
_FIELDS: Final = ("n_ctx", "max_model_len", "context_length")
"""Fields with the window: of llama.cpp, vLLM and others."""


def is_overflow(status: int, names: tuple[str, ...], message: str) -> bool:
    """Return whether an error says that the context is too long. `names` are its codes."""
    if status in (401, 402, 403, 404) or _OF_THE_ANSWER.search(message):
        return False
    return status == 413 or not NAMES.isdisjoint(names) or _WORDINGS.search(message) is not None


def find_window(details: Mapping[str, Any], message: str) -> int | None:
    """Return the model's window in tokens, as its refusal has it; None if it does not say."""
    for fields in (details, mapping(details.get("details")), mapping(details.get("metadata"))):
        for name in _FIELDS:
            if is_whole(window := fields.get(name), 1):
                return window
    match = _WINDOWS.search(message)
    return int(re.sub(r"[,_]", "", match[1])) or None if match else None
