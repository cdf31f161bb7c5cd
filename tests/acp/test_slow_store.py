"""An editor's agent on a loom on a server that is slow: no statement comes from the event loop's thread."""

from typing import Any

import pytest

from cantrip_actors import Runtime
from tests.acp.editors import edited, helper
from tests.acp.test_sessions import new
from tests.loom import postgres
from tests.loom.statements import Watched, watch_statements

pytestmark = [pytest.mark.real_time, pytest.mark.rule("N-13")]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return watch_statements(monkeypatch)


def allow(_params: dict[str, Any]) -> Any:
    return {"outcome": {"outcome": "selected", "optionId": "allow"}}


async def test_no_request_of_an_editor_waits_for_the_server_in_the_event_loop(watched: Watched) -> None:
    answers = {"session/request_permission": allow}
    recipe = helper()
    async with (
        Runtime.open(postgres.fresh(), cantrips=[recipe]) as runtime,
        edited(recipe, runtime=runtime, answers=answers) as editor,
    ):
        with watched.watching():
            session = await new(editor)
            for text in (
                "one",
                'pay {"amount": 3}',
                "/cost",
                "/tree",
                "/steer more",
                "/fork 1",
                "another",
                "/undo",
                "a third",
            ):
                assert await editor.prompt(session, text) == "end_turn", text
            assert (await editor.ask("session/list"))["sessions"]
            await editor.ask("session/close", sessionId=session)
            for method in ("session/load", "session/resume"):
                await editor.ask(method, sessionId=session, cwd="/", mcpServers=[])
            assert await editor.prompt(session, "the last") == "end_turn"
            await editor.ask("session/delete", sessionId=session)
