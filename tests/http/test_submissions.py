"""Submissions over HTTP: some node of the loom casts, from a queue, once for each key."""

from pathlib import Path
from typing import Any

import anyio
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


@pytest.mark.rule("C-19")
async def test_a_waiting_submission_is_withdrawn_and_never_begins() -> None:
    async with served(options=QUEUES) as on:
        busy = (await submit(on, key="busy", intent="nap 60")).json()["entity_id"]
        with anyio.fail_after(10):
            while not on.runtime.loom.has_begun(busy):
                await anyio.sleep(0.02)
        made = (await submit(on, key="a/b")).json()
        path = "submissions/a%2Fb"
        assert await on.get(path) == {**made, "has_begun": False}
        assert (await on.ask("DELETE", path, 200)).json() == {**made, "has_begun": False}
        for method in ("GET", "DELETE"):
            gone = (await on.ask(method, path, 404)).json()
            assert gone["type"] == "urn:cantrip:unknown-submission"
        await on.ask("DELETE", f"entities/{busy}", 204)
        assert (await submit(on, 200, key="next", wait=10)).json()["terminated"]
        assert not on.runtime.loom.has_begun(made["entity_id"])


@pytest.mark.rule("C-19")
async def test_a_submission_that_has_begun_is_not_withdrawn() -> None:
    async with served(options=QUEUES) as on:
        made = (await submit(on, 200, wait=10)).json()
        told = (await on.ask("DELETE", "submissions/k", 409)).json()
        assert (told["type"], told["entity_id"]) == ("urn:cantrip:not-waiting", made["entity_id"])
        assert (await on.get("submissions/k"))["has_begun"]


async def test_a_service_submits_a_cast_that_a_node_begins(tmp_path: Path) -> None:
    from cantrip_actors import Node, Runtime
    from tests.http.serving import echo

    url = f"sqlite:{tmp_path}/loom.db"
    async with (
        Runtime.open(url, cantrips=[echo()], node=Node("w1"), queues=QUEUES["queues"]) as worker,
        served(url=url) as on,
    ):
        made = (await submit(on, 200, wait=10)).json()
        assert worker.loom.header(made["entity_id"]).queue == "reports"


async def test_a_service_takes_a_submission_for_a_cantrip_that_only_another_node_offers(tmp_path: Path) -> None:
    from cantrip_actors import Node, Runtime
    from tests.http.serving import echo

    url = f"sqlite:{tmp_path}/loom.db"
    limited = token("limited", "cast", "read", cantrips=frozenset({"echo"}))
    async with (
        Runtime.open(url, cantrips=[echo("mail")], node=Node("w1"), queues=QUEUES["queues"]),
        served(url=url, tokens=[limited]) as on,
    ):
        assert (await submit(on, 200, cantrip="mail", wait=10)).json()["result"] == "you said: hi"
        await submit(on, 404, key="l", name="limited", cantrip="mail")
        await submit(on, 404, key="u", cantrip="unknown")
