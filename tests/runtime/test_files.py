"""Files in intents and gate results, and generated images: stored once, in any store, after any crash."""

from pathlib import Path
from typing import Any

import pytest

from cantrip_actors import (
    EntityStartedEvent,
    File,
    Image,
    InvalidFile,
    LoomError,
    Message,
    Response,
    Runtime,
    TextEvent,
    ToolResultEvent,
    gate,
    open_loom,
    scripted,
)
from cantrip_actors.loom import compact_loom, copy_loom, open_store, thread_jsonl, verify_loom
from cantrip_actors.loom.export.atif import atif_json, trajectory
from cantrip_actors.loom.export.chat import chat_jsonl
from cantrip_actors.loom.export.conversation import build_messages, conversation_of
from cantrip_actors.loom.export.html import html_page
from cantrip_actors.observe import Upserts
from cantrip_actors.observe.upserts import ImageUpsert, MessageUpsert
from cantrip_actors.wards import max_depth, max_turns, require_done_tool
from tests.loom.test_store import KINDS, Place
from tests.pictures import MP3, PDF, png
from tests.runtime.spells import cantrip, done, say

REPORT = File(PDF, filename="report.pdf")
COPY = File(PDF, filename="copy.pdf")
NOTES = File(b"the word is MARK", filename="notes.md")
SOUND = File(MP3, filename="a.mp3")
PHOTO, CAT = Image(png()), Image(png(64, 48, 7))


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    here = Place(request.param, tmp_path)
    yield here
    here.clear()


@gate(idempotent=True)
async def look_up() -> dict[str, object]:
    """Find the report."""
    return {"n": 1, "found": REPORT, "photo": PHOTO}


class Picky:
    """A crystal that takes texts and PDFs, as one of a provider does."""

    name = "test:picky"

    def why_not(self, file: File) -> str | None:
        return None if file.media_type == "application/pdf" else "this model takes application/pdf"

    async def invoke(self, messages: Any) -> Any:
        return done([one.filename for message in messages for one in message.files])


@pytest.mark.rule("R-20", "INTENT-1")
class TestGivingAFile:
    async def test_a_file_can_be_given_in_every_position_of_an_image(self) -> None:
        crystal = scripted(lambda context: done([one.filename for m in context for one in m.files]))
        async with Runtime.open() as runtime:
            entity = await runtime.invoke(cantrip(crystal), ["Read it.", REPORT, PHOTO], context={"more": NOTES})
            assert (await entity.episode()).result == ["report.pdf", "notes.md"]
            await entity.steer(["and this", SOUND])
            episode = await entity.send(["once more", COPY])
            assert episode.result == ["report.pdf", "notes.md", "a.mp3", "copy.pdf"]
            fork = await runtime.fork(episode.thread[0].id, intent=["and now", COPY])
            assert fork.result == ["report.pdf", "notes.md", "copy.pdf"]
        first = crystal.invocations[0]
        assert first[-2] == Message("user", "Read it.", images=(REPORT, PHOTO, NOTES))
        assert first[-1].content == f'context:\n{{"more":"{NOTES.handle}"}}'

    async def test_a_gate_returns_a_file_as_its_handle_and_an_answer_passes_it_on(self) -> None:
        crystal = scripted(lambda context: say("look_up") if len(context) == 1 else done(context[-1].content))
        async with Runtime.open() as runtime:
            episode = await runtime.cast(cantrip(crystal, look_up), "look")
        assert episode.result == f'{{"n":1,"found":"{REPORT.handle}","photo":"{PHOTO.handle}"}}'
        assert (episode.files, episode.images) == ((REPORT,), (PHOTO,))
        turn = episode.thread[0]
        assert (turn.files, turn.images, turn.gate_calls[0].files) == ((REPORT,), (PHOTO,), (REPORT,))

    async def test_a_child_gets_the_files_that_its_intent_names(self) -> None:
        def policy(context: Any) -> object:
            if context[0].content.startswith("child"):
                return done([one.filename for one in context[0].files])
            return say("call_agent", intent=f"child {context[1].content}") if len(context) == 2 else done(1)

        crystal = scripted(policy)
        spell = cantrip(crystal, "call_agent", wards=(max_turns(9), max_depth(2)))
        async with Runtime.open() as runtime:
            await runtime.cast(spell, "go", context=[REPORT])
        child = next(one for one in crystal.invocations if one[0].content.startswith("child"))
        assert child[0].files == (REPORT,)


@pytest.mark.rule("R-20")
class TestRefusals:
    @pytest.mark.parametrize("given", [["Listen.", SOUND], SOUND])
    async def test_a_file_that_the_crystal_cannot_take_is_refused_before_an_entity_is_made(self, given: Any) -> None:
        wanted = r"file a.mp3, audio/mpeg, 14 B: test:picky cannot be given it: this model takes application/pdf"
        async with Runtime.open() as runtime:
            spell = cantrip(Picky())
            for begin in (runtime.cast, runtime.start, runtime.invoke):
                with pytest.raises(InvalidFile, match=wanted):
                    await begin(spell, given)
            with pytest.raises(InvalidFile, match=wanted):
                await runtime.cast(spell, "go", context={"x": SOUND})
            assert runtime.loom.entities() == []
            entity = await runtime.invoke(spell, ["Read it.", REPORT], name="reader")
            assert (await entity.episode()).result == ["report.pdf"]
            for send in (entity.send, entity.post, entity.steer):
                with pytest.raises(InvalidFile, match=wanted):
                    await send(given)
            with pytest.raises(InvalidFile, match=wanted):
                await runtime.fork(runtime.loom.turns(entity.id)[0].id, intent=given)
            assert (await entity.send("and images?", context=[PHOTO])).terminated

    async def test_a_file_that_the_crystal_cannot_take_is_refused_when_the_entity_is_not_loaded(
        self, tmp_path: Path
    ) -> None:
        url = str(tmp_path / "loom.db")
        async with Runtime.open(url) as runtime:
            await (await runtime.invoke(cantrip(Picky()), "go", name="reader")).episode()
        async with Runtime.open(url, cantrips=[cantrip(Picky())]) as runtime:
            entity = runtime.entity("reader")
            assert entity is not None
            with pytest.raises(InvalidFile):
                await entity.send(["Listen.", SOUND])
        async with Runtime.open(url) as runtime:  # it does not know the entity's crystal
            entity = runtime.entity("reader")
            assert entity is not None
            assert (await entity.post(["Listen.", SOUND])).state == "waiting"


@pytest.mark.rule("R-20", "LOOM-1")
class TestStoring:
    async def test_each_content_is_stored_once_and_can_be_read_again(self, place: Place) -> None:
        crystal = scripted([say("look_up"), done("seen")] * 2)
        spell = cantrip(crystal, look_up)
        async with Runtime.open(place.url) as runtime:
            first = await runtime.cast(spell, ["Read.", REPORT, COPY, NOTES])
            second = await runtime.cast(spell, ["Again.", REPORT])
            store = runtime._tree.store
            assert sorted(store.blobs()) == sorted({one.digest for one in (REPORT, NOTES, PHOTO)})
            assert verify_loom(store).faults == []
            (intent,) = [one for one in runtime.loom.records(first.entity_id) if getattr(one, "intent", None)]
            assert [(one.filename, one.data) for one in intent.images] == [
                ("report.pdf", PDF),
                ("copy.pdf", PDF),
                ("notes.md", NOTES.data),
            ]
            assert [one.data for one in runtime.loom.turns(second.entity_id)[0].files] == [PDF]

    async def test_a_forgotten_file_is_deleted_when_no_record_refers_to_it(self, place: Place) -> None:
        crystal = scripted([done(1)] * 2)
        async with Runtime.open(place.url) as runtime:
            first = await runtime.cast(cantrip(crystal), ["Read.", REPORT, NOTES])
            await runtime.cast(cantrip(crystal), ["Read.", COPY])
            await runtime.forget(first.entity_id)
            store = runtime._tree.store
            assert list(store.blobs()) == [REPORT.digest]
            assert verify_loom(store).faults == []

    @pytest.mark.parametrize("kind", KINDS[1:])
    async def test_copies_backups_and_compacted_looms_have_the_files(self, kind: str, tmp_path: Path) -> None:
        place = Place(kind, tmp_path)
        async with Runtime.open(place.url) as runtime:
            episode = await runtime.cast(cantrip([done(1)]), ["Read.", REPORT])
            await runtime.backup(tmp_path / "backup.db")
        with open_store(place.url) as source, open_store(f"jsonl:{tmp_path / 'copy.jsonl'}") as target:
            compact_loom(source)
            copy_loom(source, target)
        for url in (place.url, str(tmp_path / "backup.db"), f"jsonl:{tmp_path / 'copy.jsonl'}"):
            with open_loom(url) as loom:
                (file,) = loom.records(episode.entity_id)[1].images
                assert (file.filename, file.data) == ("report.pdf", PDF)
        place.clear()

    async def test_a_lost_file_is_a_fault_of_the_loom(self, tmp_path: Path) -> None:
        url = f"jsonl:{tmp_path / 'loom.jsonl'}"
        async with Runtime.open(url) as runtime:
            await runtime.cast(cantrip([done(1)]), ["Read.", REPORT])
        lines = (tmp_path / "loom.jsonl").read_bytes().splitlines(keepends=True)
        (tmp_path / "loom.jsonl").write_bytes(b"".join(line for line in lines if not line.startswith(b'{"blob":')))
        with open_store(url) as store:
            (fault,) = verify_loom(store).faults
        assert (fault.blob, "its file" in fault.what, "is missing" in fault.what) == (REPORT.digest, True, True)

    async def test_the_next_process_reads_the_files(self, tmp_path: Path) -> None:
        url = str(tmp_path / "loom.db")
        spell = cantrip(lambda context: done([one.data.decode() for m in context for one in m.files if one.is_text]))
        async with Runtime.open(url) as runtime:
            await (await runtime.invoke(spell, ["Read.", NOTES], name="reader")).episode()
        async with Runtime.open(url, cantrips=[spell]) as runtime:
            again = runtime.entity("reader")
            assert again is not None
            assert (await again.send("again")).result == ["the word is MARK"]

    async def test_a_loom_redacted_at_rest_keeps_no_file_contents(self, tmp_path: Path) -> None:
        secret = File(b"x", filename="MARK.txt")
        async with Runtime.open(str(tmp_path / "loom.db"), redact="at_rest", secrets=["MARK"]) as runtime:
            await runtime.cast(cantrip([done(1)]), ["Read.", NOTES, secret])
        assert b"MARK" not in (tmp_path / "loom.db").read_bytes()

    async def test_exports_pages_and_events_describe_a_file_without_its_contents(self) -> None:
        crystal = scripted([say("look_up"), done("seen")])
        async with Runtime.open() as runtime:
            events = runtime.events()
            episode = await runtime.cast(cantrip(crystal, look_up), ["Read.", NOTES])
            events.close()
            told = [event async for event in events]
            loom, entity = runtime.loom, episode.entity_id
            lines = thread_jsonl(loom.turns(entity)).decode()
            chat = b"".join(chat_jsonl([conversation_of(loom, entity)])).decode()
            trajectory_ = atif_json(trajectory(loom, entity)).decode()
            page = b"".join(html_page(loom)).decode()
        started = next(event for event in told if isinstance(event, EntityStartedEvent))
        assert started.intent == "Read. [file notes.md, text/markdown, 16 B]"
        assert next(one for one in told if isinstance(one, ToolResultEvent)).images == (REPORT.label, PHOTO.label)
        for text in (chat, trajectory_, page):
            assert "[file notes.md, text/markdown, 16 B]" in text
            assert REPORT.label[1:-1] in text
        assert '"filename":"report.pdf","media_type":"application/pdf"' in lines
        for text in (lines, chat, trajectory_, page, repr(told)):
            assert "MARK" not in text
            assert REPORT.base64() not in text


async def draw(context: Any) -> Response:
    """A crystal that answers with an image alone, and then describes the images it sees."""
    if len(context) == 1:
        return Response(images=(CAT,))
    return Response("Two.", images=tuple(one for message in context for one in message.images))


@pytest.mark.rule("R-09", "LOOM-1")
class TestGeneratedImages:
    async def test_a_generated_image_alone_is_answered_as_its_handle(self, place: Place) -> None:
        async with Runtime.open(place.url) as runtime:
            episode = await runtime.cast(cantrip(scripted([Response(images=(CAT,))])), "Draw a cat.")
            assert (episode.result, episode.images) == (CAT.handle, (CAT,))
            (turn,) = runtime.loom.turns(episode.entity_id)
            assert (turn.content, turn.made, turn.images) == (CAT.handle, (CAT,), (CAT,))
            assert turn.made[0].data == CAT.data
            assert list(runtime._tree.store.blobs()) == [CAT.digest]
            assert verify_loom(runtime._tree.store).faults == []

    async def test_text_with_a_generated_image_is_shown_in_the_next_query(self, tmp_path: Path) -> None:
        url = str(tmp_path / "loom.db")
        spell = cantrip(draw)
        async with Runtime.open(url) as runtime:
            entity = await runtime.invoke(spell, "Draw.", name="painter")
            assert (await entity.episode()).images == (CAT,)
        async with Runtime.open(url, cantrips=[spell]) as runtime:
            again = runtime.entity("painter")
            assert again is not None
            episode = await again.send("Again.")
            assert (episode.result, episode.images) == (f"Two.\n{CAT.handle}", (CAT,))
            assert episode.images[0].data == CAT.data
            assert len(list(runtime._tree.store.blobs())) == 1

    async def test_an_entity_passes_on_a_generated_image(self) -> None:
        def policy(context: Any) -> object:
            if context[0].content.startswith("child"):
                return done(len(context[0].images))
            if len(context) == 1:
                return Response("Here.", images=(CAT,), tool_calls=())
            if len(context) == 3:
                return say("call_agent", intent=f"child: what is on {CAT.handle}?")
            return done(context[-1].content)

        spell = cantrip(policy, "call_agent", wards=(max_turns(9), max_depth(2), require_done_tool()))
        async with Runtime.open() as runtime:
            assert (await runtime.cast(spell, "Draw.")).result == "1"

    async def test_streams_and_events_have_a_generated_image_without_its_bytes(self) -> None:
        async with Runtime.open() as runtime:
            upserts = Upserts()
            runtime.watch(upserts.publish)
            outputs, events = upserts.subscribe(), runtime.events()
            await runtime.cast(cantrip(scripted([Response("Here.", images=(CAT,))])), "Draw.")
            events.close()
            upserts.close()
            told = [event async for event in events]
            seen = [output async for output in outputs]
        (image,) = [one for one in seen if isinstance(one, ImageUpsert)]
        assert (image.status, image.label, image.digest, image.width) == ("complete", CAT.label, CAT.digest, 64)
        assert [one.content for one in seen if isinstance(one, MessageUpsert)][-1] == f"Here.\n{CAT.handle}"
        assert next(one.text for one in told if isinstance(one, TextEvent)) == f"Here.\n{CAT.handle}"
        assert CAT.base64() not in repr(seen) + repr(told)

    async def test_exports_and_the_page_show_a_generated_image(self) -> None:
        async with Runtime.open() as runtime:
            episode = await runtime.cast(cantrip(scripted([Response("Here.", images=(CAT,))])), "Draw.")
            loom, entity = runtime.loom, episode.entity_id
            address = f"data:image/png;base64,{CAT.base64()}"
            assert f'"images":[{{"media_type":"image/png","digest":"{CAT.digest}"' in (
                thread_jsonl(loom.turns(entity)).decode()
            )
            for text in (
                b"".join(chat_jsonl([conversation_of(loom, entity)])),
                atif_json(trajectory(loom, entity)),
                b"".join(html_page(loom)),
            ):
                assert text.decode().count(address) == 1
            assert build_messages(conversation_of(loom, entity))[1].images == (CAT,)

    async def test_a_loom_redacted_at_rest_keeps_no_bytes_of_a_generated_image(self, tmp_path: Path) -> None:
        async with Runtime.open(str(tmp_path / "loom.db"), redact="at_rest") as runtime:
            episode = await runtime.cast(cantrip(scripted([Response(images=(CAT,))])), "Draw.")
            (turn,) = runtime.loom.turns(episode.entity_id)
            with pytest.raises(LoomError, match="are not to be had"):
                _ = turn.made[0].data
        assert CAT.data not in (tmp_path / "loom.db").read_bytes()
