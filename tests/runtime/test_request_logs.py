"""Log lines never have the content of requests: no arguments, reasons, questions, answers or notes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from cantrip_actors import (
    AlreadyDecided,
    Cantrip,
    Circle,
    InvalidDecision,
    Runtime,
    UnknownRequest,
    ask_first,
    gate,
    scripted,
    wrap,
)
from cantrip_actors.dispatch import Dispatcher
from cantrip_actors.gates import GateError
from cantrip_actors.runtime.entity.performer import Performer
from cantrip_actors.wards import max_turns
from tests.dispatch.contracts import contract
from tests.dispatch.entities import FINISH, block, in_order, progress, worker
from tests.runtime.spells import done, say

MARK = "zebra"
"""A mark in every text of an entity or a person."""

UNLOADED = 600.0
"""Seconds after which an entity that waits is unloaded."""


@gate
async def pay(to: str) -> str:
    """Pay."""
    raise GateError(f"there is no account {MARK}-account of {to}")


@gate
async def ship(to: str) -> str:
    """Ship it."""
    raise RuntimeError("the printer is out of paper")


def reason(args: Mapping[str, Any]) -> str:
    """Say why a person decides."""
    return f"{MARK}-reason: {args['to']}"


def check(call: Any, seen: Any) -> None:
    raise ValueError("the check is broken")


SCHEMA = {"type": "object", "title": f"{MARK}-schema", "properties": {"city": {"type": "string"}}, "required": ["city"]}
STEPS = [
    say("pay", to=f"{MARK}-allowed"),
    say("pay", to=f"{MARK}-denied"),
    say("pay", to=f"{MARK}-changed"),
    say("ship", to=f"{MARK}-shipped"),
    say("question", text=f"{MARK}-question?", schema=SCHEMA),
    done(f"{MARK}-result"),
]


def shop() -> Cantrip:
    gates = ["done", "question", ask_first(pay, when=reason), ask_first(ship), wrap("ship", post=[check])]
    return Cantrip(scripted(in_order(*STEPS)), circle=Circle(gates, [max_turns(20)]), name="shop")


async def decide_all(runtime: Runtime) -> list[str]:
    """Decide each request as it comes, also wrongly and twice; return the texts of the errors."""
    errors = []
    decisions: dict[str, dict[str, Any]] = {
        f"{MARK}-allowed": {"decision": "allow", "note": f"{MARK}-note"},
        f"{MARK}-denied": {"decision": "deny", "note": f"{MARK}-denial"},
        f"{MARK}-changed": {"decision": "allow", "args": {"to": f"{MARK}-other"}},
        f"{MARK}-shipped": {"decision": "allow", "remember": "entity"},
    }
    async with runtime.requests(follow=True) as feed:
        async for request in feed:
            given = decisions.get(request.args.get("to", ""), {"answer": {"city": f"{MARK}-city"}})
            for id, wrong in (
                (request.id, {"answer": {"town": f"{MARK}-town"}, "decision": "allow"}),
                (request.id, {"answer": f"{MARK}-misfit"}),
                (f"{request.id}-{MARK}", given),
            ):
                try:
                    await runtime.decide(id, by=f"{MARK}-anna", **wrong)
                except (InvalidDecision, UnknownRequest) as error:
                    errors.append(str(error))
            await runtime.decide(request.id, by=f"{MARK}-anna", **given)
            try:
                await runtime.decide(request.id, by=f"{MARK}-ben", **given)
            except AlreadyDecided as error:
                errors.append(str(error))
            if "answer" in given:
                break
    return errors


@pytest.mark.rule("C-25")
@pytest.mark.parametrize("redact", ["exports", "at_rest"])
async def test_logs_have_no_content_of_requests(tmp_path: Path, redact: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:{tmp_path}/loom.db"
    with capture_logs() as lines:
        async with Runtime.open(url, redact=redact) as runtime:
            entity = await runtime.invoke(shop(), f"{MARK}-intent", name="shop")
            while not runtime.requests():
                await anyio.sleep(1)
            await anyio.sleep(UNLOADED)
        crashed = []

        async def crash_once(self: Performer, *args: Any) -> Any:
            if not crashed:
                crashed.append(True)
                raise RuntimeError("a bug of the runtime")
            return await consult(self, *args)

        consult = Performer._consult
        monkeypatch.setattr(Performer, "_consult", crash_once)
        async with Runtime.open(url, cantrips=[shop()], redact=redact) as runtime:
            loaded = await runtime.resume(entity.id)
            errors = await decide_all(runtime)
            episode = await loaded.episode()
        async with Runtime.open(unattended="deny") as runtime:
            await runtime.cast(shop(), f"{MARK}-intent")
    assert episode.result == f"{MARK}-result"
    assert crashed
    assert len(errors) == 5 * 4
    assert [line["error"] for line in lines if "raised an exception" in line["event"]] == ["RuntimeError", "ValueError"]
    assert any("a bug of the runtime" in repr(line) for line in lines)
    assert [line for line in lines if MARK in repr(line)] == []


@pytest.mark.rule("C-25", "C-24")
async def test_logs_have_no_content_of_waiting_dispatches(tmp_path: Path) -> None:
    asks = contract(needs_approval="yes", decision_needed=f"{MARK}-decision")
    steps = [progress(f"{MARK}-progress"), block(f"{MARK}-blocker"), done("ok"), *FINISH]
    with capture_logs() as lines:
        async with Runtime.open() as runtime:
            dispatcher = Dispatcher(runtime, tmp_path / "dispatches")
            record = await dispatcher.dispatch(asks, author="ada")
            await runtime.decide(f"dispatch:{record.id}", "allow", by="anna", note=f"{MARK}-note")
            made = worker(steps)
            await dispatcher.run(record.id, made)
            with pytest.raises(UnknownRequest):
                await runtime.decide(f"dispatch:{MARK}", "allow")
            await runtime.decide(f"dispatch:{record.id}", "allow", by="anna", note=f"{MARK}-unblocked")
            assert (await dispatcher.run(record.id, made)).status == "completed"
    assert [line for line in lines if MARK in repr(line)] == []
