"""Prices of models: from the dataset of `genai-prices`, and from tables of the user."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import genai_prices
import pytest
from genai_prices.data_snapshot import DataSnapshot, get_snapshot, set_custom_snapshot
from genai_prices.types import (
    ClauseEquals,
    ConditionalPrice,
    ModelInfo,
    ModelPrice,
    Provider,
    StartDateConstraint,
)
from hypothesis import assume, given
from hypothesis import strategies as st

from cantrip_actors.crystal.draft import Counts
from cantrip_actors.crystal.prices import _COLUMNS, Model, Prices
from cantrip_actors.crystals import anthropic, local, openai

pytestmark = pytest.mark.rule("R-25")

MILLION = 1_000_000
SOLD = [
    (provider.id, model.id)
    for provider in get_snapshot().providers
    if provider.id in ("anthropic", "aws", "azure", "google", "groq", "openai")
    for model in provider.models
    if model.is_match(model.id)
]
BY_TOKEN = frozenset(_COLUMNS.values())


@given(sold=st.sampled_from(SOLD), data=st.data())
def test_costs_follow_the_dataset(sold, data):
    seller, name = sold
    info = get_snapshot().find_provider_model(name, None, seller, None)[1]
    assume(set(vars(info.get_prices(datetime.now(UTC)))) >= {"input_mtok", "output_mtok"})
    cached, written, plain, said = (data.draw(st.integers(0, 400_000)) for _ in range(4))
    counts = Counts(plain + cached + written, said, cached, written)
    usage = genai_prices.Usage(
        input_tokens=counts.prompt, output_tokens=said, cache_read_tokens=cached, cache_write_tokens=written
    )
    theirs = genai_prices.calc_price(usage, name, provider_id=seller).total_price
    assert Prices().model(name, seller=seller).cost(counts) == pytest.approx(float(theirs), abs=1e-9)


def test_no_network_is_used_and_importing_the_crystals_reads_no_dataset():
    program = """
import socket, sys
def refuse(*_):
    raise AssertionError("the network was asked")
socket.socket.connect = socket.getaddrinfo = refuse
from cantrip_actors.crystals import Prices, anthropic
assert "genai_prices" not in sys.modules
from cantrip_actors.crystal.draft import Counts
crystal = anthropic("claude-sonnet-4-5", api_key="k")
assert crystal.has_prices and crystal.find_model("claude-sonnet-4-5").cost(Counts(1_000, 1_000)) > 0
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


class TestSellers:
    """A price depends on the seller of the model: the address names it, else the family."""

    def test_a_server_of_the_user_has_no_prices(self):
        assert not local("http://localhost:11434/v1", "llama-3.3-70b-versatile").has_prices
        assert not local("http://localhost:11434/v1", "gpt-4o").has_prices

    def test_the_prices_of_a_known_address_are_used(self):
        groq = local("https://api.groq.com/openai/v1", "llama-3.3-70b-versatile")
        assert groq.has_prices
        assert groq.find_model("llama-3.3-70b-versatile").input == 0.59

    def test_an_unknown_gateway_has_the_prices_of_the_family(self):
        proxied = openai("gpt-4o", base_url="https://gateway.example/v1", api_key="k")
        assert proxied.find_model("gpt-4o") == Prices().model("gpt-4o")

    def test_the_names_of_a_model_in_a_cloud_are_known(self):
        for name in ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic.claude-sonnet-4-5-20250929-v1:0"):
            found = Prices().model(name, seller="aws")
            assert (found.max_output, found.adaptive) == (64_000, False)
            assert found.input > 0


class TestPricesOfTheUser:
    """A user's own rows go before the dataset."""

    def test_a_price_of_the_user_replaces_that_of_the_dataset(self):
        mine = Prices({"gpt-4o": {"input": 1, "output": 2}})
        assert (mine.model("gpt-4o-2024-11-20").input, mine.model("gpt-4.1").input) == (1, 2)

    def test_with_alone_only_prices_of_the_user_are_used(self):
        mine = Prices({"gpt-4o": {"input": 1, "output": 2}}, alone=True)
        assert mine.model("gpt-4.1") == Model()

    def test_a_free_model_has_a_known_price(self):
        assert openai("mine", api_key="k", prices=Prices({"mine": {}})).has_prices


class TestTime:
    """Prices are those of the moment, by the newest snapshot that the program has."""

    @pytest.fixture(autouse=True)
    def fresh(self):
        yield
        set_custom_snapshot(None)

    def test_a_dataset_that_the_program_fetched_is_used_at_once(self):
        today = datetime.now(UTC).date()
        prices = [
            ConditionalPrice(prices=ModelPrice(input_mtok=Decimal(1), output_mtok=Decimal(1))),
            ConditionalPrice(
                constraint=StartDateConstraint(today - timedelta(days=1)),
                prices=ModelPrice(input_mtok=Decimal(7), output_mtok=Decimal(9)),
            ),
            ConditionalPrice(
                constraint=StartDateConstraint(today + timedelta(days=9)),
                prices=ModelPrice(input_mtok=Decimal(8), output_mtok=Decimal(9)),
            ),
        ]
        crystal = anthropic("claude-next", api_key="k")
        assert not crystal.has_prices
        info = ModelInfo("claude-next", ClauseEquals("claude-next"), prices=prices)
        sold = Provider("anthropic", "Anthropic", r"https://api\.anthropic\.com", models=[info])
        set_custom_snapshot(DataSnapshot([sold], from_auto_update=True))
        assert crystal.has_prices
        assert crystal.find_model("claude-next").cost(Counts(MILLION, MILLION)) == 16


class TestBatches:
    """Batches cost what the dataset says, else half."""

    @pytest.mark.parametrize("name", ["claude-sonnet-4-5", "gpt-4o", "gemini-2.5-flash"])
    def test_a_batch_costs_half(self, name):
        counts = Counts(MILLION, MILLION, 1_000)
        full, half = Prices().model(name).cost(counts), Prices().model(name, batch=True).cost(counts)
        assert half == pytest.approx(full / 2, rel=0.02)

    def test_a_price_of_the_user_is_halved_for_batches(self):
        row = {"input": 4, "output": 8, "cached": 2, "above": {"tokens": 10, "input": 6}}
        found = Prices({"mine": row}).model("mine", batch=True)
        assert (found.input, found.output, found.cached, found.written) == (2, 4, 1, None)
        assert found.above == {"tokens": 10, "input": 3}
