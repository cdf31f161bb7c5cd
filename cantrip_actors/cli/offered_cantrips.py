"""The cantrips that a dry run offers: recipes, cantrips in Python modules, or the recipes in the sidecar of a loom."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from cantrip_actors import Cantrip
from cantrip_actors.cli.errors import UnknownRecipe
from cantrip_actors.cli.recipe_sidecar import known_recipes
from cantrip_actors.recipes import load_recipe
from cantrip_actors.redact.urls import render_url


def load_cantrips(url: str, given: Sequence[str]) -> list[Cantrip]:
    """Return the cantrips named by `given`, paths of recipes or `module:attribute`; without any, those of the sidecar.

    Raises UnknownRecipe if a recipe or the cantrip of a module does not exist; InvalidRecipe for a broken recipe.
    """
    if given:
        return [_load_cantrip(one) for one in given]
    paths = known_recipes(url)
    if not paths:
        raise UnknownRecipe(f"no recipe is noted for {render_url(url)}: say which cantrips to offer, --recipe RECIPE")
    return [load_recipe(path) for path in paths]


def _load_cantrip(given: str) -> Cantrip:
    module, _, attribute = given.partition(":")
    if not attribute or Path(given).exists():
        return load_recipe(Path(given))
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does, so that a module in this folder is found
    try:
        found = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise UnknownRecipe(f"{given}: cannot import {module}: {error}") from error
    if not isinstance(found, Cantrip):
        raise UnknownRecipe(f"{given}: expected a cantrip, got {type(found).__name__}")
    return found
