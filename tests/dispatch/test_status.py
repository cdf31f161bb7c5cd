"""The status machine, whole: every pair of statuses, every capacity, every guard."""

from itertools import product

import pytest

from cantrip_actors.dispatch import STATUSES, TERMINAL, legal_next
from cantrip_actors.dispatch.status import ALIASES, Standing, Wanted, refusal_of

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

PLENTY = {"result": "it works", "blocker": "no key", "reason": "because", "recovery": True, "leased": True}


def standing(status, **less):
    return Standing(status, **({"approved": True, "progress": True, "released": True} | less))


@pytest.mark.rule("F-13")
class TestTheTable:
    @pytest.mark.parametrize(("before", "to", "by"), list(product(STATUSES, STATUSES, CAPACITIES)))
    def test_every_pair_in_every_capacity(self, before, to, by):
        found = refusal_of(standing(before), Wanted(to, by, **PLENTY))
        if by in LEGAL.get((before, to), ()):
            assert found is None
        else:
            assert found is not None
            by_anybody = {to for b, to in LEGAL if b == before}
            by_it = {to for (b, to), who in LEGAL.items() if b == before and by in who}
            wrong_hands = (before, to) in LEGAL
            assert set(found.legal) == (by_it if wrong_hands else by_anybody)
            assert all(status in found.text for status in found.legal)

    def test_the_end_is_the_end(self):
        assert {"completed", "failed", "rejected"} == TERMINAL
        assert all(not legal_next(status) for status in TERMINAL)
        assert "is the end" in refusal_of(standing("failed"), Wanted("queued", "human", **PLENTY)).text

    @pytest.mark.rule("F-17")
    @pytest.mark.parametrize("word", [*ALIASES, "banana", "", "QUEUED"])
    def test_what_is_no_status_is_refused_and_so_are_aliases(self, word):
        found = refusal_of(standing("active"), Wanted(word, "worker", **PLENTY))
        assert found.rule == "F-17"
        assert set(found.legal) == {"blocked", "completed", "queued", "failed"}


GUARDS = [
    pytest.param("queued", "active", "worker", {"leased": False}, {}, "F-14", id="the lease"),
    pytest.param("queued", "active", "worker", {}, {"needs_approval": True, "approved": False}, "F-16", id="approval"),
    pytest.param("active", "blocked", "worker", {"blocker": " "}, {}, "F-15", id="a blocker"),
    pytest.param("active", "blocked", "worker", {"blocker": "TBD"}, {}, "F-15", id="a blocker that says something"),
    pytest.param("active", "blocked", "worker", {}, {"progress": False}, "F-15", id="progress before blocking"),
    pytest.param("active", "blocked", "supervisor", {"blocker": ""}, {}, "F-15", id="a blocker of the runtime's"),
    pytest.param("active", "completed", "worker", {"result": ""}, {}, "F-15", id="a result"),
    pytest.param("active", "completed", "worker", {}, {"progress": False}, "F-15", id="progress before completing"),
    pytest.param("active", "completed", "worker", {}, {"unproven": (2,)}, "F-15", id="evidence"),
    pytest.param("active", "queued", "supervisor", {"recovery": False}, {}, "F-23", id="a recovery"),
    pytest.param("active", "queued", "supervisor", {"reason": ""}, {}, "F-23", id="a recovery's reason"),
    pytest.param("active", "failed", "supervisor", {"reason": ""}, {}, "F-13", id="a failure's reason"),
    pytest.param("blocked", "failed", "supervisor", {"reason": ""}, {}, "F-13", id="a failure's reason, blocked"),
    pytest.param("blocked", "queued", "human", {}, {"released": False}, "F-13", id="approval or unblocking"),
    pytest.param("queued", "rejected", "human", {"reason": ""}, {}, "F-13", id="a rejection's reason"),
    pytest.param("blocked", "rejected", "orchestrator", {"reason": ""}, {}, "F-13", id="a rejection's reason, blocked"),
]


@pytest.mark.rule("F-13", "F-14", "F-15", "F-16")
class TestTheGuards:
    @pytest.mark.parametrize(("before", "to", "by", "less", "facts", "rule"), GUARDS)
    def test_what_lacks_something_is_refused(self, before, to, by, less, facts, rule):
        wanted = Wanted(to, by, **(PLENTY | less))
        found = refusal_of(standing(before, **facts), wanted)
        assert found is not None
        assert found.rule == rule
        assert refusal_of(standing(before), Wanted(to, by, **PLENTY)) is None

    def test_the_supervisor_blocks_without_progress(self):
        assert refusal_of(standing("active", progress=False), Wanted("blocked", "supervisor", **PLENTY)) is None
