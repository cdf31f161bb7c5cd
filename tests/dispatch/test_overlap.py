"""Several dispatches at once: overlapping outputs, and what a heartbeat may start."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.dispatch import Approved
from cantrip_actors.dispatch.overlap import overlaps, startable
from tests.dispatch.contracts import active, contract, queued, then


def writing(name, *outputs, repo="/srv/notes"):
    return contract(dispatch_id=name, outputs=list(outputs), repo=repo)


PATHS = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=3).map("/".join)
GATED = {"needs_approval": "yes", "decision_needed": "may it change the index?"}


@pytest.mark.rule("F-46")
class TestOverlaps:
    @pytest.mark.parametrize(
        ("one", "other", "path"),
        [
            ("search.py", "search.py", "/srv/notes/search.py"),
            ("search.py", "./search.py", "/srv/notes/search.py"),
            ("docs", "docs/guide.md", "/srv/notes/docs/guide.md"),
            ("docs/", "docs/a/../guide.md", "/srv/notes/docs/guide.md"),
            ("/srv/notes/search.py", "search.py", "/srv/notes/search.py"),
        ],
    )
    def test_outputs_overlap_if_they_name_the_same_file_or_a_folder_around_it(self, one, other, path):
        (found,) = overlaps([writing("a", one), writing("b", other)])
        assert found == ("a", "b", path)
        assert "run one after the other" in str(found)

    @pytest.mark.parametrize(("one", "other"), [("search.py", "search.pyi"), ("docs", "docs2/x"), ("a/x", "b/x")])
    def test_neighbouring_files_do_not_overlap(self, one, other):
        assert not overlaps([writing("a", one), writing("b", other)])

    def test_the_same_name_in_another_repository_is_another_file(self):
        assert not overlaps([writing("a", "x.py"), writing("b", "x.py", repo="/srv/else")])

    def test_a_contract_that_names_a_file_twice_does_not_overlap_with_itself(self):
        assert not overlaps([writing("a", "x.py", "x.py"), writing("b")])

    @given(PATHS, PATHS)
    def test_the_order_of_contracts_does_not_matter(self, one, other):
        here = overlaps([writing("a", one), writing("b", other)])
        there = overlaps([writing("a", other), writing("b", one)])
        assert {found.path for found in here} == {found.path for found in there}


@pytest.mark.rule("F-48", "F-16")
class TestHeartbeat:
    def test_only_queued_ungated_dispatches_start(self):
        free, gated = queued(), queued(dispatch_id="gated", **GATED)
        approved = then(gated, Approved(), by="human")
        assert startable([free, gated, approved, active()]) == (free, approved)
        assert startable([free, gated, approved, active()], heartbeat=True) == (free,)
