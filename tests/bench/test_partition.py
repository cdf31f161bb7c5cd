"""`python -m bench partition` spreads entities over databases, and simulates what these carry."""

from collections import Counter

import pytest

from bench.partition import assign, simulate


def test_by_root_each_database_has_about_as_many_entities() -> None:
    counts = Counter(assign(4000, 4, "root"))
    assert len(counts) == 4
    assert max(counts.values()) < 1.15 * min(counts.values())


def test_by_tenant_the_work_is_less_even_than_by_root() -> None:
    by_root, by_tenant = (Counter(assign(4000, 4, by)) for by in ("root", "tenant"))
    assert max(by_tenant.values()) > 1.15 * max(by_root.values())


def test_another_database_takes_its_share_and_nothing_else_moves() -> None:
    before, after = assign(1000, 4, "root"), assign(1000, 5, "root")
    assert {place for old, place in zip(before, after, strict=True) if old != place} == {4}


def test_a_database_with_too_much_work_is_busy_and_delays_grow() -> None:
    calm, full = simulate([0] * 100, 1, 0.001, 1), simulate([0] * 2000, 1, 0.001, 1)
    assert calm.busiest < 0.3
    assert calm.p95_ms < 5
    assert full.busiest == pytest.approx(1.0, abs=0.02)
    assert full.turns_s == pytest.approx(1000, rel=0.02)
    assert full.p95_ms > 100
