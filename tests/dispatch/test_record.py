"""What a log adds up to, and what may come next."""

import dataclasses

import pytest

from cantrip_actors.dispatch import (
    Approved,
    Closed,
    Decided,
    Dispatched,
    DoneRefused,
    Folded,
    OutputWritten,
    Progressed,
    Recovered,
    StatusChanged,
    Unblocked,
    superseding,
)
from cantrip_actors.dispatch import events as event_module
from cantrip_actors.dispatch.events import KINDS, decode_entry, encode_entry
from cantrip_actors.dispatch.record import apply, folded
from cantrip_actors.dispatch.rules import MAY_WRITE, refusal
from tests.dispatch.contracts import active, contract, entry, queued, refused, terms, then

DONE = StatusChanged("completed", result="tags are found")
PROVEN = (Progressed("verification", "pytest: 12 passed", item=1), Progressed("verification", "seen by hand", item=2))


def completed(**changed):
    return then(active(**changed), *PROVEN, DONE)


class TestTheContract:
    @pytest.mark.rule("F-02")
    def test_a_dispatch_begins_queued_with_its_contract_and_hash(self):
        record = queued()
        assert record.status == "queued"
        assert record.contract == contract()
        assert record.entries[0].contract_hash == contract().hash

    @pytest.mark.rule("F-03", "F-05")
    @pytest.mark.parametrize("by", ["worker", "supervisor", "orchestrator", "human"])
    def test_a_second_contract_is_refused_from_any_writer(self, by):
        other = Dispatched(contract(scope=["everything"], dispatch_id=queued().id))
        assert "written once" in refused(active(), other, by)

    @pytest.mark.rule("F-05")
    def test_only_the_contract_has_terms(self):
        for made in set(KINDS.values()) - {Dispatched}:
            assert not {field.name for field in dataclasses.fields(made)} & (set(terms()) - {"title"})

    @pytest.mark.rule("F-05")
    @pytest.mark.parametrize("by", ["worker", "supervisor"])
    def test_an_entity_cannot_dispatch_itself(self, by):
        assert refusal(None, entry(None, Dispatched(contract()), by)).rule == "author"

    @pytest.mark.rule("F-05", "F-12")
    def test_a_superseding_contract_keeps_learned_facts(self):
        record = then(
            active(lessons=["the index is slow"]),
            Progressed("discovery", "tags are kept in lower case"),
            Progressed("what_failed", "{ESCAPED} braces"),
            Progressed("discovery", "wrong, and corrected"),
        )
        record = then(record, Progressed("milestone", "it was a mistake", corrects=record.seq))
        new = superseding(record, "second", "2026-02-27", acceptance=("a tag finds its notes",))
        assert new.supersedes == record.id
        assert new.acceptance == ("a tag finds its notes",)
        assert new.lessons == (
            "the index is slow",
            "discovery: tags are kept in lower case",
            "what failed: {ESCAPED} braces",
        )

    @pytest.mark.rule("F-05", "F-06")
    def test_a_superseding_contract_takes_its_intent_from_a_new_objective_unless_the_old_one_had_its_own(self):
        new = superseding(active(), "second", "2026-02-27", objective="The search finds notes by dates.")
        assert new.intent == "The search finds notes by dates."
        asked = superseding(active(intent="mend it"), "second", "2026-02-27", objective="Dates are found.")
        assert asked.intent == "mend it"


class TestProgress:
    @pytest.mark.rule("F-11")
    def test_a_correction_is_a_new_entry_and_the_old_one_stays(self):
        record = then(active(), Progressed("milestone", "all tests pass"))
        corrected = then(record, Progressed("milestone", "one test fails", corrects=record.seq))
        assert corrected.entries[:-1] == record.entries
        assert corrected.corrected == {record.seq}

    @pytest.mark.rule("F-11")
    @pytest.mark.parametrize("seq", [0, 1, 2, 99])
    def test_only_progress_can_be_corrected(self, seq):
        assert "not a progress entry that can be corrected" in refused(
            active(), Progressed("milestone", "x", corrects=seq)
        )

    @pytest.mark.rule("F-15")
    def test_a_corrected_verification_does_not_count_as_evidence(self):
        record = then(active(), *PROVEN)
        assert record.unproven == ()
        first = record.seq - 1
        record = then(record, Progressed("milestone", "I misread it", corrects=first))
        assert record.unproven == (1,)
        assert "unproven: 1" in refused(record, DONE)

    @pytest.mark.rule("F-38")
    @pytest.mark.parametrize("text", ["TBD", "todo", " N/A ", "...", "-", "**TBD**", "<!-- evidence -->"])
    def test_a_placeholder_does_not_count_as_evidence(self, text):
        assert "is not evidence" in refused(active(), Progressed("verification", text, item=1))

    @pytest.mark.parametrize(
        "event",
        [
            Progressed("milestone", " "),
            Progressed("gossip", "something"),
            Progressed("milestone", "x", item=1),
            Progressed("verification", "it ran", item=3),
            OutputWritten(""),
        ],
    )
    def test_an_empty_or_unnamed_record_is_refused(self, event):
        assert refused(active(), event)

    @pytest.mark.parametrize("blank", ["decided", "why", "rejected", "implications"])
    def test_a_decision_needs_all_four_fields(self, blank):
        whole = {"decided": "SQLite", "why": "it is here", "rejected": "a server", "implications": "one writer"}
        assert blank in refused(active(), Decided(**(whole | {blank: ""})))
        assert then(active(), Decided(**whole)).of(Decided)[0][1].rejected == "a server"


class TestLife:
    @pytest.mark.rule("F-15")
    def test_completing_needs_evidence_for_each_criterion(self):
        record = then(active(), PROVEN[0])
        assert "unproven: 2" in refused(record, DONE)
        assert then(record, PROVEN[1], DONE).result == "tags are found"

    @pytest.mark.rule("F-15")
    def test_only_the_workers_progress_since_the_last_start_counts(self):
        record = then(active(), *PROVEN, StatusChanged("blocked", blocker="no key"))
        record = then(record, Unblocked("here it is"), StatusChanged("queued"), by="human")
        record = then(record, StatusChanged("active"))
        record = then(record, Progressed("milestone", "look at the cache too"), by="orchestrator")
        assert "write progress first" in refused(record, DONE)
        assert then(record, Progressed("milestone", "looked"), DONE).status == "completed"

    @pytest.mark.rule("F-23")
    def test_a_recovery_keeps_progress_and_refusals(self):
        record = then(then(active(), *PROVEN), DoneRefused("not completed"), by="supervisor")
        record = then(then(record, Recovered("crashed"), by="supervisor"), StatusChanged("active"))
        assert record.refusals == 1
        assert then(record, DONE).status == "completed"

    @pytest.mark.rule("F-16")
    def test_a_gated_dispatch_waits_for_a_human(self):
        record = queued(needs_approval="yes", decision_needed="which index to change")
        assert "approval" in refused(record, StatusChanged("active"))
        for by in ("worker", "supervisor", "orchestrator"):
            assert "only human may write this" in refused(record, Approved(), by)
        record = then(record, Approved("the small one"), by="human")
        assert record.of(Approved)[0][0].author == "somebody"
        assert "approved already" in refused(record, Approved(), "human")
        assert then(record, StatusChanged("active")).status == "active"

    @pytest.mark.rule("F-16")
    def test_a_rejected_dispatch_accepts_no_entry(self):
        record = then(queued(), StatusChanged("rejected", reason="not now"), by="human")
        assert record.reason == "not now"
        assert "the end" in refused(record, Approved(), "human")
        assert "the end" in refused(record, Progressed("milestone", "x"), "human")

    @pytest.mark.rule("F-23")
    def test_a_recovery_counts_the_attempt_and_keeps_the_rest(self):
        record = then(active(), *PROVEN)
        back = then(record, Recovered("the process died"), by="supervisor", token=2)
        assert (back.status, back.attempt, back.token) == ("queued", 2, 2)
        assert back.evidence == record.evidence
        assert back.contract == record.contract
        assert len(back.of(Recovered)) == 1

    def test_only_active_dispatches_recover(self):
        assert "only what is active" in refused(queued(), Recovered("x"), "supervisor")

    @pytest.mark.rule("F-13")
    def test_a_removed_blocker_stays_in_the_history(self):
        record = then(active(), Progressed("blocker", "no key"), StatusChanged("blocked", blocker="no key"))
        assert "approve or unblock it first" in refused(record, StatusChanged("queued"), "human")
        back = then(record, Unblocked("here it is"), StatusChanged("queued"), by="orchestrator")
        assert (back.status, back.blocker) == ("queued", "")
        assert any(event.blocker == "no key" for _, event in back.of(StatusChanged))

    @pytest.mark.rule("F-13")
    def test_an_unblocking_counts_once(self):
        record = then(active(), Progressed("milestone", "x"), StatusChanged("blocked", blocker="one"))
        record = then(record, Unblocked("go on"), StatusChanged("queued"), by="human")
        record = then(record, StatusChanged("active"), Progressed("milestone", "y"))
        record = then(record, StatusChanged("blocked", blocker="two"))
        assert "unblock it first" in refused(record, StatusChanged("queued"), "human")

    @pytest.mark.rule("F-21")
    def test_refusals_of_done_are_counted_since_the_start(self):
        record = then(active(), DoneRefused("no progress"), DoneRefused("again"), by="supervisor")
        assert record.refusals == 2
        again = then(record, Progressed("milestone", "x"), StatusChanged("blocked", blocker="no key"))
        again = then(again, Unblocked("here"), StatusChanged("queued"), by="human")
        assert then(again, StatusChanged("active")).refusals == 0
        assert "only supervisor" in refused(record, DoneRefused("me"))

    @pytest.mark.rule("F-39")
    def test_closing_an_unmet_dispatch_needs_a_reason_and_is_final(self):
        record = then(active(), StatusChanged("failed", reason="too many restarts"), by="supervisor")
        assert "only what has ended" in refused(active(), Closed("enough"), "human")
        assert "acceptance 1: a tag finds its notes" in refused(record, Closed(), "human")
        assert "needs a reason" in refused(record, Closed("TBD"), "human")
        closed = then(record, Closed("it is not worth it"), by="human")
        assert closed.of(Closed)[0][1].override == "it is not worth it"
        for event in (Closed("again"), Progressed("milestone", "late"), Approved()):
            assert "closed" in refused(closed, event, "human")
        assert then(completed(), Closed(), by="human").closed

    @pytest.mark.parametrize("event", [OutputWritten("x"), Folded(1, 2), Progressed("milestone", "x")])
    def test_a_worker_writes_while_it_is_active(self, event):
        assert "for while it is active" in refused(queued(), event)


class TestLeases:
    @pytest.mark.rule("F-14")
    def test_a_second_claimant_is_refused(self):
        assert "active cannot become active" in refused(active(), StatusChanged("active"), token=2)

    @pytest.mark.rule("F-14")
    def test_starting_needs_the_lease(self):
        assert "lease" in refused(queued(), StatusChanged("active"), token=None)

    @pytest.mark.rule("F-33")
    @pytest.mark.parametrize("token", [None, 1])
    def test_a_late_writer_is_refused(self, token):
        record = then(then(active(), Recovered("expired"), by="supervisor", token=2), StatusChanged("active"), token=2)
        assert record.next_token == 3
        assert "lease" in refused(record, Progressed("milestone", "me again"), token=token)
        assert "lease" in refused(record, StatusChanged("blocked", blocker="me"), token=token)
        assert then(record, Progressed("milestone", "the new one"), token=2)

    @pytest.mark.rule("F-33")
    def test_people_need_no_lease_and_an_expired_lease_is_refused(self):
        record = then(active(), Recovered("expired"), by="supervisor", token=2)
        assert then(record, Progressed("milestone", "hello"), by="human").token == 2
        assert "lease 1 is over" in refused(record, Progressed("milestone", "hello"), "orchestrator", token=1)


def test_every_event_has_its_allowed_writers_and_its_name():
    events = {made for made in vars(event_module).values() if made in KINDS.values()}
    assert set(MAY_WRITE) == set(KINDS.values()) == events


def test_an_entry_is_decoded_as_it_was_encoded():
    record = completed()
    for one in record.entries:
        assert decode_entry(encode_entry(one)) == one
    assert folded(record.entries) == record == folded(decode_entry(encode_entry(one)) for one in record.entries)


def test_apply_is_deterministic():
    record = active()
    one = entry(record, Progressed("milestone", "x"))
    assert apply(record, one) == apply(record, one)
