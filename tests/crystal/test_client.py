"""All families against a provider that misbehaves, over real sockets, on both backends."""

import base64
import gzip
import time
import zlib

import anyio
import httpx
import httpx2
import pytest
from structlog.testing import capture_logs

from cantrip_actors.crystal import client as client_module
from cantrip_actors.crystal.client import GRACE, Timeouts
from cantrip_actors.crystal.constructors import anthropic, google, local, openai, openrouter
from cantrip_actors.crystal.query import Query, ask
from cantrip_actors.crystal.replay import recordings, replay
from cantrip_actors.crystal.request_headers import REQUEST_HEADERS
from cantrip_actors.crystal.testing import FaultyServer, Reply, events, failing, garbage, rate_limited
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, ProviderError
from cantrip_actors.terms.messages import Invocation, Message
from cantrip_actors.terms.retry import Retry
from tests.crystal.asking import TOOLS
from tests.crystal.streams import STREAMS, Said, framed

pytestmark = pytest.mark.real_time

KEY = "sk-verysecret-0123456789"
SAID = Said("hm", "Let me look.", (("read", {"path": "a"}),))
WIRE = {
    "anthropic": "anthropic",
    "openai": "openai",
    "openai-chat": "openai-chat",
    "google": "google",
    "openrouter": "openai-chat",
    "local": "openai-chat",
}
each_family = pytest.mark.parametrize("family", WIRE)
FAST = Retry(base_delay=0.001, max_delay=0.01)
HASTY = Timeouts(connect=2, first=0.3, between=0.3)


def made(family, url, **settings):
    settings.setdefault("timeouts", Timeouts(connect=2, first=5, between=5))
    if family == "local":
        return local(url, "llama", api_key=KEY, **settings)
    if family == "openai-chat":
        return openai("gpt-test", chat=True, base_url=url, api_key=KEY, **settings)
    family_of = {"anthropic": anthropic, "openai": openai, "google": google, "openrouter": openrouter}[family]
    return family_of("model-test", base_url=url, api_key=KEY, **settings)


def body(family, said=SAID):
    return framed(WIRE[family], said)


async def put(crystal, choice=None, **more):
    return await crystal.invoke([Message("user", "go")], TOOLS, choice, **more)


def query(emit=None):
    return Query(Invocation([Message("user", "go")], TOOLS), {}, emit)


@pytest.mark.rule("CRYSTAL-6")
class TestAnswers:
    """The way it should be."""

    @each_family
    @pytest.mark.parametrize("drip", [None, 1])
    async def test_every_family_returns_the_same_answer(self, family, drip):
        seen = []
        async with FaultyServer([Reply(body(family), drip=drip)]) as server:
            response = await put(made(family, server.url), emit=seen.append)
        assert (response.content, response.thinking) == ("Let me look.", "hm")
        assert [(call.gate, call.args) for call in response.tool_calls] == [("read", {"path": "a"})]
        assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (10, 7)
        assert response.metadata["provider"] == family
        kinds = [payload.type for payload in seen]
        assert (kinds[0], kinds[-1], kinds.count("item_done")) == ("response_start", "response_done", 3)

    @each_family
    async def test_text_is_seen_before_the_answer_is_over(self, family):
        arrived = []

        def emit(payload):
            if payload.type == "item_delta":
                arrived.append(time.monotonic())

        async with FaultyServer([Reply(body(family), drip=60, pause=0.02)]) as server:
            await put(made(family, server.url), emit=emit)
            over = time.monotonic()
        assert over - arrived[0] > 0.1

    async def test_connections_are_reused_inside_async_with(self):
        async with FaultyServer([Reply(body("openai"))]) as server:
            crystal = made("openai", server.url)
            for _ in range(3):
                await put(crystal)
            assert server.connections == 3
            async with crystal, crystal:
                for _ in range(3):
                    await put(crystal)
            assert server.connections == 4
            await put(crystal)
            assert server.connections == 5

    async def test_connections_that_many_queries_at_once_have_left_are_closed_by_a_later_query(self, monkeypatch):
        clients, make_client = [], client_module._make_client

        def make_and_note():
            clients.append(make_client())
            return clients[-1]

        monkeypatch.setattr(client_module, "_make_client", make_and_note)
        monkeypatch.setattr(client_module, "KEPT", 0.05)
        async with FaultyServer([Reply(body("openai"), drip=100, pause=0.001)]) as server:
            async with made("openai", server.url) as crystal:
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):
                        tasks.start_soon(put, crystal)
                await anyio.sleep(0.1)
                await put(crystal)
                assert sorted(client.is_closed for client in clients) == [False, True, True]
            assert all(client.is_closed for client in clients)

    async def test_a_query_that_outlives_the_block_is_answered(self):
        async with FaultyServer([Reply(body("openai"), drip=100, pause=0.001)]) as server:
            crystal, answers = made("openai", server.url), []

            async def ask_once():
                answers.append((await put(crystal)).content)

            async with anyio.create_task_group() as tasks, crystal:
                tasks.start_soon(ask_once)
                while not server.requests:
                    await anyio.sleep(0.005)
            assert answers == ["Let me look."]

    async def test_a_kept_connection_does_not_wait_for_a_stream_that_the_server_does_not_end(self):
        whole = body("openai-chat")
        async with FaultyServer([Reply(whole, stall=len(whole))]) as server, made("openai-chat", server.url) as crystal:
            started = time.monotonic()
            await put(crystal)
            assert time.monotonic() - started < GRACE / 2

    @pytest.mark.rule("L-21")
    @pytest.mark.parametrize("library", [httpx, httpx2])
    async def test_a_client_of_the_user_is_used_and_stays_open(self, library):
        async with FaultyServer([Reply(body("google"))]) as server, library.AsyncClient() as client:
            crystal = made("google", server.url, client=client, headers={"x-mine": "1"})
            await put(crystal)
            await put(crystal)
            assert not client.is_closed
            assert server.connections == 1
            assert server.requests[0].headers["x-mine"] == "1"

    @pytest.mark.rule("L-21")
    @pytest.mark.parametrize("library", [httpx, httpx2])
    @pytest.mark.parametrize(("error", "is_final"), [("ConnectError", False), ("UnsupportedProtocol", True)])
    async def test_an_error_of_a_users_client_is_one_of_the_provider(self, library, error, is_final):
        def fail(request):
            raise getattr(library, error)("no route", request=request)

        async with library.AsyncClient(transport=library.MockTransport(fail)) as client:
            with pytest.raises(ProviderError, match=f"could not be reached: {error}: no route") as raised:
                await put(made("anthropic", "http://127.0.0.1:9", client=client))
        assert (raised.value.retryable is False) is is_final

    @pytest.mark.rule("L-21")
    def test_a_client_of_another_library_is_refused_when_the_crystal_is_made(self):
        with pytest.raises(InvalidCantrip, match="client: expected an AsyncClient of httpx or httpx2, or None, got"):
            made("anthropic", "http://127.0.0.1:9", client=httpx.Client())

    async def test_one_crystal_answers_many_queries_at_once(self):
        async with FaultyServer([Reply(body("anthropic"), drip=100)]) as server:
            crystal = made("anthropic", server.url)
            answers = []

            async def one():
                answers.append((await put(crystal)).content)

            async with crystal, anyio.create_task_group() as tasks:
                for _ in range(50):
                    tasks.start_soon(one)
        assert answers == ["Let me look."] * 50

    async def test_an_answer_is_returned_although_the_server_does_not_end_its_stream(self):
        whole = body("anthropic")
        async with FaultyServer([Reply(whole, stall=len(whole))]) as server:
            started = time.monotonic()
            await put(made("anthropic", server.url))
            assert time.monotonic() - started < GRACE / 2
        whole = body("google")  # which has no last event
        async with FaultyServer([Reply(whole, stall=len(whole))]) as server:
            assert (await put(made("google", server.url, timeouts=HASTY))).content == "Let me look."

    @pytest.mark.parametrize("content_type", ["text/plain", "application/json", "application/octet-stream"])
    async def test_a_wrong_content_type_does_not_matter(self, content_type):
        async with FaultyServer([Reply(body("openai"), content_type=content_type)]) as server:
            assert (await put(made("openai", server.url))).content == "Let me look."

    @pytest.mark.parametrize("family", ["anthropic", "openai", "google"])
    async def test_a_stream_marked_done_before_any_answer_is_an_error(self, family):
        early = Reply(b"data: [DONE]\n\n")
        async with FaultyServer([early]) as server:
            with pytest.raises(ProviderError, match="the stream ended before the response was complete"):
                await put(made(family, server.url))


class TestFailures:
    """What goes wrong is an error, at once or in time, and never another answer."""

    @each_family
    @pytest.mark.parametrize("is_framed", [True, False])
    async def test_a_connection_that_drops_in_the_middle_is_an_error_without_a_status(self, family, is_framed):
        whole = body(family)
        async with FaultyServer([Reply(whole, cut=len(whole) // 2, framed=is_framed)]) as server:
            with pytest.raises(ProviderError) as caught:
                await put(made(family, server.url))
        assert (caught.value.status, caught.value.retryable) == (None, None)

    @each_family
    @pytest.mark.parametrize("after", [0, 0.5])
    async def test_a_server_that_stalls_is_an_error_after_the_timeout(self, family, after):
        whole = body(family)
        async with FaultyServer([Reply(whole, stall=int(len(whole) * after))]) as server:
            with pytest.raises(ProviderError, match=r"0\.3 s"):
                await put(made(family, server.url, timeouts=HASTY))

    @pytest.mark.parametrize("family", ["openai", "anthropic"])
    async def test_a_running_tool_of_the_provider_counts_as_progress(self, family):
        if family == "openai":
            working = {"type": "response.web_search_call.searching", "output_index": 0, "item_id": "ws_1"}
        else:
            delta = {"type": "input_json_delta", "partial_json": " "}
            working = {"type": "content_block_delta", "index": 0, "delta": delta}
        start, *rest = STREAMS[family](SAID)
        if family == "anthropic":
            tool = {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}}
            start = [start, {"type": "content_block_start", "index": 0, "content_block": tool}]
            rest = [{**value, **({"index": value["index"] + 1} if "index" in value else {})} for value in rest]
        else:
            start, rest = (
                [start],
                [{key: one for key, one in value.items() if key != "sequence_number"} for value in rest],
            )
        text = events({**working, "obfuscation": "x" * 2000}) * 6
        script = [Reply(events(*start) + text + events(*rest), drip=2000, pause=0.1)]
        async with FaultyServer(script) as server:
            response = await put(made(family, server.url, timeouts=HASTY))
        assert response.content == SAID.text

    async def test_a_stream_with_a_finish_reason_in_every_chunk_is_read_to_its_end(self, monkeypatch):
        monkeypatch.setattr("cantrip_actors.crystal.client.GRACE", 0.3)
        parts = [
            {"candidates": [{"content": {"parts": [{"text": word}]}, "finishReason": "STOP"}]} for word in "abcdefgh"
        ]
        text = events(*parts)
        async with FaultyServer([Reply(text, drip=len(text) // 8, pause=0.1)]) as server:
            assert (await put(made("google", server.url))).content == "abcdefgh"

    async def test_keep_alives_do_not_count_as_tokens(self):
        alive = [b": PROCESSING\n\n", events({"type": "ping"})]
        start = events(*STREAMS["anthropic"](SAID)[:3])
        for sent in (b"".join(alive) * 500, start + b"".join(alive) * 500):
            async with FaultyServer([Reply(sent, drip=20, pause=0.02)]) as server:
                started = time.monotonic()
                with pytest.raises(ProviderError, match=r"0\.3 s"):
                    await put(made("anthropic", server.url, timeouts=HASTY))
                assert time.monotonic() - started < 8, "the whole of it takes more than ten seconds"

    @each_family
    async def test_garbage_in_a_stream_is_an_error(self, family):
        async with FaultyServer([garbage()]) as server:
            with pytest.raises(ProviderError):
                await put(made(family, server.url))

    @each_family
    async def test_half_an_event_is_an_error(self, family):
        whole = body(family)
        text = whole[: len(whole) // 3] + b"\n\n" + whole[len(whole) // 2 :]
        async with FaultyServer([Reply(text)]) as server:
            with pytest.raises(ProviderError):
                await put(made(family, server.url))

    @each_family
    async def test_a_page_with_status_200_is_an_error(self, family):
        async with FaultyServer([Reply(b"<html>proxy</html>", content_type="text/html")]) as server:
            with pytest.raises(ProviderError, match="a page"):
                await put(made(family, server.url))

    @each_family
    async def test_a_page_with_an_error_status_is_an_error(self, family):
        async with FaultyServer([failing(502, "<html>bad gateway</html>")]) as server:
            with pytest.raises(ProviderError, match="a page with status 502") as caught:
                await put(made(family, server.url))
        assert (caught.value.status, caught.value.retryable) == (502, True)

    @each_family
    async def test_an_error_inside_a_stream_is_raised(self, family):
        error = {"type": "error", "error": {"type": "server_error", "message": "boom", "code": "server_error"}}
        async with FaultyServer([Reply(events(error, names=WIRE[family] in ("anthropic", "openai")))]) as server:
            with pytest.raises(ProviderError, match="boom") as caught:
                await put(made(family, server.url))
        assert (caught.value.status, caught.value.retryable) == (500, True)

    async def test_an_unreachable_server_is_an_error_without_a_status(self):
        with pytest.raises(ProviderError, match="could not be reached") as caught:
            await put(made("openai", "http://127.0.0.1:1"))
        assert caught.value.status is None

    async def test_an_invalid_address_is_refused(self):
        with pytest.raises(CrystalError):
            await put(made("openai", "gopher://x"))

    async def test_a_redirect_is_not_followed(self):
        async with FaultyServer([failing(307, {}, {"location": "https://elsewhere"})]) as server:
            with pytest.raises(ProviderError, match="sends us to https://elsewhere") as caught:
                await put(made("openai", server.url))
        assert caught.value.retryable is False

    @each_family
    async def test_the_key_is_in_no_error_no_repr_no_log_and_no_address(self, family, caplog):
        caplog.set_level("DEBUG")
        echo = failing(401, {"error": {"message": f"no such key: {KEY}", "type": "authentication_error"}})
        inside = Reply(events({"error": {"message": f"odd key {KEY}"}}))
        async with FaultyServer([echo, inside]) as server:
            crystal = made(family, server.url)
            for _ in range(2):
                with pytest.raises(CrystalError) as caught:
                    await put(crystal)
                assert KEY not in str(caught.value)
                assert "[key]" in str(caught.value)
            assert KEY in "".join(server.requests[0].headers.values())
            assert KEY not in server.requests[0].path
        assert KEY not in caplog.text
        assert KEY not in repr(crystal) + repr(crystal._client) + repr(vars(crystal)["family"])

    async def test_a_name_and_a_password_go_into_a_header_and_not_into_the_address(self, caplog):
        caplog.set_level("DEBUG")
        async with FaultyServer([Reply(body("openai-chat"))]) as server:
            crystal = local(f"{server.url.replace('//', '//me:p%40ss@')}/v1", "m")
            await put(crystal)
            signed = base64.b64encode(b"me:p@ss").decode()
            assert server.requests[0].headers["authorization"] == f"Basic {signed}"
            assert (crystal._client.base_url, server.requests[0].path) == (f"{server.url}/v1", "/v1/chat/completions")
        assert dict(crystal.secrets) == {"authorization": signed}
        assert "p%40ss" not in repr(crystal._client) + caplog.text
        assert "p@ss" not in caplog.text

    async def test_a_key_given_as_a_header_is_in_no_error(self):
        said = failing(401, {"error": {"message": f"no such key: {KEY} (Bearer {KEY})"}})
        away = Reply(status=302, headers={"location": f"https://elsewhere.example/?key={KEY}"})
        async with FaultyServer([said, away]) as server:
            crystal = local(server.url, "m", headers={"Authorization": f"Bearer {KEY}", "x-team": "notes"})
            for hidden in ("[key]", "?key=[redacted]"):
                with pytest.raises(CrystalError) as caught:
                    await put(crystal)
                assert KEY not in str(caught.value)
                assert hidden in str(caught.value)
        assert KEY not in repr(crystal._client)
        assert dict(crystal.secrets) == {"Authorization": KEY}

    async def test_an_error_shows_no_password_and_no_token_of_the_address_of_a_redirect(self):
        away = Reply(status=301, headers={"location": "https://me:hunter2@elsewhere.example/?token=abcdef"})
        async with FaultyServer([away]) as server:
            with pytest.raises(ProviderError, match=r"sends us to https://me:\[redacted\]@elsewhere.example") as caught:
                await put(made("openai", server.url))
        assert "hunter2" not in str(caught.value)
        assert "abcdef" not in str(caught.value)

    @pytest.mark.parametrize("name", ["authorization", "Authorization", "AUTHORIZATION"])
    async def test_a_header_of_the_caller_replaces_that_of_the_crystal_however_it_is_written(self, name):
        requests = []

        def handle(request):
            requests.append(request)
            return httpx.Response(200, content=body("openai"))

        async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
            await put(openai("gpt-test", api_key=KEY, client=client, headers={name: "Bearer of-the-gateway"}))
        assert requests[0].headers.get_list("authorization") == ["Bearer of-the-gateway"]

    async def test_a_header_of_tracing_replaces_no_header_of_the_crystal_however_it_is_written(self):
        requests = []

        def handle(request):
            requests.append(request)
            return httpx.Response(200, content=body("openai"))

        token = REQUEST_HEADERS.set({"X-Trace": "of-tracing", "TraceParent": "00-1"})
        try:
            async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
                await put(openai("gpt-test", api_key=KEY, client=client, headers={"x-trace": "of-the-caller"}))
        finally:
            REQUEST_HEADERS.reset(token)
        assert requests[0].headers.get_list("x-trace") == ["of-the-caller"]
        assert requests[0].headers["traceparent"] == "00-1"

    async def test_a_key_function_is_called_for_each_query(self):
        keys = iter(["first-key", "second-key"])
        current = [""]

        def key():
            return current[0]

        async with FaultyServer([Reply(body("openai-chat"))]) as server:
            crystal = openai("gpt-test", chat=True, base_url=server.url, api_key=key)
            for one in keys:
                current[0] = one
                await put(crystal)
                assert crystal.secrets == {"OPENAI_API_KEY": one}
            assert [asked.headers["authorization"] for asked in server.requests] == [
                "Bearer first-key",
                "Bearer second-key",
            ]

    async def test_a_key_with_a_line_end_is_refused_and_not_shown(self):
        crystal = openai("gpt-test", base_url="http://127.0.0.1:1", api_key="sk-1234\n")
        with pytest.raises(CrystalError, match="characters that no key has") as caught:
            await put(crystal)
        assert "1234" not in str(caught.value)

    async def test_a_missing_key_is_an_error_that_names_the_variable(self, monkeypatch):
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        with pytest.raises(CrystalError, match="set ANTHROPIC_API_KEY, or pass api_key"):
            await put(anthropic("claude-x"))


async def cancelled_at_the_server(server, crystal):
    """Cancel a query while its server answers it."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(put, crystal)
        while not server.requests:
            await anyio.sleep(0.01)
        await anyio.sleep(0.1)
        tasks.cancel_scope.cancel()


class TestCancellation:
    """Cancellation closes the connection at once."""

    @each_family
    @pytest.mark.parametrize("after", [0, 0.5])
    async def test_the_server_sees_a_cancelled_query_disconnect(self, family, after):
        whole = body(family)
        async with FaultyServer([Reply(whole, stall=int(len(whole) * after))]) as server:
            await cancelled_at_the_server(server, made(family, server.url))
            with anyio.fail_after(10):
                await server.hangs_up.wait()

    async def test_a_kept_connection_is_closed_when_a_query_is_cancelled(self):
        whole = body("openai")
        async with FaultyServer([Reply(whole, stall=100), Reply(whole)]) as server:
            crystal = made("openai", server.url)
            async with crystal:
                await cancelled_at_the_server(server, crystal)
                with anyio.fail_after(10):
                    await server.hangs_up.wait()
                assert (await put(crystal)).content == "Let me look."


@pytest.mark.rule("D-006", "PROD-2")
class TestRetries:
    """One query is one answer, whatever it takes."""

    @each_family
    async def test_a_query_succeeds_after_a_storm_of_rate_limits(self, family):
        script = [rate_limited(retry_after=0)] * 4 + [Reply(body(family))]
        async with FaultyServer(script) as server:
            response = await ask(made(family, server.url), query(), retry=FAST)
            assert len(server.requests) == 5
        assert response.content == "Let me look."

    async def test_a_wait_hint_is_obeyed(self):
        waits = []

        async def sleep(seconds):
            waits.append(seconds)

        script = [rate_limited(retry_after=7), failing(503, {}, {"retry-after-ms": "2500"}), Reply(body("openai"))]
        async with FaultyServer(script) as server:
            await ask(made("openai", server.url), query(), retry=Retry(base_delay=0.1), sleep=sleep)
        assert waits == [7, 2.5]

    @pytest.mark.parametrize(
        "reply",
        [
            failing(400, {"error": {"message": "no"}}),
            failing(401, {"error": {"message": "no"}}),
            failing(404, {"error": {"message": "no"}}),
            failing(429, {"error": {"message": "no", "code": "insufficient_quota"}}),
        ],
    )
    async def test_permanent_errors_are_not_retried(self, reply):
        async with FaultyServer([reply]) as server:
            with pytest.raises(ProviderError, match="after 1 attempt"):
                await ask(made("openai", server.url), query(), retry=FAST)
            assert len(server.requests) == 1

    @pytest.mark.rule("U-59")
    @each_family
    async def test_a_failed_attempt_is_reported_between_its_items_and_those_of_the_next(self, family):
        whole = body(family)
        seen = []
        async with FaultyServer([Reply(whole, cut=int(len(whole) * 0.6)), Reply(whole)]) as server:
            await ask(made(family, server.url), query(seen.append), retry=FAST)
        types = [type(payload).__name__ for payload in seen]
        assert (types.count("ResponseStart"), types.count("AttemptFailed")) == (1, 1)
        assert "ResponseDone" not in types
        switch = types.index("AttemptFailed")
        assert "ItemStart" in types[:switch]
        assert [one.item_id for one in seen[switch:] if type(one).__name__ == "ItemStart"] == ["0", "1", "2"]


class TestRecording:
    """Answers are recorded and can be replayed."""

    @each_family
    async def test_a_recording_answers_as_the_provider_did(self, family, tmp_path):
        file = tmp_path / "deep" / "recorded.chunks.txt"
        other = Said("", "Done.", (("done", {"answer": KEY}),))
        script = [Reply(body(family)), Reply(body(family), cut=50), Reply(body(family, other))]
        async with FaultyServer(script) as server:
            crystal = made(family, server.url, record=file)
            first = await put(crystal)
            with pytest.raises(ProviderError):
                await put(crystal)
            await put(crystal)
        assert KEY not in file.read_text()
        assert len(recordings(file)) == 2
        again = replay(file)
        seen = []
        heard = await again.invoke([Message("user", "go")], TOOLS, emit=seen.append)
        assert (heard.content, heard.tool_calls, heard.usage) == (first.content, first.tool_calls, first.usage)
        assert seen[-1].type == "response_done"
        later = await again.invoke([Message("user", "go"), Message("assistant", "x")], TOOLS)
        assert later.content == "Done."
        with pytest.raises(CrystalError, match="has 2 responses and is asked for number 3"):
            await again.invoke([Message("assistant", "x")] * 2)


def _deflate_zeros(head, megabytes=150, line=b"0" * 1_000_000):
    deflater = zlib.compressobj(9, wbits=31)
    pieces = [deflater.compress(head), *(deflater.compress(line) for _ in range(megabytes))]
    return b"".join(pieces) + deflater.flush()


_COMMENT = b"0" * 999_998 + b"\n:"
_GZIPPED = {"content-encoding": "gzip"}


@pytest.mark.rule("Z-15")
@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (lambda: Reply(_deflate_zeros(b'data: "'), headers=_GZIPPED), "a line of more than 67108864 bytes"),
        (lambda: Reply(_deflate_zeros(b'{"a":"'), headers=_GZIPPED), "a body of more than 67108864 bytes"),
        (lambda: Reply(_deflate_zeros(b'{"a":"'), 500, headers=_GZIPPED), "local:llama: {"),
        (
            lambda: Reply(_deflate_zeros(b": ", line=_COMMENT), headers=_GZIPPED),
            "more than 134,217,728 bytes",
        ),
        (lambda: Reply(b"[" + b"{}," * 1_000_000 + b"{}]"), "JSON of more than 1,000,000 values"),
        (lambda: Reply(b'data: {"a":[' + b"0," * 1_000_000 + b"0]}\n\n"), "JSON of more than 1,000,000 values"),
        (lambda: Reply(events(*[copy_call(number) for number in range(4_200)])), "more than 4,096 items"),
        (lambda: Reply(b"data: {}", headers={"content-encoding": "br"}), "encoding 'br', which was not asked for"),
    ],
)
async def test_an_answer_that_expands_is_refused_within_its_bounds(reply, problem):
    async with FaultyServer([reply()]) as server:
        with pytest.raises(CrystalError) as error:
            await put(made("local", server.url, timeouts=Timeouts(connect=10, first=60, between=60)))
    assert problem in str(error.value)


def copy_call(number):
    """Return a chunk with one more call of a gate."""
    function = {"name": "read", "arguments": "{}"}
    call = {"index": number, "id": f"c{number}", "function": function}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}


@pytest.mark.rule("Z-15")
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_compressed_answer_is_read_in_pieces_of_any_size(encoding):
    whole, compress = body("local"), gzip.compress if encoding == "gzip" else zlib.compress
    members = compress(whole[:100]) + compress(whole[100:])
    async with FaultyServer([Reply(members, headers={"content-encoding": encoding}, drip=7)]) as server:
        response = await put(made("local", server.url))
    assert response.content == SAID.text


async def test_an_answer_that_cannot_be_recorded_is_returned_with_a_warning(tmp_path):
    with capture_logs() as logs:
        async with FaultyServer([Reply(body("openai"))]) as server:
            response = await put(made("openai", server.url, record=tmp_path))
    assert response.content == SAID.text
    assert "an answer cannot be recorded" in [log["event"] for log in logs]
