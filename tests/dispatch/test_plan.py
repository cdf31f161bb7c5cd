"""The steps of a loop: one current, in order, with outcomes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.dispatch import StepAdvanced, StepReturned, StepSkipped
from cantrip_actors.dispatch.record import apply
from cantrip_actors.dispatch.rules import refusal
from tests.dispatch.contracts import active, entry, queued, refused, then

LOOP = {"role": "loop", "steps": ["look", "mend", "test"]}


def marks(record):
    return [step.mark for step in record.plan.steps]


@pytest.mark.rule("F-35")
class TestSteps:
    def test_a_loop_begins_at_its_first_step(self):
        assert marks(queued(**LOOP)) == ["current", "next", "next"]
        assert [step.planned.purpose for step in queued(role="loop").plan.steps] == ["index the tags", "test it"]
        assert queued().plan is None
        assert "no plan" in refused(active(), StepAdvanced(1, "x"))

    def test_advancing_marks_done_with_its_output_and_moves_on(self):
        record = then(active(**LOOP), StepAdvanced(1, "it is the index"))
        assert marks(record) == ["done", "current", "next"]
        assert record.plan.steps[0].outcome == "it is the index"
        record = then(record, StepAdvanced(2, "mended"), StepAdvanced(3, "12 passed"))
        assert record.plan.current is None
        assert "every step" in refused(record, StepAdvanced(3, "again"))

    @pytest.mark.parametrize("output", ["", "  ", "TBD", "..."])
    def test_advancing_needs_an_actual_output_and_skipping_a_reason(self, output):
        assert "actually came out" in refused(active(**LOOP), StepAdvanced(1, output))
        assert "why it is skipped" in refused(active(**LOOP), StepSkipped(1, output))
        assert "done again" in refused(then(active(**LOOP), StepAdvanced(1, "seen")), StepReturned(1, output))

    @pytest.mark.parametrize("step", [0, 2, 3, 4])
    def test_a_step_out_of_order_is_refused(self, step):
        assert "only step 1" in refused(active(**LOOP), StepAdvanced(step, "done early"))
        assert "only step 1" in refused(active(**LOOP), StepSkipped(step, "no need"))

    def test_skipping_keeps_the_reason(self):
        record = then(active(**LOOP), StepSkipped(1, "known already"))
        assert marks(record) == ["skipped", "current", "next"]
        assert record.plan.steps[0].outcome == "known already"

    def test_a_return_resets_the_later_steps(self):
        record = then(active(**LOOP), StepAdvanced(1, "a thing"), StepAdvanced(2, "another"))
        record = then(record, StepReturned(1, "the test failed"))
        assert marks(record) == ["current", "next", "next"]
        assert record.plan.round == 2
        assert "not an earlier step" in refused(record, StepReturned(1, "again"))

    @pytest.mark.rule("F-36")
    def test_a_step_is_returned_max_iterations_times_at_most(self):
        record = active(**LOOP, max_iterations=2)
        record = then(record, StepAdvanced(1, "seen"), StepReturned(1, "wrong"), StepAdvanced(1, "seen"))
        assert "2 rounds are used up" in refused(record, StepReturned(1, "wrong again"))

    @given(
        st.lists(
            st.one_of(
                st.builds(StepAdvanced, st.integers(0, 5), st.sampled_from(["", "seen"])),
                st.builds(StepSkipped, st.integers(0, 5), st.sampled_from(["", "no need"])),
                st.builds(StepReturned, st.integers(0, 5), st.sampled_from(["", "wrong"])),
            ),
            max_size=30,
        )
    )
    def test_exactly_one_step_is_current_until_all_are_done(self, tried):
        record = active(**LOOP)
        for event in tried:
            placed = entry(record, event)
            if refusal(record, placed) is None:
                record = apply(record, placed)
            found = marks(record)
            over = {"done", "skipped"}
            assert found.count("current") == (0 if set(found) <= over else 1)
            if "current" in found:
                at = found.index("current")
                assert record.plan.current == at + 1
                assert set(found[:at]) <= over
                assert set(found[at + 1 :]) <= {"next"}
            assert all(step.outcome for step in record.plan.steps if step.mark in over)
            assert record.plan.round <= record.plan.rounds
