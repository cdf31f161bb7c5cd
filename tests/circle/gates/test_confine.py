"""Paths inside one folder: hostile ones included, and folders that change while they are looked at."""

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.circle.gates.confine import place


@pytest.fixture
def root(tmp_path):
    """A root with a neighbour whose name begins like its own, and a secret beside it."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "in.txt").write_text("inside")
    (tmp_path / "root" / "sub").mkdir()
    (tmp_path / "root" / "sub" / "deep.txt").write_text("deep")
    (tmp_path / "root-evil").mkdir()
    (tmp_path / "root-evil" / "out.txt").write_text("secret")
    (tmp_path / "secret.txt").write_text("secret")
    return tmp_path / "root"


def content(root: Path, path: str) -> str:
    with os.fdopen(place(root, path).open()) as file:
        return file.read()


def refused(root: Path, path: str) -> str:
    with pytest.raises(GateError) as caught:
        content(root, path)
    text = str(caught.value)
    assert str(root.parent) not in text.replace(path, "")
    return text


@pytest.mark.parametrize("path", ["in.txt", "./in.txt", "sub/deep.txt", "sub//deep.txt", "sub/./deep.txt"])
def test_paths_from_the_root_are_allowed(root, path):
    assert content(root, path) in {"inside", "deep"}


def test_an_absolute_path_inside_the_root_is_allowed(root):
    assert content(root, str(root / "in.txt")) == "inside"


def test_an_absolute_path_through_a_link_to_the_root_is_allowed(root):
    link = root.parent / "link"
    link.symlink_to(root)
    assert content(link, str(link / "in.txt")) == "inside"
    assert content(link, str(root / "in.txt")) == "inside"


@pytest.mark.parametrize("path", ["../secret.txt", "sub/../in.txt", "..", "sub/../../secret.txt", "../root/in.txt"])
def test_dots_in_a_path_are_refused(root, path):
    assert '".." is not allowed' in refused(root, path)


@pytest.mark.parametrize("path", ["/etc/passwd", "/", "//etc/passwd"])
def test_absolute_paths_outside_the_root_are_refused(root, path):
    assert "outside the root" in refused(root, path)


def test_a_neighbour_whose_name_begins_like_the_root_is_refused(root):
    assert "outside the root" in refused(root, f"{root}-evil/out.txt")


@pytest.mark.parametrize("target", ["../secret.txt", "../root-evil/out.txt", "/etc/passwd"])
def test_a_link_out_of_the_root_is_refused(root, target):
    (root / "link").symlink_to(target)
    assert "leads outside the root" in refused(root, "link")


def test_a_folder_that_is_a_link_out_of_the_root_is_refused(root):
    (root / "folder").symlink_to("../root-evil")
    assert "leads outside the root" in refused(root, "folder/out.txt")


def test_a_link_inside_the_root_is_followed(root):
    (root / "sub" / "link").symlink_to("../in.txt")
    (root / "other").symlink_to("sub")
    assert content(root, "sub/link") == "inside"
    assert content(root, "other/deep.txt") == "deep"


def test_a_dangling_link_out_of_the_root_is_refused(root):
    (root / "link").symlink_to("../not-there-yet")
    assert "leads outside the root" in refused(root, "link")


def test_a_dangling_link_inside_the_root_is_reported_as_a_missing_file(root):
    (root / "link").symlink_to("not-there-yet")
    assert "no such file" in refused(root, "link")


def test_links_in_a_circle_are_refused(root):
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    refused(root, "a")
    refused(root, "a/x")


def test_a_file_that_becomes_a_link_between_check_and_use_is_refused(root):
    found = place(root, "in.txt")
    (root / "in.txt").unlink()
    (root / "in.txt").symlink_to("../secret.txt")
    with pytest.raises(GateError, match="leads out of the root"):
        found.open()


def test_a_folder_that_becomes_a_link_between_check_and_use_is_refused(root):
    found = place(root, "sub/deep.txt")
    (root / "sub").rename(root / "moved")
    (root / "sub").symlink_to("../root-evil")
    with pytest.raises(GateError, match="leads out of the root"):
        found.open()


@pytest.mark.parametrize("path", ["a\0b", "\0", "in.txt\0.png"])
def test_a_path_with_a_nul_character_is_refused(root, path):
    assert "NUL" in refused(root, path)


def test_a_huge_path_is_refused(root):
    assert "at most 4096" in refused(root, "a/" * 5000)
    assert "too long" in refused(root, "a" * 300)


def test_a_path_that_is_not_a_string_is_refused(root):
    assert "UTF-8" in refused(root, "\udc80")


def test_a_file_that_is_not_regular_is_refused(root):
    assert "is a folder" in refused(root, "sub")
    assert "is a folder" in refused(root, ".")
    assert "is a file" in refused(root, "in.txt/x")
    os.mkfifo(root / "pipe")
    assert "not a regular file" in refused(root, "pipe")


def test_a_missing_file_error_names_similar_files(root):
    assert refused(root, "inn.txt") == 'no such file or folder: "inn.txt"; did you mean "in.txt"?'


def test_a_missing_root_is_reported_without_its_path(root):
    with pytest.raises(GateError) as caught:
        content(root / "gone", "in.txt")
    assert "root" in str(caught.value)
    assert str(root) not in str(caught.value)


parts = st.sampled_from(
    [
        "..",
        ".",
        "",
        "sub",
        "in.txt",
        "link",
        "loop",
        "out",
        "~",
        "*",
        "\0",
        "\\",
        "..\\",
        "C:",
        "%2e%2e",
        "‥",
        "．．",
        "root-evil",
    ]
)
hostile = st.lists(parts | st.text(max_size=6), max_size=6).map("/".join) | st.text(max_size=30)


@given(path=hostile, lead=st.sampled_from(["", "/", "//", "{root}", "{root}/", "{root}-evil/", "{root}/../"]))
@example(path="link/secret.txt", lead="")
@example(path="out", lead="")
@example(path="../secret.txt", lead="{root}/")
def test_no_path_leads_out(tmp_path_factory, path, lead):
    base = tmp_path_factory.getbasetemp() / "hostile"
    root = base / "root"
    if not base.exists():
        (root / "sub").mkdir(parents=True)
        (base / "root-evil").mkdir()
        (base / "secret.txt").write_text("secret")
        (root / "in.txt").write_text("inside")
        (root / "link").symlink_to("..")
        (root / "loop").symlink_to("loop")
        (root / "out").symlink_to("../secret.txt")
        (root / "sub" / "self").symlink_to("..")
    try:
        found = place(root, lead.format(root=root) + path)
    except GateError:
        return
    assert Path(os.path.realpath(root / Path(*found.parts))).is_relative_to(root)
    try:
        handle = found.open()
    except GateError:
        return
    with os.fdopen(handle) as file:
        assert file.read() == "inside"
