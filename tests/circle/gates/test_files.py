"""The file gates below one root."""

import os
import stat
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.circle.gate_call import GateError, run_gate
from cantrip_actors.circle.gates import files
from cantrip_actors.circle.gates.files import list_files, read, search, write
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.gate import BoundArguments, standard
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import ToolCall
from tests.pictures import png


@pytest.fixture
def root(tmp_path):
    (tmp_path / "a.txt").write_text("first\nsecond\nthird\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "guide.md").write_text("# Guide\nA gate is a crossing point.\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("a gate in the cellar")
    return tmp_path


def refusal(gate, **args):
    with pytest.raises(GateError) as caught:
        gate(**args)
    return str(caught.value)


@pytest.mark.rule("CIRCLE-10")
async def test_a_gate_in_a_circle_reads_below_the_root_it_was_given(root):
    circle = Circle(gates=["done", read.with_(root=str(root))])
    gate = circle.open_gates["read"]
    call = ToolCall("c1", "read", {"path": "a.txt"})
    bound = gate.check(call)
    assert isinstance(bound, BoundArguments)
    observation = await run_gate(gate, call, bound.args)
    assert observation.content == "first\nsecond\nthird\n"


@pytest.mark.rule("CIRCLE-10")
@pytest.mark.parametrize("name", ["read", "write", "list", "search"])
def test_a_file_gate_without_a_root_is_refused(name):
    with pytest.raises(InvalidCantrip, match=f"gate {name} needs root"):
        Circle(gates=["done", name])


@pytest.mark.rule("CIRCLE-10", "CALL-3")
def test_the_root_is_not_in_the_definition():
    for name in ("read", "write", "list", "search"):
        assert "root" not in standard(name).parameters["properties"]


def test_every_file_gate_but_write_is_idempotent():
    assert [one.idempotent for one in (read, list_files, search, write)] == [True, True, True, False]


class TestRead:
    def test_read_returns_exactly_the_contents_of_the_file(self, root):
        (root / "b.txt").write_text("hello world")
        assert read(root=root, path="b.txt") == "hello world"

    def test_an_empty_file_is_read_as_an_empty_text(self, root):
        (root / "empty").touch()
        assert read(root=root, path="empty") == ""

    def test_read_returns_some_lines_and_the_offset_of_the_rest(self, root):
        assert read(root=root, path="a.txt", offset=2, limit=1) == "second\n[the file has more: read it with offset=3]"
        assert read(root=root, path="a.txt", offset=2, limit=2) == "second\nthird\n"

    def test_reading_past_the_end_returns_a_note(self, root):
        assert read(root=root, path="a.txt", offset=9) == "[the file has 3 lines, there is no line 9]"
        (root / "empty").touch()
        assert read(root=root, path="empty", offset=2) == "[the file is empty, there is no line 2]"

    @pytest.mark.rule("X-06")
    @pytest.mark.parametrize("text", ["ab\n\ncd\nefgh", "abcd\nefg", "\n" * 9, "äö\nü", "abcdefghijkl"])
    def test_lines_are_skipped_in_pieces_of_any_size(self, root, monkeypatch, text):
        (root / "b.txt").write_text(text, encoding="utf-8")
        lines = text.splitlines(keepends=True)
        for size in range(1, len(text) + 2):
            monkeypatch.setattr(files, "_PIECE", size)
            for n in range(len(lines)):
                assert read(root=root, path="b.txt", offset=n + 1) == "".join(lines[n:])
            far = len(lines) + 2
            end = f"[the file has {len(lines)} lines, there is no line {far}]"
            assert read(root=root, path="b.txt", offset=far) == end

    @pytest.mark.rule("X-06")
    def test_millions_of_lines_are_not_skipped_one_by_one(self, root):
        (root / "b.txt").write_text("\n" * 10_000_000 + "here")
        began = time.thread_time()
        assert read(root=root, path="b.txt", offset=10_000_001) == "here"
        assert time.thread_time() - began < 0.5

    @pytest.mark.rule("X-06")
    def test_the_end_of_a_file_with_a_hole_is_refused(self, root):
        with (root / "b.txt").open("wb") as file:
            file.write(b"a" * 10_000)
            file.truncate(2**40)
        for place in ({"offset": 2}, {"column": 2**39}):
            assert "lies beyond the first 64,000,000 bytes" in refusal(read, root=root, path="b.txt", **place)

    def test_a_long_file_is_cut_with_a_note_where_to_continue(self, root):
        whole = "".join(f"line {n}\n" for n in range(20_000))
        (root / "long.txt").write_text(whole)
        assert together(root, "long.txt") == whole

    def test_a_single_endless_line_can_be_read_to_its_end(self, root):
        whole = "x" * 120_000 + "y"
        (root / "long.txt").write_text(whole)
        assert "column=50000" in read(root=root, path="long.txt")
        assert together(root, "long.txt") == whole

    def test_line_ends_are_not_changed(self, root):
        (root / "dos.txt").write_bytes(b"a\r\nb\r\n")
        assert read(root=root, path="dos.txt") == "a\r\nb\r\n"

    def test_a_byte_order_mark_is_removed(self, root):
        (root / "bom.txt").write_bytes(b"\xef\xbb\xbfa")
        assert read(root=root, path="bom.txt") == "a"

    def test_bytes_that_are_not_text_are_shown_and_noted(self, root):
        (root / "latin.txt").write_bytes("café\n".encode("latin-1"))
        assert read(root=root, path="latin.txt") == "caf\ufffd\n[1 byte is not UTF-8 and shown as \ufffd]"

    def test_a_binary_file_is_refused_with_its_size(self, root):
        (root / "b.bin").write_bytes(b"\x00" * 12_345)
        assert (
            refusal(read, root=root, path="b.bin") == '"b.bin" is a binary file of 12,345 bytes: expected a text file'
        )

    def test_a_picture_is_read_as_an_image_when_images_are_wanted(self, root, monkeypatch):
        (root / "a.png").write_bytes(png())
        assert "is a binary file" in refusal(read, root=root, path="a.png")
        assert read(root=root, path="a.png", images=True) == Image(png())
        assert read(root=root, path="a.txt", images=True).startswith("first")
        monkeypatch.setattr(files, "LARGEST_IMAGE", 10)
        said = refusal(read, root=root, path="a.png", images=True)
        assert said == f'"a.png" is a picture of {len(png())} bytes: expected at most 10'

    def test_a_large_picture_is_read_whole(self, root):
        data = png() + bytes(100_000)
        (root / "a.png").write_bytes(data)
        assert read(root=root, path="a.png", images=True).data == data

    @given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=200), st.integers(1, 5))
    def test_reading_in_parts_returns_the_whole_file(self, tmp_path_factory, text, limit):
        root = tmp_path_factory.getbasetemp() / "reading"
        root.mkdir(exist_ok=True)
        (root / "f").write_bytes(text.encode())
        assert together(root, "f", limit=limit) == text.removeprefix("\ufeff")


def together(root, path, **how):
    """The whole file, by following the notes."""
    got, offset, column = "", 1, 0
    while True:
        piece = read(root=root, path=path, offset=offset, column=column, **how)
        text, mark, note = piece.rpartition("[the file has more: read it with offset=")
        if not mark:
            return got + piece
        where = note.rstrip("]").split(", column=")
        offset, column = int(where[0]), int(where[1]) if len(where) == 2 else 0
        got += text.removesuffix("\n") if column else text


class TestWrite:
    def test_write_makes_a_new_file_in_new_folders(self, root):
        assert write(root=root, path="x/y/z.txt", content="a\nb") == 'wrote "x/y/z.txt": 2 lines, 3 bytes'
        assert (root / "x/y/z.txt").read_text() == "a\nb"

    def test_write_replaces_a_file_and_keeps_its_permissions(self, root):
        (root / "a.txt").chmod(0o640)
        assert write(root=root, path="a.txt", content="new\n") == 'replaced "a.txt": 1 line, 4 bytes'
        assert (root / "a.txt").read_text() == "new\n"
        assert stat.S_IMODE((root / "a.txt").stat().st_mode) == 0o640

    def test_a_write_leaves_only_the_file(self, root):
        write(root=root, path="new/b.txt", content="b")
        assert [one.name for one in (root / "new").iterdir()] == ["b.txt"]

    def test_write_follows_a_link_inside_the_root(self, root):
        (root / "link").symlink_to("docs/guide.md")
        write(root=root, path="link", content="new")
        assert (root / "docs/guide.md").read_text() == "new"
        assert (root / "link").is_symlink()

    @pytest.mark.parametrize("target", ["../made-outside", "/tmp/made-outside"])
    def test_write_follows_no_dangling_link_out_of_the_root(self, root, target):
        (root / "link").symlink_to(target)
        assert "leads outside" in refusal(write, root=root, path="link", content="x")
        assert not (root.parent / "made-outside").exists()

    def test_write_follows_no_folder_that_leads_out(self, root):
        (root / "folder").symlink_to("..")
        assert "leads outside" in refusal(write, root=root, path="folder/made-outside", content="x")

    def test_write_refuses_to_replace_a_folder(self, root):
        assert "is a folder" in refusal(write, root=root, path="docs", content="x")
        assert "is a folder" in refusal(write, root=root, path=".", content="x")

    def test_write_refuses_a_path_below_a_file(self, root):
        assert "is a file" in refusal(write, root=root, path="a.txt/b", content="x")

    def test_a_write_does_not_replace_a_folder_or_device(self, root):
        os.mkfifo(root / "pipe")
        assert "not a regular file" in refusal(write, root=root, path="pipe", content="x")

    def test_a_failed_write_leaves_the_old_file_and_no_draft(self, root, monkeypatch):
        def full(*args, **kwargs):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(files.os, "rename", full)
        assert "No space left" in refusal(write, root=root, path="a.txt", content="x")
        assert (root / "a.txt").read_text() == "first\nsecond\nthird\n"
        assert sorted(one.name for one in root.iterdir()) == [".git", "a.txt", "docs"]

    @given(st.text(st.characters(codec="utf-8"), max_size=100))
    def test_a_written_file_can_be_read(self, tmp_path_factory, text):
        root = tmp_path_factory.getbasetemp()
        write(root=root, path="w", content=text)
        assert (root / "w").read_bytes() == text.encode()


class TestList:
    def test_list_returns_the_names_in_a_folder(self, root):
        assert list_files(root=root) == [".git/", "a.txt", "docs/"]
        assert list_files(root=root, path="docs") == ["docs/guide.md"]

    def test_a_recursive_list_has_everything_below_the_folder(self, root):
        assert list_files(root=root, recursive=True) == [".git/", "a.txt", "docs/", "docs/guide.md"]

    def test_links_are_named_and_not_followed(self, root):
        (root / "docs" / "up").symlink_to("..")
        (root / "docs" / "out").symlink_to("/etc")
        assert list_files(root=root, path="docs", recursive=True) == ["docs/guide.md", "docs/out", "docs/up"]

    def test_a_long_listing_continues_at_an_offset(self, root, monkeypatch):
        monkeypatch.setattr(files, "ENTRIES", 2)
        assert list_files(root=root) == [".git/", "a.txt", "[3 entries in all: continue with offset=2]"]
        assert list_files(root=root, offset=2) == ["docs/"]

    def test_listing_a_file_is_refused(self, root):
        assert "a part of the path is a file" in refusal(list_files, root=root, path="a.txt")
        assert "no such" in refusal(list_files, root=root, path="gone")

    def test_listing_very_deep_folders_stops_at_a_limit(self, root):
        (root / "/".join("d" * 80)).mkdir(parents=True)
        assert len(list_files(root=root, recursive=True)) < 80


class TestSearch:
    def test_search_returns_lines_with_file_and_line_number(self, root):
        assert search(root=root, pattern="gate") == ["docs/guide.md:2: A gate is a crossing point."]

    def test_search_can_be_limited_to_one_file(self, root):
        assert search(root=root, path="a.txt", pattern="s") == ["a.txt:1: first", "a.txt:2: second"]

    def test_search_reads_a_hidden_folder_when_it_is_named(self, root):
        assert search(root=root, path=".git", pattern="gate") == [".git/config:1: a gate in the cellar"]

    def test_search_ignores_case_only_on_request(self, root):
        assert search(root=root, pattern="GATE") == []
        assert len(search(root=root, pattern="GATE", ignore_case=True)) == 1
        assert len(search(root=root, pattern="^a GATE", ignore_case=True, regex=True)) == 1

    def test_a_pattern_is_a_regular_expression_only_on_request(self, root):
        (root / "b.txt").write_text("a.c\nabc\n")
        assert search(root=root, path="b.txt", pattern="a.c") == ["b.txt:1: a.c"]
        assert search(root=root, path="b.txt", pattern="a.c", regex=True) == ["b.txt:1: a.c", "b.txt:2: abc"]

    def test_a_line_number_can_be_passed_to_read(self, root):
        (root / "odd.txt").write_text("a\x0cb\u2028c\nfound\r\n")
        for regex in (False, True):
            assert search(root=root, path="odd.txt", pattern="found", regex=regex) == ["odd.txt:2: found"]
        assert read(root=root, path="odd.txt", offset=2) == "found\r\n"

    def test_too_many_matches_are_cut_with_a_note(self, root):
        (root / "many.txt").write_text("x\n" * 50)
        for regex in (False, True):
            found = search(root=root, path="many.txt", pattern="x", limit=3, regex=regex)
            assert found[:3] == ["many.txt:1: x", "many.txt:2: x", "many.txt:3: x"]
            assert found[3].startswith("[stopped after 3 matching lines")

    def test_as_many_matches_as_the_limit_are_returned_without_a_note(self, root):
        (root / "many.txt").write_text("x\n" * 3)
        assert len(search(root=root, path="many.txt", pattern="x", limit=3)) == 3

    def test_binary_and_unreadable_files_are_skipped(self, root):
        (root / "b.bin").write_bytes(b"\x00gate")
        (root / "link").symlink_to("/etc/passwd")
        os.mkfifo(root / "pipe")
        assert search(root=root, pattern="gate") == ["docs/guide.md:2: A gate is a crossing point."]
        assert search(root=root, pattern="root:") == []

    def test_huge_files_are_skipped_with_a_note(self, root, monkeypatch):
        monkeypatch.setattr(files, "LARGEST", 100)
        (root / "large.txt").write_text("gate " * 100)
        assert search(root=root, pattern="gate")[-1] == "[1 file of more than 100 bytes left out]"

    def test_a_long_line_is_clipped(self, root):
        (root / "long.txt").write_text("x" * 5000)
        (found,) = search(root=root, path="long.txt", pattern="x")
        assert len(found) < 350
        assert found.endswith("…")

    def test_a_missing_path_is_an_error(self, root):
        assert "no such" in refusal(search, root=root, path="gone", pattern="x")

    def test_an_invalid_expression_is_refused(self, root):
        text = refusal(search, root=root, pattern="(", regex=True)
        assert "is not a regular expression" in text
        assert "missing )" in text

    @pytest.mark.real_time
    async def test_a_catastrophic_expression_is_stopped_without_blocking_other_tasks(self, root, monkeypatch):
        monkeypatch.setattr(files, "SECONDS", 0.5)
        (root / "trap.txt").write_text("a" * 40 + "!")
        gate = search.with_(root=root)
        call = ToolCall("c1", "search", {"pattern": "(a+)+$", "regex": True})
        bound = gate.check(call)
        assert isinstance(bound, BoundArguments)
        began = time.monotonic()
        observation = await run_gate(gate, call, bound.args)
        assert observation.is_error
        assert "did not finish within 0.5 s" in observation.result
        assert time.monotonic() - began < 5

    def test_the_time_for_reading_in_a_search_is_bounded(self, root, monkeypatch):
        monkeypatch.setattr(files, "SECONDS", -1.0)
        assert search(root=root, pattern="gate")[-1].startswith("[stopped before")


def test_a_search_by_a_regular_expression_holds_one_file_in_memory(root):
    for number in range(20):
        (root / f"{number:02}.txt").write_text(("x" * 9_999 + "\n") * 100)
    search(pattern="y", root=root, regex=True)  # its imports do not count
    tracemalloc.start()
    try:
        assert search(pattern="xy", root=root, regex=True) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16_000_000  # a file of at most 8 MB is read, and there are 20 MB
