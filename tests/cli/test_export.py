"""Exports, search and statistics on the command line, without secrets."""

import json

import pytest
from atif import Trajectory

from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.wards import max_turns

LOOM = "sqlite:.cantrip/loom.db"
KEY = "gh" + "p_" + "a1B2c3D4e5" * 4


def calls(gate: str, **args: object) -> dict:
    return {"tool_calls": [{"gate": gate, "args": args}]}


@pytest.fixture
def told(place):
    """A root that echoed a key, and two forks of it, rewarded 1 and 0."""
    said = [calls("echo", text=KEY), calls("nothing"), calls("done", answer="milk")]
    cantrip = Cantrip(scripted(said), circle=Circle(gates=["done", "echo"], wards=[max_turns(9)]))
    with Runtime.blocking(LOOM) as runtime:
        episode = runtime.cast(cantrip, "what do I need?")
        forks = [
            runtime.fork(episode.thread[0].id, intent="again", crystal=scripted([calls("done", answer=answer)]))
            for answer in ("good", "bad")
        ]
        for fork, reward in zip(forks, (1.0, 0.0), strict=True):
            runtime.reward(fork.thread[-1].id, reward)
    return episode.entity_id, *(fork.entity_id for fork in forks)


def lines(said):
    assert said.code == 0, said.err
    return [json.loads(line) for line in said.out.splitlines()]


class TestFormats:
    def test_turns_of_a_thread_or_of_the_whole_loom_are_exported(self, cantrip, told):
        assert len(lines(cantrip("loom", "export", told[0]))) == 3
        assert len(lines(cantrip("loom", "export"))) == 5

    def test_chat_lines_are_exported(self, cantrip, told):
        (line,) = lines(cantrip("loom", "export", told[1], "--format", "chat"))
        assert [message["role"] for message in line["messages"]] == [
            "user",
            "assistant",
            "tool",
            "user",
            "assistant",
            "tool",
        ]
        assert len(lines(cantrip("loom", "export", "--format", "chat"))) == 3

    def test_preference_pairs_are_exported(self, cantrip, told):
        (pair,) = lines(cantrip("loom", "export", "--format", "pairs"))
        assert (pair["chosen"][-1]["content"], pair["rejected"][-1]["content"]) == ("good", "bad")
        assert cantrip("loom", "export", told[0], "--format", "pairs").code == 2

    def test_trajectories_are_exported(self, cantrip, told):
        found = lines(cantrip("loom", "export", "--format", "atif"))
        assert [Trajectory.model_validate(one).trajectory_id for one in found] == list(told)
        assert len(lines(cantrip("loom", "export", told[2], "-f", "atif"))) == 1

    def test_export_writes_an_html_page(self, cantrip, told, place):
        said = cantrip("loom", "export", "--format", "html", "-o", "loom.html")
        assert (said.code, said.out) == (0, "")
        assert "bytes written to loom.html" in said.err
        page = (place / "loom.html").read_text()
        assert page.startswith("<!doctype html>")
        assert all(f'"id":"{entity}"' in page for entity in told)
        assert f'"id":"{told[0]}"' not in cantrip("loom", "export", told[1], "--format", "html").out
        assert cantrip("loom", "export", "--format", "html", "--json").code == 2

    @pytest.mark.parametrize("form", ["jsonl", "chat", "pairs", "atif"])
    def test_json_export_is_one_array_of_the_lines(self, cantrip, told, form):
        assert cantrip("loom", "export", "--format", form, "--json").json == lines(
            cantrip("loom", "export", "-f", form)
        )


class TestSecrets:
    @pytest.mark.parametrize("form", ["jsonl", "chat", "pairs", "atif", "html"])
    def test_no_export_format_contains_secrets(self, cantrip, told, form, monkeypatch):
        monkeypatch.setenv("MILK_API_KEY", "what do I need?")
        said = cantrip("loom", "export", "--format", form).out
        assert KEY not in said
        assert "[redacted:github-token]" in said
        assert "what do I need" not in said
        assert ("[redacted:MILK_API_KEY]" in said) == (form != "jsonl")  # turns alone have no intents

    def test_as_it_is_exports_and_searches_secrets(self, cantrip, told):
        assert KEY in cantrip("loom", "export", "--as-it-is").out
        assert KEY in cantrip("loom", "search", "a1B2", "--as-it-is").out
        assert cantrip("loom", "search", "a1B2").code == 1


class TestSearch:
    def test_search_shows_each_match_with_its_turn(self, cantrip, told):
        said = cantrip("loom", "search", "MILK")
        assert said.code == 0
        assert 'call: done({"answer":"milk"})' in said.out
        (hit, _) = cantrip("loom", "search", "milk", "--json").json
        assert (hit["entity_id"], hit["sequence"], hit["place"]) == (told[0], 3, "call")

    def test_search_filters_by_gate_error_expression_and_entity(self, cantrip, told):
        assert [hit["sequence"] for hit in cantrip("loom", "search", "--errors", "--json").json] == [2]
        assert len(cantrip("loom", "search", "--gate", "done", "--json").json) == 3
        assert len(cantrip("loom", "search", "--gate", "done", "--in", told[1], "--json").json) == 1
        assert "good" in cantrip("loom", "search", "--regex", "go+d").out

    def test_search_finds_what_a_sender_said_at_a_time(self, cantrip, told):
        with Runtime.blocking(LOOM) as runtime:
            runtime.cast(Cantrip(scripted(["sent"]), gates=[], max_turns=3), "send milk", by="anna")
        (line, *_) = cantrip("loom", "search", "--by", "anna", "--since", "2026-01-01T00:00Z").out.splitlines()
        assert line.endswith("intent by anna: send milk")
        assert cantrip("loom", "search", "milk", "--by", "anna", "--until", "2026-01-01T00:00Z").code == 1
        wrong = cantrip("loom", "search", "milk", "--since", "yesterday")
        assert wrong.code == 2
        assert "since: expected a time with an offset" in wrong.err

    def test_search_exits_with_1_without_matches(self, cantrip, told):
        assert cantrip("loom", "search", "nowhere to be found").code == 1

    @pytest.mark.parametrize(("words", "why"), [(("(",), "is not a regular expression"), (("a", "b"), "not for both")])
    def test_search_exits_with_2_for_an_invalid_expression(self, cantrip, told, words, why):
        said = cantrip("loom", "search", "--regex", *words)
        assert said.code == 2
        assert why in said.err

    def test_a_limit_says_that_there_is_more(self, cantrip, told):
        said = cantrip("loom", "search", "--limit", "1")
        assert len(said.out.splitlines()) == 1
        assert "there is more" in said.err


class TestStats:
    def test_stats_are_printed_as_text(self, cantrip, told):
        said = cantrip("loom", "stats").out
        assert "entities    3 (3 done)" in said
        assert "turns       5, of 5 utterances" in said
        assert "rewards     2, mean 0.5" in said
        assert "gate nothing: 1 calls, 1 failed (100%)" in said

    def test_stats_are_printed_as_json_for_all_or_one_entity(self, cantrip, told):
        assert cantrip("loom", "stats", "--json").json["turns"] == 5
        assert cantrip("loom", "stats", told[1], "--json").json["turns"] == 1
