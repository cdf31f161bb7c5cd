"""A gate with a `retry` is called again after the exceptions that it names; its attempts are one observation."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, GateCall, InvalidCantrip, Retry, Runtime, gate, scripted
from cantrip_actors.gates import GateError
from cantrip_actors.wards import max_turns
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("V-12")

RETRY = Retry(on=(ConnectionError, TimeoutError), attempts=3, base_delay=2.0)


async def observe(*gates: Any, medium: str = "tools", url: str = "memory:") -> Any:
    """Return the observation of a call of the first gate, as the thread and as a reader of the loom see it."""
    says = [say("act"), done("over")] if medium == "tools" else [{"code": "act()"}, {"code": "done('over')"}]
    cantrip = Cantrip(scripted(says), circle=Circle(["done", *gates], [max_turns(5)], medium=medium))
    async with Runtime.open(url) as runtime:
        episode = await runtime.cast(cantrip, "go")
        (turn, *_) = runtime.loom.turns(episode.entity_id)
        assert episode.thread[0].gate_calls == turn.gate_calls
        return next(observation for observation in turn.gate_calls if observation.gate == "act")


@pytest.mark.parametrize("failures", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ["async", "blocking"])
async def test_a_gate_is_called_again_up_to_the_number_of_attempts(kind: str, failures: int) -> None:
    calls: list[float] = []

    def work() -> str:
        calls.append(0.0)
        if len(calls) <= failures:
            raise ConnectionError("reset by peer")
        return "acted"

    @gate(name="act", idempotent=True, retry=RETRY)
    async def act() -> str:
        """Act."""
        return work()

    @gate(name="act", idempotent=True, retry=RETRY)
    def act_in_thread() -> str:
        """Act."""
        return work()

    observation = await observe(act if kind == "async" else act_in_thread)
    assert len(calls) == observation.attempts == min(failures + 1, 3)
    expected = ("acted", False) if failures < 3 else ("ConnectionError: reset by peer", True)
    assert (observation.result, observation.is_error) == expected


async def test_the_attempts_of_a_gate_of_a_program_are_recorded(tmp_path: Path) -> None:
    calls: list[int] = []

    @gate(read_only=True, retry=Retry(on=ConnectionError, attempts=2, base_delay=0.01))
    async def act() -> str:
        """Act."""
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionResetError("gone")
        return "acted"

    observation = await observe(act, medium="python", url=f"sqlite:{tmp_path / 'loom.db'}")
    assert (observation.result, observation.attempts) == ("acted", 2)


async def test_other_exceptions_and_timeouts_are_not_retried() -> None:
    calls: list[str] = []

    @gate(name="act", idempotent=True, retry=RETRY)
    async def refuse() -> str:
        """Act."""
        calls.append("refused")
        raise GateError("no")

    @gate(name="act", idempotent=True, retry=RETRY, timeout=1.0)
    async def dawdle() -> str:
        """Act."""
        calls.append("late")
        await anyio.sleep(60)
        return "never"

    for act in (refuse, dawdle):
        observation = await observe(act)
        assert (observation.is_error, observation.attempts) == (True, 1)
    assert calls == ["refused", "late"]


async def test_attempts_wait_longer_each_time_and_an_interrupt_ends_the_wait() -> None:
    times: list[float] = []

    @gate(idempotent=True, retry=Retry(on=(ConnectionError,), attempts=100, base_delay=8.0, max_delay=32.0))
    async def act() -> str:
        """Act."""
        times.append(anyio.current_time())
        raise ConnectionError("away")

    cantrip = Cantrip(scripted([say("act"), done("over")]), circle=Circle(["done", act], [max_turns(5)]))
    async with Runtime.open() as runtime:
        entity = await runtime.start(cantrip, "go")
        await anyio.sleep(100)
        with anyio.fail_after(1):
            await entity.interrupt("enough", now=True)
    first, second, third = (later - before for before, later in itertools.pairwise(times[:4]))
    assert 4 <= first <= 8 <= second <= 16 <= third <= 32


async def test_all_attempts_of_a_call_have_its_id_as_a_key() -> None:
    keys: list[Any] = []

    @gate(retry=Retry(on=(ConnectionError,), attempts=2))
    async def act(call: GateCall) -> str:
        """Act."""
        keys.append(call.call_id)
        if len(keys) == 1:
            raise ConnectionError("the answer was lost")
        return "acted"

    observation = await observe(act)
    assert (observation.result, keys) == ("acted", [observation.tool_call_id] * 2)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"retry": RETRY}, "a gate that may be called twice is idempotent=True"),
        ({"retry": Retry(), "idempotent": True}, r"expected Retry\(on="),
        ({"retry": 3, "idempotent": True}, r"expected Retry\(on="),
    ],
)
def test_a_gate_that_must_not_be_called_twice_has_no_retry(settings: Any, why: str) -> None:
    with pytest.raises(InvalidCantrip, match=why):

        @gate(**settings)
        async def pay() -> str:
            """Pay."""
            return "paid"


@pytest.mark.parametrize("parts", [{"on": ("ConnectionError",)}, {"on": (int,)}, {"attempts": 0}, {"attempts": True}])
def test_a_retry_names_classes_of_exceptions_and_a_number_of_attempts(parts: Any) -> None:
    with pytest.raises(InvalidCantrip):
        Retry(**parts)
