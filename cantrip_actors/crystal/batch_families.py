"""The batch interface of each family, and its requirements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cantrip_actors.crystal.batch_endpoints import AnthropicBatches, BatchEndpoint, GoogleBatches, OpenAIBatches
from cantrip_actors.crystal.bucket_batches import BedrockBatches, VertexBatches
from cantrip_actors.crystal.families.anthropic import Anthropic
from cantrip_actors.crystal.families.bedrock import Bedrock
from cantrip_actors.crystal.families.chat import Chat
from cantrip_actors.crystal.families.google import Google
from cantrip_actors.crystal.families.responses import Responses
from cantrip_actors.crystal.families.vertex import VertexClaude, VertexGemini
from cantrip_actors.crystal.provider import Family, ProviderCrystal
from cantrip_actors.terms.errors import InvalidCantrip

ENDPOINTS: Final[Mapping[type[Family], type[BatchEndpoint]]] = {
    Anthropic: AnthropicBatches,
    Responses: OpenAIBatches,
    Chat: OpenAIBatches,
    Google: GoogleBatches,
    VertexGemini: VertexBatches,
    VertexClaude: VertexBatches,
    Bedrock: BedrockBatches,
}
"""The families whose providers have batches."""


def make_endpoint(crystal: object, *, bucket: str | None = None, role: str | None = None) -> BatchEndpoint:
    """Return the batch interface of a crystal's provider.

    Raises InvalidCantrip if it has none, if it lacks its bucket or role, and if it does not use a given one.
    """
    name = getattr(crystal, "name", type(crystal).__name__)
    if isinstance(crystal, ProviderCrystal):
        endpoint = ENDPOINTS.get(type(crystal.family))
        if endpoint is BedrockBatches:
            return BedrockBatches(crystal, bucket, role)
        if role is not None:
            raise InvalidCantrip(f"batch: {name}: role: expected none: only Bedrock acts in a role")
        if endpoint is VertexBatches:
            return VertexBatches(crystal, bucket)
        if bucket is not None:
            raise InvalidCantrip(f"batch: {name}: bucket: expected none: only Vertex and Bedrock use one")
        if endpoint is not None:
            return endpoint(crystal)
    families = "anthropic, openai, openai-chat, google, vertex or bedrock"
    raise InvalidCantrip(f"batch: expected a crystal of {families} (batch:anthropic:MODEL), got {name}")
