"""When schedules fire, as pure functions of the time: rules, zones, clock changes, catch-up and overlap."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cantrip_actors import CantripError, InvalidSchedule
from cantrip_actors.machine.schedule import (
    GRACE,
    MOST,
    find_next,
    make_firing_key,
    make_rule,
    parse_local_time,
    plan_step,
)
from cantrip_actors.records.timers import Rule, Scheduled, Timer

OSLO = ZoneInfo("Europe/Oslo")
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp()


def rule(now=NOW, **given):
    return make_rule(now, **{"at": None, "every": None, "cron": None, "zone": None, **given})


def times(one, after, number, zone=UTC):
    """The first times of a rule after a local time, as texts."""
    found, at = (
        [],
        after if isinstance(after, float) else datetime.fromisoformat(after).replace(tzinfo=zone).timestamp(),
    )
    while len(found) < number and (at := find_next(one, at)) is not None:
        found.append(datetime.fromtimestamp(at, zone).strftime("%m-%d %H:%M %z"))
    return found


# ------------------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of at, every and cron, got none"),
        ({"every": 60.0, "cron": "* * * * *"}, "got every and cron"),
        ({"every": 0.5}, "every: expected a number of seconds, at least 1 and at most 3,162,240,000, got 0.5"),
        ({"every": 1e10}, "every: expected a number of seconds, at least 1 and at most 3,162,240,000, got 1"),
        ({"every": float("nan")}, "every: expected a number of seconds"),
        ({"every": float("inf")}, "every: expected a number of seconds"),
        ({"every": True}, "every: expected a number of seconds"),
        ({"every": 60.0, "zone": "UTC"}, "zone: expected with at or cron only"),
        ({"cron": "* * * *"}, "cron: expected five fields"),
        ({"cron": "0 * * * * *"}, "cron: expected five fields"),
        ({"cron": "@daily"}, "cron: expected five fields"),
        ({"cron": 3}, "cron: expected five fields"),
        ({"cron": "61 * * * *"}, "is not a rule that fires: Bad minute"),
        ({"cron": "0 0 30 2 *"}, "is not a rule that fires"),
        ({"cron": "0 9 * * *", "zone": "Europe/Olso"}, "zone: expected a name of the IANA database"),
        ({"cron": "0 9 * * *", "zone": "../etc/passwd"}, "zone: expected a name of the IANA database"),
        ({"at": "tomorrow"}, "at: expected a time as in"),
        ({"at": 5}, "at: expected a time as in"),
        ({"at": "9999-12-31T23:00-05:00"}, "at: expected a time before the year 9999"),
        ({"at": "2026-12-01T09:00+01:00", "zone": "Europe/Oslo"}, "has an offset of its own"),
    ],
)
def test_a_rule_that_is_invalid_is_refused(given, message):
    with pytest.raises(InvalidSchedule, match=message) as caught:
        rule(**given)
    assert isinstance(caught.value, CantripError)
    assert isinstance(caught.value, ValueError)


@given(st.integers(1, 10_000), st.floats(0, 1e6), st.integers(1, 20))
def test_a_schedule_with_every_counts_from_its_start(every, later, number):
    one, at = rule(every=float(every)), NOW + later
    for _ in range(number):
        due = find_next(one, at)
        assert at < due <= at + every + 0.002
        assert round((due - NOW) / every * 1000) % 1000 == 0
        at = due


def test_a_schedule_with_at_fires_once():
    one = rule(at="2026-12-01T09:00", zone="Europe/Oslo")
    assert times(one, NOW, 3, OSLO) == ["12-01 09:00 +0100"]


def test_a_time_may_be_a_datetime_with_or_without_a_zone():
    naive = datetime.fromisoformat("2026-12-01T09:00")
    assert parse_local_time(naive, "Europe/Oslo") == parse_local_time("2026-12-01T08:00Z", None)
    assert parse_local_time(datetime(2026, 12, 1, 9, tzinfo=OSLO), None) == parse_local_time("2026-12-01T08:00", None)


def test_a_cron_line_is_read_in_its_zone():
    one = rule(cron="0 9 * * MON", zone="Europe/Oslo")
    assert times(one, "2026-06-01 00:00", 2, OSLO) == ["06-01 09:00 +0200", "06-08 09:00 +0200"]
    assert times(one, "2026-12-01 00:00", 1, OSLO) == ["12-07 09:00 +0100"]
    assert times(rule(cron="0 9 * * MON"), "2026-12-01 00:00", 1) == ["12-07 09:00 +0000"]


# ------------------------------------------------------------------------------------------------------- clock changes


@pytest.mark.rule("C-31", "N-45")
@pytest.mark.parametrize(
    ("cron", "after", "wanted"),
    [
        # 2026-03-29 02:00 becomes 03:00
        ("30 2 * * *", "2026-03-28 12:00", ["03-29 03:00 +0200", "03-30 02:30 +0200"]),
        ("0 2,3 * * *", "2026-03-28 12:00", ["03-29 03:00 +0200", "03-30 02:00 +0200"]),
        ("30 * * * *", "2026-03-29 01:00", ["03-29 01:30 +0100", "03-29 03:30 +0200"]),
        # 2026-10-25 03:00 becomes 02:00
        ("30 2 * * *", "2026-10-24 12:00", ["10-25 02:30 +0200", "10-26 02:30 +0100"]),
        ("30 * * * *", "2026-10-25 02:00", ["10-25 02:30 +0200", "10-25 02:30 +0100", "10-25 03:30 +0100"]),
        ("*/30 2 * * *", "2026-10-24 12:00", [f"10-25 02:{m} {o}" for o in ("+0200", "+0100") for m in ("00", "30")]),
    ],
)
def test_a_cron_line_fires_where_clocks_are_changed(cron, after, wanted):
    assert times(rule(cron=cron, zone="Europe/Oslo"), after, len(wanted), OSLO) == wanted


def moments(minutes, hours, zone, start, end):
    """The moments from `start` to `end` that a cron line names, by trying each minute."""
    place, found = ZoneInfo(zone), set()
    if "*" in (minutes[0], hours[0]):
        at = start
        while at < end:
            local = at.astimezone(place)
            if (minutes == "*" or local.minute in minutes) and (hours == "*" or local.hour in hours):
                found.add(at)
            at += timedelta(minutes=1)
        return sorted(found)
    local = start.astimezone(place).replace(tzinfo=None) - timedelta(hours=6)
    while local < end.astimezone(place).replace(tzinfo=None) + timedelta(hours=6):
        if local.minute in minutes and local.hour in hours:
            at = local.replace(tzinfo=place).astimezone(UTC)
            while at.astimezone(place).replace(tzinfo=None) < local:  # it does not exist
                at += timedelta(minutes=1)
            before = at
            while (before := before - timedelta(minutes=1)).astimezone(place).replace(tzinfo=None) > local:
                at = before
            found.add(at)
        local += timedelta(minutes=1)
    return sorted(one for one in found if start <= one < end)


CHANGES = {
    "Europe/Oslo": ("2027-03-28T01:00", "2027-10-31T01:00"),
    "America/New_York": ("2027-03-14T07:00", "2027-11-07T06:00"),
    "Australia/Lord_Howe": ("2027-04-03T15:00", "2027-10-02T15:30"),  # by half an hour
    "Pacific/Chatham": ("2027-04-03T14:00", "2027-09-25T14:00"),  # at a quarter to four
    "Antarctica/Troll": ("2027-03-28T01:00", "2027-10-31T01:00"),  # by two hours
    "Africa/Cairo": ("2027-04-29T22:00", "2027-10-28T21:00"),  # at midnight
}

some_minutes = st.just("*") | st.lists(st.integers(0, 59), min_size=1, max_size=3)
some_hours = st.just("*") | st.lists(st.sampled_from([0, 1, 2, 3, 4, 23]), min_size=1, max_size=3)


@pytest.mark.rule("C-31", "N-45")
@given(some_minutes, some_hours, st.sampled_from([*CHANGES]), st.booleans(), st.integers(0, 600))
@example("*", [3, 9, 10], "Pacific/Chatham", False, 0)
@example("*", [0, 15], "Australia/Lord_Howe", False, 0)
def test_a_cron_line_fires_at_each_moment_that_it_names_where_clocks_are_changed(minutes, hours, zone, is_last, early):
    change = datetime.fromisoformat(CHANGES[zone][is_last]).replace(tzinfo=UTC)
    start = change - timedelta(minutes=early)
    wanted = moments(minutes, hours, zone, start, change + timedelta(hours=20))
    line = " ".join(one if one == "*" else ",".join(map(str, one)) for one in (minutes, hours))
    one, at, found = rule(cron=f"{line} * * *", zone=zone), start.timestamp() - 1, []
    while len(found) < len(wanted):
        at = find_next(one, at)
        found.append(datetime.fromtimestamp(at, UTC))
    assert found == wanted


@pytest.mark.rule("C-31")
def test_a_cron_line_read_in_the_second_of_two_repeated_hours_does_not_fire_in_the_first():
    one = rule(cron="30 2 * * *", zone="Europe/Oslo")
    second = datetime(2026, 10, 25, 2, 15, fold=1, tzinfo=OSLO).timestamp()
    assert times(one, second, 1, OSLO) == ["10-26 02:30 +0100"]


@pytest.mark.rule("C-31", "N-45")
@pytest.mark.parametrize(
    ("at", "wanted"),
    [("2026-03-29T02:30:15", "2026-03-29T01:00:00Z"), ("2026-10-25T02:30", "2026-10-25T00:30:00Z")],
)
def test_a_skipped_local_time_means_the_next_valid_time_and_a_repeated_one_the_first(at, wanted):
    assert parse_local_time(at, "Europe/Oslo") == datetime.fromisoformat(wanted).timestamp()


@pytest.mark.rule("C-31")
@given(
    st.sampled_from(["30 2 * * *", "0 */5 * * *", "15 0,1,2,3 * * SUN", "*/20 * * * *", "0 0 1 * *"]),
    st.sampled_from(["Europe/Oslo", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC"]),
    st.datetimes(datetime.fromisoformat("2025-01-01"), datetime.fromisoformat("2028-01-01")),
)
def test_the_times_of_a_cron_line_are_in_order_and_independent_of_the_time_of_the_question(cron, zone, start):
    one = rule(cron=cron, zone=zone)
    at = start.replace(tzinfo=UTC).timestamp()
    first = find_next(one, at)
    second = find_next(one, first)
    assert at < first < second
    for share in (0.1, 0.5, 0.9):
        assert find_next(one, at + (first - at) * share - 0.001) == first
        assert find_next(one, first + (second - first) * share) == second


# ------------------------------------------------------------------------------------------- catching up, overlapping


def row(to="entity", every=60.0, **facts):
    known = Scheduled(to=to, name="n", intent="go", rule=Rule(every=every, start=0.0), created=0.0, next=60.0, **facts)
    return Timer(id="s", due=60.0, schedule=known)


def walk(one, now, *, busy=lambda _: False):
    """Look until nothing is due; the times that fired, and the row."""
    fired = []
    while one is not None and one.due <= now:
        what = plan_step(one, now, is_busy=busy(len(fired)))
        if what.fires is not None:
            fired.append(what.fires)
        one = what.becomes
        if what.waits:
            break
    return fired, one


def test_a_schedule_does_not_fire_before_its_time():
    assert plan_step(row(), 59.9, is_busy=False).becomes == row()
    assert plan_step(row(), 59.9, is_busy=False).fires is None


def test_a_firing_has_a_key_of_its_id_and_its_time():
    what = plan_step(row(), 61.0, is_busy=False)
    assert (what.fires, what.becomes.due) == (60.0, 120.0)
    assert what.becomes.schedule.last == make_firing_key("s", 60.0) == "schedule:s@1970-01-01T00:01:00.000Z"


def test_a_schedule_that_never_fires_again_has_no_row():
    one = row()
    one = replace(one, schedule=replace(one.schedule, rule=Rule(at=60.0)))
    what = plan_step(one, 60.0, is_busy=False)
    assert (what.fires, what.becomes) == (60.0, None)


@pytest.mark.rule("C-31")
@pytest.mark.parametrize("to", ["entity", "cantrip"])
def test_one_firing_makes_up_for_all_missed_times(to):
    fired, left = walk(row(to), 1000.0)
    assert fired == [60.0]
    assert left.due == 1020.0


@pytest.mark.rule("C-31")
def test_all_missed_times_are_made_up_for():
    fired, left = walk(row(catch_up="all"), 1000.0)
    assert fired == [60.0 * n for n in range(1, 17)]
    assert left.due == 1020.0


@pytest.mark.rule("C-31", "N-44")
def test_at_most_a_hundred_missed_times_are_made_up_for():
    fired, left = walk(row(catch_up="all"), 60_000.0)
    assert fired == [60.0 * n for n in range(1, MOST + 1)]
    assert left.due == 60_060.0
    fired, _ = walk(left, 60_000.0 + 60 * 300)
    assert len(fired) == MOST


@pytest.mark.rule("C-31")
def test_missed_times_are_made_up_for_while_the_last_firing_is_at_work():
    assert walk(row(catch_up="all", last="k"), 300.0, busy=lambda n: n > 0)[0] == [60.0, 120.0, 180.0, 240.0, 300.0]


@pytest.mark.rule("C-31")
def test_casts_that_make_up_for_missed_times_run_one_after_the_other():
    fired, left = walk(row("cantrip", catch_up="all"), 200.0, busy=lambda n: n == 1)
    assert fired == [60.0]
    assert left.schedule.queued == (120.0,)
    fired, left = walk(left, 200.0)
    assert (fired, left.due) == ([120.0, 180.0], 240.0)


@pytest.mark.rule("C-31")
def test_missed_times_are_skipped_except_those_of_the_last_minute():
    one = row(every=50.0, catch_up="skip")
    assert walk(one, 1000.0) == ([950.0, 1000.0], walk(one, 1000.0)[1])
    assert walk(row(every=600.0, catch_up="skip"), 60.0 + GRACE)[0] == [60.0]
    assert walk(row(every=600.0, catch_up="skip"), 61.0 + GRACE)[0] == []


@pytest.mark.rule("C-31")
@pytest.mark.parametrize("to", ["entity", "cantrip"])
def test_a_firing_is_skipped_while_the_last_one_is_at_work(to):
    fired, left = walk(row(to, last="k"), 60.0, busy=lambda _: True)
    assert (fired, left.due, left.schedule.last) == ([], 120.0, "k")


@pytest.mark.rule("C-31")
@pytest.mark.parametrize("to", ["entity", "cantrip"])
def test_a_firing_stops_the_last_one(to):
    what = plan_step(row(to, overlap="stop", last="k"), 60.0, is_busy=True)
    assert (what.fires, what.stops_last) == (60.0, True)
    assert not plan_step(row(to, overlap="stop", last="k"), 60.0, is_busy=False).stops_last


@pytest.mark.rule("C-31")
def test_an_entity_queues_firings_in_its_inbox():
    assert walk(row(overlap="queue", last="k"), 60.0, busy=lambda _: True)[0] == [60.0]


@pytest.mark.rule("C-31")
def test_a_full_queue_loses_no_time_when_the_running_cast_has_ended():
    one = row("cantrip", overlap="queue", last="k")
    for n in range(1, MOST + 1):
        one = plan_step(one, 60.0 * n, is_busy=True).becomes
    assert len(one.schedule.queued) == MOST
    due = one.schedule.next
    what = plan_step(one, due, is_busy=False)
    assert (what.fires, what.becomes.schedule.queued[-1], len(what.becomes.schedule.queued)) == (60.0, due, MOST)
    assert len(plan_step(one, due, is_busy=True).becomes.schedule.queued) == MOST


@pytest.mark.rule("C-31")
def test_queued_casts_begin_in_order_when_the_running_cast_has_ended():
    one = row("cantrip", overlap="queue", last="k")
    for n in (60.0, 120.0, 180.0):
        what = plan_step(one, n, is_busy=True)
        assert what.waits
        assert what.fires is None
        one = what.becomes
    assert (one.schedule.queued, one.schedule.next, one.due) == ((60.0, 120.0, 180.0), 240.0, 60.0)
    assert plan_step(one, 200.0, is_busy=True).becomes == one
    for n in (60.0, 120.0, 180.0):
        what = plan_step(one, 200.0, is_busy=False)
        assert what.fires == n
        one = what.becomes
    assert one.due == 240.0


@pytest.mark.rule("C-30")
@given(
    st.sampled_from(["one", "all", "skip"]),
    st.sampled_from(["skip", "queue", "stop"]),
    st.sampled_from(["entity", "cantrip"]),
    st.lists(st.tuples(st.integers(1, 500), st.booleans()), max_size=30),
)
@example("all", "skip", "cantrip", [(1, False), (1, False), (118, True), (1, True), (59, False)])
def test_every_firing_is_at_a_time_of_the_rule_and_none_is_repeated(catch_up, overlap, to, looks):
    one, now, fired = row(to, catch_up=catch_up, overlap=overlap), 0.0, []
    for seconds, is_busy in looks:
        now += seconds
        more, one = walk(one, now, busy=lambda _, is_busy=is_busy: is_busy)
        fired += more
    assert fired == sorted(set(fired))
    assert all(due % 60 == 0 and 0 < due <= now for due in fired)
    assert timedelta(seconds=one.due) > timedelta() if one else True
