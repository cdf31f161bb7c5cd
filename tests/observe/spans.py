"""What tests of spans need: an SDK that keeps what it is given, and readers of it."""

from typing import Any

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cantrip_actors.observe import Telemetry


class Sdk:
    """An SDK of a program: spans and events in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.log_exporter = InMemoryLogRecordExporter()
        self.logs = LoggerProvider(shutdown_on_exit=False)
        self.logs.add_log_record_processor(SimpleLogRecordProcessor(self.log_exporter))
        self.tracer = self.provider.get_tracer("test")

    def telemetry(self, **options: Any) -> Telemetry:
        return Telemetry(tracer_provider=self.provider, logger_provider=self.logs, **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        """The ended spans, in the order in which they began."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def below(self, parent: ReadableSpan | None) -> list[ReadableSpan]:
        above = None if parent is None else parent.context.span_id
        return [span for span in self.spans if (span.parent.span_id if span.parent else None) == above]

    def tree(self, parent: ReadableSpan | None = None) -> dict[str, Any] | list[Any]:
        """The names below a span, nested, in the order of their beginnings."""
        return [(span.name, self.tree(span)) if self.below(span) else span.name for span in self.below(parent)]

    @property
    def exported(self) -> str:
        """Everything that would leave the process, as text."""
        logs = [one.to_json() for one in self.log_exporter.get_finished_logs()]
        return "\n".join([*(span.to_json() for span in self.spans), *logs])


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def links_of(span: ReadableSpan) -> list[tuple[str, int]]:
    return [(str(link.attributes["cantrip.link"]), link.context.span_id) for link in span.links]
