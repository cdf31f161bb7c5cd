"""The argument with which a command takes a cantrip: the path of a recipe, or `module:attribute`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cantrip_actors import Cantrip, InvalidCantrip
from cantrip_actors.cli.errors import UnknownRecipe
from cantrip_actors.recipes import load_recipe
from cantrip_actors.terms.imports import import_part


def is_module_source(source: str) -> bool:
    """Return whether a source names a value of a Python module, and not a file."""
    module, _, attribute = source.partition(":")
    is_file = os.path.exists(source)  # noqa: PTH110  # Path.exists raises for a text that is too long for a path
    return bool(attribute) and all(map(str.isidentifier, module.split("."))) and not is_file


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
        value = import_part(source, source, lambda value: isinstance(value, Cantrip))
    except InvalidCantrip as error:
        raise UnknownRecipe(str(error)) from error
    if not isinstance(value, Cantrip):
        raise UnknownRecipe(f"{source}: expected a cantrip, got {type(value).__name__}")
    return value
