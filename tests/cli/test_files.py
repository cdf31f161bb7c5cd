"""Files on the command line: given with an intent, and described in lists."""

import pytest

from cantrip_actors import open_loom
from cantrip_actors.records.records import IntentGiven
from tests.pictures import PDF, png

pytestmark = [pytest.mark.real_time, pytest.mark.rule("R-20")]

URL = "https://example.org/b.pdf"
LABEL = f"[file report.pdf, application/pdf, {len(PDF)} B]"


@pytest.fixture
def report(place):
    (place / "report.pdf").write_bytes(PDF)
    return "report.pdf"


def given():
    with open_loom("sqlite:.cantrip/loom.db") as loom:
        records = [record for entity in loom.entities() for record in loom.records(entity)]
        return [[one.url or one.data for one in record.images] for record in records if isinstance(record, IntentGiven)]


def test_a_cast_accepts_paths_and_addresses_beside_images(cantrip, report, place):
    (place / "a.png").write_bytes(png())
    said = cantrip("cast", "recipe.yaml", "Sum it up.", "--file", report, "--file", URL, "--image", "a.png")
    assert (said.code, said.out) == (0, "five\n")
    assert LABEL in said.err
    assert given() == [[png(), PDF, URL]]
    (listed,) = cantrip("loom", "ls", "--json").json
    assert listed["intent"] == f"Sum it up. [image/png, {len(png())} B, 3×2] {LABEL} [file at {URL}]"


def test_long_lived_entities_accept_files(cantrip, report, place):
    policy = "crystal: {scripted: [{content: one}, {content: two}]}\n"
    (place / "recipe.yaml").write_text(f"{policy}circle: {{gates: [done], wards: [{{max_turns: 9}}]}}\n")
    assert cantrip("invoke", "recipe.yaml", "read", "--name", "eyes", "--file", report).code == 0
    assert cantrip("send", "eyes", "and now?", "--file", report).code == 0
    assert cantrip("post", "eyes", "and then?", "--file", report).code == 0
    assert given() == [[PDF], [PDF]]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("none.pdf", "none.pdf: cannot read it: No such file"),
        ("a.png", "got a picture (image/png): give it as an image"),
    ],
)
def test_an_invalid_file_exits_with_2(cantrip, place, path, why):
    (place / "a.png").write_bytes(png())
    said = cantrip("cast", "recipe.yaml", "read", "--file", path)
    assert said.code == 2
    assert why in said.err


def test_a_file_for_a_model_that_does_not_accept_files_exits_with_2(cantrip, report, place):
    (place / "local.yaml").write_text(
        "crystal: local:llama@http://localhost:1/v1\ncircle: {gates: [done], wards: [{max_turns: 9}]}\n"
    )
    said = cantrip("cast", "local.yaml", "read", "--file", report)
    assert said.code == 2
    assert "cannot be given it: this model takes text" in said.err
