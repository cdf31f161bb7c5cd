"""xAI: OpenAI's Responses interface, with tools of its own that run there.

It differs from `responses.py` in one point: calls that it has run itself arrive with ids, as calls of the client do.
Its searches of X are custom calls, which are recognised by their names: the query did not offer them.
"""

from __future__ import annotations

import re
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

    def _call_built_in(self) -> None:
        """Make no calls: xAI runs all of its own tools itself, also those whose items have the id of a call."""


class Xai(Responses):
    """xAI's Responses API."""

    provider: ClassVar[str] = "xai"
    is_strict: ClassVar[bool] = False
    base_url: ClassVar[str] = "https://api.x.ai/v1"
    keys: ClassVar[tuple[str, ...]] = ("XAI_API_KEY",)
    counts: ClassVar[bool] = False
    serves: ClassVar[str] = "xai"
    seller: ClassVar[str | None] = "x-ai"
    decodes: ClassVar[type[Decoder]] = XaiDecoder
    reasons: ClassVar[re.Pattern[str]] = re.compile("")
