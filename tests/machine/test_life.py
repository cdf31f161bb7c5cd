"""The life of a loaded entity: the table of its stages, and what it may do in each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.machine import life as module
from cantrip_actors.machine.life import (
    NEXT,
    RESTARTS,
    Cause,
    Change,
    CrashMark,
    LoadedLife,
    Occasion,
    Stage,
    Standing,
    change_life,
    find_causes,
    may,
    may_restart,
)

pytestmark = pytest.mark.rule("K-20")

WORKING = Standing(LoadedLife(Stage.WORKING))
IDLE = Standing(LoadedLife(Stage.IDLE))
OVER = Standing(LoadedLife(Stage.OVER))


def waiting(kind, **facts):
    return Standing(LoadedLife(Stage.WAITING, kind), **facts)


class TestTable:
    def test_the_table_of_the_docstring_is_the_table_of_the_code(self):
        text = module.__doc__.split("next stage")[1].split("`OVER`")[0]
        rows = [line.split()[:3] for line in text.splitlines() if line.strip()]
        live = [stage for stage in Stage if stage not in (Stage.OVER, Stage.LEAVING)]
        shown = {
            (stage, Change(change)): Stage[after]
            for first, change, after in rows
            for stage in (live if first == "any" else [Stage[first]])
        }
        assert shown == dict(NEXT)

    @pytest.mark.parametrize("stage", [Stage.OVER, Stage.LEAVING])
    @pytest.mark.parametrize("change", list(Change))
    def test_no_change_leads_from_a_final_stage_back_to_life(self, stage, change):
        if (stage, change) == (Stage.LEAVING, Change.ENDS):
            assert change_life(LoadedLife(stage), change) == LoadedLife(Stage.OVER)
        else:
            with pytest.raises(ValueError, match="cannot change"):
                change_life(LoadedLife(stage), change)

    @given(st.lists(st.sampled_from(list(Change)), max_size=30), st.sampled_from(["person", "children", "crystal"]))
    def test_an_entity_waits_for_something_exactly_in_its_stage_waiting(self, changes, kind):
        life = LoadedLife()
        for change in changes:
            if (life.stage, change) in NEXT:
                life = change_life(life, change, kind if change is Change.WAITS else None)
            assert (life.waits_for is not None) == (life.stage is Stage.WAITING)
            assert life.is_final == (life.stage in (Stage.OVER, Stage.LEAVING))

    @given(st.lists(st.sampled_from(list(Change)), max_size=30))
    def test_every_stage_that_is_not_final_can_end_leave_and_crash(self, changes):
        life = LoadedLife()
        for change in changes:
            if (life.stage, change) in NEXT:
                life = change_life(life, change, "person" if change is Change.WAITS else None)
        if not life.is_final:
            assert change_life(life, Change.ENDS).stage is Stage.OVER
            assert change_life(life, Change.LEAVES).stage is Stage.LEAVING
            assert change_life(life, Change.CRASHES) == LoadedLife()

    @pytest.mark.parametrize(("change", "waits_for"), [(Change.WAITS, None), (Change.RESTS, "person")])
    def test_a_wait_names_what_it_is_for_and_nothing_else_does(self, change, waits_for):
        with pytest.raises(ValueError, match="what the entity waits for"):
            change_life(LoadedLife(Stage.WORKING), change, waits_for)


LIVES = [
    *(LoadedLife(stage) for stage in (Stage.WORKING, Stage.IDLE, Stage.OVER)),
    *(LoadedLife(Stage.WAITING, kind) for kind in ("person", "crystal", "node")),
]
LEAVES = st.tuples(st.sampled_from(LIVES), st.booleans(), st.booleans()).map(lambda facts: Standing(*facts))
ASKING = LEAVES.map(lambda standing: waiting("entity", answerer=standing))
TREES = st.lists(LEAVES | ASKING, max_size=3).map(lambda children: waiting("children", children=children))
STANDINGS = LEAVES | ASKING | TREES


class TestMay:
    @pytest.mark.parametrize(
        ("standing", "occasions"),
        [
            pytest.param(WORKING, "", id="working"),
            pytest.param(IDLE, "unload drain hand-over move", id="idle"),
            pytest.param(IDLE._replace(has_callers=True), "hand-over move", id="idle with callers"),
            pytest.param(waiting("person"), "unload close drain hand-over", id="waits for a person"),
            pytest.param(waiting("person", has_callers=True), "close drain hand-over", id="waits, with callers"),
            pytest.param(waiting("person", has_mail=True), "close drain hand-over", id="waits, with mail"),
            pytest.param(waiting("crystal"), "close drain hand-over", id="waits for a batch"),
            pytest.param(waiting("node"), "hand-over", id="waits for a node"),
            pytest.param(waiting("entity"), "close drain hand-over", id="asks an entity that is not here"),
            pytest.param(waiting("entity", answerer=WORKING), "hand-over", id="asks one that works"),
            pytest.param(waiting("entity", answerer=IDLE), "close drain hand-over", id="asks one that is idle"),
            pytest.param(
                waiting("entity", answerer=waiting("person")), "close drain hand-over", id="asks one that waits"
            ),
            pytest.param(waiting("children", children=[WORKING]), "", id="a child works"),
            pytest.param(
                waiting("children", children=[waiting("person"), OVER]),
                "unload close drain hand-over",
                id="a child waits",
            ),
            pytest.param(
                waiting("children", children=[waiting("person"), WORKING]), "", id="one child waits, one works"
            ),
            pytest.param(waiting("children", children=[OVER]), "", id="all children have ended"),
        ],
    )
    def test_a_tree_may_leave_only_while_nothing_in_it_works(self, standing, occasions):
        allowed = {occasion for occasion in Occasion if may(occasion, standing)}
        assert allowed == {Occasion(name.replace("-", " ")) for name in occasions.split()}

    @given(STANDINGS)
    def test_a_tree_in_which_something_works_never_leaves(self, standing):
        if Cause.WORK in find_causes(standing, ignores_mail=True, follows_answers=False):
            assert not any(may(occasion, standing) for occasion in Occasion)

    @given(STANDINGS)
    def test_a_tree_that_may_be_unloaded_may_also_be_left_by_a_drain(self, standing):
        if may(Occasion.UNLOAD, standing):
            assert may(Occasion.DRAIN, standing)

    @given(STANDINGS)
    def test_a_tree_that_may_be_suspended_by_a_close_may_be_left_by_a_drain(self, standing):
        if may(Occasion.CLOSE, standing):
            assert may(Occasion.DRAIN, standing)

    def test_an_entity_for_which_many_others_wait_is_looked_at_once(self):
        class Children(list):
            looks = 0

            def __iter__(self):
                Children.looks += 1
                assert Children.looks < 1000, "each way to an entity is followed"
                return super().__iter__()

        standing = waiting("person")
        for _ in range(30):  # both children of each entity ask the next one
            standing = waiting("children", children=Children(waiting("entity", answerer=standing) for _ in range(2)))
        assert find_causes(standing) == {Cause.PERSON}


class TestCrashes:
    def test_a_first_crash_is_tried_again(self):
        assert may_restart([CrashMark(3, "ValueError: x")])

    def test_an_equal_crash_at_the_same_record_is_not_tried_again(self):
        assert not may_restart([CrashMark(3, "ValueError: x"), CrashMark(3, "ValueError: x")])

    @pytest.mark.parametrize("second", [CrashMark(4, "ValueError: x"), CrashMark(3, "ValueError: y")])
    def test_another_crash_is_tried_again(self, second):
        assert may_restart([CrashMark(3, "ValueError: x"), second])

    def test_different_crashes_are_tried_again_a_few_times(self):
        crashes = [CrashMark(number, "ValueError: x") for number in range(RESTARTS + 1)]
        assert may_restart(crashes[:-1])
        assert not may_restart(crashes)
