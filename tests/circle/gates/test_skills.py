"""Skills: folders of instructions, which a circle shows by name and an entity reads when it needs them."""

from pathlib import Path
from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, InvalidCantrip, Runtime, scripted, wrap
from cantrip_actors.gates import read, skills
from cantrip_actors.recipes import load_recipe
from cantrip_actors.wards import max_turns
from tests.pictures import png

pytestmark = pytest.mark.rule("V-21")

REVIEW = """---
name: code-review
description: Review a change of code: faults first.
license: MIT
allowed-tools: Read Grep
metadata:
  version: "1.2"
---

# Review a change

Read the whole change first, and think of the people who will have to read it after you.
"""


def write(folder: Path, texts: dict[str, str | bytes]) -> Path:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def head(name: str, more: str = "") -> str:
    return f"---\nname: {name}\ndescription: What {name} is for.\n{more}---\n"


async def ask(circle: Circle, *calls: dict[str, Any]) -> list[Any]:
    """Return what an entity in this circle observes of these calls of `skill`."""
    steps = [{"tool_calls": [{"gate": "skill", "args": args} for args in calls]}, {"content": "done"}]
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(Cantrip(scripted(steps), circle=circle), "go")
    return list(episode.thread[0].gate_calls)


async def test_an_entity_sees_the_names_of_skills_and_reads_one_with_its_files(tmp_path: Path) -> None:
    quoted = REVIEW.replace("Review a change of code: faults first.", '"Review a change of code: faults first."')
    folder = write(
        tmp_path / "skills",
        {
            "code-review/SKILL.md": quoted,
            "code-review/checklist.md": "one\ntwo\n",
            "code-review/scripts/count.py": "print(1)\n",
            "code-review/assets/logo.png": png(2, 2),
            "code-review/.git/config": "hidden",
            "writing/SKILL.md": head("writing") + "Write short sentences.\n",
            "no-skill/README.md": "left alone",
        },
    )
    circle = Circle(["done", read.with_(root=tmp_path)], [max_turns(2)], skills=folder)
    gate = circle.gate("skill")
    assert gate is not None
    assert gate.description.endswith(
        "\n- code-review: Review a change of code: faults first.\n- writing: What writing is for."
    )
    assert gate.parameters["properties"]["name"]["enum"] == ["code-review", "writing"]
    whole, checklist, part, logo = await ask(
        circle,
        {"name": "code-review"},
        {"name": "code-review", "file": "checklist.md"},
        {"name": "code-review", "file": "checklist.md", "offset": 2},
        {"name": "code-review", "file": "assets/logo.png"},
    )
    assert whole.result.startswith("# Review a change\n\nRead the whole change first")
    assert "they lie in skills/code-review: assets/logo.png, checklist.md, scripts/count.py]" in whole.result
    assert ".git" not in whole.result
    assert (checklist.result, part.result) == ("one\ntwo\n", "two\n")
    assert "image/png" in logo.result


async def test_a_file_that_is_not_one_of_the_skill_is_refused_with_the_reason(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "skills", {"a/SKILL.md": head("a"), "a/ooxml/x.xsd": "x", "a/scripts/deep/y.py": "y", "b.txt": "b"}
    )
    (folder / "a" / "out.md").symlink_to(tmp_path / "secret.md")
    (tmp_path / "secret.md").write_text("93ab7")
    circle = Circle(["done"], [max_turns(2)], skills=folder)
    calls = [
        ({"name": "a", "file": "ooxml/x.xsd"}, "lie beside its SKILL.md, or directly in its folder scripts, "),
        ({"name": "a", "file": "scripts/deep/y.py"}, "lie beside its SKILL.md, or directly in its folder scripts, "),
        ({"name": "a", "file": "../b.txt"}, '".." is not allowed'),
        ({"name": "a", "file": str(tmp_path / "secret.md")}, "cannot be read"),
        ({"name": "a", "file": "out.md"}, "leads outside"),
        ({"name": "a", "file": ""}, "is a folder"),
        ({"name": "a", "file": "none.md"}, "no such file"),
        ({"name": "", "file": None}, 'no skill is called ""'),
        ({"name": "A"}, 'no skill is called "A": known: a'),
    ]
    whole, *refused = await ask(circle, {"name": "a"}, *(args for args, _ in calls))
    assert '"ooxml/x.xsd" cannot be read' in whole.result
    for observation, (args, reason) in zip(refused, calls, strict=True):
        assert observation.is_error, args
        assert reason in observation.result, args
        assert "93ab7" not in observation.result, args


async def test_a_skill_wraps_another_and_is_read_around_it(tmp_path: Path) -> None:
    ours = head("review-here", "wraps: code-review\n") + "Read CONTRIBUTING.md.\n\n## After\n\nCheck the message.\n"
    folder = write(
        tmp_path,
        {
            "code-review/SKILL.md": head("code-review") + "Read the change.",
            "ours/SKILL.md": ours,
            "code-review/list.md": "",
        },
    )
    circle = Circle(["done"], [max_turns(2)], skills=folder)
    (text,) = await ask(circle, {"name": "review-here"})
    places = [
        text.result.index(part)
        for part in ("Read CONTRIBUTING.md.", "[the skill code-review]", "Read the change.", "## After", "list.md")
    ]
    assert places == sorted(places)
    write(folder, {"code-review/SKILL.md": head("code-review") + "The next version."})
    (text,) = await ask(circle, {"name": "review-here"})
    assert "The next version." in text.result
    (folder / "code-review" / "SKILL.md").unlink()
    (text,) = await ask(circle, {"name": "review-here"})
    assert text.is_error
    assert 'no skill is called "code-review"' in text.result


LONG = "Read the whole change first, and think of the people who will have to read it after you."

WRONG: list[tuple[dict[str, str | bytes], str]] = [
    ({}, "with a SKILL.md for each skill, found none"),
    ({"a/SKILL.md": "no head"}, "a/SKILL.md: expected a head with name and description"),
    ({"a/SKILL.md": ""}, "a/SKILL.md: expected a head"),
    ({"a/SKILL.md": "---\nname: a\n---\n"}, "expected a text as its description, got None"),
    ({"a/SKILL.md": "---\nname: 3\ndescription: x\n---\n"}, "expected a text as its name, got 3"),
    ({"a/SKILL.md": "---\nname: ''\ndescription: x\n---\n"}, "expected a text as its name"),
    ({"a/SKILL.md": "---\nname: ../b\ndescription: x\n---\n"}, "expected a name of letters, digits and hyphens"),
    ({"a/SKILL.md": REVIEW}, "a/SKILL.md, line 3: its head is not YAML"),
    ({"a/SKILL.md": b"\xff\xfe"}, "a/SKILL.md: it cannot be read"),
    ({"a/SKILL.md": head("a", "x: &x {y: 1}\nz: {<<: [*x, *x]}\n")}, "expected a head without references"),
    ({"a/SKILL.md": head("a", f"x: {'y' * 70_000}\n")}, "expected a head of at most 64,000 characters, got 70,0"),
    ({"a/SKILL.md": head("a", f"x: {'[' * 30_000}{']' * 30_000}\n")}, "expected a head of at most 20 lists"),
    ({"a/SKILL.md": head("a", "x: 2026-99-99\n")}, "its head cannot be read"),
    ({"a/SKILL.md": head("a", "x: !!bool maybe\n")}, "its head cannot be read"),
    ({"a/SKILL.md": head("x"), "b/SKILL.md": head("x")}, 'a and b are both called "x"'),
    ({"a/SKILL.md": head("a", "wraps: 3\n")}, "wraps: expected the name of another skill, got 3"),
    ({"a/SKILL.md": head("a", "wraps: b\n"), "bb/SKILL.md": head("bb")}, 'no skill is called "b": did you mean "bb"'),
    ({"a/SKILL.md": head("a", "wraps: a\n")}, "a wraps a: a skill cannot wrap itself"),
    (
        {"a/SKILL.md": head("a", "wraps: b\n"), "b/SKILL.md": head("b", "wraps: a\n")},
        "a wraps b wraps a: a skill cannot wrap itself",
    ),
    (
        {"a/SKILL.md": f"{head('a', 'wraps: b' + chr(10))}First.\n  {LONG}\n", "b/SKILL.md": head("b") + LONG},
        'it wraps "b" and repeats its text',
    ),
]


@pytest.mark.parametrize(("texts", "problem"), WRONG, ids=[problem for _, problem in WRONG])
def test_a_wrong_skill_is_refused_where_the_circle_is_made(
    tmp_path: Path, texts: dict[str, str | bytes], problem: str
) -> None:
    with pytest.raises(InvalidCantrip) as refused:
        Circle(["done"], [max_turns(2)], skills=write(tmp_path, texts))
    assert problem in str(refused.value)


@pytest.mark.parametrize("folder", ["", 3, "no such folder"])
def test_a_folder_of_skills_that_is_none_is_refused(folder: Any) -> None:
    with pytest.raises(InvalidCantrip, match="skills: "):
        Circle(["done"], [max_turns(2)], skills=folder)


def test_a_skill_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"elsewhere/SKILL.md": head("a"), "skills/b/SKILL.md": head("b")})
    (tmp_path / "skills" / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidCantrip, match="leads outside the folder of skills"):
        skills(tmp_path / "skills")


async def test_skills_are_given_in_short_in_recipes_and_behind_rules(tmp_path: Path) -> None:
    write(tmp_path, {"skills/a/SKILL.md": head("a") + "The text.", "steps.yaml": "[{content: done}]"})
    recipes = {
        "short.yaml": "crystal: scripted:steps.yaml\ngates: []\nmax_turns: 2\nskills: skills\n",
        "long.yaml": "crystal: scripted:steps.yaml\ncircle: {gates: [done], wards: [{max_turns: 2}], skills: skills}\n",
    }
    write(tmp_path, dict(recipes))
    made = [load_recipe(tmp_path / name) for name in recipes]
    made.append(Cantrip("local:x", max_turns=2, skills=tmp_path / "skills"))
    definitions = [cantrip.circle.definitions for cantrip in made]
    assert [definition.name for definition in definitions[0]] == ["done", "skill"]
    assert definitions[0] == definitions[1] == definitions[2]

    def refuse(call: Any) -> None:
        raise ValueError("read the notes first")

    guarded = Circle(["done", wrap("skill", pre=[refuse])], [max_turns(2)], skills=tmp_path / "skills")
    (observation,) = await ask(guarded, {"name": "a"})
    assert "read the notes first" in observation.result


async def test_a_program_reads_skills(tmp_path: Path) -> None:
    folder = write(tmp_path, {"a/SKILL.md": head("a") + "The text."})
    circle = Circle(["done"], [max_turns(2)], medium="python", skills=folder)
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(Cantrip(scripted([{"code": "done(skill('a'))"}]), circle=circle), "go")
    assert episode.result == "The text."
