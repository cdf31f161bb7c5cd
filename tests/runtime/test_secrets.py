"""Secrets that the runtime knows appear in no event, stream, error or log line."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cantrip_actors import Cantrip, Circle, CrystalError, EntityCrashed, Injected, Runtime, gate, scripted
from cantrip_actors.observe import Upserts
from cantrip_actors.redact import Redactor, SecretPattern
from cantrip_actors.runtime.entity.performer import Performer
from cantrip_actors.wards import max_turns
from tests.runtime.spells import cantrip, done, say
from tests.runtime.test_streaming import watched

SECRET = "correct-horse-battery-staple"
TOKEN = "a-token-that-only-the-gate-has"


@gate
async def leak(token: Injected[str]) -> str:
    """Return a secret."""
    return f"the token is {token}, the secret {SECRET}"


SPELL = Cantrip(
    scripted(lambda ctx: say("leak") if len(ctx) == 1 else done(f"it is {SECRET} and {TOKEN}")),
    circle=Circle(["done", leak.with_(token=TOKEN)], [max_turns(5)]),
)


async def test_events_and_streams_have_no_secrets() -> None:
    async with Runtime.open(secrets=[SECRET]) as runtime:
        upserts = Upserts()
        runtime.watch(upserts.publish)
        outputs, events = upserts.subscribe(), runtime.events()
        episode = await runtime.cast(SPELL, f"use {SECRET}")
        events.close()
        upserts.close()
        seen = repr([event async for event in events]) + repr([output async for output in outputs])
    assert SECRET not in seen
    assert TOKEN not in seen
    assert "[redacted:" in seen
    assert SECRET in episode.thread[0].observation, "the loom keeps what was said"


async def test_a_secret_that_is_cut_by_deltas_is_found() -> None:
    class Slowly:
        name = "test:x"

        async def invoke(
            self, messages: Any, tools: Any, tool_choice: Any, options: Any = None, emit: Any = None
        ) -> Any:
            from cantrip_actors.stream.wire import FinalMessage, ItemDelta, ItemDone, ItemStart, ResponseStart

            emit(ResponseStart("x", "test"))
            emit(ItemStart("0", "message"))
            for letter in f"it is {SECRET}, you know":
                emit(ItemDelta("0", letter))
            emit(ItemDone("0", FinalMessage(f"it is {SECRET}, you know", "agent")))
            return {"content": f"it is {SECRET}, you know"}

    async with Runtime.open(secrets={"pass": SECRET}) as runtime:
        seen, _, _ = await watched(runtime, Slowly())
    assert SECRET not in repr(seen)
    assert "[redacted:pass], you know" in repr(seen)


async def test_a_redactor_says_which_other_texts_are_secret() -> None:
    email = SecretPattern("email", ("@",), r"[\w.+-]{1,64}@[\w.-]{1,63}\w")
    speaker = scripted(lambda _: {"content": "it is for anna@example.org, you know"})
    async with Runtime.open(secrets=Redactor({"pass": SECRET}, [email])) as runtime:
        seen, _, _ = await watched(runtime, speaker)
        shown = runtime.shown_loom.records(runtime.loom.entities()[0])
    assert "anna@example.org" not in repr(seen)
    assert "it is for [redacted:email], you know" in repr(seen)
    assert "it is for [redacted:email], you know" in repr(shown)


async def test_errors_and_reports_have_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    class Telling:
        async def invoke(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
            raise ValueError(f"bad key {SECRET}")

    async def buggy(*_: Any) -> Any:
        raise ZeroDivisionError(f"with {SECRET} in its hands")

    with capture_logs() as lines:
        async with Runtime.open(secrets=[SECRET]) as runtime:
            with pytest.raises(CrystalError) as failed:
                await runtime.cast(cantrip(Telling()), "go")
            monkeypatch.setattr(Performer, "_ask", buggy)
            with pytest.raises(EntityCrashed) as crashed:
                await runtime.cast(cantrip([done(1)]), "go")
    assert "bad key [redacted" in str(failed.value)
    assert SECRET not in str(crashed.value)
    assert len(lines) >= 1
    assert SECRET not in repr(lines)


@pytest.mark.parametrize("kept", [True, False])
async def test_a_loom_redacted_at_rest_has_no_secrets(tmp_path: Path, kept: bool) -> None:
    path = tmp_path / "loom.jsonl"
    async with Runtime.open(f"jsonl:{path}", secrets=[SECRET], redact="exports" if kept else "at_rest") as runtime:
        episode = await runtime.cast(SPELL, f"use {SECRET}")
    assert (SECRET.encode() in path.read_bytes()) is kept
    assert (TOKEN.encode() in path.read_bytes()) is kept
    assert episode.result == f"it is {SECRET} and {TOKEN}", "who asked gets the answer"
