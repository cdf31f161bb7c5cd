"""Skills: instructions for a kind of task, which an entity reads when it has such a task.

A skill is a folder with a `SKILL.md`, in the open format: a YAML head with `name` and `description`, then the text.
This file has the rules, as functions of texts that were read; `circle/gates/skills.py` reads the folder and has the
gate.

The structure is flat: the files of a skill lie beside its SKILL.md, or directly in one of `KINDS`. A skill may wrap
another one by its name, with steps before and after, and copies none of its text: so an upstream skill can be replaced
by its next version. Rules that have to hold are steps of `wrap` around a gate, not sentences in a skill.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest
from cantrip_actors.terms.problems import shorten

KINDS: Final = ("scripts", "references", "assets", "templates")
"""The folders that a skill may have."""

FILE: Final = "SKILL.md"

MOST: Final = 200
"""Skills of one folder: the description of the gate lists each."""

LONGEST_NAME: Final = 64
LONGEST_DESCRIPTION: Final = 1024
"""Characters of a description that the gate shows, as the format allows them."""

COPIED: Final = 60
"""Characters of a line that two skills do not have in common by chance."""

_NAME: Final = re.compile(r"[^\W_]+(?:[-_.][^\W_]+)*\Z")
_SECTION: Final = re.compile(r"^#{1,6}[ \t]++(before|after)[ \t]*+#*+[ \t]*+$", re.IGNORECASE | re.MULTILINE)
_CODE: Final = re.compile(r"^(```|~~~).*?(?:^\1[ \t]*+$|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill as its SKILL.md describes it. `wraps` names the skill that it puts its steps around; None if it wraps no
    skill.
    """

    name: str
    description: str
    text: str
    folder: str
    """The name of its folder."""
    wraps: str | None = None
    files: tuple[str, ...] = ()
    """Its other files, as paths from its folder."""
    misplaced: tuple[str, ...] = ()
    """The files that cannot be read, because of where they lie."""


def make_skill(folder: str, head: Any, text: str, files: Iterable[str]) -> Skill:
    """Return the skill of a folder, from the head and the text of its SKILL.md and the paths of its other files.

    Raises InvalidCantrip if the head is not that of a skill.
    """
    where = f"skills: {folder}/{FILE}"
    if not isinstance(head, Mapping):
        raise InvalidCantrip(f"{where}: expected a head with name and description between two lines of ---")
    for key in ("name", "description"):
        if not isinstance(head.get(key), str) or not head[key].strip():
            raise InvalidCantrip(f"{where}: expected a text as its {key}, got {shorten(head.get(key))}")
    name = head["name"].strip()
    if len(name) > LONGEST_NAME or _NAME.match(name) is None:
        raise InvalidCantrip(
            f'{where}: expected a name of letters, digits and hyphens, at most {LONGEST_NAME} long, got "{name[:80]}"'
        )
    wraps = head.get("wraps")
    if wraps is not None and not isinstance(wraps, str):
        raise InvalidCantrip(f"{where}: wraps: expected the name of another skill, got {shorten(wraps)}")
    placed: list[str] = []
    misplaced: list[str] = []
    for file in sorted(files):
        (placed if is_placed(file) else misplaced).append(file)
    description = " ".join(head["description"].split())
    return Skill(name, description, text.strip(), folder, wraps, tuple(placed), tuple(misplaced))


def is_placed(file: str) -> bool:
    """Return whether a skill may have a file there: beside its SKILL.md, or directly in one of `KINDS`."""
    folders = PurePath(file).parts[:-1]
    return not folders or (len(folders) == 1 and folders[0] in KINDS)


def explain_misplaced(file: str) -> str:
    """Return why a file that is not placed right cannot be read."""
    return (
        f'"{file}" cannot be read: the files of a skill lie beside its {FILE}, or directly in its folder '
        f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
    )


def collect_skills(skills: Iterable[Skill]) -> dict[str, Skill]:
    """Return skills by name.

    Raises InvalidCantrip if two have one name, or one wraps a skill that is not there, wraps itself, or copies its
    text.
    """
    by_name: dict[str, Skill] = {}
    for skill in skills:
        if (other := by_name.get(skill.name)) is not None:
            raise InvalidCantrip(
                f'skills: {other.folder} and {skill.folder} are both called "{skill.name}": give one another name'
            )
        by_name[skill.name] = skill
    if len(by_name) > MOST:
        raise InvalidCantrip(f"skills: expected at most {MOST} in one folder, got {len(by_name)}")
    for skill in by_name.values():
        _check_wrapped(by_name, skill)
    return by_name


def _check_wrapped(skills: Mapping[str, Skill], skill: Skill) -> None:
    where, passed, inner = f"skills: {skill.folder}/{FILE}", [skill.name], skill
    while inner.wraps is not None:
        if inner.wraps not in skills:
            nearest = suggest_nearest(inner.wraps, [name for name in skills if name != inner.name])
            raise InvalidCantrip(f'{where}: wraps: no skill is called "{inner.wraps}": {nearest}')
        inner = skills[inner.wraps]
        if inner.name in passed:
            raise InvalidCantrip(f"{where}: wraps: {' wraps '.join([*passed, inner.name])}: a skill cannot wrap itself")
        passed.append(inner.name)
        copied = _list_long_lines(skill.text) & _list_long_lines(inner.text)
        if copied:
            raise InvalidCantrip(
                f'{where}: it wraps "{inner.name}" and repeats its text, which would stay when that skill changes: '
                f"leave it out, an entity reads both: {shorten(min(copied))}"
            )


def _list_long_lines(text: str) -> set[str]:
    """Return the lines that are too long to be equal by chance. Commands in code may well be equal."""
    lines = (" ".join(line.split()) for line in _CODE.sub("", text).splitlines())
    return {line for line in lines if len(line) >= COPIED}


def describe_skills(skills: Mapping[str, Skill], description: str) -> str:
    """Return the description of the gate that reads these skills."""
    lines = [f"- {skill.name}: {_cut(skill.description)}" for skill in skills.values()]
    return "\n".join([description, *lines])


def _cut(description: str) -> str:
    if len(description) <= LONGEST_DESCRIPTION:
        return description
    return f"{description[: LONGEST_DESCRIPTION - 1]}…"


def compose_skill(skills: Mapping[str, Skill], name: str, shown: str) -> str:
    """Return what an entity reads of a skill: its text around that of the skill that it wraps, and its files.

    `shown` is the path of the folder of skills for the circle's file gates; "" if they do not reach it.
    """
    skill = skills[name]
    parts = [_compose_text(skills, skill)]
    inner: Skill | None = skill
    while inner is not None:
        parts += _describe_files(inner, shown)
        inner = None if inner.wraps is None else skills[inner.wraps]
    return "\n\n".join(parts)


def _compose_text(skills: Mapping[str, Skill], skill: Skill) -> str:
    if skill.wraps is None:
        return skill.text
    before, after = _split_steps(skill.text)
    inner = _compose_text(skills, skills[skill.wraps])
    parts = [before, f"[the skill {skill.wraps}]\n\n{inner}\n\n[end of the skill {skill.wraps}]", after]
    return "\n\n".join(part for part in parts if part)


def _split_steps(text: str) -> tuple[str, str]:
    """Return the steps before and after: the text up to the heading "After", and the text from there on."""
    after = next((match for match in _SECTION.finditer(text) if match[1].lower() == "after"), None)
    return (text, "") if after is None else (text[: after.start()].strip(), text[after.start() :].strip())


def _describe_files(skill: Skill, shown: str) -> list[str]:
    notes = []
    if skill.files:
        where = f"; they lie in {shown}/{skill.folder}" if shown else ""
        files = ", ".join(skill.files)
        notes.append(f'[files of {skill.name}, read with skill("{skill.name}", file=…){where}: {files}]')
    notes += [f"[{explain_misplaced(file)}]" for file in skill.misplaced[:3]]
    if len(skill.misplaced) > 3:
        notes.append(f"[nor can {len(skill.misplaced) - 3} other files of {skill.name}, for the same reason]")
    return notes
