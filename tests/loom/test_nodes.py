"""The tables of nodes in both SQL stores: joined nodes, and entities without a living owner."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cantrip_actors.loom import Fenced, Quarantined, mark_gone, this_process
from cantrip_actors.loom.stores.nodes import NodeInfo
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Ended, IntentGiven
from tests.loom.histories import AT, header, turn
from tests.loom.test_store import Place

INFO = NodeInfo("w", 5, release="1", serves={"c": "desk"})


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    place = Place(request.param, tmp_path)
    with place.open() as opened:
        yield opened
    place.clear()


def begin(store: Any, entity: str, owner: str | None = None, ttl: float = 60) -> dict[str, int]:
    """Begin an entity, which is at work, and return the tokens under which its holder runs it."""
    tokens = {} if owner is None else {entity: store.claim(entity, owner, ttl).token}
    store.append([header(entity, lasting=True), IntentGiven(entity, "go", AT)], tokens)
    return tokens


def make_idle(store: Any, entity: str) -> None:
    given = [header(entity, lasting=True), IntentGiven(entity, "go", AT)]
    store.append([*given, *turn(entity, f"turn of {entity}", None, terminated=True)])


def found(store: Any) -> list[tuple[str, bool, str]]:
    return [tuple(one) for one in store.unowned(100)]


@pytest.mark.rule("N-01")
def test_a_node_that_leaves_has_no_row_and_its_entity_has_no_owner_once_it_is_gone(store: Any) -> None:
    owner = this_process()
    store.join(owner, 60, INFO)
    begin(store, "e", owner)
    (node,) = store.nodes()
    assert (node.info, node.is_living, node.release_no) == (INFO, True, 1)
    store.leave(owner)
    assert store.nodes() == []
    mark_gone(owner)
    assert found(store) == [("e", True, "gone")]


@pytest.mark.rule("N-06")
def test_a_node_that_returns_late_keeps_untaken_entities(store: Any) -> None:
    store.join("late", -1, INFO)
    kept, lost = begin(store, "kept", "late", -1), begin(store, "lost", "late", -1)
    if store.expires:
        assert [node.is_living for node in store.nodes()] == [False]
    store.claim("lost", "other", 60)
    store.beat("late", 60, INFO, busy=2, is_draining=False)
    assert [node.is_living for node in store.nodes()] == [True]
    store.append([Ended("kept", "cancelled", AT)], kept)
    with pytest.raises(Fenced):
        store.append([Ended("lost", "cancelled", AT)], lost)


@pytest.mark.rule("N-06")
def test_a_node_whose_row_was_removed_adds_its_row_again(store: Any) -> None:
    store.join("late", -2 * 86_400, INFO)
    store.join("other", 60, INFO)
    assert [node.owner for node in store.nodes()] == ["other"]
    store.beat("late", 60, INFO, busy=0, is_draining=False)
    assert {node.owner for node in store.nodes()} == {"late", "other"}


@pytest.mark.rule("N-10")
def test_work_without_a_living_holder_is_found_with_running_entities_first(store: Any) -> None:
    owner = this_process()
    store.join(owner, 60, INFO)
    make_idle(store, "mail")
    make_idle(store, "idle")
    store.post([Mail(entity_id="mail", key="k", kind="intent", body={"intent": "x"}, at=AT)])
    begin(store, "mine", owner)
    begin(store, "dead", "dead", -1)
    begin(store, "free")
    assert found(store) == [("dead", True, "expired"), ("free", True, "free"), ("mail", False, "free")]
    assert store.place("mine") == owner
    assert store.place("dead") is None


def test_leases_of_dead_holders_on_idle_entities_are_removed(store: Any) -> None:
    store.join("w", 60, INFO)
    make_idle(store, "idle")
    store.claim("idle", "dead", -1)
    store.claim("name:x", "dead", -1)
    begin(store, "busy", "dead", -1)
    assert store.sweep(store.dead_holders()) == 2
    assert store.sweep(store.dead_holders()) == 0
    assert found(store) == [("busy", True, "expired")]


@pytest.mark.rule("N-14", "W-43")
@pytest.mark.parametrize("has_nodes", [False, True])
def test_deaths_count_only_as_long_as_the_entity_makes_no_progress(store: Any, has_nodes: bool) -> None:
    if has_nodes:
        store.join("w", 60, INFO)
    begin(store, "e")
    for n in range(6):
        lease = store.claim("e", f"holder {n}", -1)
        store.append([IntentGiven("e", f"more {n}", AT)], {"e": lease.token})
    for n in range(3):
        store.claim("e", f"another {n}", -1)
    with pytest.raises(Quarantined):
        store.claim("e", "last", 60)
    assert found(store) == []
    store.claim("e", "last", 60, lift=True)


@pytest.mark.rule("N-60")
def test_releases_are_in_order_of_first_appearance_and_one_can_be_made_the_newest(store: Any) -> None:
    for owner, release in (("a", "1"), ("b", "2"), ("c", "1")):
        store.join(owner, 60, INFO._replace(release=release))
    numbers = {node.info.release: node.release_no for node in store.nodes()}
    assert numbers["2"] > numbers["1"]
    store.use_release("1")
    numbers = {node.info.release: node.release_no for node in store.nodes()}
    assert numbers["1"] > numbers["2"]


@pytest.mark.rule("N-63")
def test_a_node_learns_at_its_heartbeat_that_it_shall_drain(store: Any) -> None:
    store.join("w", 60, INFO)
    assert store.beat("w", 60, INFO, busy=0, is_draining=False) is False
    store.ask_to_drain("w")
    assert store.beat("w", 60, INFO, busy=0, is_draining=False) is True
