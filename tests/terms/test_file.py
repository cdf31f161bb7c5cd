"""Files as values: which bytes are a file, what it is called, and how texts refer to it."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import File, Image, InvalidFile, InvalidImage, LoomError
from cantrip_actors.records.codec import get_image_facts, make_image
from cantrip_actors.terms.file import LARGEST
from cantrip_actors.terms.image import find_handles, select_named, split_message
from tests.pictures import DOCX, PDF, files, png

pytestmark = pytest.mark.rule("R-20")

BYTES = {
    PDF: "application/pdf",
    b"\n" + PDF: "application/pdf",
    b"RIFF\x00\x00\x00\x00WAVEfmt ": "audio/wav",
    b"ID3\x04\x00": "audio/mpeg",
    b"\xff\xfb\x90\x00": "audio/mpeg",
    b"\xff\xf1\x50\x80": "audio/aac",
    b"fLaC\x00": "audio/flac",
    b"OggS\x00\x02": "audio/ogg",
    b"FORM\x00\x00\x00\x00AIFF": "audio/aiff",
    b"\x00\x00\x00\x20ftypM4A ": "audio/mp4",
    b"\x00\x00\x00\x20ftypisom": "video/mp4",
    b"\x00\x00\x00\x14ftypqt  ": "video/quicktime",
    b"\x1a\x45\xdf\xa3\x01\x42\x82\x84webm": "video/webm",
    b"\x1a\x45\xdf\xa3\x01\x42\x82\x84matroska": "video/x-matroska",
    b"OggS\x00\x02" + bytes(20) + b"\x80theora": "video/ogg",
    b"RIFF\x00\x00\x00\x00AVI LIST": "video/x-msvideo",
    b"\x00\x00\x01\xba\x44": "video/mpeg",
    "Grüße\n\ttext".encode(): "text/plain",
}


@pytest.mark.parametrize(("data", "kind"), BYTES.items(), ids=list(BYTES.values()))
def test_the_type_of_a_file_follows_from_its_bytes_and_not_its_name(data, kind) -> None:
    assert File(data).media_type == kind
    if kind != "text/plain":
        assert File(data, filename="a.txt").media_type == kind


@pytest.mark.parametrize(
    ("filename", "kind"),
    [
        *[
            ("a.md", "text/markdown"),
            ("a.CSV", "text/csv"),
            ("a.json", "application/json"),
            ("a.yml", "application/yaml"),
        ],
        *[("a.html", "text/html"), ("a.pdf", "text/plain"), ("a", "text/plain"), ("a.svg", "image/svg+xml")],
    ],
)
def test_the_type_of_a_text_follows_from_its_name(filename, kind) -> None:
    made = File(b"x", filename=filename)
    assert (made.media_type, made.is_text) == (kind, True)
    assert type(make_image(get_image_facts(made))) is File


def test_an_office_document_is_detected_by_name_and_any_format_by_a_given_type() -> None:
    assert File(DOCX, filename="a.docx").media_type.endswith("wordprocessingml.document")
    assert File(DOCX, media_type="application/epub+zip").media_type == "application/epub+zip"
    assert File(b"OggS\x00", media_type="video/ogg").media_type == "video/ogg"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: File("text"), "file: expected bytes, as of File.read"),
        (lambda: File(b""), "got no bytes at all"),
        (lambda: File(bytes(LARGEST + 1)), "expected at most 20,000,000 bytes"),
        (lambda: File(b"\x00\x01\x02"), r"expected a PDF, text in UTF-8, audio or video, got bytes that begin with"),
        (lambda: File(DOCX, filename="a.zip"), "give its media type, too"),
        (lambda: File(png()), r"got a picture \(image/png\): give it as an image"),
        (lambda: File(PDF, media_type="text/plain"), 'media_type "text/plain", but its bytes are application/pdf'),
        (lambda: File(b"text", media_type="application/pdf"), "but its bytes are text/plain"),
        (lambda: File(PDF, media_type="pdf"), 'expected a type as in "application/pdf"'),
        (lambda: File(PDF, filename=" "), "filename: expected a text"),
        (lambda: File.read("nowhere.pdf"), "nowhere.pdf: cannot read it: No such file"),
        (lambda: File.read("no\0where.pdf"), "cannot read it: embedded null byte"),
        (lambda: File.read("\ud800.pdf"), "cannot read it: 'utf-8' codec"),
        (lambda: File.at("https://example.org/a", media_type=5), 'expected a type as in "application/pdf"'),
        (lambda: File.at("http://example.org/a.pdf"), 'expected an address as in "https://example.org/a.pdf"'),
        (lambda: File.at("https://example.org/a.png"), r"is a picture by its ending: give it as an image"),
        (lambda: File.uploaded("", "openai"), "file_id: expected a text"),
        (lambda: File.uploaded("file_1", None), "provider: expected a text"),
    ],
)
def test_an_invalid_file_is_refused_with_advice(make, why) -> None:
    with pytest.raises(InvalidFile, match=why):
        make()


def test_an_image_is_a_file_and_raises_errors_of_files() -> None:
    assert isinstance(Image(png()), File)
    with pytest.raises(InvalidFile):
        Image(PDF)
    assert issubclass(InvalidImage, InvalidFile)


def test_a_file_is_read_with_its_name(tmp_path) -> None:
    (tmp_path / "report.pdf").write_bytes(PDF)
    made = File.read(tmp_path / "report.pdf")
    assert (made.filename, made.data, made.size) == ("report.pdf", PDF, len(PDF))
    assert str(made) == made.label == f"[file report.pdf, application/pdf, {len(PDF)} B]"
    assert made.handle == f"[file report.pdf, application/pdf, {len(PDF)} B, {made.name}]"


def test_the_type_of_an_address_follows_from_its_ending() -> None:
    kinds = {path: File.at(f"https://example.org/{path}").media_type for path in ("a.pdf?x=1", "a.mp4", "a", "a.csv#x")}
    assert list(kinds.values()) == ["application/pdf", "video/mp4", "application/pdf", "text/csv"]


def test_the_bytes_of_an_address_or_an_uploaded_file_are_an_error() -> None:
    behind, uploaded = File.at("https://example.org/a.pdf"), File.uploaded("f", "openai")
    for made, where in ((behind, "an address"), (uploaded, "only the provider")):
        with pytest.raises(LoomError, match=where):
            _ = made.data


@given(st.text(min_size=1, max_size=300))
def test_a_handle_is_found_in_a_text_for_any_filename(filename) -> None:
    try:
        made = File(PDF, filename=filename)
    except InvalidFile:
        assert not filename.strip()
        return
    assert find_handles(f"see {made.handle}.") == [made.name]
    assert select_named(f"see {made.handle}.", [made, Image(png())]) == (made,)
    assert "\n" not in made.label


@given(files)
def test_a_file_survives_copies_pickles_and_the_loom(made) -> None:
    assert copy.copy(made) is copy.deepcopy(made) is made
    again = pickle.loads(pickle.dumps(made))
    assert (again, again.after, again.find_data()) == (made, made.after, made.find_data())
    kept = make_image(get_image_facts(made))
    assert (kept, kept.after, type(kept)) == (made, made.after, type(made))
    assert get_image_facts(kept) == get_image_facts(made)


def test_files_and_images_keep_their_order_in_a_message() -> None:
    report, photo, notes = File(PDF, filename="a.pdf"), Image(png()), File(b"x", filename="b.txt")
    given_ = split_message(["Compare", report, photo, "with", notes], "")
    assert given_.text == "Compare\nwith"
    assert given_.images == (report, photo, notes)
    assert [one.after for one in given_.images] == [7, 7, None]
    assert split_message(report, "").text == report.label


def test_a_file_does_not_change() -> None:
    with pytest.raises(AttributeError, match="does not change"):
        File(PDF).filename = "b"
