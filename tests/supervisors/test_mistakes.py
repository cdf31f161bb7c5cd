"""Mistakes in an actor's class and in what a system is given: they are named at once, and not by a crash later."""

from typing import Any

import pytest

from supervisors import Actor, ActorSystem, ChildSpec, Crash, SpecError, SupervisorsError, task
from supervisors.inspect import dump


@pytest.mark.parametrize("callback", ["init", "handle_call", "handle_cast", "handle_info", "terminate", "run"])
def test_a_plain_callback_where_an_async_one_is_expected_is_refused(callback: str) -> None:
    def plain(*_: Any) -> None: ...

    with pytest.raises(TypeError, match=rf"Echo.{callback}: expected `async def {callback}`, got `def`"):
        type("Echo", (Actor,), {callback: plain})


@pytest.mark.parametrize("callback", ["snapshot", "restore"])
def test_an_async_callback_where_a_plain_one_is_expected_is_refused(callback: str) -> None:
    async def awaited(*_: Any) -> None: ...

    with pytest.raises(TypeError, match=rf"Echo.{callback}: expected `def {callback}`, got `async def`"):
        type("Echo", (Actor,), {callback: awaited})


def test_a_callback_that_yields_is_refused() -> None:
    async def yields(*_: Any) -> Any:
        yield 1

    with pytest.raises(TypeError, match="an async generator: remove its `yield`"):
        type("Echo", (Actor,), {"handle_call": yields})


async def test_a_task_whose_function_is_not_async_says_so() -> None:
    def plain() -> int:
        return 3

    function: Any = plain
    async with ActorSystem(reports=None) as system:
        ref = await system.start(task("sum", function))
        reason = (await ref.outcome()).reason
    assert isinstance(reason, Crash)
    assert "task sum: expected an async function" in str(reason.exception)


def test_a_task_without_a_function_is_refused() -> None:
    function: Any = 3
    with pytest.raises(SpecError, match="expected an async function, got 3"):
        task("sum", function)


def test_a_significant_that_is_not_a_bool_is_refused() -> None:
    given: Any = "no"
    with pytest.raises(SpecError, match="expected True or False, got 'no'"):
        ChildSpec("a", Actor, restart="temporary", significant=given)


def test_a_system_that_is_not_entered_says_so() -> None:
    system = ActorSystem()
    with pytest.raises(SupervisorsError, match="portal: this ActorSystem is not entered"):
        _ = system.portal
    with pytest.raises(SupervisorsError, match="this ActorSystem is not entered"):
        dump(system)
    with pytest.raises(AttributeError, match="has no attribute 'portals'"):
        _ = system.portals  # type: ignore[attr-defined]
