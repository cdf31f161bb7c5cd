"""Vertex AI: Gemini and Claude with tokens of the application default credentials, which expire."""

import threading

import anyio
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from cantrip_actors.crystal import resolve
from cantrip_actors.crystal.access import BearerToken, TokenAccess
from cantrip_actors.crystal.testing import FaultyServer
from cantrip_actors.crystals import vertex
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, ProviderError
from cantrip_actors.terms.file import File
from cantrip_actors.terms.messages import Message
from tests.crystal.asking import CONTEXT, TOOLS, request
from tests.crystal.clouds import Google, answer, service_account

pytestmark = pytest.mark.rule("R-23")

GO = [Message("user", "go")]


@pytest.fixture(scope="module")
def keys() -> tuple[str, bytes]:
    """Return the private key of a service account, and the public key that verifies it."""
    key = rsa.generate_private_key(65537, 2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    """No credentials of the machine's own."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_OAUTH_ACCESS_TOKEN", "GOOGLE_CLOUD_LOCATION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.mark.real_time
class TestTokens:
    """A token is fetched when the first query needs it, and again when it expires or is refused."""

    @pytest.mark.parametrize(("family", "model"), [("google", "gemini-2.5-pro"), ("anthropic", "claude-sonnet-4-5")])
    async def test_a_service_account_signs_a_request_for_a_token(self, family, model, keys, tmp_path, monkeypatch):
        google = Google(family, keys[1])
        async with FaultyServer(google) as server:
            file = service_account(tmp_path, server.url, keys[0])
            monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
            crystal = vertex(model, base_url=server.url)
            assert not google.issued
            for _ in range(2):
                assert (await crystal.invoke(CONTEXT, TOOLS)).content == "hi"
        assert google.issued == 1
        assert crystal.secrets == {"GOOGLE_OAUTH_ACCESS_TOKEN": "token-1"}

    async def test_an_expired_token_is_renewed_once_for_all_queries(self, keys, tmp_path, monkeypatch):
        google = Google("google", keys[1], lasts=60)
        async with FaultyServer(google) as server:
            file = service_account(tmp_path, server.url, keys[0])
            monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
            crystal = vertex("gemini-2.5-pro", base_url=server.url)
            await crystal.invoke(GO)
            google.lasts = 3600
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(crystal.invoke, GO)
        assert google.issued == 2

    async def test_a_token_that_is_refused_is_renewed(self, keys, tmp_path, monkeypatch):
        google = Google("google", keys[1])
        async with FaultyServer(google) as server:
            file = service_account(tmp_path, server.url, keys[0])
            monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
            crystal = vertex("gemini-2.5-pro", base_url=server.url)
            await crystal.invoke(GO)
            google.issued = 7  # every token before it is void
            assert (await crystal.invoke(GO)).content == "hi"
        assert google.issued == 8

    async def test_a_token_server_that_is_down_is_a_retryable_error(self, keys, tmp_path, monkeypatch):
        google = Google("google", keys[1])
        google.down = 1_000
        async with FaultyServer(google) as server:
            file = service_account(tmp_path, server.url, keys[0])
            monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
            monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda _: None)
            with pytest.raises(ProviderError, match="no access token") as caught:
                await vertex("gemini-2.5-pro", base_url=server.url).invoke(GO)
        assert caught.value.retryable
        assert not google.asked

    async def test_no_credentials_are_an_error_that_says_what_to_do(self):
        async with FaultyServer([answer("google")]) as server:
            with pytest.raises(CrystalError, match="gcloud auth application-default login"):
                await vertex("gemini-2.5-pro", base_url=server.url).invoke(GO)
        assert not server.requests

    async def test_a_ready_token_needs_no_credentials(self, monkeypatch):
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "ready-made-token")
        async with FaultyServer([answer("google")]) as server:
            assert (await vertex("gemini-2.5-pro", base_url=server.url).invoke(GO)).content == "hi"
        assert server.requests[0].headers["authorization"] == "Bearer ready-made-token"


class TestTokenAccess:
    """Fetching a token does not block the event loop, and a cancelled query does not wait for it."""

    @pytest.mark.real_time
    async def test_the_loop_runs_while_a_token_is_fetched(self):
        started, release = threading.Event(), threading.Event()

        def fetch():
            started.set()
            assert release.wait(10)
            return BearerToken("t", float("inf"))

        access, seen = TokenAccess("T", fetch), []

        async def ask():
            seen.append(await access.make_headers("POST", "https://a.example", b""))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            while not started.is_set():
                await anyio.sleep(0.001)
            release.set()  # the loop could do this
        assert seen == [{"authorization": "Bearer t"}]

    @pytest.mark.real_time
    async def test_a_cancelled_query_does_not_wait_for_the_token(self):
        release = threading.Event()

        def fetch():
            release.wait(10)
            return BearerToken("t", float("inf"))

        access = TokenAccess("T", fetch)
        with anyio.move_on_after(0.05) as scope:
            await access.make_headers("POST", "https://a.example", b"")
        assert scope.cancelled_caught
        release.set()

    async def test_a_token_is_renewed_before_it_expires(self):
        now, fetched = [0.0], []

        def fetch():
            fetched.append(now[0])
            return BearerToken(str(len(fetched)), now[0] + 600)

        access = TokenAccess("T", fetch, clock=lambda: now[0])
        for at in (0, 300, 470, 490, 500):
            now[0] = at
            await access.make_headers("POST", "https://a.example", b"")
        assert fetched == [0, 490]


class TestRequests:
    """What is sent where."""

    def test_the_address_of_gemini_has_the_project_and_the_location(self):
        crystal = resolve("vertex:gemini-2.5-pro")
        assert crystal._client.make_url(crystal.family.path) == (
            "https://aiplatform.googleapis.com/v1/projects/my-project/locations/global"
            "/publishers/google/models/gemini-2.5-pro:streamGenerateContent?alt=sse"
        )
        assert crystal.has_prices

    def test_claude_has_its_model_in_the_address_and_its_version_in_the_body(self):
        crystal = vertex("claude-sonnet-4-5@20250929", location="europe-west1")
        assert crystal._client.make_url(crystal.family.path) == (
            "https://europe-west1-aiplatform.googleapis.com/v1/projects/my-project/locations/europe-west1"
            "/publishers/anthropic/models/claude-sonnet-4-5@20250929:streamRawPredict"
        )
        body = request(crystal, CONTEXT, effort="low", max_tokens=2000)
        assert "model" not in body
        assert (body["anthropic_version"], body["stream"]) == ("vertex-2023-10-16", True)
        assert body["thinking"] == {"type": "enabled", "budget_tokens": 2048}
        assert crystal.has_prices

    @pytest.mark.rule("R-20")
    def test_files_uploaded_to_the_makers_own_service_are_left_out(self):
        uploaded = Message("user", "look", images=(File.uploaded("files/1", "google"),))
        assert "only google has it" in str(request(vertex("gemini-2.5-pro"), [uploaded]))
        linked = Message("user", "look", images=(File.at("https://example.org/a.pdf"),))
        assert "this provider fetches no application/pdf" in str(request(vertex("claude-sonnet-4-5"), [linked]))

    def test_a_missing_project_is_refused(self, monkeypatch):
        monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
        with pytest.raises(InvalidCantrip, match="GOOGLE_CLOUD_PROJECT"):
            vertex("gemini-2.5-pro")

    def test_models_of_other_makers_are_refused(self):
        with pytest.raises(InvalidCantrip, match="Gemini or Claude"):
            vertex("llama-4")
