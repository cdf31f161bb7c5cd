"""Azure OpenAI: v1 and classic, with keys and with tokens of Entra."""

import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError

from cantrip_actors.crystal import resolve
from cantrip_actors.crystal.testing import FaultyServer, failing
from cantrip_actors.crystals import azure, local
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, ProviderError
from cantrip_actors.terms.messages import Message
from tests.crystal.clouds import answer

pytestmark = pytest.mark.rule("R-23")

GO = [Message("user", "go")]


@pytest.fixture(autouse=True)
def nobody(monkeypatch):
    for name in ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT", "OPENAI_API_VERSION"):
        monkeypatch.delenv(name, raising=False)


class Credential:
    """A credential of azure-identity, as it behaves: it raises what `errors` has first."""

    def __init__(self, *errors, lasts=3600):
        self.errors = list(errors)
        self.lasts = lasts
        self.scopes = []

    def get_token(self, *scopes, **_):
        if self.errors:
            raise self.errors.pop(0)
        self.scopes.append(scopes)
        return SimpleNamespace(token=f"entra-token-{len(self.scopes)}", expires_on=time.time() + self.lasts)


@pytest.mark.real_time
class TestQueries:
    """What comes to Azure."""

    async def test_v1_takes_a_deployment_where_openai_takes_a_model(self):
        async with FaultyServer([answer("openai")]) as server:
            crystal = azure("my-gpt", endpoint=f"{server.url}/", api_key="azure-key-1")
            response = await crystal.invoke(GO)
        asked = server.requests[0]
        assert (asked.path, asked.headers["api-key"], asked.json["model"]) == (
            "/openai/v1/responses",
            "azure-key-1",
            "my-gpt",
        )
        assert (response.content, response.metadata["provider"]) == ("hi", "azure")

    async def test_classic_has_the_deployment_in_its_path_and_the_version_in_its_query(self):
        async with FaultyServer([answer("openai-chat")]) as server:
            crystal = azure("my gpt", endpoint=server.url, api_key="azure-key-1", api_version="2024-10-21")
            assert (await crystal.invoke(GO)).content == "hi"
        path = "/openai/deployments/my%20gpt/chat/completions?api-version=2024-10-21"
        assert server.requests[0].path == path

    async def test_an_entra_token_is_sent_when_there_is_no_key(self, monkeypatch):
        credential = Credential()
        monkeypatch.setattr("azure.identity.DefaultAzureCredential", lambda: credential)
        async with FaultyServer([answer("openai-chat")]) as server:
            monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", server.url)
            crystal = azure("my-gpt", chat=True)
            for _ in range(2):
                await crystal.invoke(GO)
        assert {asked.headers["authorization"] for asked in server.requests} == {"Bearer entra-token-1"}
        assert credential.scopes == [("https://cognitiveservices.azure.com/.default",)]
        assert crystal.secrets == {"AZURE_OPENAI_AD_TOKEN": "entra-token-1"}

    async def test_a_token_that_expires_or_is_refused_is_renewed(self):
        credential = Credential(lasts=60)
        refusal = failing(401, {"error": {"code": "401", "message": "Access token entra-token-3 has been revoked"}})
        async with FaultyServer([answer("openai"), answer("openai"), refusal, refusal]) as server:
            crystal = azure("my-gpt", endpoint=server.url, credentials=credential)
            await crystal.invoke(GO)
            await crystal.invoke(GO)
            with pytest.raises(ProviderError, match="revoked") as caught:
                await crystal.invoke(GO)
        told = [asked.headers["authorization"] for asked in server.requests]
        assert told == [f"Bearer entra-token-{n}" for n in (1, 2, 3, 4)]
        assert caught.value.status == 401

    @pytest.mark.parametrize(
        ("error", "kind", "said"),
        [
            (ClientAuthenticationError("not logged in"), CrystalError, "az login"),
            (ServiceRequestError("no route"), ProviderError, "no token could be fetched"),
        ],
    )
    async def test_a_token_that_cannot_be_fetched_is_an_error(self, error, kind, said):
        async with FaultyServer([answer("openai")]) as server:
            crystal = azure("my-gpt", endpoint=server.url, credentials=Credential(error))
            with pytest.raises(kind, match=said) as caught:
                await crystal.invoke(GO)
            assert (getattr(caught.value, "retryable", False) is True) == (kind is ProviderError)
            assert (await crystal.invoke(GO)).content == "hi"

    async def test_the_price_is_that_of_the_model_which_answers(self):
        from tests.crystal.streams import STREAMS, Said, events

        sent = STREAMS["openai-chat"](Said("", "hi"))
        for chunk in sent:
            chunk["model"] = "gpt-4o-2024-11-20"
        reply = replace(answer("openai-chat"), body=events(*sent, done=True))
        async with FaultyServer([reply]) as server:
            crystal = azure("my-gpt", endpoint=server.url, api_key="k", chat=True)
            response = await crystal.invoke(GO)
        assert not crystal.has_prices
        assert response.usage.cost == pytest.approx((10 * 2.5 + 7 * 10) / 1e6)

    @pytest.mark.rule("R-12")
    async def test_an_address_with_a_query_keeps_its_path(self):
        async with FaultyServer([answer("openai-chat")]) as server:
            crystal = local(f"{server.url}/openai/deployments/d/?api-version=2024-10-21&x=1", "d")
            await crystal.invoke(GO)
            assert crystal._client.address == f"{server.url}/openai/deployments/d/"
        assert server.requests[0].path == "/openai/deployments/d/chat/completions?api-version=2024-10-21&x=1"


class TestConstruction:
    """What can be known before the first query."""

    def test_the_crystal_resolves_from_a_deployment_name(self, monkeypatch):
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com")
        assert resolve("azure:my-gpt")._client.base_url == "https://mine.openai.azure.com/openai/v1"

    @pytest.mark.parametrize("endpoint", [None, "mine.openai.azure.com"])
    def test_a_missing_endpoint_is_refused(self, endpoint):
        with pytest.raises(InvalidCantrip, match="AZURE_OPENAI_ENDPOINT"):
            azure("my-gpt", endpoint=endpoint)


def test_a_missing_extra_says_what_to_install(monkeypatch):
    from cantrip_actors.crystals import bedrock, vertex

    monkeypatch.setitem(sys.modules, "botocore.eventstream", None)
    monkeypatch.setitem(sys.modules, "google.auth", None)
    with pytest.raises(InvalidCantrip, match=r'pip install "cantrip-actors\[bedrock\]"'):
        bedrock("m", region="eu-north-1")
    with pytest.raises(InvalidCantrip, match=r'pip install "cantrip-actors\[vertex\]"'):
        vertex("gemini-2.5-pro", project="p")
