"""Submissions over HTTP: some node of the loom casts, from a queue, once for each key."""

from pathlib import Path
from typing import Any

import pytest

from cantrip_actors import Queue
from tests.http.serving import Served, served, token

pytestmark = [pytest.mark.real_time, pytest.mark.rule("N-50", "HTTP-02")]

QUEUES = {"queues": [Queue("reports", max_running=1)]}


async def submit(on: Served, expect: int = 202, *, key: str = "k", name: str = "admin", **more: Any) -> Any:
    body = {"cantrip": "echo", "intent": "hi", "queue": "reports", **more}
    return await on.ask("POST", "submissions", expect, json=body, headers=on.as_token(name) | {"idempotency-key": key})


async def test_a_submission_is_cast_from_its_queue() -> None:
    async with served(options=QUEUES) as on:
        made = (await submit(on)).json()
        assert made["key"] == "k"
        assert (await submit(on, 200, wait=10)).json()["entity_id"] == made["entity_id"]
        assert on.runtime.loom.header(made["entity_id"]).queue == "reports"


async def test_a_repeated_submission_is_found_by_its_key() -> None:
    async with served(options=QUEUES) as on:
        first = await submit(on)
        again = await submit(on)
        assert first.json()["entity_id"] == again.json()["entity_id"]
        assert ("idempotency-replayed" in first.headers, again.headers["idempotency-replayed"]) == (False, "true")
        assert (await submit(on, 422, intent="other")).json()["type"] == "urn:cantrip:idempotency-key-reused"


async def test_a_submission_to_an_unknown_queue_is_refused_with_the_names_of_the_others() -> None:
    async with served(options=QUEUES) as on:
        told = (await submit(on, 422, queue="bulk")).json()
        assert "reports" in told["detail"]


@pytest.mark.rule("HTTP-11")
async def test_a_submission_needs_the_scope_and_an_offered_cantrip() -> None:
    async with served(tokens=[token("reader", "read")], options=QUEUES) as on:
        await submit(on, 403, name="reader")
        await submit(on, 404, cantrip="unknown")


async def test_a_service_submits_what_a_node_casts(tmp_path: Path) -> None:
    from cantrip_actors import Node, Runtime
    from tests.http.serving import echo

    url = f"sqlite:{tmp_path}/loom.db"
    async with (
        Runtime.open(url, cantrips=[echo()], node=Node("w1"), queues=QUEUES["queues"]) as worker,
        served(url=url) as on,
    ):
        made = (await submit(on, 200, wait=10)).json()
        assert worker.loom.header(made["entity_id"]).queue == "reports"
