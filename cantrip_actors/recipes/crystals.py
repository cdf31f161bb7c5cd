"""Crystals as recipes write them: a mapping with a model, how to reach it, and on which terms.

    crystal:
      model: anthropic:claude-sonnet-5-5
      api_key: {env: TEAM_KEY}
      limits: {concurrency: 20, tokens_per_minute: 400000}

or `fallback:` with a list of such mappings and of names. The keys are the arguments of the functions of a family
(`crystal/constructors.py`) and of `limited`, which validate them. No key of a provider stands in a recipe: a recipe
names a variable of the environment.

Two equal mappings of one recipe are one crystal, so that the limits of one account, written twice, are not doubled.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from cantrip_actors.crystal.client import EnvironmentKey
from cantrip_actors.crystals import (
    Breaker,
    Hedge,
    Limits,
    Prices,
    Timeouts,
    anthropic,
    azure,
    bedrock,
    cohere,
    fallback,
    google,
    limited,
    local,
    mistral,
    ollama,
    openai,
    openrouter,
    vertex,
    xai,
)
from cantrip_actors.recipes.document import RecipePath, redact_words
from cantrip_actors.recipes.reader import RecipeReader, find_path
from cantrip_actors.terms.arguments import is_number
from cantrip_actors.terms.errors import InvalidCantrip

_TERM_PARTS: Final[Mapping[str, type[Any]]] = {"limits": Limits, "breaker": Breaker, "hedge": Hedge}
_TERMS: Final = (*_TERM_PARTS, "deadline")
"""The keys that any crystal may have."""

_KINDS: Final = {"base_url": str, "context_window": int, "files": list, "images": bool, "record": str, "name": str}
_PLACES: Final = dict.fromkeys(("region", "profile", "project", "location", "endpoint", "api_version"), str)
"""The region or project of a model in a cloud."""

_SETTINGS: Final = ("model", *_PLACES, *_KINDS, "api_key", "headers", "timeouts", "prices", "tools", "cache")
"""The keys of a provider's model."""

_CACHING: Final = ("anthropic", "bedrock", "openrouter", "vertex")

_LOCAL: Final = "http://localhost:11434/v1"
_MADE_BY: Final[Mapping[str, Callable[..., Any]]] = {
    "anthropic": anthropic,
    "openai": openai,
    "openai-chat": partial(openai, chat=True),
    "google": google,
    "openrouter": openrouter,
    "xai": xai,
    "mistral": mistral,
    "cohere": cohere,
    "ollama": ollama,
    "bedrock": bedrock,
    "vertex": vertex,
    "azure": azure,
    "local": lambda model, *, base_url=_LOCAL, **settings: local(base_url, model, **settings),
}
_SECRET: Final = re.compile(r"auth|key|token|secret|cookie|password|credential", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class CrystalReader:
    """Makes the crystals of one recipe. `named` makes one of a name; mistakes are noted in `reader`."""

    def __init__(self, reader: RecipeReader, named: Callable[[str], Any]) -> None:
        self._reader = reader
        self._named = named
        self._made: dict[str, Any] = {}

    def read(self, settings: Mapping[str, Any], where: RecipePath) -> Any:
        """Return the crystal of a mapping with `model` or `fallback`, None if there is a mistake in it.

        Raises InvalidCantrip for a mapping that is wrong as a whole.
        """
        key = json.dumps(settings, sort_keys=True, default=repr)
        if key not in self._made:
            self._made[key] = (
                self._fallback(settings, where) if "fallback" in settings else self._model(settings, where)
            )
        return self._made[key]

    def put_on_terms(self, crystal: Any, settings: Mapping[str, Any], where: RecipePath) -> Any:
        """Return the crystal on the terms of a mapping, None if one of them is wrong."""
        before = len(self._reader.mistakes)
        terms: dict[str, Any] = {
            name: self._reader.part(kind, settings[name], (*where, name))
            for name, kind in _TERM_PARTS.items()
            if settings.get(name) is not None
        }
        deadline = settings.get("deadline")
        if deadline is not None:
            terms["deadline"] = deadline
            if not is_number(deadline) or deadline <= 0:
                self._reader.wrong((*where, "deadline"), f"deadline: expected seconds > 0, got {deadline!r}")
        if crystal is None or len(self._reader.mistakes) > before:
            return None
        return limited(crystal, **terms) if terms else crystal

    # ---------------------------------------------------------------------------------------------------------- whole

    def _fallback(self, settings: Mapping[str, Any], where: RecipePath) -> Any:
        self._reader.keep_known(settings, ("fallback",), where, "a fallback, whose crystals have their own settings")
        members = settings["fallback"]
        if not isinstance(members, list) or len(members) < 2:
            text = "fallback: expected a list of at least two crystals, the first one first"
            self._reader.wrong((*where, "fallback"), text)
            return None
        crystals = [self._member(member, (*where, "fallback", at)) for at, member in enumerate(members)]
        return fallback(*crystals) if all(crystal is not None for crystal in crystals) else None

    def _member(self, value: Any, where: RecipePath) -> Any:
        with self._reader.at(where):
            if isinstance(value, str):
                return self._named(value)
            if isinstance(value, dict) and "model" in value:
                return self.read(value, where)
            raise InvalidCantrip('expected "family:model", or a mapping with `model`')
        return None

    def _model(self, written: Mapping[str, Any], where: RecipePath) -> Any:
        reader, before = self._reader, len(self._reader.mistakes)
        known_settings = reader.keep_known(written, (*_SETTINGS, *_TERMS), where, "a crystal")
        settings = reader.keep_typed(
            {name: value for name, value in known_settings.items() if name in _SETTINGS}, {**_KINDS, **_PLACES}, where
        )
        for name, read in self._readers().items():
            if name in settings:
                value = settings.pop(name)
                with reader.at((*where, name)):
                    settings[name] = read(value, (*where, name))
        crystal = self._of_family(settings, written, where, is_sound=len(reader.mistakes) == before)
        return self.put_on_terms(crystal, known_settings, where)

    def _of_family(
        self, settings: dict[str, Any], written: Mapping[str, Any], where: RecipePath, *, is_sound: bool
    ) -> Any:
        reader, model = self._reader, settings.pop("model", None)
        if not isinstance(model, str):
            text = 'model: expected "family:model", such as "anthropic:claude-sonnet-5-5"'
            reader.wrong((*where, "model"), text)
            return None
        family, _, rest = model.partition(":")
        make = _MADE_BY.get(family)
        if make is None:
            for name in settings:
                families = ", ".join(_MADE_BY)
                reader.wrong((*where, name), f'{name} is for models of providers ({families}), and not for "{family}"')
            return None if settings or not is_sound else self._named(model)
        if family not in _CACHING and "cache" in written:
            text = f'cache: only {", ".join(_CACHING)} are told how long to keep a prompt, not "{family}"'
            reader.wrong((*where, "cache"), text)
            return None
        if family == "local" and "@" in rest:
            if "base_url" in settings:
                reader.wrong((*where, "base_url"), "base_url: the model names an address already: give one of them")
                return None
            rest, _, settings["base_url"] = rest.partition("@")
        return reader.make(partial(make, rest), settings, where)

    # ---------------------------------------------------------------------------------------------------------- parts

    def _readers(self) -> Mapping[str, Callable[[Any, RecipePath], Any]]:
        """The settings that a recipe writes in its own way, each with what reads it."""
        return {
            "base_url": self._address,
            "api_key": self._key,
            "headers": self._headers,
            "timeouts": lambda value, at: self._reader.part(Timeouts, value, at),
            "prices": self._prices,
            "record": lambda value, _: find_path(self._reader.folder, value),
            "cache": lambda value, _: None if value == "none" else value,
            "context_window": self._tokens,
        }

    def _tokens(self, tokens: int, _: RecipePath) -> int:
        if tokens <= 0:
            raise InvalidCantrip(f"context_window: expected a number of tokens > 0, got {tokens}")
        return tokens

    def _address(self, address: str, _: RecipePath) -> str:
        if not address.startswith(("http://", "https://")):
            raise InvalidCantrip('base_url: expected "http://…" or "https://…"')
        if "@" in address.partition("//")[2].partition("/")[0]:
            text = "base_url: a name and a password have no place in it: use headers: {authorization: …}"
            raise InvalidCantrip(text)
        return address

    def _key(self, value: Any, _: RecipePath) -> EnvironmentKey:
        variable = self._variable(value)
        if variable is None:  # the message does not repeat what was written there instead
            raise InvalidCantrip("api_key: a key has no place in a recipe: expected {env: VARIABLE}")
        return EnvironmentKey(variable)

    def _headers(self, written: Any, where: RecipePath) -> Mapping[str, str]:
        if not isinstance(written, dict):
            raise InvalidCantrip("headers: expected a mapping of names to texts, or to {env: VARIABLE}")
        headers: dict[str, str] = {}
        for name, value in written.items():
            with self._reader.at((*where, name)):
                headers[name] = self._header(name, value)
        return headers

    def _header(self, name: str, value: Any) -> str:
        variable = self._variable(value, "prefix")
        if variable is not None:
            if not (text := os.environ.get(variable)):
                raise InvalidCantrip(f"headers: {name}: the environment has no {variable}")
            return f"{value.get('prefix', '')}{text}"
        if not isinstance(value, str):
            raise InvalidCantrip(f"headers: {name}: expected a text, or {{env: VARIABLE, prefix: TEXT}}")
        if _SECRET.search(name) or redact_words(value) != value:
            raise InvalidCantrip(f"headers: {name}: a key has no place in a recipe: expected {{env: VARIABLE}}")
        return value

    @staticmethod
    def _variable(value: Any, *more: str) -> str | None:
        """Return the variable that `{env: NAME}` names."""
        if not isinstance(value, dict) or value.keys() - {"env", *more}:
            return None
        if not all(isinstance(value.get(name, ""), str) for name in more):
            return None
        name = value.get("env")
        return name if isinstance(name, str) and _VARIABLE.fullmatch(name) else None

    def _prices(self, value: Any, _: RecipePath) -> Prices:
        """Return the prices of a file, or those that the recipe has."""
        if isinstance(value, str):
            return Prices.load(find_path(self._reader.folder, value))
        if isinstance(value, dict):
            return Prices(value)
        raise InvalidCantrip("prices: expected a TOML file, or a mapping such as {my-model: {input: 0.5, output: 2}}")
