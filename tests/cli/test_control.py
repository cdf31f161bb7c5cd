"""Steer, interrupt and fork; cantrips of modules, and cantrips that options describe (Y-23)."""

from pathlib import Path
from typing import Any

import pytest

from cantrip_actors import Cantrip, open_loom, scripted
from cantrip_actors.cli.output import LOOM

pytestmark = pytest.mark.rule("Y-23")

MODULE = """
from cantrip_actors import Call, Cantrip, Circle, scripted
from cantrip_actors.wards import max_turns

def answer(context):
    return ", ".join(message.content for message in context if message.role == "user")

desk = Cantrip(scripted(answer), Call("Be brief."), Circle(["done"], [max_turns(5)]), name="desk")
other = 7
"""


@pytest.fixture
def module(place: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (place / "desks_of_a_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(place))
    return "desks_of_a_module:desk"


def test_a_cantrip_of_a_module_is_taken_wherever_a_recipe_is(cantrip, module):
    assert cantrip("cast", module, "one").out == "one\n"
    assert cantrip("ensure", "notes", module).code == 0
    assert cantrip("send", "notes", "two").out == "two\n"  # the loom's sidecar remembers it
    assert cantrip("invoke", module, "three", "--name", "more").out == "three\n"
    assert cantrip("send", "more", "four", "--recipe", module).out == "three, four\n"
    assert cantrip("entities", "--upgrades", module).code in (0, 2)
    wrong = cantrip("cast", "desks_of_a_module:other", "go")
    assert (wrong.code, "expected a cantrip, got int" in wrong.err) == (2, True)
    for path in ("desks_of_a_module.py", "desks_of_a_module.py:desk"):
        variable = path.partition(":")[2] or "VARIABLE"
        assert f"by its module and its variable: desks_of_a_module:{variable}\n" in cantrip("cast", path, "go").err
    assert "cannot import no_such_module" in cantrip("cast", "no_such_module:desk", "go").err
    assert 'desks_of_a_module has no "dsk": did you mean "desk"' in cantrip("cast", "desks_of_a_module:dsk", "go").err


def test_a_steering_message_and_an_interrupt_say_who_sent_them(cantrip, module, monkeypatch):
    monkeypatch.setenv("LOGNAME", "anna")
    cantrip("ensure", "notes", module)
    assert cantrip("steer", "notes", "be quick", "--key", "k").code == 0
    assert cantrip("steer", "notes", "be quick", "--key", "k").code == 0
    assert cantrip("interrupt", "notes", "--now", "--json").json["entity_id"]
    assert cantrip("send", "notes", "go").out == "be quick, go\n"
    (entity,) = cantrip("entities", "--json").json
    (tree,) = cantrip("loom", "tree", "notes", "--json").json
    assert [(one["kind"], one["text"]) for one in tree["messages"]] == [("steer", "be quick"), ("intent", "go")]
    assert entity["state"] == "idle"
    for command in (("steer", "nobody", "x"), ("interrupt", "nobody"), ("fork", "nobody", "x")):
        assert cantrip(*command).code == 2


def test_a_fork_continues_from_a_turn_or_from_an_entity(cantrip, module):
    first = cantrip("cast", module, "one", "--json").json["entity_id"]
    assert cantrip("fork", first, "two").out == "one, two\n"
    with open_loom(LOOM) as loom:
        turn = loom.turns(first)[0].id
    assert cantrip("fork", turn[-10:], "three").out == "one, three\n"
    fork = cantrip("fork", first, "four", "--lasting", "--key", "k", "--json").json["entity_id"]
    assert cantrip("fork", first, "four", "--lasting", "--key", "k", "--json").json["entity_id"] == fork
    assert cantrip("send", fork[-8:], "five").out == "one, four, five\n"
    assert cantrip("fork", first, "six", "--recipe", module).out == "one, six\n"


def test_a_cast_without_a_recipe_takes_its_cantrip_from_options(cantrip, place, monkeypatch):
    def make(crystal: str, *parts: Any, name: str) -> Cantrip:
        assert crystal == "anthropic:claude-sonnet-4-5"
        return Cantrip(scripted(["ok"]), *parts, name=name)

    monkeypatch.setattr("cantrip_actors.cli.quick_cantrip.Cantrip", make)
    (place / "notes").mkdir()
    (place / "notes" / "a.txt").write_text("milk")
    done = cantrip(
        *("cast", "What is there?", "--crystal", "anthropic:claude-sonnet-4-5"),
        *("--gate", "read=notes", "--gate", "list=notes", "--system", "Be brief.", "--max-turns", "3", "--json"),
    )
    with open_loom(LOOM) as loom:
        header = loom.header(done.json["entity_id"])
    assert header.call["system_prompt"] == "Be brief."
    assert {gate["name"] for gate in header.circle["gates"]} == {"done", "read", "list"}
    assert header.circle["wards"] == {"max_turns": 3}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["go"], "expected a recipe and an intent, or --crystal"),
        (["a.yaml", "go", "more"], "got 3 texts"),
        (["go", "--crystal", "nobody:x"], "nobody"),
        (["go", "--crystal", "anthropic:x", "--gate", "read"], "expected read=DIR"),
        (["go", "--crystal", "anthropic:x", "--gate", "read=gone"], "expected a folder"),
        (["go", "--crystal", "anthropic:x", "--gate", "echo=x"], "without a folder"),
        (["go", "--crystal", "anthropic:x", "--gate", "raed=."], 'did you mean "read"'),
        (["recipe.yaml", "go", "--gate", "echo"], "change the recipe instead"),
    ],
)
def test_a_mistake_in_the_options_of_a_cast_is_named(cantrip, arguments, problem):
    refused = cantrip("cast", *arguments)
    assert refused.code == 2
    assert problem in " ".join(refused.err.replace("│", " ").split())
