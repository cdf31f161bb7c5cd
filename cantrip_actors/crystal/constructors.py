"""The crystals of providers, one function for each family: users call them, and so do names such as "anthropic:…".

Each takes a model's name, and the same arguments by keyword: those of `CommonSettings`, and an address. Keys are in the
environment by default: `ANTHROPIC_API_KEY`, `OPENAI_API_KEY`, `GEMINI_API_KEY` or `GOOGLE_API_KEY`,
`OPENROUTER_API_KEY`, `XAI_API_KEY`, `MISTRAL_API_KEY`, `CO_API_KEY`.

Sampling parameters belong to the call (`Call(temperature=…, effort="high", output_schema={…})`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Unpack

from cantrip_actors.crystal.access import Access
from cantrip_actors.crystal.cache_points import CachePoints, parse_cache_points
from cantrip_actors.crystal.client import ConnectionSettings, Timeouts
from cantrip_actors.crystal.families.anthropic import Anthropic
from cantrip_actors.crystal.families.chat import Chat
from cantrip_actors.crystal.families.cohere import Cohere
from cantrip_actors.crystal.families.google import Google
from cantrip_actors.crystal.families.local import Local
from cantrip_actors.crystal.families.mistral import Mistral
from cantrip_actors.crystal.families.ollama import Ollama
from cantrip_actors.crystal.families.openrouter import OpenRouter
from cantrip_actors.crystal.families.responses import Responses
from cantrip_actors.crystal.families.xai import Xai
from cantrip_actors.crystal.policy.breaker import Breaker
from cantrip_actors.crystal.policy.limits import Limits
from cantrip_actors.crystal.prices import Prices
from cantrip_actors.crystal.provider import Family, ProviderCrystal
from cantrip_actors.redact.urls import render_url
from cantrip_actors.terms.arguments import (
    check,
    check_choice,
    check_kind,
    check_whole,
    is_list,
    is_text,
    is_texts_by_name,
)
from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest


class CommonSettings(ConnectionSettings, total=False):
    """The keyword arguments of every family."""

    prices: Prices | None
    """The prices and sizes of models; by default those of the `genai-prices` data set."""
    name: str | None
    """The crystal's name in the loom and in errors; by default "family:model"."""
    context_window: int | None
    """The tokens that a context of the model may have, for a model of unknown size."""
    tools: Literal["native", "schema"]
    """"schema" for a model without tools: it writes its calls as JSON."""
    images: bool
    """False for a model that takes no images: it gets descriptions. Crystals learn that from servers that refuse them.
    """
    files: Sequence[str] | None
    """The media types of other files that the model accepts, as in `["application/pdf", "audio/*"]`, if they differ
    from those of its family. Every model accepts texts.
    """
    limits: Limits | None
    """The queries at once, and the requests and tokens in a minute."""
    breaker: Breaker | None
    """The failures after which queries stop for a while."""


class AddressedSettings(CommonSettings, total=False):
    """The keyword arguments of families with an address of their own."""

    base_url: str | None
    """The address of the provider, of a proxy or of a gateway; by default the family's own."""


def anthropic(
    model: str, *, cache: Literal["5m", "1h"] | CachePoints | None = "5m", **settings: Unpack[AddressedSettings]
) -> ProviderCrystal:
    """Return a Claude model over the Messages API.

    `cache` is how long the provider caches a prompt, None for no cache; `CachePoints` says which parts are marked.

    Raises InvalidCantrip for an invalid setting.
    """
    return make_crystal(Anthropic, model, settings, cache=parse_cache_points(cache, "anthropic"))


def openai(model: str, *, chat: bool = False, **settings: Unpack[AddressedSettings]) -> ProviderCrystal:
    """Return an OpenAI model over the Responses API or, with `chat=True`, over Chat Completions.

    Raises InvalidCantrip for an invalid setting.
    """
    check_kind("openai: chat", chat, bool, "True or False", InvalidCantrip)
    return make_crystal(Chat if chat else Responses, model, settings)


def google(model: str, **settings: Unpack[AddressedSettings]) -> ProviderCrystal:
    """Return a Gemini model. Raises InvalidCantrip for an invalid setting."""
    return make_crystal(Google, model, settings)


def openrouter(
    model: str,
    *,
    cache: Literal["auto", "5m", "1h"] | CachePoints | None = "auto",
    **settings: Unpack[AddressedSettings],
) -> ProviderCrystal:
    """Return a model of OpenRouter, by its name there.

    `cache` is as with `anthropic`; "auto" is 5 minutes for Claude and nothing for other models, which cache
    automatically.

    Raises InvalidCantrip for an invalid setting.
    """
    if cache == "auto":
        cache = "5m" if isinstance(model, str) and model.removeprefix("~").startswith("anthropic/") else None
    points = parse_cache_points(cache, "openrouter")
    if points is not None and points.tools:
        raise InvalidCantrip("openrouter: cache: expected no mark on tools: that of the system prompt covers them")
    return make_crystal(OpenRouter, model, settings, cache=points)


def xai(model: str, **settings: Unpack[AddressedSettings]) -> ProviderCrystal:
    """Return a Grok model over xAI's Responses API. Raises InvalidCantrip for an invalid setting."""
    return make_crystal(Xai, model, settings)


def mistral(model: str, **settings: Unpack[AddressedSettings]) -> ProviderCrystal:
    """A Mistral model over Mistral's own chat completions. Raises InvalidCantrip for a setting that cannot be."""
    return make_crystal(Mistral, model, settings)


def cohere(model: str, **settings: Unpack[AddressedSettings]) -> ProviderCrystal:
    """A Cohere model over version 2 of its chat. Raises InvalidCantrip for a setting that cannot be."""
    return make_crystal(Cohere, model, settings)


def ollama(model: str, **settings: Unpack[AddressedSettings]) -> ProviderCrystal:
    """A model of an Ollama server, over Ollama's own interface.

    `context_window`, in tokens, is also what the server is asked for (`num_ctx`): it cuts a longer context silently,
    and its default is a few thousand tokens.

    Raises InvalidCantrip for a setting that cannot be.
    """
    return make_crystal(Ollama, model, settings, context=settings.get("context_window"))


def local(base_url: str, model: str, **settings: Unpack[CommonSettings]) -> ProviderCrystal:
    """Return a model of a server with Chat Completions at `base_url` (usually ending in `/v1`).

    Raises InvalidCantrip for an invalid setting.
    """
    check_kind("local: base_url", base_url, str, "a URL as a text", InvalidCantrip)
    if not base_url.startswith(("http://", "https://")):
        raise InvalidCantrip(f'local: base_url: expected "http://…" or "https://…", got "{render_url(base_url)}"')
    return make_crystal(Local, model, {**settings, "base_url": base_url})


_KINDS: Final[Sequence[tuple[str, Any, str]]] = (
    ("api_key", str | Callable, "a text, or a function that returns one"),
    ("name", str, "a text"),
    ("base_url", str, "a URL as a text"),
    ("record", str | os.PathLike, "the path of a file"),
    ("timeouts", Timeouts, "Timeouts(…)"),
    ("prices", Prices, "Prices(…)"),
    ("limits", Limits, "Limits(…)"),
    ("breaker", Breaker, "Breaker(…)"),
)
"""The kinds of settings; None is the family's default."""


def make_crystal(
    family: type[Family], model: str, settings: AddressedSettings, *, access: Access | None = None, **own: Any
) -> ProviderCrystal:
    """Return the crystal of a model. `own` are settings of this family only.

    Raises InvalidCantrip for an invalid setting.
    """
    check(is_text(model), "crystal", "a model's name", model, InvalidCantrip)
    names = AddressedSettings.__annotations__
    for name in settings:
        if name not in names:
            raise InvalidCantrip(f'crystal "{model}": unknown setting "{name}": {suggest_nearest(name, names)}')
    connection: dict[str, Any] = dict(settings)
    for what, kind, expected in _KINDS:
        check_kind(f'crystal "{model}": {what}', connection.get(what), kind | None, expected, InvalidCantrip)
    headers = connection.get("headers")
    if headers is not None and not is_texts_by_name(headers):  # the error shows no value: it may be a secret
        raise InvalidCantrip(f'crystal "{model}": headers: expected texts by name, got {type(headers).__name__}')
    what = f'crystal "{model}": context_window'
    check_whole(what, connection.get("context_window"), 1, error=InvalidCantrip, or_none=True)
    prices = connection.pop("prices", None) or Prices()
    by_schema = connection.pop("tools", "native")
    check_choice(f'crystal "{model}": tools', by_schema, ("native", "schema"), InvalidCantrip)
    sees = connection.pop("images", True)
    check(isinstance(sees, bool), f'crystal "{model}": images', "True or False", sees, InvalidCantrip)
    kinds = connection.pop("files", None)
    fits = kinds is None or (is_list(kinds) and all(isinstance(kind, str) and "/" in kind for kind in kinds))
    check(fits, f'crystal "{model}": files', 'a list of media types as in "audio/*"', kinds, InvalidCantrip)
    facts = prices.model(model, seller=family.seller, address=render_url(connection.get("base_url") or family.base_url))
    own_family = family(model, facts, by_schema=by_schema == "schema", **own)
    if not sees:
        own_family.show_no_images()
    if kinds is not None:
        own_family.encoder.writer.take_files(kinds)
    return ProviderCrystal(own_family, prices=prices, access=access, **connection)
