"""OpenRouter: Chat Completions in front of many providers, with reasoning that has to be sent back unmodified.

It differs from `chat.py`: errors arrive in answers with status 200, costs with the token counts, and reasoning as
`reasoning_details`. A forced call makes it drop reasoning silently, so a query that wants both asks for the call in
words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import orjson

from cantrip_actors.crystal.cache_points import CachePoints
from cantrip_actors.crystal.encode import Writer
from cantrip_actors.crystal.families.chat import Chat, ChatWriter
from cantrip_actors.crystal.images import Takes, estimate_by_pixels
from cantrip_actors.crystal.prices import Model
from cantrip_actors.crystal.provider import ProviderQuery
from cantrip_actors.crystal.typed_settings import CHAT, Table
from cantrip_actors.terms.exact_json import dump_exactly
from cantrip_actors.terms.messages import must_call


def _write_summary(value: str, _tools: bool) -> Mapping[str, Any]:
    return {"reasoning": {"exclude": True} if value == "none" else {"summary": value}}


def _mark(fragment: bytes, mark: Mapping[str, Any]) -> bytes:
    """Return a message with a cache mark on its last part; an empty message is unchanged."""
    message = orjson.loads(fragment)
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not content or not parts:
        return fragment
    return dump_exactly({**message, "content": [*parts[:-1], {**parts[-1], "cache_control": mark}]})


class OpenRouterWriter(ChatWriter):
    """Writes contexts with cache marks for the providers that need them."""

    def __init__(self, model: str, provider: str, takes: Takes, cache: CachePoints | None) -> None:
        super().__init__(model, provider, takes)
        self.marks = 0 if cache is None else cache.messages
        self._cache = cache

    def mark(self, fragment: bytes) -> bytes:
        """Return the last message of a run with a cache mark."""
        return fragment if self._cache is None else _mark(fragment, self._cache.mark)


class OpenRouter(Chat):
    """Chat Completions of OpenRouter."""

    provider: ClassVar[str] = "openrouter"
    is_strict: ClassVar[bool] = False
    reports_cost: ClassVar[bool] = True
    seller: ClassVar[str | None] = "openrouter"
    base_url: ClassVar[str] = "https://openrouter.ai/api/v1"
    keys: ClassVar[tuple[str, ...]] = ("OPENROUTER_API_KEY",)
    most: ClassVar[str] = "max_tokens"
    doubtful: ClassVar[bool] = True
    takes: ClassVar[Takes] = Takes(
        files=("application/pdf", "audio/*", "video/*"), fetched=("application/pdf", "video/*")
    )
    serves: ClassVar[str] = "openrouter"
    written: ClassVar[Table] = {**CHAT, "reasoning_summary": _write_summary}

    def __init__(self, model: str, facts: Model, *, cache: CachePoints | None = None, by_schema: bool = False) -> None:
        self._cache = cache
        super().__init__(model, facts, by_schema=by_schema)

    def make_writer(self) -> Writer:
        """Return the writer of contexts for this model."""
        return OpenRouterWriter(self.model, self.provider, self.takes, self._cache)

    def write_system(self, text: str) -> bytes:
        """Return the system prompt with a cache mark."""
        if self._cache is None or not self._cache.system:
            return super().write_system(text)
        return _mark(super().write_system(text), self._cache.mark)

    def write_fields(self, query: ProviderQuery, system: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the fields, which also ask for the cost."""
        yield from super().write_fields(query, system)
        yield "", {"usage": {"include": True}}

    def exclude(self, query: ProviderQuery) -> frozenset[str]:
        """Return the parameters to leave out: OpenRouter drops reasoning if a call is forced."""
        thinks = query.settings.effort not in (None, "none") or "reasoning" in query.settings.more
        return frozenset({"tool_choice"}) if must_call(query.choice) and thinks else frozenset()

    def write_thinking(self, effort: str) -> Mapping[str, Any]:
        """Return the field for the level of thinking."""
        return {"reasoning": {"enabled": False} if effort == "none" else {"effort": effort}}

    image_tokens = staticmethod(estimate_by_pixels)  # the model behind the router is unknown
