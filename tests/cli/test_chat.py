"""`cantrip chat` at a terminal (Y-23)."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.pictures import png

pytestmark = [pytest.mark.rule("Y-23"), pytest.mark.real_time]

MODULE = '''
import anyio
from cantrip_actors import Call, Cantrip, Circle, ask_first, gate, scripted
from cantrip_actors.stream.wire import FinalMessage, ItemDelta, ItemDone, ItemStart
from cantrip_actors.wards import max_turns

@gate
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"

class Clerk:
    name = "demo:clerk"

    async def invoke(self, messages, emit):
        last = messages[-1]
        if last.role == "tool":
            return {"tool_calls": [{"gate": "done", "args": {"answer": last.content}}]}
        if last.images:
            return f"I see {len(last.images)}: {last.content}"
        if last.content == "pay":
            return {"tool_calls": [{"gate": "pay", "args": {"amount": 3}}]}
        if last.content == "fail":
            return {"tool_calls": [{"gate": "nothing", "args": {}}]}
        said = [message.content for message in messages if message.role == "user"]
        text = "I heard: " + ", ".join(said).replace("\\n", " / ") + "."
        emit(ItemStart("0", "message"))
        words = text.split(" ")
        for number, word in enumerate(words):
            emit(ItemDelta("0", f" {word}" if number else word))
            if "slowly" in said[-1]:
                await anyio.sleep(0.3 if number < 3 else 30 if "steered" not in text else 0.01)
        emit(ItemDone("0", FinalMessage(text, "agent")))
        return text

def interview(context):
    said = [message.content for message in context if message.role == "assistant" and message.content]
    if "Colour?" in said:
        return {"tool_calls": [{"gate": "done", "args": {"answer": f"You like {context[-1].content}."}}]}
    return "Colour?" if "Name?" in said else "Name?"

talk = Cantrip(scripted(interview), circle=Circle(["done"], [max_turns(9)], medium="person"), name="talk")
clerk = Cantrip(Clerk(), Call("Be brief."), Circle(["done", ask_first(pay)], [max_turns(5)]), name="clerk")
'''


@pytest.fixture
def clerk(place: Path) -> str:
    (place / "clerks.py").write_text(MODULE)
    return "clerks:clerk"


@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_a_conversation_is_held_and_continued_in_another_process(terminal: Any, clerk: str, width: int) -> None:
    typing = [("> ", "milk\n"), ("milk.", ""), ("> ", "/cost\n"), ("tokens in", ""), ("> ", "\x04")]
    first = terminal("chat", clerk, typing=typing, width=width)
    assert first.code == 0
    assert "I heard: milk." in first.text
    typing = [("I heard: milk.", ""), ("> ", "bread\n"), ("milk, bread.", ""), ("> ", "/quit\n")]
    again = terminal("chat", "clerk", typing=typing, width=width)
    assert again.code == 0
    assert "> milk\nI heard: milk.\n" in again.text
    for line in (first.text + again.text).splitlines():
        if line.startswith("·") or "/help" in line:
            assert len(line) < width


def test_a_message_may_have_several_lines(terminal: Any, clerk: str) -> None:
    typing = [
        ("> ", "one\\\n"),
        ("| ", "two\n"),
        ("one / two.", ""),
        ("> ", '"""\n'),
        ("| ", "three\n"),
        ("| ", "four\n"),
        ("| ", '"""\n'),
        ("three / four.", ""),
        ("> ", "five\nsix\n"),  # pasted
        ("five / six.", ""),
        ("> ", "\x04"),
    ]
    assert terminal("chat", clerk, typing=typing).code == 0


def test_a_call_that_waits_for_a_person_is_decided_in_the_chat(terminal: Any, clerk: str) -> None:
    typing = [("> ", "pay\n"), ("allow it?", "y\n"), ("paid 3", ""), ("> ", "fail\n"), ("> ", "\x04")]
    seen = terminal("chat", clerk, typing=typing)
    assert seen.code == 0
    assert re.search(r"· pay amount=3\n(.*\n)+.*allow it\?.*y\n(.*\n)*paid 3\n", seen.text)
    assert "· nothing failed: gate not available" in seen.text


def test_commands_fork_undo_and_show_the_history(terminal: Any, clerk: str) -> None:
    typing = [
        ("> ", "milk\n"),
        ("I heard: milk.", ""),
        ("> ", "bread\n"),
        ("milk, bread.", ""),
        ("> ", "/undo\n"),
        ("taken back: bread", ""),
        ("> ", "eggs\n"),
        ("I heard: milk, eggs.", ""),
        ("> ", "/fork jam\n"),
        ("I heard: milk, eggs, jam.", ""),
        ("> ", "/undo\n"),
        ("taken back: jam", ""),
        ("> ", "/undo\n"),
        ("nothing to take back", ""),
        ("> ", "tea\n"),
        ("I heard: milk, eggs, tea.", ""),
        ("> ", "/history\n"),
        ("> tea", ""),
        ("> ", "/nonsense\n"),
        ("/nonsense is no command", ""),
        ("> ", "/help\n"),
        ("/steer TEXT", ""),
        ("> ", "/steer be quick\n"),
        ("before your next message", ""),
        ("> ", "go\n"),
        ("I heard: milk, eggs, tea, be quick, go.", ""),
        ("> ", "\x04"),
    ]
    assert terminal("chat", clerk, typing=typing).code == 0


@pytest.mark.parametrize("how", ["/stop\n", "\x03"])
def test_an_answer_under_way_is_interrupted(terminal: Any, clerk: str, how: str) -> None:
    typing = [
        ("> ", "slowly\n"),
        ("I heard:", how),
        ("interrupted at the chat", ""),
        ("> ", "milk\n"),
        ("milk.", ""),
        ("> ", "\x03"),
    ]
    assert terminal("chat", clerk, typing=typing).code == 130


def test_a_message_typed_meanwhile_waits_and_a_steering_message_does_not(
    terminal: Any, clerk: str, cantrip: Any
) -> None:
    typing = [
        ("> ", "slowly\n"),
        ("I heard:", "/steer steered\n"),
        ("before its next step", "milk\n"),
        ("waits for its answer", "/stop\n"),
        ("interrupted", ""),
        ("> milk", ""),
        ("steered, milk.", ""),
        ("> ", "\x04"),
    ]
    assert terminal("chat", clerk, typing=typing).code == 0
    (tree,) = cantrip("loom", "tree", "clerk", "--json").json
    assert [(one["kind"], one["text"]) for one in tree["messages"]] == [
        ("intent", "slowly"),
        ("steer", "steered"),
        ("intent", "milk"),
    ]


def test_a_chat_needs_a_terminal_and_something_to_talk_to(cantrip: Any, terminal: Any, clerk: str) -> None:
    refused = cantrip("chat", clerk)
    assert (refused.code, "programs use `cantrip send`" in refused.err) == (2, True)
    seen = terminal("chat")
    assert (seen.code, "has no entity to talk to" in seen.text) == (2, True)
    seen = terminal("chat", "nobody")
    assert (seen.code, 'no entity is called "nobody"' in seen.text) == (2, True)
    assert "by its module and its variable: clerks:VARIABLE" in terminal("chat", "clerks.py").text
    assert "not both" in terminal("chat", clerk, "--crystal", "anthropic:x").text


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_chat_that_was_killed_continues_with_the_intent_that_it_had(terminal: Any, clerk: str, backend: str) -> None:
    def kill(process: Any, _terminal: int) -> None:
        process.kill()

    first = terminal("chat", clerk, "--backend", backend, typing=[("> ", "slowly\n")], when="I heard:", do=kill)
    assert first.code != 0
    typing = [("finishes its last intent first", "/stop\n"), ("interrupted at the chat", ""), ("> ", "milk\n")]
    typing += [("slowly, milk.", ""), ("> ", "\x04")]
    again = terminal("chat", "clerk", "--backend", backend, typing=typing)
    assert again.code == 0


@pytest.mark.rule("B-10")
def test_an_utterance_is_replied_to_in_the_chat_and_in_another_process(terminal: Any, clerk: str) -> None:
    typing = [("> ", "Go.\n"), ("Name?", ""), ("> ", "/undo\n"), ("not taken back", ""), ("> ", "\x04")]
    assert terminal("chat", "clerks:talk", typing=typing).code == 0
    typing = [
        ("Name?", ""),
        ("> ", "Anna\n"),
        ("Colour?", ""),
        ("> ", "blue\n"),
        ("You like blue.", ""),
        ("> ", "\x04"),
    ]
    again = terminal("chat", "talk", typing=typing)
    assert again.code == 0
    assert "answer:" not in again.text
    assert again.text.count("Colour?") == 1


@pytest.mark.rule("B-10")
def test_a_conversation_is_stopped_while_it_waits_for_a_reply(terminal: Any, clerk: str) -> None:
    typing = [
        ("> ", "Go.\n"),
        ("Name?", ""),
        ("> ", "/stop\n"),
        ("waits for your reply no longer", ""),
        ("> ", "Again.\n"),
        ("Colour?", ""),
        ("> ", "\x04"),
    ]
    assert terminal("chat", "clerks:talk", typing=typing).code == 0


def test_a_picture_goes_with_the_next_message_and_with_no_later_one(terminal: Any, clerk: str, place: Path) -> None:
    (place / "red dot.png").write_bytes(png(3, 2))
    typing = [
        ("> ", "/attach nowhere.png\n"),
        ("cannot read it", ""),
        ("> ", "/attach 'red dot.png'\n"),
        ("image/png", ""),
        ("> ", "look\n"),
        ("I see 1: look", ""),
        ("> ", "milk\n"),
        ("milk.", ""),
        ("> ", "/attach red dot.png\n"),
        ("image/png", ""),
        ("> ", "/attach\n"),
        ("no file is sent", ""),
        ("> ", "bread\n"),
        ("bread.", ""),
        ("> ", "/quit\n"),
    ]
    ended = terminal("chat", clerk, typing=typing)
    assert ended.code == 0, ended.text
    assert ended.text.count("I see") == 1


def test_a_file_is_a_part_of_a_reply(terminal: Any, clerk: str, place: Path) -> None:
    (place / "name.png").write_bytes(png(3, 2))
    typing = [
        ("> ", "hello\n"),
        ("Name?", ""),
        ("> ", "/attach name.png\n"),
        ("image/png", ""),
        ("> ", "Anna\n"),
        ("Colour?", ""),
        ("> ", "/history\n"),
        ("image/png", ""),
        ("> ", "/quit\n"),
    ]
    assert terminal("chat", "clerks:talk", typing=typing).code == 0
