"""An image is a value: validated when it is made, compared by its bytes, and described by a label."""

import copy
import pickle
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import Image, InvalidImage, InvalidIntent, LoomError
from cantrip_actors.terms.file import LARGEST
from cantrip_actors.terms.image import MessageParts, add_labels, find_handles, select_named, split_message
from cantrip_actors.terms.image_header import PARTS, detect_media_type, is_broken, read_size
from tests.pictures import gif, images, jpeg, png, webp

PNG = Image(png(640, 480))


class TestReading:
    @pytest.mark.parametrize(
        ("data", "kind"),
        [
            (png(640, 480), "image/png"),
            (gif(640, 480), "image/gif"),
            (jpeg(640, 480), "image/jpeg"),
            (webp(b"VP8X", 640, 480), "image/webp"),
            (webp(b"VP8L", 640, 480), "image/webp"),
            (webp(b"VP8 ", 640, 480), "image/webp"),
        ],
    )
    def test_format_and_size_are_read_from_the_first_bytes(self, data, kind):
        image = Image(data)
        assert (image.media_type, image.width, image.height, image.size) == (kind, 640, 480, len(data))
        assert image.data == data

    @given(st.sampled_from([png(), gif(), jpeg(), *(webp(kind) for kind in (b"VP8X", b"VP8L", b"VP8 "))]), st.data())
    def test_a_truncated_or_invalid_header_is_not_an_error(self, data, draw):
        cut = draw.draw(st.integers(12, len(data)))
        broken = data[:cut] + draw.draw(st.binary(max_size=30))
        kind = detect_media_type(broken)
        assert kind is not None
        width, height = read_size(broken, kind)
        assert (width is None) == (height is None)

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (b"", "got no bytes at all"),
            (b"%PDF-1.7", r"expected a PNG, JPEG, GIF or WebP picture, got bytes that begin with b'%PDF-1.7'"),
            (png() + bytes(LARGEST), "at most 20,000,000 bytes"),
            ("a text", "image: expected bytes, as of Image.read"),
        ],
    )
    def test_bytes_that_are_not_an_image_are_refused(self, data, why):
        with pytest.raises(InvalidImage, match=why):
            Image(data)

    def test_an_unknown_detail_is_refused(self):
        with pytest.raises(InvalidImage, match='unknown detail "hi": did you mean "high"'):
            Image(png(), detail="hi")

    def test_a_file_is_read(self, tmp_path):
        path = tmp_path / "a.png"
        path.write_bytes(png())
        assert Image.read(path, detail="low") == Image(png(), detail="low")
        assert Image.read(str(path)).detail is None

    def test_a_missing_or_invalid_file_is_refused_with_its_name(self, tmp_path):
        with pytest.raises(InvalidImage, match=r"none\.png: cannot read it: No such file"):
            Image.read(tmp_path / "none.png")
        (tmp_path / "notes.txt").write_text("no picture")
        with pytest.raises(InvalidImage, match=r"notes\.txt: image: expected a PNG"):
            Image.read(tmp_path / "notes.txt")

    @pytest.mark.parametrize(
        "url",
        ["http://example.org/a.png", "a.png", "https://a b", "https://" + "a" * 9000, 5, "https://", "https:///a.png"],
    )
    def test_an_address_that_is_not_https_is_refused(self, url):
        with pytest.raises(InvalidImage, match="expected an address"):
            Image.at(url)


class TestValue:
    def test_an_image_cannot_be_changed(self):
        with pytest.raises(AttributeError, match="does not change"):
            PNG.detail = "low"
        with pytest.raises(AttributeError, match="cannot be taken away"):
            del PNG.digest

    def test_images_with_the_same_bytes_are_equal(self):
        again = Image(png(640, 480))
        assert (again, hash(again)) == (PNG, hash(PNG))
        for other in (Image(png(640, 480), detail="low"), Image(png(640, 481)), "an image"):
            assert other != PNG

    @given(images)
    def test_the_position_is_not_compared(self, image):
        assert image.with_position(3) == image.with_position(None) == image
        assert image.with_position(3).after == 3

    @given(images)
    def test_an_image_can_be_copied_and_pickled(self, image):
        assert copy.deepcopy([image])[0] is copy.copy(image)
        back = pickle.loads(pickle.dumps(image))
        assert (back, back.after) == (image, image.after)

    def test_base64_is_computed_once_for_all_uses_of_an_image(self):
        image = Image(png())
        assert image.base64() is image.with_position(4).base64()

    def test_bytes_are_read_once_and_when_they_are_needed(self):
        asked = []

        def find():
            asked.append(1)
            return png()

        known = Image.from_facts("image/png", Image(png()).digest, 1, 3, 2, find=find)
        assert not asked
        assert not known.is_at_hand
        assert known.data == known.with_position(1).data == png()
        assert asked == [1]

    def test_bytes_that_differ_from_the_recorded_digest_are_an_error(self):
        known = Image.from_facts("image/png", "0" * 64, 1, 3, 2, find=png)
        with pytest.raises(LoomError, match="is not what was recorded"):
            known.find_data()

    @pytest.mark.parametrize("image", [PNG.bare(), Image.at("https://example.org/a.png")])
    def test_missing_bytes_are_an_error(self, image):
        assert image.find_data() is None
        assert image.base64() is None
        with pytest.raises(LoomError, match="are not to be had"):
            _ = image.data


class TestAsText:
    @pytest.mark.parametrize(
        ("image", "label"),
        [
            (Image(png() + bytes(12_000 - len(png()))), "[image/png, 12 KB, 3×2]"),
            (Image(gif()), "[image/gif, 14 B, 3×2]"),
            (Image(b"\xff\xd8\xff" + bytes(2_000_000)), "[image/jpeg, 2.0 MB]"),
            (Image.at("https://example.org/a[1],2.png?key=secret"), "[image at https://example.org/a%5B1%5D%2C2.png]"),
        ],
    )
    def test_the_label_describes_the_image(self, image, label):
        assert image.label == label == repr(image)
        assert f"{[image]}" == f"[{label}]"

    @given(st.lists(images, max_size=4), st.text(max_size=20))
    def test_an_image_is_found_by_its_handle_in_any_text(self, some, between):
        text = between.join(image.handle for image in some)
        assert find_handles(text) == list(dict.fromkeys(image.name for image in some))
        assert [one.name for one in select_named(text, some)] == find_handles(text)

    def test_a_text_without_handles_names_no_image(self):
        assert select_named("[image/png, 12 KB, 3×2] and [image, 0000000g]", [PNG]) == ()

    def test_labels_are_added_to_a_text_without_handles(self):
        assert add_labels("look", [PNG]) == f"look {PNG.label}"
        assert add_labels(f"look at {PNG.handle}", [PNG]) == f"look at {PNG.handle}"
        assert add_labels("look", []) == "look"


@pytest.mark.rule("INTENT-1")
class TestMessageParts:
    def test_a_message_of_a_text_alone_is_that_text(self):
        assert split_message("go", "intent") == MessageParts("go", ())

    def test_texts_are_joined_and_images_keep_their_position(self):
        a, b, c = (Image(png(shade=shade)) for shade in (1, 2, 3))
        text, some = split_message([a, "Compare this:", b, "with this:", c], "intent")
        assert text == "Compare this:\nwith this:"
        assert some == (a, b, c)
        assert [one.after for one in some] == [0, 13, None]

    @pytest.mark.parametrize("given", [PNG, [PNG], (PNG,), [" ", PNG]])
    def test_an_image_alone_has_a_text(self, given):
        assert split_message(given, "intent") == MessageParts(PNG.label, (PNG,))

    @pytest.mark.parametrize("given", ["", " \n", [], [""], None, 5, [5], ["go", b"png"], {"text": "go"}])
    def test_an_empty_message_is_refused(self, given):
        with pytest.raises(InvalidIntent):
            split_message(given, "intent is required: expected a text")

    @given(st.lists(st.text(min_size=1).filter(str.strip) | images, min_size=1, max_size=6))
    def test_texts_and_images_survive_joining(self, given):
        text, some = split_message(given, "intent")
        texts = [one for one in given if isinstance(one, str)]
        assert list(some) == [one for one in given if isinstance(one, Image)]
        if texts:
            assert text == "\n".join(texts)


class Counted(bytes):
    """Bytes that count how often a part of them is read."""

    reads = 0

    def __getitem__(self, at):
        Counted.reads += 1
        return super().__getitem__(at)


@pytest.mark.parametrize("part", [b"\xff", b"\xff\xd0", b"\xff\x02\x00\x02"])
def test_the_size_of_a_jpeg_is_searched_in_a_bounded_number_of_markers(part):
    Counted.reads = 0
    assert read_size(Counted(b"\xff\xd8" + part * 100_000), "image/jpeg") == (None, None)
    assert Counted.reads < 10 * PARTS


def test_a_bounded_number_of_chunks_of_a_png_is_checked():
    data = b"\0\0\0\0tEXt" + zlib.crc32(b"tEXt").to_bytes(4, "big")
    Counted.reads = 0
    assert not is_broken(Counted(b"\x89PNG\r\n\x1a\n" + data * 10 * PARTS))
    assert Counted.reads < 10 * PARTS
