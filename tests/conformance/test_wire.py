"""The referee of recordings: events that pass and events that do not."""

import json

import pytest

from conformance.wire import main
from tests.crystal.streams import STREAMS, Said, framed

SAID = Said("hm", "Let me look.", (("read", {"path": "a"}), ("done", {})))
FOLDERS = {"anthropic": "anthropic", "openai": "openai-responses", "openai-chat": "openai-chat", "google": "google"}


def record(folder, name, *values):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(json.dumps(value) for value in values))


def test_recordings_of_every_interface_pass(tmp_path, capsys):
    for family, folder in FOLDERS.items():
        record(tmp_path / folder, "one.chunks.txt", *STREAMS[family](SAID))
        record(tmp_path / folder, "two.1.chunks.txt", *STREAMS[family](SAID), *STREAMS[family](Said("", "again")))
    error = {"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}
    record(tmp_path / "google", "failed.json", error)
    message = {"content": "hi"}
    record(tmp_path / "openai-chat", "body.json", {"choices": [{"message": message, "finish_reason": "stop"}]})
    record(tmp_path / "unknown", "found-out.chunks.txt", *STREAMS["anthropic"](SAID))
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "11 passed, 0 failed"
    assert (
        "passed anthropic/two.1.chunks.txt: 12 characters and 2 calls and thinking; 10+7 tokens, then 5 characters"
        in ("\n".join(lines))
    )
    assert any(line.startswith("passed google/failed.json: an error (google: slow down") for line in lines)


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("anthropic/cut.chunks.txt", STREAMS["anthropic"](SAID)[:-2], "1 passed"),  # there is no end in it
        (
            "anthropic/lost.chunks.txt",
            [*STREAMS["anthropic"](SAID)[:1], *STREAMS["anthropic"](SAID)[2:]],
            "never began",
        ),
        ("google/odd.json", [{"candidates": [{"content": 7, "finishReason": "STOP"}], "text": "said"}], "reports none"),
        ("openai-chat/empty.json", [], "nothing in it"),
        (
            "google/text.json",
            ["said"],
            "expected a JSON body, a JSON event a line or server-sent events, found '\"said",
        ),
        ("odd/settings.json", [{"colour": "blue"}], "which provider sent it"),
        # what a failure says of itself has any shape, and is looked into all the same
        (
            "openai-responses/failed.chunks.txt",
            [{"type": "response.x.delta", "delta": "a"}, {"type": "error"}],
            "1 passed",
        ),
        ("openai-chat/odd.chunks.txt", [{"choices": "x"}, {"choices": [7]}, {"error": "no"}], "1 passed"),
    ],
)
def test_problems_of_a_recording_are_reported(tmp_path, capsys, name, values, problem):
    folder, file = name.split("/")
    record(tmp_path / folder, file, *values)
    main([str(tmp_path)])
    assert problem in capsys.readouterr().out


def test_an_event_that_is_not_json_is_reported(tmp_path, capsys):
    file = tmp_path / "anthropic" / "broken.chunks.txt"
    file.parent.mkdir()
    file.write_text('{"type":"message_start","message":{}}\n{"type": broken\n')
    assert main([str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "anthropic/broken.chunks.txt: an error" in told
    assert "no JSON object: event 2" in told


def test_a_recording_may_have_its_original_framing(tmp_path, capsys):
    file = tmp_path / "anthropic" / "framed.chunks.txt"
    file.parent.mkdir()
    file.write_bytes(framed("anthropic", SAID))
    assert main([str(tmp_path)]) == 0
    assert "12 characters and 2 calls" in capsys.readouterr().out


def test_the_command_requires_a_folder(tmp_path, capsys):
    assert main([]) == 2
    assert main([str(tmp_path / "gone")]) == 2
    assert main([str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "expected a folder" in told
    assert "no recordings there" in told
