"""Recipes: cantrips from YAML and TOML files, for every door.

cantrip = load_recipe("notes.yaml")
"""

from cantrip_actors.recipes.document import InvalidRecipe, Mistake
from cantrip_actors.recipes.recipe import load_recipe

__all__ = ["InvalidRecipe", "Mistake", "load_recipe"]
