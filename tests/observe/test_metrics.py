"""What is counted: every metric by name, exact values, the page of Prometheus, and that nothing names an entity."""

import contextlib
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.trace import SpanKind
from prometheus_client.parser import text_string_to_metric_families

from cantrip_actors import (
    Cantrip,
    Circle,
    Folding,
    Invocation,
    ProviderError,
    Retry,
    Runtime,
    ask_first,
    gate,
    scripted,
)
from cantrip_actors.crystals import limited
from cantrip_actors.gates import read, write
from cantrip_actors.http.health import Pulse
from cantrip_actors.mcp import inproc
from cantrip_actors.observe import Telemetry
from cantrip_actors.observe.counters import Counters
from cantrip_actors.observe.metrics import LEGACY, METRICS
from cantrip_actors.records.records import GateFinished
from cantrip_actors.runtime.circles.gates_actor import GatesActor
from cantrip_actors.runtime.entity.recorder import StepRecorder
from cantrip_actors.stream.wire import ItemDelta, ItemStart
from cantrip_actors.wards import max_depth, max_turns
from cantrip_demos.arithmetic import ArithmeticTask, make_agent_dispatcher, make_tool_registry, run
from supervisors import ActorRef, ChildSpec, Crash, Killed, Normal, Shutdown
from supervisors.events import DeadLetter, Exited, GaveUpEvent, Started, StartFailedEvent, Zombie
from tests.mcp.tools import tools
from tests.observe.spans import Sdk
from tests.observe.test_tracing import Model
from tests.runtime.spells import cantrip, done, say
from tests.runtime.test_recovery import crash_at

USED = "gen_ai.client.inference.usage."


@gate
async def look(what: str = "x") -> str:
    """Look at something."""
    return f"saw {what}"


def counting(**options: Any) -> Telemetry:
    return Telemetry(otel=False, **options)


def value(telemetry: Telemetry, name: str, *labels: str) -> float:
    return telemetry.counters.read_values(name)[labels]


SECONDS = tuple(0.01 * 2**n for n in range(14))
TOKENS = tuple(4.0**n for n in range(14))
CALLS = tuple(2.0**n for n in range(8))
EPISODE = tuple(0.1 * 2**n for n in range(13))
WORKFLOW = (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)
MCP = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
QUERY = "gen_ai.operation.name gen_ai.provider.name gen_ai.request.model gen_ai.response.model"
FULL = f"{QUERY} server.address server.port"
USAGE = f"{QUERY} gen_ai.token.modality"
OF_A_TOOL = "mcp.method.name gen_ai.tool.name error.type"
STANDARD = {
    "client.inference.duration": ("histogram", "s", f"{FULL} error.type", SECONDS),
    "client.inference.time_to_first_chunk": ("histogram", "s", FULL, SECONDS),
    "client.inference.time_per_output_chunk": ("histogram", "s", FULL, SECONDS),
    "client.inference.usage.input_tokens": ("counter", "{token}", USAGE, ()),
    "client.inference.usage.output_tokens": ("counter", "{token}", USAGE, ()),
    "client.inference.usage.cache_read.input_tokens": ("counter", "{token}", USAGE, ()),
    "client.inference.usage.cache_write.input_tokens": ("counter", "{token}", USAGE, ()),
    "client.inference.usage.reasoning.output_tokens": ("counter", "{token}", USAGE, ()),
    "client.inference.operation.input_tokens": ("histogram", "{token}", FULL, TOKENS),
    "client.inference.operation.output_tokens": ("histogram", "{token}", FULL, TOKENS),
    "invoke_agent.duration": ("histogram", "s", "gen_ai.agent.name error.type", EPISODE),
    "invoke_agent.inference_calls": ("histogram", "{inference_call}", "gen_ai.agent.name", CALLS),
    "invoke_agent.tool_calls": ("histogram", "{tool_call}", "gen_ai.agent.name", CALLS),
    "execute_tool.duration": ("histogram", "s", "gen_ai.tool.name gen_ai.tool.type error.type", SECONDS),
    "invoke_workflow.duration": ("histogram", "s", "gen_ai.workflow.name error.type", WORKFLOW),
}
OF_MCP = {
    "mcp.client.operation.duration": ("histogram", "s", OF_A_TOOL, MCP),
    "mcp.server.operation.duration": ("histogram", "s", OF_A_TOOL, MCP),
    "mcp.client.session.duration": ("histogram", "s", "", MCP),
}
HTTP = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
OF_REQUEST = "http.request.method http.route http.response.status_code url.scheme error.type"
OF_HTTP = {"http.server.request.duration": ("histogram", "s", OF_REQUEST, HTTP)}
OURS = {
    "supervisor.restarts": ("counter", "1", "kind"),
    "supervisor.crashes": ("counter", "1", "kind reason"),
    "supervisor.gave_up": ("counter", "1", "kind"),
    "supervisor.zombies": ("counter", "1", "kind"),
    "supervisor.dead_letters": ("counter", "1", "kind"),
    "supervisor.failed_starts": ("counter", "1", "kind"),
    "actors": ("gauge", "1", "kind state"),
    "mailbox.depth": ("gauge", "1", "kind stat"),
    "entities": ("gauge", "1", "state"),
    "entity.ends": ("counter", "1", "reason ward"),
    "entity.resumed": ("counter", "1", ""),
    "turns": ("counter", "1", "gen_ai.agent.name"),
    "turn.overhead": ("histogram", "s", ""),
    "loom.commit.duration": ("histogram", "s", "store"),
    "loom.batch": ("histogram", "1", "store"),
    "loom.records": ("counter", "1", "store"),
    "loom.bytes": ("counter", "By", "store"),
    "loom.backlog": ("gauge", "1", "store"),
    "loom.failures": ("counter", "1", "store why"),
    "crystal.retries": ("counter", "1", "crystal status"),
    "crystal.running": ("gauge", "1", "crystal"),
    "crystal.waiting": ("gauge", "1", "crystal"),
    "crystal.paused": ("gauge", "s", "crystal"),
    "crystal.breaker": ("gauge", "1", "crystal"),
    "cost.usd": ("counter", "{usd}", "model cantrip"),
    "approvals.pending": ("gauge", "1", "gate"),
    "approval.wait": ("histogram", "s", "gate decision"),
    "sandbox.duration": ("histogram", "s", "medium"),
    "sandbox.killed": ("counter", "1", "medium limit"),
    "streams": ("gauge", "1", "dialect"),
    "streams.dropped": ("counter", "1", "dialect"),
    "loop.lag": ("histogram", "s", ""),
    "mail.wait": ("histogram", "s", "kind"),
    "mail.duration": ("histogram", "s", ""),
    "timer.lateness": ("histogram", "s", ""),
    "limits.draws": ("counter", "1", "limits outcome"),
    "node.entities": ("gauge", "1", ""),
    "node.busy": ("gauge", "1", ""),
    "node.capacity": ("gauge", "1", ""),
    "node.takeovers": ("counter", "1", ""),
    "node.late_renewals": ("counter", "1", ""),
    "cluster.nodes": ("gauge", "1", "state"),
    "cluster.unowned": ("gauge", "1", ""),
    "cluster.unowned.longest": ("gauge", "s", ""),
    "cluster.stranded": ("gauge", "1", ""),
    "cluster.quarantined": ("gauge", "1", ""),
    "entities.quarantined": ("gauge", "1", ""),
    "queue.waiting": ("gauge", "1", "queue"),
    "queue.running": ("gauge", "1", "queue"),
}


@pytest.mark.rule("METRIC-01")
def test_every_metric_is_there_with_its_kind_unit_attributes_and_buckets() -> None:
    found = {one.name: (one.kind, one.unit, " ".join(one.labels), one.buckets) for one in METRICS.values()}
    standard = {f"gen_ai.{name}": told for name, told in STANDARD.items()} | OF_MCP | OF_HTTP
    assert {name: told for name, told in found.items() if not name.startswith("cantrip.")} == standard
    ours = {name: told[:3] for name, told in found.items() if name.startswith("cantrip.")}
    assert ours == {f"cantrip.{name}": told for name, told in OURS.items()}
    assert all(bool(one.buckets) == (one.kind == "histogram") for one in METRICS.values())
    assert {metric.name for metric in LEGACY} == {"gen_ai.client.token.usage", "gen_ai.client.operation.duration"}


@pytest.mark.rule("METRIC-01", "METRIC-02")
async def test_a_failed_query_counts_zero_tokens() -> None:
    telemetry = counting()
    failing = Model(ProviderError("no", status=400))
    async with Runtime.open(telemetry=telemetry) as runtime:
        with contextlib.suppress(ProviderError):
            await runtime.cast(cantrip(failing, name="failing"), "go")
    for part in ("input_tokens", "output_tokens"):
        used = telemetry.counters.read_values(f"{USED}{part}")
        assert used == {("chat", "anthropic", "claude-sonnet-4-5", "", "unknown"): 0}


@pytest.mark.rule("METRIC-01", "METRIC-02")
@pytest.mark.parametrize("scheme", ["memory", "sqlite", "jsonl"])
async def test_the_bytes_of_the_loom_are_those_of_its_lines(tmp_path: Any, scheme: str) -> None:
    telemetry = counting()
    url = "memory:" if scheme == "memory" else f"{scheme}:{tmp_path / 'loom'}"
    async with Runtime.open(url, telemetry=telemetry) as runtime:
        await runtime.cast(cantrip([done("x" * 5_000)], name="long"), "go")
        lines = sum(len(line) for _, line in runtime._tree.store.lines())
        counted = value(telemetry, "cantrip.loom.bytes", scheme)
    assert counted > 5_000
    assert counted == lines


@pytest.mark.rule("METRIC-01")
async def test_calls_of_a_servers_tools_and_its_connection_are_timed() -> None:
    telemetry = counting()
    circle = Circle(["done", inproc("t", tools())], [max_turns(4)])
    async with Runtime.open(telemetry=telemetry) as runtime:
        await runtime.cast(Cantrip(scripted([say("t__add", a=1, b=2), done("ok")]), circle=circle), "go")
    found = telemetry.counters.read_histograms()
    calls = {labels: one.count for labels, one in found["mcp.client.operation.duration"].items()}
    assert calls == {("tools/call", "t__add", ""): 1}
    assert {labels[:2] for labels in found["gen_ai.execute_tool.duration"]} == {
        ("t__add", "extension"),
        ("done", "function"),
    }
    assert [one.count for one in found["mcp.client.session.duration"].values()] == [1]


@pytest.mark.rule("METRIC-01", "OTEL-02")
async def test_a_controllers_run_is_a_workflow_with_its_plans() -> None:
    sdk = Sdk()
    telemetry = sdk.telemetry()
    async with Runtime.open(telemetry=telemetry) as runtime:
        parts = {"dispatcher": make_agent_dispatcher(), "tool_registry": make_tool_registry()}
        await run(ArithmeticTask(op="MUL", a=6, b=7), runtime=runtime, **parts)
    found = telemetry.counters.read_histograms()
    assert {labels: one.count for labels, one in found["gen_ai.invoke_workflow.duration"].items()} == {
        ("controller", ""): 1
    }
    assert not found["gen_ai.invoke_agent.duration"]
    (flow,) = sdk.below(None)
    assert (flow.name, flow.attributes["gen_ai.workflow.name"]) == ("invoke_workflow controller", "controller")
    plans = [span for span in sdk.below(flow) if span.attributes["gen_ai.operation.name"] == "plan"]
    assert plans
    assert {(span.name, span.kind) for span in plans} == {("plan controller", SpanKind.INTERNAL)}


@pytest.mark.rule("METRIC-02")
async def test_counters_equal_the_events_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child, a fold with a summary, a denied call, a retry, a failed query, a ward and two crashes."""
    telemetry = counting()

    def policy(context: Invocation) -> object:
        used = {"usage": {"prompt_tokens": 7, "completion_tokens": 3, "cached_tokens": 2, "cost": 0.25}}
        if context[0].role == "system":
            return {"content": "in short", **used}
        intent = next(m.content for m in context if m.role == "user")
        said = sum(m.role == "assistant" for m in context)
        if intent == "child" or said == 5:
            return {**done(1), **used}
        return {**say("call_agent", intent="child"), **used}

    spell = cantrip(
        policy, "call_agent", name="parent", folding=Folding(trigger_after_turns=2, keep_turns=1, summary=True)
    )
    crash_at(monkeypatch, StepRecorder, "record_step", after=True, at=3)
    crash_at(monkeypatch, GatesActor, "handle_call", after=False, at=1)
    async with Runtime.open(telemetry=telemetry) as runtime:
        await runtime.cast(spell, "go")
        await runtime.cast(cantrip(lambda _: say("look"), look, wards=(max_turns(2),), name="short"), "go")
        failing = Model(ProviderError("busy", status=503), ProviderError("no", status=400))
        with contextlib.suppress(ProviderError):
            await runtime.cast(cantrip(failing, retry=Retry(max_retries=2), name="failing"), "go")
        entity = await runtime.start(cantrip([say("look"), done(1)], ask_first(look), name="asking"), "go")
        async for request in runtime.requests(follow=True):
            await anyio.sleep(30)
            assert telemetry.counters.read_values("cantrip.approvals.pending") == {("look",): 1}
            await runtime.decide(request.id, "deny")
            break
        await entity.episode()
        loom = runtime.loom
        turns = [turn for one in loom.entities() for turn in loom.turns(one)]
        usage = [loom.usage(one) for one in loom.entities()]
        records = sum(len(loom.records(one)) for one in loom.entities())
        states = [loom.state(one) for one in loom.entities()]
        ended = {state: states.count(state) for state in set(states)}

        assert sum(telemetry.counters.read_values("cantrip.turns").values()) == len(turns)
        for name, field in (
            ("input", "prompt_tokens"),
            ("output", "completion_tokens"),
            ("cache_read.input", "cached_tokens"),
        ):
            counted = sum(telemetry.counters.read_values(f"{USED}{name}_tokens").values())
            assert counted == sum(getattr(one, field) for one in usage)
        assert sum(telemetry.counters.read_values("cantrip.cost.usd").values()) == sum(one.cost for one in usage) > 0
        assert value(telemetry, "cantrip.loom.records", "memory") == records
        ends: dict[str, float] = {}
        for (reason, _), count in telemetry.counters.read_values("cantrip.entity.ends").items():
            ends[reason] = ends.get(reason, 0) + count
        assert ends == ended
        assert value(telemetry, "cantrip.entity.ends", "truncated", "max_turns") == 2
        assert value(telemetry, "cantrip.crystal.retries", "anthropic:claude-sonnet-4-5", "503") == 1
        # one entity crashed by itself, and one because its circle crashed during a call
        assert value(telemetry, "cantrip.supervisor.crashes", "entity", "crash") == 2
        assert value(telemetry, "cantrip.supervisor.crashes", "circle", "crash") == 1
        assert value(telemetry, "cantrip.supervisor.restarts", "entity") == 2
        calls = telemetry.counters.read_histograms()["gen_ai.execute_tool.duration"]
        assert sum(one.count for one in calls.values()) == sum(len(turn.gate_calls) for turn in turns)
        queries = telemetry.counters.read_histograms()["gen_ai.client.inference.duration"]
        assert sum(one.count for labels, one in queries.items() if labels[-1] == "400") == 1
        (waited,) = telemetry.counters.read_histograms()["cantrip.approval.wait"].items()
        assert waited[0] == ("look", "deny")
        assert waited[1].count == 1
        assert telemetry.counters.read_values("cantrip.approvals.pending") == {("look",): 0}


class Priced:
    """A crystal of this name, each of whose answers costs the same."""

    def __init__(self, name: str, *answers: object) -> None:
        self.name = name
        self.address = f"https://{name.partition(':')[2]}.example"
        self._answers = [*answers]

    async def invoke(self, _: object) -> object:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {**answer, "usage": {"prompt_tokens": 7, "completion_tokens": 3, "cost": 0.5}}  # type: ignore[dict-item]


@pytest.mark.rule("METRIC-02")
async def test_a_summary_by_another_crystal_is_counted_with_that_crystal() -> None:
    telemetry = counting()
    own = Priced("openai:big", *[say("look")] * 3, done(1))
    other = Priced("mistral:small", ProviderError("busy", status=503), {"content": "in short"})
    spell = cantrip(own, look, folding=Folding(trigger_after_turns=2, keep_turns=1, summary=other), name="folding")
    async with Runtime.open(telemetry=telemetry) as runtime:
        await runtime.cast(spell, "go")
        read_ = telemetry.counters.read_values
        tokens, cost = read_(f"{USED}input_tokens"), read_("cantrip.cost.usd")
        retries, found = read_("cantrip.crystal.retries"), telemetry.counters.read_histograms()
    assert tokens == {("chat", "openai", "big", "", "unknown"): 28, ("chat", "mistral_ai", "small", "", "unknown"): 7}
    assert cost == {("big", "folding"): 2.0, ("small", "folding"): 0.5}
    assert retries == {("mistral:small", "503"): 1}
    durations = {labels[1:]: one.count for labels, one in found["gen_ai.client.inference.duration"].items()}
    assert durations == {
        ("openai", "big", "", "big.example", "443", ""): 4,
        ("mistral_ai", "small", "", "small.example", "443", ""): 1,
    }


@pytest.mark.rule("METRIC-02", "METRIC-06")
async def test_actors_have_the_kind_of_their_role_and_not_a_name() -> None:
    telemetry = counting()
    seen: dict[Any, float] = {}

    @gate
    async def peek() -> str:
        """Look at the metrics."""
        seen.update(telemetry.counters.read_values("cantrip.actors"))
        return "x"

    circle = Circle(["done", peek, inproc("private", tools())], [max_turns(4)])
    async with Runtime.open(telemetry=telemetry) as runtime:
        await runtime.cast(Cantrip(scripted([say("peek"), done(1)]), circle=circle), "go")
    kinds = {kind: count for (kind, _), count in seen.items()}
    assert kinds == dict.fromkeys(kinds, 1)
    assert {"root", "servers", "server", "connection", "crystals", "crystal", "entities", "entity", "circle"} <= {
        *kinds
    }


@pytest.mark.rule("METRIC-02")
async def test_pending_approvals_are_zero_without_a_request() -> None:
    telemetry = counting()
    async with Runtime.open(telemetry=telemetry):
        assert telemetry.counters.read_values("cantrip.approvals.pending") == {("",): 0}
        assert "\ncantrip_approvals_pending 0\n" in telemetry.prometheus()


@pytest.mark.rule("METRIC-02", "N-57")
async def test_gauges_show_the_current_values() -> None:
    telemetry = counting()
    seen: dict[str, dict[Any, float]] = {}

    @gate
    async def peek() -> str:
        """Look at the metrics."""
        for name in ("cantrip.entities", "cantrip.actors", "cantrip.crystal.breaker"):
            seen[name] = telemetry.counters.read_values(name)
        return "x"

    async with Runtime.open(telemetry=telemetry) as runtime:
        await runtime.invoke(cantrip(lambda _: done(1)), "idle")
        await anyio.sleep(5)
        await runtime.cast(cantrip([say("peek"), done(1)], peek), "go")
    assert seen["cantrip.entities"] == {("running",): 1, ("waiting",): 0, ("idle",): 1}
    assert sum(count for (kind, _), count in seen["cantrip.actors"].items() if kind == "entity") == 2
    assert set(seen["cantrip.crystal.breaker"].values()) == {0}


@pytest.mark.rule("METRIC-02")
async def test_an_episode_of_another_process_is_counted_as_resumed(tmp_path: Any) -> None:
    url, spell = f"sqlite:{tmp_path / 'loom.db'}", cantrip([say("look"), done(1)], ask_first(look))
    async with Runtime.open(url) as runtime:
        await runtime.start(spell, "go")
        await anyio.sleep(1)
    telemetry = counting()
    async with Runtime.open(url, cantrips=[spell], telemetry=telemetry) as runtime:
        assert telemetry.counters.read_values("cantrip.approvals.pending") == {("look",): 1}
        (request,) = runtime.requests()
        await runtime.decide(request.id, "allow")
        with anyio.fail_after(60):
            while runtime.loom.state(request.entity) != "terminated":
                await anyio.sleep(0.1)
    assert value(telemetry, "cantrip.entity.resumed") == 1


def parsed(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


@pytest.mark.rule("METRIC-03")
async def test_the_page_parses_and_says_what_the_sdk_reads() -> None:
    reader = InMemoryMetricReader()
    telemetry = Telemetry(meter_provider=MeterProvider([reader], shutdown_on_exit=False), legacy=True)
    usage = {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    spell = cantrip(
        [{**say("look"), **usage}, {**say("call_agent", intent="x"), **usage}, done(2), done(1)], look, "call_agent"
    )
    async with Runtime.open(telemetry=telemetry) as runtime:
        await runtime.cast(spell, "go")
        page, data = telemetry.prometheus(), reader.get_metrics_data()
    found, compared, told = parsed(page), 0, set()
    metrics = [one for resource in data.resource_metrics for scope in resource.scope_metrics for one in scope.metrics]
    for metric in metrics:
        name = telemetry.counters.metrics[metric.name].prometheus
        for point in metric.data.data_points:
            labels = tuple(sorted((label.replace(".", "_"), value) for label, value in point.attributes.items()))
            compared += 1
            if hasattr(point, "bucket_counts"):
                assert found[f"{name}_count", labels] == point.count
                assert found[f"{name}_sum", labels] == pytest.approx(point.sum)
                running = 0
                for bound, count in zip(point.explicit_bounds, point.bucket_counts, strict=False):
                    running += count
                    edge = tuple(sorted((*labels, ("le", str(int(bound)) if bound == int(bound) else repr(bound)))))
                    assert found[f"{name}_bucket", edge] == running
            else:
                assert found[name, labels] == point.value
            told.update({(name, labels), (f"{name}_count", labels), (f"{name}_sum", labels)})
    assert compared > 20
    assert [series for series in found if not series[0].endswith("_bucket") and series not in told] == []
    assert {"gen_ai.client.token.usage", "gen_ai.invoke_agent.duration", "cantrip.turns"} <= {
        one.name for one in metrics
    }


@pytest.mark.rule("METRIC-03")
def test_names_have_the_units_and_suffixes_of_prometheus() -> None:
    page = Counters(METRICS).render_prometheus()
    assert "# TYPE cantrip_turns_total counter" in page
    assert "# TYPE gen_ai_client_inference_duration_seconds histogram" in page
    assert "# TYPE cantrip_crystal_paused_seconds gauge" in page
    assert "_created" not in page
    assert page.count("# HELP ") == len(METRICS)


@pytest.mark.rule("METRIC-03")
@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), 1e300, -0.5])
def test_every_number_can_be_on_the_page(number: float) -> None:
    counters = Counters(METRICS)
    counters.read_gauges_of(lambda: [("cantrip.crystal.paused", ("x",), number)])
    (shown,) = [value for (name, _), value in parsed(counters.render_prometheus()).items() if "paused" in name]
    assert shown == number or (shown != shown and number != number)  # noqa: PLR0124  # NaN differs from itself


@pytest.mark.rule("METRIC-04")
def test_hostile_label_values_are_escaped() -> None:
    counters = Counters(METRICS)
    hostile = 'a"b\\c\nd{}=,\ud800\x00'
    counters.add("cantrip.turns", (hostile,))
    ((_, labels),) = [key for key in parsed(counters.render_prometheus()) if key[0] == "cantrip_turns_total"]
    assert labels == (("gen_ai_agent_name", 'a"b\\c\nd{}=,\\ud800\x00'),)


@pytest.mark.rule("METRIC-04")
def test_a_label_has_at_most_200_values() -> None:
    counters = Counters(METRICS)
    for n in range(10_000):
        counters.add("cantrip.turns", (f"agent {n}",))
        counters.observe("gen_ai.invoke_agent.duration", (f"agent {n}", ""), 1.0)
    series = counters.read_values("cantrip.turns")
    assert len(series) == 201
    assert series["other",] == 9_800
    assert len(counters.read_histograms()["gen_ai.invoke_agent.duration"]) == 201


@pytest.mark.rule("METRIC-04")
async def test_requests_of_more_than_200_gates_are_counted_as_other() -> None:
    telemetry = counting()

    def asking(name: str) -> Any:
        @gate(name=name)
        async def wait() -> str:
            """Wait."""
            return "x"

        return ask_first(wait)

    async with Runtime.open(telemetry=telemetry) as runtime:
        for n in range(203):
            await runtime.start(cantrip([say(f"gate{n}"), done(1)], asking(f"gate{n}")), "go")
        await anyio.sleep(5)
        pending = telemetry.counters.read_values("cantrip.approvals.pending")
        assert len(pending) == 201
        assert pending["gate0",] == 1
        assert pending["other",] == 3


@pytest.mark.rule("METRIC-05")
async def test_the_page_is_rendered_while_an_actor_is_stuck_without_asking_any_actor() -> None:
    telemetry = counting()
    stuck = anyio.Event()

    class Stuck(Model):
        async def invoke(self, messages: object) -> object:
            await stuck.wait()
            return done(1)

    async with Runtime.open(telemetry=telemetry) as runtime:
        entity = await runtime.start(cantrip(limited(Stuck(), concurrency=1)), "go")
        await anyio.sleep(1)
        pages = [telemetry.prometheus() for _ in range(100)]  # without a checkpoint between
        stuck.set()
        await entity.episode()
    assert all('cantrip_crystal_running{crystal="anthropic:claude-sonnet-4-5"} 1' in page for page in pages)


PLAIN = 0.00023
"""The CPU seconds in which a quiet core of two formats a thousand lines."""


def format_a_thousand_lines() -> str:
    return "".join(
        f'cantrip_entity_ends_total{{reason="reason {n % 32}",ward="ward {n // 32}"}} {float(n)}\n'
        for n in range(1_000)
    )


def measure_cpu(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


@pytest.mark.rule("METRIC-05")
async def test_a_hundred_pages_a_second_of_a_thousand_series_take_less_than_a_fifth_of_a_core() -> None:
    telemetry = counting()
    for n in range(1_000):
        telemetry.counters.add("cantrip.entity.ends", (f"reason {n % 32}", f"ward {n // 32}"))
    async with Runtime.open(telemetry=telemetry) as runtime:
        await runtime.cast(cantrip([say("look"), say("look"), done(1)], look), "go")
        pages, plain = [], []
        for _ in range(20):  # other processes slow both down, and only add to the time, so the quickest of each counts
            pages.append(measure_cpu(telemetry.prometheus))
            plain.append(measure_cpu(format_a_thousand_lines))
    assert min(pages) * 100 < 0.2 * min(plain) / PLAIN


@pytest.mark.real_time
@pytest.mark.rule("METRIC-05")
async def test_reading_the_page_a_hundred_times_a_second_takes_no_time_of_the_turns() -> None:
    telemetry, pages = counting(), 0

    async def turns() -> float:
        began = time.thread_time()  # of the event loop's thread
        await runtime.cast(cantrip([*[say("look")] * 499, done(1)], look, wards=(max_turns(500),)), "go")
        return time.thread_time() - began

    def scrape() -> None:
        nonlocal pages
        while not is_over.wait(0.01):
            telemetry.prometheus()
            pages += 1

    async with Runtime.open(telemetry=telemetry) as runtime:
        plain, scraped = [], []
        for _ in range(6):  # a busy machine only adds to the time, so the quickest counts
            plain.append(await turns())
            is_over = threading.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(to_thread.run_sync, scrape)
                scraped.append(await turns())
                is_over.set()
            if min(scraped) < 1.5 * min(plain):
                break
        counted = value(telemetry, "cantrip.turns", "")
    assert counted == 2 * len(scraped) * 500  # the flushes of another thread lose nothing
    assert pages >= len(scraped)
    assert min(scraped) < 1.5 * min(plain), (plain, scraped)


@pytest.mark.rule("METRIC-06")
async def test_no_series_names_an_entity_an_intent_or_an_answer() -> None:
    telemetry = counting()
    circle = Circle(["done", "call_agent", look], [max_turns(9), max_depth(1)])
    says = [
        say("look", what="ARGUMENT"),
        say("MADE-UP"),
        say("call_agent", intent="CHILD"),
        done("SAID"),
        done("RESULT"),
    ]
    async with Runtime.open(telemetry=telemetry) as runtime:
        entity = await runtime.invoke(Cantrip(scripted(says), circle=circle), "INTENT", name="NAME", by="USER")
        await entity.episode()
        page, entities = telemetry.prometheus(), runtime.loom.entities()
    assert len(entities) == 2
    assert not [one for one in entities if one in page]
    assert re.search("ARGUMENT|MADE-UP|CHILD|SAID|RESULT|INTENT|NAME|USER", page) is None


@pytest.mark.rule("METRIC-06")
async def test_tenants_are_counted_only_if_configured() -> None:
    for telemetry, labels in ((counting(), ("x",)), (counting(tenant_metrics=True), ("x", "acme"))):
        async with Runtime.open(telemetry=telemetry) as runtime:
            await runtime.tenant("acme").cast(cantrip([done(1)], name="x"), "go")
        assert telemetry.counters.read_values("cantrip.turns") == {labels: 1}


async def test_a_telemetry_observes_one_open_runtime() -> None:
    telemetry = counting()
    async with Runtime.open(telemetry=telemetry):
        with pytest.raises(ValueError, match="make a Telemetry for each"):
            async with Runtime.open(telemetry=telemetry):
                pass
    async with Runtime.open(telemetry=telemetry) as runtime:
        await runtime.cast(cantrip([done(1)]), "go")
    assert sum(telemetry.counters.read_values("cantrip.turns").values()) == 1


@pytest.mark.rule("METRIC-02")
def test_each_event_of_a_supervisor_has_its_counter() -> None:
    telemetry, ref, spec = counting(), ActorRef("root/runtime/loom"), ChildSpec("loom", object)
    told: list[Any] = [
        Started(0.0, ref, spec, 0),
        Started(0.0, ref, spec, 1),
        Started(0.0, ref, spec, 2),
        Exited(0.0, ref, spec, Crash(KeyError("x")), expected=False),
        Exited(0.0, ref, spec, Killed(), expected=False),
        Exited(0.0, ref, spec, Normal(), expected=False),
        Exited(0.0, ref, spec, Shutdown("later"), expected=False),
        Exited(0.0, ref, spec, Normal(), expected=True),
        GaveUpEvent(0.0, ref, spec, Crash(KeyError("x"))),
        Zombie(0.0, ref, spec),
        StartFailedEvent(0.0, ref, spec, Crash(KeyError("x")), expected=False),
        StartFailedEvent(0.0, ref, spec, None, expected=True),
        DeadLetter(0.0, ref, "lost"),
        DeadLetter(0.0, ref, "lost, too"),
    ]
    for event in told:
        telemetry.supervised(event)
    counted = {
        name: telemetry.counters.read_values(f"cantrip.supervisor.{name}")
        for name in ("restarts", "crashes", "gave_up", "zombies", "failed_starts", "dead_letters")
    }
    assert counted == {
        "restarts": {("loom",): 2},
        "crashes": {("loom", reason): 1 for reason in ("crash", "killed", "normal", "shutdown")},
        "gave_up": {("loom",): 1},
        "zombies": {("loom",): 1},
        "failed_starts": {("loom",): 1},
        "dead_letters": {("loom",): 2},
    }


@pytest.mark.rule("METRIC-02")
async def test_programs_are_timed_and_those_beyond_a_limit_counted() -> None:
    telemetry = counting()
    ended = [{"value": 1}, {"error": "too long", "limit": "time"}, {"error": "too much", "limit": "memory"}]
    records = [GateFinished(entity_id="e", turn_id="t", gate="python", result=one, duration_ms=250.0) for one in ended]
    async with Runtime.open(telemetry=telemetry):
        telemetry.written(records)
        (series,) = telemetry.counters.read_histograms()["cantrip.sandbox.duration"].items()
    assert (series[0], series[1].count, series[1].sum) == (("python",), 3, 0.75)
    assert telemetry.counters.read_values("cantrip.sandbox.killed") == {("python", "time"): 1, ("python", "memory"): 1}


@pytest.mark.rule("METRIC-02")
async def test_histograms_of_a_run_have_its_turns_calls_and_commits() -> None:
    telemetry = counting()
    spell = cantrip([{**say("look"), "delay": 2.0}, say("look"), done(1)], look, name="looker")
    async with Runtime.open(telemetry=telemetry) as runtime:
        await runtime.cast(spell, "go")
        found = telemetry.counters.read_histograms()
    queries, calls = (found[f"gen_ai.invoke_agent.{what}"]["looker",] for what in ("inference_calls", "tool_calls"))
    assert (queries.count, queries.sum) == (1, 3)
    assert (calls.count, calls.sum) == (1, 3)
    overhead = found["cantrip.turn.overhead"][()]
    assert overhead.count == 3
    assert overhead.sum < 1  # the two seconds are the provider's
    commits, batches = (found[f"cantrip.loom.{what}"]["memory",] for what in ("commit.duration", "batch"))
    assert commits.count == batches.count > 0
    assert batches.sum >= batches.count


@pytest.mark.rule("METRIC-02")
async def test_queries_that_run_and_wait_are_gauges_of_their_crystal() -> None:
    telemetry, model = counting(), limited(Model(*[{"content": "x"}] * 3), concurrency=1)
    spell = Cantrip(model, circle=Circle(["done"], [max_turns(2)]))
    async with Runtime.open(telemetry=telemetry) as runtime, anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(runtime.cast, spell, "go")
        await anyio.sleep(0.2)
        seen = {what: telemetry.counters.read_values(f"cantrip.crystal.{what}") for what in ("running", "waiting")}
    assert seen == {"running": {("anthropic:claude-sonnet-4-5",): 1}, "waiting": {("anthropic:claude-sonnet-4-5",): 2}}


class Streaming:
    """A crystal whose answer comes in three parts."""

    name = "anthropic:claude-sonnet-4-5"

    async def invoke(self, messages: object, *, emit: Any = None) -> object:
        emit(ItemStart("m", "message"))
        for part in ("Milk ", "and bread."):
            await anyio.sleep(0.05)
            emit(ItemDelta("m", part))
        return {"content": "Milk and bread."}


@pytest.mark.real_time
@pytest.mark.rule("METRIC-02", "OTEL-02")
async def test_parts_of_an_answer_are_timed_where_something_watches() -> None:
    sdk = Sdk()
    telemetry = sdk.telemetry()
    async with Runtime.open(telemetry=telemetry) as runtime:
        stop = runtime.watch(lambda _: None)
        began = time.monotonic()
        await runtime.cast(Cantrip(Streaming(), circle=Circle(["done"], [max_turns(2)])), "go")
        elapsed = time.monotonic() - began
        stop()
    found = telemetry.counters.read_histograms()
    (first,) = found["gen_ai.client.inference.time_to_first_chunk"].values()
    (later,) = found["gen_ai.client.inference.time_per_output_chunk"].values()
    assert (first.count, later.count) == (1, 2)
    assert later.sum > 0.09
    assert 0 < first.sum < elapsed - later.sum  # the first is timed from the query, each later one from the one before
    chat = sdk.one("chat claude-sonnet-4-5")
    assert chat.attributes["gen_ai.response.time_to_first_chunk"] == pytest.approx(first.sum, abs=0.01)
    assert chat.attributes["gen_ai.request.stream"] is True


@pytest.mark.rule("METRIC-01", "OTEL-02")
async def test_gates_that_look_into_files_are_data_stores(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("milk")
    sdk = Sdk()
    telemetry = sdk.telemetry()
    circle = Circle(["done", *(one.with_(root=str(tmp_path)) for one in (read, write))], [max_turns(4)])
    says = [say("read", path="notes.txt"), say("write", path="new.txt", content="bread"), done(1)]
    async with Runtime.open(telemetry=telemetry) as runtime:
        await runtime.cast(Cantrip(scripted(says), circle=circle), "go")
    kinds = {"read": "datastore", "write": "function", "done": "function"}
    timed = telemetry.counters.read_histograms()["gen_ai.execute_tool.duration"]
    assert {labels[0]: labels[1] for labels in timed} == kinds
    assert {name: sdk.one(f"execute_tool {name}").attributes["gen_ai.tool.type"] for name in kinds} == kinds


@pytest.mark.rule("METRIC-02")
async def test_the_lag_of_the_loop_is_the_lateness_of_its_timer() -> None:
    telemetry, blocked = counting(), 0.0
    pulse = Pulse(clock=lambda: anyio.current_time() + blocked)
    async with Runtime.open(telemetry=telemetry) as runtime, anyio.create_task_group() as tasks:
        late = partial(telemetry.counters.observe, "cantrip.loop.lag", ())
        tasks.start_soon(pulse.beat, runtime, 1.0, late)
        await anyio.sleep(2.5)
        lag = telemetry.counters.read_histograms()["cantrip.loop.lag"][()]
        assert (lag.count, lag.sum) == (2, pytest.approx(0.0, abs=1e-6))
        blocked = 0.3  # as a gate does that does not let the loop run
        await anyio.sleep(1)
        assert (lag.count, lag.sum) == (3, pytest.approx(0.3))
        await anyio.sleep(1)
        assert (lag.count, lag.sum) == (4, pytest.approx(0.3))
        tasks.cancel_scope.cancel()
