"""The demo's script: a pure function of its messages."""

import json

import pytest

from cantrip_actors import Invocation, Message, ToolCall
from cantrip_demos.folder import FILE_READER, FOLDER_READER, choose, count, is_text, misspell, policy


def opened(system: str, intent: str) -> list[Message]:
    return [Message("system", system), Message("user", intent)]


def step(messages: list[Message], answer: object, *, is_error: bool = False) -> ToolCall:
    """One turn: the policy speaks, its call is answered with `answer`; returns the call."""
    (said,) = policy(Invocation(messages))["tool_calls"]
    call = ToolCall(f"call_{len(messages)}", said["gate"], said["args"])
    messages.append(Message("assistant", "", (call,)))
    text = answer if isinstance(answer, str) else json.dumps(answer)
    messages.append(Message("tool", text, (), call.id, call.gate, is_error))
    return call


def called(messages: list[Message]) -> tuple[str, dict]:
    (said,) = policy(Invocation(messages))["tool_calls"]
    return said["gate"], said["args"]


def reader(path: str = "a.md") -> list[Message]:
    return opened(FILE_READER, f"Read the file {json.dumps(path)} and report what it holds.")


class TestFileReader:
    def test_the_reader_counts_lines_words_and_characters(self):
        messages = reader()
        assert step(messages, "# Milk\n\nBuy milk, more milk.\n").args == {"path": "a.md"}
        gate, args = called(messages)
        answer = args["answer"]
        assert gate == "done"
        assert answer == {"lines": 3, "words": 6, "characters": 29, "file": "a.md", "whole": True}

    def test_the_reader_finds_the_file_with_the_nearest_name(self):
        messages = reader("docs/desing.md")
        step(messages, 'no such file or folder: "docs/desing.md"', is_error=True)
        assert step(messages, ["docs/", "docs/design.md", "docs/index.md"]).args == {"path": "docs"}
        assert step(messages, "text\n").args == {"path": "docs/design.md"}
        answer = called(messages)[1]["answer"]
        assert (answer["asked_for"], answer["file"]) == ("docs/desing.md", "docs/design.md")

    def test_the_reader_gives_up_after_a_second_missing_file(self):
        messages = reader()
        step(messages, 'no such file or folder: "a.md"', is_error=True)
        step(messages, ["b.md"])
        step(messages, 'no such file or folder: "b.md"', is_error=True)
        assert called(messages) == ("done", {"answer": {"file": "a.md", "problem": 'no such file or folder: "b.md"'}})

    def test_the_reader_gives_up_in_an_empty_folder(self):
        messages = reader()
        step(messages, 'no such file or folder: "a.md"', is_error=True)
        step(messages, [])
        assert called(messages)[1]["answer"]["problem"] == "it is not there"

    def test_the_reader_reports_a_file_that_it_cannot_read(self):
        messages = reader("a.bin")
        step(messages, '"a.bin" is a binary file of 7 bytes: expected a text file', is_error=True)
        gate, args = called(messages)
        assert gate == "done"
        assert "binary" in args["answer"]["problem"]

    @pytest.mark.parametrize("at", ["offset=2", "offset=5, column=3"])
    def test_the_reader_counts_the_beginning_of_a_long_file(self, at):
        messages = reader()
        step(messages, f"one\ntwo\n[the file has more: read it with {at}]")
        answer = called(messages)[1]["answer"]
        assert (answer["lines"], answer["words"], answer["whole"]) == (1, 2, False)

    def test_the_reader_accepts_any_file_name(self):
        for name in ('with "quotes".md', "a b.md", "mëmo ✓.md", "back\\slash"):
            assert called(reader(name)) == ("read", {"path": name})


class TestFolderReader:
    def folder(self, *names: str) -> list[Message]:
        messages = opened(FOLDER_READER, "Read")
        step(messages, list(names))
        return messages

    def test_the_root_gives_each_file_to_a_child_and_misspells_one(self):
        gate, args = called(self.folder("a.md", "b.md", "sub/", "sub/c.py"))
        assert gate == "call_agent_batch"
        asked = [json.loads(one["intent"].split("file ")[1].split(" and report")[0]) for one in args["intents"]]
        assert set(asked[:-1]) < {"a.md", "b.md", "sub/c.py"}
        assert asked[-1] not in {"a.md", "b.md", "sub/c.py"}

    def test_the_root_reads_all_pages_of_a_long_listing(self):
        messages = self.folder("a.md", "[2,000 entries in all: continue with offset=1000]")
        assert called(messages) == ("list", {"recursive": True, "offset": 1000})

    @pytest.mark.parametrize("names", [(), ("empty/",), ("picture.png", ".hidden", "node_modules/x.js")])
    def test_the_root_reports_a_folder_without_texts(self, names):
        gate, args = called(self.folder(*names))
        assert gate == "done"
        assert args["answer"]["files"] == []
        assert args["answer"]["report"]

    def test_the_root_adds_up_the_counts_of_its_children(self):
        messages = self.folder("a.md", "b.md", "c.md")
        one = {"file": "a.md", **count("milk milk\n"), "whole": True}
        two = {"file": "b.md", **count("milk bread\n# x\n"), "whole": False, "asked_for": "bb.md"}
        step(messages, [one, two, {"is_error": True, "error": "child crashed: of nothing"}])
        answer = called(messages)[1]["answer"]
        assert answer["totals"]["words"] == 6
        assert answer["steered"] == [{"asked_for": "bb.md", "read": "b.md"}]
        assert answer["problems"] == ["child crashed: of nothing"]
        assert "| a.md         |       1 |" in answer["report"]
        assert "| b.md (begin) |       2 |" in answer["report"]

    @pytest.mark.parametrize("gate", ["list", "call_agent_batch"])
    def test_the_root_gives_up_when_every_gate_fails(self, gate):
        messages = self.folder("a.md") if gate == "call_agent_batch" else opened(FOLDER_READER, "Read")
        step(messages, "the root folder does not exist", is_error=True)
        assert called(messages)[1]["answer"]["report"] == "No report: the root folder does not exist"


def test_files_are_chosen_from_every_folder_with_introductions_first():
    names = [
        "a.txt",
        "README.md",
        *(f"docs/{n}.md" for n in range(30)),
        "docs/index.md",
        "src/deep/er/x.py",
        "src/y.py",
    ]
    assert choose(names, 4) == ["README.md", "docs/index.md", "src/y.py", "a.txt"]


@pytest.mark.parametrize("names", [["a.md"], ["guide.md", "guid.md", "uide.md"], ["x"], ["ä ö.txt"]])
def test_a_misspelt_name_is_not_the_name_of_another_file(names):
    assert misspell(names[0], names) not in names


@pytest.mark.parametrize("name", ["a.md", "README", "src/x.py", "a/b.json", "x.yaml", "ä ö.txt"])
def test_texts_are_known_by_their_names(name):
    assert is_text(name)


@pytest.mark.parametrize("name", ["a.png", "x.tar.gz", "y.pdf", ".hidden", "node_modules/x.js", "a/__pycache__/b.py"])
def test_files_that_are_not_texts_are_known_by_their_names(name):
    assert not is_text(name)
