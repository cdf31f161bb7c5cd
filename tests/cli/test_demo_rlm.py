"""The demo of long documents: the answer equals a plain count, and no crystal saw the document."""

import json

import pytest

from cantrip_actors import open_loom
from cantrip_demos.rlm_document import count, find_sentence, own_document

pytest.importorskip("pydantic_monty")
pytestmark = pytest.mark.real_time  # programs compute in worker processes

LINE = "The quick brown foxes jumped over lazy dogs, ünïcödé und so weiter\n"
SENTENCE = "a needle that nobody would look for in this haystack"


@pytest.mark.rule("COMP-2", "COMP-3", "COMP-4", "COMP-6")
def test_two_levels_of_children_count_a_document_that_fits_no_prompt(cantrip, place):
    lines = [LINE] * 12_000
    lines[7_000] = f"here is {SENTENCE}\n"
    document = "".join(lines)
    (place / "long.txt").write_text(document, encoding="utf-8")
    said = cantrip("demo", "rlm", "long.txt", "--find", SENTENCE, "--json").json
    assert said["checked"]
    assert said["result"]["words"] == len(document.encode().split())
    assert said["result"]["places"] == [[7_001, 9]]
    assert said["depth"] == 2
    assert said["largest_prompt"] < 5_000
    assert said["subtree_usage"]["total_tokens"] > said["usage"]["total_tokens"] > 0
    with open_loom(said["loom"]) as loom:
        assert len(loom.subtree(said["entity_id"])) == said["entities"] > 16


def test_the_demo_prints_its_figures_in_a_table(cantrip, place):
    (place / "short.txt").write_text("one two\nlicence licence\n")
    said = cantrip("demo", "rlm", "short.txt")
    assert said.code == 0
    assert "lines                              2                 2  ✓" in said.out
    assert "Checked: every figure" in said.out


@pytest.mark.parametrize(
    "text",
    ["x", "word " * 30_000, "x" * 250_000, "\n" * 150_000 + "x", "\r\nsep\x1cara\x85ted\u3000\n" * 9_000],
    ids=["a letter", "one line", "one word", "empty lines", "odd spaces"],
)
def test_the_demo_works_on_hard_documents(cantrip, place, text):
    (place / "hard.txt").write_bytes(text.encode())
    answer = cantrip("demo", "rlm", "hard.txt", "--find", "d w", "--json").json
    if text.startswith("xx"):  # a word cannot be cut and stay one: the check finds out
        assert not answer["checked"]
    else:
        assert answer["checked"], json.dumps(answer["result"])[:500]


@pytest.mark.parametrize(("file", "why"), [("nowhere.txt", "cannot read"), ("empty.txt", "nothing in")])
def test_an_unreadable_document_exits_with_2(cantrip, place, file, why):
    (place / "empty.txt").write_text("\n")
    said = cantrip("demo", "rlm", file)
    assert said.code == 2
    assert why in said.err


def test_a_missing_language_names_the_package_to_install(cantrip, place, monkeypatch):
    from cantrip_actors.circle import medium

    (place / "short.txt").write_text("one two\n")
    monkeypatch.setattr(medium, "_NEEDS", {})
    said = cantrip("demo", "rlm", "short.txt")
    assert said.code == 2
    assert "python" in said.err


def test_a_folder_with_the_name_of_a_demo_can_be_read(cantrip, place):
    (place / "rlm").mkdir()
    (place / "rlm" / "a.md").write_text("# x\n")
    assert "a.md" in cantrip("demo", "./rlm", "-q").out


def test_the_document_of_this_machine_is_the_same_each_time():
    document = own_document(300_000)
    assert document == own_document(300_000)
    assert len(document) == 300_000
    sentence = find_sentence(document)
    assert document.count(sentence) == 1
    assert len(count(document, sentence).places) == 1
