"""The argument with which a command takes a cantrip: the path of a recipe, or `module:attribute`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from cantrip_actors import Cantrip
from cantrip_actors.cli.errors import UnknownRecipe
from cantrip_actors.recipes import load_recipe
from cantrip_actors.terms.errors import suggest_nearest


def is_module_source(source: str) -> bool:
    """Return whether a source names a value of a Python module, and not a file."""
    module, _, attribute = source.partition(":")
    return bool(attribute) and all(map(str.isidentifier, module.split("."))) and not Path(source).exists()


def load_cantrip(source: str) -> Cantrip:
    """Return the cantrip that a source names.

    Raises UnknownRecipe if the module has no such cantrip, InvalidRecipe for a broken or missing recipe.
    """
    module, _, attribute = source.partition(":")
    if module.endswith(".py"):
        raise UnknownRecipe(
            f"{source}: a cantrip in Python is named by its module and its variable: "
            f"{Path(module).stem}:{attribute or 'VARIABLE'}"
        )
    if not is_module_source(source):
        return load_recipe(Path(source))
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does, so that a module in this folder is found
    try:
        imported = import_module(module)
    except ImportError as error:
        raise UnknownRecipe(f"{source}: cannot import {module}: {error}") from error
    if not hasattr(imported, attribute):
        cantrips = [name for name, value in vars(imported).items() if isinstance(value, Cantrip)]
        raise UnknownRecipe(f'{source}: {module} has no "{attribute}": {suggest_nearest(attribute, cantrips)}')
    value = getattr(imported, attribute)
    if not isinstance(value, Cantrip):
        raise UnknownRecipe(f"{source}: expected a cantrip, got {type(value).__name__}")
    return value
