"""The prompts of a server of tools: texts that a person sends to an entity by name, as with slash commands of editors.

A prompt is its server's text, so it is untrusted: a person chooses to send it as an intent, and it is never a part of
a system prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from cantrip_actors.terms.file import File


class Prompt(NamedTuple):
    """A prompt as its server describes it: `arguments` has a description for each argument, `required` the needed."""

    name: str
    description: str
    arguments: Mapping[str, str]
    required: tuple[str, ...] = ()

    @property
    def usage(self) -> str:
        """The arguments as a usage line has them: those in brackets may be left out."""
        return " ".join(name if name in self.required else f"[{name}]" for name in self.arguments)


class EmbeddedText(NamedTuple):
    """The text of a resource that a prompt brings along."""

    uri: str
    text: str


class PromptMessage(NamedTuple):
    """A message of a prompt with its arguments filled in: a text, an image or another file, or an embedded text."""

    role: Literal["user", "assistant"]
    content: str | File | EmbeddedText
