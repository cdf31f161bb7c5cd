"""Images in intents and gate results: shown in the right queries, and again after any crash."""

import contextlib
from pathlib import Path

import pytest

from cantrip_actors import (
    Cantrip,
    Circle,
    EntityStartedEvent,
    Folding,
    Image,
    InvalidIntent,
    Invocation,
    LoomError,
    Message,
    Runtime,
    ToolResultEvent,
    gate,
    open_loom,
    scripted,
)
from cantrip_actors.loom import verify_loom
from cantrip_actors.loom.export.conversation import build_messages, conversation_of
from cantrip_actors.observe import Upserts
from cantrip_actors.runtime.entity.recorder import StepRecorder
from cantrip_actors.wards import max_depth, max_turns
from tests.pictures import jpeg, png
from tests.runtime.spells import cantrip, done, say
from tests.runtime.test_recovery import crash_at, die_after

A, B, C = (Image(png(640, 480, shade)) for shade in (1, 2, 3))
NAMES = {A.name: "A", B.name: "B", C.name: "C"}


@gate
async def shoot(which: str = "A") -> Image:
    """Take a picture."""
    return {"A": A, "B": B, "C": C}[which]


@gate
def survey() -> dict[str, object]:
    """Look at everything."""
    return {"n": 2, "rooms": [{"photo": A}, {"photo": B}, {"photo": A}]}


def seen(context: Invocation) -> list[tuple[str, list[str]]]:
    """The messages that a crystal sees: their roles, and the names of their images, whose bytes must be available."""
    assert all(image.url is not None or image.find_data() for message in context for image in message.images)
    return [(message.role, [NAMES[image.name] for image in message.images]) for message in context]


@pytest.mark.rule("INTENT-1", "INTENT-2", "CRYSTAL-6")
class TestGivingAnImage:
    async def test_an_intent_with_an_image_keeps_its_text(self) -> None:
        crystal = scripted([{"content": "a cat"}])
        async with Runtime.open() as runtime:
            episode = await runtime.cast(cantrip(crystal), ["What is on it?", A])
        (asked,) = crystal.invocations
        assert asked[-1] == Message("user", "What is on it?", images=(A,))
        assert asked[-1].content == "What is on it?"
        assert asked[-1]["images"] == (A,)
        assert episode.result == "a cat"

    async def test_an_image_alone_is_an_intent(self) -> None:
        crystal = scripted([{"content": "a cat"}])
        async with Runtime.open() as runtime:
            await runtime.cast(cantrip(crystal), A)
        assert crystal.invocations[0][-1] == Message("user", A.label, images=(A,))

    async def test_an_image_is_given_with_data(self) -> None:
        crystal = scripted([{"content": "alike"}])
        async with Runtime.open() as runtime:
            await runtime.cast(cantrip(crystal), ["Compare.", C], context={"photos": [A, B]})
        said = crystal.invocations[0]
        assert said[-1].content == f'context:\n{{"photos":["{A.handle}","{B.handle}"]}}'
        assert [image.name for message in said for image in message.images] == [C.name, A.name, B.name]

    async def test_an_image_is_sent_to_a_long_lived_entity(self) -> None:
        crystal = scripted(lambda context: done(len([1 for one in context for _ in one.images])))
        async with Runtime.open() as runtime:
            entity = await runtime.invoke(cantrip(crystal), ["one", A])
            assert (await entity.episode()).result == 1
            await entity.steer(["look", B])
            assert (await entity.send(["more", C, "and this", A])).result == 4
            with pytest.raises(InvalidIntent, match="intent is required"):
                await entity.send([])
            with pytest.raises(InvalidIntent, match="steer: expected a text"):
                await entity.steer([])
        shown = [one for one in seen(crystal.invocations[-1]) if one[0] == "user"]
        assert shown == [("user", ["A"]), ("user", ["B"]), ("user", ["C", "A"])]

    async def test_an_image_is_given_to_a_fork(self) -> None:
        crystal = scripted(lambda context: done([NAMES[i.name] for one in context for i in one.images]))
        async with Runtime.open() as runtime:
            episode = await runtime.cast(cantrip(crystal), ["one", A])
            fork = await runtime.fork(episode.thread[0].id, intent=["and now", B])
        assert fork.result == ["A", "B"]

    def test_an_image_is_given_by_blocking_code(self) -> None:
        with Runtime.blocking() as runtime:
            crystal = scripted(lambda context: done(len(context[-1].images)))
            assert runtime.cast(cantrip(crystal), ["one", A, B]).result == 2

    @pytest.mark.parametrize("intent", [[], [" "], [A, 5], b"png"])
    async def test_an_intent_without_text_or_image_is_refused_before_an_entity_is_made(self, intent: object) -> None:
        async with Runtime.open() as runtime:
            with pytest.raises(InvalidIntent):
                await runtime.cast(cantrip([done(1)]), intent)  # type: ignore[arg-type]
            assert runtime.loom.entities() == []


@pytest.mark.rule("CIRCLE-4", "D-005")
class TestFromGates:
    async def test_an_image_of_a_gate_reaches_the_crystal_as_its_handle_and_as_an_image(self) -> None:
        crystal = scripted([say("shoot"), done("seen")])
        async with Runtime.open() as runtime:
            episode = await runtime.cast(cantrip(crystal, shoot), "look")
        told = crystal.invocations[1][-1]
        assert (told.role, told.content, told.images) == ("tool", A.handle, (A,))
        (observation,) = episode.thread[0].gate_calls
        assert (observation.result, observation.images) == (A.handle, (A,))
        assert episode.thread[0].images == (A,)

    async def test_images_inside_a_result_of_a_blocking_gate_are_found(self) -> None:
        crystal = scripted([say("survey"), done("seen")])
        async with Runtime.open() as runtime:
            await runtime.cast(cantrip(crystal, survey), "look")
        told = crystal.invocations[1][-1]
        rooms = ",".join(f'{{"photo":"{one.handle}"}}' for one in (A, B, A))
        assert told.content == f'{{"n":2,"rooms":[{rooms}]}}'
        assert told.images == (A, B)

    async def test_an_ephemeral_image_is_dropped_once_it_was_seen(self) -> None:
        crystal = scripted([say("shoot"), say("echo", text="x"), say("echo", text="y"), done("seen")])
        async with Runtime.open() as runtime:
            spell = cantrip(crystal, shoot.with_(ephemeral=True, visible_for=1))
            episode = await runtime.cast(spell, "look")
        shown = [[image for one in asked for image in one.images] for asked in crystal.invocations]
        assert shown == [[], [A], [], []]
        assert episode.thread[0].gate_calls[0].images == (A,)

    async def test_an_answer_that_names_an_image_returns_it(self) -> None:
        crystal = scripted(lambda context: say("shoot") if len(context) == 1 else done(f"here: {context[-1].content}"))
        async with Runtime.open() as runtime:
            episode = await runtime.cast(cantrip(crystal, shoot), "look")
        assert episode.images == (A,)
        assert episode.result == f"here: {A.handle}"

    async def test_a_picture_is_read_as_an_image_when_asked_for(self, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(png(640, 480, 1))
        crystal = scripted([say("read", path="a.png"), done(1), say("read", path="a.png"), done(1)])
        from cantrip_actors.gates import read

        async with Runtime.open() as runtime:
            await runtime.cast(cantrip(crystal, read.with_(root=tmp_path)), "look")
            assert "is a binary file of" in (crystal.invocations[1][-1].content or "")
            await runtime.cast(cantrip(crystal, read.with_(root=tmp_path, images=True)), "look")
            assert crystal.invocations[3][-1].images == (A,)


@pytest.mark.rule("COMP-2", "COMP-8")
class TestChildren:
    async def test_a_child_sees_the_images_that_its_parent_names_and_returns_those_that_it_names(self) -> None:
        def policy(context: Invocation) -> object:
            if context[0].content is not None and context[0].content.startswith("child"):
                child = seen(context)
                return say("shoot", which="C") if len(context) <= 2 else done([child, context[-1].content])
            if len(context) == 1:
                return say("shoot")
            if len(context) == 3:
                return say("call_agent", intent=f"child: what is on {context[-1].content}?", context={"b": B.handle})
            return done([[NAMES[i.name] for i in context[-1].images], context[-1].content])

        crystal = scripted(policy)
        spell = cantrip(crystal, shoot, "call_agent", wards=(max_turns(9), max_depth(2)))
        async with Runtime.open() as runtime:
            episode = await runtime.cast(spell, ["look", B])
        ((pictures, _),) = [episode.result]
        assert pictures == ["C"]
        child = [one for one in crystal.invocations if (one[0].content or "").startswith("child")]
        assert seen(child[0]) == [("user", ["A", "B"]), ("user", [])]

    async def test_a_batch_of_children_sees_the_images_it_is_given(self) -> None:
        def policy(context: Invocation) -> object:
            if (context[0].content or "").startswith("child"):
                return done([NAMES[i.name] for i in context[0].images])
            if len(context) == 1:
                return say("survey")
            intents = [{"intent": f"child {one.handle}"} for one in (B, A)]
            return say("call_agent_batch", intents=intents) if len(context) == 3 else done(context[-1].content)

        spell = cantrip(policy, survey, "call_agent_batch", wards=(max_turns(9), max_depth(2)))
        async with Runtime.open() as runtime:
            episode = await runtime.cast(spell, "look")
        assert episode.result == '[["B"],["A"]]'


CODE = {
    "python": ("a = shoot()\nb = shoot('B')\nprint('took', a)", "b", "done([a, b])"),
    "javascript": ("var a = shoot(); var b = shoot({which: 'B'}); console.log('took', a)", "b", "done([a, b])"),
}


@pytest.mark.real_time
@pytest.mark.parametrize("medium", CODE)
class TestPrograms:
    async def test_a_program_has_a_handle_and_shows_a_picture_by_printing_or_returning_it(self, medium: str) -> None:
        crystal = scripted([{"code": code} for code in CODE[medium]])
        circle = Circle(["done", shoot], [max_turns(5)], medium=medium)
        async with Runtime.open() as runtime:
            episode = await runtime.cast(Cantrip(crystal, circle=circle), ["look", C])
        second, third = crystal.invocations[1:]
        assert [one.images for one in second if one.role == "user"] == [(C,), (A,)]
        assert f"took {A.handle}" in (second[-1].content or "")
        assert third[-1].images == (B,)
        assert len(third[-1].content or "") < 100
        assert episode.result == [A.handle, B.handle]
        assert episode.images == (A, B)

    async def test_the_next_process_resumes_to_the_same_result(self, medium: str, tmp_path: Path) -> None:
        url = f"jsonl:{tmp_path / 'loom.jsonl'}"

        def spell() -> Cantrip:
            crystal = scripted(lambda context: {"code": CODE[medium][sum(one.role == "assistant" for one in context)]})
            return Cantrip(crystal, circle=Circle(["done", shoot], [max_turns(5)], medium=medium))

        async with Runtime.open(url) as runtime:
            whole = await runtime.cast(spell(), ["look", C])
            told = build_messages(conversation_of(runtime.loom, whole.entity_id))
        with open_loom(url) as loom:
            assert build_messages(conversation_of(loom, whole.entity_id)) == told
            assert [[i.data for i in turn.images] for turn in loom.turns(whole.entity_id)]


@pytest.mark.real_time
@pytest.mark.parametrize("medium", CODE)
@pytest.mark.parametrize("at", range(1, 9))
async def test_a_program_that_crashes_anywhere_shows_the_same_images(
    monkeypatch: pytest.MonkeyPatch, medium: str, at: int
) -> None:
    crystal = scripted(lambda context: {"code": CODE[medium][sum(one.role == "assistant" for one in context)]})
    circle = Circle(["done", shoot.with_(idempotent=True)], [max_turns(5)], medium=medium)
    crash_at(monkeypatch, StepRecorder, "record_step", after=True, at=at)
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(crystal, circle=circle), ["look", C])
    assert [one.images for one in crystal.invocations[-1] if one.role == "user"] == [(C,), (A,), (B,)]
    assert episode.images == (A, B)


LOOMS = ("loom.jsonl", "loom.db")


def walker(context: Invocation) -> object:
    """Take three pictures, one after the other, and then report the visible ones."""
    done_so_far = sum(one.role == "assistant" for one in context)
    if done_so_far < 3:
        return say("shoot", which="ABC"[done_so_far])
    return done([NAMES[image.name] for one in context for image in one.images if image.find_data()])


@pytest.mark.rule("LOOM-1", "LOOM-4", "LOOM-10")
class TestRecovery:
    @pytest.mark.parametrize("at", range(1, 8))
    async def test_an_entity_that_crashes_sees_its_images_again(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        crash_at(monkeypatch, StepRecorder, "record_step", after=True, at=at)
        shot = shoot.with_(idempotent=True)
        async with Runtime.open() as runtime:
            episode = await runtime.cast(cantrip(walker, shot), ["look", A])
        assert episode.result == ["A", "A", "B", "C"]

    @pytest.mark.parametrize("name", LOOMS)
    @pytest.mark.parametrize("at", range(1, 8))
    async def test_the_next_process_sees_images_byte_for_byte(self, tmp_path: Path, at: int, name: str) -> None:
        url = str(tmp_path / name)
        spell = cantrip(walker, shoot.with_(idempotent=True))
        async with Runtime.open(url) as runtime:
            die_after(runtime, at)
            with contextlib.suppress(LoomError):
                await runtime.cast(spell, ["look", A])
        async with Runtime.open(url, cantrips=[spell]) as runtime:
            for header in runtime.interrupted():
                episode = await (await runtime.resume(header.entity_id)).episode()
                assert episode.result == ["A", "A", "B", "C"]
                assert [one.data for turn in episode.thread for one in turn.images] == [A.data, B.data, C.data]
            assert verify_loom(runtime._tree.store).ok

    @pytest.mark.parametrize("name", LOOMS)
    async def test_a_fork_in_another_process_has_the_images_of_its_path(self, tmp_path: Path, name: str) -> None:
        url = str(tmp_path / name)
        spell = cantrip(walker, shoot)
        async with Runtime.open(url) as runtime:
            episode = await runtime.cast(spell, ["look", A])
        async with Runtime.open(url, cantrips=[spell]) as runtime:
            fork = await runtime.fork(episode.thread[1].id, intent="and again")
            assert fork.result == ["A", "A", "B", "C"]
            told = build_messages(conversation_of(runtime.loom, fork.entity_id))
        assert [NAMES[i.name] for one in told for i in one.images] == ["A", "A", "B", "C"]

    async def test_an_unloaded_entity_is_loaded_with_its_images(self, tmp_path: Path) -> None:
        url = str(tmp_path / "loom.db")
        spell = cantrip(lambda context: done([NAMES[i.name] for one in context for i in one.images if i.find_data()]))
        async with Runtime.open(url) as runtime:
            entity = await runtime.invoke(spell, ["one", A], name="eyes")
            await entity.episode()
            await entity.steer(["mind this", B])
            await entity.send("go on")
        async with Runtime.open(url, cantrips=[spell]) as runtime:
            again = runtime.entity("eyes")
            assert again is not None
            assert (await again.send(["and", C])).result == ["A", "B", "C"]

    async def test_a_loom_redacted_at_rest_keeps_no_image_bytes(self, tmp_path: Path) -> None:
        url = str(tmp_path / "loom.db")
        spell = cantrip(lambda context: done([bool(i.find_data()) for one in context for i in one.images]))
        async with Runtime.open(url, redact="at_rest") as runtime:
            entity = await runtime.invoke(spell, ["one", A], name="eyes")
            assert (await entity.episode()).result == [True]
        async with Runtime.open(url, cantrips=[spell], redact="at_rest") as runtime:
            again = runtime.entity("eyes")
            assert again is not None
            await again.send(["and", B])  # it was not loaded: mail that waits is kept as records are
            assert (await again.send(["and", C])).result == [False, False, True]
        assert A.data not in (tmp_path / "loom.db").read_bytes()


class TestEventsAndStreams:
    async def test_events_and_streams_describe_images_without_their_bytes(self) -> None:
        async with Runtime.open() as runtime:
            upserts = Upserts()
            runtime.watch(upserts.publish)
            outputs, events = upserts.subscribe(), runtime.events()
            await runtime.cast(cantrip([say("shoot", which="B"), done("seen")], shoot), ["look", A])
            events.close()
            upserts.close()
            told = [event async for event in events]
            outputs_told = repr([output async for output in outputs])
        started = next(event for event in told if isinstance(event, EntityStartedEvent))
        assert (started.intent, started.images) == (f"look {A.label}", (A.label,))
        result = next(event for event in told if isinstance(event, ToolResultEvent))
        assert (result.result, result.images) == (B.handle, (B.label,))
        assert B.handle in outputs_told
        for image in (A, B):
            assert (image.base64() or "") not in repr(told) + outputs_told
            assert str(image.data)[2:40] not in repr(told) + outputs_told

    async def test_a_summary_of_folded_turns_gets_the_labels_of_their_images(self) -> None:
        crystal = scripted([{"content": "so it was"}])
        spell = Cantrip(
            scripted([*(say("shoot", which=one) for one in "ABCA"), done("seen")]),
            circle=Circle(["done", shoot], [max_turns(9)]),
            folding=Folding(trigger_after_turns=3, keep_turns=1, summary=crystal),
        )
        async with Runtime.open() as runtime:
            await runtime.cast(spell, "look")
        (asked,) = crystal.invocations
        assert A.handle in (asked[-1].content or "")
        assert asked[-1].images == ()


def test_the_media_type_of_a_picture_does_not_depend_on_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(jpeg())
    assert Image.read(tmp_path / "a.png").media_type == "image/jpeg"
