"""The checkpoint counter: what makes a checkpoint due, what clears it, what is never refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.dispatch.checkpoints import EXEMPT, Checkpoint, count_gate, may_run


def after(*calls):
    state = Checkpoint()
    for gate, effectful in calls:
        state = count_gate(state, gate, effectful=effectful)
    return state


@pytest.mark.rule("F-18")
class TestTriggers:
    def test_no_trigger_is_due_at_the_beginning_or_after_progress(self):
        assert may_run(Checkpoint(), "read") is None

    def test_an_effect_makes_a_checkpoint_due(self):
        refused = may_run(after(("write", True)), "read")
        assert refused.text.startswith("checkpoint required (write had an effect)")

    def test_the_thirtieth_read_makes_a_checkpoint_due(self):
        assert may_run(after(*[("read", False)] * 29), "read") is None
        assert "30 gate calls without progress" in may_run(after(*[("read", False)] * 30), "read").text

    @pytest.mark.rule("F-31")
    def test_the_first_trigger_is_reported(self):
        assert "write" in may_run(after(("write", True), ("commit", True)), "read").text


@pytest.mark.rule("F-18", "F-19")
class TestExemptGates:
    @pytest.mark.parametrize("gate", sorted(EXEMPT))
    def test_the_gates_of_a_dispatch_are_never_refused_and_never_count(self, gate):
        assert may_run(after(("write", True)), gate) is None
        assert after((gate, True), *[(gate, False)] * 40) == Checkpoint()

    @pytest.mark.parametrize("gate", sorted(EXEMPT))
    def test_the_gates_of_a_dispatch_do_not_satisfy_a_checkpoint(self, gate):
        assert may_run(count_gate(after(("write", True)), gate, effectful=True), "read") is not None

    @given(st.lists(st.tuples(st.sampled_from(["read", "write", "set_status", "progress", "done"]), st.booleans())))
    def test_an_entity_can_always_write_progress_and_end(self, calls):
        state = after(*calls)
        assert may_run(state, "progress") is None
        assert may_run(state, "done") is None
        due = sum(gate not in EXEMPT for gate, _ in calls) >= 30
        due = due or any(effect and gate not in EXEMPT for gate, effect in calls)
        assert (may_run(state, "read") is not None) == due
