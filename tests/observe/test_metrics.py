"""What is counted: every metric by name, exact values, the page of Prometheus, and that nothing names an entity."""

import contextlib
import re
import time
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
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
from cantrip_actors.observe import Telemetry
from cantrip_actors.observe.counters import Counters
from cantrip_actors.observe.metrics import LEGACY, METRICS
from cantrip_actors.runtime.entity_actor import EntityActor
from cantrip_actors.runtime.gates_actor import GatesActor
from cantrip_actors.wards import max_depth, max_turns
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
    return telemetry.counters.value_of(name)[labels]


SECONDS = tuple(0.01 * 2**n for n in range(14))
EXPECTED = {
    "gen_ai.client.inference.duration": ("histogram", "s", SECONDS),
    "gen_ai.client.inference.time_to_first_chunk": ("histogram", "s", SECONDS),
    "gen_ai.client.inference.time_per_output_chunk": ("histogram", "s", SECONDS),
    "gen_ai.client.inference.usage.input_tokens": ("counter", "{token}", ()),
    "gen_ai.client.inference.usage.output_tokens": ("counter", "{token}", ()),
    "gen_ai.client.inference.usage.cache_read.input_tokens": ("counter", "{token}", ()),
    "gen_ai.client.inference.usage.cache_write.input_tokens": ("counter", "{token}", ()),
    "gen_ai.client.inference.usage.reasoning.output_tokens": ("counter", "{token}", ()),
    "gen_ai.client.inference.operation.input_tokens": ("histogram", "{token}", tuple(4.0**n for n in range(14))),
    "gen_ai.client.inference.operation.output_tokens": ("histogram", "{token}", tuple(4.0**n for n in range(14))),
    "gen_ai.invoke_agent.duration": ("histogram", "s", tuple(0.1 * 2**n for n in range(13))),
    "gen_ai.invoke_agent.inference_calls": ("histogram", "{inference_call}", tuple(2.0**n for n in range(8))),
    "gen_ai.invoke_agent.tool_calls": ("histogram", "{tool_call}", tuple(2.0**n for n in range(8))),
    "gen_ai.execute_tool.duration": ("histogram", "s", SECONDS),
    "cantrip.cost.usd": ("counter", "{usd}", ()),
    "cantrip.crystal.paused": ("gauge", "s", ()),
    "cantrip.cluster.unowned.longest": ("gauge", "s", ()),
}
COUNTERS = (
    "supervisor.restarts supervisor.crashes supervisor.gave_up supervisor.zombies supervisor.dead_letters "
    "supervisor.failed_starts entity.ends entity.resumed turns loom.records crystal.retries sandbox.killed "
    "streams.dropped loom.failures limits.draws node.takeovers node.late_renewals"
)
GAUGES = (
    "actors mailbox.depth entities loom.backlog crystal.running crystal.waiting crystal.breaker "
    "approvals.pending streams node.entities node.busy node.capacity cluster.nodes cluster.unowned cluster.stranded "
    "cluster.quarantined"
)
HISTOGRAMS = (
    "turn.overhead loom.commit.duration loom.batch approval.wait sandbox.duration loop.lag mail.wait mail.duration "
    "timer.lateness"
)


@pytest.mark.rule("METRIC-01")
def test_every_metric_is_there_with_its_unit_and_buckets() -> None:
    for name, told in EXPECTED.items():
        metric = METRICS[name]
        assert (metric.kind, metric.unit, metric.buckets) == told, name
    kinds = {"counter": COUNTERS, "gauge": GAUGES, "histogram": HISTOGRAMS}
    ours = {f"cantrip.{name}": kind for kind, listed in kinds.items() for name in listed.split()}
    assert {name: METRICS[name].kind for name in METRICS if name not in EXPECTED} == ours
    assert {metric.name for metric in LEGACY} == {"gen_ai.client.token.usage", "gen_ai.client.operation.duration"}


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
    crash_at(monkeypatch, EntityActor, "_carry", after=True, at=3)
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
            assert value(telemetry, "cantrip.approvals.pending") == 1
            await runtime.decide(request.id, "deny")
            break
        await entity.episode()
        loom = runtime.loom
        turns = [turn for one in loom.entities() for turn in loom.turns(one)]
        usage = [loom.usage(one) for one in loom.entities()]
        records = sum(len(loom.records(one)) for one in loom.entities())
        states = [loom.state(one) for one in loom.entities()]
        ended = {state: states.count(state) for state in set(states)}

        assert sum(telemetry.counters.value_of("cantrip.turns").values()) == len(turns)
        for name, field in (
            ("input", "prompt_tokens"),
            ("output", "completion_tokens"),
            ("cache_read.input", "cached_tokens"),
        ):
            counted = sum(telemetry.counters.value_of(f"{USED}{name}_tokens").values())
            assert counted == sum(getattr(one, field) for one in usage)
        assert sum(telemetry.counters.value_of("cantrip.cost.usd").values()) == sum(one.cost for one in usage) > 0
        assert value(telemetry, "cantrip.loom.records", "memory") == records
        ends: dict[str, float] = {}
        for (reason, _), count in telemetry.counters.value_of("cantrip.entity.ends").items():
            ends[reason] = ends.get(reason, 0) + count
        assert ends == ended
        assert value(telemetry, "cantrip.entity.ends", "truncated", "max_turns") == 2
        assert value(telemetry, "cantrip.crystal.retries", "anthropic:claude-sonnet-4-5", "503") == 1
        # one entity crashed by itself, and one because its circle crashed during a call
        assert value(telemetry, "cantrip.supervisor.crashes", "entity", "crash") == 2
        assert value(telemetry, "cantrip.supervisor.crashes", "circle", "crash") == 1
        assert value(telemetry, "cantrip.supervisor.restarts", "circle") == 1
        assert value(telemetry, "cantrip.supervisor.restarts", "entity") == 2
        calls = telemetry.counters.histograms()["gen_ai.execute_tool.duration"]
        assert sum(one.count for one in calls.values()) == sum(len(turn.gate_calls) for turn in turns)
        queries = telemetry.counters.histograms()["gen_ai.client.inference.duration"]
        assert sum(one.count for labels, one in queries.items() if labels[-1] == "400") == 1
        (waited,) = telemetry.counters.histograms()["cantrip.approval.wait"].items()
        assert waited[0] == ("look", "deny")
        assert waited[1].count == 1
        assert value(telemetry, "cantrip.approvals.pending") == 0


@pytest.mark.rule("METRIC-02", "N-57")
async def test_gauges_show_the_current_values() -> None:
    telemetry = counting()
    seen: dict[str, dict[Any, float]] = {}

    @gate
    async def peek() -> str:
        """Look at the metrics."""
        for name in ("cantrip.entities", "cantrip.actors", "cantrip.crystal.breaker"):
            seen[name] = telemetry.counters.value_of(name)
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
        assert value(telemetry, "cantrip.approvals.pending") == 1
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
    found, compared = parsed(page), 0
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
    assert compared > 20
    assert {"gen_ai.client.token.usage", "gen_ai.invoke_agent.duration", "cantrip.turns"} <= {
        one.name for one in metrics
    }


@pytest.mark.rule("METRIC-03")
def test_names_have_the_units_and_suffixes_of_prometheus() -> None:
    page = Counters(METRICS).prometheus()
    assert "# TYPE cantrip_turns_total counter" in page
    assert "# TYPE gen_ai_client_inference_duration_seconds histogram" in page
    assert "# TYPE cantrip_crystal_paused_seconds gauge" in page
    assert "_created" not in page
    assert page.count("# HELP ") == len(METRICS)


@pytest.mark.rule("METRIC-04")
def test_hostile_label_values_are_escaped() -> None:
    counters = Counters(METRICS)
    hostile = 'a"b\\c\nd{}=,\ud800\x00'
    counters.add("cantrip.turns", (hostile,))
    ((_, labels),) = [key for key in parsed(counters.prometheus()) if key[0] == "cantrip_turns_total"]
    assert labels == (("gen_ai_agent_name", 'a"b\\c\nd{}=,\\ud800\x00'),)


@pytest.mark.rule("METRIC-04")
def test_a_label_has_at_most_200_values() -> None:
    counters = Counters(METRICS)
    for n in range(10_000):
        counters.add("cantrip.turns", (f"agent {n}",))
        counters.observe("gen_ai.invoke_agent.duration", (f"agent {n}", ""), 1.0)
    series = counters.value_of("cantrip.turns")
    assert len(series) == 201
    assert series["other",] == 9_800
    assert len(counters.histograms()["gen_ai.invoke_agent.duration"]) == 201


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


@pytest.mark.rule("METRIC-05")
async def test_a_hundred_pages_a_second_take_less_than_a_fifth_of_a_core() -> None:
    telemetry = counting()
    async with Runtime.open(telemetry=telemetry) as runtime:
        await runtime.cast(cantrip([say("look"), say("look"), done(1)], look), "go")
        took = []
        for _ in range(20):  # a busy machine only adds to the time, so the quickest counts
            began = time.thread_time()
            telemetry.prometheus()
            took.append(time.thread_time() - began)
    assert min(took) * 100 < 0.2


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
        assert telemetry.counters.value_of("cantrip.turns") == {labels: 1}


async def test_a_telemetry_observes_one_open_runtime() -> None:
    telemetry = counting()
    async with Runtime.open(telemetry=telemetry):
        with pytest.raises(ValueError, match="make a Telemetry for each"):
            async with Runtime.open(telemetry=telemetry):
                pass
    async with Runtime.open(telemetry=telemetry) as runtime:
        await runtime.cast(cantrip([done(1)]), "go")
    assert sum(telemetry.counters.value_of("cantrip.turns").values()) == 1
