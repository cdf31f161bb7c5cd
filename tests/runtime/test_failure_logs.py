"""Log lines about exceptions in gates and in the steps around them."""

from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from cantrip_actors import Cantrip, Circle, GateCall, Runtime, ask_first, gate, scripted, wrap
from cantrip_actors.gates import GateError
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.runtime.loom.guard import LOGGED, READ
from cantrip_actors.wards import max_turns
from tests.runtime.spells import cantrip, done, say

SECRET = "correct-horse-battery-staple"


@gate
async def broken() -> str:
    """Break with an exception that names a secret."""
    raise KeyError(SECRET)


@gate
async def sound() -> str:
    """Return a text."""
    return "fine"


async def logged(*gates: Any, name: str, **options: Any) -> list[dict[str, Any]]:
    """Return the log lines of an entity that calls one gate."""
    with capture_logs() as lines:
        async with Runtime.open(**options) as runtime:
            await runtime.cast(cantrip([say(name), done("ok")], *gates), "go")
    return [dict(line) for line in lines]


async def test_an_exception_of_a_gate_is_logged_once_at_warning_with_its_traceback() -> None:
    (line,) = await logged(broken, name="broken")
    assert line["log_level"] == "warning"
    assert (line["event"], line["gate"], line["error"]) == ("a gate raised an exception", "broken", "KeyError")
    assert line["exception"].startswith("Traceback (most recent call last)")
    assert "in broken\n    raise KeyError(SECRET)" in line["exception"]
    assert line["exception"].endswith(f"KeyError: '{SECRET}'")


async def test_the_traceback_of_a_gate_is_redacted() -> None:
    (line,) = await logged(broken, name="broken", secrets=[SECRET])
    assert SECRET not in repr(line)
    assert line["exception"].endswith("KeyError: '[redacted:secret]'")


@pytest.mark.rule("X-01")
async def test_of_a_long_exception_of_a_gate_the_beginning_is_redacted_and_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redacted: list[int] = []
    redact = Redactor.text

    def count(self: Redactor, text: str) -> str:
        redacted.append(len(text))
        return redact(self, text)

    @gate
    async def verbose() -> str:
        """Break with a whole page."""
        raise ValueError(f"{SECRET}: {'x' * 5_000_000}")

    monkeypatch.setattr(Redactor, "text", count)
    (line,) = await logged(verbose, name="verbose", secrets=[SECRET])
    assert "ValueError: [redacted:secret]: xxx" in line["exception"]
    assert line["exception"].endswith("more characters)")
    assert len(line["exception"]) < LOGGED + 50
    assert max(redacted) <= READ


@pytest.mark.parametrize("where", ["pre", "post"])
async def test_an_exception_of_a_step_is_logged_once_with_its_name(where: str) -> None:
    async def check(*_: object) -> None:
        raise ValueError("the check is broken")

    steps: dict[str, Any] = {where: [check]}
    (line,) = await logged(sound, wrap("sound", **steps), name="sound")
    assert line["log_level"] == "warning"
    assert line["event"] == "the step check around a gate raised an exception"
    assert (line["gate"], line["error"]) == ("sound", "ValueError")


async def test_an_exception_of_the_condition_of_ask_first_is_logged() -> None:
    def is_risky(args: object) -> bool:
        raise TypeError("the condition is broken")

    (line,) = await logged(sound, ask_first("sound", when=is_risky), name="sound")
    assert line["event"] == "the step is_risky around a gate raised an exception"
    assert (line["gate"], line["error"]) == ("sound", "TypeError")


async def test_a_refusal_and_a_timeout_of_a_gate_are_not_logged() -> None:
    @gate
    async def refuses() -> str:
        """Say what is wrong."""
        raise GateError("there is no such order")

    @gate(timeout=1.0)
    async def hangs() -> str:
        """Take too long."""
        await anyio.sleep(60)
        return "late"

    def own_words(call: GateCall) -> None:
        raise GateError("not on a Sunday")

    assert await logged(refuses, name="refuses") == []
    assert await logged(hangs, name="hangs") == []
    assert await logged(sound, wrap("sound", pre=[own_words]), name="sound") == []


async def test_an_exception_of_a_gate_in_a_program_is_logged() -> None:
    program = {"code": "try:\n    broken()\nexcept Exception:\n    done(1)"}
    circle = Circle(["done", broken], [max_turns(3)], medium="python")
    with capture_logs() as lines:
        async with Runtime.open() as runtime:
            await runtime.cast(Cantrip(scripted([program]), circle=circle), "go")
    (line,) = lines
    assert (line["gate"], line["error"]) == ("broken", "KeyError")
