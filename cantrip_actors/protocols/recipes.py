"""Which recipe a cantrip came from, so that an entity can be woken by its name alone.

A loom knows a cantrip by an id that is made of its content, and nothing of files. So beside a loom that is a file lies
another, `loom.db.recipes.json`: ids and the paths of recipes, from its own folder. It is a convenience. Whoever has
lost it, or moved a recipe, gives the recipe again.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from urllib.parse import unquote

from cantrip_actors import Cantrip, InvalidCantrip
from cantrip_actors.model.turn import Header
from cantrip_actors.protocols.recipe import load_recipe

__all__ = ["UnknownRecipe", "recipe_of", "remember"]


class UnknownRecipe(InvalidCantrip):
    """Nobody knows the recipe of an entity any more."""


def remember(url: str, cantrip: Cantrip, recipe: Path, *, entity: str | None = None) -> None:
    """Note beside the loom at `url` which recipe `cantrip` came from, and that `entity` goes on with it."""
    notes = _notes(url)
    if notes is None:
        return
    known = _known(notes)
    path = os.path.relpath(recipe.absolute(), notes.parent.absolute())
    now = {**known, cantrip.id: path, **({} if entity is None else {entity: cantrip.id})}
    if now != known:
        new = notes.with_name(f"{notes.name}.{os.getpid()}")  # replaced as a whole: another process may be reading
        with contextlib.suppress(OSError):  # a note that cannot be made is no reason not to work
            new.write_text(json.dumps(now, indent=2) + "\n", encoding="utf-8")
            new.replace(notes)


def recipe_of(url: str, header: Header, given: Cantrip | None = None, recipe: Path | None = None) -> Cantrip:
    """The cantrip that an entity goes on with: the `given` one, of `recipe`, which is noted; or that of the last one.

    Raises UnknownRecipe where that recipe is not known, or is another one by now; InvalidRecipe where it is broken.
    """
    if given is not None and recipe is not None:
        remember(url, given, recipe, entity=header.entity_id)
        return given
    who = f'entity "{header.name or header.entity_id[-8:]}"'
    notes = _notes(url)
    known = {} if notes is None else _known(notes)
    made_with = known.get(header.entity_id, header.cantrip_id)
    path = known.get(made_with)
    if notes is None or path is None:
        raise UnknownRecipe(f"the recipe of {who} is not known here: give it, --recipe RECIPE")
    recipe = Path(os.path.normpath(notes.parent / path))
    if not recipe.exists():
        raise UnknownRecipe(f"the recipe of {who} was {recipe}, which is gone: give it, --recipe RECIPE")
    cantrip = load_recipe(recipe)
    if cantrip.id != made_with:
        raise UnknownRecipe(
            f"the recipe of {who} has changed since: to go on with it as it is now, give it, --recipe {recipe}"
        )
    return cantrip


def _notes(url: str) -> Path | None:
    """The file of notes of a loom; None for one that is no file."""
    kind, _, rest = url.partition(":")
    path = rest.partition("?")[0] if kind in ("sqlite", "jsonl") else ""
    if not path and url.endswith((".db", ".sqlite", ".jsonl")) and kind not in ("postgresql", "postgres"):
        path = url
    return Path(f"{unquote(path)}.recipes.json") if path else None


def _known(notes: Path) -> dict[str, str]:
    try:
        known = json.loads(notes.read_text(encoding="utf-8"))
    except (
        OSError,
        json.JSONDecodeError,
        UnicodeDecodeError,
    ):  # none yet, or nobody can read it
        return {}
    return {str(id): str(path) for id, path in known.items()} if isinstance(known, dict) else {}
