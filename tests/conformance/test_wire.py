"""The recordings' referee: what it passes and what it does not."""

import json

import pytest

from conformance.wire import main
from tests.crystal.streams import STREAMS, Said

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
    ],
)
def test_what_is_wrong_is_told(tmp_path, capsys, name, values, problem):
    folder, file = name.split("/")
    record(tmp_path / folder, file, *values)
    main([str(tmp_path)])
    assert problem in capsys.readouterr().out


def test_it_wants_a_folder(tmp_path, capsys):
    assert main([]) == 2
    assert main([str(tmp_path / "gone")]) == 2
    assert main([str(tmp_path)]) == 1
    assert "expected a folder" in capsys.readouterr().err
