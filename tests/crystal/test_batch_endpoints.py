"""The lists of batches at providers."""

from __future__ import annotations

import httpx
import pytest

from cantrip_actors.crystal.batch_endpoints import MARK
from cantrip_actors.crystal.batch_families import make_endpoint
from cantrip_actors.crystals import google

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
