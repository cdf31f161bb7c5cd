"""Numbers about a loom."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.loom.reading.statistics import Durations, statistics, tally
from cantrip_actors.terms.messages import NO_USAGE
from tests.loom.histories import histories
from tests.loom.test_view import FAMILY, loom_of
from tests.loom.told import written_once


@pytest.mark.rule("PROD-3", "LOOM-9")
def test_statistics_of_a_loom_of_a_runtime_are_right():
    written = written_once()
    everything = statistics(written.loom)
    assert everything.entities == 7
    assert everything.turns == 19
    assert everything.utterances == 18
    assert everything.usage.prompt_tokens == 1800
    assert everything.usage.cost == pytest.approx(0.18)
    assert everything.folds == 2
    assert everything.errors == 1
    assert everything.gates["fail"].error_rate == 1.0
    assert everything.gates["echo"].calls == 10
    assert everything.states == {"terminated": 6, "cancelled": 1}
    assert everything.rewarded == 5
    assert everything.mean_reward == pytest.approx(1.3)
    assert everything.turn_durations.count == 19
    below = statistics(written.loom, written.root)
    assert (below.entities, below.turns) == (2, 6)
    json.dumps(everything.as_json(), allow_nan=False)


@given(histories())
def test_statistics_count_the_records_of_the_tree(history):
    loom = loom_of(*history.batches)
    everything = statistics(loom)
    assert everything.turns == len(history.owners)
    assert everything.entities == len(history.entities)
    total = NO_USAGE
    for entity in loom.entities():
        total = total + loom.usage(entity)
    assert everything.usage == total
    for entity in loom.entities():
        assert statistics(loom, entity).usage == loom.subtree_usage(entity)


def test_a_continuation_counts_as_a_turn_and_costs_nothing():
    loom = loom_of(*FAMILY)
    one = tally(loom.records("a"))
    assert (one.turns, one.utterances) == (3, 2)


@given(st.lists(st.floats(0.01, 1e7), min_size=1, max_size=50), st.floats(0, 1))
def test_percentiles_are_off_by_a_tenth_at_most(durations, share):
    taken = Durations()
    for one in durations:
        taken.take(one)
    exact = sorted(durations)[max(0, -int(-share * len(durations) // 1) - 1)]
    assert exact * 0.9 <= taken.compute_percentile(share) <= exact * 1.1


def test_durations_of_two_looms_can_be_added():
    one, other = Durations(), Durations()
    for taken, durations in ((one, [1, 2]), (other, [3, float("inf")])):
        for duration in durations:
            taken.take(duration)
    one.add(other)
    assert (one.count, one.max_ms) == (4, float("inf"))
    assert Durations().compute_percentile(0.5) == Durations().mean_ms == 0
