"""The sidecar of a loom that remembers recipes, so that an entity can be resumed by its name alone.

A loom knows a cantrip by an id that is made of its content, and knows no files. So a loom that is a file has a sidecar,
`loom.db.recipes.json`, with ids and the paths of recipes relative to its folder. Of a cantrip in a Python module it has
`module:attribute`. It is a convenience: if it is lost, or a recipe has moved, the user gives the recipe again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from cantrip_actors import Cantrip
from cantrip_actors.cli.cantrip_source import is_module_source, load_cantrip
from cantrip_actors.cli.errors import UnknownRecipe
from cantrip_actors.own_files.modes import private
from cantrip_actors.recipes.document import SUFFIXES
from cantrip_actors.records.records import Header


def remember(url: str, cantrip: Cantrip, recipe: str | os.PathLike[str], *, entity: str | None = None) -> None:
    """Note in the sidecar of the loom at `url` the recipe of `cantrip`, and that `entity` continues with it."""
    notes = _find_sidecar(url)
    if notes is None:
        return
    path = os.fspath(recipe)
    if not is_module_source(path):
        path = os.path.relpath(Path(path).absolute(), notes.parent.absolute())
    with contextlib.suppress(OSError), _lock(notes.parent):  # the run does not depend on the sidecar
        noted = _read(notes)
        now = {**noted, cantrip.id: path, **({} if entity is None else {entity: cantrip.id})}
        if now != noted:
            new = notes.with_name(f"{notes.name}.new")  # replaced atomically, because another process may be reading
            with open(new, "w", encoding="utf-8", opener=private) as file:
                file.write(json.dumps(now, indent=2) + "\n")
            new.replace(notes)


def recipe_of(url: str, header: Header, offered: Cantrip | None = None, recipe: str | None = None) -> Cantrip:
    """Return the cantrip that an entity continues with: `offered`, of `recipe`, which is noted, or the last one.

    Raises UnknownRecipe if its recipe is not known or has changed, InvalidRecipe if the recipe is broken.
    """
    if offered is not None and recipe is not None:
        remember(url, offered, recipe, entity=header.entity_id)
        return offered
    who = f'entity "{header.name or header.entity_id[-8:]}"'
    notes = _find_sidecar(url)
    noted = {} if notes is None else _read(notes)
    made_with = noted.get(header.entity_id, header.cantrip_id)
    path = noted.get(made_with)
    if notes is None or path is None:
        raise UnknownRecipe(f"the recipe of {who} is not known here: give it, --recipe RECIPE")
    recipe = _find_source(notes, path)
    if not (is_module_source(recipe) or Path(recipe).exists()):
        raise UnknownRecipe(f"the recipe of {who} was {recipe}, which is gone: give it, --recipe RECIPE")
    cantrip = load_cantrip(recipe)
    if cantrip.id != made_with:
        raise UnknownRecipe(
            f"the recipe of {who} has changed since: to continue with it as it is now, give it, --recipe {recipe}"
        )
    return cantrip


def list_recipes(url: str) -> list[str]:
    """Return the sources of the cantrips that are noted for a loom, without recipes that are gone, in their order."""
    notes = _find_sidecar(url)
    if notes is None:
        return []
    # an entity's key has the id of a cantrip as its value, a cantrip's key the source
    noted = {path for path in _read(notes).values() if path.endswith(SUFFIXES) or is_module_source(path)}
    sources = {_find_source(notes, path) for path in noted}
    return sorted(source for source in sources if is_module_source(source) or Path(source).exists())


def _find_source(notes: Path, noted: str) -> str:
    """Return the source that a sidecar notes: a path in it is relative to the folder of the loom."""
    return noted if is_module_source(noted) else os.path.normpath(notes.parent / noted)


def _find_sidecar(url: str) -> Path | None:
    """Return the sidecar of a loom, None for a loom that is not a file."""
    kind, _, rest = url.partition(":")
    path = rest.partition("?")[0] if kind in ("sqlite", "jsonl") else ""
    if not path and url.endswith((".db", ".sqlite", ".jsonl")) and kind not in ("postgresql", "postgres"):
        path = url
    return Path(f"{unquote(path)}.recipes.json") if path else None


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let no other process change a sidecar in this folder during the block."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _read(notes: Path) -> dict[str, str]:
    try:
        noted = json.loads(notes.read_text(encoding="utf-8"))
    except (
        OSError,
        json.JSONDecodeError,
        UnicodeDecodeError,
    ):  # the sidecar is missing or broken
        return {}
    return {str(id): str(path) for id, path in noted.items()} if isinstance(noted, dict) else {}
