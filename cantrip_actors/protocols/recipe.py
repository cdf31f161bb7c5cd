"""Recipes: a cantrip as a YAML or TOML file, for the command line and for whoever likes files better than code.

A recipe says what `Cantrip(…)` says, in the same words, and everything that is wrong with one is told at once, each
mistake with its line (`InvalidRecipe.mistakes`). Paths in it are relative to its own folder; so are the modules that
`python:` names.

This file decides nothing about cantrips: the parts are checked by the classes they become. It checks types, names and
what only a file can get wrong.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from cantrip_actors import Call, Cantrip, Circle, Folding, Gate, InvalidCantrip, Retry, gate, scripted
from cantrip_actors.model.errors import nearest
from cantrip_actors.model.gate import standard
from cantrip_actors.model.ward import parse
from cantrip_actors.protocols.document import Broken, Document, Mistake, Where, read, redacted
from cantrip_actors.wards import Ward, Wards

if TYPE_CHECKING:
    from cantrip_actors.protocols.recipe_crystals import Crystals

__all__ = ["InvalidRecipe", "load_recipe"]


class InvalidRecipe(InvalidCantrip):
    """A recipe that cannot become a cantrip. `mistakes` are all that is wrong, in the order of the file."""

    def __init__(self, path: Path, mistakes: tuple[Mistake, ...]) -> None:
        self.path = path
        self.mistakes = mistakes
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> list[str]:
        """A line for each mistake: `recipe.yaml:7: unknown ward …`."""
        return [
            f"{self.path}{'' if mistake.line is None else f':{mistake.line}'}: {mistake.text}"
            for mistake in self.mistakes
        ]


def load_recipe(path: str | os.PathLike[str]) -> Cantrip:
    """The cantrip that the recipe at `path` describes. Raises InvalidRecipe.

    Where the recipe names Python modules, its folder is put on `sys.path`, as Python does with a script's.
    """
    file = Path(path)
    try:
        document = read(file)
    except Broken as broken:
        raise InvalidRecipe(file, broken.mistakes) from None
    reader = _Reader(document)
    cantrip = reader.cantrip()
    if cantrip is None:
        found = dict.fromkeys(Mistake(redacted(mistake.text), mistake.line) for mistake in reader.mistakes)
        raise InvalidRecipe(file, tuple(sorted(found, key=lambda mistake: mistake.line or 0)))
    return cantrip


# ---------------------------------------------------------------------------------------------- what a recipe may say


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class _Call(_Part):
    system_prompt: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: Annotated[list[str], BeforeValidator(_listed)] = []
    tool_choice: Literal["auto", "required", "none"] | None = None
    require_done_tool: bool = False
    options: dict[str, Any] = {}


class _Circle(_Part):
    gates: list[Any]
    wards: Any = None
    medium: Literal["tools", "python", "javascript", "shell"] = "tools"


class _Folding(_Part):
    trigger_after_turns: int | None = None
    trigger_at: float | None = None
    keep_turns: int | None = None
    summary: Any = None


class _Retry(_Part):
    max_retries: int | None = None
    retryable_status_codes: list[int] | None = None
    base_delay: float | None = None
    max_delay: float | None = None


class _Recipe(_Part):
    crystal: Any
    circle: _Circle
    call: _Call = _Call()
    child_crystal: Any = None
    crystals: dict[str, Any] = {}
    folding: _Folding = _Folding()
    retry: _Retry = _Retry()
    require_done_tool: bool = False
    name: str | None = None
    root: str | None = None


_PARTS: Mapping[str, type[_Part]] = {"call": _Call, "circle": _Circle, "folding": _Folding, "retry": _Retry}

_TERMS = ("limits", "breaker", "hedge", "deadline")
"""What is agreed on for any crystal; see `recipe_crystals.py`, which is not imported for a recipe that has none."""

_EXAMPLE = 'expected at least "crystal: …" and "circle: {gates: [done], wards: [{max_turns: 20}]}"'

# -------------------------------------------------------------------------------------------------------- the reading


class _Reader:
    """One reading of a document: what it says becomes parts, what is wrong becomes mistakes."""

    def __init__(self, document: Document) -> None:
        self.mistakes: list[Mistake] = []
        self._document = document
        self._folder = document.path.absolute().parent
        self._root: Path | None = None
        self._crystals: Crystals | None = None

    def cantrip(self) -> Cantrip | None:
        """The cantrip, or None where there are mistakes."""
        data = self._document.data
        if data is None:
            self.mistakes.append(Mistake(f"the recipe is empty: {_EXAMPLE}"))
            return None
        if not isinstance(data, dict):
            self._wrong((), f"a recipe is a mapping of keys, not {_kind(data)}: {_EXAMPLE}", line=1)
            return None
        said = self._typed(data)
        parts: dict[str, Any] = {}
        if "root" in said:
            self._root = self._existing_folder(said["root"], ("root",))
        for key in ("crystal", "child_crystal"):
            if said.get(key) is not None:
                parts[key] = self._crystal(said[key], (key,))
        if isinstance(said.get("crystals"), dict):
            parts["crystals"] = {
                int(name) if name.isdecimal() else name: self._crystal(one, ("crystals", name))
                for name, one in said["crystals"].items()
            }
        for key, part in (("call", Call), ("folding", Folding), ("retry", Retry)):
            if isinstance(said.get(key), dict):
                stated = {name: one for name, one in said[key].items() if one is not None}
                if not isinstance(stated.get("summary", False), bool):  # folding: a crystal, or whether there is one
                    stated["summary"] = self._crystal(stated["summary"], (key, "summary")) or False
                with self._at((key,)):
                    parts[key] = part(**stated)
        parts |= {key: said[key] for key in ("name", "require_done_tool") if said.get(key) is not None}
        if isinstance(said.get("circle"), dict):
            parts["circle"] = self._circle(said["circle"])
        if not self.mistakes:
            with self._at(("circle",)):
                return Cantrip(**parts)
        return None

    def _typed(self, data: dict[str, Any]) -> dict[str, Any]:
        """`data` without whatever has a wrong type or an unknown name; each of those is noted."""
        try:
            _Recipe.model_validate(data)
        except ValidationError as errors:
            kept = {key: dict(one) if key in _PARTS and isinstance(one, dict) else one for key, one in data.items()}
            for error in errors.errors(include_url=False, include_context=True):
                where: Where = error["loc"]
                self._wrong(where, _problem(where, error))
                inside = kept
                if len(where) > 1 and isinstance(kept.get(str(where[0])), dict):
                    inside = kept[str(where[0])]
                    where = where[1:]
                inside.pop(str(where[0]), None)
            return kept
        return data

    # ------------------------------------------------------------------------------------------------------- crystals

    def _crystal(self, said: Any, where: Where) -> Any:
        with self._at(where):
            if isinstance(said, str):
                return self._named_crystal(said)
            if isinstance(said, dict) and said.keys() & {"model", "fallback"}:
                return self._made().of(said, where)
            if isinstance(said, dict) and "scripted" in said:
                known = ("scripted", "usage", "name", "context_window", *_TERMS)
                for name in said:
                    if name not in known:
                        self._wrong(
                            (*where, name), f'unknown key "{name}" of a scripted crystal: {nearest(name, known)}'
                        )
                        return None
                for name, kind in (("usage", dict), ("name", str), ("context_window", int)):
                    if name in said and not isinstance(said[name], kind):
                        self._wrong((*where, name), f"{name}: expected {_WORDS[kind]}, got {_kind(said[name])}")
                        return None
                settings = {name: one for name, one in said.items() if name not in ("scripted", *_TERMS)}
                crystal = scripted(said["scripted"], **settings)
                return self._made().on_terms(crystal, said, where) if said.keys() & set(_TERMS) else crystal
            self._wrong(
                where,
                'expected "family:model", python:module:name, {model: "family:model", …}, {fallback: […]} or '
                f"{{scripted: […]}}, got {_kind(said)}",
            )
        return None

    def _made(self) -> Crystals:
        """What makes the crystals that are more than a name: imported where there is one."""
        if self._crystals is None:
            from cantrip_actors.protocols.recipe_crystals import Crystals

            self._crystals = Crystals(self._folder, self._named_crystal, self._wrong)
        return self._crystals

    def _named_crystal(self, name: str) -> Any:
        from cantrip_actors.crystal import resolve

        family, _, rest = name.partition(":")
        if family == "scripted" and rest:
            name = f"scripted:{self._folder / rest}"
        if family == "python":
            self._importable()
        return resolve(name)

    # --------------------------------------------------------------------------------------------------------- circle

    def _circle(self, said: dict[str, Any]) -> Circle | None:
        before = len(self.mistakes)
        items = said.get("gates")
        gates = [self._gate(one, ("circle", "gates", at)) for at, one in enumerate(items or ())]
        if items is not None and "done" not in map(_called, items):
            self._wrong(
                ("circle", "gates"),
                'circle must have a done gate: without it no entity can finish; add "done" to gates',
            )
        wards = self._wards(said.get("wards"))
        if wards is not None and not Wards.of(wards).bounded:
            self._wrong(
                ("circle", "wards"),
                "cantrip must have at least one truncation ward (max_turns, timeout, max_tokens or max_cost), "
                "so that it is bound to end; add for example `- max_turns: 20` to wards",
            )
        if len(self.mistakes) > before or items is None or wards is None:
            return None
        with self._at(("circle",)):
            return Circle([one for one in gates if one is not None], wards, said.get("medium") or "tools")
        return None

    def _wards(self, said: Any) -> list[Ward] | None:
        """The wards, or None where one of them is wrong; a list of mappings, or one mapping."""
        if said is None:
            return []
        if isinstance(said, dict):
            items: list[tuple[Where, Any]] = [(("circle", "wards", name), {name: one}) for name, one in said.items()]
        elif isinstance(said, list):
            items = [(("circle", "wards", at), one) for at, one in enumerate(said)]
        else:
            self._wrong(("circle", "wards"), f"wards: expected a list such as [{{max_turns: 20}}], got {_kind(said)}")
            return None
        made: list[Ward] = []
        before = len(self.mistakes)
        for where, one in items:
            if one == "require_done_tool":
                one = {"require_done_tool": True}
            if not isinstance(one, dict):
                self._wrong(where, f"a ward: expected a name and a value such as `max_turns: 20`, got {_kind(one)}")
                continue
            for name, value in one.items():
                with self._at((*where, name) if (*where, name) in self._document.lines else where):
                    made.extend(parse({name: value}))
        return made if len(self.mistakes) == before else None

    def _gate(self, said: Any, where: Where) -> Gate | None:
        if isinstance(said, str):
            said = {"python": said.removeprefix("python:")} if said.startswith("python:") else {"name": said}
        if not isinstance(said, dict):
            self._wrong(
                where, f"a gate: expected a name, {{name: …}} or {{python: module:function}}, got {_kind(said)}"
            )
            return None
        settings = dict(said)
        with self._at(where):
            if "python" in settings:
                made = self._python_gate(settings.pop("python"), settings.pop("name", None))
            elif isinstance(settings.get("name"), str):
                made = standard(settings.pop("name"))
            else:
                raise InvalidCantrip(
                    f"a gate needs a name or python: {nearest(next(iter(said), ''), ['name', 'python'])}"
                )
            root = settings.pop("root", None) if "root" in made.injected else None
            made = made.with_(**self._settings(settings, where))
            if "root" in made.injected:
                made = self._with_root(made, root, where)
            return made.ready()
        return None

    def _settings(self, said: dict[str, Any], where: Where) -> dict[str, Any]:
        """What is set of a gate, without what has a wrong type; that is noted."""
        known = {"ephemeral": bool, "idempotent": bool, "blocking": bool, "visible_for": int, "description": str}
        kept = {}
        for name, value in said.items():
            kind = known.get(name)
            if kind is None or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
                kept[name] = value
            else:
                self._wrong((*where, name), f"{name}: expected {_WORDS[kind]}, got {_kind(value)}")
        return kept

    def _with_root(self, made: Gate, said: Any, where: Where) -> Gate:
        """A file gate with its folder: its own, else the recipe's."""
        if said is not None:
            folder = self._existing_folder(said, (*where, "root"))
            return made.with_(root=folder or ".")
        if self._root is not None or "root" in self._document.data:  # if that one is wrong, it was told already
            return made.with_(root=self._root or ".")
        if "root" in made.required_injected and "root" not in made.dependencies:
            raise InvalidCantrip(
                f"gate {made.name} needs a folder: add `root: .` to the recipe (the folder that it lies in), "
                f"or to this gate"
            )
        return made

    def _python_gate(self, path: Any, name: Any) -> Gate:
        module_name, _, function_name = path.partition(":") if isinstance(path, str) else ("", "", "")
        if not module_name or not function_name:
            raise InvalidCantrip(f'python: expected "module:function", got {_kind(path)}')
        self._importable()
        try:
            found: Any = importlib.import_module(module_name)
        except (ImportError, SyntaxError) as error:
            raise InvalidCantrip(f"python: cannot import {module_name}: {error}") from error
        for part in function_name.split("."):
            if not hasattr(found, part):
                known = [one for one in vars(found) if not one.startswith("_")]
                raise InvalidCantrip(f'python: {module_name} has no "{part}": {nearest(part, known)}')
            found = getattr(found, part)
        if isinstance(found, Gate):
            return found
        if not callable(found):
            raise InvalidCantrip(f"python: {path}: expected an annotated function or a gate, got {_kind(found)}")
        make: Callable[[Any], Gate] = gate(name=name) if name is not None else gate
        return make(found)

    # --------------------------------------------------------------------------------------------------------- shared

    def _importable(self) -> None:
        folder = str(self._folder)
        if folder not in sys.path:
            sys.path.insert(0, folder)

    def _existing_folder(self, said: Any, where: Where) -> Path | None:
        if not isinstance(said, str):
            self._wrong(where, f"root: expected a folder's path, got {_kind(said)}")
            return None
        folder = self._folder / Path(said).expanduser()
        if not folder.is_dir():
            what = "is no folder" if folder.exists() else "does not exist"
            self._wrong(where, f'root: "{said}" {what} (looked at {folder}; paths are relative to the recipe)')
            return None
        return folder

    def _at(self, where: Where) -> _At:
        """What is refused inside of this is a mistake at `where`."""
        return _At(self, where)

    def refused(self, where: Where, refusal: InvalidCantrip) -> None:
        """Note a refusal at `where`, or at the key of it that the refusal begins with."""
        said = str(refusal).replace("a function of yours is passed itself", "yours are {python: module:function}")
        starts = {name: (f"{name}:", f"{where[-1]}: {name}:") for name in _fields(where)}
        named = next((name for name, start in starts.items() if said.startswith(start)), None)
        self._wrong(where if named is None else (*where, named), said)

    def _wrong(self, where: Where, text: str, line: int | None = None) -> None:
        self.mistakes.append(Mistake(text, line if line is not None else self._document.line(where)))


class _At:
    """A block in which a refusal becomes a mistake."""

    def __init__(self, reader: _Reader, where: Where) -> None:
        self._reader = reader
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> bool:
        if isinstance(error, InvalidCantrip):
            self._reader.refused(self._where, error)
            return True
        return False


def _fields(where: Where) -> tuple[str, ...]:
    part = _PARTS.get(str(where[0])) if len(where) == 1 else None
    return () if part is None else tuple(part.model_fields)


def _called(item: Any) -> Any:
    """The name of a gate as it is written down."""
    return item.get("name") if isinstance(item, dict) else item


# ---------------------------------------------------------------------------------------------------- what went wrong

_WORDS: Mapping[type, str] = {
    bool: "true or false",
    dict: "a mapping",
    str: "text",
    int: "a whole number",
}

_EXPECTED: Mapping[str, str] = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def _problem(where: Where, error: Any) -> str:
    name = ".".join(str(part) for part in where)
    if error["type"] == "missing":
        return {
            "crystal": "cantrip requires a crystal: add for example `crystal: anthropic:claude-sonnet-4-5`",
            "circle": "cantrip requires a circle: add `circle: {gates: [done], wards: [{max_turns: 20}]}`",
            "circle.gates": "circle must have a done gate: add `gates: [done]`",
        }[name]
    if error["type"] == "extra_forbidden":
        part = _PARTS.get(str(where[0])) if len(where) > 1 else _Recipe
        assert part is not None, "only parts forbid what they do not know"
        place = f" of {where[0]}" if len(where) > 1 else ""
        return f'unknown key "{where[-1]}"{place}: {nearest(str(where[-1]), part.model_fields)}'
    if error["type"] == "literal_error":
        return f"{name}: expected {error['ctx']['expected']}, got {_kind(error['input'])}"
    expected = _EXPECTED.get(error["type"], str(error["msg"]).lower())
    return f"{name}: expected {expected}, got {_kind(error['input'])}"


def _kind(value: Any) -> str:
    """What a value is, in words of a reader; a short text as it is, since a misspelt word is best shown."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case str():
            return f'the text "{value}"' if len(value) <= 20 else "a longer text"
        case list():
            return "a list"
        case dict():
            return "a mapping"
    return f"a {type(value).__name__}"
