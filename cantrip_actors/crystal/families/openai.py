"""Chat Completions bodies, brought to the crystal contract (CRYSTAL-6).

`normalise_chat` reads one whole response body, by the rules of `chat.py`. `replayed` makes a crystal of a recorded
body, for conformance suites and regression tests.

The provider's own fields are kept as metadata, which nothing depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from cantrip_actors.crystal.scripted import Scripted, scripted
from cantrip_actors.crystal.shapes import objects
from cantrip_actors.crystal.sse import ServerSentEvent
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, ProviderError, suggest_nearest
from cantrip_actors.terms.exact_json import dump_exactly
from cantrip_actors.terms.messages import Response

_METADATA: Final[Mapping[str, str]] = {
    **{name: name for name in ("id", "model", "stop_reason", "refusal")},
    "served_by": "provider",
}
"""The fields of the decoder's metadata that are kept, and their names."""

_SIGNED: Final = frozenset({"reasoning_details", "extra_content"})
"""Fields that have to be sent back to the provider unchanged: encrypted reasoning and signatures."""


def normalise_chat(body: Any) -> Response:
    """Return the response in a Chat Completions body. Calls keep their ids, or have none.

    Raises ProviderError if the body is an error (also with status 200), CrystalError if it has no response or one that
    breaks the contract.
    """
    from cantrip_actors.crystal.families.chat import ChatDecoder  # it needs httpx, which takes long to import

    if not isinstance(body, Mapping):
        raise CrystalError(f"provider returned {type(body).__name__}: expected a Chat Completions object")
    decoder = ChatDecoder(utterance=0, provider="provider")
    decoder.feed(ServerSentEvent(dump_exactly(body)))
    if not decoder.complete:
        raise CrystalError("crystal returned neither content nor tool_calls: the provider's answer has no choices")
    try:
        response, message = decoder.finish(), decoder.message
    except ProviderError as error:  # a recording gives the same answer to every query
        raise CrystalError(str(error), usage=decoder.counts.make_usage()) from error
    is_signed = any(_SIGNED & part.keys() for part in (message, *objects(message.get("tool_calls"))))
    metadata = {own: decoder.metadata[name] for name, own in _METADATA.items() if name in decoder.metadata}
    return Response.of(replace(response, metadata=metadata, blocks=(message,) if is_signed else ()))


NORMALISERS: Final[Mapping[str, Callable[[Any], Response]]] = {
    "openai": normalise_chat,
    "mock_openai": normalise_chat,
}


def replayed(provider: str, raw_response: Any) -> Scripted:
    """Return a crystal that answers every query with a recorded response body of `provider`, normalised.

    Raises InvalidCantrip for a provider that is not known.
    """
    normalise = NORMALISERS.get(provider)
    if normalise is None:
        raise InvalidCantrip(f'no recordings of provider "{provider}": {suggest_nearest(provider, NORMALISERS)}')
    return scripted(lambda _: normalise(raw_response), name=provider)
