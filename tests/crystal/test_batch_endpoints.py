"""What providers answer about batches and about responses in the background."""

from __future__ import annotations

import threading
from contextlib import suppress

import anyio
import httpx
import pytest

from cantrip_actors.crystal import Query
from cantrip_actors.crystal.batch_endpoints import MARK, BatchEndpoint
from cantrip_actors.crystal.batch_families import make_endpoint
from cantrip_actors.crystals import anthropic, background, batched, google, openai
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.messages import Invocation, Message

TOKEN = "a+b/c=&d"


def answer_with_a_page(request: httpx.Request) -> httpx.Response:
    is_second = request.url.params.get("pageToken") == TOKEN
    name = "batches/second" if is_second else "batches/first"
    metadata = {"displayName": MARK, "createTime": "2026-11-27T00:00:00Z", "state": "BATCH_STATE_RUNNING"}
    page = {"operations": [{"name": name, "metadata": metadata}]}
    return httpx.Response(200, json=page if is_second else {**page, "nextPageToken": TOKEN})


@pytest.mark.rule("R-24")
async def test_a_list_of_batches_is_read_past_a_page_token_with_reserved_characters() -> None:
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer_with_a_page)) as client:
        listed = await make_endpoint(google("gemini-2.5-flash", api_key="key", client=client)).list_batches(0.0)

    assert [one.batch for one in listed] == ["batches/first", "batches/second"]


SHAPES = [
    b"{}",
    b"[]",
    b'"no"',
    b"<html>",
    b'{"id": null, "name": [], "data": [{}], "operations": [{"name": 1}], "status": {}}',
]


@pytest.mark.unpublished
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", [anthropic, openai, google])
async def test_an_answer_of_any_shape_about_a_batch_is_a_failure_of_its_provider(make, shape) -> None:
    query = Query(Invocation([Message("user", "hello")]), key="a query", since="2026-11-27T00:00:00Z")
    handle = {"batches": ["b"], "id": "q"}
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200, content=shape))) as client:
        crystal = batched(make("model", api_key="key", client=client), every=0.0)
        for work in (lambda: crystal.post(query), lambda: crystal.collect(handle, query)):
            try:
                answered = await work()
            except ProviderError:
                continue
            assert "batches" in (answered if isinstance(answered, dict) else answered.handle)
        look = await crystal.look([handle])
    assert len(look.ready) == 1


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_answer_of_any_shape_about_a_response_in_the_background_is_a_failure_of_its_provider(shape) -> None:
    query, handle = Query(Invocation([Message("user", "hello")]), key="a query"), {"response": "r"}
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200, content=shape))) as client:
        crystal = background(openai("model", api_key="key", client=client))
        for work in (lambda: crystal.post(query), lambda: crystal.collect(handle, query)):
            with suppress(ProviderError):
                await work()
        await crystal.look([handle])
        await anyio.sleep(60)
        await crystal.look([handle])


async def test_a_response_in_the_background_is_not_kept_once_it_was_collected() -> None:
    query, handle = Query(Invocation([Message("user", "hello")]), key="a query"), {"response": "r"}
    refused = {
        "object": "response",
        "id": "r",
        "status": "failed",
        "error": {"code": "invalid_prompt", "message": "no"},
        "output": [],
    }
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200, json=refused))) as client:
        crystal = background(openai("model", api_key="key", client=client))
        with pytest.raises(ProviderError, match="invalid_prompt"):
            await crystal.collect(handle, query)
    assert not crystal._watched


async def test_the_answers_of_a_batch_are_read_in_a_thread(monkeypatch) -> None:
    threads = set()
    parse = BatchEndpoint._parse_object

    def note_thread(self: BatchEndpoint, body: bytes) -> object:
        threads.add(threading.get_ident())
        return parse(self, body)

    monkeypatch.setattr(BatchEndpoint, "_parse_object", note_thread)
    lines = b"\n".join(b'{"custom_id":"%d","result":{"type":"expired"}}' % number for number in range(3))
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200, content=lines))) as client:
        answers = await make_endpoint(anthropic("model", api_key="key", client=client)).fetch_answers("b")
    assert answers == {"0": None, "1": None, "2": None}
    assert threading.get_ident() not in threads


@pytest.mark.unpublished
async def test_a_query_does_not_join_a_group_whose_queries_were_all_cancelled() -> None:
    """It would be submitted alone, when the time of that group is over."""
    submitted: list[int] = []

    def take(request: httpx.Request) -> httpx.Response:
        submitted.append(request.content.count(b"custom_id"))
        return httpx.Response(200, json={"id": "batch"})

    async with httpx.AsyncClient(transport=httpx.MockTransport(take)) as client:
        crystal = batched(anthropic("model", api_key="key", client=client), every=60.0)

        async def post(key: str) -> None:
            await crystal.post(Query(Invocation([Message("user", key)]), key=key))

        with anyio.move_on_after(50):
            await post("cancelled")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post, "first")
            await anyio.sleep(20)
            tasks.start_soon(post, "second")
    assert submitted == [2]
