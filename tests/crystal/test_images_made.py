"""Images that models make: in the response, in the stream, and in the next query in the shape of the family."""

import base64
import json

import orjson
import pytest

from cantrip_actors import Image
from cantrip_actors.crystal.constructors import anthropic, google, local, openai, openrouter
from cantrip_actors.crystal.encode import SamplingSettings
from cantrip_actors.crystal.families.chat import ChatDecoder
from cantrip_actors.crystal.families.google import GoogleDecoder
from cantrip_actors.crystal.families.responses import ResponsesDecoder
from cantrip_actors.crystal.provider import ProviderQuery, join_responses
from cantrip_actors.crystal.sse import ServerSentEvent
from cantrip_actors.crystal.testing import FaultyServer, Reply
from cantrip_actors.stream.wire import FinalImage, ItemDone, ItemStart
from cantrip_actors.terms.errors import CrystalError, ProviderError
from cantrip_actors.terms.file import LARGEST
from cantrip_actors.terms.image import add_handles
from cantrip_actors.terms.messages import Message, Response
from tests.pictures import jpeg, png
from tests.published import fault

pytestmark = pytest.mark.rule("R-09")

CAT, DOG = Image(png(64, 48, 7)), Image(jpeg())
MARK = f"sha256:{CAT.digest}"

GEMINI = google("gemini-3-pro-image", api_key="k")
GPT = openai("gpt-5", api_key="k")
ROUTER = openrouter("google/gemini-image", api_key="k")
CHAT = openai("gpt-4o", chat=True, api_key="k")
CLAUDE = anthropic("claude-sonnet-4-5", api_key="k")
LLAMA = local("http://localhost:1/v1", "llava")
ALL = [GEMINI, GPT, ROUTER, CHAT, CLAUDE, LLAMA]


def of_google(*parts):
    content = {"role": "model", "parts": list(parts)}
    usage = {"promptTokenCount": 5, "candidatesTokenCount": 1290}
    return [{"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": usage}]


def drawn(image=CAT, **more):
    return {"inlineData": {"mimeType": image.media_type, "data": image.base64()}, **more}


def of_openai(*output):
    done = [{"type": "response.output_item.done", "output_index": n, "item": item} for n, item in enumerate(output)]
    return [*done, {"type": "response.completed", "response": {"status": "completed", "output": list(output)}}]


CALL = {
    "type": "image_generation_call",
    "id": "ig_1",
    "status": "completed",
    "result": CAT.base64(),
    "revised_prompt": "a cat",
    "background": None,
}
SAYING = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "Here."}]}


def of_chat(message, *more):
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{CAT.base64()}"}, "index": 0}
    made = [{"choices": [{"index": 0, "delta": {**message, "images": [url]}}]}]
    return [*made, *more, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]


def decoded(decoder, events):
    payloads = [one for event in events for one in decoder.feed(ServerSentEvent(orjson.dumps(event)))]
    response = decoder.finish()
    return response, payloads + decoder.draft.take()


ANSWERS = {
    "google": (
        GEMINI,
        lambda: GoogleDecoder("gemini-3-pro-image"),
        of_google(drawn()),
        of_google({"text": "Here."}, drawn()),
    ),
    "openai": (GPT, lambda: ResponsesDecoder("gpt-5"), of_openai(CALL), of_openai(CALL, SAYING)),
    "openrouter": (
        ROUTER,
        lambda: ChatDecoder("google/gemini-image", provider="openrouter"),
        of_chat({"content": None}),
        of_chat({"content": "Here."}),
    ),
    "chat": (CHAT, lambda: ChatDecoder("gpt-4o"), of_chat({"content": ""}), of_chat({"content": "Here."})),
}
each_answer = pytest.mark.parametrize("family", ANSWERS)


@each_answer
def test_an_answer_with_only_an_image_is_valid(family) -> None:
    _, decoder, alone, _ = ANSWERS[family]
    response, payloads = decoded(decoder(), alone)
    assert (response.content, response.images) == (None, (CAT,))
    assert [one.item_type for one in payloads if isinstance(one, ItemStart)] == ["image"]
    (done,) = [one.final_item for one in payloads if isinstance(one, ItemDone)]
    assert done == FinalImage(CAT.label, "image/png", CAT.digest, CAT.size, 64, 48)


@each_answer
def test_an_answer_has_text_and_image_and_no_bytes_in_its_blocks(family) -> None:
    _, decoder, _, both = ANSWERS[family]
    response, payloads = decoded(decoder(), both)
    assert (response.content, response.images) == ("Here.", (CAT,))
    assert {one.item_type for one in payloads if isinstance(one, ItemStart)} == {"image", "message"}
    assert CAT.base64() not in json.dumps(response.blocks)
    assert response.usage is not None


def utterance(response):
    """The message that the loom makes of a response."""
    text = add_handles(response.content, response.images)
    return Message("assistant", text, response.tool_calls, blocks=response.blocks, images=response.images)


def sent(crystal, response):
    messages = [Message("user", "Draw a cat."), utterance(response), Message("user", "Blacker.")]
    asked = ProviderQuery(messages, (), None, SamplingSettings.of({}))
    put = crystal.family.make_request(asked)
    assert fault(crystal.family.provider, put.path, put.body) is None
    body = orjson.loads(put.body)
    return body[crystal.family.items]


@each_answer
@pytest.mark.parametrize("reader", ALL, ids=lambda one: one.name)
@pytest.mark.rule("R-08")
def test_every_family_accepts_images_that_another_family_made(family, reader) -> None:
    _, decoder, *both = ANSWERS[family]
    for events in both:
        response, _ = decoded(decoder(), events)
        told = json.dumps(sent(reader, response))
        assert told.count(CAT.base64()) == 1
        assert "sha256:" not in told


class TestEncoding:
    def test_google_gets_its_own_image_as_the_part_with_its_signature(self) -> None:
        response, _ = decoded(GoogleDecoder("gemini-3-pro-image"), of_google(drawn(thoughtSignature="c2ln")))
        assert response.blocks[0]["content"][0]["inlineData"]["data"] == MARK
        assert sent(GEMINI, response)[1] == {"role": "model", "parts": [drawn(thoughtSignature="c2ln")]}

    def test_openai_gets_its_own_image_as_the_call_with_its_id(self) -> None:
        response, _ = decoded(ResponsesDecoder("gpt-5"), of_openai(CALL, SAYING))
        wanted = {name: CALL[name] for name in ("type", "id", "status", "result")}
        assert sent(GPT, response)[1] == wanted

    def test_openrouter_gets_its_own_image_in_a_field_of_the_message(self) -> None:
        response, _ = decoded(*[make() if callable(make) else make for make in ANSWERS["openrouter"][1::2]])
        url = f"data:image/png;base64,{CAT.base64()}"
        assert sent(ROUTER, response)[1] == {
            "role": "assistant",
            "content": f"Here.\n{CAT.handle}",
            "images": [{"type": "image_url", "image_url": {"url": url}}],
        }

    def test_another_family_gets_the_image_right_after_the_text(self) -> None:
        response, _ = decoded(ChatDecoder("gpt-4o"), of_chat({"content": "Here."}))
        _, said, shown, asked = sent(CHAT, response)
        assert said == {"role": "assistant", "content": f"Here.\n{CAT.handle}"}
        assert [part.get("text") for part in shown["content"]] == ["[what you have made]", None]
        assert asked == {"role": "user", "content": "Blacker."}

    def test_an_image_whose_bytes_are_lost_is_replaced_by_a_note(self) -> None:
        response, _ = decoded(GoogleDecoder("gemini-3-pro-image"), of_google({"text": "Here."}, drawn()))
        said = Message("assistant", "Here.", blocks=response.blocks, images=(CAT.bare(),))
        put = GEMINI.family.make_request(ProviderQuery([Message("user", "x"), said], (), None, SamplingSettings.of({})))
        assert "sha256:" not in put.body.decode()
        assert "its bytes are not in the loom" in put.body.decode()

    def test_blocks_of_an_earlier_version_go_back_unchanged(self) -> None:
        content = [{"text": "Here."}, drawn()]
        block = {"provider": "google", "model": "gemini-3-pro-image", "content": content}
        put = GEMINI.family.make_request(
            ProviderQuery([Message("assistant", "Here.", blocks=(block,))], (), None, SamplingSettings.of({}))
        )
        assert orjson.loads(put.body)["contents"][0]["parts"] == content


class TestDecoding:
    def test_an_image_that_arrives_twice_counts_once(self) -> None:
        twice = of_chat({"content": "x"}, *of_chat({"content": ""})[:1])
        assert decoded(ChatDecoder("m"), twice)[0].images == (CAT,)

    def test_images_among_the_parts_of_a_content_are_decoded(self) -> None:
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{CAT.base64()}"}}
        body = {"choices": [{"index": 0, "message": {"content": [{"type": "text", "text": "Here."}, part]}}]}
        response, _ = decoded(ChatDecoder("m"), [body])
        assert (response.content, response.images) == ("Here.", (CAT,))

    def test_the_address_of_an_image_is_decoded(self) -> None:
        part = {"image_url": {"url": "https://example.org/cat.png"}}
        body = {"choices": [{"index": 0, "message": {"content": None, "images": [part]}}]}
        assert decoded(ChatDecoder("m"), [body])[0].images == (Image.at("https://example.org/cat.png"),)

    def test_sketches_of_a_thought_are_left_out(self) -> None:
        response, _ = decoded(GoogleDecoder("m"), of_google(drawn(DOG, thought=True), drawn()))
        assert response.images == (CAT,)
        assert DOG.base64() not in json.dumps(response.blocks)

    def test_invalid_image_data_is_not_an_answer(self) -> None:
        nothing = {"inlineData": {"mimeType": "image/png", "data": "bm90aGluZw=="}}
        with pytest.raises(CrystalError, match="neither content nor tool_calls"):
            decoded(GoogleDecoder("m"), of_google(nothing))

    def test_an_oversized_image_is_reported(self) -> None:
        data = base64.b64encode(png() + bytes(LARGEST)).decode()
        with pytest.raises(ProviderError, match=r"made an image of 20,.*: expected at most 20,000,000") as refused:
            decoded(GoogleDecoder("m"), of_google({"inlineData": {"mimeType": "image/png", "data": data}}))
        assert refused.value.retryable is False

    def test_an_interrupted_answer_keeps_the_images_of_both_parts(self) -> None:
        whole = join_responses(Response("a", images=(CAT,)), Response("b", images=(DOG, CAT)))
        assert whole.images == (CAT, DOG)


@pytest.mark.real_time
async def test_an_answer_with_only_an_image_is_counted_once() -> None:
    reply = Reply("".join(f"data: {json.dumps(one)}\n\n" for one in of_google(drawn())).encode())
    async with FaultyServer([reply] * 2) as server:
        crystal = google("gemini-3-pro-image", base_url=server.url, api_key="k")
        response = await crystal.invoke([Message("user", "Draw a cat.")])
        assert (response.images, len(server.requests)) == ((CAT,), 1)


class TestAnyCrystal:
    def test_a_crystal_of_the_user_may_return_images(self) -> None:
        assert Response.of({"images": [CAT]}).images == (CAT,)
        assert Response.of(Response(images=(CAT,))).images == (CAT,)

    @pytest.mark.parametrize("given", [["cat"], "cat", [b"png"]])
    def test_a_value_that_is_not_an_image_breaks_the_contract(self, given) -> None:
        with pytest.raises(CrystalError, match="crystal returned images"):
            Response.of({"content": "x", "images": given})
