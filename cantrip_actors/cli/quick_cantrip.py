"""A cantrip that is described by options alone: `cantrip cast "…" --crystal … --gate read=DIR`, without a recipe."""

from __future__ import annotations

import os
from collections.abc import Sequence

from cantrip_actors import Call, Cantrip, Circle, Gate, InvalidCantrip
from cantrip_actors.gates import standard
from cantrip_actors.wards import max_turns


def make_quick_cantrip(name: str, crystal: str, gates: Sequence[str], system: str | None, turns: int) -> Cantrip:
    """Return a cantrip with a crystal, `done` and these gates. Raises InvalidCantrip."""
    own = ["background" if text == "background" else _read_gate(text) for text in gates]
    circle = Circle(["done", *own], [max_turns(turns)])
    return Cantrip(crystal, Call(system), circle, name=name)


def refuse_options(gates: Sequence[str], system: str | None) -> None:
    """Raise InvalidCantrip for options that describe a cantrip beside a recipe, which describes one, too."""
    if gates or system is not None:
        raise InvalidCantrip("--gate and --system describe a cantrip without a recipe: change the recipe instead")


def _read_gate(text: str) -> Gate:
    name, has_folder, folder = text.partition("=")
    gate = standard(name)
    needs_folder = "root" in gate.injected
    if needs_folder != bool(has_folder):
        expected = f"{name}=DIR, with the folder that it may use" if needs_folder else f"{name}, without a folder"
        raise InvalidCantrip(f"--gate: expected {expected}, got {text!r}")
    if not needs_folder:
        return gate
    if not os.path.isdir(folder):  # noqa: PTH112  # Path.is_dir raises for a text that is too long for a path
        raise InvalidCantrip(f"--gate: expected a folder for {name}, got {folder!r}")
    return gate.with_(root=folder)
