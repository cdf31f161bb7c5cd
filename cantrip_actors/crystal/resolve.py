"""Returns the crystal of a name: `"family:rest"`, as in recipes and `Cantrip(crystal="…")`.

A family is one row of `FAMILIES`. An object with `invoke` is already a crystal, and is returned unchanged.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from cantrip_actors.crystal.scripted import scripted
from cantrip_actors.terms.crystal import Crystal
from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest
from cantrip_actors.terms.imports import import_part
from cantrip_actors.terms.yaml_text import load_yaml


def resolve(crystal: Crystal | str) -> Crystal:
    """Return the crystal for this name; an object is returned unchanged.

    `"scripted:FILE"` is a scripted crystal with the responses of a YAML or JSON file: a list, or a mapping with
    `responses` and other arguments of `scripted`. `"python:module:name"` is an object with `invoke`, a class of such,
    or a function of the context. `"anthropic:MODEL"`, `"openai:MODEL"` (Responses), `"openai-chat:MODEL"`,
    `"google:MODEL"`, `"openrouter:MODEL"`, `"xai:MODEL"`, `"mistral:MODEL"` and `"cohere:MODEL"` are models of
    providers, with keys from the environment; `"bedrock:MODEL"`, `"vertex:MODEL"` and `"azure:DEPLOYMENT"` are those of
    clouds, with the credentials that their tools leave; `"ollama:MODEL@URL"` is a model of an Ollama server,
    `"local:MODEL@URL"` one of a server with Chat Completions (Ollama's address on this machine if left out),
    `"replay:FILE"` a recording. `"batch:anthropic:MODEL"` is a crystal whose queries go in batches, at half price, and
    `"background:openai:MODEL"` one that answers in the background.

    Raises InvalidCantrip for an unknown family, and if the named object does not exist or is not a crystal.
    """
    if not isinstance(crystal, str):
        return crystal
    family, _, rest = crystal.partition(":")
    make = FAMILIES.get(family)
    if make is None:
        raise InvalidCantrip(f'no crystal family "{family}" (in "{crystal}"): {suggest_nearest(family, FAMILIES)}')
    if not rest:
        raise InvalidCantrip(f'crystal "{crystal}": expected something after "{family}:"')
    return make(rest)


def _load_script(file: str) -> Crystal:
    try:
        script = load_yaml(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidCantrip(f'crystal "scripted:{file}": cannot read the file: {error.strerror}') from error
    except ValueError as error:
        raise InvalidCantrip(f'crystal "scripted:{file}": neither YAML nor JSON: {error}') from error
    settings: dict[str, Any] = {}
    if isinstance(script, Mapping):
        settings = dict(script)
        script = settings.pop("responses", None)
        names = ("usage", "name", "context_window")
        for name in settings:
            if name not in names:
                hint = suggest_nearest(str(name), {*names, "responses"})
                raise InvalidCantrip(f'crystal "scripted:{file}": unknown key "{name}": {hint}')
    if not isinstance(script, list):
        raise InvalidCantrip(f'crystal "scripted:{file}": expected a list of responses, or a mapping that has one')
    try:
        return scripted(script, **{"name": f"scripted:{Path(file).name}", **settings})
    except InvalidCantrip as error:
        raise InvalidCantrip(f'crystal "scripted:{file}": {error}') from error


def _import_crystal(path: str) -> Crystal:
    if not all(path.partition(":")):
        raise InvalidCantrip(f'crystal "python:{path}": expected "python:module:name"')
    target = import_part(path, f'crystal "python:{path}"')
    if isinstance(target, type) and callable(getattr(target, "invoke", None)):
        target = target()
    if callable(getattr(target, "invoke", None)):
        crystal: Crystal = target
        return crystal
    if callable(target) and not isinstance(target, type):
        return scripted(target, name=f"python:{path}")
    raise InvalidCantrip(
        f'crystal "python:{path}": expected an object with invoke, or a function of the context, '
        f"got {type(target).__name__}"
    )


def _make_factory(maker: str, module: str = "constructors", **settings: Any) -> Callable[[str], Crystal]:
    """Return a function that makes a crystal with a function of a module, which is imported when it is first needed."""

    def make(rest: str) -> Crystal:
        make_crystal = getattr(importlib.import_module(f"cantrip_actors.crystal.{module}"), maker)
        crystal: Crystal = make_crystal(rest, **settings)
        return crystal

    return make


def _make_local(rest: str) -> Crystal:
    model, at, address = rest.partition("@")
    return _make_factory("local", model=model)(address if at else "http://localhost:11434/v1")


def _make_ollama(rest: str) -> Crystal:
    model, at, address = rest.partition("@")
    return _make_factory("ollama", base_url=address if at else None)(model)


FAMILIES: Final[Mapping[str, Callable[[str], Crystal]]] = {
    "scripted": _load_script,
    "python": _import_crystal,
    "anthropic": _make_factory("anthropic"),
    "openai": _make_factory("openai"),
    "openai-chat": _make_factory("openai", chat=True),
    "google": _make_factory("google"),
    "openrouter": _make_factory("openrouter"),
    "xai": _make_factory("xai"),
    "mistral": _make_factory("mistral"),
    "cohere": _make_factory("cohere"),
    "bedrock": _make_factory("bedrock", "clouds"),
    "vertex": _make_factory("vertex", "clouds"),
    "azure": _make_factory("azure", "clouds"),
    "batch": _make_factory("batched", "policy.batched"),
    "background": _make_factory("background", "policy.background"),
    "ollama": _make_ollama,
    "local": _make_local,
    "replay": _make_factory("replay", "replay"),
}
"""The families, each with the function that makes a crystal from the rest of the name."""
