"""The names of spans and metrics, held against the package `opentelemetry-semantic-conventions`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from opentelemetry.exporter.prometheus import _mapping  # the form in which other exporters write names and units
from opentelemetry.semconv._incubating.attributes.gen_ai_attributes import (
    GenAiOperationNameValues,
    GenAiProviderNameValues,
)

from cantrip_actors.observe import Telemetry, names
from cantrip_actors.observe.metrics import LEGACY, METRICS
from tests.observe.test_metrics import counting

pytestmark = pytest.mark.rule("W-60")

NEWER: Final = "the GenAI conventions have their own repository now, and changed it after the package's version"
REASONS: Final[Mapping[str, str]] = {
    "gen_ai.client.inference.": f"{NEWER}: inference has metrics of its own",
    "gen_ai.client.inference.operation.details": f"{NEWER}: the event of a query's content",
    "gen_ai.client.operation.exception": f"{NEWER}: the event of a query's error",
    "gen_ai.conversation.compacted": f"{NEWER}: added",
    "gen_ai.execute_tool.duration": f"{NEWER}: added",
    "gen_ai.invoke_agent.": f"{NEWER}: added",
    "gen_ai.invoke_workflow.duration": f"{NEWER}: added",
    "gen_ai.request.reasoning.level": f"{NEWER}: added",
    "gen_ai.token.modality": f"{NEWER}: added",
    "gen_ai.usage.cache_write.input_tokens": f"{NEWER}: it was cache_creation",
    "gen_ai.usage.{}.{}_tokens": f"{NEWER}: tokens by modality",
}
"""Why the package does not have a name, or the names that begin so."""

OPERATIONS: Final = {"CHAT", "EXECUTE_TOOL", "INVOKE_AGENT", "INVOKE_WORKFLOW", "PLAN"}
NO_NAMES: Final = {*OPERATIONS, "SCOPE", "SCHEMA_URL", "CAPTURE"}

MODULES: Final = (
    *(f"_incubating.attributes.{area}_attributes" for area in ("error", "exception", "gen_ai", "http", "mcp")),
    *(f"_incubating.attributes.{area}_attributes" for area in ("network", "server", "url")),
    *(f"_incubating.metrics.{area}_metrics" for area in ("gen_ai", "mcp")),
    *(f"attributes.{area}_attributes" for area in ("error", "exception", "http", "network", "server", "url")),
    "metrics.http_metrics",
)
"""The parts of the package that have names of ours."""


def published() -> frozenset[str]:
    """All names of the package."""
    found: set[str] = set()
    for module in MODULES:
        values = vars(importlib.import_module(f"opentelemetry.semconv.{module}")).items()
        found.update(value for name, value in values if name.isupper() and isinstance(value, str))
    return frozenset(found)


def emitted() -> Iterator[str]:
    """All names of this package that are not its own."""
    for name, value in vars(names).items():
        if name.isupper() and isinstance(value, str) and name not in NO_NAMES:
            yield value
    yield from names.SETTINGS.values()
    for metric in (*METRICS.values(), *LEGACY):
        yield metric.name
        yield from (label for label in metric.labels if "." in label)


def test_every_name_is_in_the_published_conventions_or_has_a_reason() -> None:
    known = published()
    own = {name for name in emitted() if not name.startswith("cantrip.")}
    missing = own - known
    without = {name for name in missing if not any(name == one or _begins(name, one) for one in REASONS)}
    assert without == set()
    stale = {one for one in REASONS if not any(name == one or _begins(name, one) for name in missing)}
    assert stale == set(), "the package has these now"


def _begins(name: str, prefix: str) -> bool:
    return prefix.endswith(".") and name.startswith(prefix)


def test_operations_and_providers_are_those_of_the_published_conventions() -> None:
    operations = {one.value for one in GenAiOperationNameValues}
    assert {names.CHAT, names.EXECUTE_TOOL, names.INVOKE_AGENT, names.INVOKE_WORKFLOW} <= operations
    assert names.PLAN not in operations  # newer, as the names above
    assert set(names.PROVIDERS.values()) <= {one.value for one in GenAiProviderNameValues}


def test_no_name_on_the_page_of_prometheus_has_its_unit_twice() -> None:
    for metric in METRICS.values():
        unit = _mapping.map_unit(metric.unit)
        assert not metric.prometheus.removesuffix("_total").endswith(f"_{unit}_{unit}"), metric.name
        if unit:
            assert metric.prometheus.removesuffix("_total").endswith(f"_{unit}"), metric.name


def test_counters_that_are_known_beforehand_are_0_from_the_start() -> None:
    page = counting(tenant_metrics=True).prometheus().splitlines()
    for sample in (
        "cantrip_entity_resumed_total",
        'cantrip_entity_ends_total{reason="crashed"}',
        'cantrip_supervisor_crashes_total{kind="entity",reason="crash"}',
        'cantrip_streams_dropped_total{dialect="openai"}',
    ):
        assert f"{sample} 0" in page
    telemetry: Any = Telemetry(otel=False)
    telemetry.counters.add("cantrip.entity.ends", ("crashed", ""))
    assert 'cantrip_entity_ends_total{reason="crashed"} 1' in telemetry.prometheus().splitlines()
