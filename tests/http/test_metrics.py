"""The page for Prometheus: on the service's port with a token, and beside the health checks without one."""

from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from anyio import to_thread
from opentelemetry.trace import SpanKind
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from cantrip_actors.http.health import Pulse, health_server
from cantrip_actors.observe import Telemetry
from supervisors import ActorRef, ChildSpec, Crash
from supervisors.events import Exited
from tests.http.serving import served, token
from tests.observe.spans import Sdk

pytestmark = pytest.mark.real_time


def samples(page: str) -> dict[str, float]:
    return {sample.name: sample.value for family in text_string_to_metric_families(page) for sample in family.samples}


@pytest.mark.rule("METRIC-03")
async def test_the_service_shows_metrics_to_tokens_with_the_observe_scope() -> None:
    telemetry = Telemetry(otel=False)
    tokens = [token("viewer", "observe"), token("reader", "read"), token("acme", "observe", tenant="acme")]
    async with served(options={"telemetry": telemetry}, telemetry=telemetry, tokens=tokens) as on:
        await on.post("casts", {"cantrip": "echo", "intent": "hi", "wait": 5}, 200)
        page = await on.ask("GET", "/metrics", 200, headers=on.as_token("viewer"))
        for name in ("reader", "acme"):
            assert (await on.ask("GET", "/metrics", headers=on.as_token(name))).status_code == 403
    assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert samples(page.text)["cantrip_turns_total"] == 1
    assert samples(page.text)["cantrip_streams"] == 0


@pytest.mark.rule("METRIC-03")
async def test_a_service_without_telemetry_has_no_metrics_and_says_so() -> None:
    async with served() as on:
        answered = await on.ask("GET", "/metrics", 404)
    assert "no metrics" in answered.json()["detail"]


@pytest.mark.rule("METRIC-05")
async def test_the_service_shows_its_system_to_tokens_that_may_observe() -> None:
    telemetry = Telemetry(otel=False)
    tokens = [token("reader", "read"), token("acme", "observe", tenant="acme")]
    async with served(options={"telemetry": telemetry}, telemetry=telemetry, tokens=tokens) as on:
        await on.post("casts", {"cantrip": "echo", "intent": "hi", "wait": 5}, 200)
        async with on.stream("events") as reader:
            await reader.next()
            told = await on.get("system")
        for name in ("reader", "acme"):
            await on.get("system", 403, headers=on.as_token(name))
    assert told["items"][0] | {"since": 0} == {
        "path": "root",
        "kind": "Supervisor",
        "state": "up",
        "since": 0,
        "mailbox": 0,
        "in_hand": 0,
        "restarts": 0,
        "exit": None,
    }
    assert told["loom"] == {"url": "memory:", "durability": "none", "backlog": 0, "size": None}
    assert told["counters"]["cantrip.turns"] == [{"labels": {"gen_ai.agent.name": "echo"}, "value": 1}]
    assert (told["requests"], told["streams"]["http"]) == (0, 1)
    assert [(one["running"], one["breaker"]) for one in told["crystals"]] == [(0, "closed")]


@pytest.mark.rule("LOG-05")
async def test_the_service_has_the_crash_reports() -> None:
    telemetry = Telemetry(otel=False)
    telemetry.crashes.take(Exited(0.0, ActorRef(), ChildSpec("x", object), Crash(KeyError("x")), expected=False))
    tokens = [token("reader", "read")]
    async with served(options={"telemetry": telemetry}, telemetry=telemetry, tokens=tokens) as on:
        (report,) = (await on.get("crashes"))["items"]
        assert await on.get(f"crashes/{report['id']}") == report
        await on.get("crashes/other", 404)
        await on.get("crashes", 403, headers=on.as_token("reader"))
    assert (report["exception"], report["actor"]) == ("KeyError", "x")


@pytest.mark.rule("LOG-03")
async def test_the_access_log_has_the_route_and_no_query_body_or_id() -> None:
    with capture_logs() as lines:
        async with served(access_log=True) as on:
            await on.post("casts", {"cantrip": "echo", "intent": "BODY", "wait": 5}, 200)
            await on.get("loom/search?q=QUERY")
            await on.get("entities/NOBODY", 404)
    lines = [line for line in lines if line["event"] == "request"]
    assert [(line["method"], line["route"], line["status"], line["token"]) for line in lines] == [
        ("POST", "/api/v1/casts", 200, "admin"),
        ("GET", "/api/v1/loom/search", 200, "admin"),
        ("GET", "/api/v1/entities/{id}", 404, "admin"),
    ]
    assert all(line["bytes"] > 0 and line["ms"] >= 0 for line in lines)
    assert not [mark for mark in ("BODY", "QUERY", "NOBODY") if mark in str(lines)]


@pytest.mark.rule("METRIC-05")
async def test_the_page_beside_the_health_checks_answers_while_the_loop_is_blocked() -> None:
    telemetry = Telemetry(otel=False)
    telemetry.counters.add("cantrip.turns", ("x",))
    with health_server(Pulse(), "127.0.0.1:0", telemetry.prometheus) as url:
        got: list[Any] = []

        def look() -> None:
            got.append(httpx.get(f"{url}/metrics"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(to_thread.run_sync, look)
            await anyio.lowlevel.checkpoint()
            for _ in range(1_000_000):  # the loop does not turn meanwhile
                if got:
                    break
    assert got[0].status_code == 200
    assert samples(got[0].text)["cantrip_turns_total"] == 1


@pytest.mark.rule("OTEL-05")
async def test_a_cast_over_http_is_below_the_span_of_its_caller() -> None:
    sdk = Sdk()
    telemetry = sdk.telemetry()
    header = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    async with served(options={"telemetry": telemetry}, telemetry=telemetry) as on:
        await on.post("casts", {"cantrip": "echo", "intent": "hi", "wait": 5}, 200, headers=header)
        await on.post("casts", {"cantrip": "echo", "intent": "hi", "wait": 5}, 200)
    first, second = sdk.named("POST /api/v1/casts")
    assert f"{first.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{first.parent.span_id:016x}" == "b7ad6b7169203331"
    assert first.kind is SpanKind.SERVER
    assert (
        [span.name for span in sdk.below(first)] == [span.name for span in sdk.below(second)] == ["invoke_agent echo"]
    )
    assert second.parent is None


@pytest.mark.rule("W-60")
async def test_a_request_has_its_status_path_and_scheme_in_its_span_and_is_counted_by_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sdk = Sdk()
    telemetry = sdk.telemetry()
    async with served(options={"telemetry": telemetry}, telemetry=telemetry) as on:
        await on.get("entities", 200)
        await on.get("entities/nobody", 404)
        monkeypatch.setattr("cantrip_actors.http.entities.check_cursor", fail)
        await on.get("entities", 500)
    good, bad = sdk.named("GET /api/v1/entities")
    (missing,) = sdk.named("GET /api/v1/entities/{id}")
    told = [[span.attributes.get(name) for name in OF_REQUEST] for span in (good, missing, bad)]
    assert told == [
        [200, "/api/v1/entities", "http", None],
        [404, "/api/v1/entities/nobody", "http", None],
        [500, "/api/v1/entities", "http", "KeyError"],
    ]
    assert [span.status.is_ok for span in (good, missing, bad)] == [True, True, False]
    counted = telemetry.counters.read_histograms()["http.server.request.duration"]
    assert {labels: series.count for labels, series in counted.items()} == {
        ("GET", "/api/v1/entities", "200", "http", ""): 1,
        ("GET", "/api/v1/entities/{id}", "404", "http", ""): 1,
        ("GET", "/api/v1/entities", "500", "http", "KeyError"): 1,
    }


OF_REQUEST = ("http.response.status_code", "url.path", "url.scheme", "error.type")


def fail(*_: Any) -> None:
    raise KeyError("a bug")
