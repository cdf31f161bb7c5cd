"""Counters, gauges and histograms as plain numbers, and the page that Prometheus reads.

Counting is a few operations on a dictionary, so it is always on. Two readers see the same numbers: the Prometheus page,
which needs no package, and the instruments of OpenTelemetry (`meters.py`). Gauges are computed on reading, from
existing state: no actor is asked.

A label has at most 200 values, whatever the program does; further ones are counted as `other`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite, isnan
from typing import Final

from cantrip_actors.observe.metrics import Metric

MOST: Final = 200
"""The most values of one label."""

OTHER: Final = "other"

Labels = tuple[str, ...]
"""The values of a metric's labels, in the order of the table; empty texts for inapplicable ones."""

Gauges = Callable[[], Iterable[tuple[str, Labels, float]]]
"""Reads gauges: names, labels, values."""

Mirror = Callable[[str, Labels], Callable[[float], None]]
"""Returns the function that is called with each value of a series."""


class Count:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Histogram:
    """One series of a histogram: how many values fell into each bucket, and their sum.

    `add_later` only keeps a value, which is much cheaper, until `fold` counts all that were kept.
    """

    __slots__ = ("_mirror", "_waiting", "add_later", "bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float], mirror: Callable[[float], None] | None = None) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self._mirror = mirror
        self._waiting: list[float] = []
        self.add_later: Callable[[float], None] = self._waiting.append

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        if self._mirror is not None:
            self._mirror(value)

    def fold(self) -> None:
        """Count the values kept by `add_later`. Only one thread at a time may call it."""
        values = self._waiting[:]
        if not values:
            return
        del self._waiting[: len(values)]
        if self._mirror is not None:
            for value in values:
                self._mirror(value)
        values.sort()
        before = 0
        for at, bound in enumerate(self.bounds):
            below = bisect_right(values, bound, before)
            self.counts[at] += below - before
            before = below
        self.counts[-1] += len(values) - before
        self.sum += sum(values)

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)


class Counters:
    """The numbers of one `Telemetry`. `metrics` is the table of existing metrics.

    They are written in the event loop and may be read in any thread. Code that counts often keeps the series.
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self.metrics = metrics
        self._counts: dict[str, dict[Labels, Count]] = {}
        self._histograms: dict[str, dict[Labels, Histogram]] = {}
        for metric in metrics.values():
            if metric.kind == "histogram":
                self._histograms[metric.name] = {}
            elif metric.kind == "counter":
                self._counts[metric.name] = {}
        self._known: dict[tuple[str, int], set[str]] = {}
        self._gauges: list[Gauges] = []
        self._mirror: Mirror | None = None
        self._before_reading: list[Callable[[], None]] = []

    def call_before_reading(self, work: Callable[[], None]) -> None:
        """Have `work` called before each reading, in the reader's thread."""
        self._before_reading.append(work)

    def _prepare(self) -> None:
        for work in self._before_reading:
            work()

    @property
    def has_mirror(self) -> bool:
        """Whether OpenTelemetry also gets the values of histograms."""
        return self._mirror is not None

    def mirror(self, mirror: Mirror) -> None:
        """Pass the values of histograms to another reader, which cannot read earlier ones. Call it before any value."""
        self._mirror = mirror

    def count(self, name: str, labels: Labels = ()) -> Count:
        """Return a series of a counter."""
        series = self._counts[name]
        series_count = series.get(labels)
        if series_count is None:
            labels = self._admit(name, labels)
            series_count = series.setdefault(labels, Count())
        return series_count

    def get_histogram(self, name: str, labels: Labels = ()) -> Histogram:
        """Return a series of a histogram."""
        series = self._histograms[name]
        histogram = series.get(labels)
        if histogram is None:
            labels = self._admit(name, labels)
            mirror = None if self._mirror is None else self._mirror(name, labels)
            histogram = series.setdefault(labels, Histogram(self.metrics[name].buckets, mirror))
        return histogram

    def add(self, name: str, labels: Labels = (), amount: float = 1) -> None:
        """Add to a counter."""
        self.count(name, labels).value += amount

    def observe(self, name: str, labels: Labels, value: float) -> None:
        """Count a value of a histogram."""
        self.get_histogram(name, labels).add(value)

    def _admit(self, name: str, labels: Labels) -> Labels:
        admitted = []
        for n, value in enumerate(labels):
            values = self._known.setdefault((name, n), set())
            if value not in values:
                if len(values) >= MOST:
                    value = OTHER
                else:
                    values.add(value)
            admitted.append(value)
        return tuple(admitted)

    def read_gauges_of(self, gauges: Gauges) -> None:
        """Also read these gauges at each reading."""
        self._gauges.append(gauges)

    # Reading

    def read_all(self) -> dict[str, dict[Labels, float]]:
        """Return the current counters and gauges: by metric, then by labels."""
        values = {
            metric.name: self.read_values(metric.name) for metric in self.metrics.values() if metric.kind == "counter"
        }
        for name, labels, value in self.read_gauges():
            values.setdefault(name, {})[labels] = value
        return values

    def read_values(self, name: str) -> dict[Labels, float]:
        """Return the series of one counter or gauge."""
        self._prepare()
        if self.metrics[name].kind == "counter":
            return {labels: series.value for labels, series in list(self._counts[name].items())}
        return {labels: value for gauge, labels, value in self.read_gauges() if gauge == name}

    def read_exported(self, name: str) -> dict[Labels, float]:
        """Return the series of a counter, with those that exist from the start."""
        return _add_known(self.metrics[name], self.read_values(name))

    def read_gauges(self) -> list[tuple[str, Labels, float]]:
        """Read all gauges. The values of series that have become `other` are added up."""
        values: dict[tuple[str, Labels], float] = {}
        for gauges in self._gauges:
            for name, labels, value in gauges():
                series = name, self._admit(name, labels)
                values[series] = values.get(series, 0) + value
        return [(name, labels, value) for (name, labels), value in values.items()]

    def read_histograms(self) -> dict[str, dict[Labels, Histogram]]:
        """Return the histograms: by metric, then by labels."""
        self._prepare()
        return {name: dict(list(series.items())) for name, series in self._histograms.items()}

    def render_prometheus(self) -> str:
        """Return all metrics as a page in the text format 0.0.4."""
        values, histograms = self.read_all(), self.read_histograms()
        lines: list[str] = []
        for metric in self.metrics.values():
            name = metric.prometheus
            lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
            for labels, value in _add_known(metric, values.get(metric.name, {})).items():
                lines.append(f"{name}{_render_labels(metric, labels)} {_render_number(value)}")
            for labels, histogram in histograms.get(metric.name, {}).items():
                lines += _render_buckets(metric, name, labels, histogram)
        return "\n".join(lines) + "\n"


def _add_known(metric: Metric, series: dict[Labels, float]) -> dict[Labels, float]:
    """Return the series of a metric, with those that exist from the start."""
    if not metric.from_start:
        return series
    ends = ("",) * (len(metric.labels) - len(metric.from_start[0]))
    return {(*labels, *ends): 0.0 for labels in metric.from_start} | series


def _render_buckets(metric: Metric, name: str, labels: Labels, histogram: Histogram) -> Iterable[str]:
    counts, running = list(histogram.counts), 0
    for bound, count in zip((*histogram.bounds, float("inf")), counts, strict=True):
        running += count
        edge = "+Inf" if bound == float("inf") else _render_number(bound)
        yield f"{name}_bucket{_render_labels(metric, labels, le=edge)} {running}"
    rendered = _render_labels(metric, labels)
    yield f"{name}_sum{rendered} {_render_number(histogram.sum)}"
    yield f"{name}_count{rendered} {running}"


def _render_labels(metric: Metric, values: Labels, le: str = "") -> str:
    pairs = [
        f'{label.replace(".", "_")}="{_escape(value)}"'
        for label, value in zip(metric.labels, values, strict=True)
        if value
    ]
    if le:
        pairs.append(f'le="{le}"')
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escape(value: str) -> str:
    plain = value.encode("utf-8", "backslashreplace").decode()
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _render_number(value: float) -> str:
    if not isfinite(value):  # a crystal says what it costs, and a program for how long it pauses
        return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
