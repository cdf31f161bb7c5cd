"""Images on the command line: given with an intent, described in lists, and exported."""

import base64

import pytest

from cantrip_actors import open_loom
from cantrip_actors.records.records import IntentGiven
from tests.pictures import png

pytestmark = pytest.mark.real_time

LABEL = f"[image/png, {len(png(640, 480))} B, 640×480]"
URL = "https://example.org/b.png"


@pytest.fixture
def picture(place):
    (place / "a.png").write_bytes(png(640, 480))
    return "a.png"


def intents():
    with open_loom("sqlite:.cantrip/loom.db") as loom:
        records = [record for entity in loom.entities() for record in loom.records(entity)]
        return [
            (one.intent, [image.url or image.data for image in one.images])
            for one in records
            if isinstance(one, IntentGiven)
        ]


def test_a_cast_accepts_files_and_addresses(cantrip, picture):
    said = cantrip("cast", "recipe.yaml", "What is on it?", "--image", picture, "--image", URL)
    assert (said.code, said.out) == (0, "five\n")
    assert f"begins: What is on it? {LABEL}" in said.err
    assert intents() == [("What is on it?", [png(640, 480), URL])]


def test_long_lived_entities_accept_images(cantrip, picture, place):
    policy = "crystal: {scripted: [{content: one}, {content: two}]}\n"
    (place / "recipe.yaml").write_text(f"{policy}circle: {{gates: [done], wards: [{{max_turns: 9}}]}}\n")
    assert cantrip("invoke", "recipe.yaml", "look", "--name", "eyes", "--image", picture).code == 0
    assert cantrip("send", "eyes", "and now?", "--image", picture).code == 0
    assert intents() == [("look", [png(640, 480)]), ("and now?", [png(640, 480)])]


@pytest.mark.parametrize(
    ("given", "why"),
    [("none.png", "none.png: cannot read it: No such file"), ("recipe.yaml", "recipe.yaml: image: expected a PNG")],
)
def test_an_invalid_image_exits_with_2(cantrip, given, why):
    said = cantrip("cast", "recipe.yaml", "look", "--image", given)
    assert said.code == 2
    assert why in said.err


def test_lists_and_trees_describe_images(cantrip, picture):
    cantrip("cast", "recipe.yaml", "look", "--image", picture, "-q")
    for command in ("ls", "tree"):
        assert "look [image/png" in cantrip("loom", command).out
    assert cantrip("loom", "ls", "--json").json[0]["intent"] == f"look {LABEL}"


def test_a_page_includes_images_unless_they_are_left_out(cantrip, picture, place):
    cantrip("cast", "recipe.yaml", "look", "--image", picture, "-q")
    data = base64.b64encode(png(640, 480)).decode()
    for options, there in ((), True), (("--as-it-is",), True), (("--without-images",), False):
        cantrip("loom", "export", "--format", "html", "--output", "loom.html", *options)
        assert (data in (place / "loom.html").read_text()) == there
    cantrip("loom", "export", "--format", "html", "--output", "loom.html", "--without-images", "--as-it-is")
    assert data not in (place / "loom.html").read_text()


def test_a_copy_includes_images_and_verifies(cantrip, picture):
    cantrip("cast", "recipe.yaml", "look", "--image", picture, "-q")
    assert cantrip("loom", "copy", "sqlite:.cantrip/loom.db", "jsonl:copy.jsonl").code == 0
    with open_loom("jsonl:copy.jsonl") as loom:
        (entity,) = loom.entities()
        assert loom.records(entity)[1].images[0].data == png(640, 480)
