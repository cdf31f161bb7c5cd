"""The exit contract: when `done` ends the entity of a dispatch."""

import pytest

from cantrip_actors.dispatch import DoneRefused, Progressed, StatusChanged
from cantrip_actors.dispatch.rules import make_exit
from tests.dispatch.contracts import active, queued, then


@pytest.mark.rule("F-21")
class TestDone:
    def test_done_is_refused_while_work_is_unaccounted_for(self):
        refused = make_exit(active())
        assert isinstance(refused, DoneRefused)
        for missing in ("write progress", "1 (a tag finds its notes), 2 (an unknown", "set the status to completed"):
            assert missing in refused.text

    def test_completed_items_are_not_demanded_again(self):
        record = then(active(), Progressed("verification", "pytest: 12 passed", item=1))
        refused = make_exit(record)
        assert "write progress" not in refused.text
        assert "tag finds its notes" not in refused.text

    @pytest.mark.parametrize("cap", [0, 1, 2, 5])
    def test_the_last_allowed_refusal_blocks_the_dispatch(self, cap):
        record = active()
        for _ in range(cap):
            refused = make_exit(record, cap)
            assert isinstance(refused, DoneRefused)
            record = then(record, refused, by="supervisor")
        ends = make_exit(record, cap)
        assert ends == StatusChanged("blocked", blocker="exit contract unmet")
        assert then(record, ends, by="supervisor").status == "blocked"

    def test_a_refusal_says_how_many_refusals_remain(self):
        record = active()
        assert "1 more of these" in make_exit(record).text
        assert "Next time it ends as blocked" in make_exit(then(record, DoneRefused("x"), by="supervisor")).text

    def test_a_finished_or_blocked_dispatch_may_end(self):
        proven = [Progressed("verification", f"seen {item}", item=item) for item in (1, 2)]
        assert make_exit(then(active(), *proven, StatusChanged("completed", result="it works"))) is None
        blocked = then(active(), Progressed("blocker", "no key"), StatusChanged("blocked", blocker="no key"))
        assert make_exit(blocked) is None
        assert make_exit(then(queued(), StatusChanged("rejected", reason="no"), by="human")) is None

    def test_a_dispatch_that_never_began_is_refused(self):
        assert isinstance(make_exit(queued()), DoneRefused)
