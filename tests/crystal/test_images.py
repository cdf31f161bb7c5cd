"""Images in requests: each provider gets them in its shape and at their position, or a note in their place."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.crystal.constructors import anthropic, google, local, openai, openrouter
from cantrip_actors.crystal.encode import SamplingSettings
from cantrip_actors.crystal.images import Takes, estimate_by_patches, estimate_by_pixels, is_image_refusal, list_parts
from cantrip_actors.crystal.policy.estimate import Estimator, find_estimator
from cantrip_actors.crystal.policy.limited import limited
from cantrip_actors.crystal.provider import ProviderQuery
from cantrip_actors.crystal.query import Query
from cantrip_actors.terms.context import Shared, View
from cantrip_actors.terms.errors import InvalidCantrip, ProviderError
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import Invocation, Message, Usage
from tests.crystal.asking import request, said
from tests.pictures import gif, images, png

A, B = Image(png(640, 480)), Image(png(shade=9), detail="low")
AT = Image.at("https://example.org/a.png")
A64, B64 = A.base64(), B.base64()

CLAUDE = anthropic("claude-sonnet-4-5", api_key="k")
GPT = openai("gpt-5", api_key="k")
CHAT = openai("gpt-4o", chat=True, api_key="k")
GEMINI = google("gemini-3-pro", api_key="k")
OLD_GEMINI = google("gemini-2.5-flash", api_key="k")
ROUTER = openrouter("some/model", api_key="k")
LLAMA = local("http://localhost:1/v1", "llava")
ALL = [CLAUDE, GPT, CHAT, GEMINI, OLD_GEMINI, ROUTER, LLAMA]


def user(text, *some):
    return Message("user", text, images=some)


def shot(call_id, content, *some, is_error=False):
    return Message("tool", content, (), call_id, "shoot", is_error, images=some)


ASKED = [user("Compare this:\nwith this:", A.with_position(13), B)]
SHOT = [
    user("Look."),
    said(None, ("one", "shoot", {}), ("two", "shoot", {})),
    shot("one", A.handle, A),
    shot("two", '{"n":1}'),
]


def sent(crystal, messages, name):
    return request(crystal, messages, tools=())[name]


@pytest.mark.rule("CRYSTAL-6")
class TestImagesOfUsers:
    def test_anthropic(self):
        (message,) = sent(CLAUDE, ASKED, "messages")
        assert message == {
            "role": "user",
            "content": [
                {"type": "text", "text": "Compare this:"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": A64}},
                {"type": "text", "text": "with this:"},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": B64},
                    "cache_control": {"type": "ephemeral"},
                },
            ],
        }

    def test_openai_responses(self):
        assert sent(GPT, ASKED, "input") == [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Compare this:"},
                    {"type": "input_image", "image_url": f"data:image/png;base64,{A64}", "detail": "auto"},
                    {"type": "input_text", "text": "with this:"},
                    {"type": "input_image", "image_url": f"data:image/png;base64,{B64}", "detail": "low"},
                ],
            }
        ]

    @pytest.mark.parametrize("crystal", [CHAT, ROUTER, LLAMA], ids=lambda one: one.name)
    def test_chat_completions(self, crystal):
        assert sent(crystal, ASKED, "messages") == [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Compare this:"},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{A64}"}},
                    {"type": "text", "text": "with this:"},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{B64}", "detail": "low"}},
                ],
            }
        ]

    @pytest.mark.parametrize("crystal", [GEMINI, OLD_GEMINI], ids=lambda one: one.name)
    def test_google(self, crystal):
        assert sent(crystal, ASKED, "contents") == [
            {
                "role": "user",
                "parts": [
                    {"text": "Compare this:"},
                    {"inlineData": {"mimeType": "image/png", "data": A64}},
                    {"text": "with this:"},
                    {"inlineData": {"mimeType": "image/png", "data": B64}},
                ],
            }
        ]

    def test_the_address_of_an_image_is_sent(self):
        asked = [user("Look.", AT)]
        url = "https://example.org/a.png"
        assert sent(CLAUDE, asked, "messages")[0]["content"][1]["source"] == {"type": "url", "url": url}
        assert sent(GPT, asked, "input")[0]["content"][1]["image_url"] == url
        assert sent(CHAT, asked, "messages")[0]["content"][1] == {"type": "image_url", "image_url": {"url": url}}
        told = {"fileData": {"mimeType": "image/png", "fileUri": url}}
        assert sent(GEMINI, asked, "contents")[0]["parts"][1] == told

    def test_a_text_without_images_is_sent_as_a_plain_text(self):
        assert sent(GPT, [user("Hi.")], "input") == [{"role": "user", "content": "Hi."}]
        assert sent(CHAT, [user("Hi.")], "messages") == [{"role": "user", "content": "Hi."}]


@pytest.mark.rule("CRYSTAL-6", "CIRCLE-4")
class TestImagesOfGates:
    def test_anthropic_gets_a_gates_image_in_the_result(self):
        assert sent(CLAUDE, SHOT, "messages")[-1] == {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "one",
                    "content": [
                        {"type": "text", "text": A.handle},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": A64}},
                    ],
                },
                {
                    "type": "tool_result",
                    "tool_use_id": "two",
                    "content": '{"n":1}',
                    "cache_control": {"type": "ephemeral"},
                },
            ],
        }

    def test_openai_responses_gets_a_gates_image_in_a_list_as_output(self):
        assert sent(GPT, SHOT, "input")[-2:] == [
            {
                "type": "function_call_output",
                "call_id": "one",
                "output": [
                    {"type": "input_text", "text": A.handle},
                    {"type": "input_image", "image_url": f"data:image/png;base64,{A64}", "detail": "auto"},
                ],
            },
            {"type": "function_call_output", "call_id": "two", "output": '{"n":1}'},
        ]

    @pytest.mark.parametrize("crystal", [CHAT, ROUTER, LLAMA], ids=lambda one: one.name)
    def test_chat_completions_gets_a_gates_image_in_a_users_message_that_names_the_call(self, crystal):
        assert sent(crystal, SHOT, "messages")[-3:] == [
            {"role": "tool", "tool_call_id": "one", "content": A.handle},
            {"role": "tool", "tool_call_id": "two", "content": '{"n":1}'},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "[from the result of shoot, call one]"},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{A64}"}},
                ],
            },
        ]

    def test_gemini_gets_a_gates_image_in_the_response(self):
        assert sent(GEMINI, SHOT, "contents")[-1]["parts"] == [
            {
                "functionResponse": {
                    "name": "shoot",
                    "response": {"output": A.handle},
                    "parts": [{"inlineData": {"mimeType": "image/png", "data": A64}}],
                }
            },
            {"functionResponse": {"name": "shoot", "response": {"output": '{"n":1}'}}},
        ]

    def test_gemini_2_gets_a_gates_image_beside_the_responses(self):
        assert sent(OLD_GEMINI, SHOT, "contents")[-1]["parts"] == [
            {"functionResponse": {"name": "shoot", "response": {"output": A.handle}}},
            {"functionResponse": {"name": "shoot", "response": {"output": '{"n":1}'}}},
            {"text": "[from the result of shoot]"},
            {"inlineData": {"mimeType": "image/png", "data": A64}},
        ]

    def test_gemini_gets_the_address_of_a_gates_image_beside_the_responses(self):
        asked = [user("Look."), said(None, ("one", "shoot", {})), shot("one", AT.handle, AT)]
        assert sent(GEMINI, asked, "contents")[-1]["parts"][1:] == [
            {"text": "[from the result of shoot]"},
            {"fileData": {"mimeType": "image/png", "fileUri": "https://example.org/a.png"}},
        ]

    def test_a_gates_image_is_in_the_text_when_the_model_does_not_support_tools(self):
        plain = local("http://localhost:1/v1", "llava", tools="schema")
        (message,) = sent(plain, SHOT, "messages")[-2:-1]
        assert message == {
            "role": "user",
            "content": [
                {"type": "text", "text": f"[result of shoot]\n{A.handle}"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{A64}"}},
            ],
        }


class TestUnsupportedImages:
    @pytest.mark.parametrize(
        ("crystal", "image", "why"),
        [
            (CLAUDE, Image(png() + bytes(4_000_000)), "this provider takes up to 3,932,160 bytes"),
            (CLAUDE, Image(png(8001, 1)), "this provider takes up to 8,000 pixels to an edge"),
            (GEMINI, Image(gif()), "this provider takes image/jpeg, image/png, image/webp"),
            (CHAT, A.bare(), "its bytes are not in the loom"),
            (local("http://localhost:1/v1", "llama", images=False), A, "this model takes no images"),
        ],
        ids=["bytes", "pixels", "format", "lost", "none"],
    )
    def test_an_unsupported_image_is_replaced_by_a_note(self, crystal, image, why):
        given_by_a_gate = [user("Look."), said(None, ("one", "shoot", {})), shot("one", "x", image)]
        for messages in ([user("Look:\nand?", image.with_position(5))], given_by_a_gate):
            body = orjson.dumps(request(crystal, messages, tools=())).decode()
            assert f": not shown: {why}]" in body
            assert "base64," not in body
            assert "inlineData" not in body

    def test_the_note_is_in_the_images_position_among_the_texts(self):
        blind = local("http://localhost:1/v1", "llama", images=False)
        (message,) = sent(blind, ASKED, "messages")
        assert message["content"] == (
            f"Compare this:\n[{A.label[1:-1]}: not shown: this model takes no images]\n"
            f"with this:\n[{B.label[1:-1]}: not shown: this model takes no images]"
        )

    def test_an_invalid_images_setting_is_refused(self):
        with pytest.raises(InvalidCantrip, match="images: expected True or False, got 'no'"):
            local("http://localhost:1/v1", "llama", images="no")

    @pytest.mark.parametrize(
        ("status", "text"),
        [
            (404, "No endpoints found that support image input"),
            (500, "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"),
            (400, "Invalid content type. image_url is only supported by certain models."),
            (400, "llama-3 is not a multimodal model"),
            (400, "At most 0 image(s) may be provided in one prompt."),
            (422, "Failed to deserialize: messages[0]: unknown variant `image_url`, expected `text`"),
            (400, "This model does not support images"),
            (400, "messages[0].content must be a string"),
        ],
    )
    def test_images_are_left_out_when_the_server_refuses_them(self, status, text):
        assert is_image_refusal(ProviderError(text, status=status))
        assert not is_image_refusal(ProviderError(text, status=429))

    @pytest.mark.parametrize(
        "text",
        [
            "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes",
            "Could not process image",
            "The server does not support image format image/bmp",
            "You uploaded an unsupported image. Please make sure your image is valid.",
            "temperature is not supported",
        ],
    )
    def test_an_error_about_one_image_does_not_turn_images_off(self, text):
        assert not is_image_refusal(ProviderError(text, status=400))

    def test_later_queries_leave_images_out_after_a_refusal(self):
        crystal = local("http://localhost:1/v1", "llama")
        family = crystal.family
        put = family.make_request(ProviderQuery(ASKED, (), None, SamplingSettings.of({})))
        assert "images" in put.sent
        refused = ProviderError("image input is not supported", status=500)
        assert family.learn(refused, put) == "images"
        assert "takes no images" in sent(crystal, ASKED, "messages")[0]["content"]
        assert crystal.image_tokens(A) == 0
        again = family.make_request(ProviderQuery(ASKED, (), None, SamplingSettings.of({})))
        assert family.learn(refused, again) is None

    def test_an_error_of_a_request_without_images_does_not_turn_images_off(self):
        family = local("http://localhost:1/v1", "llama").family
        put = family.make_request(ProviderQuery([user("Hi.")], (), None, SamplingSettings.of({})))
        assert family.learn(ProviderError("image input is not supported", status=500), put) is None


class TestParts:
    @given(st.text(max_size=30), st.lists(images, max_size=4))
    def test_every_image_is_sent_once_and_in_order(self, text, some):
        some = sorted(some, key=lambda one: 99 if one.after is None else one.after)
        parts = list_parts(text, some, Takes())
        assert [one for one in parts if isinstance(one, Image)] == some
        told = "".join(one for one in parts if isinstance(one, str))
        assert "".join(told.split()) == "".join(text.split())

    @given(st.text(max_size=30), st.lists(images, max_size=4))
    def test_a_model_without_vision_is_sent_one_text(self, text, some):
        (only,) = list_parts(text, some, Takes(any=False))
        assert isinstance(only, str)
        assert all(one.label[1:-1] in only for one in some)


def contexts():
    """A context that grows, one image in each of its results."""
    shared = Shared([Message("system", "Be terse."), user("Look.", Image(png(shade=200)))])
    yield View(shared)
    for n in range(5):
        shared = shared.append(said(None, (f"c{n}", "shoot", {"n": n})))
        shared = shared.append(shot(f"c{n}", "x", Image(png(shade=n))))
        yield View(shared, query=n + 1)


class TestCosts:
    @pytest.mark.parametrize("crystal", ALL, ids=lambda one: one.name)
    def test_cached_encodings_equal_fresh_ones(self, crystal):
        for view in contexts():
            assert request(crystal, view) == request(crystal, list(view))

    @pytest.mark.parametrize("crystal", ALL, ids=lambda one: one.name)
    def test_base64_is_computed_once_for_each_image(self, crystal, monkeypatch):
        made = []
        whole = Image.base64

        def counted(self):
            if self._content.text is None:
                made.append(self.digest)
            return whole(self)

        monkeypatch.setattr(Image, "base64", counted)
        for view in contexts():
            request(crystal, view)
        assert len(made) == len(set(made)) == 6

    @pytest.mark.parametrize(
        ("crystal", "image", "tokens"),
        [
            (CLAUDE, A, 410),
            (CLAUDE, Image(png(4000, 3000)), 4_800),
            (CLAUDE, AT, 1_600),
            (GPT, A, 360),
            (GPT, B, 85),
            (CHAT, Image(png(4000, 3000), detail="high"), 3_000),
            (GEMINI, A, 1_120),
            (OLD_GEMINI, A, 258),
            (OLD_GEMINI, Image(png(1000, 1000)), 1_032),
            (LLAMA, A, 410),
            (ROUTER, A, 410),
        ],
    )
    def test_image_tokens_follow_each_familys_formula(self, crystal, image, tokens):
        assert crystal.image_tokens(image) == tokens

    def test_an_estimate_counts_images_and_learns_how_far_the_formula_is_off(self):
        estimator = find_estimator(limited(GEMINI, tokens_per_minute=1000))
        estimator.answer = 0.0
        query = Query(Invocation([user("", A)]), {}, None)
        assert estimator.estimate_tokens(query.invocation, {}) == 1_120
        for _ in range(60):
            estimator.learn(query.invocation, Usage(560, 0))
        assert estimator.estimate_tokens(query.invocation, {}) == pytest.approx(560, rel=0.01)
        assert estimator.per_character == Estimator().per_character
        assert Estimator().estimate_tokens(query.invocation, {}) == pytest.approx(500 + 410)

    def test_the_estimate_of_a_growing_context_equals_that_of_the_whole_context(self):
        one = Estimator(estimate_by_patches)
        for view in contexts():
            fresh = Estimator(estimate_by_patches)
            assert one.estimate_tokens(Invocation(view), {}) == fresh.estimate_tokens(Invocation(list(view)), {})

    def test_the_tokens_of_an_image_follow_from_its_pixels(self):
        assert estimate_by_pixels(Image(png(750, 1))) == 1
