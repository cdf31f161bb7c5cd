"""The status machine, whole: every pair of statuses, every capacity, every guard."""

from dataclasses import replace
from itertools import product

import pytest

from cantrip_actors.dispatch import Recovered, StatusChanged
from cantrip_actors.dispatch.rules import refuse_status
from cantrip_actors.dispatch.status import ALIASES, STATUSES, TERMINAL, legal_next
from tests.dispatch.contracts import entry, queued

CAPACITIES = ("worker", "supervisor", "orchestrator", "human")

# As the specification has it (6.3), not as the module has it. The supervisor blocks where F-21, F-36, F-37 say so.
LEGAL = {
    ("queued", "active"): {"worker"},
    ("active", "blocked"): {"worker", "supervisor"},
    ("active", "completed"): {"worker"},
    ("active", "queued"): {"supervisor"},
    ("active", "failed"): {"supervisor"},
    ("blocked", "failed"): {"supervisor"},
    ("blocked", "queued"): {"orchestrator", "human"},
    ("queued", "rejected"): {"orchestrator", "human"},
    ("blocked", "rejected"): {"orchestrator", "human"},
}

PLENTY = {"result": "it works", "blocker": "no key", "reason": "because"}
EVIDENCE = ((1, "seen"), (2, "seen"))


def standing(status, **less):
    """A record with this status, which lacks nothing but `less`."""
    contract = {"decision_needed": "which index to change"} if "needs_approval" in less else {}
    record = queued(needs_approval=less.pop("needs_approval", "no"), **contract)
    facts = {"approved": True, "progress_since_start": 1, "released": True, "evidence": EVIDENCE}
    return replace(record, status=status, **(facts | less))


def refused(record, to, by, *, token=1, recovery=True, **less):
    """Why the status of a record may not be changed, or None; an active dispatch is queued by a recovery."""
    said = PLENTY | less
    is_recovery = recovery and (record.status, to) == ("active", "queued")
    event = Recovered(said["reason"]) if is_recovery else StatusChanged(to, **said)
    return refuse_status(record, entry(record, event, by, token), event)


@pytest.mark.rule("F-13")
class TestTheTable:
    @pytest.mark.parametrize(("before", "to", "by"), list(product(STATUSES, STATUSES, CAPACITIES)))
    def test_every_change_of_status_is_allowed_or_refused_for_every_role(self, before, to, by):
        found = refused(standing(before), to, by)
        if by in LEGAL.get((before, to), ()):
            assert found is None
        else:
            assert found is not None
            by_anybody = {to for b, to in LEGAL if b == before}
            by_it = {to for (b, to), who in LEGAL.items() if b == before and by in who}
            wrong_hands = (before, to) in LEGAL
            assert set(found.legal) == (by_it if wrong_hands else by_anybody)
            assert all(status in found.text for status in found.legal)

    def test_a_terminal_status_never_changes(self):
        assert {"completed", "failed", "rejected"} == TERMINAL
        assert all(not legal_next(status) for status in TERMINAL)
        assert "is the end" in refused(standing("failed"), "queued", "human").text

    @pytest.mark.rule("F-17")
    @pytest.mark.parametrize("word", [*ALIASES, "banana", "", "QUEUED"])
    def test_unknown_statuses_and_aliases_are_refused(self, word):
        found = refused(standing("active"), word, "worker")
        assert found.rule == "status"
        assert set(found.legal) == {"blocked", "completed", "queued", "failed"}


GUARDS = [
    pytest.param("queued", "active", "worker", {"token": None}, {}, "active", id="the lease"),
    pytest.param(
        "queued", "active", "worker", {}, {"needs_approval": "yes", "approved": False}, "approval", id="approval"
    ),
    pytest.param("active", "blocked", "worker", {"blocker": " "}, {}, "evidence", id="a blocker"),
    pytest.param("active", "blocked", "worker", {"blocker": "TBD"}, {}, "evidence", id="a blocker that says something"),
    pytest.param(
        "active", "blocked", "worker", {}, {"progress_since_start": 0}, "evidence", id="progress before blocking"
    ),
    pytest.param("active", "blocked", "supervisor", {"blocker": ""}, {}, "evidence", id="a blocker of the runtime's"),
    pytest.param("active", "completed", "worker", {"result": ""}, {}, "evidence", id="a result"),
    pytest.param(
        "active",
        "completed",
        "worker",
        {},
        {"progress_since_start": 0},
        "evidence",
        id="progress before it is complete",
    ),
    pytest.param("active", "completed", "worker", {}, {"evidence": EVIDENCE[:1]}, "evidence", id="evidence"),
    pytest.param("active", "queued", "supervisor", {"recovery": False}, {}, "recovery", id="a recovery"),
    pytest.param("active", "queued", "supervisor", {"reason": ""}, {}, "recovery", id="a recovery's reason"),
    pytest.param("active", "failed", "supervisor", {"reason": ""}, {}, "transition", id="a failure's reason"),
    pytest.param("blocked", "failed", "supervisor", {"reason": ""}, {}, "transition", id="a failure's reason, blocked"),
    pytest.param("blocked", "queued", "human", {}, {"released": False}, "transition", id="approval or unblocking"),
    pytest.param("queued", "rejected", "human", {"reason": ""}, {}, "transition", id="a rejection's reason"),
    pytest.param(
        "blocked", "rejected", "orchestrator", {"reason": ""}, {}, "transition", id="a rejection's reason, blocked"
    ),
]


@pytest.mark.rule("F-13", "F-14", "F-15", "F-16")
class TestTheGuards:
    @pytest.mark.parametrize(("before", "to", "by", "less", "facts", "rule"), GUARDS)
    def test_an_incomplete_status_is_refused(self, before, to, by, less, facts, rule):
        found = refused(standing(before, **facts), to, by, **less)
        assert found is not None
        assert found.rule == rule
        assert refused(standing(before), to, by) is None

    def test_the_supervisor_blocks_without_progress(self):
        assert refused(standing("active", progress_since_start=0), "blocked", "supervisor") is None
