"""Models on the user's own machine: Ollama, vLLM, llama.cpp, LM Studio, and others with Chat Completions.

Some servers accept `tool_choice` and ignore it, some have no tools, and none of them announces that. If a required call
is missing, the crystal asks again with a schema, and remembers to (`provider.py`). With `tools="schema"` every query
has the schema from the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from cantrip_actors.crystal.families.chat import Chat
from cantrip_actors.crystal.images import Takes, estimate_by_pixels


class Local(Chat):
    """A server of the user."""

    provider: ClassVar[str] = "local"
    is_strict: ClassVar[bool] = False
    seller: ClassVar[str | None] = None
    base_url: ClassVar[str] = "http://localhost:11434/v1"
    keys: ClassVar[tuple[str, ...]] = ("LOCAL_API_KEY",)
    needs_key: ClassVar[bool] = False
    doubtful: ClassVar[bool] = True
    most: ClassVar[str] = "max_tokens"
    takes: ClassVar[Takes] = Takes()
    empty: ClassVar[str | None] = ""

    def write_thinking(self, effort: str) -> Mapping[str, object]:
        """Return the fields for the level of thinking; templates of open models have a field for "none"."""
        fields: dict[str, object] = {"reasoning_effort": effort}
        if effort == "none":
            fields = {"chat_template_kwargs": {"enable_thinking": False}}
        return fields

    image_tokens = staticmethod(estimate_by_pixels)  # the model behind the server is unknown
