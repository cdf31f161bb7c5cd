"""What commands read and print, whatever they do: options, files, and the loom of a receipt."""

import subprocess
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs

import anyio
import pytest

from cantrip_actors import Runtime, ToolCallEvent
from cantrip_actors.cli import control, entities, recipe_sidecar, requests, schedules
from cantrip_actors.cli.output import one_line
from cantrip_actors.cli.top import ServiceSource
from cantrip_actors.recipes import load_recipe
from tests.forked import COMMAND, Forked

RECIPE_THAT_WAITS = """\
crystal:
  scripted:
    - {tool_calls: [{gate: echo, args: {text: hello}}]}
    - {tool_calls: [{gate: done, args: {answer: 5}}]}
circle:
  gates: [done, {name: echo, ask_first: true}]
  wards: [{max_turns: 10}]
"""

SLOW = "{python: 'slow_gates:echo'}"
SLOW_GATE = """\
from pathlib import Path
import anyio

async def echo(text: str) -> None:
    if not Path("is_quick").exists():
        await anyio.sleep_forever()
"""
RECEIPT = {"entity_id": "e", "key": "k", "state": "waiting"}
SCHEDULE = SimpleNamespace(
    id="s",
    next_at=None,
    is_paused=True,
    to="entity",
    name="n",
    intent="i",
    rule="every 60 s",
    zone=None,
    catch_up="one",
    overlap="skip",
)


@pytest.mark.parametrize(
    ("module", "result", "command"),
    [
        (requests, ("r", None), ("allow", "r")),
        (requests, ("r", None), ("deny", "r")),
        (requests, ("r", None), ("answer", "r", "x")),
        (requests, ("r", None), ("deliver", "r", "x")),
        (control, "e", ("steer", "n", "x")),
        (control, "e", ("interrupt", "n")),
        (entities, RECEIPT, ("post", "n", "x")),
        (entities, RECEIPT, ("undo", "n")),
        (entities, ("e", "cancelled"), ("stop", "n")),
        (schedules, SCHEDULE, ("schedule", "pause", "s")),
    ],
)
def test_a_receipt_shows_the_loom_without_its_password(
    cantrip: Any, monkeypatch: pytest.MonkeyPatch, module: Any, result: Any, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr(module, "run_quietly", lambda *_, **__: result)
    printed = cantrip(*command, "--json", "--loom", "postgresql://u:hunter2@h/db")
    assert printed.code == 0
    assert printed.json["loom"] == "postgresql://u:[redacted]@h/db"


@pytest.mark.parametrize(
    "command",
    [
        ("entities", "--state", "bogus"),
        ("entities", "--since", "yesterday"),
        ("loom", "ls", "--state", "bogus"),
        ("loom", "ls", "--since", "2026-11-28T09:00:00"),
        ("loom", "spending", "notes", "--zone", "Nowhere"),
        ("worker", "recipe.yaml", "--queue", f"a:max_running={'9' * 5_000}"),
        ("cast", f"Summarise: {'x ' * 300}", "recipe.yaml"),
        ("cast", "go", "--crystal", "ollama:x", "--gate", f"read={'x' * 300}"),
        ("cast", "recipe.yaml", "go", "--context", "value.yaml"),
        ("cast", "recipe.yaml", "go", "--context", "deep.yaml"),
        ("cast", "recipe.yaml", "go", "--history", "value.yaml"),
    ],
)
def test_a_wrong_option_is_a_mistake_in_the_command(cantrip: Any, place: Any, command: tuple[str, ...]) -> None:
    (place / "value.yaml").write_text("!!bool maybe")
    (place / "deep.yaml").write_text("[" * 600)
    if command[0] in ("entities", "loom"):
        cantrip("ensure", "notes", "recipe.yaml")
    printed = cantrip(*command)
    assert (printed.code, printed.out) == (2, "")
    assert "Traceback" not in printed.err


def test_a_recipe_in_json_is_offered_again_without_its_name(cantrip: Any, place: Any) -> None:
    circle = '{"gates": ["done"], "wards": [{"max_turns": 3}]}'
    text = f'{{"name": "notes", "crystal": {{"scripted": ["hi"]}}, "circle": {circle}}}'
    (place / "notes.json").write_text(text)
    assert cantrip("ensure", "notes", "notes.json").code == 0
    (place / "notes.json").write_text(text.replace('"hi"', '"ho"').replace('"max_turns": 3', '"max_turns": 4'))
    (moved,) = cantrip("entities", "--would-move", "--json").json
    assert moved["name"] == "notes"


def test_two_commands_that_remember_recipes_at_once_lose_none(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "other.yaml").write_text((place / "recipe.yaml").read_text().replace("max_turns: 10", "max_turns: 11"))
    first, second = (load_recipe(place / f"{name}.yaml") for name in ("recipe", "other"))
    read, others = recipe_sidecar._read, list[Thread]()

    def read_while_another_remembers(notes: Path) -> dict[str, str]:
        noted = read(notes)
        if not others:
            others.append(Thread(target=recipe_sidecar.remember, args=("sqlite:loom.db", second, "other.yaml")))
            others[0].start()
            others[0].join(0.1)  # without a lock it ends here
        return noted

    monkeypatch.setattr(recipe_sidecar, "_read", read_while_another_remembers)
    recipe_sidecar.remember("sqlite:loom.db", first, "recipe.yaml")
    others[0].join()
    assert read(place / "loom.db.recipes.json").keys() == {first.id, second.id}


def test_an_entity_whose_name_looks_like_a_module_is_found_by_its_name(cantrip: Any, terminal: Any) -> None:
    assert cantrip("ensure", "team:bob", "recipe.yaml").code == 0
    printed = terminal("chat", "team:bob", typing=[("> ", "\x04")])
    assert (printed.code, "team:bob · /help" in printed.text) == (0, True)


def test_an_entity_that_is_named_twice_is_resumed_once(cantrip: Any, place: Any) -> None:
    (place / "wait.yaml").write_text(RECIPE_THAT_WAITS)
    with Forked(
        COMMAND, "cast", "wait.yaml", "go", "--unattended", "wait", stderr=subprocess.PIPE, text=True
    ) as killed:
        for line in killed.stderr or ():
            if "waits for a person" in line:
                break
        killed.kill()
    (entity,) = cantrip("loom", "ls", "--json").json
    resumed = cantrip("resume", entity["id"], entity["id"], "--unattended", "deny", "--json")
    assert [episode["entity_id"] for episode in resumed.json] == [entity["id"]]


def test_an_entity_without_a_recipe_does_not_keep_the_others_from_being_resumed(cantrip: Any, place: Any) -> None:
    waiting = RECIPE_THAT_WAITS.replace("{name: echo, ask_first: true}", SLOW)

    async def begin() -> None:
        async with Runtime.open("sqlite:.cantrip/loom.db") as runtime:
            for name, turns in (("wait", "10"), ("other", "11")):
                recipe = place / f"{name}.yaml"
                recipe.write_text(f"name: {name}\n{waiting.replace('10', turns)}")
                recipe_sidecar.remember("sqlite:.cantrip/loom.db", load_recipe(recipe), recipe)
                entity = await runtime.invoke(load_recipe(recipe), "go", name=name)
                async for event in entity.events():
                    if isinstance(event, ToolCallEvent):
                        break

    (place / "slow_gates.py").write_text(SLOW_GATE)
    anyio.run(begin)
    (place / "other.yaml").unlink()
    (place / "is_quick").touch()
    resumed = cantrip("resume", "--json")
    assert resumed.code == 1
    failed, episode = resumed.json
    assert "which is gone" in failed["error"]["message"]
    assert (episode["result"], episode["entity_id"] == failed["entity_id"]) == (5, False)


def test_top_shows_all_turns_of_an_entity_of_a_service() -> None:
    def ask(_method: str, path: str) -> Any:
        query = parse_qs(path.partition("?")[2])
        first = int(query["after"][0]) + 1
        turns = range(first, min(first + int(query["limit"][0]), 432))
        return {"items": [{"sequence": number, "utterance": "x"} for number in turns]}

    lines = ServiceSource(cast("Any", SimpleNamespace(url="here", ask=ask))).turns("e")
    assert [line.split()[1] for line in lines] == [str(number) for number in range(1, 432)]


def test_a_token_of_other_letters_is_a_mistake_of_the_command(cantrip: Any) -> None:
    refused = cantrip("system", "--url", "http://127.0.0.1:9", "--token", "geheim-ü")
    assert refused.code == 2
    assert "Traceback" not in refused.err


@pytest.mark.parametrize(
    ("text", "width", "line"),
    [("", 4, ""), (" a \n b ", 4, "a b"), ("abcd", 4, "abcd"), ("abcde", 4, "abc…"), ("a b c d e", 4, "a b…")],
)
def test_a_text_is_one_line_of_at_most_its_width(text: str, width: int, line: str) -> None:
    assert one_line(text, width) == line


def test_the_line_of_a_long_text_takes_no_time_for_the_rest_of_it() -> None:
    class Text(str):
        __slots__ = ()

        def split(self, sep: Any = None, maxsplit: Any = -1) -> list[str]:
            assert 0 < maxsplit < 100
            return super().split(sep, maxsplit)

    assert one_line(Text("ab " * 100_000), 9) == "ab ab ab…"
