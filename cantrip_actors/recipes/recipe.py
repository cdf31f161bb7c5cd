"""Recipes: a cantrip as a YAML or TOML file.

A recipe has the words of `Cantrip(…)`. Every mistake in one is reported at once, with its line
(`InvalidRecipe.mistakes`). Paths in a recipe are relative to its folder, and so are the modules that `python:` names.

This file decides nothing about cantrips: the classes that the parts become validate them. It handles what only a file
can say: names of gates and crystals, folders, and modules of one's own.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cantrip_actors import Call, Cantrip, Circle, Folding, Gate, InvalidCantrip, Retry, ask_first, gate, scripted
from cantrip_actors.circle.browser.shared_browser import browser
from cantrip_actors.circle.medium import make_installed, make_medium
from cantrip_actors.own_files.claims import claim_file, hold
from cantrip_actors.recipes.document import Document, InvalidRecipe, RecipePath, read
from cantrip_actors.recipes.reader import RecipeReader, describe, find_path
from cantrip_actors.recipes.tool_servers import tool_server
from cantrip_actors.terms.errors import suggest_nearest
from cantrip_actors.terms.gate import standard
from cantrip_actors.terms.imports import import_part
from cantrip_actors.terms.languages import DEFAULT, Language
from cantrip_actors.terms.own_gates import BACKGROUND
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
        mistakes = dict.fromkeys(reader.mistakes)
        raise InvalidRecipe(file, sorted(mistakes, key=lambda mistake: mistake.line or 0))
    hold(cantrip, claim_file(file))
    return cantrip


_SHORT: Final = ("system", "gates", "max_turns", "skills", "on_demand")
"""The short forms of `call` and `circle`."""
_KEYS: Final = (*(field.name for field in fields(Cantrip) if field.init), *_SHORT, "root")
_ANSWERS: Final[Mapping[str, type]] = {"str": str, "int": int, "float": float, "bool": bool}
_CIRCLE_KEYS: Final = ("gates", "wards", "medium", "jail", "skills", "on_demand")
_SCRIPTED_KINDS: Final = {"usage": dict, "name": str, "context_window": int}
_GATE_KINDS: Final = {
    **dict.fromkeys(("ephemeral", "idempotent", "read_only", "blocking"), bool),
    "visible_for": int,
    "max_shown": int,
    "description": str,
    "risks": list,
}
_BROWSER_KINDS: Final = {
    "allow": list,
    "secrets": dict,
    **dict.fromkeys(("allow_private", "sandbox"), bool),
    **dict.fromkeys(("tabs", "timeout", "max_bytes", "memory"), int),
    "executable": str,
    "downloads": str,
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
        kinds = {
            "name": str,
            "description": str,
            "root": str,
            "require_done_tool": bool,
            "crystals": dict,
            "circle": dict,
            "needs": dict,
            "system": str,
            "gates": list,
            "max_turns": int,
            "skills": str,
            "on_demand": list,
            "answer": str,
        }
        parts = self.keep_typed(self.keep_known(data, _KEYS, (), ""), kinds, ())
        if "root" in parts:
            self._root = self._check_folder(parts.pop("root"), ("root",))
        parts |= self._crystals_of(parts)
        for key, kind in (("call", Call), ("folding", Folding), ("retry", Retry)):
            if key in parts:
                parts[key] = self.part(kind, parts[key], (key,))
        if data.get("crystal") is None:
            self.wrong((), "cantrip requires a crystal: add for example `crystal: anthropic:claude-sonnet-5-5`")
        if all(data.get(key) is None for key in ("circle", "gates", "max_turns")):
            self.wrong(
                (),
                "cantrip requires a circle: add `circle: {gates: [done], wards: [{max_turns: 20}]}`, "
                "or `gates: […]` and `max_turns: 20`",
            )
        elif "circle" in parts:
            parts["circle"] = self._circle(self.keep_known(parts["circle"], _CIRCLE_KEYS, ("circle",), "circle"))
        parts |= self._short_forms(parts)
        if not self.mistakes:
            with self.at((next((key for key in _SHORT if key in parts), "circle"),)):
                return Cantrip(**parts)
        return None

    def _short_forms(self, parts: dict[str, Any]) -> dict[str, Any]:
        """Return the parts with values that only a file writes as text: gates, and the type of the answers."""
        if "max_turns" in parts:
            with self.at(("max_turns",)):
                parse({"max_turns": parts["max_turns"]})
        gates: dict[str, Any] = {key: self._gates(parts[key], (key,)) for key in ("gates", "on_demand") if key in parts}
        if "skills" in parts:
            gates["skills"] = self._check_folder(parts["skills"], ("skills",))
        return gates | ({"answer": self._answer(parts["answer"])} if "answer" in parts else {})

    # ------------------------------------------------------------------------------------------------------- crystals

    def _crystals_of(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the parts that are crystals or have one."""
        parts: dict[str, Any] = {
            key: self._crystal(fields[key], (key,)) for key in ("crystal", "child_crystal") if key in fields
        }
        parts["crystals"] = {
            int(name) if name.isdecimal() else name: self._crystal(crystal, ("crystals", name))
            for name, crystal in fields.get("crystals", {}).items()
        }
        folding = fields.get("folding")
        if isinstance(folding, dict) and not isinstance(folding.get("summary", False), bool):
            summary = self._crystal(folding["summary"], ("folding", "summary"))
            parts["folding"] = {**folding, "summary": summary or False}
        return parts

    def _crystal(self, value: Any, where: RecipePath) -> Any:
        with self.at(where):
            if isinstance(value, str):
                return self._find_crystal(value)
            if isinstance(value, dict) and value.keys() & {"model", "fallback"}:
                return self._crystal_reader().read(value, where)
            if isinstance(value, dict) and "scripted" in value:
                names = ("scripted", *_SCRIPTED_KINDS, *_TERMS)
                before = len(self.mistakes)
                values = self.keep_known(value, names, where, "a scripted crystal")
                settings = self.keep_typed(values, _SCRIPTED_KINDS, where)
                if len(self.mistakes) > before:
                    return None
                crystal = scripted(
                    value["scripted"], **{name: settings[name] for name in _SCRIPTED_KINDS if name in settings}
                )
                has_terms = value.keys() & set(_TERMS)
                return self._crystal_reader().put_on_terms(crystal, value, where) if has_terms else crystal
            self.wrong(
                where,
                'expected "family:model", python:module:name, {model: "family:model", …}, {fallback: […]} or '
                f"{{scripted: […]}}, got {describe(value)}",
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
            self.make_importable()
        return resolve(name)

    # --------------------------------------------------------------------------------------------------------- circle

    def _circle(self, circle: dict[str, Any]) -> Circle | None:
        before = len(self.mistakes)
        for key in ("gates", "on_demand"):
            if not isinstance(circle.get(key, []), list):
                self.wrong(("circle", key), f"circle.{key}: expected a list, got {describe(circle[key])}")
                return None
        items = circle.get("gates", [])
        gates = self._gates(items, ("circle", "gates"))
        on_demand = self._gates(circle.get("on_demand", []), ("circle", "on_demand"))
        if "done" not in [item.get("name") if isinstance(item, dict) else item for item in items]:
            self.wrong(
                ("circle", "gates"),
                'circle must have a done gate: without it no entity can finish; add "done" to gates',
            )
        wards = self._wards(circle.get("wards", []))
        if wards is not None and not Wards.of(wards).bounded:
            self.wrong(
                ("circle", "wards"),
                "cantrip must have at least one truncation ward (max_turns, timeout, max_tokens or max_cost), "
                "so that it is bound to end; add for example `- max_turns: 20` to wards",
            )
        chosen: Any = DEFAULT
        with self.at(("circle", "medium") if "medium" in circle else ("circle",)):
            chosen = self._medium(circle.get("medium", DEFAULT))
        with self.at(("circle", "jail") if "jail" in circle else ("circle",)):
            Circle(medium=chosen, jail=circle.get("jail"))
        skills = self._check_folder(circle["skills"], ("circle", "skills")) if "skills" in circle else None
        if len(self.mistakes) == before:
            with self.at(("circle", "skills") if "skills" in circle else ("circle",)):
                usable, further = ([gate for gate in parts if gate is not None] for parts in (gates, on_demand))
                jail = circle.get("jail")
                return Circle(usable, wards or [], chosen, jail=jail, skills=skills, on_demand=further)
        return None

    def _medium(self, value: Any) -> str | Language:
        """Return a medium: a name, python:module:name, or a mapping of one of these to settings."""
        name, settings = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else (value, {})
        if not isinstance(name, str) or not isinstance(settings, dict):
            raise InvalidCantrip(
                f'medium: expected a name, "python:module:Medium", or {{name: {{setting: …}}}}, got {describe(value)}'
            )
        if name.startswith("python:"):
            return make_medium(name, self._import_from(name.removeprefix("python:"), "Medium"), settings)
        chosen: str | Language = make_installed(name, settings) if settings else name
        Circle(medium=chosen)
        return chosen

    def _gates(self, items: Sequence[Any], where: RecipePath) -> list[Gate | Wrap | ToolServer | None]:
        return [gate for at, item in enumerate(items) for gate in self._set_of_gates(item, (*where, at))]

    def _set_of_gates(self, item: Any, where: RecipePath) -> Sequence[Gate | Wrap | ToolServer | None]:
        if item == "background":
            return BACKGROUND
        if isinstance(item, dict) and item.keys() == {"browser"}:
            with self.at(where):
                return self._browser(item["browser"], (*where, "browser"))
            return []
        return [self._gate(item, where)]

    def _browser(self, settings: Any, where: RecipePath) -> list[Gate]:
        """Return the gates of a browser. Its secrets are names of environment variables."""
        if isinstance(settings, list):
            settings = {"allow": settings}
        if not isinstance(settings, dict) or "allow" not in settings:
            expected = "browser: {allow: [docs.python.org], secrets: {shop: SHOP_PASSWORD}}"
            raise InvalidCantrip(f"browser: expected hosts, as in {expected}, got {describe(settings)}")
        parts = self.keep_typed(
            self.keep_known(settings, tuple(_BROWSER_KINDS), where, "browser"), _BROWSER_KINDS, where
        )
        if "allow" not in parts:
            return []
        secrets = parts.pop("secrets", {})
        missing = next(
            (variable for variable in secrets.values() if not (isinstance(variable, str) and variable in os.environ)),
            None,
        )
        if missing is not None:
            raise InvalidCantrip(
                f"browser: secrets: expected the name of an environment variable, got {describe(missing)}"
            )
        if "downloads" in parts:
            parts["downloads"] = self._check_folder(parts["downloads"], (*where, "downloads")) or "."
        return browser(**parts, secrets={name: os.environ[variable] for name, variable in secrets.items()})

    def _answer(self, name: str) -> Any:
        """Return the type of the answers: `int`, or one of a module."""
        with self.at(("answer",)):
            if name in _ANSWERS:
                return _ANSWERS[name]
            if not name.startswith("python:"):
                names = ", ".join(_ANSWERS)
                raise InvalidCantrip(f"answer: expected {names} or python:module:Type, got {describe(name)}")
            return self._import_from(name.removeprefix("python:"), "Type")
        return None

    def _wards(self, declared: Any) -> list[Ward] | None:
        """Return the wards of a list of mappings, or of one mapping; None if one of them is wrong."""
        where: RecipePath = ("circle", "wards")
        if isinstance(declared, dict):
            items: list[tuple[RecipePath, Any]] = [
                ((*where, name), {name: number}) for name, number in declared.items()
            ]
        elif isinstance(declared, list):
            items = [((*where, at), item) for at, item in enumerate(declared)]
        else:
            self.wrong(where, f"wards: expected a list such as [{{max_turns: 20}}], got {describe(declared)}")
            return None
        wards: list[Ward] = []
        before = len(self.mistakes)
        for at, item in items:
            if item == "require_done_tool":
                item = {"require_done_tool": True}
            if not isinstance(item, dict):
                self.wrong(at, f"a ward: expected a name and a value such as `max_turns: 20`, got {describe(item)}")
                continue
            for name, value in item.items():
                with self.at((*at, name) if (*at, name) in self.document.lines else at):
                    wards.extend(parse({name: value}))
        return wards if len(self.mistakes) == before else None

    def _gate(self, item: Any, where: RecipePath) -> Gate | Wrap | ToolServer | None:
        if isinstance(item, str):
            item = {"python": item.removeprefix("python:")} if item.startswith("python:") else {"name": item}
        if not isinstance(item, dict):
            text = f"a gate: expected a name, {{name: …}} or {{python: module:function}}, got {describe(item)}"
            self.wrong(where, text)
            return None
        if "mcp" in item:
            with self.at(where):
                return tool_server(item["mcp"], self.folder)
            return None
        settings = dict(item)
        asks = settings.pop("ask_first", False)
        with self.at(where):
            if "python" in settings:
                gate = self._python_gate(settings.pop("python"), settings.pop("name", None))
            elif isinstance(settings.get("name"), str):
                gate = self._standard_gate(settings.pop("name"))
            else:
                nearest = suggest_nearest(next(iter(item), ""), ["name", "python", "mcp"])
                raise InvalidCantrip(f"a gate needs a name or python: {nearest}")
            root = settings.pop("root", None) if "root" in gate.injected else None
            gate = gate.with_(**self.keep_typed(settings, _GATE_KINDS, where))
            if "root" in gate.injected:
                gate = self._with_root(gate, root, where)
            return gate.ready() if asks is False else self._wrap_ask_first(gate.ready(), asks)
        return None

    @staticmethod
    def _wrap_ask_first(gate: Gate, setting: Any) -> Wrap:
        """Return a gate whose calls a person decides: `ask_first: true`, or its options."""
        options = {} if setting is True else setting
        if not isinstance(options, dict) or not options.keys() <= {"expires", "unattended"}:
            raise InvalidCantrip(
                "ask_first: expected true, or {expires: seconds, unattended: wait or deny}, got " + describe(setting)
            )
        return ask_first(gate, **options)

    def _with_root(self, gate: Gate, root: Any, where: RecipePath) -> Gate:
        """Return a file gate with its folder: its own, or else the recipe's."""
        if root is not None:
            folder = self._check_folder(root, (*where, "root"))
            return gate.with_(root=folder or ".")
        if self._root is not None or "root" in self.document.data:  # a wrong one is a mistake already
            return gate.with_(root=self._root or ".")
        if "root" in gate.required_injected and "root" not in gate.dependencies:
            raise InvalidCantrip(
                f"gate {gate.name} needs a folder: add `root: .` to the recipe (the folder that it lies in), "
                f"or to this gate"
            )
        return gate

    @staticmethod
    def _standard_gate(name: str) -> Gate:
        try:
            return standard(name)
        except InvalidCantrip as error:
            hint = "yours are {python: module:function}"
            raise InvalidCantrip(str(error).replace("a function of yours is passed itself", hint)) from None

    def _import_from(self, path: Any, what: str) -> Any:
        """Return a part of a module from `module:part`; `what` is its kind, for messages. Raises InvalidCantrip."""
        if not isinstance(path, str) or not all(path.partition(":")):
            raise InvalidCantrip(f'python: expected "module:{what}", got {describe(path)}')
        self.make_importable()
        return import_part(path, "python")

    def _python_gate(self, path: Any, name: Any) -> Gate:
        target = self._import_from(path, "function")
        if isinstance(target, Gate):
            return target
        if not callable(target):
            raise InvalidCantrip(f"python: {path}: expected an annotated function or a gate, got {describe(target)}")
        make: Callable[[Any], Gate] = gate(name=name) if name is not None else gate
        return make(target)

    # ---------------------------------------------------------------------------------------------------------- files

    def _check_folder(self, path: Any, where: RecipePath) -> Path | None:
        key = where[-1]
        if not isinstance(path, str):
            self.wrong(where, f"{key}: expected a folder's path, got {describe(path)}")
            return None
        try:
            folder = find_path(self.folder, path)
        except InvalidCantrip as error:
            self.wrong(where, f"{key}: {error}")
            return None
        try:
            fault = "" if stat.S_ISDIR(folder.stat().st_mode) else "is no folder"
        except (FileNotFoundError, NotADirectoryError):
            fault = "does not exist"
        except OSError as error:  # a name that is too long, for which `is_dir` of Python 3.14 is only false
            self.wrong(where, f"{key}: expected the path of a folder, got {shorten(path)}: {error.strerror}")
            return None
        if fault:
            self.wrong(where, f'{key}: "{path}" {fault} (looked at {folder}; paths are relative to the recipe)')
            return None
        return folder
