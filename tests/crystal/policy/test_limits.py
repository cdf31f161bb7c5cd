"""When a query may begin: the pure decisions, one by one and as properties."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cantrip_actors.crystal.policy.limits import UNLIMITED, Attempt, AttemptEnd, AttemptQueue, Limits, is_refusal
from cantrip_actors.terms.errors import InvalidCantrip, ProviderError


class Clerk:
    """Keeps a queue and a clock, and numbers the attempts."""

    def __init__(self, **limits):
        self.limits = Limits(**limits)
        self.queue = AttemptQueue(self.limits)
        self.now = 0.0
        self.wake_at = None
        self.grants = {}
        self.order = []
        self.tickets = {}
        self.next = 0

    @property
    def waiting(self):
        return [self.tickets[id(attempt)] for attempt in self.queue.waiting]

    def do(self, change, *arguments):
        begun = len(self.order)
        self.wake_at = change(*arguments, self.now)
        return [self.tickets[id(attempt)] for _, attempt in self.order[begun:]]

    def ask(self, tokens=0, since=None):
        self.next += 1
        ticket, attempt = self.next, Attempt(tokens, self.next if since is None else since)
        self.tickets[id(attempt)] = ticket

        def begins():
            self.grants[ticket] = attempt
            self.order.append((self.now, attempt))

        attempt.wake = begins
        return ticket, self.do(self.queue.ask, attempt)

    def leave(self, ticket):
        return self.do(self.queue.leave, next(one for one in self.queue.waiting if self.tickets[id(one)] == ticket))

    def end(self, ticket, outcome="answered", **how):
        return self.do(
            self.queue.end, self.grants.pop(ticket), AttemptEnd("unknown" if "refused" in how else outcome, **how)
        )

    def sleep(self):
        """To the next wake-up."""
        assert self.wake_at is not None
        self.now = max(self.now, self.wake_at)
        return self.tick()

    def tick(self):
        return self.do(self.queue.admit)


def many(clerk, count, tokens=0):
    return [clerk.ask(tokens)[0] for _ in range(count)]


class TestConcurrency:
    def test_queries_beyond_the_concurrency_start_in_order_of_arrival(self):
        clerk = Clerk(concurrency=2)
        assert [clerk.ask()[1] for _ in range(4)] == [[1], [2], [], []]
        assert clerk.wake_at is None  # it hangs on one that runs, not on the time
        assert clerk.end(2) == [3]
        assert clerk.end(1) == [4]

    def test_a_query_that_leaves_is_removed_from_the_queue_at_once(self):
        clerk = Clerk(concurrency=1)
        many(clerk, 4)
        clerk.leave(2)
        assert clerk.waiting == [3, 4]
        assert clerk.end(1) == [3]

    def test_a_retried_query_keeps_its_position(self):
        clerk = Clerk(concurrency=1)
        many(clerk, 4)
        assert clerk.end(1, refused=True) == [2]
        again, _ = clerk.ask(since=1)
        assert clerk.waiting == [again, 3, 4]
        assert clerk.end(2) == [again]

    def test_all_waiting_queries_can_be_removed(self):
        clerk = Clerk(concurrency=1)
        many(clerk, 4)
        assert len(clerk.queue.clear()) == 3
        assert clerk.queue.waiting == []
        assert clerk.end(1) == []

    def test_all_queries_start_at_once_without_limits(self):
        clerk = Clerk()
        assert many(clerk, 100) == list(clerk.grants)


class TestBuckets:
    def test_a_bucket_allows_a_minutes_worth_at_once_and_refills_evenly(self):
        clerk = Clerk(requests_per_minute=60)
        many(clerk, 62)
        assert len(clerk.grants) == 60
        assert clerk.wake_at == pytest.approx(1.0)
        assert clerk.sleep() == [61]
        assert clerk.sleep() == [62]
        assert clerk.now == pytest.approx(2.0)

    def test_a_limit_may_be_less_than_one_request_per_minute(self):
        clerk = Clerk(requests_per_minute=0.5)
        many(clerk, 2)
        assert list(clerk.grants) == [1]
        clerk.sleep()
        assert clerk.now == pytest.approx(120)

    def test_tokens_are_reserved_and_then_settled(self):
        clerk = Clerk(tokens_per_minute=600)
        first, second = many(clerk, 2, tokens=400)
        assert list(clerk.grants) == [first]
        assert clerk.wake_at == pytest.approx(20)  # 200 short, ten a second
        assert clerk.end(first, used=100) == [second]  # 300 come back

    def test_usage_above_the_reservation_becomes_a_debt(self):
        clerk = Clerk(tokens_per_minute=600)
        (first,) = many(clerk, 1, tokens=100)
        clerk.end(first, used=1200)
        many(clerk, 1, tokens=100)
        assert clerk.wake_at == pytest.approx(70)  # 600 below nothing, and 100 of one's own

    def test_an_unknown_usage_keeps_the_reserved_estimate(self):
        clerk = Clerk(tokens_per_minute=600)
        (first,) = many(clerk, 1, tokens=400)
        clerk.end(first)
        assert clerk.queue.tokens.left == 200

    def test_a_query_larger_than_the_bucket_waits_until_it_is_full_and_is_not_overtaken(self):
        clerk = Clerk(tokens_per_minute=600)
        small, large, tiny = clerk.ask(300)[0], clerk.ask(5000)[0], clerk.ask(1)[0]
        assert list(clerk.grants) == [small]
        assert clerk.sleep() == [large]
        assert clerk.now == pytest.approx(30)
        while tiny not in clerk.grants:
            clerk.sleep()
        assert clerk.now == pytest.approx(30 + (4400 + 1) / 10)


class TestPauses:
    def test_a_wait_hint_pauses_all_queries(self):
        clerk = Clerk(concurrency=10)
        first, *_ = many(clerk, 12)
        assert clerk.end(first, refused=True, pause=20) == []
        assert clerk.tick() == []
        for ticket in list(clerk.grants):
            assert clerk.end(ticket, refused=True, pause=20) == []
        assert clerk.wake_at == 20

    def test_after_a_pause_the_window_starts_at_one_and_doubles_with_each_round(self):
        clerk = Clerk(concurrency=32)
        rounds = many(clerk, 232)[:32]
        for ticket in rounds:
            clerk.end(ticket, refused=True, pause=5)
        sizes = []
        while len(sizes) < 7:
            if not clerk.grants:
                clerk.sleep()
            sizes.append(len(clerk.grants))
            for ticket in list(clerk.grants):
                clerk.end(ticket)
        assert sizes == [1, 2, 4, 8, 16, 32, 32]
        assert clerk.queue.window is None

    def test_a_refusal_without_a_hint_halves_the_window(self):
        clerk = Clerk(concurrency=16)
        running = many(clerk, 40)[:16]
        clerk.end(running[0], refused=True)
        assert clerk.queue.window == 8
        for ticket in running[1:9]:  # they were on their way: they say nothing new
            clerk.end(ticket, refused=True)
        assert clerk.queue.window == 8
        assert clerk.queue.running == 8

    def test_answers_of_queries_from_before_a_refusal_do_not_widen_the_window(self):
        clerk = Clerk(concurrency=4)
        running = many(clerk, 8)[:4]
        clerk.end(running[0], refused=True, pause=1)
        for ticket in running[1:]:
            clerk.end(ticket)
        assert clerk.queue.window == 1

    def test_a_very_long_wait_hint_is_capped(self):
        clerk = Clerk(longest_pause=60)
        (first,) = many(clerk, 1)
        clerk.end(first, refused=True, pause=3600)
        assert clerk.queue.paused_until == 60

    def test_the_longest_of_several_hints_counts(self):
        clerk = Clerk()
        first, second = many(clerk, 2)
        clerk.end(first, refused=True, pause=30)
        clerk.end(second, refused=True, pause=10)
        assert clerk.queue.paused_until == 30

    def test_recovery_ends_when_the_queue_is_empty(self):
        clerk = Clerk()
        (first,) = many(clerk, 1)
        clerk.end(first, refused=True, pause=3)
        (second,) = many(clerk, 1)
        clerk.sleep()
        clerk.end(second)
        assert clerk.queue.window is None

    @pytest.mark.parametrize(
        ("error", "refused"),
        [
            (ProviderError("", status=429), True),
            (ProviderError("", status=529), True),
            (ProviderError("", status=500), False),
            (ProviderError("", status=500, retry_after=3), True),
            (ProviderError("", status=429, retryable=False), False),  # a spent quota
            (ProviderError("", status=None), False),
        ],
    )
    def test_errors_are_classified_as_refusals(self, error, refused):
        assert is_refusal(error) is refused


def test_a_restart_keeps_the_buckets_and_forgets_queries_in_flight():
    clerk = Clerk(concurrency=2, tokens_per_minute=600)
    many(clerk, 4, tokens=200)
    left = clerk.queue.copy_for_restart()
    assert (left.running, left.waiting, left.tokens.left) == (0, [], 200)


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"concurrency": True},
        {"requests_per_minute": 0},
        {"tokens_per_minute": -1},
        {"tokens_per_minute": float("nan")},
        {"requests_per_minute": float("inf")},
        {"requests_per_minute": "60"},
        {"longest_pause": -1},
    ],
)
def test_an_invalid_limit_is_refused(wrong):
    with pytest.raises(InvalidCantrip, match=next(iter(wrong))):
        Limits(**wrong)


class Traffic(RuleBasedStateMachine):
    """Any interleaving of asking, leaving, ending and time, under any limits."""

    @initialize(
        concurrency=st.none() | st.integers(1, 4),
        requests=st.none() | st.floats(0.5, 200),
        tokens=st.none() | st.floats(10, 10_000),
    )
    def begin(self, concurrency, requests, tokens):
        self.clerk = Clerk(concurrency=concurrency, requests_per_minute=requests, tokens_per_minute=tokens)
        self.queue = deque()
        self.taken = 0.0

    def noted(self, begun):
        for ticket in begun:
            assert ticket == self.queue.popleft(), "somebody overtook"
            self.taken += self.clerk.grants[ticket].tokens

    @rule(tokens=st.floats(0, 20_000))
    def ask(self, tokens):
        self.queue.append(self.clerk.next + 1)
        self.noted(self.clerk.ask(tokens)[1])

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def leave(self, data):
        ticket = data.draw(st.sampled_from(sorted(self.queue)))
        self.queue.remove(ticket)
        self.noted(self.clerk.leave(ticket))

    @precondition(lambda self: self.clerk.grants)
    @rule(
        data=st.data(),
        used=st.none() | st.floats(0, 20_000),
        how=st.sampled_from(["answered", "failed", "refused", "paused"]),
        pause=st.floats(0, 100),
    )
    def end(self, data, used, how, pause):
        ticket = data.draw(st.sampled_from(sorted(self.clerk.grants)))
        if used is not None:
            self.taken += used - self.clerk.grants[ticket].tokens
        refused = how in ("refused", "paused")
        hint = pause if how == "paused" else None
        said = {"refused": True, "pause": hint} if refused else {"outcome": how}
        self.noted(self.clerk.end(ticket, used=used, **said))

    @rule(seconds=st.floats(0, 200))
    def wait(self, seconds):
        self.clerk.now += seconds
        self.noted(self.clerk.tick())

    @invariant()
    def limits_hold(self):
        if not hasattr(self, "clerk"):
            return
        clerk, state = self.clerk, self.clerk.queue
        assert state.running == len(clerk.grants)
        assert clerk.waiting == list(self.queue)
        if clerk.limits.concurrency is not None:
            assert state.running <= clerk.limits.concurrency
        requests, tokens = clerk.limits.requests_per_minute, clerk.limits.tokens_per_minute
        if requests is not None:
            assert len(clerk.order) <= max(1, requests) + clerk.now * requests / 60 + 1e-6
        if tokens is not None and clerk.order:
            # what was taken so far is what the bucket had and got, less what it has; what ran over is lost
            assert self.taken <= tokens + state.tokens.at * tokens / 60 - state.tokens.left + 1e-3

    @invariant()
    def nobody_is_forgotten(self):
        if hasattr(self, "clerk") and self.queue and not self.clerk.grants:
            assert self.clerk.wake_at is not None, "somebody waits, nobody runs, and nobody will come back to it"

    def teardown(self):
        """Check that every query begins in the end if the running ones are answered."""
        if not hasattr(self, "clerk"):
            return
        for _ in range(10_000):
            if not self.queue:
                return
            if self.clerk.grants:
                self.noted(self.clerk.end(next(iter(self.clerk.grants))))
            else:
                self.noted(self.clerk.sleep())
        raise AssertionError("somebody starves")


TestTraffic = Traffic.TestCase


@given(count=st.integers(1, 200), concurrency=st.integers(1, 20))
def test_queries_are_served_in_order_of_arrival(count, concurrency):
    clerk = Clerk(concurrency=concurrency)
    asked = many(clerk, count)
    while clerk.grants:
        clerk.end(next(iter(clerk.grants)))
    assert [clerk.tickets[id(attempt)] for _, attempt in clerk.order] == asked


def test_limits_without_a_bound_are_not_limits():
    assert Limits() == UNLIMITED
