"""Amazon Bedrock: requests signed and bearer, contexts that botocore's model of Converse takes, its stream."""

from datetime import UTC, datetime, timedelta

import anyio
import httpx
import orjson
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.session import Session
from botocore.validate import ParamValidator

from cantrip_actors.crystal import resolve
from cantrip_actors.crystal.bucket_batches import BedrockBatches
from cantrip_actors.crystal.testing import FaultyServer, Reply, failing
from cantrip_actors.crystals import bedrock
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, ProviderError
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import Message
from tests.crystal.asking import CONTEXT, TOOLS, request, result, said
from tests.crystal.clouds import REGION, Amazon, answer
from tests.crystal.streams import STREAMS, Said, decode, fed, frame, framed, frames
from tests.crystal.streams import bedrock as stream
from tests.pictures import PDF

pytestmark = pytest.mark.rule("R-23")

GO = [Message("user", "go")]
CLAUDE = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
PNG = bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010806000000")


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    """No credentials of the machine's own."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_BEARER_TOKEN_BEDROCK", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_REGION", REGION)


@pytest.mark.real_time
class TestSigning:
    """Requests are authenticated by a signature or by a bearer key."""

    async def test_botocore_verifies_the_signature(self, monkeypatch):
        amazon = Amazon()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", amazon.keys.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", amazon.keys.secret_key)
        async with FaultyServer(amazon) as server:
            amazon.url = server.url
            response = await bedrock(CLAUDE, base_url=server.url).invoke(CONTEXT, TOOLS)
        assert response.content == "hi"
        assert amazon.asked[0].path == "/model/eu.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse-stream"

    async def test_a_name_with_slashes_is_signed_as_it_is_sent(self):
        amazon = Amazon()
        arn = "arn:aws:bedrock:eu-north-1:123456789012:application-inference-profile/abc123"
        async with FaultyServer(amazon) as server:
            amazon.url = server.url
            assert (await bedrock(arn, base_url=server.url, credentials=amazon.keys).invoke(GO)).content == "hi"
        assert "%2Fabc123/converse-stream" in amazon.asked[0].path

    async def test_a_profile_has_keys_and_a_region(self, tmp_path, monkeypatch):
        amazon = Amazon()
        amazon.issue("AKIDPROFILE", "secret-of-the-profile", "token-of-the-profile")
        monkeypatch.delenv("AWS_REGION")
        (tmp_path / "config").write_text(f"[profile work]\nregion = {REGION}\n")
        (tmp_path / "credentials").write_text(
            "[work]\naws_access_key_id = AKIDPROFILE\naws_secret_access_key = secret-of-the-profile\n"
            "aws_session_token = token-of-the-profile\n"
        )
        async with FaultyServer(amazon) as server:
            amazon.url = server.url
            crystal = bedrock(CLAUDE, base_url=server.url, profile="work")
            assert (await crystal.invoke(GO)).content == "hi"
        assert set(crystal.secrets.values()) == {"secret-of-the-profile", "token-of-the-profile"}

    async def test_expiring_credentials_are_renewed_once_for_all(self):
        amazon, renewed = Amazon(), []

        def renew():
            renewed.append(1)
            amazon.issue(f"AKID{len(renewed)}", "secret-that-is-renewed", f"token-{len(renewed)}")
            later = datetime.now(UTC) + timedelta(seconds=3600 if len(renewed) > 1 else 60)
            told = {"access_key": amazon.keys.access_key, "secret_key": amazon.keys.secret_key}
            return {**told, "token": amazon.keys.token, "expiry_time": later.isoformat()}

        credentials = RefreshableCredentials.create_from_metadata(renew(), renew, "test")
        async with FaultyServer(amazon) as server:
            amazon.url = server.url
            crystal = bedrock(CLAUDE, base_url=server.url, credentials=credentials)
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(crystal.invoke, GO)
        assert len(renewed) == 2
        assert {asked.headers["x-amz-security-token"] for asked in amazon.asked} == {"token-2"}

    async def test_refused_keys_are_looked_up_again_once(self, monkeypatch):
        amazon = Amazon()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDFIRST")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", amazon.keys.secret_key)
        async with FaultyServer(amazon) as server:
            amazon.url = server.url
            crystal = bedrock(CLAUDE, base_url=server.url)
            await crystal.invoke(GO)
            amazon.issue("AKIDSECOND", "secret-of-the-second-key")
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDSECOND")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-second-key")
            assert (await crystal.invoke(GO)).content == "hi"
            assert len(amazon.asked) == 3
            amazon.issue("AKIDTHIRD", "a-secret-that-nobody-has")
            with pytest.raises(ProviderError, match="invalid") as caught:
                await crystal.invoke(GO)
        assert (caught.value.status, len(amazon.asked)) == (403, 5)
        assert "secret-of-the-second-key" not in str(caught.value)

    async def test_a_bearer_key_needs_no_credentials(self, monkeypatch):
        monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "bedrock-api-key-0123")
        async with FaultyServer([answer("bedrock")]) as server:
            assert (await bedrock(CLAUDE, base_url=server.url).invoke(GO)).content == "hi"
        assert server.requests[0].headers["authorization"] == "Bearer bedrock-api-key-0123"
        assert "x-amz-date" not in server.requests[0].headers

    async def test_no_credentials_are_an_error_that_says_what_to_set(self):
        async with FaultyServer([answer("bedrock")]) as server:
            with pytest.raises(CrystalError, match="AWS_BEARER_TOKEN_BEDROCK"):
                await bedrock(CLAUDE, base_url=server.url).invoke(GO)
        assert not server.requests


@pytest.mark.rule("R-24")
class TestBuckets:
    """Files of batches are signed for S3, even if the crystal has a bearer key, which S3 does not accept."""

    @pytest.mark.parametrize("settings", [{}, {"api_key": "bedrock-api-key-0123"}])
    async def test_a_file_of_a_bucket_is_signed_as_botocore_signs_for_s3(self, settings):
        keys, seen = Credentials("AKID", "a-secret-key", "a-token"), []

        def handle(request):
            seen.append(request)
            return httpx.Response(200, json={"jobArn": "arn:job"})

        client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
        crystal = bedrock(CLAUDE, credentials=keys, client=client, **settings)
        crystal.access._renew()
        role = "arn:aws:iam::123456789012:role/batch"
        endpoint = BedrockBatches(crystal, "s3://my-bucket/a folder", role)
        assert await endpoint.submit({"A": b"{}"}, {}) == "arn:job"
        put, made = seen
        assert put.url.host == "s3.eu-north-1.amazonaws.com"
        assert put.url.raw_path.startswith(b"/my-bucket/a%20folder/cantrip-actors-")
        names = ("content-type", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token")
        again = AWSRequest("PUT", str(put.url), {name: put.headers[name] for name in names}, put.content)
        again.context["timestamp"] = put.headers["x-amz-date"]
        auth = S3SigV4Auth(keys, "s3", REGION)
        signature = auth.signature(auth.string_to_sign(again, auth.canonical_request(again)), again)
        assert put.headers["authorization"].endswith(f"Signature={signature}")
        assert put.headers["x-amz-security-token"] == "a-token"
        assert made.url.host == "bedrock.eu-north-1.amazonaws.com"
        assert made.headers["authorization"].startswith("Bearer" if settings else "AWS4-HMAC-SHA256")

    async def test_batches_raise_the_buckets_own_error_message(self):
        told = "<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(403, text=told)))
        crystal = bedrock(CLAUDE, credentials=Credentials("AKID", "a-secret-key"), client=client)
        crystal.access._renew()
        with pytest.raises(ProviderError, match=r"Access Denied \(AccessDenied\)"):
            await BedrockBatches(crystal, "s3://my-bucket", "arn:aws:iam::1:role/b").read("a")


class TestConstruction:
    """What can be known before the first query."""

    def test_the_crystal_resolves_from_a_model_name(self):
        crystal = resolve(f"bedrock:{CLAUDE}")
        assert crystal.name == f"bedrock:{CLAUDE}"
        assert crystal._client.base_url == f"https://bedrock-runtime.{REGION}.amazonaws.com"
        assert crystal.has_prices
        assert crystal.context_window == 200_000

    def test_a_missing_region_is_refused(self, monkeypatch):
        monkeypatch.delenv("AWS_REGION")
        with pytest.raises(InvalidCantrip, match="AWS_REGION"):
            bedrock(CLAUDE)

    def test_an_endpoint_of_the_user_is_used(self, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "https://vpce-1.example")
        assert bedrock(CLAUDE)._client.base_url == "https://vpce-1.example"


def valid(body: dict) -> dict:
    shape = Session().get_service_model("bedrock-runtime").operation_model("ConverseStream").input_shape
    report = ParamValidator().validate({"modelId": "m", **body}, shape)
    assert not report.has_errors(), report.generate_report()
    return body


class TestRequests:
    """What botocore's model of the interface takes."""

    @pytest.mark.parametrize("model", [CLAUDE, "anthropic.claude-opus-4-6-v1", "amazon.nova-pro-v1:0", "m"])
    @pytest.mark.parametrize("choice", [None, "required", "none"])
    def test_requests_fit_the_service_model(self, model, choice):
        options = {"temperature": 0.5, "stop": ["END"], "max_tokens": 900, "output_schema": {"type": "object"}}
        crystal = bedrock(model, api_key="k")
        body = valid(request(crystal, CONTEXT, choice=choice, **options))
        assert body["inferenceConfig"] == {"maxTokens": 900, "temperature": 0.5, "stopSequences": ["END"]}
        assert body["system"][0] == {"text": "Be terse."}
        assert ("toolChoice" in body["toolConfig"]) == (choice == "required")
        results = [block["toolResult"] for block in body["messages"][2]["content"]]
        assert [one["toolUseId"] for one in results] == ["one", "two"]
        assert [one.get("status") for one in results] == ["error", None]

    def test_effort_is_a_budget_or_a_level_as_the_model_wants(self):
        old = valid(request(bedrock(CLAUDE, api_key="k"), GO, effort="high", max_tokens=2000))
        assert old["additionalModelRequestFields"]["thinking"] == {"type": "enabled", "budget_tokens": 16_384}
        assert old["inferenceConfig"]["maxTokens"] == 18_384
        new = valid(request(bedrock("anthropic.claude-opus-4-6-v1", api_key="k"), GO, effort="high"))
        assert new["additionalModelRequestFields"]["thinking"] == {"type": "adaptive"}
        assert new["outputConfig"] == {"effort": "high"}
        other = valid(request(bedrock("amazon.nova-pro-v1:0", api_key="k"), GO, effort="low"))
        assert other["outputConfig"] == {"effort": "low"}

    def test_cache_points_are_sent_only_to_models_that_cache(self):
        marked = valid(request(bedrock(CLAUDE, api_key="k", cache="1h"), CONTEXT))
        mark = {"cachePoint": {"type": "default", "ttl": "1h"}}
        assert (marked["system"][-1], marked["messages"][-1]["content"][-1]) == (mark, mark)
        for crystal in (bedrock("meta.llama4-v1:0", api_key="k"), bedrock(CLAUDE, api_key="k", cache=None)):
            assert b"cachePoint" not in orjson.dumps(request(crystal, CONTEXT))

    def test_a_context_with_calls_is_sent_with_definitions_of_their_tools_when_none_are_offered(self):
        body = valid(request(bedrock(CLAUDE, api_key="k"), CONTEXT, tools=()))
        assert [one["toolSpec"]["name"] for one in body["toolConfig"]["tools"]] == ["read"]

    def test_images_keep_their_position_among_texts(self):
        shown = Message("user", "look", images=(Image(PNG),))
        body = request(bedrock(CLAUDE, api_key="k", cache=None), [shown])
        kinds = [next(iter(block)) for block in body["messages"][0]["content"]]
        assert "image" in kinds
        source = next(block["image"] for block in body["messages"][0]["content"] if "image" in block)
        assert source["format"] == "png"

    @pytest.mark.rule("R-20")
    def test_documents_have_unique_names_and_a_text_beside_them(self):
        report = File(PDF, filename="Q3 §report__final.pdf")
        shown = Message("user", "", images=(report,))
        content = valid(request(bedrock(CLAUDE, api_key="k", cache=None), [shown]))["messages"][0]["content"]
        document = content[0]["document"]
        assert (document["format"], document["name"]) == ("pdf", f"Q3 report final {report.name}")
        assert "text" in content[1]

    @pytest.mark.rule("R-20")
    def test_nova_accepts_videos_and_claude_does_not(self):
        shown = Message("user", "look", images=(File(b"\x00\x00\x00\x20ftypisom", filename="a.mp4"),))
        told = valid(request(bedrock("us.amazon.nova-pro-v1:0", api_key="k", cache=None), [shown]))
        assert [next(iter(block)) for block in told["messages"][0]["content"]] == ["text", "video"]
        told = valid(request(bedrock(CLAUDE, api_key="k", cache=None), [shown]))
        assert "not shown" in str(told["messages"][0]["content"])

    def test_thinking_goes_back_to_the_model_that_signed_it(self):
        response = fed("bedrock", *stream(Said("hm", "so", (("read", {"path": "a"}),))), model=CLAUDE)
        history = [*GO, said("so", ("toolu_0", "read", {"path": "a"}), blocks=response.blocks), result("toolu_0", "A")]
        crystal = bedrock(CLAUDE, api_key="k")
        back = valid(request(crystal, history))["messages"][1]["content"]
        assert back[0] == {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "c2lnbmVk"}}}
        other = request(bedrock("eu.anthropic.claude-opus-4-1", api_key="k"), history)["messages"][1]["content"]
        assert [next(iter(block)) for block in other] == ["text", "toolUse"]


class TestStreams:
    """Frames, exceptions, counts."""

    def test_a_whole_body_is_decoded_like_a_stream(self):
        content = [
            {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "c2lnbmVk"}}},
            {"text": "so"},
            {"toolUse": {"toolUseId": "toolu_0", "name": "read", "input": {"path": "a"}}},
        ]
        usage = {"inputTokens": 10, "outputTokens": 7, "totalTokens": 17}
        body = {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": "tool_use"}
        whole = decode("bedrock", [orjson.dumps({**body, "usage": usage})], model="m")[0]
        streamed = decode("bedrock", [framed("bedrock", Said("hm", "so", (("read", {"path": "a"}),)))], model="m")[0]
        assert whole == streamed

    def test_counts_of_the_cache_are_part_of_the_prompt(self):
        usage = {"inputTokens": 3, "outputTokens": 2, "cacheReadInputTokens": 100, "cacheWriteInputTokens": 50}
        response = fed("bedrock", *stream(Said("", "hi"))[:-1], {"metadata": {"usage": usage}})
        assert (response.usage.prompt_tokens, response.usage.cached_tokens) == (153, 100)

    @pytest.mark.parametrize(
        ("name", "status", "retryable"),
        [
            ("throttlingException", 429, True),
            ("internalServerException", 500, True),
            ("modelStreamErrorException", 424, True),
            ("serviceUnavailableException", 503, True),
            ("validationException", 400, False),
        ],
    )
    def test_an_exception_within_the_stream_is_an_error(self, name, status, retryable):
        begun = frames(*stream(Said("", "half an answer"))[:3])
        broken = begun + frame(name, b'{"message":"no more"}', "exception")
        with pytest.raises(ProviderError, match="no more") as caught:
            decode("bedrock", [broken])
        assert (caught.value.status, caught.value.retryable) == (status, retryable)

    def test_a_frame_with_a_wrong_checksum_is_an_error(self):
        sound = framed("bedrock", Said("", "hello"))
        with pytest.raises(ProviderError, match="broken frame"):
            decode("bedrock", [sound[:150], bytes([sound[150] ^ 1]), sound[151:]])

    def test_a_stream_without_an_end_is_an_error(self):
        cut = frames(*stream(Said("", "hello"))[:-2])
        with pytest.raises(ProviderError, match="ended before"):
            decode("bedrock", [cut])

    def test_unreadable_output_is_retried(self):
        events = [*STREAMS["bedrock"](Said("", "x"))[:-2], {"messageStop": {"stopReason": "malformed_tool_use"}}]
        with pytest.raises(ProviderError) as caught:
            fed("bedrock", *events)
        assert caught.value.retryable

    @pytest.mark.real_time
    async def test_cache_points_are_not_sent_to_a_model_without_a_cache(self):
        refusal = failing(400, {"message": "You invoked an unsupported model for prompt caching: cachePoint"})
        async with FaultyServer([refusal, answer("bedrock")]) as server:
            crystal = bedrock(CLAUDE, api_key="k", base_url=server.url)
            assert (await crystal.invoke(GO)).content == "hi"
            bodies = [asked.body for asked in server.requests]
        assert [b"cachePoint" in body for body in bodies] == [True, False]

    @pytest.mark.real_time
    async def test_an_answer_is_recorded_and_replayed(self, tmp_path):
        from cantrip_actors.crystals import replay

        file = tmp_path / "talk.chunks.txt"
        async with FaultyServer([Reply(framed("bedrock", Said("hm", "Four.")), drip=7)]) as server:
            await bedrock(CLAUDE, api_key="k", base_url=server.url, record=file).invoke(GO)
        again = await replay(file).invoke(GO)
        assert (again.content, again.thinking) == ("Four.", "hm")


def test_keys_that_do_not_expire_are_asked_for_once():
    asked = []

    class Counted(Credentials):
        def get_frozen_credentials(self):
            asked.append(1)
            return super().get_frozen_credentials()

    async def sign():
        access = bedrock(CLAUDE, credentials=Counted("A", "S" * 20))._client._access
        for _ in range(3):
            assert "authorization" in await access.make_headers("POST", "https://a.example/b", b"{}")

    anyio.run(sign)
    assert len(asked) == 1
