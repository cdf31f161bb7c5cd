"""Reports: their limit in a storm, and tracebacks without the frames of this package."""

import anyio
import pytest

from supervisors import Actor, ActorRef, ActorSystem, ChildSpec, Crash, DynamicSupervisor, Killed, Supervisor
from supervisors.events import BURST, Exited, GaveUpEvent, Reports, StartFailedEvent, Zombie


class _Logger:
    def __init__(self):
        self.records = []

    def __getattr__(self, level):
        return lambda event, **more: self.records.append((event, more))

    @property
    def names(self):
        return [event for event, _ in self.records]


SPEC = ChildSpec("a", Actor)


def _exited(time):
    return Exited(time, ActorRef("a"), SPEC, Killed(), expected=False)


@pytest.mark.rule("S-52")
def test_a_storm_of_reports_is_written_up_to_the_limit_and_then_counted():
    logger = _Logger()
    reports = Reports(logger, burst=3)
    for n in range(10):
        reports(_exited(100 + n / 100))
    assert logger.names == ["child terminated"] * 3 + ["too many reports, dropping them"]
    reports(_exited(101.0))
    assert logger.names[4:] == ["reports were dropped", "child terminated"]
    assert logger.records[4][1] == {"count": 7}
    reports.close()
    assert len(logger.names) == 6


@pytest.mark.rule("S-52")
def test_reports_of_giving_up_and_of_zombies_are_never_dropped():
    logger = _Logger()
    reports = Reports(logger, burst=1)
    for _ in range(3):
        reports(_exited(5.0))
    ref = ActorRef("a")
    reports(GaveUpEvent(5.0, ref, SPEC, Killed()))
    reports(Zombie(5.0, ref, SPEC))
    assert logger.names[2:] == ["too many restarts", "child does not end"]


@pytest.mark.rule("S-52")
def test_reports_can_be_unlimited():
    logger = _Logger()
    reports = Reports(logger, burst=None)
    for _ in range(2 * BURST):
        reports(_exited(1.0))
    assert logger.names == ["child terminated"] * 2 * BURST


@pytest.mark.rule("S-52")
def test_a_clock_that_goes_back_resets_the_limit():
    logger = _Logger()
    reports = Reports(logger, burst=1)
    reports(_exited(1000.0))
    reports(_exited(3.0))
    assert logger.names == ["child terminated"] * 2


@pytest.mark.rule("S-52")
async def test_the_last_dropped_reports_are_counted_when_the_system_ends():
    logger = _Logger()

    class Fails(Actor):
        async def handle_cast(self, message):
            raise ValueError(message)

    async with ActorSystem(reports=Reports(logger, burst=2), max_restarts=100) as system:
        ref = await system.start(ChildSpec("a", Fails))
        for n in range(5):
            ref.cast(n)
        await anyio.sleep(0.1)
    assert logger.names == [*["child terminated"] * 2, "too many reports, dropping them", "reports were dropped"]
    assert logger.records[-1][1] == {"count": 3}


@pytest.mark.rule("S-52")
async def test_a_traceback_begins_with_the_users_own_code():
    logger = _Logger()

    class Fails(Actor):
        async def handle_cast(self, message):
            raise ValueError(message)

    async with ActorSystem(reports=Reports(logger), max_restarts=9) as system:
        ref = await system.start(ChildSpec("a", Fails))
        ref.cast("mine")
        silent = await system.start(ChildSpec("b", Actor))
        silent.cast("ours")  # which has no handle_cast: the exception is raised in the package
        await anyio.sleep(0.1)
    mine, ours = (more["exception"] for _, more in logger.records)
    assert "in handle_cast" in mine
    assert "in _run_worker" not in mine
    assert "in _run_worker" in ours


@pytest.mark.rule("S-52")
async def test_the_reason_keeps_the_whole_traceback():
    class Fails(Actor):
        async def handle_cast(self, message):
            raise ValueError(message)

    async with ActorSystem(reports=Reports(_Logger())) as system:
        group = await system.start(ChildSpec("g", lambda: Supervisor([ChildSpec("a", Fails)])))
        ref = group.child("a")
        ref.cast("x")
        await anyio.sleep(0.1)
        assert isinstance(ref.last_exit, Crash)
        assert ref.last_exit.exception.__traceback__.tb_frame.f_code.co_name == "_run_worker"


class _Slow(Actor):
    async def init(self):
        await anyio.sleep(60)


@pytest.mark.rule("S-52")
async def test_a_child_stopped_before_it_begins_has_not_failed():
    logger, seen = _Logger(), []
    async with ActorSystem(reports=Reports(logger)) as system:
        system.sinks.append(lambda event: seen.append(event) if isinstance(event, StartFailedEvent) else None)
        group = await system.start(ChildSpec("group", DynamicSupervisor))
        with anyio.move_on_after(1):
            await group.start_child(ChildSpec("slow", _Slow, restart="temporary"))
        await anyio.sleep(60)
    assert [event.expected for event in seen] == [True]
    assert logger.names == []


@pytest.mark.rule("S-52")
async def test_a_child_that_raises_while_its_start_is_cancelled_has_failed():
    class Breaks(Actor):
        async def init(self):
            try:
                await anyio.sleep(60)
            finally:
                raise OSError("the disk is full")

    logger = _Logger()
    async with ActorSystem(reports=Reports(logger)) as system:
        group = await system.start(ChildSpec("group", DynamicSupervisor))
        with anyio.move_on_after(1):
            await group.start_child(ChildSpec("breaks", Breaks, restart="temporary"))
        await anyio.sleep(60)
    assert logger.names == ["child failed to start"]


class _Crashes(Actor):
    async def handle_cast(self, message):
        raise RuntimeError("as it was told")


@pytest.mark.rule("S-52")
async def test_a_sink_that_raises_does_not_prevent_a_restart():
    def broken(_event):
        raise OSError("the disk is full")

    ref = ActorRef("a")
    async with ActorSystem(reports=broken) as system:
        system.sinks.append(broken)
        await system.start(ChildSpec("above", lambda: Supervisor([ChildSpec("a", _Crashes, ref=ref)])))
        ref.cast("now")
        await anyio.sleep(1)
        assert ref.alive
        assert isinstance(ref.last_exit, Crash)
