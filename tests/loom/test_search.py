"""Finding turns by text, gate, error, reward and expression, with an excerpt and within bounded time."""

import time
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import pytest
from hypothesis import given

from cantrip_actors import Cantrip, LoomError, Runtime, scripted
from cantrip_actors.loom.reading.search import AROUND, Query, search
from cantrip_actors.looms import open_store
from tests.loom.histories import header, histories, texts, turn
from tests.loom.processes import child
from tests.loom.test_view import FAMILY, loom_of
from tests.loom.told import written_once

SEARCH = """
import sys
from cantrip_actors.loom.reading.search import Query, search
from cantrip_actors.looms import open_loom

with open_loom(sys.argv[1]) as loom:
    list(search(loom, Query(regex="(a+)+$", seconds=2.0)))
"""


@pytest.fixture
def loom():
    return written_once().loom


def found(loom, **query):
    return [(hit.place, hit.excerpt[hit.start : hit.end]) for hit in search(loom, Query(**query))]


def turns(loom, **query):
    return [hit.turn_id for hit in search(loom, Query(**query))]


class TestText:
    def test_a_text_is_found_in_every_place_and_in_any_case(self, loom):
        assert found(loom, text="LOOK IT UP") == [("call", "look it up"), ("intent", "look it up")]
        assert found(loom, text="keep my") == [("intent", "keep my")]
        assert found(loom, text="i TRY") == [("content", "I try")]
        assert found(loom, text="whole of") == [("result", "whole of")]

    def test_a_search_can_be_limited_to_some_places(self, loom):
        assert found(loom, text="look it up", places=("intent",)) == [("intent", "look it up")]

    def test_an_excerpt_is_of_one_line_and_shows_where_it_was_cut(self):
        said = f"first\n{'a' * 100}needle{'b' * 100}\nlast"
        (hit,) = search(
            loom_of([header("e"), *turn("e", "t", None, text=said)]), Query(text="needle", places=("result",))
        )
        assert hit.excerpt == f"…{'a' * AROUND}needle{'b' * AROUND}…"
        assert hit.excerpt[hit.start : hit.end] == "needle"
        assert (hit.entity_id, hit.turn_id, hit.sequence) == ("e", "t", 1)

    @given(before=texts, wanted=texts.filter(bool), after=texts)
    def test_any_text_of_a_result_is_found(self, before, wanted, after):
        one = loom_of([header("e"), *turn("e", "t", None, text=before + wanted + after)])
        (hit,) = search(one, Query(text=wanted, places=("result",)))
        shown = hit.excerpt[hit.start : hit.end]
        assert wanted.lower().startswith(shown.lower()) or shown.lower() == wanted.lower()

    def test_an_utterance_of_several_turns_is_found_once(self):
        assert turns(loom_of(*FAMILY), text="hello", entity="a", below=False) == [*("a1", "a1"), *("a2", "a2")]

    def test_hits_are_yielded_during_the_search(self, loom):
        assert next(search(loom, Query(text="echo"))).place == "call"


class TestTimeAndSender:
    async def test_an_intent_of_three_weeks_ago_is_found_by_its_sender_with_the_work_for_it(self):
        desk = Cantrip(scripted(lambda context: f"noted: {context[-1].content}"), gates=[], max_turns=3)
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.ensure("desk", desk)
            for week in range(4):
                await entity.send(f"week {week}: my parcel is broken", by="anna")
                await entity.send(f"week {week}: where is my parcel?", by="ben")
                await anyio.sleep(7 * 86_400)
            loom = runtime.loom
            first = datetime.fromisoformat(loom.headers().__next__().at)
        since, until = ((first + timedelta(days=days)).isoformat() for days in (6, 13))

        def search_texts(**conditions):
            return [(hit.place, hit.excerpt) for hit in search(loom, Query(text="parcel", **conditions))]

        intent = "week 1: my parcel is broken"
        assert search_texts(since=since, until=until, by="anna") == [
            ("intent", intent),
            ("content", f"noted: {intent}"),
        ]
        assert len(search_texts(since=since, until=until)) == 4
        assert len(search_texts(by="anna")) == 8
        assert len(search_texts(since=until)) == 8
        hit = next(search(loom, Query(text="parcel", since=since, by="ben")))
        assert (hit.by, since <= hit.at < until) == ("ben", True)

    async def test_a_search_for_places_leaves_out_the_other_parts_of_a_conversation(self):
        async with Runtime.open("memory:") as runtime:
            await runtime.cast(Cantrip(scripted(["buy milk"]), gates=[], max_turns=3), "milk?")
            assert found(runtime.loom, text="milk", places=("content",)) == [("content", "milk")]

    def test_a_time_without_an_offset_is_refused(self):
        for name in ("since", "until"):
            with pytest.raises(LoomError, match=f"{name}: expected a time with an offset"):
                Query(**{name: "2026-11-28T09:00"})


class TestTurns:
    def test_turns_are_found_by_gate(self, loom):
        assert len(turns(loom, gate="peek")) == 1
        assert len(turns(loom, gate="echo")) == 11
        assert turns(loom, gate="nothing") == []

    def test_turns_are_found_by_their_errors(self, loom):
        first = loom.turns(loom.entities()[0])[0].id
        assert turns(loom, errors=True) == [first]
        assert turns(loom, errors=True, gate="fail") == [first]
        assert turns(loom, errors=True, gate="echo") == []
        assert found(loom, errors=True, text="valueerror") == [("result", "ValueError")]

    def test_turns_are_found_by_reward(self, loom):
        rewards = {turn_id: loom[turn_id].reward for turn_id in turns(loom, min_reward=0.5)}
        assert sorted(rewards.values()) == [0.5, 1.0, 5.0]
        assert len(turns(loom, max_reward=0.0)) == 2

    def test_a_search_of_an_entity_includes_its_subtree(self, loom):
        root, child = loom.entities()[:2]
        assert found(loom, entity=child, text="child", places=("result",)) == [("result", "child")]
        assert found(loom, entity=root, text="child", places=("result",)) == [("result", "child")]
        assert found(loom, entity=root, below=False, text="child", places=("result",)) == []
        with pytest.raises(LoomError, match="not in this loom"):
            next(search(loom, Query(entity="nobody")))

    @given(histories())
    def test_a_query_without_conditions_finds_every_turn(self, history):
        everything = loom_of(*history.batches)
        assert sorted(one for one in turns(everything) if one) == sorted(history.owners)


@pytest.mark.real_time
class TestExpressions:
    def test_a_regular_expression_works_as_in_python(self, loom):
        assert found(loom, regex=r"a\.\w+", places=("result",)) == [("result", "a.txt")]
        assert found(loom, regex=r"(?i)^i TRY") == [("content", "I try")]
        assert found(loom, regex=r"\u202e|é") == [("call", "é"), ("result", "é")]

    def test_a_catastrophic_pattern_is_ended(self):
        one = loom_of([header("e"), *turn("e", "t", None, text="a" * 40 + "!")])
        began = time.monotonic()
        with pytest.raises(LoomError, match=r"took more than 0.5 s.*write it simpler"):
            list(search(one, Query(regex="(a+)+$", seconds=0.5)))
        assert time.monotonic() - began < 10

    def test_a_catastrophic_pattern_is_ended_also_if_the_process_that_searches_is_killed(self, tmp_path):
        path = tmp_path / "loom.jsonl"
        with open_store(path) as store:
            store.append([header("e"), *turn("e", "t", None, text="a" * 40 + "!")])
        searching = child(SEARCH, path)
        children = Path(f"/proc/{searching.pid}/task/{searching.pid}/children")
        began = time.monotonic()
        while not (pids := children.read_text(encoding="ascii").split()):
            assert time.monotonic() - began < 30
            time.sleep(0.02)
        time.sleep(0.3)  # it has read its input by now
        searching.kill()
        searching.communicate()
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            assert time.monotonic() - began < 30
            time.sleep(0.1)

    @pytest.mark.parametrize("expression", ["(", "a{99999999999999999999}", "(" * 5000])
    def test_an_invalid_pattern_is_refused(self, expression):
        for records in ([], turn("e", "t", None, text="a")):
            loom = loom_of([header("e"), *records])
            with pytest.raises(LoomError, match="is not a regular expression") as refused:
                list(search(loom, Query(regex=expression)))
            assert len(str(refused.value)) < 400

    @pytest.mark.rule("Z-02")
    def test_a_pattern_that_takes_seconds_to_compile_is_ended(self):
        query = Query(regex="(?i)" + "[\x01-\U0010ffff]" * 2_000, seconds=0.5)
        with pytest.raises(LoomError, match=r"took more than 0.5 s"):
            list(search(loom_of([header("e")]), query))

    def test_a_query_with_a_text_and_an_expression_is_refused(self):
        with pytest.raises(LoomError, match="not for both"):
            Query(text="a", regex="b")

    def test_an_expression_matches_lone_surrogates(self):
        one = loom_of([header("e"), *turn("e", "t", None, text="x\ud83dy")])
        assert found(one, regex="x.y", places=("result",)) == [("result", "x\ud83dy")]
