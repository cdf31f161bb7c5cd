"""OpenRouter: Chat Completions in front of many providers, with reasoning that has to go back unmodified.

What it adds to `chat.py`: its errors come inside answers with status 200, its costs with the counts, its reasoning as
`reasoning_details`. Forcing a call makes it drop reasoning without a word (section 4.5 of the landscape), so where both
are asked for, the call is asked for in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from cantrip_actors.crystal.client import Request
from cantrip_actors.crystal.families.chat import Chat
from cantrip_actors.crystal.images import pixel_tokens
from cantrip_actors.crystal.provider import Asked

__all__ = ["OpenRouter"]


class OpenRouter(Chat):
    """OpenRouter's completions."""

    provider: ClassVar[str] = "openrouter"
    reports_cost: ClassVar[bool] = True
    base_url: ClassVar[str] = "https://openrouter.ai/api/v1"
    keys: ClassVar[tuple[str, ...]] = ("OPENROUTER_API_KEY",)
    most: ClassVar[str] = "max_tokens"
    doubtful: ClassVar[bool] = True

    def request(self, asked: Asked) -> Request:
        """As all completions, with the costs."""
        more: dict[str, Any] = {"usage": {"include": True}, **asked.settings.more}
        asked = asked._replace(settings=asked.settings._replace(more=more))
        thinks = asked.settings.effort not in (None, "none") or "reasoning" in more
        if asked.choice == "required" and thinks:
            asked = asked._replace(choice="auto")
        return super().request(asked)

    def thinking(self, effort: str) -> Mapping[str, Any]:
        """How much to think."""
        return {"reasoning": {"enabled": False} if effort == "none" else {"effort": effort}}

    image_tokens = staticmethod(pixel_tokens)  # nobody knows which model it is
