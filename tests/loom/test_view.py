"""The tree as users see it: turns, threads across forks and children, ends, usage, rewards, and no other change."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.loom import Loom, open_store
from cantrip_actors.loom.reading.statistics import statistics
from cantrip_actors.records.records import (
    Adopted,
    ChildStarted,
    Committed,
    Ended,
    Folded,
    GateFinished,
    IntentGiven,
    Observation,
    Rewarded,
    Utterance,
)
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.terms.messages import NO_USAGE, Usage
from tests.loom.histories import AT, header, histories, run, turn
from tests.loom.test_store import KINDS, anywhere, property_of


def loom_of(*batches, url="memory:"):
    store = open_store(url)

    async def append(records):
        store.append(records)

    for batch in batches:
        store.append(batch)
    return Loom(store, append)


def ids(turns):
    return [turn.id for turn in turns]


# A parent whose second utterance has a child: a1, a2 (spawns b, a child of two turns), a3 (the rest of a2's utterance).
# From a2 a fork c; from c1 a fork d; from b1 a fork f.
FAMILY = [
    [header("a"), IntentGiven("a", "count", AT), *turn("a", "a1", None, 1)],
    [*turn("a", "a2", "a1", 2)],
    [ChildStarted("a", "a2", "call_2_1", "b")],
    run("b", "b1", "b2", parent="a2", parent_entity="a", depth=1),
    [
        GateFinished.of("a", "a3", Observation("call_agent", None, "b2", tool_call_id="call_2_2"), 4.0),
        Committed(
            turn_id="a3",
            entity_id="a",
            parent_id="a2",
            sequence=3,
            continues="a2",
            at=AT,
            duration_ms=9.0,
            terminated=True,
        ),
        Ended("a", "terminated", AT),
    ],
    run("c", "c1", "c2", parent="a2", forked=True),
    run("d", "d1", parent="c1", forked=True),
    run("f", "f1", parent="b1", forked=True, depth=1),
]


@pytest.fixture
def family():
    return loom_of(*FAMILY)


# ---------------------------------------------------------------------------------------------------------------- turns


@pytest.mark.rule("LOOM-2")
def test_the_turns_of_an_entity_are_a_chain(family):
    assert [(t.id, t.parent_id, t.sequence) for t in family.turns("a")] == [
        ("a1", None, 1),
        ("a2", "a1", 2),
        ("a3", "a2", 3),
    ]


@pytest.mark.rule("LOOM-9")
def test_a_turn_has_its_tokens_and_its_duration(family):
    m = family["a1"].metadata
    assert (m.tokens_prompt, m.tokens_completion, m.tokens_cached, m.duration_ms, m.timestamp) == (10, 5, 2, 13.5, AT)


@pytest.mark.rule("D-005")
def test_an_observation_has_the_arguments_that_its_utterance_held(family):
    (seen,) = family["a1"].gate_calls
    assert seen == Observation("echo", {"text": "hello"}, "hello", False, "call_1_1")


def test_a_turn_is_found_by_its_id(family):
    assert family["b2"] == family.turn("b2") == family.turns("b")[1]


@pytest.mark.parametrize("ask", ["turn", "thread", "children", "forks", "owner", "lineage"])
def test_an_unknown_turn_is_an_error_that_names_it(family, ask):
    with pytest.raises(LoomError, match="turn t99 is not in this loom"):
        getattr(family, ask)("t99")


@pytest.mark.parametrize("ask", ["turns", "header", "records", "state", "usage", "subtree", "subtree_usage"])
def test_an_unknown_entity_is_an_error_that_names_it(family, ask):
    with pytest.raises(LoomError, match="entity x is not in this loom"):
        getattr(family, ask)("x")


def test_the_in_operator_returns_whether_a_loom_has_a_turn(family):
    assert "a1" in family
    assert "a9" not in family
    assert 7 not in family


@pytest.mark.rule("LOOM-1")
def test_an_interrupted_utterance_is_a_record_and_not_a_turn():
    loom = loom_of(run("e", "t1", ends=False), turn("e", "t2", "t1", 2)[:3])
    assert ids(loom.turns("e")) == ["t1"]
    assert len(loom.records("e")) == 9
    assert "t2" not in loom


def test_entities_are_listed_in_the_order_in_which_they_began(family):
    assert family.entities() == ["a", "b", "c", "d", "f"]
    assert [head.entity_id for head in family.headers()] == family.entities()


@pytest.mark.rule("CALL-4")
def test_every_thread_starts_from_the_call_of_its_header(family):
    assert family.header(family.thread("d1")[0].entity_id).call == {"system_prompt": "be terse"}


# -------------------------------------------------------------------------------------------------------------- threads


@pytest.mark.rule("LOOM-10")
def test_a_thread_is_the_path_from_the_root(family):
    assert ids(family.thread("a3")) == ["a1", "a2", "a3"]
    assert ids(family.thread("a1")) == ["a1"]


@pytest.mark.rule("LOOM-4", "LOOM-10")
def test_the_thread_of_a_fork_has_the_path_of_its_original(family):
    assert ids(family.thread("c2")) == ["a1", "a2", "c1", "c2"]
    assert ids(family.thread("d1")) == ["a1", "a2", "c1", "d1"]


@pytest.mark.rule("LOOM-4")
def test_a_fork_does_not_change_the_original():
    without = loom_of(*FAMILY[:5])
    with_forks = loom_of(*FAMILY)
    assert with_forks.turns("a") == without.turns("a")
    assert list(with_forks.records("a")) == list(without.records("a"))


@pytest.mark.rule("LOOM-8", "LOOM-10", "COMP-5")
def test_the_thread_of_a_child_begins_where_its_parent_did(family):
    assert ids(family.thread("b2")) == ["a1", "a2", "b1", "b2"]


@pytest.mark.rule("LOOM-8")
def test_the_parent_continues_from_its_own_turn_and_not_from_the_child(family):
    assert family["a3"].parent_id == "a2"
    assert family["a3"].continues
    assert family["a2"].children == ("b",)


def test_an_own_thread_begins_with_the_entitys_first_turn(family):
    assert ids(family.thread("b2", own=True)) == ["b1", "b2"]
    assert ids(family.thread("a3", own=True)) == ["a1", "a2", "a3"]


def test_an_own_thread_keeps_the_path_of_the_original_of_a_fork(family):
    assert ids(family.thread("d1", own=True)) == ["a1", "a2", "c1", "d1"]
    assert ids(family.thread("f1", own=True)) == ["b1", "f1"]


@pytest.mark.rule("LOOM-4")
@pytest.mark.rule("W-02")
def test_the_originals_of_a_fork_are_the_entities_that_it_was_forked_from(family):
    assert [family.originals(id) for id in "acdf"] == [["a"], ["a", "c"], ["a", "c", "d"], ["b", "f"]]


@pytest.mark.rule("W-02")
def test_the_first_turns_of_intents_are_those_of_the_originals_and_of_the_fork(family):
    assert [family.first_turns(turn) for turn in ("a3", "c2", "d1")] == [["a1"], ["a1", "c1"], ["a1", "c1", "d1"]]


def test_the_lineage_of_a_fork_begins_with_its_originals_records(family):
    lineage = family.lineage("c1")
    assert [record.entity_id for record in lineage] == ["a"] * 10 + ["c"] * 6
    assert isinstance(lineage[-1], Committed)
    assert lineage[-1].turn_id == "c1"
    assert [r for r in family.lineage("b1") if r.entity_id != "b"] == []


@pytest.mark.rule("LOOM-10")
def test_every_entity_has_a_thread(family):
    assert list(family.leaves()) == ["a3", "b2", "c2", "d1", "f1"]
    assert [ids(thread)[-1] for thread in family.threads()] == ["a3", "b2", "c2", "d1", "f1"]
    assert [ids(thread)[0] for thread in family.threads(own=True)] == ["a1", "b1", "a1", "a1", "b1"]


@pytest.mark.rule("LOOM-2", "LOOM-10")
@given(histories())
def test_every_thread_follows_the_parents_to_a_root(history):
    loom = loom_of(*history.batches)
    for turn_id, entity in history.owners.items():
        thread = loom.thread(turn_id)
        assert thread[0].parent_id is None
        assert thread[-1].id == turn_id
        assert thread[-1].entity_id == entity
        assert [t.parent_id for t in thread[1:]] == ids(thread[:-1])
        own = loom.thread(turn_id, own=True)
        assert thread[-len(own) :] == own
        assert [r.turn_id for r in loom.lineage(turn_id) if isinstance(r, Committed)] == ids(own)


def test_a_turn_that_is_its_own_ancestor_is_an_error():
    class Circular:
        def owner(self, turn_id):
            return "e"

        def records(self, entity_id, **_):
            return [*run("e", "t1", "t2", parent="t2")]

    with pytest.raises(LoomError, match="its own ancestor"):
        Loom(Circular(), None).thread("t2")


def test_a_thread_of_many_turns_is_not_walked_again_for_each():
    def seconds(count):
        loom = loom_of(run("e", *(f"t{n}" for n in range(count))))
        before = time.process_time()
        assert len(loom.thread(f"t{count - 1}")) == count
        return time.process_time() - before

    seconds(100)
    assert min(seconds(2000) for _ in range(3)) < 40 * min(seconds(200) for _ in range(3))


# ------------------------------------------------------------------------------------------------------------- the tree


@pytest.mark.rule("COMP-5", "LOOM-8")
def test_a_child_is_below_the_turn_that_spawned_it(family):
    assert family.children("a2") == ("b",)
    assert family.children("a1") == ()
    assert family.header("b").parent_entity == "a"
    assert family["b1"].parent_id == "a2"


@pytest.mark.rule("LOOM-4")
def test_a_fork_is_not_a_child(family):
    assert family.forks("a2") == ("c",)
    assert family.forks("c1") == ("d",)


def test_a_fork_that_names_its_original_is_not_below_it():
    loom = loom_of(run("a", "a1"), run("b", "b1", parent="a1", parent_entity="a", forked=True))
    assert loom.subtree("a") == ["a"]


@pytest.mark.rule("D-008")
def test_the_subtree_of_an_entity_has_everything_it_spawned():
    loom = loom_of(
        run("a", "a1", "a2"),
        run("b", "b1", parent="a1", parent_entity="a"),
        run("c", "c1", parent="a1", parent_entity="a"),
        run("d", "d1", parent="b1", parent_entity="b"),
        run("e", "e1", parent="a2", parent_entity="a"),
        run("z", "z1"),
        run("fork", "f1", parent="a1", forked=True),
    )
    assert loom.subtree("a") == ["a", "b", "d", "c", "e"]
    assert loom.subtree("b") == ["b", "d"]


@pytest.mark.rule("PROD-3")
def test_usage_is_counted_once_an_utterance_and_for_the_subtree(family):
    each = Usage(10, 5, 2, 0.25)
    assert family.usage("a") == each + each  # three turns of two utterances
    assert family.usage("b") == each + each
    assert family.subtree_usage("a") == each + each + each + each
    assert family["a3"].usage == NO_USAGE


@pytest.mark.rule("PROD-3")
def test_the_usage_of_an_interrupted_utterance_counts():
    loom = loom_of(run("e", "t1"), turn("e", "t2", "t1", 2)[:1])
    assert loom.usage("e") == Usage(20, 10, 4, 0.5)


@pytest.mark.rule("PROD-3")
def test_the_usage_of_an_answer_that_broke_the_contract_counts():
    broken = Ended("e", "failed", AT, "no content", usage=Usage(7, 3))
    loom = loom_of(run("e", "t1"), [broken])
    assert loom.usage("e") == Usage(17, 8, 2, 0.25)
    assert statistics(loom).usage == loom.usage("e")


@pytest.mark.rule("LOOM-5")
def test_a_fold_removes_no_turn():
    records = run("e", "t1", "t2", "t3")
    loom = loom_of(records)
    before = loom.turns("e")
    assert loom_of(records, [Folded("e", 1, 2, "[folded: turns 1-2]", AT)]).turns("e") == before


# ----------------------------------------------------------------------------------------------------------------- ends

ENDS = [
    ("nothing happened yet", [], "active"),
    ("an utterance", turn("e", "t1", None)[:1], "active"),
    ("a turn", turn("e", "t1", None), "active"),
    ("done", turn("e", "t1", None, terminated=True), "terminated"),
    ("a ward, at a turn", turn("e", "t1", None, truncated=True, ward="max_turns"), "truncated"),
    ("a timeout between turns", [*turn("e", "t1", None), Ended("e", "timeout", AT)], "truncated"),
    ("a budget between turns", [*turn("e", "t1", None), Ended("e", "budget", AT)], "truncated"),
    ("a cancellation before the first turn", [Ended("e", "cancelled", AT)], "cancelled"),
    ("the crystal failed", [*turn("e", "t1", None), Ended("e", "failed", AT, "no answer")], "failed"),
    ("given up after a crash", [*turn("e", "t1", None)[:2], Ended("e", "crashed", AT)], "crashed"),
    ("its parent ended", [Ended("e", "parent_ended", AT)], "parent_ended"),
    (
        "done, and the end recorded",
        [*turn("e", "t1", None, terminated=True), Ended("e", "terminated", AT)],
        "terminated",
    ),
    ("a further intent", [*turn("e", "t1", None, terminated=True), IntentGiven("e", "more", AT)], "active"),
    ("a reward after the end", [*turn("e", "t1", None, terminated=True), Rewarded("e", "t1", 1.0, AT)], "terminated"),
]


@pytest.mark.rule("LOOM-7")
@pytest.mark.parametrize(("records", "state"), [pytest.param(*row[1:], id=row[0]) for row in ENDS])
def test_the_status_of_an_entity_is_read_from_its_records(records, state):
    assert loom_of([header("e"), IntentGiven("e", "go", AT), *records]).state("e") == state


@pytest.mark.rule("LOOM-7")
def test_the_last_turn_says_how_it_ended(family):
    assert [(t.terminated, t.truncated) for t in family.turns("a")] == [(False, False), (False, False), (True, False)]
    cut = loom_of([header("e"), *turn("e", "t1", None, truncated=True, ward="max_turns(1)")])
    assert (cut["t1"].terminated, cut["t1"].truncated, cut["t1"].ward) == (False, True, "max_turns(1)")


# -------------------------------------------------------------------------------------------------------------- rewards


@pytest.mark.rule("LOOM-3")
async def test_a_turn_has_its_reward(family):
    assert family["a1"].reward is None
    await family.reward("a1", 0.5)
    assert family["a1"].reward == 0.5
    assert [t.reward for t in family.thread("c2")] == [0.5, None, None, None]


@pytest.mark.rule("LOOM-3")
async def test_the_latest_reward_counts_and_earlier_ones_stay_recorded(family):
    await family.reward("b1", 1)
    await family.reward("b1", -0.25)
    assert family["b1"].reward == -0.25
    given_ = [r.reward for r in family.records("b") if isinstance(r, Rewarded)]
    assert given_ == [1.0, -0.25]
    assert {type(value) for value in given_} == {float}


@pytest.mark.rule("LOOM-3")
async def test_a_reward_changes_no_other_field(family):
    before = family.turns("a")
    await family.reward("a2", 3.0)
    assert [(t.id, t.utterance, t.gate_calls, t.metadata) for t in family.turns("a")] == [
        (t.id, t.utterance, t.gate_calls, t.metadata) for t in before
    ]


@pytest.mark.rule("LOOM-3")
async def test_rewards_survive_reopening(tmp_path):
    url = f"jsonl:{tmp_path}/loom.jsonl"
    loom = loom_of(*FAMILY, url=url)
    await loom.reward("d1", 0.75)
    before = [loom.turns(entity) for entity in loom.entities()]
    loom._store.close()
    again = loom_of(url=url)
    assert [again.turns(entity) for entity in again.entities()] == before
    assert again["d1"].reward == 0.75
    again._store.close()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), "1", None, True, 1j, 10**400])
async def test_a_reward_that_is_not_a_finite_number_is_refused(family, value):
    with pytest.raises(LoomError, match="reward: expected a finite number, got"):
        await family.reward("a1", value)
    assert family["a1"].reward is None


async def test_a_reward_for_an_unknown_turn_is_refused(family):
    with pytest.raises(LoomError, match="turn t99 is not in this loom"):
        await family.reward("t99", 1.0)


async def test_a_reward_has_its_time(family):
    clocked = Loom(family._store, family._append, now=lambda: "then")
    await clocked.reward("a1", 1.0)
    await family.reward("a1", 2.0)
    first, second = (r for r in family.records("a") if isinstance(r, Rewarded))
    assert first.at == "then"
    assert second.at.endswith("Z")
    assert len(second.at) == len(AT)


# ---------------------------------------------------------------------------------------------------------- append-only


@pytest.mark.rule("LOOM-3")
def test_a_turn_cannot_be_deleted(family):
    with pytest.raises(LoomError, match=r"^loom is append-only"):
        del family["a1"]
    assert "a1" in family


@pytest.mark.rule("LOOM-3")
def test_a_turn_cannot_be_replaced(family):
    with pytest.raises(LoomError, match=r"^loom is append-only"):
        family["a1"] = family["a2"]
    assert family["a1"].sequence == 1


@pytest.mark.rule("LOOM-3")
def test_a_turn_cannot_be_changed(family):
    with pytest.raises(AttributeError):
        family["a1"].reward = 1.0
    family.turns("a").clear()
    assert len(family.turns("a")) == 3


@pytest.mark.rule("LOOM-3")
def test_no_method_edits_or_deletes_a_record(family):
    store = family._store
    for face in (family, store):
        names = {name for name in dir(face) if not name.startswith("_")}
        assert not {n for n in names if any(word in n for word in ("delete", "remove", "update", "set", "edit", "pop"))}


@pytest.mark.rule("PROD-5")
def test_an_ephemeral_result_is_kept_whole():
    call = Utterance(entity_id="e", turn_id="t1", content="look", tool_calls=(), usage=NO_USAGE, duration_ms=1.0)
    seen = GateFinished.of("e", "t1", Observation("fetch", {}, "page" * 1000, tool_call_id="c", ephemeral=True))
    loom = loom_of(
        [
            header("e"),
            call,
            seen,
            Committed(turn_id="t1", entity_id="e", parent_id=None, sequence=1, at=AT, duration_ms=2.0),
        ]
    )
    assert loom["t1"].gate_calls[0].result == "page" * 1000
    assert loom["t1"].observation == "page" * 1000


@given(histories(), st.sampled_from(["memory", "jsonl"]))
def test_the_turns_of_an_entity_are_its_committed_turns(history, kind):
    with anywhere(kind) as place, place.open() as store:
        for batch in history.batches:
            store.append(batch)
        loom = Loom(store, None)
        for entity, records in history.entities.items():
            assert ids(loom.turns(entity)) == [r.turn_id for r in records if isinstance(r, Committed)]


# ------------------------------------------------------------------------------------------------ without the whole log


@pytest.mark.rule("LOOM-10", "C-06")
@property_of(KINDS)
def test_a_page_of_turns_is_the_same_part_of_all_turns_in_every_store(kind, history):
    with anywhere(kind) as place, place.open() as store:
        for batch in history.batches:
            store.append(batch)
        loom = Loom(store, None)
        for entity in loom.entities():
            turns = loom.turns(entity)
            assert loom.count_turns(entity) == len(turns)
            assert {*loom.branches(entity)} == {fork for turn in turns for fork in loom.forks(turn.id)}
            last = turns[-1].sequence if turns else 0
            for after, limit in ((0, 50), (last - 1, 1), (last // 2, 1), (last, 3)):
                expected = [turn for turn in turns if turn.sequence > after][:limit]
                assert loom.list_turns(entity, after=max(0, after), limit=limit) == expected


@pytest.mark.rule("LOOM-10")
def test_a_page_that_begins_with_a_continuation_has_its_utterance():
    loom = loom_of(*FAMILY)
    for after in range(4):
        assert loom.list_turns("a", after=after, limit=1) == loom.turns("a")[after : after + 1]


@pytest.mark.rule("LOOM-10")
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_has_the_cantrip_in_force_and_the_latest_rewards(kind):
    moved = Adopted("e", "another", "spell", AT, "scripted", {}, {})
    records = [*run("e", *(f"t{n}" for n in range(1, 9)), ends=False)]
    ends = [at for at, one in enumerate(records) if isinstance(one, Committed)]
    with anywhere(kind) as place, place.open() as store:
        store.append([*records[: ends[3] + 1], moved, *records[ends[3] + 1 :]])
        store.append([Rewarded("e", "t2", 0.5, AT), Rewarded("e", "t6", 1.0, AT), Rewarded("e", "t2", -1.0, AT)])
        loom = Loom(store, None)
        assert [one.reward for one in loom.list_turns("e", limit=2)] == [None, -1.0]
        assert [(one.cantrip_id, one.reward) for one in loom.list_turns("e", after=3, limit=3)] == [
            (loom.header("e").cantrip_id, None),
            ("another", None),
            ("another", 1.0),
        ]
        for limits in ({"limit": 0}, {"limit": -1}, {"after": -1}, {"limit": None}):
            with pytest.raises(LoomError, match="expected"):
                loom.list_turns("e", **limits)
        assert [len(loom.list_turns("e", after=n)) for n in range(10)] == [8, 7, 6, 5, 4, 3, 2, 1, 0, 0]


@pytest.mark.rule("N-77", "LOOM-10")
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_the_status_and_the_number_of_turns_read_few_records_of_a_long_log(kind, monkeypatch):
    with anywhere(kind) as place, place.open() as store:
        turns = [f"t{n}" for n in range(1, 2_001)]
        store.append(run("e", *turns, ends=False))
        read = count_decoded(store, monkeypatch)
        loom = Loom(store, None)
        assert [one.id for one in loom.list_turns("e", after=1_000, limit=10)] == turns[1_000:1_010]
        assert (loom.state("e"), loom.count_turns("e"), list(loom.branches("e"))) == ("active", 2_000, [])
        assert len(read) < 500


def count_decoded(store, monkeypatch):
    """The records that a store decodes from here on."""
    read = []
    for name in {"_decode", "_read"} & {*dir(store)}:
        decode = getattr(store, name)
        if name == "_decode":
            monkeypatch.setattr(store, name, lambda *given, decode=decode: read.append(1) or decode(*given))
        else:
            monkeypatch.setattr(
                store,
                name,
                lambda *given, decode=decode, **more: (read.append(1) or one for one in decode(*given, **more)),
            )
    return read
