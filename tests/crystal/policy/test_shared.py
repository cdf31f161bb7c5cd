"""Limits that many processes share: their queues draw from one account, on a simulated clock."""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors import InvalidCantrip
from cantrip_actors.crystal.policy.limits import Attempt, AttemptEnd, AttemptQueue, Limits
from cantrip_actors.crystal.policy.shared import FRESH, HOLD, AccountRequest, add, draw, make_ask

STEP = 0.05


@dataclass
class Process:
    """One process: a queue, and the requests that it has on the way."""

    name: str
    limits: Limits
    takes: float = 1.0
    """Seconds that a request takes."""
    queue: AttemptQueue = field(init=False)
    running: list[tuple[float, Attempt]] = field(default_factory=list)
    since: float = -1e9
    again: float = 0.0
    is_alive: bool = True
    number: int = 0

    def __post_init__(self) -> None:
        self.queue = AttemptQueue(self.limits)


@dataclass
class World:
    """Processes that share an account; `begun` has the time and the tokens of each request."""

    limits: Limits
    processes: list[Process]
    now: float = 0.0
    account: str | None = None
    begun: list[tuple[float, float]] = field(default_factory=list)
    by_process: list[str] = field(default_factory=list)
    most: int = 0

    def ask(self, process: Process, tokens: float) -> None:
        attempt = Attempt(tokens, process.number)
        process.number += 1

        def begin() -> None:
            self.begun.append((self.now, tokens))
            self.by_process.append(process.name)
            process.running.append((self.now + process.takes, attempt))

        attempt.wake = begin
        process.queue.ask(attempt, self.now)

    def step(self) -> None:
        self.now += STEP
        for one in self.processes:
            if not one.is_alive:
                continue
            for ends, attempt in [run for run in one.running if run[0] <= self.now]:
                one.running.remove((ends, attempt))
                one.queue.end(attempt, AttemptEnd("answered", used=attempt.tokens), self.now)
            one.queue.admit(self.now)
            ask = make_ask(one.queue, one.name, self.now, one.since) if self.now >= one.again else None
            if ask is None:
                continue
            self.account, grant = draw(self.account, self.limits, ask, self.now)
            one.since = self.now
            add(one.queue, ask, grant, self.now)
            if ask.requests and not grant.requests:
                one.again = self.now + min(max(grant.wait, STEP), FRESH)
        self.most = max(self.most, sum(len(one.running) for one in self.processes if one.is_alive))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.step()


def world(limits: Limits, processes: int, **options: float) -> World:
    return World(limits, [Process(f"p{n}", limits, **options) for n in range(processes)])


@pytest.mark.rule("N-52")
@pytest.mark.parametrize("processes", [1, 2, 8])
def test_all_processes_together_stay_within_the_limit_and_one_bucket_over_any_minute(processes: int) -> None:
    here = world(Limits(requests_per_minute=60, tokens_per_minute=6000, shared="x"), processes, takes=0.1)
    for _ in range(400):
        for one in here.processes:
            here.ask(one, 50.0)
    here.run(150)
    for start in range(0, 90, 5):
        inside = [tokens for at, tokens in here.begun if start <= at < start + 60]
        assert len(inside) <= 60 + 60
        assert sum(inside) <= 6000 + 6000
    assert len(here.begun) >= 60 + 60 * 2.4  # the bucket and the rate are used up


@pytest.mark.rule("N-52")
@settings(max_examples=40, deadline=None)
@given(
    rate=st.integers(6, 600),
    processes=st.integers(1, 8),
    load=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 40), st.floats(1, 900)), max_size=60),
    dies=st.integers(0, 40),
)
def test_the_account_is_never_overdrawn_when_a_process_dies(
    rate: int, processes: int, load: list[tuple[int, int, float]], dies: int
) -> None:
    here = world(Limits(requests_per_minute=rate, tokens_per_minute=1000, shared="x"), processes, takes=0.3)
    todo = sorted(load, key=lambda one: one[1])
    for second in range(45):
        for who, at, tokens in todo:
            if at == second:
                here.ask(here.processes[who % processes], tokens)
        if second == dies and processes > 1:
            here.processes[0].is_alive = False
        here.run(1)
    assert len(here.begun) <= max(1, rate) + rate * 45 / 60 + 1
    assert sum(tokens for _, tokens in here.begun) <= 1000 + 1000 * 45 / 60 + 900 + 1


@pytest.mark.rule("N-52")
def test_an_idle_process_returns_its_unused_allowance() -> None:
    here = world(Limits(requests_per_minute=600, shared="x"), 2, takes=0.1)
    one, two = here.processes
    here.ask(one, 0.0)
    here.run(5)
    assert here.account is not None
    assert json.loads(here.account)["requests"] == pytest.approx(600, abs=1)
    for _ in range(700):
        here.ask(two, 0.0)
    here.run(3)
    assert len(here.begun) > 600


@pytest.mark.rule("N-53")
def test_a_pause_holds_for_all_processes_and_one_of_them_probes_first() -> None:
    here = world(Limits(requests_per_minute=6000, shared="x"), 3, takes=1e9)
    for one in here.processes:
        here.ask(one, 0.0)
    here.run(0.2)
    first = here.processes[0]
    (_, attempt), *_ = first.running
    first.running.clear()
    first.queue.end(attempt, AttemptEnd("unknown", refused=True, pause=20.0), here.now)
    paused_at = here.now
    here.run(1)
    for one in here.processes[1:]:
        for _ in range(5):
            here.ask(one, 0.0)
    before = len(here.begun)
    here.run(18)
    assert len(here.begun) == before
    here.run(1.7)
    assert here.now > paused_at + 20
    assert len(here.begun) == before + 1
    here.run(2)
    assert len(here.begun) == before + 10


@pytest.mark.rule("N-54")
@pytest.mark.parametrize("processes", [1, 2, 8])
def test_all_processes_together_keep_the_concurrency_limit(processes: int) -> None:
    here = world(Limits(concurrency=5, shared="x"), processes, takes=0.7)
    for _ in range(20):
        for one in here.processes:
            here.ask(one, 0.0)
    here.run(20 * processes * 0.7 / 5 + 20)
    assert here.most == 5
    assert len(here.begun) == 20 * processes
    assert len(set(here.by_process)) == processes


@pytest.mark.rule("N-54")
def test_the_places_of_a_dead_process_are_free_again() -> None:
    here = world(Limits(concurrency=3, shared="x"), 2, takes=1e9)
    dead, living = here.processes
    for _ in range(3):
        here.ask(dead, 0.0)
    here.run(1)
    dead.is_alive = False
    for _ in range(3):
        here.ask(living, 0.0)
    here.run(HOLD - 2)
    assert len(here.begun) == 3
    here.run(4)
    assert len(here.begun) == 6


@pytest.mark.rule("N-54")
def test_places_are_held_while_their_requests_run() -> None:
    here = world(Limits(concurrency=2, shared="x"), 2, takes=100)
    slow, other = here.processes
    here.ask(slow, 0.0)
    here.ask(slow, 0.0)
    here.run(1)
    here.ask(other, 0.0)
    here.run(90)
    assert len(here.begun) == 2
    here.run(15)
    assert len(here.begun) == 3


@pytest.mark.rule("N-52")
def test_an_account_survives_a_reset_of_the_machines_clock() -> None:
    limits = Limits(requests_per_minute=60, shared="x")
    account, grant = draw(None, limits, AccountRequest("a", requests=60, pause=0), 1_000_000.0)
    assert grant.requests == 60
    account, grant = draw(account, limits, AccountRequest("a", requests=1), 5.0)
    assert not grant.requests
    account, grant = draw(account, limits, AccountRequest("a", requests=1), 5.0 + grant.wait)
    assert grant.requests == 1


@pytest.mark.rule("N-52")
@pytest.mark.parametrize("name", ["", " ", 7])
def test_an_invalid_shared_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidCantrip, match="limits: shared: expected a name"):
        Limits(concurrency=1, shared=name)  # type: ignore[arg-type]
