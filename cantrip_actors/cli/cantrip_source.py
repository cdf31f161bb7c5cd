"""What a command takes from files: a cantrip, the path of a recipe or `module:attribute`, and `module:function`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cantrip_actors import Cantrip, InvalidCantrip
from cantrip_actors.cli.errors import UnknownRecipe
from cantrip_actors.recipes import load_recipe
from cantrip_actors.terms.episode_scope import Provide
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
    value = _import_source(source, lambda value: isinstance(value, Cantrip))
    if not isinstance(value, Cantrip):
        raise UnknownRecipe(f"{source}: expected a cantrip, got {type(value).__name__}")
    return value


def load_dependencies(source: str | None) -> Provide | None:
    """Return the function that `module:function` names, which provides dependencies; None for None.

    Raises UnknownRecipe if the module has no such function.
    """
    if source is None:
        return None
    provide: Provide = _import_source(source, callable)
    if not callable(provide):
        raise UnknownRecipe(f"{source}: expected a function of an EpisodeScope, got {type(provide).__name__}")
    return provide


def _import_source(source: str, is_listed: Callable[[Any], bool]) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does, so that a module in this folder is found
    try:
        return import_part(source, source, is_listed)
    except InvalidCantrip as error:
        raise UnknownRecipe(str(error)) from error
