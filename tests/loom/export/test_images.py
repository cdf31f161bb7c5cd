"""Images in exports of a loom: whole, at their position, and in a browser."""

import base64
import json

import pytest
from atif import Trajectory

from cantrip_actors.loom import thread_jsonl
from cantrip_actors.loom.export.atif import atif_json, segments, trajectory
from cantrip_actors.loom.export.chat import chat_jsonl
from cantrip_actors.loom.export.conversation import conversation_of
from cantrip_actors.loom.export.html import html_page
from cantrip_actors.loom.export.pairs import pairs_jsonl
from cantrip_actors.loom.reading.redaction import redacted_loom
from cantrip_actors.records.records import (
    Committed,
    GateFinished,
    IntentGiven,
    Observation,
    Rewarded,
    Steered,
    Utterance,
)
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import NO_USAGE, ToolCall
from tests.loom.export.test_html import Reader, in_chromium
from tests.loom.histories import AT, header, run
from tests.loom.test_view import loom_of
from tests.pictures import png

A, B = Image(png(64, 48, 30)), Image(png(32, 16, 200))
AT_HOME = Image.at("https://example.org/a.png")


def address(image):
    return f"data:image/png;base64,{base64.b64encode(image.data).decode()}"


def loom():
    return loom_of(
        [
            header("e"),
            IntentGiven("e", "Compare this:\nwith this:", AT, None, (A.with_position(13), B)),
            Utterance(
                entity_id="e",
                turn_id="t1",
                content="hm",
                tool_calls=(ToolCall("c1", "shoot", {}), ToolCall("c2", "echo", {})),
                usage=NO_USAGE,
                duration_ms=1.0,
            ),
            GateFinished.of("e", "t1", Observation("shoot", None, B.handle, tool_call_id="c1", images=(B,))),
            GateFinished.of("e", "t1", Observation("echo", None, "x", tool_call_id="c2")),
            Committed(turn_id="t1", entity_id="e", parent_id=None, sequence=1, at=AT, duration_ms=1.0),
            Steered("e", "and this", AT, (AT_HOME,)),
            Utterance(entity_id="e", turn_id="t2", content="so", tool_calls=(), usage=NO_USAGE, duration_ms=1.0),
            Committed(turn_id="t2", entity_id="e", parent_id="t1", sequence=2, at=AT, duration_ms=1.0, terminated=True),
        ]
    )


@pytest.mark.rule("LOOM-10")
class TestLines:
    def test_a_turn_has_the_images_of_its_gates_with_their_bytes(self):
        first, second = map(json.loads, thread_jsonl(loom().turns("e")).splitlines())
        shot, echo = first["gate_calls"]
        assert shot["result"] == first["observation"].split("\n")[0] == B.handle
        assert shot["images"] == [
            {
                "media_type": "image/png",
                "digest": B.digest,
                "size": B.size,
                "width": 32,
                "height": 16,
                "url": address(B),
            }
        ]
        assert "images" not in echo
        assert second["gate_calls"] == []

    def test_chat_lines_have_images_at_their_position(self):
        (line,) = chat_jsonl([conversation_of(loom(), "e")])
        _, intent, said, shot, echo, of_shot, steered, _ = json.loads(line)["messages"]
        assert intent["content"] == [
            {"type": "text", "text": "Compare this:"},
            {"type": "image_url", "image_url": {"url": address(A)}},
            {"type": "text", "text": "with this:"},
            {"type": "image_url", "image_url": {"url": address(B)}},
        ]
        assert len(said["tool_calls"]) == 2
        assert (shot["content"], echo["content"]) == (B.handle, "x")
        assert of_shot == {
            "role": "user",
            "content": [
                {"type": "text", "text": "[from the result of shoot, call c1]"},
                {"type": "image_url", "image_url": {"url": address(B)}},
            ],
        }
        assert steered["content"][1]["image_url"]["url"] == "https://example.org/a.png"

    def test_pairs_have_images_in_the_prompt(self):
        made = [*run("e", "t1"), *run("f", "t2", parent="t1", forked=True), *run("g", "t3", parent="t1", forked=True)]
        made[1] = IntentGiven("e", "look", AT, None, (A,))
        (line,) = pairs_jsonl(loom_of([*made, Rewarded("f", "t2", 1.0, AT), Rewarded("g", "t3", 0.0, AT)]))
        assert address(A) in line.decode()

    def test_trajectories_have_images_as_parts(self):
        for document in (trajectory(loom(), "e"), *segments(loom(), "e")):
            told = Trajectory.model_validate(json.loads(atif_json(document)))
            assert told.has_multimodal_content()
            assert [part.type for part in told.steps[1].message] == ["text", "image", "text", "image"]
            assert told.steps[1].message[1].source.path == address(A)
            shot, echo = told.steps[2].observation.results
            assert [part.type for part in shot.content] == ["text", "image"]
            assert echo.content == "x"
            assert told.steps[3].message[1].source.path == "https://example.org/a.png"

    def test_omitted_images_are_exported_as_labels(self):
        bare = redacted_loom(loom(), Redactor(), show_images=False)
        (line,) = chat_jsonl([conversation_of(bare, "e")])
        page = b"".join(html_page(bare))
        for told in (thread_jsonl(bare.turns("e")), line, atif_json(trajectory(bare, "e")), page):
            assert b"data:image/png;base64," not in told
        assert json.loads(line)["messages"][1]["content"][1] == {"type": "text", "text": A.label}
        Trajectory.model_validate(trajectory(bare, "e"))


class TestThePage:
    def test_a_page_contains_its_images_and_its_policy_allows_no_others(self):
        page = b"".join(html_page(loom()))
        assert b"img-src data:;" in page
        read = Reader(page)
        intent, turn, steered, *_ = (item["data"] for item in read.data["e-0"]["items"])
        assert [one["url"] for one in intent["images"]] == [address(A), address(B)]
        assert [one["url"] for one in turn["gate_calls"][0]["images"]] == [address(B)]
        assert [one["url"] for one in steered["images"]] == ["https://example.org/a.png"]
        assert intent["intent"] == f"Compare this:\nwith this: {A.label} {B.label}"
        assert "img" not in read.tags


@pytest.mark.rule("W-54")
class TestTheShownPage:
    pytestmark = in_chromium

    def test_a_browser_shows_the_images_of_a_page_after_a_click(self, shown):
        seen = shown(loom(), "#/e/e")
        seen.wait_for_selector("article.turn")
        seen.keyboard.press("e")
        for _ in range(3):
            seen.locator("#main button.picture").first.click()
        sizes = seen.evaluate(
            "Promise.all([...document.querySelectorAll('#main img')].map((one) => one.decode().then("
            "() => [one.naturalWidth, one.naturalHeight])))"
        )
        assert sizes == [[64, 48], [32, 16], [32, 16]]
        assert "https://example.org/a.png" in seen.inner_text("#main")
