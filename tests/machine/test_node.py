"""The decisions of a node (`machine/node.py`), as tables of cases."""

import pytest

from cantrip_actors.machine.node import (
    RETRY_POLLS,
    Checked,
    DrainBegan,
    Event,
    Found,
    Joined,
    LoadEnded,
    NodeAction,
    Renewed,
    State,
    advance,
    begin,
    is_ready,
    is_steady,
    may_look_for,
    may_renew,
    may_sweep,
)
from cantrip_actors.machine.placement import Candidate, Member, Take, UnloadIdle

TTL = 10.0
ME = Member("me", 2, serves={"c1": "desk"})
OTHER = Member("other", 2, serves={"c1": "desk"})


def play(*events: tuple[float, Event]) -> tuple[State, list[NodeAction]]:
    """Return the state of a node after events, and what it does at the last one. It joined at 0."""
    state, actions = begin(TTL, 0.0), list[NodeAction]()
    for now, event in ((0.0, Joined("me")), *events):
        state, actions = advance(state, now, event)
    return state, actions


def beats(*times: float) -> list[tuple[float, Event]]:
    return [(time, Renewed()) for time in times]


def found(*entities: str, members: tuple[Member, ...] = (ME,), idle: int = 0, hopeless: tuple[str, ...] = ()) -> Found:
    return Found(members, [Candidate(one, "c1", "desk") for one in entities], hopeless, idle)


@pytest.mark.rule("N-10")
@pytest.mark.parametrize(
    ("renewed", "now", "expected"),
    [
        ([2, 4, 6, 8], 9, False),
        ([2, 4, 6, 8, 10], 10, True),
        ([2, 4, 6, 8, 10], 15, True),
        ([2, 4, 6, 8, 10], 15.1, False),
        ([2, 8, 10, 12], 12, False),
        ([2, 8, 10, 12, 14, 16, 18], 18, True),
    ],
    ids=["too soon", "a whole ttl", "half a ttl ago", "longer ago", "late once", "a whole ttl after that"],
)
def test_a_node_is_steady_after_it_renewed_in_time_for_a_whole_ttl(
    renewed: list[float], now: float, expected: bool
) -> None:
    state, _ = play(*beats(*renewed))
    assert is_steady(state, now) is expected
    assert may_sweep(state, now) is expected
    assert may_look_for(state, now, "e", "expired") is expected
    assert may_look_for(state, now, "e", "free")
    assert may_look_for(state, now, "e", "gone")


@pytest.mark.rule("N-06")
def test_a_late_renewal_is_counted_and_a_node_is_ready_again_at_once() -> None:
    state, _ = play(*beats(2, 20, 22))
    assert state.late == 1
    assert is_ready(state, 32)
    assert not is_ready(state, 32.1)


@pytest.mark.rule("N-04")
@pytest.mark.parametrize(("now", "expected"), [(60.0, True), (60.1, False)])
def test_leases_are_renewed_while_the_event_loop_ticks(now: float, expected: bool) -> None:
    assert may_renew(0.0, now, 60.0) is expected


@pytest.mark.rule("N-10", "N-16")
def test_a_node_takes_as_many_entities_as_it_has_room_for_and_none_of_them_twice() -> None:
    state, actions = play((1, found("a", "b", "c")))
    assert actions == [Take("a"), Take("b")]
    assert state.loading == {"a", "b"}
    _, actions = advance(state, 2, found("a", "b"))
    assert actions == []


@pytest.mark.rule("N-09")
def test_an_entity_that_another_node_took_is_left_out_at_the_next_look_only() -> None:
    state, _ = play((1, found("a")), (1.5, LoadEnded("a", is_living=False)), (2, Checked()))
    assert not may_look_for(state, 2, "a", "free")
    state, _ = advance(state, 3, Checked())
    assert may_look_for(state, 3, "a", "free")


def test_an_entity_that_cannot_be_taken_is_left_out_for_many_looks() -> None:
    state, _ = play((1, found(hopeless=("a",))))
    looks = 0
    while not may_look_for(state, 1, "a", "free"):
        state, _ = advance(state, 1, Checked())
        looks += 1
    assert looks == RETRY_POLLS + 1


@pytest.mark.rule("N-63")
def test_a_node_that_drains_takes_nothing_and_is_not_ready() -> None:
    state, _ = play((1, Renewed(is_asked=True)), (2, Renewed()), (2, DrainBegan()))
    assert state.is_asked
    assert not is_ready(state, 2)
    assert not may_look_for(state, 2, "a", "free")
    _, actions = advance(state, 3, found("a", members=(ME._replace(is_draining=True), OTHER)))
    assert actions == []


@pytest.mark.rule("N-18")
def test_a_node_with_far_more_load_than_others_unloads_idle_entities() -> None:
    loaded = ME._replace(busy=2)
    assert play((1, found(members=(loaded, OTHER), idle=1)))[1] == [UnloadIdle(1)]
    assert play((1, found(members=(loaded, OTHER))))[1] == []


def test_a_node_that_joins_again_has_the_new_name() -> None:
    state, _ = play((5, Joined("me again")))
    assert state.owner == "me again"
