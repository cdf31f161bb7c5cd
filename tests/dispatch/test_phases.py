"""The phase loop: criteria, attempts, reviews, and waiting for humans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.dispatch import (
    Approved,
    Closed,
    PhaseApproved,
    PhaseFailed,
    PhasePassed,
    Progressed,
    ReviewReturned,
    StatusChanged,
    Unblocked,
)
from cantrip_actors.dispatch.phases import CRITERIA, ORDERS
from cantrip_actors.dispatch.record import apply, make_follow_up
from cantrip_actors.dispatch.rules import make_exit, refusal
from tests.dispatch.contracts import active, entry, queued, refused, then

WORDS = "This was run and seen, and it says more than fifty characters."


EVIDENCE = tuple(Progressed("verification", WORDS, item=item) for item in (1, 2))


def passed(phase):
    return PhasePassed(phase, {one.name: WORDS for one in CRITERIA[phase]})


def failed(phase):
    return PhaseFailed(phase, ("not there yet",))


def at(phase, depth="minimal", **changed):
    """A record whose loop has come to `phase`."""
    record = active(depth=depth, **changed)
    while record.phases.phase != phase:
        record = onwards(record)
    return record


def onwards(record):
    """The next phase, over a human's approval where one is needed."""
    record = then(record, passed(record.phases.phase))
    return approved(record) if record.phases.waiting else record


def approved(record):
    record = then(record, PhaseApproved(record.phases.phase), StatusChanged("queued"), by="human")
    return then(record, StatusChanged("active"))


class TestOrder:
    @pytest.mark.parametrize("depth", ORDERS)
    def test_a_loop_goes_through_all_its_phases(self, depth):
        record = active(depth=depth)
        while record.phases.phase is not None:
            record = onwards(record)
        assert tuple(one.phase for one in record.phases.history) == ORDERS[depth]
        assert "every phase is done" in refused(record, passed("debug"))

    def test_deeper_loops_have_more_phases(self):
        assert ORDERS["minimal"] == ("debug", "tests", "plan", "implement", "code-review", "verify")
        assert set(ORDERS["standard"]) - set(ORDERS["minimal"]) == {"uat", "docs"}
        assert set(ORDERS["full"]) - set(ORDERS["standard"]) == {"architecture"}

    @pytest.mark.rule("F-37")
    @pytest.mark.parametrize("made", [passed, failed, PhaseApproved])
    def test_an_unknown_or_wrong_phase_is_an_error(self, made):
        event = PhasePassed("polish", {}) if made is passed else made("polish")
        by = "human" if made is PhaseApproved else "worker"
        assert "unknown phase 'polish'" in refused(active(depth="minimal"), event, by)
        assert "not the current phase" in refused(active(depth="minimal"), made("verify"), by)

    def test_a_dispatch_without_depth_has_no_phases(self):
        assert queued().phases is None
        assert "names no depth" in refused(active(), passed("debug"))


@pytest.mark.rule("F-38")
class TestCriteria:
    @pytest.mark.parametrize("words", ["TBD", "TODO", "N/A", "...", "-", "", "*todo*", "<!-- root cause -->"])
    @pytest.mark.parametrize("phase", CRITERIA)
    def test_no_phase_passes_on_a_placeholder(self, phase, words):
        record = at("code-review") if phase == "fix-feedback" else at(phase, "full")
        if phase == "fix-feedback":
            record = then(record, ReviewReturned("a hole"))
        for one in CRITERIA[phase]:
            evidence = {other.name: WORDS for other in CRITERIA[phase]} | {one.name: words}
            assert f"{one.name} (" in refused(record, PhasePassed(phase, evidence))

    def test_tests_are_required_in_the_tests_phase_and_after_implementing(self):
        assert "at least 50 characters" in refused(at("tests"), PhasePassed("tests", {"tests": "def test(): pass"}))
        assert "tests (" in refused(at("implement"), PhasePassed("implement", {"changes": WORDS}))

    def test_failing_and_returning_need_a_reason(self):
        assert "which criteria" in refused(active(depth="minimal"), PhaseFailed("debug", ()))
        assert "what the review found" in refused(at("code-review"), ReviewReturned("TBD"))


@pytest.mark.rule("F-36")
class TestHumans:
    def test_too_many_attempts_stall_and_block(self):
        record = then(active(depth="minimal"), *[failed("debug")] * 4)
        assert record.status == "active"
        record = then(record, failed("debug"))
        assert record.phases.waiting == "stalled"
        assert record.status == "blocked"
        assert "5 attempts" in record.blocker
        assert record.entries[-1].by == "supervisor"

    def test_approving_a_stalled_phase_advances(self):
        record = then(active(depth="minimal"), *[failed("debug")] * 5)
        record = approved(record)
        assert record.phases.phase == "tests"
        assert record.phases.iteration == 1
        assert [(one.phase, one.approved) for one in record.phases.history] == [("debug", True)]

    @pytest.mark.parametrize(("phase", "following"), [("verify", "uat"), ("architecture", "implement")])
    def test_a_checkpoint_waits_once_and_its_approval_advances(self, phase, following):
        """The original never left its checkpoint: each stop fired it again, and wrote its history again."""
        record = then(at(phase, "full"), passed(phase))
        assert record.status == "blocked"
        record = approved(record)
        assert record.phases.phase == following
        assert record.status == "active"
        assert make_follow_up(record) is None
        assert [one.phase for one in record.phases.history].count(phase) == 1

    def test_a_waiting_phase_accepts_only_its_approval(self):
        record = then(at("verify"), passed("verify"))
        for event, by in (
            (Unblocked("go on"), "orchestrator"),
            (Approved(), "human"),
            (StatusChanged("queued"), "human"),
        ):
            assert refused(record, event, by)
        assert "only human" in refused(record, PhaseApproved("verify"), "orchestrator")
        assert then(record, StatusChanged("rejected", reason="not like this"), by="human").status == "rejected"

    def test_a_phase_that_does_not_wait_cannot_be_approved(self):
        assert "does not wait" in refused(active(depth="minimal"), PhaseApproved("debug"), "human")


@pytest.mark.rule("F-37")
class TestReviews:
    def test_fix_feedback_returns_to_the_review(self):
        record = then(at("code-review"), ReviewReturned("a hole in the index"))
        assert record.phases.phase == "fix-feedback"
        record = then(record, passed("fix-feedback"))
        assert record.phases.phase == "code-review"
        assert then(record, passed("code-review")).phases.phase == "verify"

    def test_the_third_review_with_findings_blocks(self):
        record = at("code-review")
        for _ in range(2):
            record = then(record, ReviewReturned("a hole"), passed("fix-feedback"))
        record = then(record, ReviewReturned("still a hole"))
        assert record.status == "blocked"
        assert "3 reviews" in record.blocker
        assert approved(record).phases.phase == "verify"

    def test_only_a_review_can_return(self):
        assert "not the current phase" in refused(at("implement"), ReviewReturned("a hole"))


@pytest.mark.rule("F-37")
class TestCompletion:
    def test_a_dispatch_with_open_phases_is_not_completed(self):
        record = then(at("code-review"), *EVIDENCE)
        words = refused(record, StatusChanged("completed", result="mended"))
        assert "open: code-review, verify" in words
        assert "code-review, verify" in make_exit(record).text

    def test_a_phase_that_fixes_feedback_counts_as_its_review(self):
        record = then(at("code-review"), ReviewReturned("a hole"), *EVIDENCE)
        assert "open: code-review, verify" in refused(record, StatusChanged("completed", result="mended"))

    def test_a_dispatch_is_completed_after_its_last_phase(self):
        record = then(onwards(at("verify")), *EVIDENCE)
        assert "phase" not in make_exit(record).text
        assert then(record, StatusChanged("completed", result="mended")).status == "completed"


@pytest.mark.rule("F-39")
def test_closing_with_open_phases_needs_an_override():
    record = then(at("implement"), StatusChanged("failed", reason="the ward"), by="supervisor")
    assert "phase implement" in refused(record, Closed(), "human")
    closed = then(record, Closed("the rest is another dispatch"), by="human")
    assert "takes no entries" in refused(closed, passed("implement"))


PHASES = st.sampled_from([*CRITERIA, "polish"])


@pytest.mark.rule("F-36", "F-37")
@given(
    st.sampled_from(sorted(ORDERS)),
    st.lists(
        st.tuples(
            st.one_of(
                PHASES.map(lambda phase: passed(phase) if phase in CRITERIA else PhasePassed(phase, {})),
                PHASES.map(failed),
                PHASES.map(PhaseApproved),
                st.just(ReviewReturned("a hole")),
                st.sampled_from(["approve", "go on"]),
            ),
            st.sampled_from(["worker", "human"]),
        ),
        max_size=60,
    ),
)
def test_phases_are_left_in_order_and_once_each(depth, tried):
    """Under any events, phases are left in order and once each, and a waiting dispatch is blocked."""
    record = active(depth=depth)
    for event, by in tried:
        if event == "go on" and record.phases.phase is not None and record.status == "active":
            record = then(record, passed(record.phases.phase))
        elif event == "approve" and record.phases.waiting:
            record = approved(record)
        elif not isinstance(event, str):
            placed = entry(record, event, by)
            if refusal(record, placed) is None:
                record = apply(record, placed)
                while (due := make_follow_up(record)) is not None:
                    record = apply(record, entry(record, due, "supervisor"))
        left = tuple(one.phase for one in record.phases.history)
        assert left == ORDERS[depth][: len(left)]
        assert record.status == ("blocked" if record.phases.waiting else record.status)
        assert record.phases.iteration <= record.phases.max_iterations + 1
        assert record.phases.reviews <= record.phases.review_cap
