"""Undo and compact over HTTP: a client hears of it in time, also if the entity can do it only much later."""

import anyio
import pytest

from cantrip_actors.http import ServiceLimits
from cantrip_actors.records.records import Folded
from tests.http.serving import echo, in_process

pytestmark = pytest.mark.rule("HTTP-14")


async def test_a_client_that_folds_an_entity_that_waits_for_a_person_is_answered_in_time() -> None:
    async with in_process([echo()]) as on:
        bob = await on.runtime.ensure("bob", echo())
        for intent in ("first", "second", "third"):
            await bob.send(intent)
        await bob.post("pay 3")
        async with on.runtime.requests(follow=True) as requests:
            request = await anext(requests)
        began = anyio.current_time()
        assert not (await on.ask("POST", "entities/bob/compact", 202, json={})).content
        assert anyio.current_time() - began == pytest.approx(ServiceLimits().longest_wait, abs=1)
        await on.runtime.decide(request.id, "allow", by="ada")
        assert (await bob.episode()).result == "it said: paid 3"
        assert sum(isinstance(record, Folded) for record in on.runtime.loom.records(bob.id)) == 1
