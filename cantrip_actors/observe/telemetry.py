"""`Telemetry`, the argument of `Runtime.open(telemetry=…)`: it makes the entities' work visible.

It writes spans and metrics with the API of OpenTelemetry and sets up nothing: a program configures an SDK, as for any
other library. Without an SDK an episode costs a microsecond, and a turn the cost of counting. This module imports the
API only when a `Telemetry` is made; without it no part of OpenTelemetry is imported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from cantrip_actors.observe import names
from cantrip_actors.observe.content import Content, parse_mode
from cantrip_actors.observe.counters import Counters
from cantrip_actors.observe.crashes import Crashes
from cantrip_actors.observe.measuring import Measuring
from cantrip_actors.observe.metrics import LEGACY, METRICS, PER_TENANT, TENANT, Metric
from cantrip_actors.observe.requests import FinishRequest, RequestEnd
from cantrip_actors.observe.settings import OnContent, TracingSettings
from cantrip_actors.runtime.events.instrument import EpisodeSpans, Fact, Instrument
from cantrip_actors.terms.arguments import check, check_choice, check_kind

if TYPE_CHECKING:
    from cantrip_actors.machine.state import State
    from cantrip_actors.records.records import Record
    from cantrip_actors.runtime.entity.cell import Cell
    from cantrip_actors.runtime.events.context_variables import ContextVariables
    from cantrip_actors.runtime.tree import Tree
    from cantrip_actors.terms.errors import CrystalError, ProviderError
    from cantrip_actors.terms.messages import Response
    from supervisors.events import Event as SystemEvent


@dataclass(frozen=True)
class Telemetry(Instrument):
    """Traces what entities do with OpenTelemetry: `Runtime.open(url, telemetry=Telemetry())`.

    Spans have the names of the GenAI conventions: `invoke_agent` for an episode, `chat` for a query with all its
    attempts, `execute_tool` for a gate or a program. Texts are not among their attributes.

    `content` says where texts, arguments and results go, secrets removed: "none", to the "span", to an "event" (a log
    record), or to "both". Left out, the variable OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT says it, and
    without that "none". `inputs="new"` records the messages since the last query, "all" the whole context each time.
    `on_content` is called with the span of each query, its system instructions, inputs and outputs, also for spans that
    are not sampled, to store them elsewhere.

    `turn_spans` puts a span around each turn. `usage_on_agent` gives the span of an episode its tokens by the names of
    the conventions: back ends that add up all spans then count them twice.

    `outgoing_traceparent` sends the `traceparent` of each query to the provider in a header. It is off because the
    provider then sees the ids of your traces.

    It counts, too: `prometheus()` is the page that Prometheus reads, and the meter provider gets the same numbers.
    `legacy` adds two metrics by their older names, and `tenant_metrics` the tenant to turns, ends and cost.

    Each crash of an actor makes a report in `crashes`; with `crash_dir` the reports are files, too.

    The providers are the global ones unless others are given; configure them before the runtime opens. With
    `otel=False` nothing goes to OpenTelemetry, and its package is not needed. Otherwise making one raises
    ImportError without the extra `otel`. A Telemetry observes one runtime at a time.
    """

    content: Content | None = None
    inputs: Literal["new", "all"] = "new"
    turn_spans: bool = False
    usage_on_agent: bool = False
    on_content: OnContent | None = None
    legacy: bool = False
    tenant_metrics: bool = False
    crash_dir: str | os.PathLike[str] | None = None
    otel: bool = True
    tracer_provider: Any = None
    logger_provider: Any = None
    meter_provider: Any = None
    outgoing_traceparent: bool = False
    counters: Counters = field(init=False, repr=False, compare=False)
    """All current numbers."""
    crashes: Crashes = field(init=False, repr=False, compare=False)
    """The newest crash reports: iterate over them."""
    _measuring: Measuring = field(init=False, repr=False, compare=False)
    _settings: TracingSettings | None = field(init=False, repr=False, compare=False)
    _core: Tree = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_choice("content", self.content, (None, *get_args(Content)))
        check_choice("inputs", self.inputs, ("new", "all"))
        for name in ("turn_spans", "usage_on_agent", "legacy", "tenant_metrics", "otel", "outgoing_traceparent"):
            check_kind(name, getattr(self, name), bool, "True or False")
        check(self.on_content is None or callable(self.on_content), "on_content", "a function", self.on_content)
        counters = Counters(self._list_metrics())
        object.__setattr__(self, "counters", counters)
        check_kind("crash_dir", self.crash_dir, str | os.PathLike | None, "the path of a folder")
        object.__setattr__(self, "crashes", Crashes(None if self.crash_dir is None else Path(self.crash_dir)))
        measuring = Measuring(counters, legacy=self.legacy, by_tenant=self.tenant_metrics)
        object.__setattr__(self, "_measuring", measuring)
        object.__setattr__(self, "_settings", self._connect() if self.otel else None)

    def _list_metrics(self) -> dict[str, Metric]:
        metrics = dict(METRICS)
        if self.legacy:
            metrics |= {metric.name: metric for metric in LEGACY}
        if self.tenant_metrics:
            for name in PER_TENANT:
                metrics[name] = metrics[name]._replace(labels=(*metrics[name].labels, TENANT))
        return metrics

    def _connect(self) -> TracingSettings:
        try:
            from opentelemetry import _logs, trace

            from cantrip_actors.observe.tracing import find_context_variable
        except ModuleNotFoundError as error:
            raise ImportError("Telemetry needs opentelemetry-api: pip install 'cantrip-actors[otel]'") from error
        about = (names.SCOPE, version("cantrip-actors"))
        content = self.content or parse_mode(os.environ.get(names.CAPTURE))
        logger = None
        if content in ("event", "both"):
            logger = _logs.get_logger(*about, logger_provider=self.logger_provider, schema_url=names.SCHEMA_URL)
        return TracingSettings(
            trace.get_tracer(*about, tracer_provider=self.tracer_provider, schema_url=names.SCHEMA_URL),
            find_context_variable(),
            content,
            self.inputs,
            self.turn_spans,
            self.usage_on_agent,
            logger,
            self.on_content,
            self.tracer_provider,
            self.outgoing_traceparent,
        )

    def prometheus(self) -> str:
        """Return the metrics as a page in Prometheus' text format 0.0.4. Any thread may call it."""
        return self.counters.render_prometheus()

    @contextmanager
    def request(
        self, method: str, route: str, traceparent: str | None = None, *, path: str = "", scheme: str = ""
    ) -> Iterator[FinishRequest]:
        """Return a context in which a request is the current span: its casts and sends are below it.

        `route` is a template, without ids. Call what the context yields with the status of the answer, and the class
        of the error that the request ended with, if any. If the server is instrumented already, there is no other
        span. The time of the request is counted by route and status.
        """
        began, end = time.perf_counter(), RequestEnd()
        span: AbstractContextManager[None] = nullcontext()
        if self._settings is not None:
            from cantrip_actors.observe.tracing import request_span

            attributes = {names.HTTP_METHOD: method, names.ROUTE: route, names.PATH: path, names.SCHEME: scheme}
            span = request_span(self._settings, f"{method} {route}", attributes, traceparent, end)
        try:
            with span:
                yield end.note
        finally:
            labels = (method, route, str(end.status or ""), scheme, end.error)
            self.counters.observe(names.HTTP_DURATION, labels, time.perf_counter() - began)

    # What the runtime calls

    def attach(self, core: Any) -> None:
        """Observe this runtime. Raises ValueError if it observes another one that is open."""
        if self.otel and not self.counters.has_mirror:
            from opentelemetry import metrics

            provider = self.meter_provider or metrics.get_meter_provider()
            if type(provider).__name__ not in ("NoOpMeterProvider", "_ProxyMeterProvider"):
                from cantrip_actors.observe.meters import export

                export(self.counters, provider.get_meter(names.SCOPE, version("cantrip-actors"), names.SCHEMA_URL))
        self._measuring.attach(core)
        object.__setattr__(self, "_core", core)
        self.crashes.attach(core)

    def captured(self, variables: ContextVariables) -> ContextVariables:
        """Return a caller's context variables, with its current span among them in any case."""
        if self._settings is None or any(variable is self._settings.variable for variable, _ in variables):
            return variables
        from opentelemetry import context

        present = context.get_current()  # every actor has an empty one anyway
        return (*variables, (self._settings.variable, present)) if present else variables

    def trace(self) -> str | None:
        """Return the `traceparent` of the caller's current span; None if it has none."""
        if self._settings is None:
            return None
        from opentelemetry.trace import get_current_span

        from cantrip_actors.observe.tracing import format_traceparent

        return format_traceparent(get_current_span().get_span_context())

    def begin(self, cell: Cell, state: State, trace: str | None) -> EpisodeSpans | None:
        """Begin the spans of an episode; None if no SDK is configured."""
        if self._settings is None:
            return None
        from cantrip_actors.observe.tracing import begin_spans

        return begin_spans(self._settings, self._measuring.core, cell, state, trace, resumes=False)

    async def resume(self, cell: Cell, state: State) -> EpisodeSpans | None:
        """Begin the spans of a resumed episode, and export the spans that the crash lost."""
        self._measuring.count_resumed()
        if self._settings is None:
            return None
        from cantrip_actors.observe.tracing import backfill, begin_spans

        if state.episode.trace is not None:
            await backfill(self._settings, self._measuring.core, cell)
        return begin_spans(self._settings, self._measuring.core, cell, state, None, resumes=True)

    def answered(self, cell: Cell, reply: Response | CrystalError, seconds: float, crystal: Any = None) -> None:
        """Count a query, and end its span."""
        self._measuring.count_answer(cell, cell.crystal.crystal if crystal is None else crystal, reply, seconds)
        if cell.spans is not None:
            cell.spans.note_answer(reply)

    def retried(self, cell: Cell, failed: ProviderError, delay: float, crystal: Any = None) -> None:
        """Count a retry, and add it to the span of the query."""
        self._measuring.count_retry(cell.crystal.crystal if crystal is None else crystal, failed)
        if cell.spans is not None:
            cell.spans.note_retry(failed, delay)

    def streamed(self, cell: Cell, seconds: float, since_last: float | None) -> None:
        """Count a part of an answer."""
        self._measuring.count_part(cell, seconds, since_last)
        if cell.spans is not None:
            cell.spans.note_part(seconds)

    def written(self, records: Sequence[Record]) -> None:
        """Count written records."""
        self._measuring.count_records(records)

    def committed(self, seconds: float, messages: int) -> None:
        """Count a commit."""
        self._measuring.count_commit(seconds, messages)

    def supervised(self, event: SystemEvent) -> None:
        """Count an event of the supervisors, and report a crash."""
        self._measuring.count_event(event)
        self.crashes.take(event)

    def noted(self, fact: Fact) -> None:
        """Count a fact that no record contains."""
        self._measuring.count_fact(fact)

    def counted(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """Yield the counters of now."""
        for metric in self.counters.metrics.values():
            if metric.kind == "counter":
                for values, value in self.counters.read_values(metric.name).items():
                    labels = zip(metric.labels, values, strict=True)
                    yield metric.name, {label: value for label, value in labels if value}, value
