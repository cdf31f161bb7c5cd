"""The placement of entities (`machine/placement.py`), as tables of cases and as laws."""

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.machine.placement import (
    Candidate,
    Member,
    PollResult,
    State,
    Take,
    UnloadIdle,
    advance,
    can_any_run,
    order_among,
    rank,
    should_end_here,
)

SERVES = {"c1": "desk"}


def members(*rooms: tuple[int, int]) -> list[Member]:
    """Nodes with these capacities and loads."""
    return [Member(f"n{n}", capacity, busy, serves=SERVES) for n, (capacity, busy) in enumerate(rooms)]


def orphans(count: int) -> list[Candidate]:
    return [Candidate(f"e{n}", "c1", "desk") for n in range(count)]


def settle(nodes: list[Member], unowned: list[Candidate]) -> Counter[str]:
    """Have each node look in turn until nothing changes; return how many entities each took."""
    states = {one.owner: State(one.owner) for one in nodes}
    taken: Counter[str] = Counter()
    still = 0
    while still < 2 * len(nodes) + 2:
        before = len(unowned)
        for one in list(nodes):
            states[one.owner], actions = advance(states[one.owner], PollResult(nodes, unowned))
            got = {action.entity_id for action in actions if isinstance(action, Take)}
            unowned = [other for other in unowned if other.entity_id not in got]
            taken[one.owner] += len(got)
            nodes = [
                other._replace(busy=other.busy + len(got)) if other.owner == one.owner else other for other in nodes
            ]
        still = still + 1 if len(unowned) == before else 0
    return taken


@pytest.mark.rule("N-11")
def test_the_entities_of_a_dead_node_are_distributed() -> None:
    taken = settle(members((2000, 0), (2000, 0), (2000, 0)), orphans(1000))
    assert sum(taken.values()) == 1000
    assert max(taken.values()) < 1000 / 3 * 1.15


@pytest.mark.rule("N-17")
def test_nodes_with_more_room_take_more() -> None:
    taken = settle(members((400, 0), (400, 350), (400, 0), (400, 0)), orphans(600))
    assert taken["n1"] <= 50
    assert min(taken["n0"], taken["n2"], taken["n3"]) > 150


@pytest.mark.rule("N-17")
def test_casts_on_equal_nodes_spread_evenly() -> None:
    taken = settle(members(*[(1000, 0)] * 4), orphans(1000))
    assert max(taken.values()) <= 1.5 * 250


@pytest.mark.rule("N-16")
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=4), st.integers(0, 12))
def test_as_many_entities_are_taken_as_there_is_room(rooms: list[tuple[int, int]], count: int) -> None:
    nodes = members(*rooms)
    room = {one.owner: one.room for one in nodes}
    taken = settle(nodes, orphans(count))
    assert all(taken[owner] <= room[owner] for owner in taken)
    assert sum(taken.values()) == min(count, sum(room.values()))


@pytest.mark.rule("N-10")
@given(st.integers(1, 5), st.text(min_size=1, max_size=8))
def test_the_nodes_have_different_ranks_for_an_entity(count: int, entity: str) -> None:
    nodes = members(*[(10, n) for n in range(count)])
    ranks = [rank(one, Candidate(entity, "c1"), nodes) for one in nodes]
    assert sorted(ranks) == list(range(count))


@pytest.mark.rule("N-10")
def test_the_next_node_takes_an_entity_that_the_first_one_leaves() -> None:
    nodes, unowned = members((10, 0), (10, 0)), orphans(1)
    late = max(nodes, key=lambda one: rank(one, unowned[0], nodes))
    state, actions = advance(State(late.owner), PollResult(nodes, unowned))
    assert actions == []
    _, actions = advance(state, PollResult(nodes, unowned))
    assert actions == [Take("e0")]


@pytest.mark.rule("N-61")
def test_a_node_takes_only_entities_of_cantrips_that_it_serves() -> None:
    (one,) = members((10, 0))
    assert rank(one, Candidate("e", "c2", "desk"), [one]) == math.inf
    assert rank(one, Candidate("e", "c2", "desk", may_move=True), [one]) == 0
    assert rank(one, Candidate("e", "c2", "desk", moves_to="c1"), [one]) == 0
    assert rank(one, Candidate("e", "c2", "other", may_move=True), [one]) == math.inf


@pytest.mark.rule("N-60")
def test_an_idle_entity_goes_to_the_newest_release_and_a_busy_one_to_its_own() -> None:
    old = Member("old", 10, serves={"c1": "desk"}, release_no=1)
    new = Member("new", 10, serves={"c2": "desk"}, release_no=2)
    both = [old, new]
    idle, busy = Candidate("e", "c1", "desk", may_move=True), Candidate("e", "c1", "desk")
    assert [rank(one, idle, both) for one in both] == [math.inf, 0]
    assert [rank(one, busy, both) for one in both] == [0, math.inf]
    rolled_back = [old._replace(release_no=3), new]
    assert [rank(one, idle, rolled_back) for one in rolled_back] == [0, math.inf]


@pytest.mark.rule("N-59")
def test_an_idle_entity_goes_to_a_node_that_offers_its_cantrip_under_a_further_name() -> None:
    one = Member("one", 10, serves={"c1": "help"}, aliases={"desk": "c1"})
    assert rank(one, Candidate("e", "c0", "desk", may_move=True), [one]) == 0
    unclear = one._replace(unclear={"c1": ()})
    assert rank(unclear, Candidate("e", "c0", "desk", may_move=True), [unclear]) == math.inf
    named = one._replace(unclear={"c1": ("desk",)})
    assert rank(named, Candidate("e", "c0", "desk", may_move=True), [named]) == 0
    assert rank(named, Candidate("e", "c1", "help"), [named]) == math.inf


def test_the_work_for_the_rank_of_an_entity_grows_like_the_number_of_nodes() -> None:
    reads = Counter[int]()

    class Served(dict[str, str | None]):
        def values(self) -> Any:
            reads[count] += 1
            return super().values()

    for count in (10, 100):
        nodes = [Member(f"n{n}", 10, serves=Served(SERVES)) for n in range(count)]
        entity = Candidate("e", "c0", "desk", may_move=True)
        assert rank(nodes[0], entity, nodes) < count
        assert can_any_run(entity, nodes)
    assert 0 < reads[100] <= 10 * reads[10]


@pytest.mark.rule("N-63")
def test_a_node_that_drains_takes_nothing() -> None:
    nodes = [one._replace(is_draining=True) for one in members((10, 0))]
    assert advance(State("n0"), PollResult(nodes, orphans(3)))[1] == []


@pytest.mark.rule("N-63", "N-65")
def test_a_node_that_drains_ends_an_episode_that_no_staying_node_can_continue() -> None:
    leaving = Member("leaving", 10, serves={"c1": "desk"}, is_draining=True)
    other, same = Member("other", 10, serves={"c2": "desk"}), Member("same", 10, serves={"c1": "desk"})
    one = Candidate("e", "c1", "desk")
    assert should_end_here("leaving", one, [leaving, other])
    assert not should_end_here("leaving", one, [leaving, other, same])
    assert should_end_here("leaving", one, [leaving, other, same._replace(is_draining=True)])
    assert not should_end_here("leaving", one, [leaving])


@pytest.mark.rule("N-18")
@pytest.mark.parametrize(("busy", "unloads"), [(8, True), (5, False), (0, False)])
def test_a_node_that_is_loaded_more_than_others_unloads_idle_entities(busy: int, unloads: bool) -> None:
    nodes = members((10, busy), (10, 4))
    assert (UnloadIdle(2) in advance(State("n0"), PollResult(nodes, [], idle=3))[1]) is unloads
    assert advance(State("n0"), PollResult(nodes, [], idle=0))[1] == []


@pytest.mark.rule("N-18")
@pytest.mark.parametrize(("busy", "many"), [(2, 0), (20, 0), (22, 11), (60, 30)])
def test_a_node_unloads_as_many_idle_entities_as_it_works_on_more_than_others(busy: int, many: int) -> None:
    nodes = members((200, busy), (200, 0))
    actions = advance(State("n0"), PollResult(nodes, [], idle=500))[1]
    assert actions == ([UnloadIdle(many)] if many else [])


def test_a_node_that_is_not_listed_takes_nothing() -> None:
    assert advance(State("other"), PollResult(members((10, 0)), orphans(3)))[1] == []


@pytest.mark.rule("N-47")
@given(st.sets(st.text(max_size=5), min_size=1, max_size=6), st.text(max_size=5))
def test_nodes_agree_on_one_order_for_a_timer(owners: set[str], key: str) -> None:
    places = [order_among(owners, one, key) for one in owners]
    assert sorted(places) == list(range(len(owners)))
    assert order_among(owners - {"x"}, "x", key) == 0
