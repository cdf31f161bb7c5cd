"""Forgetting in a runtime: a live entity is refused, an ended one is forgotten, other entities continue."""

from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from cantrip_actors import Call, DamagedLoom, EntityEnded, ForgottenEvent, KeyUsed, LoomError, Runtime
from cantrip_actors.loom import open_store, thread_jsonl, verify_loom
from cantrip_actors.loom.export.chat import chat_jsonl
from cantrip_actors.loom.export.conversation import conversation_of
from cantrip_actors.loom.export.html import html_page
from cantrip_actors.loom.reading.statistics import statistics
from cantrip_actors.runtime.events.loom_log import LoomLog
from cantrip_actors.stream.reading import EventId
from tests.loom.test_store import KINDS, Place
from tests.runtime.spells import cantrip, done, forever, say

DAY = 86_400.0


@pytest.fixture(params=KINDS)
def place(request, tmp_path):
    here = Place(request.param, tmp_path)
    yield here
    here.clear()


def secret(**parts):
    return cantrip([done("MARK-result")] * 9, call=Call(system_prompt="MARK-prompt"), **parts)


def files_with(folder: Path, text: bytes) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and text in path.read_bytes()]


@pytest.mark.rule("C-50")
async def test_forget_deletes_one_shot_and_long_lived_entities(place, tmp_path):
    async with Runtime.open(place.url) as runtime:
        cast = await runtime.cast(secret(), "MARK-intent", context={"a": "MARK-context"})
        entity = await runtime.invoke(secret(), "MARK-intent", name="MARK-name")
        await entity.send("MARK-mail", key="MARK-key")
        await entity.stop()
        first = await runtime.forget(cast.entity_id, by="anna", why="asked")
        second = await runtime.forget("MARK-name")
        assert (first.entities, second.entities) == ((cast.entity_id,), (entity.id,))
        assert files_with(tmp_path, b"MARK") == []
        assert verify_loom(runtime._tree.store).faults == []
        assert runtime.entity("MARK-name") is None
        assert (await runtime.cast(secret(), "another")).terminated
    assert files_with(tmp_path, b"MARK") in ([], ["loom.jsonl"], ["loom.db"], ["loom.db-wal"])  # of the last cast


@pytest.mark.rule("C-50")
async def test_an_entity_that_several_callers_forget_at_once_is_forgotten_for_each_of_them(place):
    async with Runtime.open(place.url) as runtime:
        episode = await runtime.cast(secret(), "go")
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(runtime.forget, episode.entity_id)
            tasks.start_soon(runtime.prune, 0)
        assert runtime.loom.is_forgotten(episode.entity_id)


@pytest.mark.rule("C-50")
async def test_a_loom_opens_again_after_an_entity_with_decisions_is_forgotten(place, tmp_path):
    says = [say("question", text="MARK-text"), say("question", text="And now?"), done("MARK-result")]
    decided = cantrip(says, "question")
    async with Runtime.open(place.url) as runtime:
        entity = await runtime.start(decided, "MARK-intent")
        async with runtime.requests(follow=True) as requests:
            await runtime.decide((await anext(requests)).id, answer="MARK-answer", by="MARK-anna", note="MARK-note")
            await runtime.decide((await anext(requests)).id, "deny", note="MARK-no")
        assert (await entity.episode()).result == "MARK-result"
        await runtime.forget(entity)
    assert files_with(tmp_path, b"MARK") == []
    if place.lasts:
        async with Runtime.open(place.url) as runtime:
            assert verify_loom(runtime._tree.store).faults == []
            assert len(runtime.loom.turns(entity.id)) == 3
            assert (await runtime.cast(cantrip([done("well")]), "go on")).result == "well"


@pytest.mark.rule("C-50")
async def test_an_entity_that_has_not_ended_is_not_forgotten():
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(secret(), "go", name="notes")
        with pytest.raises(LoomError, match=r"entity .* is loaded: stop it first, and then forget it"):
            await runtime.forget(entity)
        running = await runtime.start(cantrip(forever), "go")
        with pytest.raises(LoomError, match="is loaded: stop it first"):
            await runtime.forget(running)
        await entity.stop()
        assert (await runtime.forget(entity)).entities == (entity.id,)


@pytest.mark.rule("C-50")
async def test_a_long_lived_entity_that_is_unloaded_is_not_forgotten(tmp_path):
    url = f"sqlite:{tmp_path}/loom.db"
    async with Runtime.open(url) as runtime:
        entity = await runtime.invoke(secret(), "go", name="notes")
    async with Runtime.open(url) as runtime:
        with pytest.raises(LoomError, match="has not ended, and is not forgotten: stop it first"):
            await runtime.forget(entity.id)


@pytest.mark.rule("C-50")
async def test_the_events_of_all_entities_say_that_one_was_forgotten():
    async with Runtime.open() as runtime:
        episode = await runtime.cast(secret(), "MARK-intent")
        await runtime.forget(episode.entity_id, by="anna", why="asked")
        events = LoomLog(runtime.loom, EventId()).read(0).events
    assert "MARK" not in repr(events)
    last = events[-1].event
    assert isinstance(last, ForgottenEvent)
    assert (last.entity_id, last.by, last.why) == (episode.entity_id, "anna", "asked")


@pytest.mark.rule("C-50")
async def test_a_forgotten_entity_is_read_without_content(tmp_path):
    async with Runtime.open(f"jsonl:{tmp_path}/loom.jsonl") as runtime:
        episode = await runtime.cast(secret(), "MARK-intent")
        other = await runtime.cast(secret(), "other")
        usage = runtime.loom.subtree_usage(episode.entity_id)
        await runtime.forget(episode.entity_id, by="anna", why="asked")
        loom = runtime.loom
        turns = loom.thread(episode.thread[-1].id)
        assert [(turn.id, turn.forgotten, turn.utterance) for turn in turns] == [(episode.thread[-1].id, True, "")]
        assert b"MARK" not in thread_jsonl(turns)
        page = b"".join(html_page(loom, [episode.entity_id]))
        assert b'"event":"forget"' in page
        assert b'"why":"asked"' in page
        assert b"MARK" not in page
        assert len(list(chat_jsonl(conversation_of(loom, one) for one in loom.entities()))) == 1
        assert statistics(loom).states == {"forgotten": 1, "terminated": 1}
        assert loom.subtree_usage(episode.entity_id) == usage
        assert loom.turns(other.entity_id)[0].content is None
        with pytest.raises(LoomError, match="is forgotten: it takes no reward"):
            await loom.reward(turns[0].id, 1.0)
        with pytest.raises(EntityEnded, match=r"has ended .forgotten."):
            await runtime.resume(episode.entity_id)


@pytest.mark.rule("C-50")
async def test_a_forgotten_turn_is_not_forked():
    async with Runtime.open() as runtime:
        episode = await runtime.cast(secret(), "go")
        await runtime.forget(episode.entity_id)
        with pytest.raises(LoomError, match="is forgotten: it cannot be forked"):
            await runtime.fork(episode.thread[-1].id, intent="go on", cantrip=secret())
        with pytest.raises(LoomError, match="is forgotten: it cannot be forked"):
            await runtime.fork(episode.thread[-1].id, intent="go on")  # its cantrip was forgotten, too


@pytest.mark.rule("C-50")
async def test_a_child_is_forgotten_and_its_parent_stays(place):
    child = {"tool_calls": [{"gate": "done", "args": {"answer": "from the child"}}]}
    parent = [{"tool_calls": [{"gate": "call_agent", "args": {"intent": "help"}}]}, child, done("from the parent")]
    async with Runtime.open(place.url) as runtime:
        episode = await runtime.cast(cantrip(parent, "call_agent"), "go")
        (kid,) = runtime.loom.below(episode.entity_id)
        before = thread_jsonl(runtime.loom.turns(episode.entity_id))
        forgotten = await runtime.forget(kid)
        assert forgotten.entities == (kid,)
        assert [quote.entity_id for quote in forgotten.quotes] == [episode.entity_id]
        assert thread_jsonl(runtime.loom.turns(episode.entity_id)) == before
        assert verify_loom(runtime._tree.store).faults == []


@pytest.mark.rule("C-50")
async def test_a_fork_of_a_forgotten_entity_keeps_its_own_turns():
    async with Runtime.open() as runtime:
        original = await runtime.cast(secret(), "MARK-intent")
        fork = await runtime.fork(original.thread[-1].id, intent="another way", cantrip=secret())
        forgotten = await runtime.forget(original.entity_id)
        assert forgotten.forks == (fork.entity_id,)
        told = conversation_of(runtime.loom, fork.entity_id)
        assert [item.text for item in told.items if hasattr(item, "text")] == ["another way"]
        assert [turn.forgotten for turn in runtime.loom.thread(fork.thread[-1].id)] == [True, False]
        assert (await runtime.forget(original.entity_id, forks=True)).entities == (original.entity_id, fork.entity_id)


@pytest.mark.rule("C-50")
async def test_an_entity_whose_fork_is_at_work_is_not_forgotten():
    async with Runtime.open() as runtime:
        original = await runtime.cast(secret(), "MARK-intent")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: runtime.fork(original.thread[-1].id, intent="go on", cantrip=cantrip(forever)))
            while len(runtime.loom.entities()) < 2:
                await anyio.sleep(1.0)
            with pytest.raises(LoomError, match="a fork of an entity to be forgotten, is loaded"):
                await runtime.forget(original.entity_id)
            tasks.cancel_scope.cancel()
        assert (await runtime.forget(original.entity_id)).records == len(runtime.loom.records(original.entity_id)) - 1


@pytest.mark.rule("C-50")
async def test_a_key_of_a_forgotten_entity_is_not_cast_again():
    async with Runtime.open() as runtime:
        episode = await runtime.cast(secret(), "go", key="order-1")
        await runtime.forget(episode.entity_id)
        with pytest.raises(KeyUsed):
            await runtime.cast(secret(), "go", key="order-1")


@pytest.mark.rule("C-50")
async def test_forgetting_puts_no_content_into_logs():
    async with Runtime.open() as runtime:
        episode = await runtime.cast(secret(), "MARK-intent")
        with capture_logs() as logs:
            await runtime.forget(episode.entity_id)
    assert "MARK" not in repr(logs)


# ----------------------------------------------------------------------------------------------------------- retention


@pytest.mark.rule("C-52")
async def test_retention_forgets_in_the_background(place, monkeypatch):
    now = [1_800_000_000.0]
    monkeypatch.setattr(
        "cantrip_actors.runtime.loom.retention.POLL_INTERVAL", 5.0
    )  # an hour is thousands of polls for mail
    async with Runtime.open(place.url, retention={"one-shot": "90d", "long-lived": None}) as runtime:
        episode = await runtime.cast(secret(), "go")
        entity = await runtime.invoke(secret(), "go")
        await entity.stop()
        idle = await runtime.invoke(secret(), "go", name="notes")
        monkeypatch.setattr(runtime._tree.store, "clock", lambda: now[0] + 365 * DAY)
        while not runtime.loom.is_forgotten(episode.entity_id):
            await anyio.sleep(1.0)
        assert not runtime.loom.is_forgotten(entity.id)
        assert not runtime.loom.is_forgotten(idle.id)
        assert verify_loom(runtime._tree.store).faults == []


@pytest.mark.rule("C-52")
async def test_prune_lists_and_forgets_older_entities():
    async with Runtime.open() as runtime:
        episode = await runtime.cast(secret(), "go")
        await anyio.sleep(0.01)
        assert (await runtime.prune("90d")).entities == ()
        assert (await runtime.prune(0, dry_run=True)).records == 0
        with pytest.raises(ValueError, match="expected a duration"):
            await runtime.prune("soon")
        assert not runtime.loom.is_forgotten(episode.entity_id)


@pytest.mark.rule("C-52")
def test_a_wrong_retention_is_refused():
    with pytest.raises(ValueError, match=r"retention: .*expected"):
        Runtime.open(retention={"oneshot": "90d"})
    with pytest.raises(ValueError, match="expected a duration"):
        Runtime.open(retention={"one-shot": "soon"})


# -------------------------------------------------------------------------------------------------- backups and damage


@pytest.mark.rule("C-51")
async def test_a_runtime_is_backed_up_while_it_works_and_the_copy_is_continued(place, tmp_path):
    if place.kind == "memory":
        return
    notes = secret()
    async with Runtime.open(place.url) as runtime:
        entity = await runtime.invoke(notes, "go", name="notes")
        made = await runtime.backup(tmp_path / "backup.db")
        assert made.ok
        await entity.send("more")
    async with Runtime.open(f"sqlite:{tmp_path}/backup.db") as restored:
        again = restored.entity("notes", cantrip=notes)
        assert (await again.send("more")).terminated
        assert len(restored.loom.turns(again.id)) == 2


@pytest.mark.rule("C-53")
async def test_an_entity_with_a_broken_chain_is_refused_until_it_is_repaired(tmp_path):
    path = tmp_path / "loom.jsonl"
    async with Runtime.open(f"jsonl:{path}") as runtime:
        entity = await runtime.invoke(secret(), "first", name="notes")
        await entity.send("second")
    path.write_text(path.read_text().replace('"intent":"second"', '"intent":"SECOND"'))
    async with Runtime.open(f"jsonl:{path}") as runtime:
        with pytest.raises(DamagedLoom, match="cannot be continued"):
            await runtime.entity("notes", cantrip=secret()).send("third")
    async with Runtime.open(f"jsonl:{path}", repair=True) as runtime:
        assert (await runtime.entity("notes", cantrip=secret()).send("third")).terminated
    with open_store(path, read_only=True) as store:
        assert verify_loom(store).ok


@pytest.mark.rule("C-50")
def test_synchronous_code_forgets_with_a_handle_and_backs_up(tmp_path):
    with Runtime.blocking(f"sqlite:{tmp_path}/loom.db") as runtime:
        entity = runtime.invoke(secret(), "MARK-intent", name="notes")
        entity.stop()
        assert runtime.forget(entity, by="anna").entities == (entity.id,)
        assert runtime.backup(tmp_path / "backup.db").forgotten == 1
        assert runtime.prune("1d").entities == ()


@pytest.mark.rule("C-50")
async def test_entities_that_are_forgotten_at_once_share_the_rewriting_of_the_file(tmp_path, monkeypatch):
    async with Runtime.open(f"sqlite:{tmp_path}/loom.db") as runtime:
        store, rewritten = runtime._tree.store, []
        scrub = type(store).scrub

        def count_and_scrub(self) -> None:
            rewritten.append(1)
            scrub(self)

        monkeypatch.setattr(type(store), "scrub", count_and_scrub)
        ids = [(await runtime.cast(secret(), "MARK-intent")).entity_id for _ in range(8)]
        async with anyio.create_task_group() as tasks:
            for entity_id in ids:
                tasks.start_soon(runtime.forget, entity_id)
        assert 1 <= len(rewritten) <= 3
        assert files_with(tmp_path, b"MARK") == []
        await runtime.forget(ids[0])  # again: it finishes what a crash may have interrupted
        assert len(rewritten) <= 4
