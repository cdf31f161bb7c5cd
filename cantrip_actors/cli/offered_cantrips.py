"""The cantrips that a command offers: recipes, cantrips in Python modules, or the recipes in the sidecar of a loom."""

from __future__ import annotations

from collections.abc import Sequence

from cantrip_actors import Cantrip, InvalidCantrip
from cantrip_actors.cli.cantrip_source import load_cantrip
from cantrip_actors.cli.errors import UnknownRecipe
from cantrip_actors.cli.recipe_sidecar import list_recipes
from cantrip_actors.redact.urls import render_url


def load_cantrips(url: str, names: Sequence[str], *, are_chosen: bool = False) -> list[Cantrip]:
    """Return the cantrips named by `names`, paths of recipes or `module:attribute`; without any, those of the sidecar.

    With `are_chosen` clients choose one by its name, so each needs one.

    Raises UnknownRecipe if a recipe or the cantrip of a module does not exist; InvalidRecipe for a broken recipe;
    InvalidCantrip for a missing name, and for two cantrips of one name.
    """
    sources = names or list_recipes(url)
    if not sources:
        raise UnknownRecipe(f"no recipe is noted for {render_url(url)}: say which cantrips to offer, by their RECIPE")
    loaded, named = [], dict[str, str]()
    for source in sources:
        cantrip = load_cantrip(source)
        loaded.append(cantrip)
        name = cantrip.name
        if name is None:
            if are_chosen:
                raise InvalidCantrip(
                    f"{source}: clients choose a cantrip by its name, and this one has none: add `name`"
                )
        elif name in named:
            raise InvalidCantrip(f'{source}: expected another name than "{name}", which {named[name]} has')
        else:
            named[name] = source
    return loaded
