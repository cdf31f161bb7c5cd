"""Crystals as recipes write them: a mapping with a model, how it is reached, and on which terms.

    crystal:
      model: anthropic:claude-sonnet-4-5
      api_key: {env: TEAM_KEY}
      limits: {concurrency: 20, tokens_per_minute: 400000}

or `fallback:` with a list of such, or of names. What may be said is what the functions of `families.py` and `limited`
take. Everything that is wrong with one is found at once; a part is checked by the class it becomes. No key stands in a
recipe: what is secret is named, and the environment has it.

Two mappings of one recipe that say the same are one crystal: whoever writes the limits of one account twice has not
two accounts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from cantrip_actors.crystal.client import EnvironmentKey
from cantrip_actors.crystals import (
    Breaker,
    Hedge,
    Limits,
    Prices,
    Timeouts,
    anthropic,
    fallback,
    google,
    limited,
    local,
    openai,
    openrouter,
)
from cantrip_actors.model.errors import InvalidCantrip, nearest
from cantrip_actors.protocols.document import Where, redacted

__all__ = ["Crystals"]

Wrong = Callable[[Where, str], None]

_TERM_PARTS: Final[Mapping[str, type[Any]]] = {"limits": Limits, "breaker": Breaker, "hedge": Hedge}
TERMS: Final = frozenset({*_TERM_PARTS, "deadline"})
"""The keys that any crystal may have."""

SETTINGS: Final = frozenset(
    {
        "base_url",
        "api_key",
        "headers",
        "timeouts",
        "prices",
        "context_window",
        "tools",
        "images",
        "record",
        "name",
        "cache",
    }
)
"""The keys of a provider's model."""

_LOCAL: Final = "http://localhost:11434/v1"
_MADE_BY: Final[Mapping[str, Callable[..., Any]]] = {
    "anthropic": anthropic,
    "openai": openai,
    "openai-chat": partial(openai, chat=True),
    "google": google,
    "openrouter": openrouter,
    "local": lambda model, *, base_url=_LOCAL, **settings: local(base_url, model, **settings),
}
_SECRET: Final = re.compile(r"auth|key|token|secret|cookie|password|credential", re.IGNORECASE)
_FIELD: Final = re.compile(r"\s*(\w+)")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Crystals:
    """Makes crystals of what one recipe says. `named` makes one of a name, `wrong` notes a mistake at its place."""

    def __init__(self, folder: Path, named: Callable[[str], Any], wrong: Wrong) -> None:
        self._folder = folder
        self._named = named
        self._wrong = wrong
        self._made: dict[str, Any] = {}

    def of(self, said: Mapping[str, Any], where: Where) -> Any:
        """The crystal that a mapping with `model` or `fallback` says, None where there is a mistake in it.

        Raises InvalidCantrip for what is wrong with it as a whole.
        """
        key = json.dumps(said, sort_keys=True, default=repr)
        if key not in self._made:
            self._made[key] = self._fallback(said, where) if "fallback" in said else self._one(said, where)
        return self._made[key]

    def on_terms(self, crystal: Any, said: Mapping[str, Any], where: Where) -> Any:
        """The crystal on the terms of a mapping, None where one of them is wrong."""
        terms = self._terms(said, where)
        return None if terms is None else limited(crystal, **terms) if terms else crystal

    def _terms(self, said: Mapping[str, Any], where: Where) -> dict[str, Any] | None:
        terms: dict[str, Any] = {}
        fine = True
        for name, kind in _TERM_PARTS.items():
            if said.get(name) is not None:
                terms[name] = self._part(name, kind, said[name], (*where, name))
                fine = fine and terms[name] is not None
        if said.get("deadline") is not None:
            terms["deadline"] = said["deadline"]
            if not _is_number(said["deadline"]) or said["deadline"] <= 0:
                self._wrong((*where, "deadline"), f"deadline: expected seconds > 0, got {said['deadline']!r}")
                fine = False
        return terms if fine else None

    # ---------------------------------------------------------------------------------------------------------- whole

    def _fallback(self, said: Mapping[str, Any], where: Where) -> Any:
        self._unknown(said, where, {"fallback"}, "a fallback, whose crystals have their own settings")
        members = said["fallback"]
        if not isinstance(members, list) or len(members) < 2:
            self._wrong((*where, "fallback"), "fallback: expected a list of at least two crystals, the first one first")
            return None
        made = [self._member(one, (*where, "fallback", at)) for at, one in enumerate(members)]
        return fallback(*made) if all(one is not None for one in made) else None

    def _member(self, said: Any, where: Where) -> Any:
        try:
            if isinstance(said, str):
                return self._named(said)
            if isinstance(said, dict) and "model" in said:
                return self.of(said, where)
        except InvalidCantrip as error:
            self._wrong(where, str(error))
            return None
        self._wrong(where, 'expected "family:model", or a mapping with `model`')
        return None

    def _one(self, said: Mapping[str, Any], where: Where) -> Any:
        model = said.get("model")
        self._unknown(said, where, {"model"} | SETTINGS | TERMS, "a crystal")
        terms = self._terms(said, where)
        settings, fine = self._settings(said, where)
        if not isinstance(model, str):
            self._wrong((*where, "model"), 'model: expected "family:model", such as "anthropic:claude-sonnet-4-5"')
            return None
        family, _, rest = model.partition(":")
        make = _MADE_BY.get(family)
        if make is None and settings:
            for name in settings:
                known = ", ".join(_MADE_BY)
                self._wrong((*where, name), f'{name} is for models of providers ({known}), and not for "{family}"')
            return None
        if family != "anthropic" and "cache" in said:
            self._wrong((*where, "cache"), f'cache: only Anthropic is told how long to keep a prompt, not "{family}"')
            return None
        if family == "local" and "@" in rest and "base_url" in said:
            self._wrong((*where, "base_url"), "base_url: the model names an address already: say one of them")
            return None
        if family == "local" and "@" in rest:
            rest, _, settings["base_url"] = rest.partition("@")
        if terms is None or not fine:
            return None
        crystal = self._named(model) if make is None else make(rest, **settings)
        return limited(crystal, **terms) if terms else crystal

    def _unknown(self, said: Mapping[str, Any], where: Where, known: frozenset[str] | set[str], of: str) -> None:
        for name in said:
            if name not in known:
                self._wrong((*where, name), f'unknown key "{redacted(str(name))}" of {of}: {nearest(str(name), known)}')

    # ---------------------------------------------------------------------------------------------------------- parts

    def _settings(self, said: Mapping[str, Any], where: Where) -> tuple[dict[str, Any], bool]:
        """The settings of a provider's model, and whether all of them are right."""
        readers: Mapping[str, Callable[[Any, Where], Any]] = {
            "base_url": self._address,
            "api_key": self._key,
            "headers": self._headers,
            "timeouts": lambda value, at: self._part("timeouts", Timeouts, value, at),
            "prices": self._prices,
            "context_window": self._tokens,
            "tools": partial(self._choice, ("native", "schema")),
            "images": self._switch,
            "record": self._file,
            "name": self._text,
            "cache": partial(self._choice, ("5m", "1h", "none")),
        }
        made: dict[str, Any] = {}
        fine = True
        for name, read in readers.items():
            if said.get(name) is not None:
                made[name] = read(said[name], (*where, name))
                fine = fine and made[name] is not None
        if made.get("cache") == "none":
            made["cache"] = None
        return made, fine

    def _part(self, name: str, kind: type[Any], said: Any, where: Where) -> Any:
        """A part that is a class of its own, each of whose fields is a key."""
        fields = kind.__dataclass_fields__
        if not isinstance(said, dict):
            self._wrong(where, f"{name}: expected a mapping, such as {{{next(iter(fields))}: …}}")
            return None
        before = len(said)
        given = {field: value for field, value in said.items() if field in fields and value is not None}
        self._unknown(said, where, set(fields), name)
        refused = False
        for field, value in given.items():  # one by one, so that each is told in its own line
            try:
                kind(**{field: value})
            except InvalidCantrip as error:
                refused = True
                self._wrong((*where, field), str(error))
        if refused or before > len([field for field in said if field in fields]):
            return None
        try:
            return kind(**given)
        except InvalidCantrip as error:
            self._wrong(where, str(error))
            return None

    def _address(self, said: Any, where: Where) -> str | None:
        if isinstance(said, str) and said.startswith(("http://", "https://")):
            if "@" not in said.partition("//")[2].partition("/")[0]:
                return said
            self._wrong(where, "base_url: a name and a password have no place in it: say headers: {authorization: …}")
            return None
        self._wrong(where, 'base_url: expected "http://…" or "https://…"')
        return None

    def _key(self, said: Any, where: Where) -> EnvironmentKey | None:
        variable = self._variable(said)
        if variable is None:  # and what was written there instead is not repeated
            self._wrong(where, "api_key: a key has no place in a recipe: expected {env: VARIABLE}")
        return None if variable is None else EnvironmentKey(variable)

    def _headers(self, said: Any, where: Where) -> Mapping[str, str] | None:
        if not isinstance(said, dict):
            self._wrong(where, "headers: expected a mapping of names to texts, or to {env: VARIABLE}")
            return None
        made = {name: self._header(name, value, (*where, name)) for name, value in said.items()}
        return {name: text for name, text in made.items() if text is not None} if None not in made.values() else None

    def _header(self, name: str, said: Any, where: Where) -> str | None:
        variable = self._variable(said, "prefix")
        if variable is not None:
            text = os.environ.get(variable)
            if text:
                return f"{said.get('prefix', '')}{text}"
            self._wrong(where, f"headers: {name}: the environment has no {variable}")
        elif not isinstance(said, str):
            self._wrong(where, f"headers: {name}: expected a text, or {{env: VARIABLE, prefix: TEXT}}")
        elif _SECRET.search(name) or redacted(said) != said:
            self._wrong(where, f"headers: {name}: a key has no place in a recipe: expected {{env: VARIABLE}}")
        else:
            return said
        return None

    @staticmethod
    def _variable(said: Any, *more: str) -> str | None:
        """The variable that `{env: NAME}` names."""
        if not isinstance(said, dict) or said.keys() - {"env", *more}:
            return None
        if not all(isinstance(said.get(name, ""), str) for name in more):
            return None
        name = said.get("env")
        return name if isinstance(name, str) and _VARIABLE.fullmatch(name) else None

    def _prices(self, said: Any, where: Where) -> Prices | None:
        """A file of prices, or the prices themselves."""
        try:
            if isinstance(said, str):
                return Prices.load(self._folder / Path(said).expanduser())
            if isinstance(said, dict):
                return Prices(said)
        except InvalidCantrip as error:
            self._wrong(where, str(error))
            return None
        self._wrong(where, "prices: expected a TOML file, or a mapping such as {my-model: {input: 0.5, output: 2}}")
        return None

    def _tokens(self, said: Any, where: Where) -> int | None:
        if isinstance(said, int) and not isinstance(said, bool) and said > 0:
            return said
        self._wrong(where, f"{where[-1]}: expected a number of tokens > 0, got {said!r}")
        return None

    def _choice(self, known: tuple[str, ...], said: Any, where: Where) -> str | None:
        if isinstance(said, str) and said in known:
            return said
        self._wrong(where, f"{where[-1]}: expected {' or '.join(known)}, got {redacted(str(said))!r}")
        return None

    def _switch(self, said: Any, where: Where) -> bool | None:
        if isinstance(said, bool):
            return said
        self._wrong(where, f"{where[-1]}: expected true or false, got {redacted(str(said))!r}")
        return None

    def _file(self, said: Any, where: Where) -> Path | None:
        if isinstance(said, str) and said:
            return self._folder / Path(said).expanduser()
        self._wrong(where, f"{where[-1]}: expected a file's path")
        return None

    def _text(self, said: Any, where: Where) -> str | None:
        if isinstance(said, str) and said:
            return said
        self._wrong(where, f"{where[-1]}: expected a text")
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
