"""Starting: order, handshake, failure and `Ignore`."""

import gc
import weakref

import anyio
import pytest

from supervisors import (
    Actor,
    AlreadyPresent,
    AlreadyStarted,
    ChildSpec,
    Crash,
    DynamicSupervisor,
    FailedToStart,
    Ignore,
    NameTaken,
    Normal,
    Shutdown,
    StartFailed,
    Supervisor,
)
from supervisors.testing import Boom, Script


@pytest.mark.rule("S-01", "S-02")
async def test_children_start_one_at_a_time_and_the_supervisor_last(new_system, recorder):
    log = []

    class Slow(Actor):
        def __init__(self, name):
            self.name = name

        async def init(self):
            log.append(f"{self.name} begins")
            await anyio.sleep(1)
            log.append(f"{self.name} up")

    async with new_system() as system:
        before = anyio.current_time()
        await system.start(ChildSpec("s", lambda: Supervisor([ChildSpec(n, lambda n=n: Slow(n)) for n in "abc"])))
        assert anyio.current_time() - before == 3
        assert log == ["a begins", "a up", "b begins", "b up", "c begins", "c up"]
        assert recorder.take() == ["+a", "+b", "+c", "+s"]


@pytest.mark.rule("S-03")
async def test_a_failed_start_at_boot_stops_earlier_children_and_starts_no_later_child(new_system, recorder):
    scripts = [Script("a"), Script("b"), Script("c", starts=["error"]), Script("d")]
    async with new_system() as system:
        with pytest.raises(StartFailed) as failed:
            await system.start(ChildSpec("s", lambda: Supervisor([s.spec() for s in scripts], max_restarts=9)))
        assert recorder.take() == ["+a", "+b", "!c", "-b shutdown", "-a shutdown", "!s"]
        detail = failed.value.reason.detail
        assert isinstance(failed.value.reason, Shutdown)
        assert isinstance(detail, FailedToStart)
        assert detail.child == "c"
        assert isinstance(detail.reason.exception, Boom)
        assert scripts[2].incarnations == 1


def _raises():
    raise Boom


@pytest.mark.rule("S-04")
@pytest.mark.parametrize(
    ("start", "cause"),
    [(_raises, Boom), (lambda: "rubbish", TypeError), (Script("x", starts=["error"]), Boom)],
    ids=["raises", "rubbish", "init raises"],
)
async def test_a_failed_start_is_an_error_with_its_reason_and_leaves_nothing(new_system, recorder, start, cause):
    async with new_system() as system:
        with pytest.raises(StartFailed) as failed:
            await system.start(ChildSpec("x", start))
        assert isinstance(failed.value.reason, Crash)
        assert isinstance(failed.value.reason.exception, cause)
        assert (await system.root.count_children()).specs == 0
        assert recorder.take() == ["!x"]


@pytest.mark.rule("S-05")
async def test_a_supervisor_that_ignores_ends_normally(new_system):
    class Off(Supervisor):
        async def init(self):
            raise Ignore

    async with new_system() as system:
        ref = await system.start(ChildSpec("off", Off))
        assert not ref.alive
        assert await ref.exited() == Normal()


@pytest.mark.rule("S-06")
async def test_an_ignored_child_keeps_its_spec_and_may_be_restarted(new_system, recorder):
    script = Script("a", starts=["ignore", "ok"])
    async with new_system() as system:
        ref = await system.start(script.spec())
        assert not ref.alive
        counts = await system.root.count_children()
        assert (counts.specs, counts.active) == (1, 0)
        assert await system.root.restart_child("a") is ref
        assert ref.alive
        assert recorder.take() == ["~a", "+a"]


@pytest.mark.rule("S-06")
async def test_an_ignored_temporary_child_is_dropped(new_system):
    async with new_system() as system:
        await system.start(Script("a", starts=["ignore"]).spec(restart="temporary"))
        assert (await system.root.count_children()).specs == 0
        boot = [Script("x").spec(), Script("y", starts=["ignore"]).spec(restart="temporary")]
        ref = await system.start(ChildSpec("s", lambda: Supervisor(boot)))
        assert [child.id for child in await ref.which_children()] == ["x"]


@pytest.mark.rule("S-07")
@pytest.mark.parametrize("restart", ["permanent", "temporary"])
async def test_a_dynamic_child_that_ignores_is_not_stored(new_system, restart):
    async with new_system() as system:
        dynamic = await system.start(ChildSpec("d", DynamicSupervisor))
        ref = await dynamic.start_child(Script("a", starts=["ignore"]).spec(restart=restart))
        assert not ref.alive
        assert await dynamic.which_children() == []


@pytest.mark.rule("S-07")
async def test_a_dynamic_child_whose_restart_ignores_disappears(new_system, recorder):
    async with new_system() as system:
        dynamic = await system.start(ChildSpec("d", DynamicSupervisor))
        ref = await dynamic.start_child(Script("a", starts=["ok", "ignore"]).spec())
        ref.cast("crash")
        await ref.exited()
        assert await dynamic.which_children() == []
        assert recorder.take() == ["+d", "+a", "-a crash", "~a"]
        assert dynamic.alive


@pytest.mark.rule("S-08")
@pytest.mark.parametrize("made", [Supervisor, DynamicSupervisor])
async def test_extra_start_info_is_returned_and_not_stored(new_system, made):
    class Info:
        pass

    class Informed(Actor):
        async def init(self):
            return Info()

    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", made))
        ref, info = await supervisor.start_child_info(ChildSpec("a", Informed))
        assert ref.alive
        assert isinstance(info, Info)
        seen = weakref.ref(info)
        del info
        await anyio.sleep(1)
        gc.collect()
        assert seen() is None
        if made is Supervisor:
            await supervisor.terminate_child("a")
            assert isinstance((await supervisor.restart_child_info("a"))[1], Info)


@pytest.mark.rule("S-09")
@pytest.mark.parametrize("made", [Supervisor, DynamicSupervisor])
async def test_a_failed_start_child_does_not_count_as_a_restart(new_system, made):
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", lambda: made(max_restarts=0)))
        for _ in range(3):
            with pytest.raises(StartFailed):
                await supervisor.start_child(Script("a", starts=["error"]).spec())
        assert await supervisor.which_children() == []
        assert supervisor.alive


@pytest.mark.rule("S-10")
async def test_a_known_id_is_refused(new_system):
    script = Script("a", starts=["ok", "error"])
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", Supervisor))
        ref = await supervisor.start_child(script.spec())
        with pytest.raises(AlreadyStarted) as started:
            await supervisor.start_child(script.spec())
        assert started.value.ref is ref
        await supervisor.terminate_child("a")
        with pytest.raises(AlreadyPresent):
            await supervisor.start_child(script.spec())


@pytest.mark.rule("S-10")
async def test_a_name_taken_elsewhere_is_a_failed_start(new_system):
    async with new_system() as system:
        holder = await system.start(Script("a").spec(name="postgres"))
        with pytest.raises(StartFailed) as failed:
            await system.start(Script("b").spec(name="postgres"))
        assert isinstance(failed.value.reason.exception, NameTaken)
        assert failed.value.reason.exception.ref is holder


@pytest.mark.rule("S-18")
@pytest.mark.parametrize("made", [Supervisor, DynamicSupervisor])
async def test_start_arguments_of_temporary_children_are_not_retained(new_system, made):
    class Argument:
        pass

    def spec(argument):
        return ChildSpec("a", lambda: Script("a")() if argument else None, restart="temporary")

    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", made))
        argument = Argument()
        seen = weakref.ref(argument)
        ref = await supervisor.start_child(spec(argument))
        del argument
        await anyio.sleep(1)
        gc.collect()
        assert ref.alive
        assert seen() is None


async def test_cancelling_a_dynamic_start_ends_the_child(new_system, recorder):
    async with new_system() as system:
        dynamic = await system.start(ChildSpec("d", DynamicSupervisor))
        with anyio.move_on_after(1):
            await dynamic.start_child(Script("a", slow_start=10).spec())
        await anyio.sleep(1)
        assert recorder.take() == ["+d", "!a"]
        assert await dynamic.which_children() == []


async def test_a_slow_dynamic_start_delays_no_other_start(new_system):
    async with new_system() as system, anyio.create_task_group() as group:
        dynamic = await system.start(ChildSpec("d", DynamicSupervisor))
        before = anyio.current_time()
        for n in range(10):
            group.start_soon(dynamic.start_child, Script(f"c{n}", slow_start=5).spec())
        await dynamic.start_child(Script("quick").spec())
        assert anyio.current_time() == before
        await anyio.sleep(5.5)
        assert (await dynamic.count_children()).active == 11


async def test_a_hanging_init_does_not_keep_a_supervisor_from_being_stopped(new_system, recorder):
    async with new_system() as system, anyio.create_task_group() as group:

        async def start():
            with pytest.raises(StartFailed):
                await system.start(
                    ChildSpec("s", lambda: Supervisor([Script("a").spec(), Script("b", slow_start=1e6).spec()]))
                )

        group.start_soon(start)
        await anyio.sleep(1)
        before = anyio.current_time()
        system.root.child("s").exit()
        await anyio.sleep(0.5)
        assert recorder.take() == ["+a", "!b", "-a shutdown", "!s"]
        assert anyio.current_time() - before < 1
