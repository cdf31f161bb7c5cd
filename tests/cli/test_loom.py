"""Looking at a loom: lists, trees, turns, threads, and ids given in part."""

import json
import re

import pytest

from cantrip_actors import Cantrip, Circle, ProviderError, Runtime, open_loom, scripted
from cantrip_actors.cli.errors import UnknownId
from cantrip_actors.cli.loom_views import Finder
from cantrip_actors.wards import max_depth, max_turns

LOOM = "sqlite:.cantrip/loom.db"


def calls(gate: str, **args: object) -> dict:
    return {"tool_calls": [{"gate": gate, "args": args}]}


@pytest.fixture
def told(place):
    """A loom with a root, a child of it that failed at a gate, and a fork; the ids of these three."""
    cantrip = Cantrip(
        crystal=scripted(
            [
                {"content": "I ask somebody.", **calls("call_agent", intent="look it up")},
                calls("nothing"),
                calls("done", answer="milk"),
                calls("done", answer="it was\nmilk"),
                calls("done", answer="bread"),
            ]
        ),
        circle=Circle(gates=["done", "call_agent", "echo"], wards=[max_turns(9), max_depth(1)]),
    )
    with Runtime.blocking(LOOM) as runtime:
        episode = runtime.cast(cantrip, "what do I need?")
        fork = runtime.fork(episode.thread[0].id, intent="and what else?")
        runtime.reward(episode.thread[0].id, 0.5)
        child = runtime.loom.subtree(episode.entity_id)[1]
    return episode.entity_id, child, fork.entity_id


class TestIds:
    @pytest.fixture
    def finder(self, told):
        with open_loom(LOOM) as loom:
            yield Finder(loom)

    def test_an_id_is_found_by_its_whole_its_end_or_its_beginning(self, finder, told):
        for entity in told:
            assert finder.find(entity).id == entity
            assert finder.find(entity[-8:]).id == entity
            assert finder.find(f"  {entity[-8:].upper()} ").id == entity
            assert finder.find(entity[:-1]).id == entity

    def test_an_entity_stands_for_its_last_turn(self, finder, told):
        with open_loom(LOOM) as loom:
            assert finder.turn(told[0]) == loom.turns(told[0])[-1].id

    def test_an_ambiguous_id_is_rejected_with_candidates(self, finder, told):
        with pytest.raises(UnknownId, match=r'"0" could be any of \w{8} \(entity\), .*give more of it'):
            finder.find("0")

    @pytest.mark.parametrize("typed", ["zzz", "", "01a2-not-an-id"])
    def test_an_unknown_id_is_rejected(self, finder, typed):
        with pytest.raises(UnknownId, match="no turn and no entity"):
            finder.find(typed)


class TestCommands:
    def test_ls_shows_roots_and_forks_or_everything(self, cantrip, told):
        root, child, fork = (one[-8:] for one in told)
        assert [line.split()[0] for line in cantrip("loom", "ls").out.splitlines()[1:]] == [root, fork]
        assert child in cantrip("loom", "ls", "--all").out
        rows = cantrip("loom", "ls", "--all", "--json").json
        assert {row["id"] for row in rows} == set(told)
        assert rows[0]["intent"] == "what do I need?"
        assert rows[0]["state"] == "terminated"

    @pytest.mark.rule("L-04")
    def test_ls_says_done_to_people_and_terminated_to_programs_and_selects_by_either(self, cantrip, told):
        assert {line.split()[3] for line in cantrip("loom", "ls").out.splitlines()[1:]} == {"done"}
        by_plain_word = cantrip("loom", "ls", "--state", "done", "--json").json
        assert {row["state"] for row in by_plain_word} == {"terminated"}
        assert by_plain_word == cantrip("loom", "ls", "--state", "terminated", "--json").json

    def test_tree_shows_children_and_forks_below_their_turns(self, cantrip, told):
        said = cantrip("loom", "tree")
        shape = re.sub(r"\b[0-9a-f]{8}\b", "ID", said.out)
        assert shape == (
            "ID what do I need? done · 0 tokens\n"
            '├─ 1 ID call_agent "I ask somebody." reward 0.5\n'
            "│  ├─ ID look it up done · 0 tokens\n"
            "│  │  ├─ 1 ID nothing failed\n"
            "│  │  └─ 2 ID done completed\n"
            "│  └─ fork ID and what else? done · 0 tokens\n"
            "│     └─ 1 ID done completed\n"
            "├─ 2 ID call_agent (goes on)\n"
            "└─ 3 ID done completed\n"
        )

    def test_tree_takes_the_id_of_an_entity_or_of_a_turn(self, cantrip, told):
        by_entity = cantrip("loom", "tree", told[1]).out
        assert by_entity.startswith(told[1][-8:])
        with open_loom(LOOM) as loom:
            turn = loom.turns(told[1])[0].id
        assert cantrip("loom", "tree", turn[-10:]).out == by_entity

    def test_tree_in_json_is_nested(self, cantrip, told):
        (root,) = cantrip("loom", "tree", "--json").json
        first = root["turns"][0]
        assert [one["id"] for one in first["children"]] == [told[1]]
        assert [one["id"] for one in first["forks"]] == [told[2]]
        assert first["reward"] == 0.5

    def test_show_prints_everything_about_a_turn(self, cantrip, told):
        with open_loom(LOOM) as loom:
            failed = loom.turns(told[1])[0]
        said = cantrip("loom", "show", failed.id[-8:]).out
        assert failed.id in said
        assert "calls    nothing({})" in said
        assert re.search(r"failed   nothing \([\d.]+ ms\): gate not available: nothing", said)
        as_json = cantrip("loom", "show", failed.id, "--json").json
        assert as_json["gate_calls"][0]["is_error"] is True

    @pytest.mark.rule("Y-30")
    def test_spending_sums_up_by_periods(self, cantrip, tmp_path):
        url = f"sqlite:{tmp_path}/paid.db"
        usage = {"prompt_tokens": 900, "completion_tokens": 100, "cost": 0.02}
        with Runtime.blocking(url) as runtime:
            answers = scripted([{"content": text, "usage": usage} for text in ("one", "two")])
            entity = runtime.ensure("desk", Cantrip(answers, circle=Circle(["done"], [max_turns(3)])))
            entity.send("first")
            entity.send("second")
        lines = cantrip("loom", "spending", "desk", "--per", "intent", "--loom", url).out.splitlines()
        assert [line.split() for line in lines] == [
            ["PERIOD", "TOKENS", "COST"],
            ["1", "1,000", "0.0200"],
            ["2", "1,000", "0.0200"],
        ]
        (row,) = json.loads(cantrip("loom", "spending", "desk", "--json", "--loom", url).out)
        assert row["usage"]["total_tokens"] == 2000

    def test_thread_leads_from_the_root_to_the_turn(self, cantrip, told):
        said = cantrip("loom", "thread", told[1]).out
        assert said.index(told[0][-8:]) < said.index(told[1][-8:])
        turns = cantrip("loom", "thread", told[1], "--json").json
        assert [turn["entity_id"] for turn in turns] == [told[0], told[1], told[1]]

    def test_export_writes_one_turn_per_line(self, cantrip, told, place):
        said = cantrip("loom", "export", told[0])
        turns = [json.loads(line) for line in said.out.splitlines()]
        assert [turn["sequence"] for turn in turns] == [1, 2, 3]
        assert cantrip("loom", "export", told[0], "--output", "thread.jsonl").out == ""
        assert (place / "thread.jsonl").read_text() == said.out
        assert cantrip("loom", "export", told[0], "--json").json == turns
        assert cantrip("loom", "export", told[0], "--output", "no/where.jsonl").code == 2

    def test_verify_reports_changes_or_that_there_are_no_changes(self, cantrip, told, place):
        said = cantrip("loom", "verify", LOOM)
        assert said.code == 0
        assert "3 entities: every record is as it was written\nfingerprint " in said.out
        cantrip("loom", "copy", LOOM, "edited.jsonl")
        path = place / "edited.jsonl"
        path.write_bytes(path.read_bytes().replace(b"what do I need?", b"what do I want?", 1))
        said = cantrip("loom", "verify", "edited.jsonl")
        assert said.code == 1
        assert ": 1 fault\nrecord 2: this IntentGiven of entity" in said.out
        found = cantrip("loom", "verify", "edited.jsonl", "--json").json
        assert (found["ok"], found["faults"][0]["record"]) == (False, 2)

    def test_copy_writes_the_same_loom_to_another_store(self, cantrip, told):
        copied = cantrip("loom", "copy", LOOM, "sqlite:copy.db", "--json").json
        assert copied["fingerprint"] == cantrip("loom", "verify", LOOM, "--json").json["fingerprint"]
        for entity in told:
            assert cantrip("loom", "export", entity, "--loom", "copy.db").out == cantrip("loom", "export", entity).out
        again = cantrip("loom", "copy", LOOM, "copy.db")
        assert again.code == 1
        assert "copy.db holds entity " in again.err
        assert "<" not in again.err

    @pytest.mark.parametrize("command", ["show", "thread", "export", "tree"])
    def test_an_unknown_id_exits_with_2(self, cantrip, told, command):
        said = cantrip("loom", command, "zzz")
        assert (said.code, said.out) == (2, "")
        assert 'error: no turn and no entity is called "zzz"' in said.err
        assert cantrip("loom", command, "zzz", "--json").json["error"]["type"] == "UnknownId"

    @pytest.mark.parametrize("command", [["ls"], ["tree"], ["show", "x"], ["thread", "x"], ["export", "x"]])
    @pytest.mark.parametrize("url", ["jsonl:nowhere.jsonl", "memory:", "strange:x"])
    def test_a_missing_loom_exits_with_2_and_is_not_created(self, cantrip, place, command, url):
        said = cantrip("loom", *command, "--loom", url)
        assert said.code == 2
        assert said.err.startswith("error: ")
        assert not (place / "nowhere.jsonl").exists()

    def test_ls_without_a_loom_says_to_cast_something_first(self, cantrip):
        assert "cast something first" in cantrip("loom", "ls").err

    def test_a_file_that_is_not_a_loom_is_rejected(self, cantrip, place):
        (place / "x.jsonl").write_text("this is no loom\n" * 3)
        said = cantrip("loom", "ls", "--loom", "x.jsonl")
        assert said.code in {1, 2}
        assert said.err.startswith("error: ")

    def test_recorded_text_cannot_move_the_cursor(self, cantrip, place):
        recipe = (place / "recipe.yaml").read_text().replace("hello", '"\\e[2Jgone"')
        (place / "recipe.yaml").write_text(recipe)
        entity = cantrip("cast", "recipe.yaml", "count", "--json").json["entity_id"]
        for command in ("thread", "show", "tree"):
            assert "\x1b" not in cantrip("loom", command, entity, *(["--full"] if command != "tree" else [])).out

    def test_long_texts_are_cut_and_full_shows_them(self, cantrip, place):
        recipe = (place / "recipe.yaml").read_text().replace("hello", '"' + "x" * 2000 + "\\nb\\n" * 50 + '"')
        (place / "recipe.yaml").write_text(recipe)
        entity = cantrip("cast", "recipe.yaml", "count", "--json").json["entity_id"]
        short = cantrip("loom", "thread", entity).out
        assert "more characters" in short
        assert "more lines" in short
        assert "more" not in cantrip("loom", "thread", entity, "--full").out

    @pytest.mark.rule("Y-21")
    def test_the_thread_and_the_tree_show_every_intent(self, cantrip, place):
        echo = Cantrip(scripted(lambda context: f"re: {context[-1].content}"), circle=Circle(["done"], [max_turns(30)]))
        with Runtime.blocking(LOOM) as runtime:
            entity = runtime.invoke(echo, "milk", name="notes", by="anna")
            entity.episode()
            for number in range(26):
                entity.send(f"bread {number}", by="ben")
            entity.steer("hurry", by="carl")
            entity.send("eggs")
            entity.steer("and slowly", by="dora")
        texts = ["milk", *(f"bread {number}" for number in range(26)), "hurry", "eggs", "and slowly"]
        tree, thread = (cantrip("loom", command, "notes").out for command in ("tree", "thread"))
        for lines in (tree.splitlines(), thread.splitlines()):
            found = [[at for at, line in enumerate(lines) if line.endswith(text)] for text in texts[1:]]
            assert [len(places) for places in found] == [2 if "re: " in lines[at[-1]] else 1 for at in found]
            assert sorted(found) == found
        assert "intent by ben: bread 3\n" in tree
        assert "steer by dora: and slowly\n" in tree
        assert "\nintent by ben at 2" in thread
        turns = cantrip("loom", "thread", "notes", "--json").json
        assert [one["text"] for turn in turns for one in turn["messages"]] == texts[:-1]
        (root,) = cantrip("loom", "tree", "notes", "--json").json
        assert [one["text"] for one in root["messages"]] == texts
        assert [one["before_turn"] for one in root["messages"]][-3:] == [turns[-1]["id"], turns[-1]["id"], None]

    @pytest.mark.rule("Y-21")
    def test_the_thread_of_an_entity_without_turns_has_its_intents(self, cantrip, place):
        def fail(_):
            raise ProviderError("it is broken", retryable=False)

        broken = Cantrip(scripted(fail), circle=Circle(["done"], [max_turns(3)]))
        with Runtime.blocking(LOOM) as runtime:
            runtime.ensure("idle", broken)
            with pytest.raises(ProviderError):
                runtime.cast(broken, "milk", by="anna", key="k")
            entity = runtime.begun_with("k").id
        assert re.fullmatch(r"intent by anna at \d+-\d+-\d+ \d+:\d+\n +milk\n", cantrip("loom", "thread", entity).out)
        assert cantrip("loom", "thread", entity, "--json").json == []
        assert cantrip("loom", "thread", "idle").code == 0

    def test_the_tree_of_a_long_thread_shows_its_ends(self, cantrip, place):
        many = Cantrip(
            crystal=scripted([calls("echo", text="x")] * 99 + [calls("done", answer=1)]),
            circle=Circle(gates=["done", "echo"], wards=[max_turns(100)]),
        )
        with Runtime.blocking(LOOM) as runtime:
            runtime.cast(many, "again and again")
        lines = cantrip("loom", "tree").out.splitlines()
        assert len(lines) < 20
        assert any("… 88 turns" in line for line in lines)


@pytest.mark.rule("W-33")
class TestInput:
    """`cantrip loom input` prints what a model was given for a turn."""

    def test_the_input_of_a_turn_has_its_messages_gates_and_settings(self, cantrip, told):
        with open_loom(LOOM) as loom:
            first, *_, last = loom.turns(told[0])
        text = cantrip("loom", "input", last.id[-8:]).out
        assert "  user     what do I need?" in text
        assert "  calls    call_agent(" in text
        assert "  says     I ask somebody." in text
        assert "  gates    " in text
        assert "milk" not in cantrip("loom", "input", first.id).out

    def test_json_has_the_shape_of_the_service(self, cantrip, told):
        given = cantrip("loom", "input", told[0], "--json").json
        with open_loom(LOOM) as loom:
            assert given["turn_id"] == loom.turns(told[0])[-1].id
        assert [message["role"] for message in given["messages"]] == ["user", "assistant", "tool"]
        assert {tool["name"] for tool in given["tools"]} >= {"done", "call_agent", "echo"}
        assert given["messages"][0]["content"] == "what do I need?"
        assert given["is_exact"] is False

    def test_texts_of_an_entity_cannot_control_the_terminal(self, cantrip, place):
        crystal = scripted([{"content": "\x1b[2Jgone", **calls("echo", text="a")}, calls("done", answer="b")])
        with Runtime.blocking(LOOM) as runtime:
            circle = Circle(gates=["done", "echo"], wards=[max_turns(9)])
            episode = runtime.cast(Cantrip(crystal=crystal, circle=circle), "go")
        text = cantrip("loom", "input", episode.entity_id).out
        assert "\x1b" not in text
        assert "␛[2Jgone" in text
