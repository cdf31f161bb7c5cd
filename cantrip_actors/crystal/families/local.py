"""Models on one's own machine: Ollama, vLLM, llama.cpp, LM Studio, and what else speaks Chat Completions.

They differ in what they leave out. Some take `tool_choice` and do nothing about it, some know nothing of tools, and
none says so beforehand. So a call that has to come and does not is asked for again, by schema, and the crystal
remembers (`provider.py`). With `tools="schema"` that is done from the start and for every query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from cantrip_actors.crystal.encode import Writer
from cantrip_actors.crystal.families.chat import Chat, ChatWriter
from cantrip_actors.crystal.images import Takes, pixel_tokens


class Local(Chat):
    """A server of one's own."""

    provider: ClassVar[str] = "local"
    seller: ClassVar[str | None] = None
    base_url: ClassVar[str] = "http://localhost:11434/v1"
    keys: ClassVar[tuple[str, ...]] = ("LOCAL_API_KEY",)
    needs_key: ClassVar[bool] = False
    doubtful: ClassVar[bool] = True
    most: ClassVar[str] = "max_tokens"
    files: ClassVar[Takes] = Takes()

    def writer(self) -> Writer:
        """What writes contexts: some servers refuse an utterance whose content is null."""
        return ChatWriter(self.model, self.provider, empty="", takes=self.files)

    def thinking(self, effort: str) -> Mapping[str, object]:
        """How much to think; templates of open models have a word of their own for not at all."""
        made: dict[str, object] = {"reasoning_effort": effort}
        if effort == "none":
            made = {"chat_template_kwargs": {"enable_thinking": False}}
        return made

    image_tokens = staticmethod(pixel_tokens)  # the model behind the server is unknown
