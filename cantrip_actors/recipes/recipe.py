"""Recipes: a cantrip as a YAML or TOML file.

A recipe has the words of `Cantrip(…)`. Every mistake in one is reported at once, with its line
(`InvalidRecipe.mistakes`). Paths in a recipe are relative to its folder, and so are the modules that `python:` names.

This file decides nothing about cantrips: the classes that the parts become validate them. It handles what only a file
can say: names of gates and crystals, folders, and modules of one's own.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cantrip_actors import Call, Cantrip, Circle, Folding, Gate, InvalidCantrip, Retry, ask_first, gate, scripted
from cantrip_actors.own_files.claims import claim_file, hold
from cantrip_actors.recipes.document import Document, InvalidRecipe, RecipePath, read
from cantrip_actors.recipes.reader import RecipeReader, describe, find_path
from cantrip_actors.recipes.tool_servers import tool_server
from cantrip_actors.terms.errors import suggest_nearest
from cantrip_actors.terms.gate import standard
from cantrip_actors.terms.problems import shorten
from cantrip_actors.terms.tool_server import ToolServer
from cantrip_actors.terms.ward import parse
from cantrip_actors.terms.wrapping import Wrap
from cantrip_actors.wards import Ward, Wards

if TYPE_CHECKING:
    from cantrip_actors.recipes.crystals import CrystalReader

__all__ = ["InvalidRecipe", "load_recipe"]


def load_recipe(path: str | os.PathLike[str]) -> Cantrip:
    """Return the cantrip that the recipe at `path` describes. Raises InvalidRecipe.

    If the recipe names Python modules, its folder is put on `sys.path`, as Python does with a script's.
    """
    file = Path(path)
    reader = _RecipeReader(read(file))
    cantrip = reader.cantrip()
    if cantrip is None:
        found = dict.fromkeys(reader.mistakes)
        raise InvalidRecipe(file, sorted(found, key=lambda mistake: mistake.line or 0))
    hold(cantrip, claim_file(file))
    return cantrip


_KEYS: Final = (*(field.name for field in fields(Cantrip) if field.init), "root")
_CIRCLE_KEYS: Final = ("gates", "wards", "medium", "jail")
_SCRIPTED_KINDS: Final = {"usage": dict, "name": str, "context_window": int}
_GATE_KINDS: Final = {
    **dict.fromkeys(("ephemeral", "idempotent", "read_only", "blocking"), bool),
    "visible_for": int,
    "description": str,
    "risks": list,
}
_TERMS: Final = ("limits", "breaker", "hedge", "deadline")
"""The terms of any crystal; see `crystals.py`, which is imported only for a recipe that has one."""

_EXAMPLE: Final = 'expected at least "crystal: …" and "circle: {gates: [done], wards: [{max_turns: 20}]}"'


class _RecipeReader(RecipeReader):
    """Reads a recipe: its values become the parts of a cantrip."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self._root: Path | None = None
        self._crystals: CrystalReader | None = None

    def cantrip(self) -> Cantrip | None:
        """Return the cantrip, or None if there are mistakes."""
        data = self.document.data
        if data is None:
            self.wrong((), f"the recipe is empty: {_EXAMPLE}")
            return None
        if not isinstance(data, dict):
            self.wrong((), f"a recipe is a mapping of keys, not {describe(data)}: {_EXAMPLE}", line=1)
            return None
        kinds = {"name": str, "root": str, "require_done_tool": bool, "crystals": dict, "circle": dict, "needs": dict}
        parts = self.keep_typed(self.keep_known(data, _KEYS, (), ""), kinds, ())
        if "root" in parts:
            self._root = self._check_folder(parts.pop("root"), ("root",))
        parts |= self._crystals_of(parts)
        for key, kind in (("call", Call), ("folding", Folding), ("retry", Retry)):
            if key in parts:
                parts[key] = self.part(kind, parts[key], (key,))
        if data.get("crystal") is None:
            self.wrong((), "cantrip requires a crystal: add for example `crystal: anthropic:claude-sonnet-4-5`")
        if data.get("circle") is None:
            self.wrong((), "cantrip requires a circle: add `circle: {gates: [done], wards: [{max_turns: 20}]}`")
        elif "circle" in parts:
            parts["circle"] = self._circle(self.keep_known(parts["circle"], _CIRCLE_KEYS, ("circle",), "circle"))
        if not self.mistakes:
            with self.at(("circle",)):
                return Cantrip(**parts)
        return None

    # ------------------------------------------------------------------------------------------------------- crystals

    def _crystals_of(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the parts that are crystals or have one."""
        parts: dict[str, Any] = {
            key: self._crystal(given[key], (key,)) for key in ("crystal", "child_crystal") if key in given
        }
        parts["crystals"] = {
            int(name) if name.isdecimal() else name: self._crystal(one, ("crystals", name))
            for name, one in given.get("crystals", {}).items()
        }
        folding = given.get("folding")
        if isinstance(folding, dict) and not isinstance(folding.get("summary", False), bool):
            summary = self._crystal(folding["summary"], ("folding", "summary"))
            parts["folding"] = {**folding, "summary": summary or False}
        return parts

    def _crystal(self, given: Any, where: RecipePath) -> Any:
        with self.at(where):
            if isinstance(given, str):
                return self._find_crystal(given)
            if isinstance(given, dict) and given.keys() & {"model", "fallback"}:
                return self._crystal_reader().read(given, where)
            if isinstance(given, dict) and "scripted" in given:
                names = ("scripted", *_SCRIPTED_KINDS, *_TERMS)
                before = len(self.mistakes)
                known = self.keep_known(given, names, where, "a scripted crystal")
                settings = self.keep_typed(known, _SCRIPTED_KINDS, where)
                if len(self.mistakes) > before:
                    return None
                crystal = scripted(
                    given["scripted"], **{name: settings[name] for name in _SCRIPTED_KINDS if name in settings}
                )
                has_terms = given.keys() & set(_TERMS)
                return self._crystal_reader().put_on_terms(crystal, given, where) if has_terms else crystal
            self.wrong(
                where,
                'expected "family:model", python:module:name, {model: "family:model", …}, {fallback: […]} or '
                f"{{scripted: […]}}, got {describe(given)}",
            )
        return None

    def _crystal_reader(self) -> CrystalReader:
        if self._crystals is None:
            from cantrip_actors.recipes.crystals import CrystalReader

            self._crystals = CrystalReader(self, self._find_crystal)
        return self._crystals

    def _find_crystal(self, name: str) -> Any:
        from cantrip_actors.crystal import resolve

        family, _, rest = name.partition(":")
        if family == "scripted" and rest:
            name = f"scripted:{self.folder / rest}"
        if family == "python":
            self._make_importable()
        return resolve(name)

    # --------------------------------------------------------------------------------------------------------- circle

    def _circle(self, given: dict[str, Any]) -> Circle | None:
        before = len(self.mistakes)
        items = given.get("gates", [])
        if not isinstance(items, list):
            self.wrong(("circle", "gates"), f"circle.gates: expected a list, got {describe(items)}")
            return None
        gates = [self._gate(one, ("circle", "gates", at)) for at, one in enumerate(items)]
        if "done" not in [one.get("name") if isinstance(one, dict) else one for one in items]:
            self.wrong(
                ("circle", "gates"),
                'circle must have a done gate: without it no entity can finish; add "done" to gates',
            )
        wards = self._wards(given.get("wards", []))
        if wards is not None and not Wards.of(wards).bounded:
            self.wrong(
                ("circle", "wards"),
                "cantrip must have at least one truncation ward (max_turns, timeout, max_tokens or max_cost), "
                "so that it is bound to end; add for example `- max_turns: 20` to wards",
            )
        chosen = given.get("medium", "tools")
        with self.at(("circle", "medium") if "medium" in given else ("circle",)):
            Circle(medium=chosen)
        with self.at(("circle", "jail") if "jail" in given else ("circle",)):
            Circle(medium=chosen if chosen == "shell" else "tools", jail=given.get("jail"))
        if len(self.mistakes) == before:
            with self.at(("circle",)):
                made = [one for one in gates if one is not None]
                return Circle(made, wards or [], chosen, jail=given.get("jail"))
        return None

    def _wards(self, given: Any) -> list[Ward] | None:
        """Return the wards of a list of mappings, or of one mapping; None if one of them is wrong."""
        where: RecipePath = ("circle", "wards")
        if isinstance(given, dict):
            items: list[tuple[RecipePath, Any]] = [((*where, name), {name: one}) for name, one in given.items()]
        elif isinstance(given, list):
            items = [((*where, at), one) for at, one in enumerate(given)]
        else:
            self.wrong(where, f"wards: expected a list such as [{{max_turns: 20}}], got {describe(given)}")
            return None
        made: list[Ward] = []
        before = len(self.mistakes)
        for at, one in items:
            if one == "require_done_tool":
                one = {"require_done_tool": True}
            if not isinstance(one, dict):
                self.wrong(at, f"a ward: expected a name and a value such as `max_turns: 20`, got {describe(one)}")
                continue
            for name, value in one.items():
                with self.at((*at, name) if (*at, name) in self.document.lines else at):
                    made.extend(parse({name: value}))
        return made if len(self.mistakes) == before else None

    def _gate(self, given: Any, where: RecipePath) -> Gate | Wrap | ToolServer | None:
        if isinstance(given, str):
            given = {"python": given.removeprefix("python:")} if given.startswith("python:") else {"name": given}
        if not isinstance(given, dict):
            text = f"a gate: expected a name, {{name: …}} or {{python: module:function}}, got {describe(given)}"
            self.wrong(where, text)
            return None
        if "mcp" in given:
            with self.at(where):
                return tool_server(given["mcp"], self.folder)
            return None
        settings = dict(given)
        asks = settings.pop("ask_first", False)
        with self.at(where):
            if "python" in settings:
                made = self._python_gate(settings.pop("python"), settings.pop("name", None))
            elif isinstance(settings.get("name"), str):
                made = self._standard_gate(settings.pop("name"))
            else:
                nearest = suggest_nearest(next(iter(given), ""), ["name", "python", "mcp"])
                raise InvalidCantrip(f"a gate needs a name or python: {nearest}")
            root = settings.pop("root", None) if "root" in made.injected else None
            made = made.with_(**self.keep_typed(settings, _GATE_KINDS, where))
            if "root" in made.injected:
                made = self._with_root(made, root, where)
            return made.ready() if asks is False else self._wrap_ask_first(made.ready(), asks)
        return None

    @staticmethod
    def _wrap_ask_first(made: Gate, given: Any) -> Wrap:
        """Return a gate whose calls a person decides: `ask_first: true`, or its options."""
        options = {} if given is True else given
        if not isinstance(options, dict) or not options.keys() <= {"expires", "unattended"}:
            raise InvalidCantrip(
                "ask_first: expected true, or {expires: seconds, unattended: wait or deny}, got " + describe(given)
            )
        return ask_first(made, **options)

    def _with_root(self, made: Gate, given: Any, where: RecipePath) -> Gate:
        """Return a file gate with its folder: its own, or else the recipe's."""
        if given is not None:
            folder = self._check_folder(given, (*where, "root"))
            return made.with_(root=folder or ".")
        if self._root is not None or "root" in self.document.data:  # a wrong one is a mistake already
            return made.with_(root=self._root or ".")
        if "root" in made.required_injected and "root" not in made.dependencies:
            raise InvalidCantrip(
                f"gate {made.name} needs a folder: add `root: .` to the recipe (the folder that it lies in), "
                f"or to this gate"
            )
        return made

    @staticmethod
    def _standard_gate(name: str) -> Gate:
        try:
            return standard(name)
        except InvalidCantrip as error:
            hint = "yours are {python: module:function}"
            raise InvalidCantrip(str(error).replace("a function of yours is passed itself", hint)) from None

    def _python_gate(self, path: Any, name: Any) -> Gate:
        module_name, _, function_name = path.partition(":") if isinstance(path, str) else ("", "", "")
        if not module_name or not function_name:
            raise InvalidCantrip(f'python: expected "module:function", got {describe(path)}')
        self._make_importable()
        try:
            found: Any = importlib.import_module(module_name)
        except (ImportError, SyntaxError) as error:
            raise InvalidCantrip(f"python: cannot import {module_name}: {error}") from error
        for part in function_name.split("."):
            if not hasattr(found, part):
                known = [one for one in vars(found) if not one.startswith("_")]
                raise InvalidCantrip(f'python: {module_name} has no "{part}": {suggest_nearest(part, known)}')
            found = getattr(found, part)
        if isinstance(found, Gate):
            return found
        if not callable(found):
            raise InvalidCantrip(f"python: {path}: expected an annotated function or a gate, got {describe(found)}")
        make: Callable[[Any], Gate] = gate(name=name) if name is not None else gate
        return make(found)

    # ---------------------------------------------------------------------------------------------------------- files

    def _make_importable(self) -> None:
        folder = str(self.folder)
        if folder not in sys.path:
            sys.path.insert(0, folder)

    def _check_folder(self, given: Any, where: RecipePath) -> Path | None:
        if not isinstance(given, str):
            self.wrong(where, f"root: expected a folder's path, got {describe(given)}")
            return None
        try:
            folder = find_path(self.folder, given)
            what = "" if folder.is_dir() else "is no folder" if folder.exists() else "does not exist"
        except OSError as error:  # a name that is too long
            self.wrong(where, f"root: expected the path of a folder, got {shorten(given)}: {error.strerror}")
            return None
        except InvalidCantrip as error:
            self.wrong(where, f"root: {error}")
            return None
        if what:
            self.wrong(where, f'root: "{given}" {what} (looked at {folder}; paths are relative to the recipe)')
            return None
        return folder
