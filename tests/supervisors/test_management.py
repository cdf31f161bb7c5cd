"""Management calls, configuration changes, auto_shutdown, reports."""

import anyio
import pytest

from supervisors import (
    Actor,
    ChildCounts,
    ChildNotFound,
    ChildRestarting,
    ChildRunning,
    ChildSpec,
    DynamicSupervisor,
    Normal,
    NotForDynamic,
    NotRunning,
    Shutdown,
    ShuttingDown,
    SignificantEnded,
    SpecError,
    StartFailed,
    Supervisor,
)
from supervisors.events import Exited, GaveUpEvent, Restarting, Started, StartFailedEvent
from supervisors.testing import Boom, Leave, Script


@pytest.mark.rule("S-40")
async def test_terminate_child_keeps_the_spec_and_can_be_repeated(new_system, recorder):
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", lambda: Supervisor([Script("a").spec()], max_restarts=0)))
        for _ in range(2):
            await supervisor.terminate_child("a")
        await anyio.sleep(1)
        assert [(child.id, child.state) for child in await supervisor.which_children()] == [("a", "stopped")]
        assert recorder.take() == ["+a", "+s", "-a shutdown"]
        with pytest.raises(ChildNotFound):
            await supervisor.terminate_child("b")


@pytest.mark.rule("S-40")
async def test_terminate_child_drops_a_temporary_child(new_system):
    async with new_system() as system:
        ref = await system.start(Script("a").spec(restart="temporary"))
        await system.root.terminate_child(ref)
        with pytest.raises(ChildNotFound):
            await system.root.terminate_child("a")


@pytest.mark.rule("S-40", "S-47")
async def test_terminate_child_triggers_no_auto_shutdown(new_system):
    specs = [Script("a").spec(restart="transient", significant=True)]
    async with new_system() as system:
        supervisor = await system.start(
            ChildSpec("s", lambda: Supervisor(specs, auto_shutdown="any_significant"), restart="temporary")
        )
        await supervisor.terminate_child("a")
        await anyio.sleep(1)
        assert supervisor.alive


@pytest.mark.rule("S-41", "S-42")
async def test_only_stopped_children_can_be_restarted_or_deleted(new_system):
    from supervisors import Backoff

    script = Script("a", starts=["ok", "ok", "error", "error", "ok"])
    async with new_system(max_restarts=9) as system:
        ref = await system.start(script.spec(backoff=Backoff(first=5, jitter=0)))
        for refused in (system.root.restart_child, system.root.delete_child):
            with pytest.raises(ChildRunning):
                await refused("a")
            with pytest.raises(ChildNotFound):
                await refused("b")
        ref.kill()
        await anyio.sleep(1)
        ref.kill()
        await anyio.sleep(1)
        for refused in (system.root.restart_child, system.root.delete_child):
            with pytest.raises(ChildRestarting):
                await refused("a")
        await system.root.terminate_child("a")
        for _ in range(2):
            with pytest.raises(StartFailed) as failed:
                await system.root.restart_child("a")
            assert isinstance(failed.value.reason.exception, Boom)
            assert (await system.root.which_children())[0].state == "stopped"
        assert await system.root.restart_child("a") is ref
        await system.root.terminate_child("a")
        await system.root.delete_child("a")
        assert await system.root.which_children() == []


@pytest.mark.rule("S-39", "S-42")
async def test_an_id_that_no_dict_can_hold_is_not_known_and_leaves_the_supervisor_alone(new_system):
    async with new_system() as system:
        for request in (system.root.terminate_child, system.root.restart_child, system.root.delete_child):
            with pytest.raises(ChildNotFound):
                await request(("a", ["b"]))
        with pytest.raises(ChildNotFound):
            system.root.child(("a", ["b"]))
        assert system.root.alive


@pytest.mark.rule("S-42")
async def test_a_dynamic_supervisor_refuses_restart_and_delete_and_names_children_by_ref(new_system):
    async with new_system() as system:
        dynamic = await system.start(ChildSpec("d", DynamicSupervisor))
        ref = await dynamic.start_child(Script("a").spec())
        for refused in (dynamic.restart_child, dynamic.delete_child):
            with pytest.raises(NotForDynamic):
                await refused(ref)
        with pytest.raises(ChildNotFound):
            await dynamic.terminate_child("a")
        await dynamic.terminate_child(ref)
        await dynamic.terminate_child(ref)


@pytest.mark.rule("S-43")
async def test_which_and_count_children(new_system):
    specs = [Script("a").spec(), ChildSpec("s", Supervisor), ChildSpec("d", DynamicSupervisor), Script("b").spec()]
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("top", lambda: Supervisor(specs)))
        await supervisor.terminate_child("b")
        children = await supervisor.which_children()
        assert [(child.id, child.type, child.state) for child in children] == [
            ("a", "worker", "running"),
            ("s", "supervisor", "running"),
            ("d", "supervisor", "running"),
            ("b", "worker", "stopped"),
        ]
        assert children[0].ref is supervisor.child("a")
        assert await supervisor.count_children() == ChildCounts(specs=4, active=3, supervisors=2, workers=2)
        with pytest.raises(ChildNotFound):
            supervisor.child("nobody")


@pytest.mark.rule("S-32", "S-43")
async def test_a_request_to_a_dynamic_supervisor_is_handled_after_an_earlier_retry(new_system):
    script = Script("a", starts=["ok", "error", "error", "ok"])
    async with new_system() as system:
        dynamic = await system.start(ChildSpec("d", lambda: DynamicSupervisor(max_restarts=9)))
        ref = await dynamic.start_child(script.spec())
        ref.kill()
        states = []
        while not ref.alive:  # each question is answered, and each lets the restarts get on
            states += [child.state for child in await dynamic.which_children()]
            assert (await dynamic.count_children()).specs == 1
        assert set(states[:-1]) <= {"running", "restarting"}
        assert len(states) < 20


@pytest.mark.rule("S-43")
async def test_requests_to_a_dynamic_supervisor_let_other_tasks_run(new_system):
    async with new_system() as system:
        dynamic = await system.start(ChildSpec("d", DynamicSupervisor))
        ran = []

        async def other():
            ran.append(1)

        async with anyio.create_task_group() as group:
            group.start_soon(other)
            for _ in range(100):
                await dynamic.which_children()
                if ran:
                    break
            assert ran


@pytest.mark.rule("S-43")
async def test_a_template_counts_as_one_spec(new_system):
    async with new_system() as system:
        dynamic = await system.start(ChildSpec("d", lambda: DynamicSupervisor(ChildSpec("t", Script))))
        assert await dynamic.count_children() == ChildCounts(1, 0, 0, 0)


async def test_a_template_takes_arguments(new_system):
    class Named(Actor):
        def __init__(self, name, *, greeting):
            self.text = f"{greeting}, {name}"

        async def handle_call(self, message, caller):
            return self.text

    async with new_system() as system:
        template = ChildSpec("named", Named)
        dynamic = await system.start(ChildSpec("d", lambda: DynamicSupervisor(template)))
        refs = [await dynamic.start_child(name, greeting="Hello") for name in ("Joe", "Mike")]
        assert [await ref.call(None) for ref in refs] == ["Hello, Joe", "Hello, Mike"]
        refs[0].kill()
        await anyio.sleep(0.1)
        assert await refs[0].call(None) == "Hello, Joe"


async def test_arguments_without_a_template_are_refused(new_system):
    async with new_system() as system:
        for made in (Supervisor, DynamicSupervisor):
            ref = await system.start(ChildSpec(made.__name__, made))
            with pytest.raises(SpecError, match="template"):
                await ref.start_child(Script("a").spec(), 1)


async def test_a_stopping_supervisor_starts_nothing(new_system):
    async with new_system() as system, anyio.create_task_group() as group:
        static = await system.start(ChildSpec("s", lambda: Supervisor([Script("a", stop_takes=3).spec()])))
        dynamic = await system.start(ChildSpec("d", DynamicSupervisor))
        await dynamic.start_child(Script("a", stop_takes=3).spec())
        for supervisor, made in ((static, Supervisor), (dynamic, DynamicSupervisor)):
            group.start_soon(system.root.terminate_child, supervisor)
            await anyio.sleep(1)
            for request, about in (
                (supervisor.start_child(Script("b").spec()), "child 'b': the supervisor is shutting down"),
                (supervisor.which_children(), "the supervisor is shutting down"),
                (supervisor.reconfigure(made()), "the supervisor is shutting down"),
            ):
                with pytest.raises(ShuttingDown, match=f"^{about}"):
                    await request
            await supervisor.exited()
            with pytest.raises(NotRunning):
                await supervisor.start_child(Script("b").spec())


# --- auto_shutdown ------------------------------------------------------------------------------------------------


def _significant(flag, *specs):
    return ChildSpec("s", lambda: Supervisor(specs, auto_shutdown=flag), restart="temporary")


@pytest.mark.rule("S-46")
@pytest.mark.parametrize(
    ("restart", "how"),
    [
        ("transient", Leave(Normal())),
        ("transient", Leave(Shutdown())),
        ("temporary", Leave(Normal())),
        ("temporary", "crash"),
    ],
)
async def test_any_significant_ends_the_supervisor_and_its_other_children(new_system, recorder, restart, how):
    a = Script("a").spec(restart=restart, significant=True)
    async with new_system() as system:
        supervisor = await system.start(_significant("any_significant", a, Script("b").spec()))
        recorder.take()
        supervisor.child("a").cast(how)
        reason = await supervisor.exited()
        assert isinstance(reason, Shutdown)
        assert isinstance(reason.detail, SignificantEnded)
        assert reason.detail.child == "a"
        assert recorder.take()[1:] == ["-b shutdown", "-s shutdown"]


@pytest.mark.rule("S-46")
async def test_all_significant_ends_the_supervisor_with_its_last_significant_child(new_system):
    specs = [Script(name).spec(restart="transient", significant=True) for name in "ab"]
    async with new_system() as system:
        supervisor = await system.start(_significant("all_significant", *specs, Script("c").spec()))
        supervisor.child("a").cast(Leave(Normal()))
        await anyio.sleep(1)
        assert supervisor.alive
        supervisor.child("b").cast(Leave(Normal()))
        assert isinstance(await supervisor.exited(), Shutdown)


@pytest.mark.rule("S-47")
async def test_auto_shutdown_is_not_triggered_by_other_ends(new_system):
    specs = [
        Script("first").spec(),
        Script("crashes").spec(restart="transient", significant=True),
        Script("bystander").spec(restart="temporary", significant=True),
        Script("plain").spec(restart="transient"),
    ]
    async with new_system() as system:
        supervisor = await system.start(
            ChildSpec(
                "s",
                lambda: Supervisor(specs, strategy="one_for_all", auto_shutdown="any_significant", max_restarts=9),
                restart="temporary",
            )
        )
        supervisor.child("plain").cast(Leave(Normal()))
        supervisor.child("crashes").cast("crash")
        await anyio.sleep(1)
        assert supervisor.alive
        assert "bystander" not in [child.id for child in await supervisor.which_children()]


@pytest.mark.rule("S-48")
@pytest.mark.parametrize("significant", [True, False])
async def test_auto_shutdown_spreads_only_through_a_significant_supervisor(new_system, significant):
    leaf = Script("leaf").spec(restart="transient", significant=True)
    nested = ChildSpec(
        "nested",
        lambda: Supervisor([leaf], auto_shutdown="any_significant"),
        restart="transient",
        significant=significant,
    )
    async with new_system() as system:
        supervisor = await system.start(_significant("any_significant", nested))
        supervisor.child("nested").child("leaf").cast(Leave(Normal()))
        await anyio.sleep(1)
        assert supervisor.alive is not significant


# --- change -------------------------------------------------------------------------------------------------------


@pytest.mark.rule("S-51")
async def test_reconfigure_stops_no_child(new_system, recorder):
    a, b, c = Script("a"), Script("b"), Script("c")
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", lambda: Supervisor([a.spec(), b.spec()])))
        recorder.take()
        await supervisor.reconfigure(
            Supervisor([c.spec(), a.spec(restart="temporary")], strategy="one_for_all", max_restarts=7)
        )
        assert recorder.take() == []
        children = await supervisor.which_children()
        assert [(child.id, child.state) for child in children] == [("c", "stopped"), ("a", "running"), ("b", "running")]
        assert children[1].spec.restart == "temporary"
        supervisor.child("b").kill()
        await anyio.sleep(0.1)
        assert recorder.take() == ["-b killed", "-a shutdown", "+c", "+b"]


@pytest.mark.rule("S-51")
async def test_a_wrong_configuration_changes_nothing(new_system):
    async with new_system() as system:
        supervisor = await system.start(ChildSpec("s", lambda: Supervisor([Script("a").spec()])))
        with pytest.raises(SpecError):
            await supervisor.reconfigure(Supervisor([Script("b").spec()], max_restarts=-1))
        with pytest.raises(SpecError):
            await supervisor.reconfigure(DynamicSupervisor())
        assert [child.id for child in await supervisor.which_children()] == ["a"]


@pytest.mark.rule("S-51")
async def test_a_dynamic_supervisor_accepts_a_new_template_and_flags(new_system):
    async with new_system() as system:
        dynamic = await system.start(ChildSpec("d", lambda: DynamicSupervisor(ChildSpec("t", Script("old")))))
        ref = await dynamic.start_child()
        await dynamic.reconfigure(DynamicSupervisor(ChildSpec("u", Script("new")), max_children=2))
        assert ref.alive
        assert (await dynamic.start_child()).id == "u"
        with pytest.raises(SpecError):
            await dynamic.reconfigure(Supervisor())


@pytest.mark.rule("S-51")
async def test_children_of_a_template_take_the_new_one_at_their_next_start(new_system):
    class Says(Actor):
        def __init__(self, *words):
            self._words = words

        async def handle_call(self, message, caller):
            return self._words

    def supervise(word):
        return DynamicSupervisor(ChildSpec("t", lambda name, last=None: Says(word, name, last), shutdown=len(word)))

    async with new_system() as system:
        dynamic = await system.start(ChildSpec("d", lambda: supervise("old")))
        ref = await dynamic.start_child("ada", last="lovelace")
        await dynamic.reconfigure(supervise("newer"))
        assert await ref.call(None) == ("old", "ada", "lovelace")
        assert [child.spec.shutdown for child in await dynamic.which_children()] == [5]
        ref.kill()
        assert await ref.call(None) == ("newer", "ada", "lovelace")


# --- reports ------------------------------------------------------------------------------------------------------


class _Logger:
    def __init__(self):
        self.records = []

    def __getattr__(self, level):
        return lambda event, **more: self.records.append((level, event, more))


@pytest.mark.rule("S-52")
async def test_reports_name_the_child_its_path_and_its_spec():
    from supervisors import ActorSystem
    from supervisors.events import Reports

    logger = _Logger()
    script = Script("a", starts=["ok", "error", "ok"])
    async with ActorSystem(reports=Reports(logger)) as system:
        group = await system.start(ChildSpec("g", lambda: Supervisor([script.spec()], max_restarts=2)))
        ref = group.child("a")
        ref.cast("crash")
        await anyio.sleep(0.1)
        ref.cast("crash")
        await anyio.sleep(0.1)
        group.child("a").cast(Leave(Normal()))
        await anyio.sleep(0.1)
        await system.start(Script("t").spec(restart="temporary"))
    assert [(level, event, more.get("path")) for level, event, more in logger.records] == [
        ("error", "child terminated", "root/g/a"),
        ("error", "child failed to start", "root/g/a"),
        ("error", "child terminated", "root/g/a"),
        ("error", "too many restarts", "root/g"),
        ("error", "child terminated", "root/g"),
        ("error", "child terminated", "root/g/a"),  # permanent: also a normal end is one
    ]
    crash = logger.records[0][2]
    assert "Boom: a" in crash["exception"]  # as text: rendering frames would hold up the loop
    assert (crash["child"], crash["restart"]) == ("a", "permanent")


@pytest.mark.rule("S-52")
async def test_progress_is_reported_on_request_only_and_expected_ends_are_not():
    from supervisors import ActorSystem
    from supervisors.events import Reports

    logger = _Logger()
    async with ActorSystem(reports=Reports(logger, progress=True)) as system:
        system.sinks.append(lambda _: None)
        ref = await system.start(Script("a").spec(restart="transient"))
        ref.cast(Leave(Normal()))
        await anyio.sleep(0.1)
    assert [(level, event) for level, event, _ in logger.records] == [("info", "child started")]


@pytest.mark.rule("S-52")
async def test_each_change_of_a_child_is_one_event(new_system, recorder):
    script = Script("a", starts=["ok", "error"])
    async with new_system() as system:
        group = await system.start(ChildSpec("g", lambda: Supervisor([script.spec()]), restart="temporary"))
        group.child("a").cast("crash")
        await group.exited()
    told = [(type(event), event.spec.id) for event in recorder.events]
    assert told == [
        (Started, "a"),
        (Started, "g"),
        (Exited, "a"),
        (StartFailedEvent, "a"),
        (Restarting, "a"),
        (GaveUpEvent, "a"),
        (Exited, "g"),
    ]
