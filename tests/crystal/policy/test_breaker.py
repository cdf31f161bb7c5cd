"""The circuit breaker: the pure decisions, one by one and as properties."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.crystal.policy.breaker import Breaker, Circuit
from cantrip_actors.crystal.policy.estimate import Estimator
from cantrip_actors.crystal.policy.limited import LimitTerms
from cantrip_actors.crystal.policy.limits import Limits, classify_end
from cantrip_actors.crystal.policy.traffic import Traffic
from cantrip_actors.crystal.query import Query
from cantrip_actors.terms.errors import InvalidCantrip, ProviderError
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import Invocation, Message, Response

A, F, U = "answered", "failed", "unknown"


class Fuse:
    """Keeps a circuit and a clock."""

    def __init__(self, **settings):
        self.breaker = Breaker(**settings)
        self.circuit = Circuit(self.breaker)
        self.now = 0.0

    def enter(self):
        return self.circuit.enter(self.now)

    def end(self, given, outcome):
        self.circuit.end(given, outcome, self.now, "it failed")

    def call(self, *outcomes):
        for outcome in outcomes:
            given = self.enter()
            assert given is not None
            self.end(given, outcome)
        return self.phase

    @property
    def phase(self):
        return self.circuit.get_phase(self.now)


def test_failures_in_a_row_open_the_breaker_until_a_stated_time():
    fuse = Fuse(failures=3, open_for=30)
    assert fuse.call(F, F) == "closed"
    assert fuse.call(F) == "open"
    assert fuse.enter() is None
    assert fuse.circuit.get_time_to_reopen(10.0) == 20.0
    assert fuse.circuit.why == "it failed"


def test_an_answer_in_between_starts_the_count_again():
    assert Fuse(failures=3).call(F, F, A, F, F) == "closed"


def test_unknown_outcomes_neither_trip_nor_reset_the_breaker():
    fuse = Fuse(failures=3)
    assert fuse.call(F, F, U) == "closed"
    assert fuse.call(F) == "open"


def test_a_share_of_failures_opens_the_breaker():
    fuse = Fuse(failures=100, rate=0.5, window=10)
    assert fuse.call(*[A, F] * 5) == "closed"
    assert fuse.call(F) == "open"


def test_a_share_of_failures_counts_only_in_a_full_window():
    assert Fuse(failures=100, rate=0.5, window=10).call(F, F, F) == "closed"


def test_an_answered_probe_closes_a_half_open_breaker():
    fuse = Fuse(failures=1, open_for=30)
    fuse.call(F)
    fuse.now = 30.0
    assert fuse.phase == "half-open"
    probe = fuse.enter()
    assert probe.probe
    assert fuse.enter() is None
    fuse.end(probe, A)
    assert fuse.phase == "closed"


def test_a_failed_probe_opens_the_breaker_for_twice_as_long_up_to_the_longest():
    fuse = Fuse(failures=1, open_for=30, longest=100)
    fuse.call(F)
    times = []
    for _ in range(4):
        times.append(fuse.circuit.get_time_to_reopen(fuse.now))
        fuse.now = fuse.circuit.until
        fuse.end(fuse.enter(), F)
    assert times == [30, 60, 100, 100]


def test_several_probes_have_to_succeed():
    fuse = Fuse(failures=1, probes=2)
    fuse.call(F)
    fuse.now = 30.0
    first, second = fuse.enter(), fuse.enter()
    assert fuse.enter() is None
    fuse.end(first, A)
    assert fuse.phase == "half-open"
    assert fuse.enter() is None
    fuse.end(second, A)
    assert fuse.phase == "closed"


def test_a_probe_that_is_cancelled_makes_room_for_another():
    fuse = Fuse(failures=1)
    fuse.call(F)
    fuse.now = 30.0
    fuse.end(fuse.enter(), U)
    assert fuse.enter() is not None


def test_a_query_from_before_the_breaker_opened_does_not_change_it():
    fuse = Fuse(failures=1)
    late, early = fuse.enter(), fuse.enter()
    fuse.end(early, F)
    fuse.end(late, A)
    assert fuse.phase == "open"
    fuse.now = 30.0
    fuse.end(fuse.enter(), A)
    fuse.end(late, F)
    assert fuse.phase == "closed"


@pytest.mark.parametrize(
    ("status", "more", "outcome"),
    [
        (None, {}, F),
        (500, {}, F),
        (529, {}, F),
        (503, {"retry_after": 3}, F),
        (408, {}, F),
        (429, {}, U),
        (429, {"retryable": False}, A),  # a spent quota: the provider works
        (400, {}, A),
        (401, {}, A),
    ],
)
def test_provider_errors_are_classified(status, more, outcome):
    assert classify_end(ProviderError("", status=status, **more)).outcome == outcome


@given(
    st.lists(st.tuples(st.sampled_from([A, F, U]), st.floats(0, 50)), max_size=60),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_the_breaker_always_admits_a_query_in_the_end(happened, failures, probes):
    fuse = Fuse(failures=failures, probes=probes, rate=0.5, window=4)
    for outcome, seconds in happened:
        given_ = fuse.enter()
        assert (given_ is None) == (fuse.phase == "open")
        if given_ is not None:
            fuse.end(given_, outcome)
        fuse.now += seconds
        assert fuse.circuit.get_time_to_reopen(fuse.now) <= fuse.breaker.longest
    fuse.now += fuse.breaker.longest
    for _ in range(probes):
        fuse.end(fuse.enter(), A)
    assert fuse.phase == "closed"


@pytest.mark.parametrize(
    "wrong",
    [
        {"failures": 0},
        {"window": True},
        {"probes": 1.5},
        {"rate": 1},
        {"rate": "half"},
        {"open_for": 0},
        {"longest": float("inf")},
        {"longest": "5"},
    ],
)
def test_an_invalid_breaker_is_refused(wrong):
    with pytest.raises(InvalidCantrip, match="breaker: "):
        Breaker(**wrong)


async def test_an_estimate_that_raises_leaves_no_probe_under_way():
    is_broken = [False]

    def count_tokens(_image):
        if is_broken[0]:
            raise KeyError("no such model")
        return 5

    async def fail(_query):
        raise ProviderError("down", status=500)

    async def answer(_query):
        return Response("fine")

    terms = LimitTerms(Limits(tokens_per_minute=1000), Breaker(failures=1, open_for=1.0))
    traffic = Traffic("model", terms, lambda _: None, Estimator(count_tokens))
    query = Query(Invocation([Message("user", "look", images=(Image.at("https://a.example/b.png"),))]))
    with pytest.raises(ProviderError):
        await traffic.pass_through(1, query, fail)
    await anyio.sleep(2)
    is_broken[0] = True
    with pytest.raises(KeyError):
        await traffic.pass_through(2, query, answer)
    is_broken[0] = False
    assert (await traffic.pass_through(3, query, answer)).content == "fine"
