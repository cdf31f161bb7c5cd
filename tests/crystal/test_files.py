"""Files in requests: each provider gets them in its published shape, or a note in their place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import File, Image
from cantrip_actors.crystal.constructors import anthropic, google, local, openai, openrouter
from cantrip_actors.crystal.encode import SamplingSettings
from cantrip_actors.crystal.images import find_refused_file
from cantrip_actors.crystal.policy.estimate import find_estimator
from cantrip_actors.crystal.policy.fallback import fallback
from cantrip_actors.crystal.policy.limited import limited
from cantrip_actors.crystal.provider import ProviderQuery
from cantrip_actors.crystal.scripted import scripted
from cantrip_actors.terms.context import Shared, View
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.messages import Invocation, Message
from tests.crystal.asking import TOOLS, request, said
from tests.pictures import DOCX, MP3, PDF, files, images, png
from tests.published import fault

pytestmark = pytest.mark.rule("R-20")

REPORT = File(PDF, filename="report.pdf")
NOTES = File(b"# Notes\nBuy milk.", filename="notes.md")
SOUND, FILM = File(MP3, filename="a.mp3"), File(b"\x00\x00\x00\x20ftypisom", filename="a.mp4")
LETTER = File(DOCX, filename="letter.docx")
AT = File.at("https://example.org/a.pdf")
PHOTO = Image(png())

CLAUDE = anthropic("claude-sonnet-4-5", api_key="k")
GPT = openai("gpt-5", api_key="k")
CHAT = openai("gpt-4o", chat=True, api_key="k")
GEMINI = google("gemini-3-pro", api_key="k")
OLD_GEMINI = google("gemini-2.5-flash", api_key="k")
ROUTER = openrouter("some/model", api_key="k")
LLAMA = local("http://localhost:1/v1", "llama")
ALL = [CLAUDE, GPT, CHAT, GEMINI, OLD_GEMINI, ROUTER, LLAMA]
ITEMS = {"anthropic": "messages", "openai": "input", "google": "contents"}

each_crystal = pytest.mark.parametrize("crystal", ALL, ids=lambda one: one.name)


def data_url(file):
    return f"data:{file.media_type};base64,{file.base64()}"


def user(text, *some):
    return Message("user", text, images=some)


def shot(content, *some):
    return [user("Look."), said(None, ("one", "shoot", {})), Message("tool", content, (), "one", "shoot", images=some)]


def sent(crystal, messages):
    """The newest of the messages as the provider gets them."""
    name = ITEMS.get(crystal.family.provider, "messages")
    last = request(crystal, messages, tools=())[name][-1]
    parts = last.get("content", last.get("parts", last.get("output")))
    for part in parts if isinstance(parts, list) else ():
        part.pop("cache_control", None)
    return parts


TEXT = "[file notes.md]\n# Notes\nBuy milk.\n[end of file notes.md]"
SHAPES = {
    "a PDF": (
        REPORT,
        {
            CLAUDE: {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": REPORT.base64()},
                "title": "report.pdf",
            },
            GPT: {"type": "input_file", "filename": "report.pdf", "file_data": data_url(REPORT)},
            CHAT: {"type": "file", "file": {"filename": "report.pdf", "file_data": data_url(REPORT)}},
            ROUTER: {"type": "file", "file": {"filename": "report.pdf", "file_data": data_url(REPORT)}},
            GEMINI: {"inlineData": {"mimeType": "application/pdf", "data": REPORT.base64()}},
        },
    ),
    "a text": (
        NOTES,
        {
            CLAUDE: {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "# Notes\nBuy milk."},
                "title": "notes.md",
            },
        },
    ),
    "an address": (
        AT,
        {
            CLAUDE: {"type": "document", "source": {"type": "url", "url": AT.url}},
            GPT: {"type": "input_file", "file_url": AT.url},
            ROUTER: {"type": "file", "file": {"filename": "file.pdf", "file_data": AT.url}},
            GEMINI: {"fileData": {"mimeType": "application/pdf", "fileUri": AT.url}},
        },
    ),
    "sound": (
        SOUND,
        {
            CHAT: {"type": "input_audio", "input_audio": {"data": SOUND.base64(), "format": "mp3"}},
            ROUTER: {"type": "input_audio", "input_audio": {"data": SOUND.base64(), "format": "mp3"}},
            GEMINI: {"inlineData": {"mimeType": "audio/mpeg", "data": SOUND.base64()}},
        },
    ),
    "a film": (
        FILM,
        {
            ROUTER: {"type": "video_url", "video_url": {"url": data_url(FILM)}},
            GEMINI: {"inlineData": {"mimeType": "video/mp4", "data": FILM.base64()}},
        },
    ),
    "an office document": (
        LETTER,
        {GPT: {"type": "input_file", "filename": "letter.docx", "file_data": data_url(LETTER)}},
    ),
}
TAKEN = [(what, crystal, shape) for what, (_, shapes) in SHAPES.items() for crystal, shape in shapes.items()]
REFUSED = [
    (what, crystal)
    for what, (_, shapes) in SHAPES.items()
    for crystal in ALL
    if crystal not in shapes and crystal is not OLD_GEMINI and what != "a text"
]


def name(value):
    return value if isinstance(value, str) else getattr(value, "name", "")


class TestRequests:
    @pytest.mark.parametrize(("what", "crystal", "shape"), TAKEN, ids=name)
    def test_an_accepted_file_is_sent(self, what, crystal, shape) -> None:
        file = SHAPES[what][0]
        assert find_refused_file(crystal, [file]) is None
        assert sent(crystal, [user("Read it.", file)])[-1] == shape

    @pytest.mark.parametrize(("what", "crystal"), REFUSED, ids=name)
    def test_an_unsupported_file_is_refused_and_mentioned_in_its_position(self, what, crystal) -> None:
        file = SHAPES[what][0]
        why = find_refused_file(crystal, [PHOTO, file])
        assert why is not None
        assert why.startswith(f"{file.label[1:-1]}: {crystal.name} cannot be given it: this ")
        messages = [user("Read it.", file)]
        assert f"[{file.label[1:-1]}: not shown: this " in str(sent(crystal, messages))
        put = crystal.family.make_request(ProviderQuery(messages, (), None, SamplingSettings.of({})))
        assert put.left_out == ("files",)

    @pytest.mark.parametrize("crystal", [one for one in ALL if one is not CLAUDE], ids=name)
    def test_a_text_file_is_sent_as_text_to_families_without_a_file_part(self, crystal) -> None:
        told = sent(crystal, [user("Read this:\nand answer.", NOTES.with_position(10))])
        text = told if isinstance(told, str) else told[0]["text"]
        assert text == f"Read this:\n{TEXT}\nand answer."

    def test_a_file_id_goes_only_to_the_provider_that_has_it(self) -> None:
        file, picture = File.uploaded("f1", "openai"), File.uploaded("f2", "openai", media_type="image/png")
        assert sent(GPT, [user("x", file, picture)])[1:] == [
            {"type": "input_file", "file_id": "f1"},
            {"type": "input_image", "file_id": "f2", "detail": "auto"},
        ]
        assert sent(CHAT, [user("x", file)])[1:] == [{"type": "file", "file": {"file_id": "f1"}}]
        here = File.uploaded("f3", "anthropic", media_type="image/png")
        assert sent(CLAUDE, [user("x", here)])[1:] == [{"type": "image", "source": {"type": "file", "file_id": "f3"}}]
        there = File.uploaded("https://google/files/4", "google", media_type="video/mp4")
        assert sent(GEMINI, [user("x", there)])[1:] == [
            {"fileData": {"mimeType": "video/mp4", "fileUri": "https://google/files/4"}}
        ]
        assert find_refused_file(CLAUDE, [file]) == (
            "file without a name, application/pdf, at openai: anthropic:claude-sonnet-4-5 cannot be given it: "
            "only openai has it"
        )

    def test_a_file_whose_bytes_are_lost_is_mentioned(self) -> None:
        told = sent(CLAUDE, [user("x", REPORT.bare())])
        assert told[0]["text"].endswith("not shown: its bytes are not in the loom]")


class TestFilesOfGates:
    def test_anthropic_gets_a_gates_file_in_the_result(self) -> None:
        ((result),) = sent(CLAUDE, shot(REPORT.handle, REPORT))
        assert [part["type"] for part in result["content"]] == ["text", "document"]

    def test_openai_responses_gets_a_gates_file_in_the_output(self) -> None:
        assert [part["type"] for part in sent(GPT, shot(REPORT.handle, REPORT))] == ["input_text", "input_file"]

    def test_chat_completions_gets_a_gates_file_in_a_users_message(self) -> None:
        told = sent(CHAT, shot(REPORT.handle, REPORT))
        assert told[0] == {"type": "text", "text": "[from the result of shoot, call one]"}
        assert told[1]["type"] == "file"

    def test_gemini_gets_documents_in_the_response_and_recordings_beside_it(self) -> None:
        inside, whose, beside = sent(GEMINI, shot("x", REPORT, SOUND))
        (kept,) = inside["functionResponse"]["parts"]
        assert (kept["inlineData"]["mimeType"], beside["inlineData"]["mimeType"]) == ("application/pdf", "audio/mpeg")
        assert whose == {"text": "[from the result of shoot]"}
        _, _, beside = sent(OLD_GEMINI, shot("x", REPORT))
        assert beside["inlineData"]["mimeType"] == "application/pdf"

    def test_a_gates_text_file_is_in_the_result(self) -> None:
        assert sent(LLAMA, shot(NOTES.handle, NOTES)) == f"{NOTES.handle}\n{TEXT}"


@pytest.mark.rule("R-08", "R-30")
@each_crystal
@given(some=st.lists(files | images, max_size=3), given_by_a_gate=st.lists(files | images, max_size=3))
def test_a_request_with_any_files_has_the_published_shape(crystal, some, given_by_a_gate) -> None:
    messages = [user("Read it.", *some), *shot("x", *given_by_a_gate)[1:]]
    put = crystal.family.make_request(ProviderQuery(messages, TOOLS, None, SamplingSettings.of({"max_tokens": 100})))
    assert fault(crystal.family.provider, put.path, put.body) is None
    withheld = any(find_refused_file(crystal, [one]) is not None for one in (*some, *given_by_a_gate))
    assert ("files" in put.left_out) == withheld


@each_crystal
def test_cached_encodings_equal_fresh_ones(crystal) -> None:
    shared = Shared([user("Read.", REPORT, NOTES)])
    for n in range(3):
        view = View(shared, query=n)
        assert request(crystal, view) == request(crystal, list(view))
        shared = shared.append(said(None, (f"c{n}", "shoot", {})))
        shared = shared.append(Message("tool", "x", (), f"c{n}", "shoot", images=(SOUND, REPORT)))


class TestAcceptedFiles:
    def test_accepted_media_types_of_a_local_model_can_be_configured(self) -> None:
        ears = local("http://localhost:1/v1", "qwen-omni", files=["audio/*"])
        assert find_refused_file(ears, [SOUND]) is None
        assert sent(ears, [user("Listen.", SOUND)])[1]["input_audio"]["format"] == "mp3"
        assert "takes audio/*, text" in str(find_refused_file(ears, [REPORT]))
        plain = local("http://localhost:1/v1", "qwen-omni", files=["audio/*"], tools="schema")
        assert find_refused_file(plain, [SOUND]) is None
        with pytest.raises(InvalidCantrip, match='files: expected a list of media types as in "audio/\\*"'):
            local("http://localhost:1/v1", "llama", files="audio")

    def test_limited_and_fallback_crystals_accept_the_files_that_all_their_crystals_accept(self) -> None:
        assert find_refused_file(limited(CLAUDE, concurrency=1), [REPORT]) is None
        assert "takes application/pdf, text" in str(find_refused_file(limited(CLAUDE, concurrency=1), [SOUND]))
        assert find_refused_file(fallback(CLAUDE, GPT), [REPORT]) is None
        assert "only" not in str(find_refused_file(fallback(GEMINI, CLAUDE), [SOUND]))
        assert find_refused_file(fallback(GEMINI, CLAUDE), [SOUND]) is not None
        assert find_refused_file(scripted([{"content": "x"}]), [SOUND, REPORT]) is None

    def test_files_count_in_estimates(self) -> None:
        def estimate(*some):
            return find_estimator(CLAUDE).estimate_usage(Invocation([user("x", *some)])).prompt_tokens

        assert estimate(File(b"word " * 1000)) - estimate() == 1500
        assert estimate(REPORT) - estimate() == 1600
