"""A picture or file that a provider refuses is left out of later requests, and the conversation goes on."""

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import Cantrip, Circle, File, Image, Retry, Runtime, gate
from cantrip_actors.crystal.constructors import anthropic, google, local, openai
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.image_header import is_broken
from cantrip_actors.terms.messages import Message
from cantrip_actors.wards import max_turns
from tests.crystal.streams import Said, framed
from tests.pictures import PDF, png
from tests.provider_rules import StrictProvider

pytestmark = pytest.mark.rule("V-04")

BROKEN = png(9, 9)[:-20]
MAKERS = {
    "anthropic": lambda client: anthropic("claude-sonnet-4-5", client=client, api_key="k"),
    "openai": lambda client: openai("gpt-5", client=client, api_key="k"),
    "openai-chat": lambda client: local("http://127.0.0.1:9/v1", "m", client=client),
    "google": lambda client: google("gemini-2.5-pro", client=client, api_key="k"),
}
WORDS = [
    "Could not process image",
    "Unable to process input image. Please retry or report the problem",
    "The image data you provided does not represent a valid image.",
    "Invalid request.",
]


@gate
async def screenshot() -> Image:
    """Take a screenshot."""
    return Image(BROKEN)


def refuse(file, words, status=400):
    """Refuse every request that has a file in it."""
    content = file.file_id or file.base64()
    refusal = httpx.Response(status, json={"error": {"message": words, "type": "invalid_request_error"}})
    return lambda body: refusal if content in json.dumps(body) else None


def cantrip(crystal, *gates):
    return Cantrip(crystal, circle=Circle(["done", *gates], [max_turns(5)]), retry=Retry(max_retries=0))


@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.parametrize("source", ["a gate", "a person"])
async def test_a_refused_picture_is_left_out_and_the_query_is_asked_again(family, source) -> None:
    for words in WORDS:
        fine = framed(family, Said("", "fine"))
        answers = [framed(family, Said("", "", (("screenshot", {}),))), fine] if source == "a gate" else [fine]
        provider = StrictProvider(family, *answers, refuse=refuse(Image(BROKEN), words))
        async with Runtime.open("memory:") as runtime:
            intent = "look" if source == "a gate" else ["look", Image(BROKEN)]
            entity = await runtime.invoke(cantrip(MAKERS[family](provider.client), screenshot), intent, name="n")
            episode = await entity.episode()
            replies = [(await entity.send(text)).result for text in ("and now?", "please")]
        assert (episode.result, replies, len(provider.refused)) == ("fine", ["fine"] * 2, 1), words
        assert "images" in episode.thread[-1].left_out
        assert "not shown: the provider refused it" in json.dumps(provider.requests[-1])


@pytest.mark.parametrize("words", [*WORDS, "messages.2.content.1.image.source.base64: too many pixels"])
async def test_only_the_refused_one_of_several_pictures_is_left_out(words) -> None:
    bad = Image(png(8, 8) if words.startswith("messages") else BROKEN)
    good = [Image(png(shade=shade)) for shade in (1, 2)]
    messages = [
        Message("user", "first", images=(good[0],)),
        Message("assistant", "yes"),
        Message("user", "second", images=(bad,)),
        Message("assistant", "yes"),
        Message("user", "third", images=(good[1],)),
    ]
    provider = StrictProvider("anthropic", framed("anthropic", Said("", "fine")), refuse=refuse(bad, words))
    response = await MAKERS["anthropic"](provider.client).invoke(messages)
    sent = json.dumps(provider.requests[-1])
    assert all(image.base64() in sent for image in good)
    assert (response.metadata["left_out"], len(provider.requests)) == (("images",), 2)


async def test_a_picture_that_was_accepted_before_is_not_suspected() -> None:
    good, bad = Image(png(shade=1)), Image(png(shade=2))
    provider = StrictProvider(
        "anthropic", framed("anthropic", Said("", "fine")), refuse=refuse(bad, "Invalid request.")
    )
    crystal = MAKERS["anthropic"](provider.client)
    context = [Message("user", "first", images=(good,))]
    await crystal.invoke(context)
    await crystal.invoke([*context, Message("assistant", "yes"), Message("user", "second", images=(bad,))])
    assert good.base64() in json.dumps(provider.requests[-1])


async def test_a_file_id_that_has_expired_is_left_out() -> None:
    file = File.uploaded("file_011", "anthropic")
    provider = StrictProvider(
        "anthropic", framed("anthropic", Said("", "fine")), refuse=refuse(file, "File not found: file_011", 404)
    )
    response = await MAKERS["anthropic"](provider.client).invoke([Message("user", "read it", images=(file,))])
    assert (response.content, response.metadata["left_out"]) == ("fine", ("files",))


async def test_a_refused_document_is_left_out() -> None:
    file = File(PDF)
    words = "The PDF specified was not valid."
    provider = StrictProvider("anthropic", framed("anthropic", Said("", "fine")), refuse=refuse(file, words))
    response = await MAKERS["anthropic"](provider.client).invoke([Message("user", "read it", images=(file,))])
    assert (response.content, response.metadata["left_out"]) == ("fine", ("files",))


async def test_a_refusal_for_another_reason_leaves_nothing_out_later() -> None:
    image, refusals = Image(png()), [httpx.Response(400, json={"error": {"message": "no"}})] * 2
    provider = StrictProvider(
        "anthropic", framed("anthropic", Said("", "fine")), refuse=lambda _: refusals.pop() if refusals else None
    )
    crystal = MAKERS["anthropic"](provider.client)
    messages = [Message("user", "look", images=(image,))]
    with pytest.raises(ProviderError, match="no"):
        await crystal.invoke(messages)
    assert "left_out" not in (await crystal.invoke(messages)).metadata
    assert image.base64() in json.dumps(provider.requests[-1])


async def test_a_block_of_the_provider_that_it_refuses_is_left_out() -> None:
    block = {
        "provider": "anthropic",
        "model": "claude-sonnet-4-5",
        "content": [{"type": "redacted_thinking", "data": "odd"}],
    }
    messages = [Message("user", "go"), Message("assistant", "yes", blocks=(block,)), Message("user", "more")]
    provider = StrictProvider(
        "anthropic",
        framed("anthropic", Said("", "fine")),
        refuse=lambda body: (
            httpx.Response(400, json={"error": {"message": "messages.1.content.0: sorry"}})
            if "odd" in json.dumps(body)
            else None
        ),
    )
    response = await MAKERS["anthropic"](provider.client).invoke(messages)
    assert (response.content, response.metadata["left_out"]) == ("fine", ("blocks",))


@given(st.integers(8, len(png()) - 1), st.binary(max_size=9))
def test_a_png_that_is_cut_off_is_broken_and_a_whole_one_is_not(length, tail) -> None:
    assert is_broken(png()[:length])
    assert not is_broken(png() + tail)
