"""Requests to an entity with a long log: the records that they read do not grow in number with it."""

from collections.abc import Sequence
from typing import Any

import pytest

from cantrip_actors.records.records import Record
from tests.http.serving import Served, echo, in_process


async def count_records(on: Served, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many records of the loom a request reads."""
    store = on.runtime.loom._store
    sizes: list[int] = []
    read = store.records

    def read_and_count(*args: Any, **options: Any) -> Sequence[Record]:
        records = read(*args, **options)
        sizes.append(len(records))
        return records

    with monkeypatch.context() as patch:
        patch.setattr(store, "records", read_and_count)
        assert (await on.client.post(path, json=body)).status_code == 200
    return sum(sizes)


SEND: Any = ("/api/v1/entities/bob/send", {"intent": "go", "wait": 9})
CHAT: Any = ("/v1/chat/completions", {"model": "entity:bob", "messages": [{"role": "user", "content": "go"}]})


@pytest.mark.rule("K-30")
@pytest.mark.parametrize(("request_of_client", "readings"), [(SEND, 0), (CHAT, 1)], ids=["send", "chat"])
async def test_a_request_reads_the_log_of_its_entity_at_most_once(
    request_of_client: tuple[str, dict[str, Any]], readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body = request_of_client
    async with in_process([echo()]) as on:
        entity = await on.runtime.ensure("bob", on.service.cantrips["echo"])
        await entity.send("first")
        at_first = await count_records(on, path, body, monkeypatch)
        for number in range(40):
            await entity.send(f"intent {number}")
        later, log = await count_records(on, path, body, monkeypatch), len(on.runtime.loom.records(entity.id))
    assert later - at_first <= readings * log


@pytest.mark.rule("X-32")
async def test_an_answer_over_http_has_no_secret_of_the_entity() -> None:
    secret = "sk-ant-api03-" + "Ab1" * 20
    async with in_process([echo()]) as on:
        await (await on.runtime.ensure("bob", on.service.cantrips["echo"])).send("first")
        path, body = CHAT
        body = {**body, "messages": [{"role": "user", "content": f"my key is {secret}"}]}
        answer = await on.client.post(path, json=body)
    assert answer.status_code == 200
    assert "my key is" in answer.text
    assert secret not in answer.text
