"""The gate `skill`: read the skills of a folder, one folder for each (`terms/skill.py` has the rules).

The names and descriptions are in the gate's description, from the time when the circle was made; the texts are read
when they are asked for, so a skill may be improved while entities work.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Annotated, Any, Final

import yaml
from pydantic import Field

from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.circle.gates.files import LARGEST, read
from cantrip_actors.terms.arguments import check
from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest
from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.gate_function import Injected, gate
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.skill import (
    FILE,
    Skill,
    collect_skills,
    compose_skill,
    describe_skills,
    explain_misplaced,
    is_placed,
    make_skill,
)
from cantrip_actors.terms.yaml_text import UNREADABLE

LONGEST_HEAD: Final = 64_000
"""Characters of the head of a SKILL.md."""

DEEPEST_HEAD: Final = 20
"""The deepest nesting of lists and mappings."""

DEEPEST: Final = 8
FILES: Final = 1_000
"""Files of one skill that are looked at."""


@dataclass(frozen=True, slots=True)
class FolderOfSkills:
    """A folder with a folder for each skill. `shown` is its path for the file gates of the circle, "" without one."""

    path: Path
    shown: str = ""

    def read(self) -> Mapping[str, Skill]:
        """Return the skills by name, as they are now. Raises InvalidCantrip for one that is wrong."""
        try:
            folders = sorted(entry for entry in self.path.iterdir() if (entry / FILE).exists())
        except OSError as error:
            raise InvalidCantrip(f'skills: "{self.path}": expected a folder: {error.strerror}') from error
        if not folders:
            raise InvalidCantrip(f'skills: "{self.path}": expected a folder with a {FILE} for each skill, found none')
        return collect_skills(_read_skill(folder, self.path) for folder in folders)


@gate(idempotent=True, read_only=True)
def skill(
    name: Annotated[str, Field(description="the name of the skill")],
    skills: Injected[FolderOfSkills],
    file: Annotated[str | None, Field(description="one of its files; left out: the skill itself")] = None,
    offset: Annotated[int, Field(ge=1, description="the first line of the file, counted from 1")] = 1,
) -> str | Image:
    """Read a skill: instructions for a kind of task. Read the one that fits before you begin such a task."""
    try:
        known = skills.read()
    except InvalidCantrip as problem:  # the folder has changed since the circle was made
        raise GateError(str(problem)) from problem
    if name not in known:
        raise GateError(f'no skill is called "{name}": {suggest_nearest(name, known)}')
    if file is None:
        return compose_skill(known, name, skills.shown)
    if not is_placed(file) and ".." not in Path(file).parts:
        raise GateError(explain_misplaced(file))
    text: str | Image = read(file, root=skills.path / known[name].folder, offset=offset, images=True)
    return text


def make_skill_gate(folder: str | PurePath, roots: Iterable[str | PurePath] = ()) -> Gate:
    """Return the gate that reads the skills of `folder`; its description has their names and descriptions.

    `roots` are the folders of the circle's file gates. Raises InvalidCantrip if a skill in the folder is wrong.
    """
    check(isinstance(folder, str | PurePath) and bool(str(folder)), "skills", "a folder", folder, InvalidCantrip)
    path = Path(folder)
    shown = next((place for root in roots if (place := _find_below(path, Path(root)))), "")
    skills = FolderOfSkills(path, shown)
    known = skills.read()
    parameters: dict[str, Any] = {**skill.parameters, "properties": {**skill.parameters["properties"]}}
    parameters["properties"]["name"] = {**parameters["properties"]["name"], "enum": list(known)}
    described = describe_skills(known, skill.description)
    return replace(skill.with_(skills=skills), description=described, parameters=parameters, written=parameters)


def _find_below(path: Path, root: Path) -> str:
    """Return the path of a folder from `root`; "" if it does not lie there."""
    real, base = Path(os.path.realpath(path)), Path(os.path.realpath(root))
    return real.relative_to(base).as_posix() if real.is_relative_to(base) and real != base else ""


def _read_skill(folder: Path, above: Path) -> Skill:
    where = f"skills: {folder.name}/{FILE}"
    file = folder / FILE
    real = os.path.realpath(file)
    if not Path(real).is_relative_to(os.path.realpath(above)):
        raise InvalidCantrip(f"{where}: it leads outside the folder of skills: copy the skill into it")
    try:
        size = file.stat().st_size
        if size > LARGEST:
            raise InvalidCantrip(f"{where}: expected at most {LARGEST:,} bytes, got {size:,}")
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidCantrip(f"{where}: it cannot be read: {error}") from error
    head, body = _split_head(text)
    return make_skill(folder.name, _parse_head(head, where), body, _list_files(folder))


def _parse_head(head: str, where: str) -> Any:
    """Return the value of a head.

    References are refused: a few lines of them expand to more data than a machine holds. So are deeply
    nested lists: the time that the parser takes grows with the square of their depth.
    """
    if len(head) > LONGEST_HEAD:
        raise InvalidCantrip(f"{where}: expected a head of at most {LONGEST_HEAD:,} characters, got {len(head):,}")
    try:
        fault = _find_fault(head)
        value = None if fault else yaml.safe_load(head)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 2}"
        problem = f"{where}{line}: its head is not YAML: {getattr(error, 'problem', error)}"
        raise InvalidCantrip(f"{problem}; a text with a colon has to stand in quotes") from error
    except UNREADABLE as error:
        raise InvalidCantrip(f"{where}: its head cannot be read: {error}") from error
    if fault:
        raise InvalidCantrip(f"{where}: expected a head {fault}")
    return value


def _find_fault(head: str) -> str:
    depth = 0
    for event in yaml.parse(head, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            return "without references (*name): write out what they stand for"
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST_HEAD:
            return f"of at most {DEEPEST_HEAD} lists or mappings in each other"
    return ""


def _split_head(text: str) -> tuple[str, str]:
    """Return the head and the text of a SKILL.md; an empty head if it has none."""
    first, *lines = text.splitlines() or [""]
    if first.rstrip() != "---" or "---" not in (stripped := [line.rstrip() for line in lines]):
        return "", text
    end = stripped.index("---")
    return "\n".join(lines[:end]), "\n".join(lines[end + 1 :])


def _list_files(folder: Path) -> list[str]:
    """Return the paths of the files of a skill but its SKILL.md, hidden ones left out. No link is followed."""
    names = (entry.relative_to(folder).as_posix() for entry in _walk(folder, 0))
    return [name for _, name in zip(range(FILES), (name for name in names if name != FILE), strict=False)]


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    with suppress(OSError):  # removed or made unreadable meanwhile
        for entry in sorted(folder.iterdir()):
            if entry.name.startswith("."):
                continue
            if entry.is_dir() and not entry.is_symlink():
                if depth < DEEPEST:
                    yield from _walk(entry, depth + 1)
            else:
                yield entry
