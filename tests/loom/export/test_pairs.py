"""Preference pairs: which ways on from a turn are siblings, which is better, and what makes no pair."""

import json
from dataclasses import replace

import pytest

from cantrip_actors.loom.export.pairs import pairs_jsonl
from cantrip_actors.records.records import IntentGiven, Rewarded
from tests.loom.histories import AT, header, run, turn
from tests.loom.test_view import loom_of
from tests.loom.told import written_once


def pairs(loom, **options):
    return [json.loads(line) for line in pairs_jsonl(loom, **options)]


def worth(loom, **options):
    return [(one["metadata"]["chosen"]["turn"], one["metadata"]["rejected"]["turn"]) for one in pairs(loom, **options)]


def forked(entity, *turn_ids, parent="a1", intent="again", reward=None):
    """A fork from `parent` whose last turn has this reward."""
    records = [header(entity, parent_turn=parent, forked=True), IntentGiven(entity, intent, AT)]
    for number, turn_id in enumerate(turn_ids, 1):
        records += turn(entity, turn_id, parent, number, text=turn_id)
        parent = turn_id
    return records if reward is None else [*records, Rewarded(entity, parent, reward, AT)]


ORIGIN = [header("a"), IntentGiven("a", "go", AT), *turn("a", "a1", None)]


@pytest.mark.rule("LOOM-3", "LOOM-4")
def test_pairs_of_a_loom_of_a_runtime_are_right():
    written = written_once()
    made = pairs(written.loom)
    assert [[one["metadata"][side]["entity"] for side in ("chosen", "rejected")] for one in made] == [
        [written.forks[0], written.forks[1]],
        [written.forks[0], written.forks[2]],
    ]
    first = made[0]
    assert list(first) == ["prompt", "chosen", "rejected", "tools", "metadata"]
    assert [message["role"] for message in first["prompt"]] == [
        *("system", "user", "user", "assistant", "tool", "tool", "user"),
    ]
    assert [message["role"] for message in first["chosen"]] == ["assistant", "tool"]
    assert first["chosen"][1]["content"] == "a"
    assert first["rejected"][1]["content"] == "b"
    assert first["metadata"]["from_turn"] == written.loom.header(written.forks[0]).parent_turn


def test_the_branch_with_the_higher_reward_is_chosen():
    loom = loom_of(ORIGIN, forked("b", "b1", reward=1), forked("c", "c1", reward=3), forked("d", "d1", reward=2))
    assert worth(loom) == [("c1", "d1"), ("c1", "b1"), ("d1", "b1")]


def test_branches_with_equal_rewards_make_no_pair():
    assert worth(loom_of(ORIGIN, forked("b", "b1", reward=1), forked("c", "c1", reward=1))) == []


def test_a_branch_without_a_reward_makes_no_pair():
    assert worth(loom_of(ORIGIN, forked("b", "b1", reward=1), forked("c", "c1"))) == []


def test_a_difference_within_the_margin_makes_no_pair():
    loom = loom_of(ORIGIN, forked("b", "b1", reward=1), forked("c", "c1", reward=1.5))
    assert worth(loom, margin=0.5) == []
    assert worth(loom, margin=0.4) == [("c1", "b1")]


def test_branches_with_different_intents_make_no_pair():
    assert worth(loom_of(ORIGIN, forked("b", "b1", reward=1), forked("c", "c1", intent="else", reward=2))) == []


def test_branches_with_different_calls_make_no_pair():
    other = forked("c", "c1", reward=2)
    other[0] = replace(other[0], call={"system_prompt": "be long"})
    assert worth(loom_of(ORIGIN, forked("b", "b1", reward=1), other)) == []


@pytest.mark.rule("LOOM-3")
def test_the_latest_reward_of_the_last_turn_that_has_one_counts():
    two = forked("b", "b1", "b2")
    loom = loom_of(
        ORIGIN,
        [*two, Rewarded("b", "b1", 9, AT), Rewarded("b", "b2", 5, AT), Rewarded("b", "b2", 1, AT)],
        [*forked("c", "c1", "c2"), Rewarded("c", "c1", 2, AT)],
    )
    assert worth(loom) == [("c1", "b2")]


def test_the_original_makes_a_pair_with_a_fork_of_the_same_intent():
    more = [IntentGiven("a", "again", AT), *turn("a", "a2", "a1", 2), Rewarded("a", "a2", 7, AT)]
    assert worth(loom_of(ORIGIN, more, forked("b", "b1", reward=1))) == [("a2", "b1")]
    assert worth(loom_of(ORIGIN, more[1:], forked("b", "b1", reward=1))) == []


def test_turns_after_the_next_intent_do_not_count():
    later = [IntentGiven("b", "and then", AT), *turn("b", "b2", "b1", 2), Rewarded("b", "b2", 9, AT)]
    loom = loom_of(ORIGIN, [*forked("b", "b1", reward=1), *later], forked("c", "c1", reward=2))
    assert worth(loom) == [("c1", "b1")]
    assert len(pairs(loom)[0]["rejected"]) == 2


def test_a_loom_without_forks_has_no_pairs():
    assert pairs(loom_of(run("a", "a1", "a2"))) == []
