"""An editor and a session that another process works on: a second editor, or a worker with the same recipe.

Two runtimes stand for the two processes: they share nothing but the file of the loom.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Call, Node, Runtime
from tests.acp.editors import Editor, edited, helper
from tests.acp.test_sessions import chooses, new
from tests.runtime.test_outages import ALL_METHODS, failing


@asynccontextmanager
async def two_editors(tmp_path: Path) -> AsyncIterator[tuple[Editor, Editor, str]]:
    """Yield an editor whose process runs the entity of a session, and one that has loaded the session."""
    url = f"sqlite:{tmp_path / 'loom.db'}"
    silent = {"session/request_permission": lambda _: None}
    async with (
        edited(helper(), url, answers=silent) as first,
        edited(helper(), url, answers=chooses("allow")) as second,
    ):
        session = await new(first)
        await first.prompt(session, "hello")
        await load(second, session)
        yield first, second, session


async def load(editor: Editor, session: str, cwd: str = "/") -> Any:
    return await editor.ask("session/load", sessionId=session, cwd=cwd, mcpServers=[])


def list_calls(editor: Editor) -> list[tuple[Any, ...]]:
    """Return the status and the output of each update of a call."""
    updates = [update for update in editor.updates if update["sessionUpdate"].startswith("tool_call")]
    return [(update["status"], update.get("rawOutput", {}).get("output")) for update in updates]


@pytest.mark.rule("ACP-10")
async def test_an_editor_shows_the_calls_of_its_prompt_whichever_process_works_on_it(tmp_path: Path) -> None:
    async with two_editors(tmp_path) as (_, second, session):
        assert await second.prompt(session, 'nap {"seconds": 2}') == "end_turn"
        assert list_calls(second) == [("in_progress", None), ("completed", "slept")]
        assert second.text().count("it said: slept") == 1


@pytest.mark.rule("ACP-16")
async def test_an_editor_decides_a_call_of_its_prompt_that_another_process_makes(tmp_path: Path) -> None:
    async with two_editors(tmp_path) as (_, second, session):
        assert await second.prompt(session, 'pay {"amount": 3}') == "end_turn"
        assert second.asked == ["session/request_permission"]
        assert list_calls(second)[-1] == ("completed", "paid 3")


@pytest.mark.rule("ACP-10")
async def test_an_editor_that_loads_a_session_shows_what_another_process_does_in_it(tmp_path: Path) -> None:
    async with two_editors(tmp_path) as (first, second, session):
        prompt = await first.begin("session/prompt", {"sessionId": session, "prompt": 'nap {"seconds": 5}'})
        await anyio.sleep(2)
        await load(second, session)
        await first.end(prompt)
        await second.until(lambda: "it said: slept" in second.text())
        assert list_calls(second)[-1] == ("completed", "slept")


@pytest.mark.rule("ACP-10")
async def test_a_prompt_continues_from_where_another_editor_went_back_to(tmp_path: Path) -> None:
    async with two_editors(tmp_path) as (first, second, session):
        await first.prompt(session, "unwanted")
        await first.prompt(session, "/undo")
        await first.prompt(session, "wanted")
        await second.prompt(session, "more")
        assert second.text().endswith("more is number 3")
        await second.prompt(session, "/undo")
        await second.prompt(session, "else")
        assert second.text().endswith("else is number 3")
        await first.prompt(session, "last")
        assert first.text().endswith("last is number 4")


@pytest.mark.rule("ACP-17")
async def test_a_loaded_session_has_its_options_and_finishes_its_prompt_with_them(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with edited(helper(), url, answers={"session/request_permission": lambda _: None}) as editor:
        session = await new(editor)
        await editor.ask("session/set_mode", sessionId=session, modeId="ask")
        await editor.ask("session/set_config_option", sessionId=session, configId="thought_level", value="low")
        await editor.begin("session/prompt", {"sessionId": session, "prompt": 'nap {"seconds": 1}'})
        await editor.until(lambda: editor.asked)
    async with edited(helper(), url, answers=chooses("allow")) as editor:
        loaded = await load(editor, session)
        assert loaded["modes"]["currentModeId"] == "ask"
        values = {option["id"]: option["currentValue"] for option in loaded["configOptions"]}
        assert values == {"mode": "ask", "model": "first", "thought_level": "low"}
        await editor.until(lambda: "it said: slept" in editor.text())
        assert editor.asked == ["session/request_permission"]


@pytest.mark.rule("ACP-10")
async def test_an_agent_with_a_changed_recipe_finishes_the_prompt_of_a_loaded_session(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with edited(helper(), url, answers={"session/request_permission": lambda _: None}) as editor:
        session = await new(editor)
        await editor.begin("session/prompt", {"sessionId": session, "prompt": 'pay {"amount": 3}'})
        await editor.until(lambda: editor.asked)
    changed = helper(call=Call(system_prompt="Be kind."))
    async with edited(changed, url, answers=chooses("allow")) as editor:
        await load(editor, session)
        await editor.until(lambda: "it said: paid 3" in editor.text())


@pytest.mark.rule("ACP-15")
async def test_a_worker_with_the_same_recipe_reads_no_files_for_a_session(tmp_path: Path) -> None:
    url, project, elsewhere = f"sqlite:{tmp_path / 'loom.db'}", tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
        (folder / "a.txt").write_text(f"in {folder.name}")
    recipe = helper(elsewhere)
    async with edited(recipe, url) as editor:
        session = (await editor.ask("session/new", cwd=str(project), mcpServers=[]))["sessionId"]
        await editor.prompt(session, "hello")
    async with Runtime.open(url) as client, Runtime.open(url, cantrips=[recipe], node=Node("w1")):
        posted = await client.get_entity(session).post('read {"path": "a.txt"}')
        await anyio.sleep(10)
        assert posted.state == "waiting"
        async with edited(recipe, url) as editor:
            await load(editor, session, str(project))
            await editor.prompt(session, "go on")
        assert (await posted.result()).result == "it said: in project"


@pytest.mark.rule("ACP-10")
@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_an_editor_that_opens_a_session_shows_a_prompt_that_waits_and_its_answer(
    method: str, tmp_path: Path
) -> None:
    async with two_editors(tmp_path) as (first, second, session):
        nap = await first.begin("session/prompt", {"sessionId": session, "prompt": 'nap {"seconds": 10}'})
        await anyio.sleep(2)
        await second.begin("session/prompt", {"sessionId": session, "prompt": "and then"})
        await second.until(lambda: "this one waits for its end." in second.text("agent_thought_chunk"))
        async with edited(helper(), f"sqlite:{tmp_path / 'loom.db'}") as third:
            await third.ask(method, sessionId=session, cwd="/", mcpServers=[])
            await third.until(lambda: "and then is number 3" in third.text())
            assert third.text("user_message_chunk").endswith("and then")
            assert third.text().count("it said: slept") == 1
            assert await third.prompt(session, "last") == "end_turn"
            assert third.text().endswith("last is number 4")
        await first.end(nap)


@pytest.mark.rule("ACP-10")
async def test_a_prompt_that_waits_when_the_agent_ends_is_worked_on_once_the_session_is_loaded(tmp_path: Path) -> None:
    url, silent = f"sqlite:{tmp_path / 'loom.db'}", {"session/request_permission": lambda _: None}
    async with two_editors(tmp_path) as (first, second, session):
        await first.begin("session/prompt", {"sessionId": session, "prompt": 'pay {"amount": 3}'})
        await first.until(lambda: first.asked)
        await second.begin("session/prompt", {"sessionId": session, "prompt": "and then"})
        await second.until(lambda: "this one waits for its end." in second.text("agent_thought_chunk"))
    async with edited(helper(), url, answers=silent) as third:
        await load(third, session)
        await third.until(lambda: third.asked)
    async with edited(helper(), url, answers=chooses("allow")) as fourth:
        await load(fourth, session)
        await fourth.until(lambda: "and then is number 3" in fourth.text())
        assert fourth.text().count("it said: paid 3") == 1
        assert fourth.text("user_message_chunk").count("and then") == 1


@pytest.mark.rule("ACP-11")
async def test_cancelling_a_loaded_session_takes_back_the_prompt_that_waits(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with two_editors(tmp_path) as (first, second, session):
        await first.begin("session/prompt", {"sessionId": session, "prompt": 'pay {"amount": 3}'})
        await first.until(lambda: first.asked)
        await second.begin("session/prompt", {"sessionId": session, "prompt": "unwanted"})
        await second.until(lambda: "this one waits for its end." in second.text("agent_thought_chunk"))
    async with edited(helper(), url, answers={"session/request_permission": lambda _: None}) as third:
        await load(third, session)
        await third.until(lambda: third.asked)
        await third.tell("session/cancel", sessionId=session)
        assert await third.prompt(session, "go on") == "end_turn"
        assert third.text().endswith("go on is number 3")


@pytest.mark.rule("ACP-10", "N-71")
async def test_an_editor_shows_the_calls_of_its_prompt_after_its_loom_was_away(tmp_path: Path) -> None:
    url, recipe = f"sqlite:{tmp_path / 'loom.db'}", helper()
    async with (
        Runtime.open(url, cantrips=[recipe]) as runtime,
        edited(recipe, url) as first,
        edited(recipe, runtime=runtime) as second,
    ):
        session = await new(first)
        await first.prompt(session, "hello")
        await load(second, session)
        prompt = await second.begin("session/prompt", {"sessionId": session, "prompt": 'nap {"seconds": 6}'})
        await anyio.sleep(1.75)  # between two polls
        with failing(runtime._tree.store, "standing", "tip", "records"):
            await anyio.sleep(2)
        assert await second.end(prompt) == {"stopReason": "end_turn"}
        assert list_calls(second) == [("in_progress", None), ("completed", "slept")]


@pytest.mark.rule("ACP-10", "N-71")
@pytest.mark.parametrize(("length", "methods"), [(3, ALL_METHODS), (90, ALL_METHODS), (3, ("append", "post"))])
@pytest.mark.parametrize("before", [[], ["hello"], ["hello", "/undo"], ["hello", "more", "/undo"]])
async def test_a_prompt_that_is_sent_while_the_loom_is_away_is_answered_once_it_is_back(
    tmp_path: Path, length: float, methods: tuple[str, ...], before: list[str]
) -> None:
    url, recipe = f"sqlite:{tmp_path / 'loom.db'}", helper()
    async with Runtime.open(url, cantrips=[recipe]) as runtime, edited(recipe, runtime=runtime) as editor:
        session = await new(editor)
        for text in before:
            await editor.prompt(session, text)
        with failing(runtime._tree.store, *methods):
            prompt = await editor.begin("session/prompt", {"sessionId": session, "prompt": "and now"})
            await anyio.sleep(length)
        assert await editor.end(prompt) == {"stopReason": "end_turn"}
        number = 1 + before.count("hello") + before.count("more") - before.count("/undo")
        assert editor.text().endswith(f"and now is number {number}")
        assert await editor.prompt(session, "then") == "end_turn"
        assert editor.text().endswith(f"then is number {number + 1}")


@pytest.mark.rule("ACP-10", "N-71")
async def test_a_prompt_that_is_cancelled_while_the_loom_is_away_ends_as_cancelled(tmp_path: Path) -> None:
    url, recipe = f"sqlite:{tmp_path / 'loom.db'}", helper()
    async with Runtime.open(url, cantrips=[recipe]) as runtime, edited(recipe, runtime=runtime) as editor:
        session = await new(editor)
        with failing(runtime._tree.store, *ALL_METHODS):
            prompt = await editor.begin("session/prompt", {"sessionId": session, "prompt": "unwanted"})
            await anyio.sleep(3)
            await editor.tell("session/cancel", sessionId=session)
            assert await editor.end(prompt) == {"stopReason": "cancelled"}
        assert await editor.prompt(session, "wanted") == "end_turn"
        assert editor.text().endswith("wanted is number 1")


@pytest.mark.rule("ACP-10", "N-71")
@pytest.mark.parametrize("length", [1, 90])
@pytest.mark.parametrize("passivate_after", [0, 300])
async def test_a_prompt_is_answered_though_the_loom_was_away_while_this_process_worked_on_it(
    tmp_path: Path, length: float, passivate_after: float
) -> None:
    url, recipe = f"sqlite:{tmp_path / 'loom.db'}", helper()
    async with (
        Runtime.open(url, cantrips=[recipe], passivate_after=passivate_after) as runtime,
        edited(recipe, runtime=runtime) as editor,
    ):
        session = await new(editor)
        await editor.prompt(session, "hello")
        await anyio.sleep(1)
        prompt = await editor.begin("session/prompt", {"sessionId": session, "prompt": 'nap {"seconds": 2}'})
        await anyio.sleep(1)
        with failing(runtime._tree.store, "append", "facts", "records", "standing", "find_mail"):
            await anyio.sleep(length)
        assert await editor.end(prompt) == {"stopReason": "end_turn"}
        assert "it said: " in editor.text()
