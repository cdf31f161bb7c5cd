"""The decisions of supervisors, as tables and properties, without an event loop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisors.policy import (
    Backoff,
    RestartPlan,
    RestartWindow,
    plan,
    should_end_supervisor,
    should_restart,
)
from supervisors.reasons import (
    KILLED,
    NORMAL,
    SHUTDOWN,
    Crash,
    Normal,
    Shutdown,
    Stop,
    find_fatal,
    is_abnormal,
    list_leaves,
    make_reason,
)

CRASH = Crash(ValueError("x"))
REASONS = {
    "normal": NORMAL,
    "shutdown": SHUTDOWN,
    "shutdown with detail": Shutdown("d"),
    "killed": KILLED,
    "crash": CRASH,
}


@pytest.mark.rule("S-14")
@pytest.mark.parametrize("reason", REASONS.values(), ids=REASONS)
def test_a_permanent_child_is_restarted_after_any_exit(reason):
    assert should_restart("permanent", reason)


@pytest.mark.rule("S-15")
@pytest.mark.parametrize(
    ("name", "restarts"),
    [
        ("normal", False),
        ("shutdown", False),
        ("shutdown with detail", False),
        ("killed", True),
        ("crash", True),
    ],
)
def test_a_transient_child_is_restarted_after_abnormal_exits_only(name, restarts):
    assert should_restart("transient", REASONS[name]) is restarts


@pytest.mark.rule("S-16")
@pytest.mark.parametrize("reason", REASONS.values(), ids=REASONS)
def test_a_temporary_child_is_restarted_after_no_exit(reason):
    assert not should_restart("temporary", reason)


@pytest.mark.rule("S-19", "S-20", "S-21")
@pytest.mark.parametrize(
    ("strategy", "failed", "expected"),
    [
        ("one_for_one", "b", RestartPlan((), ("b",))),
        ("one_for_all", "b", RestartPlan(("d", "c", "a"), ("a", "b", "c", "d"))),
        ("rest_for_one", "b", RestartPlan(("d", "c"), ("b", "c", "d"))),
        ("rest_for_one", "d", RestartPlan((), ("d",))),
        ("rest_for_one", "a", RestartPlan(("d", "c", "b"), ("a", "b", "c", "d"))),
    ],
)
def test_each_strategy_stops_and_starts_the_right_children(strategy, failed, expected):
    assert plan(strategy, ["a", "b", "c", "d"], failed) == expected


@given(st.sampled_from(["one_for_all", "rest_for_one"]), st.integers(1, 8), st.data())
def test_a_plan_stops_children_in_reverse_start_order(strategy, size, data):
    children = list(range(size))
    failed = data.draw(st.sampled_from(children))
    made = plan(strategy, children, failed)
    assert list(made.start) == sorted(made.start)
    assert list(made.stop) == [child for child in reversed(made.start) if child != failed]


@pytest.mark.rule("S-26", "S-30")
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_max_restarts_are_allowed_and_the_next_is_fatal(limit):
    window = RestartWindow(limit, 5.0)
    for n in range(limit):
        window = window.add(float(n) / 100)
        assert not window.exceeded
    assert window.add(0.5).exceeded


@pytest.mark.rule("S-27")
@pytest.mark.parametrize(("later", "exceeded"), [(4.999, True), (5.0, True), (5.001, False)])
def test_a_restart_exactly_a_period_old_still_counts(later, exceeded):
    assert RestartWindow(1, 5.0).add(0.0).add(later).exceeded is exceeded


@given(st.lists(st.floats(0, 100), max_size=30), st.integers(0, 5), st.floats(0.1, 20))
def test_the_window_is_exceeded_exactly_if_too_many_are_young_enough(times, limit, period):
    window = RestartWindow(limit, period)
    times.sort()
    for at, now in enumerate(times):
        window = window.add(now)
        young = sum(now - t <= period for t in times[: at + 1])
        assert window.exceeded is (young > limit)
        assert len(window.times) <= limit + 1


@pytest.mark.rule("S-46", "S-47")
@pytest.mark.parametrize(
    ("flag", "significant", "others", "ends"),
    [
        ("never", True, False, False),
        ("any_significant", True, True, True),
        ("any_significant", False, False, False),
        ("all_significant", True, True, False),
        ("all_significant", True, False, True),
        ("all_significant", False, False, False),
    ],
)
def test_auto_shutdown_decides_whether_the_end_of_a_child_ends_the_supervisor(flag, significant, others, ends):
    assert should_end_supervisor(flag, significant=significant, others_active=others) is ends


def test_backoff_begins_at_once_and_doubles_up_to_its_maximum():
    backoff = Backoff(first=1.0, maximum=5.0, jitter=0.0)
    assert [backoff.delay(n, 0.5) for n in range(6)] == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]


@pytest.mark.parametrize("factor", [1.01, 2.0, 1e9, 10**9])
def test_the_delay_grows_to_the_maximum_with_every_factor(factor):
    assert Backoff(maximum=30.0, factor=factor, jitter=0).delay(5000, 0.5) == 30.0
    assert Backoff(first=0.0, factor=factor).delay(5000, 0.5) == 0.0


def test_jitter_only_shortens_a_delay_by_its_share_at_most():
    backoff = Backoff(first=1.0, maximum=100.0, jitter=0.5)
    assert backoff.delay(1, 0.0) == 1.0
    assert backoff.delay(1, 1.0) == 0.5


def test_backoff_begins_anew_after_quiet():
    backoff = Backoff(reset=60.0)
    assert backoff.next_attempt(7, ran=59.9) == 8
    assert backoff.next_attempt(7, ran=60.0) == 0


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_backoff_never_exceeds_its_maximum(attempt, chance):
    assert 0.0 <= Backoff().delay(attempt, chance) <= Backoff().maximum


# --- reasons ------------------------------------------------------------------------------------------------------


def test_stop_carries_its_reason():
    assert make_reason(Stop()) == Normal()
    assert make_reason(Stop(Shutdown("x"))) == Shutdown("x")


@pytest.mark.rule("S-15")
def test_crashes_and_kills_are_abnormal():
    assert [name for name, reason in REASONS.items() if is_abnormal(reason)] == ["killed", "crash"]


def test_a_group_is_flattened_to_its_leaves_and_kept_as_the_cause():
    a, b, c = ValueError("a"), KeyError("b"), OSError("c")
    group = BaseExceptionGroup("outer", [a, ExceptionGroup("inner", [b, c])])
    assert list_leaves(group) == [a, b, c]
    reason = make_reason(group)
    assert isinstance(reason, Crash)
    assert (reason.exception, reason.others) == (a, (b, c))
    assert a.__cause__ is group


def test_an_interrupt_in_a_group_wins():
    interrupt = KeyboardInterrupt()
    assert find_fatal(BaseExceptionGroup("g", [ValueError(), BaseExceptionGroup("h", [interrupt])])) is interrupt
    assert find_fatal(SystemExit(3)) is not None
    assert find_fatal(ValueError()) is None


def test_exit_reasons_have_readable_texts():
    assert [str(reason) for reason in REASONS.values()] == [
        "normal",
        "shutdown",
        "shutdown: d",
        "killed",
        "crash: ValueError: x",
    ]
