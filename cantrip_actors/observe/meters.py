"""OpenTelemetry's view of the counters: observable instruments read them, histograms are written to it at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from cantrip_actors.observe.counters import Counters, Labels
from cantrip_actors.observe.metrics import Metric

FRESH: Final = 0.1
"""Seconds for which read gauges stay valid: one collection asks for a dozen of them, one by one."""


def export(counters: Counters, meter: Meter) -> None:
    """Have a meter report these counters."""
    gauges = _Gauges(counters)
    histograms: dict[str, Any] = {}
    for metric in counters.metrics.values():
        match metric.kind:
            case "counter":
                read = partial(_read_counter, counters, metric)
                meter.create_observable_counter(metric.name, [read], metric.unit, metric.help)
            case "gauge":
                meter.create_observable_gauge(metric.name, [partial(gauges.read, metric)], metric.unit, metric.help)
            case "histogram":
                histograms[metric.name] = meter.create_histogram(
                    metric.name, metric.unit, metric.help, explicit_bucket_boundaries_advisory=metric.buckets
                )

    def mirror(name: str, labels: Labels) -> Callable[[float], None]:
        return partial(histograms[name].record, attributes=_build_attributes(counters.metrics[name], labels))

    counters.mirror(mirror)


def _read_counter(counters: Counters, metric: Metric, _options: CallbackOptions) -> Iterable[Observation]:
    series = counters.read_exported(metric.name)
    return [Observation(value, _build_attributes(metric, labels)) for labels, value in series.items()]


class _Gauges:
    """Reads all gauges once for each collection."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._read: list[tuple[str, Labels, float]] = []
        self._at = -FRESH

    def read(self, metric: Metric, _options: CallbackOptions) -> Iterable[Observation]:
        now = time.monotonic()
        if now - self._at >= FRESH:
            self._read, self._at = self._counters.read_gauges(), now
        return [
            Observation(value, _build_attributes(metric, labels))
            for name, labels, value in self._read
            if name == metric.name
        ]


def _build_attributes(metric: Metric, labels: Labels) -> dict[str, str]:
    return {name: value for name, value in zip(metric.labels, labels, strict=True) if value}
