"""xAI: OpenAI's Responses interface, with tools of its own that run there.

It differs from `responses.py` in one point: its searches of X arrive as custom calls with ids. They are recognised by
their names, which the query did not offer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from cantrip_actors.crystal.draft import Decoder
from cantrip_actors.crystal.families.responses import Responses, ResponsesDecoder


class XaiDecoder(ResponsesDecoder):
    """The stream of a response of xAI."""

    provider: ClassVar[str] = "xai"

    def _is_theirs(self, raw: Mapping[str, Any]) -> bool:
        unknown = raw.get("name") not in self.tools
        return super()._is_theirs(raw) or (unknown and raw.get("type") == "custom_tool_call")


class Xai(Responses):
    """xAI's Responses API."""

    provider: ClassVar[str] = "xai"
    base_url: ClassVar[str] = "https://api.x.ai/v1"
    keys: ClassVar[tuple[str, ...]] = ("XAI_API_KEY",)
    counts: ClassVar[bool] = False
    serves: ClassVar[str] = "xai"
    seller: ClassVar[str | None] = "x-ai"
    decodes: ClassVar[type[Decoder]] = XaiDecoder

    def __init__(self, model: str, facts: Any, **more: Any) -> None:
        super().__init__(model, facts, **more)
        self.refused.discard("include")  # every model takes it
