"""Entities that outlive a command: named ones with further intents, and entities that a SIGKILL interrupted."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantrip_actors import BlockingRuntime, Cantrip, Circle, Runtime, open_loom, scripted
from cantrip_actors.cli.recipe_sidecar import remember
from cantrip_actors.own_files.login import get_login
from cantrip_actors.recipes import load_recipe
from cantrip_actors.wards import max_turns
from tests.forked import COMMAND, Forked

pytestmark = pytest.mark.real_time

LOOM = "sqlite:.cantrip/loom.db"
SPELLS = '''\
import os
from cantrip_actors import gate

@gate
async def effect(what: str) -> str:
    """Write it down, where whoever was killed cannot take it back."""
    with open("effects.txt", "a") as file:
        file.write(what + "\\n")
    return what

async def policy(context):
    asked = [message.content for message in context if message.role == "user"]
    if context[-1].role == "user":
        return {"tool_calls": [{"gate": "effect", "args": {"what": asked[-1]}}]}
    if asked[-1] == "break":
        return {}
    done = {"tool_calls": [{"gate": "done", "args": {"answer": ", ".join(asked)}}]}
    return {**done, "delay": 60} if asked[-1] == "wait" and not os.path.exists("go") else done
'''


@pytest.fixture(autouse=True)
def spells(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A recipe of an entity that writes every intent down, and answers with all it was ever asked."""
    monkeypatch.setenv("CANTRIP_LOOM", LOOM)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("spells", None)
    (place / "spells.py").write_text(SPELLS)
    (place / "notes.yaml").write_text(
        'crystal: python:spells:policy\ncircle: {gates: [done, {python: "spells:effect"}], wards: [{max_turns: 5}]}\n'
    )
    yield place / "notes.yaml"
    sys.modules.pop("spells", None)  # the next test's module of that name is another one


def effects(place: Path) -> list[str]:
    path = place / "effects.txt"
    return path.read_text().split() if path.exists() else []


class TestNamed:
    @pytest.mark.rule("D-001")
    def test_an_entity_remembers_from_command_to_command(self, cantrip, place):
        first = cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        assert (first.code, first.out) == (0, "milk\n")
        assert cantrip("send", "notes", "bread", "-q").out == "milk, bread\n"
        (row,) = cantrip("entities", "--json").json
        assert (row["name"], row["state"], row["intents"], row["turns"]) == ("notes", "idle", 2, 4)
        assert (row["last_intent"], row["last_said"]) == ("bread", "milk, bread")
        assert cantrip("entities").out.splitlines()[1].split()[1:5] == ["notes", "idle", "2", "4"]
        said = cantrip("send", row["id"][-8:], "eggs", "--json").json
        assert (said["result"], said["terminated"], said["entity_id"]) == ("milk, bread, eggs", True, row["id"])
        assert effects(place) == ["milk", "bread", "eggs"]

    @pytest.mark.rule("W-21")
    def test_an_intent_comes_after_an_earlier_conversation(self, cantrip, place):
        (place / "talk.json").write_text('[{"role": "user", "content": "eggs"}]')
        cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        assert cantrip("send", "notes", "bread", "--history", "talk.json", "-q").out == "milk, eggs, bread\n"

    def test_long_lived_entities_work_on_trio(self, cantrip):
        assert cantrip("invoke", "notes.yaml", "milk", "--name", "notes").out == "milk\n"
        assert cantrip("send", "notes", "bread", "--backend", "trio").out == "milk, bread\n"

    def test_a_name_is_in_use_until_its_entity_is_stopped(self, cantrip):
        cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        again = cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        assert again.code == 2
        assert 'cantrip send notes "…"' in again.err
        assert cantrip("stop", "notes").code == 0
        assert cantrip("send", "notes", "bread").code == 2
        assert cantrip("stop", "notes", "--json").json["error"]["type"] == "UnknownId"
        assert "no long-lived entity" in cantrip("entities").err
        assert cantrip("entities", "--all", "--json").json[0]["state"] == "abandoned"
        assert cantrip("invoke", "notes.yaml", "eggs", "--name", "notes").out == "eggs\n"

    @pytest.mark.rule("HTTP-18")
    @pytest.mark.parametrize("command", ["stop", "abandon"])
    def test_an_end_says_the_state_in_the_loom_and_records_who_asked_for_it(self, cantrip, command):
        cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        state = cantrip(command, "notes", "--json").json["state"]
        end = json.loads(cantrip("events").out.splitlines()[-1])
        assert (end["type"], end["reason"], end["by"]) == ("EntityEndedEvent", state, get_login())

    def test_a_changed_recipe_is_used_once_it_was_given_for_its_entity(self, cantrip, spells):
        cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        cantrip("invoke", "notes.yaml", "tea", "--name", "others")
        spells.write_text(spells.read_text().replace("max_turns: 5", "max_turns: 6"))
        assert cantrip("send", "notes", "bread").code == 2
        assert cantrip("send", "notes", "bread", "--recipe", "notes.yaml").out == "milk, bread\n"
        assert cantrip("send", "notes", "eggs").out == "milk, bread, eggs\n"
        assert "has changed since" in cantrip("send", "others", "cups").err  # what was said of one is said of no other
        spells.write_text(spells.read_text().replace("max_turns: 6", "max_turns: 7"))
        assert "has changed since" in cantrip("send", "notes", "flour").err

    def test_a_send_without_a_known_recipe_asks_for_one(self, cantrip, place, spells):
        cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        notes = place / ".cantrip" / "loom.db.recipes.json"
        kept = notes.read_text()
        for text in ("", "[]", '{"x": 1}'):
            notes.write_text(text)
            said = cantrip("send", "notes", "bread")
            assert (said.code, said.out) == (2, "")
            assert "--recipe RECIPE" in said.err
        assert cantrip("send", "notes", "bread", "--recipe", "notes.yaml").out == "milk, bread\n"
        notes.write_text(kept)
        spells.write_text(spells.read_text().replace("max_turns: 5", "max_turns: 6"))
        assert "has changed since" in cantrip("send", "notes", "eggs").err
        spells.rename(place / "elsewhere.yaml")
        assert "is gone" in cantrip("send", "notes", "eggs").err
        assert cantrip("send", "notes", "eggs", "--recipe", "elsewhere.yaml").out == "milk, bread, eggs\n"
        assert effects(place) == ["milk", "bread", "eggs"]

    @pytest.mark.parametrize(
        "command",
        [("send", "nobody", "x"), ("post", "nobody", "x"), ("stop", "nobody"), ("abandon", "x"), ("resume", "x")],
    )
    def test_an_unknown_name_exits_with_2(self, cantrip, command):
        cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        said = cantrip(*command)
        assert said.code == 2
        assert "no entity is called" in said.err

    @pytest.mark.parametrize("command", [("send", "x"), ("post", "x"), ("stop",), ("abandon",), ("resume",)])
    def test_a_mistyped_name_is_not_matched_with_the_end_of_an_id(self, cantrip, command):
        cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        with open_loom(LOOM) as loom:
            (entity,) = loom.entities()
            turn = loom.turns(entity)[-1]
        for typed in (entity[-1], entity[-7:], turn.id[-1], turn.id[-8:]):
            said = cantrip(command[0], typed, *command[1:])
            assert (said.code, said.out) == (2, "")
            assert "cantrip entities" in said.err
        assert cantrip("send", entity[-8:], "bread").out == "milk, bread\n"

    def test_an_entity_is_shown_by_its_name(self, cantrip):
        cantrip("invoke", "notes.yaml", "milk", "--name", "Notes")
        assert cantrip("loom", "tree", "Notes").out == cantrip("loom", "tree").out
        for command in (("show",), ("thread",), ("export",), ("stats",)):
            assert cantrip("loom", *command, "Notes").code == 0

    def test_an_entity_takes_intents_after_a_failed_episode(self, cantrip):
        cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        assert cantrip("send", "notes", "break", "--json").code == 1
        assert cantrip("entities", "--json").json[0]["state"] == "idle"
        assert cantrip("send", "notes", "eggs").out == "milk, break, eggs\n"

    def test_a_one_shot_entity_takes_no_further_intent(self, cantrip):
        entity = cantrip("cast", "notes.yaml", "milk", "--json").json["entity_id"]
        assert "has ended" in cantrip("send", entity, "bread").err


class TestKeys:
    @pytest.mark.rule("C-11")
    def test_a_send_with_a_key_is_handled_once(self, cantrip, place):
        cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        for _ in range(2):
            assert cantrip("send", "notes", "bread", "--key", "k").out == "milk, bread\n"
        assert effects(place) == ["milk", "bread"]

    @pytest.mark.rule("C-18", "V-32")
    def test_a_beginning_with_a_key_is_repeated_with_its_own_answer(self, cantrip, place):
        begin = ("invoke", "notes.yaml", "milk", "--name", "notes", "--key", "k")
        assert cantrip(*begin).out == "milk\n"
        cantrip("send", "notes", "bread")
        assert cantrip(*begin).out == "milk\n"
        for _ in range(2):
            assert cantrip("cast", "notes.yaml", "eggs", "--key", "once").out == "eggs\n"
        assert effects(place) == ["milk", "bread", "eggs"]

    def test_a_key_that_was_used_for_something_else_is_an_error(self, cantrip):
        cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        cantrip("send", "notes", "bread", "--key", "k")
        for command in ("send", "post"):
            said = cantrip(command, "notes", "eggs", "--key", "k", "--json")
            assert (said.code, said.json["error"]["type"]) == (1, "KeyUsed")

    def test_a_repeated_send_is_answered_after_the_entity_has_ended(self, cantrip):
        cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        cantrip("send", "notes", "bread", "--key", "k")
        cantrip("stop", "notes")
        assert cantrip("send", "notes", "bread", "--key", "k").out == "milk, bread\n"
        assert cantrip("post", "notes", "bread", "--key", "k", "--json").json["state"] == "settled"
        assert cantrip("send", "notes", "bread", "--key", "new", "--json").json["error"]["type"] == "EntityEnded"


@pytest.mark.rule("N-50")
class TestSubmit:
    def test_a_submission_prints_the_id_that_its_entity_will_have(self, cantrip):
        said = cantrip("submit", "desk", "Find the parcel.", "--key", "k", "--priority", "5")
        again = cantrip("submit", "desk", "Find the parcel.", "--key", "k", "--priority", "5", "--json").json
        assert (said.code, said.out) == (0, f"{again['entity_id']} k\n")
        other = cantrip("submit", "desk", "Find the letter.", "--key", "k", "--json")
        assert (other.code, other.json["error"]["type"]) == (1, "KeyUsed")

    def test_a_submission_to_an_unknown_queue_is_an_error(self, cantrip):
        said = cantrip("submit", "desk", "Find the parcel.", "--queue", "bulk", "--json")
        assert (said.code, said.json["error"]["type"]) == (2, "InvalidIntent")


class TestPost:
    def test_a_post_prints_its_receipt_and_the_next_send_works_on_it_first(self, cantrip, place):
        entity = cantrip("invoke", "notes.yaml", "milk", "--name", "notes", "--json").json["entity_id"]
        said = cantrip("post", "notes", "bread", "--key", "k")
        assert (said.code, said.out, said.err) == (0, f"{entity} k waiting\n", "")
        assert effects(place) == ["milk"]
        assert cantrip("send", "notes", "eggs").out == "milk, bread, eggs\n"
        repeated = cantrip("post", "notes", "bread", "--key", "k", "--json").json
        assert repeated == {"entity_id": entity, "key": "k", "state": "settled", "loom": LOOM}
        assert effects(place) == ["milk", "bread", "eggs"]

    def test_a_post_needs_no_recipe(self, cantrip, place):
        cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        (place / ".cantrip/loom.db.recipes.json").unlink()
        (place / "notes.yaml").rename(place / "elsewhere.yaml")
        receipt = cantrip("post", "notes", "bread", "--json").json
        assert receipt["state"] == "waiting"
        sent = cantrip("send", "notes", "bread", "--key", receipt["key"], "--recipe", "elsewhere.yaml")
        assert sent.out == "milk, bread\n"

    def test_a_post_to_an_ended_entity_exits_with_2(self, cantrip):
        cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        cantrip("stop", "notes")
        said = cantrip("post", "notes", "bread")
        assert said.code == 2
        assert "has ended" in said.err


@pytest.mark.rule("V-07")
class TestMemory:
    def test_the_last_intent_is_undone(self, cantrip):
        entity = cantrip("invoke", "notes.yaml", "milk", "--name", "notes", "--json").json["entity_id"]
        cantrip("send", "notes", "bread")
        said = cantrip("undo", "notes")
        assert (said.code, said.out) == (0, f"{entity} undone\n")
        (tree,) = cantrip("loom", "tree", "notes", "--json").json
        assert [turn["undone"] for turn in tree["turns"]] == [False, False, True, True]
        assert cantrip("loom", "tree", "notes").out.count(" undone") == 2
        assert cantrip("loom", "show", "notes").out.startswith("turn 2 ")  # the last one that is in force
        assert cantrip("send", "notes", "eggs").out == "milk, eggs\n"
        cantrip("undo", "notes")
        cantrip("undo", "notes")
        said = cantrip("undo", "notes")
        assert (said.code, said.out) == (1, f"{entity} nothing to do\n")

    def test_the_context_is_folded(self, cantrip):
        cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        cantrip("send", "notes", "bread")
        said = cantrip("compact", "notes", "--json")
        assert (said.code, said.json["state"]) == (0, "compacted")
        assert "[folded: turns 1-" in cantrip("loom", "export", "notes", "--format", "html").out


class TestWithdraw:
    @pytest.mark.rule("C-19")
    def test_an_intent_that_waits_is_withdrawn(self, cantrip, place):
        entity = cantrip("invoke", "notes.yaml", "milk", "--name", "notes", "--json").json["entity_id"]
        cantrip("post", "notes", "bread", "--key", "k")
        said = cantrip("withdraw", "notes", "k", "--why", "sold out")
        assert (said.code, said.out, said.err) == (0, f"{entity} k withdrawn\n", "")
        again = cantrip("withdraw", "notes", "k", "--json").json
        assert again == {"entity_id": entity, "key": "k", "state": "withdrawn", "loom": LOOM}
        assert cantrip("send", "notes", "eggs").out == "milk, eggs\n"
        sent = cantrip("send", "notes", "bread", "--key", "k")
        assert sent.code == 1
        assert "took it: sold out" in sent.err
        assert effects(place) == ["milk", "eggs"]

    @pytest.mark.rule("C-19")
    def test_an_intent_that_was_worked_on_is_not_withdrawn(self, cantrip):
        cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        cantrip("send", "notes", "bread", "--key", "k")
        said = cantrip("withdraw", "notes", "k")
        assert said.code == 1
        assert said.out.endswith(" k settled\n")

    @pytest.mark.rule("C-19")
    def test_a_submission_that_waits_is_withdrawn(self, cantrip):
        entity = cantrip("submit", "desk", "milk", "--key", "k", "--json").json["entity_id"]
        said = cantrip("withdraw", "k", "--json")
        assert (said.code, said.json) == (0, {"entity_id": entity, "key": "k", "state": "withdrawn", "loom": LOOM})
        again = cantrip("withdraw", "k")
        assert again.code == 2
        assert 'no submission with key "k" waits or has begun' in again.err

    @pytest.mark.rule("C-19")
    def test_a_submission_that_has_begun_is_not_withdrawn(self, cantrip):
        cantrip("submit", "desk", "milk", "--key", "k")
        desk = Cantrip(scripted([{"content": "done"}]), circle=Circle(["done"], [max_turns(2)]), name="desk")
        with Runtime.blocking(LOOM, cantrips=[desk]) as runtime:
            runtime.submission("k").episode()
        said = cantrip("withdraw", "k")
        assert said.code == 1
        assert said.out.endswith(" k begun\n")

    def test_a_withdrawal_with_too_many_words_is_a_mistake(self, cantrip):
        said = cantrip("withdraw", "notes", "k", "more")
        assert said.code == 2
        assert "expected an entity and a key, or a key, got 3 texts" in said.err

    def test_an_unknown_key_is_a_mistake_in_the_command(self, cantrip):
        cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        said = cantrip("withdraw", "notes", "nothing", "--json")
        assert (said.code, said.json["error"]["type"]) == (2, "UnknownEntity")


class TestOtherProcesses:
    """Another runtime, as of a service, runs the entity."""

    @pytest.fixture
    def service(self, place: Path, spells: Path) -> Iterator[BlockingRuntime]:
        with Runtime.blocking(LOOM) as runtime:
            runtime.invoke(load_recipe(spells), "milk", name="notes").episode()
            yield runtime

    def test_a_send_without_a_recipe_is_answered_by_the_process_that_runs_the_entity(self, cantrip, service):
        assert cantrip("send", "notes", "bread").out == "milk, bread\n"
        assert service.entity("notes").send("eggs").result == "milk, bread, eggs"

    def test_a_send_shows_the_steps_of_the_process_that_runs_the_entity(self, cantrip, service):
        lines = [line.split(" ", 1)[1] for line in cantrip("send", "notes", "bread").err.splitlines()]
        assert lines[:2] == ["begins: bread", "calls effect"]
        assert [line.split()[0] for line in lines[2:4]] == ["turn", "turn"]
        cantrip("invoke", "notes.yaml", "milk", "--name", "own")
        own = [line.split(" ", 1)[1] for line in cantrip("send", "own", "bread").err.splitlines()]
        assert [line.split()[0] for line in lines] == [line.split()[0] for line in own]

    def test_a_send_with_a_known_recipe_is_answered_by_the_process_that_runs_the_entity(self, cantrip, service, spells):
        remember(LOOM, load_recipe(spells), spells)
        assert cantrip("send", "notes", "bread").out == "milk, bread\n"

    def test_a_recipe_is_rejected_when_another_process_runs_the_entity(self, cantrip, service):
        said = cantrip("send", "notes", "bread", "--recipe", "notes.yaml")
        assert said.code == 1
        assert "is being run by" in said.err

    def test_a_resume_without_a_recipe_says_which_process_runs_the_entity(self, cantrip, service):
        said = cantrip("resume", "notes")
        assert said.code == 1
        assert "is being run by" in said.err

    def test_a_post_is_handled_by_the_process_that_runs_the_entity(self, cantrip, service):
        assert cantrip("post", "notes", "bread", "--key", "k").code == 0
        assert cantrip("send", "notes", "bread", "--key", "k").out == "milk, bread\n"
        assert cantrip("post", "notes", "bread", "--key", "k").out.endswith(" k settled\n")


NAMED = """name: clerk
crystal: python:spells:policy
call: {{system_prompt: {prompt}}}
circle: {{gates: [done, {{python: "spells:effect"}}], wards: [{{max_turns: 5}}]}}
"""


class TestWouldMove:
    @pytest.mark.rule("C-40")
    def test_would_move_lists_the_entities_whose_recipe_has_changed(self, cantrip, place):
        (place / "clerk.yaml").write_text(NAMED.format(prompt="one"))
        cantrip("invoke", "clerk.yaml", "milk", "--name", "x")
        assert cantrip("entities", "--would-move").err == "no entity would move\n"
        (place / "clerk.yaml").write_text(NAMED.format(prompt="two"))
        (row,) = cantrip("entities", "--would-move", "--json").json
        assert (row["name"], row["cantrip"], row["idle"]) == ("x", "clerk", True)
        assert row["to"] == load_recipe(place / "clerk.yaml").id != row["from"]
        lines = cantrip("entities", "--would-move").out.splitlines()
        assert lines[1].split()[1:] == ["x", "clerk", row["from"], row["to"], "at", "its", "next", "intent"]

    @pytest.mark.rule("C-40")
    def test_would_move_accepts_recipes_and_cantrips_of_modules(self, cantrip, place):
        (place / "clerk.yaml").write_text(NAMED.format(prompt="one"))
        cantrip("invoke", "clerk.yaml", "milk", "--name", "x")
        (place / "other.yaml").write_text(NAMED.format(prompt="two"))
        (place / "offered_here.py").write_text(
            "from cantrip_actors.recipes import load_recipe\nclerk = load_recipe('other.yaml')\nnothing = 3\n"
        )
        for given in ("other.yaml", "offered_here:clerk"):
            assert len(cantrip("entities", "--would-move", "--recipe", given, "--json").json) == 1
        assert (
            "expected a cantrip, got int" in cantrip("entities", "--would-move", "--recipe", "offered_here:nothing").err
        )

    def test_would_move_without_a_recipe_is_an_error(self, cantrip, place):
        cantrip("invoke", "notes.yaml", "milk", "--name", "x")
        (place / ".cantrip" / "loom.db.recipes.json").unlink()
        assert "say which cantrips to offer" in cantrip("entities", "--would-move").err


class TestKilled:
    """`wait` holds an entity up behind its first gate; there the process is killed."""

    @pytest.fixture
    def killed(self, place):
        def run(*arguments: str) -> None:
            """Start a command, and kill it, as nothing else can, when its first turn is written."""
            before = len(effects(place))
            with Forked(COMMAND, *arguments, "-q", stderr=subprocess.DEVNULL) as started:
                until = time.monotonic() + 30
                while len(effects(place)) == before or not self.turn_is_written():
                    assert time.monotonic() < until
                    assert started.poll() is None
                    time.sleep(0.02)
                started.send_signal(signal.SIGKILL)
            assert started.returncode == -signal.SIGKILL

        return run

    def turn_is_written(self) -> bool:
        with open_loom(os.environ["CANTRIP_LOOM"]) as loom:
            return any(turn.gate_calls for one in loom.unfinished(idle=False) for turn in loom.turns(one))

    @pytest.mark.rule("D-011", "LOOM-1")
    @pytest.mark.parametrize("url", [LOOM, "jsonl:loom.jsonl"])
    def test_a_killed_cast_resumes_where_it_stopped(self, cantrip, killed, place, monkeypatch, url):
        monkeypatch.setenv("CANTRIP_LOOM", url)
        killed("cast", "notes.yaml", "wait")
        (row,) = cantrip("loom", "interrupted", "--json").json
        assert (row["state"], row["turns"], row["intent"]) == ("active", 1, "wait")
        assert row["id"][-8:] in cantrip("loom", "interrupted").out
        (place / "go").touch()
        said = cantrip("resume", "-q")
        assert (said.code, said.out) == (0, "wait\n")
        assert effects(place) == ["wait"], "what was done before the kill is not done again"
        with open_loom(url) as loom:
            last = loom.turns(row["id"])[-1]
        shown = cantrip("loom", "show", last.id).out
        assert re.search(rf"resumed +by {get_login()}, 20\d\d-", shown), shown
        assert cantrip("loom", "interrupted", "--json").json == []
        assert "nothing" in cantrip("resume").err

    def test_a_long_lived_entity_finishes_its_interrupted_intent_before_the_next(self, cantrip, killed, place):
        cantrip("invoke", "notes.yaml", "milk", "--name", "notes")
        killed("send", "notes", "wait")
        assert cantrip("entities", "--json").json[0]["state"] == "active"
        (place / "go").touch()
        assert cantrip("send", "notes", "bread", "-q").out == "milk, wait, bread\n"
        assert effects(place) == ["milk", "wait", "bread"]

    def test_an_abandoned_entity_is_not_resumed(self, cantrip, killed, place):
        killed("cast", "notes.yaml", "wait")
        (row,) = cantrip("loom", "interrupted", "--json").json
        assert cantrip("abandon", row["id"][-8:]).code == 0
        assert cantrip("abandon", row["id"]).code == 2
        assert cantrip("loom", "interrupted", "--json").json == []
        assert cantrip("resume", row["id"]).code == 2
        assert cantrip("loom", "ls", "--json").json[0]["state"] == "abandoned"
        assert cantrip("resume", "--json").json == []

    def test_an_entity_that_another_runtime_runs_is_neither_resumed_nor_abandoned(self, cantrip, place, spells):
        recipe = load_recipe(spells)
        with Runtime.blocking(LOOM) as runtime:
            running = runtime.start(recipe, "wait")
            remember(LOOM, recipe, spells)
            assert cantrip("resume", "--json").json == []
            said = cantrip("resume", running.id)
            assert said.code == 1
            assert "is being run by" in said.err
            assert cantrip("abandon", running.id).code == 1
            assert runtime.loom.state(running.id) == "active"


@pytest.mark.rule("Y-01")
def test_ensure_makes_an_entity_once_and_a_send_is_its_first_intent(cantrip) -> None:
    first = cantrip("ensure", "notes", "notes.yaml", "--json").json
    assert first["state"] == "idle"
    assert cantrip("ensure", "notes", "notes.yaml", "--json").json["entity_id"] == first["entity_id"]
    assert cantrip("entities").out.splitlines()[1].split()[1:3] == ["notes", "idle"]
    assert cantrip("send", "notes", "milk", "-q").out == "milk\n"


@pytest.mark.rule("Y-01")
def test_ensure_with_a_changed_recipe_moves_an_idle_entity_to_it(cantrip, place, spells) -> None:
    first = cantrip("ensure", "notes", "notes.yaml", "--json").json
    assert cantrip("send", "notes", "milk", "-q").out == "milk\n"
    spells.write_text(spells.read_text() + "call: {system_prompt: Be brief.}\n")
    assert cantrip("ensure", "notes", "notes.yaml", "--json").json["entity_id"] == first["entity_id"]
    assert cantrip("send", "notes", "bread", "-q").out == "milk, bread\n"
    with open_loom(LOOM) as loom:
        assert loom.header_in_force(first["entity_id"]).call["system_prompt"] == "Be brief."
