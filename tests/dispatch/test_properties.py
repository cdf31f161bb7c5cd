"""Whatever is written in any capacity, the log has exactly the legal records."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors.dispatch import (
    Approved,
    Closed,
    Decided,
    Dispatched,
    Dispatches,
    DoneRefused,
    EventRefused,
    Folded,
    OutputWritten,
    PhaseApproved,
    PhaseFailed,
    PhasePassed,
    Progressed,
    Recovered,
    ReviewReturned,
    StatusChanged,
    StepAdvanced,
    StepReturned,
    StepSkipped,
    Unblocked,
)
from cantrip_actors.dispatch.phases import CRITERIA
from cantrip_actors.dispatch.record import folded
from cantrip_actors.dispatch.rehydrate import rehydration
from cantrip_actors.dispatch.status import STATUSES, TABLE, TERMINAL
from cantrip_actors.dispatch.view import markdown
from tests.dispatch.contracts import AT, contract

WORDS = "words that say something, in more than fifty characters, as tests do"
SAID = st.sampled_from(["", "TBD", WORDS])
SMALL = st.integers(0, 6)
OPTIONAL = st.none() | SMALL
PHASES = st.sampled_from([*CRITERIA, "polish"])

EVENTS = st.one_of(
    st.builds(StatusChanged, st.sampled_from([*STATUSES, "done"]), result=SAID, blocker=SAID, reason=SAID),
    st.builds(Recovered, SAID),
    st.builds(Progressed, st.sampled_from(["milestone", "discovery"]), SAID, corrects=OPTIONAL),
    st.builds(Progressed, st.just("verification"), SAID, item=OPTIONAL, corrects=OPTIONAL),
    st.builds(OutputWritten, SAID),
    st.builds(Decided, SAID, SAID, SAID, SAID),
    st.builds(Approved, SAID),
    st.builds(Unblocked, SAID),
    st.builds(Folded, SMALL, SMALL),
    st.builds(DoneRefused, SAID),
    st.builds(StepAdvanced, SMALL, SAID),
    st.builds(StepSkipped, SMALL, SAID),
    st.builds(StepReturned, SMALL, SAID),
    PHASES.map(lambda phase: PhasePassed(phase, {one.name: WORDS for one in CRITERIA.get(phase, ())})),
    st.builds(PhaseFailed, PHASES, st.just((WORDS,))),
    st.builds(PhaseApproved, PHASES),
    st.builds(ReviewReturned, SAID),
    st.builds(Closed, SAID),
    st.builds(Dispatched, st.just(contract(scope=["everything"]))),
)
LIKELY = st.sampled_from(
    [
        (StatusChanged("active"), "worker", 1),
        (StatusChanged("active"), "worker", 2),
        (Progressed("verification", WORDS, item=1), "worker", 2),
        (Progressed("verification", WORDS, item=2), "worker", 2),
        (StatusChanged("blocked", blocker=WORDS), "worker", 2),
        (StatusChanged("completed", result=WORDS), "worker", 2),
        (Unblocked(WORDS), "human", None),
        (Approved(), "human", None),
        (StatusChanged("queued"), "human", None),
        (Recovered(WORDS), "supervisor", 2),
        (PhaseFailed("debug", (WORDS,)), "worker", 2),
        (PhaseApproved("debug"), "human", None),
    ]
)
ANYTHING = st.tuples(
    EVENTS, st.sampled_from(["worker", "supervisor", "orchestrator", "human"]), st.sampled_from([None, 1, 2, 3])
)
TRIED = st.lists(st.one_of(LIKELY, ANYTHING), max_size=40)
KINDS_OF_CONTRACT = st.fixed_dictionaries(
    {},
    optional={
        "needs_approval": st.just("yes"),
        "role": st.sampled_from(["worker", "loop"]),
        "depth": st.sampled_from(["minimal", "full"]),
        "max_iterations": st.integers(1, 2),
    },
).map(lambda chosen: contract(decision_needed="may it be done at all?", **chosen))


@pytest.mark.rule("F-03", "F-07", "F-13", "F-39", "F-40")
@settings(max_examples=150)
@given(KINDS_OF_CONTRACT, TRIED)
def test_the_log_holds_only_legal_records(tmp_path_factory, made, tried):
    folder = tmp_path_factory.mktemp("any")
    logs = Dispatches(folder, clock=lambda: AT)
    record = logs.create(made, author="ann")
    path = logs.path(record.id)
    for event, by, token in tried:
        before, old = path.read_bytes(), record
        try:
            record = logs.append(record.id, event, by=by, author=by, token=token)
        except EventRefused:
            assert path.read_bytes() == before
            continue
        assert path.read_bytes().startswith(before)
        assert record.entries[: len(old.entries)] == old.entries
        assert record.seq == len(record.entries)
        assert record.contract == made
        statuses = [old.status, *(one.event.status for one in record.entries[len(old.entries) :] if changes(one.event))]
        if isinstance(event, Recovered):
            statuses = ["active", "queued"]
        assert all(pair in TABLE for pair in itertools.pairwise(statuses))
        assert record.status == statuses[-1]
        assert old.status not in TERMINAL or isinstance(event, Closed)
        assert not old.closed
        assert record.token is None or old.token is None or record.token >= old.token
    read = Dispatches(folder).read(record.id)
    assert read == record == folded(record.entries)
    assert markdown(read) == markdown(record)
    assert rehydration(read) == rehydration(record)


def changes(event):
    return isinstance(event, StatusChanged)
