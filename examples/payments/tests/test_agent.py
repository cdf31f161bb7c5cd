"""The agent pays, asks a person about large payments, and stands every answer of a model."""

from contextlib import suppress

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors import Cantrip, CantripError, Runtime, scripted
from cantrip_actors.testing import virtual, wild
from payments_desk.agent import make_desk
from payments_desk.bank import Account
from slow_bank import SlowBank


@pytest.fixture
def desk(bank) -> Cantrip:
    return make_desk(Account(bank, "otto"))


async def test_the_agent_pays(runtime, desk, bank):
    assert (await runtime.cast(desk, "Pay 20 to Anna.")).result == "Paid 20 to Anna."
    assert bank.transfers == {("otto", "Anna", 20): 1}


@pytest.mark.parametrize(("decision", "amounts"), [("allow", [500]), ("deny", [])])
async def test_a_person_decides_about_a_large_payment(runtime, desk, bank, decision, amounts):
    entity = await runtime.start(desk, "Pay 500 to Anna.")
    async with runtime.requests(follow=True) as requests:
        request = await anext(requests)
    await anyio.sleep(7 * 24 * 3600)  # no time in a test
    assert not bank.transfers
    await runtime.decide(request.id, decision, by="carla")
    await entity.episode()
    assert [amount for _, _, amount in bank.transfers] == amounts


@settings(deadline=None, max_examples=10)
@given(st.lists(wild(make_desk(Account(None, "otto")).circle), min_size=1, max_size=4))
def test_no_answer_of_a_model_pays_a_large_amount_unasked(answers):
    bank = SlowBank()

    async def cast() -> None:
        desk = make_desk(Account(bank, "otto")).with_crystal(scripted([*answers, "end"] * 3))
        async with Runtime.open("memory:", unattended="deny") as runtime:
            with suppress(CantripError):  # the model may say nothing, again and again
                await runtime.cast(desk, "Pay 20 to Anna.")

    backend, options = virtual("asyncio")
    anyio.run(cast, backend=backend, backend_options=options)
    assert all(amount <= 100 for _, _, amount in bank.transfers)
