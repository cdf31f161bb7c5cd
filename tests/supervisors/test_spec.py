"""Specs and flags: their defaults, and what is refused before anything starts."""

import math

import pytest

from supervisors import (
    Actor,
    ActorSystem,
    Backoff,
    ChildSpec,
    DynamicSupervisor,
    SpecError,
    Supervisor,
    SupervisorRef,
)
from supervisors.ref import identify


@pytest.mark.rule("S-11")
async def test_defaults_equal_the_defaults_of_otp(new_system):
    spec = ChildSpec("a", Actor)
    assert (spec.restart, spec.shutdown, spec.significant, spec.type) == ("permanent", None, False, None)
    async with new_system() as system:
        await system.start(spec)
        await system.start(ChildSpec("s", Supervisor))
        worker, supervisor = identify(system.root).incarnation.actor.children.records.values()
        assert (worker.shutdown, supervisor.shutdown) == (5.0, math.inf)
        assert [child.type for child in await system.root.which_children()] == ["worker", "supervisor"]
        made = supervisor.incarnation.actor
        assert (made.strategy, made.auto_shutdown) == ("one_for_one", "never")
        assert (made.max_restarts, made.period) == (1, 5.0)


@pytest.mark.rule("S-12")
@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("id", {"id": None}),
        ("id", {"id": ["a"]}),
        ("id", {"id": ("a", ["b"])}),
        ("name", {"name": ("a", ["b"])}),
        ("backoff", {"backoff": 3}),
        ("backoff", {"backoff": Backoff(first="1")}),
        ("backoff", {"backoff": Backoff(first=math.nan)}),
        ("backoff", {"backoff": Backoff(maximum=-1)}),
        ("backoff", {"backoff": Backoff(factor=0)}),
        ("backoff", {"backoff": Backoff(jitter=2)}),
        ("backoff", {"backoff": Backoff(reset=None)}),
        ("backoff", {"backoff": Backoff(first=60)}),  # more than the maximum that is the default
        ("ref", {"ref": "a"}),
        ("start", {"start": "Actor"}),
        ("restart", {"restart": "always"}),
        ("shutdown", {"shutdown": -1}),
        ("shutdown", {"shutdown": math.nan}),
        ("shutdown", {"shutdown": "brutal"}),
        ("shutdown", {"shutdown": True}),
        ("type", {"type": "boss"}),
        ("significant", {"significant": True}),
    ],
)
def test_a_wrong_spec_is_refused_with_its_own_reason(what, wrong):
    with pytest.raises(SpecError) as refused:
        ChildSpec(**{"id": "a", "start": Actor} | wrong)
    assert refused.value.what == what


@pytest.mark.rule("S-12")
@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("strategy", {"strategy": "all_for_one"}),
        ("max_restarts", {"max_restarts": -1}),
        ("max_restarts", {"max_restarts": 1.5}),
        ("period", {"period": 0}),
        ("period", {"period": "5"}),
        ("auto_shutdown", {"auto_shutdown": "always"}),
        ("id", {"children": [ChildSpec("a", Actor), ChildSpec("a", Actor)]}),
        ("children", {"children": ["a"]}),
        ("children", {"children": None}),
        ("children", {"children": ChildSpec("a", Actor)}),
        ("significant", {"children": [ChildSpec("a", Actor, restart="transient", significant=True)]}),
    ],
)
def test_wrong_flags_are_refused_with_their_own_reason(what, wrong):
    with pytest.raises(SpecError) as refused:
        Supervisor(**wrong)
    assert refused.value.what == what


@pytest.mark.rule("S-12")
@pytest.mark.parametrize("wrong", [-1, 1.5, True, "2"])
def test_wrong_max_children_are_refused(wrong):
    with pytest.raises(SpecError) as refused:
        DynamicSupervisor(max_children=wrong)
    assert refused.value.what == "max_children"


@pytest.mark.rule("S-13")
def test_a_dynamic_supervisor_accepts_one_template_only():
    with pytest.raises(SpecError):
        DynamicSupervisor([ChildSpec("a", Actor), ChildSpec("b", Actor)])
    with pytest.raises(TypeError):
        DynamicSupervisor(auto_shutdown="any_significant")


@pytest.mark.rule("S-13")
async def test_a_dynamic_supervisor_starts_nothing_at_boot(new_system, recorder):
    async with new_system() as system:
        ref = await system.start(ChildSpec("d", lambda: DynamicSupervisor(ChildSpec("t", Actor))))
        assert recorder.take() == ["+d"]
        assert await ref.which_children() == []


@pytest.mark.rule("S-45")
@pytest.mark.parametrize("made", [DynamicSupervisor, Supervisor])
async def test_a_significant_child_is_refused_without_auto_shutdown(new_system, made):
    async with new_system() as system:
        ref = await system.start(ChildSpec("s", made))
        with pytest.raises(SpecError, match="significant"):
            await ref.start_child(ChildSpec("a", Actor, restart="transient", significant=True))
        assert (await ref.count_children()).specs == 0


@pytest.mark.rule("S-45")
def test_significant_is_refused_on_a_permanent_child():
    with pytest.raises(SpecError, match="permanent"):
        ChildSpec("a", Actor, restart="permanent", significant=True)


async def test_a_ref_of_the_wrong_kind_is_a_failed_start(new_system):
    from supervisors import ActorRef, StartFailed

    async with new_system() as system:
        with pytest.raises(StartFailed, match="SupervisorRef"):
            await system.start(ChildSpec("s", Supervisor, ref=ActorRef()))
        assert (await system.root.count_children()).specs == 0


async def test_a_child_uses_the_ref_of_its_spec(new_system):
    ref = SupervisorRef()
    async with new_system() as system:
        assert await system.start(ChildSpec("s", Supervisor, ref=ref)) is ref
        assert ref.path == "root/s"


@pytest.mark.rule("S-12")
@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("shutdown", {"stop_within": -1}),
        ("strategy", {"strategy": "all_for_one"}),
        ("max_restarts", {"max_restarts": -1}),
        ("period", {"period": 0}),
        ("kill_grace", {"kill_grace": "5"}),
        ("kill_grace", {"kill_grace": math.nan}),
        ("reports", {"reports": True}),
    ],
)
def test_wrong_flags_of_a_system_are_refused_with_their_own_reason(what, wrong):
    with pytest.raises(SpecError) as refused:
        ActorSystem(**wrong)
    assert refused.value.what == what
