"""The parts of a `Telemetry` that the spans of an episode need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

from cantrip_actors.observe import names
from cantrip_actors.observe.content import Content, dump_text

Parts = Sequence[Mapping[str, Any]]

OnContent = Callable[[Any, Parts, Parts, Parts], None]
"""Called with the span of a query, the system instructions, the input messages and the output messages."""


@dataclass(frozen=True)
class TracingSettings:
    """The tracer, the options, and the context variable with the current span."""

    tracer: Any
    variable: ContextVar[Any]
    content: Content
    inputs: Literal["new", "all"]
    turn_spans: bool
    usage_on_agent: bool
    logger: Any
    on_content: OnContent | None
    provider: Any
    outgoing_traceparent: bool = False

    def get_tracer(self) -> Any:
        """Return the tracer of the currently configured provider."""
        from opentelemetry import trace

        provider = self.provider or trace.get_tracer_provider()
        return provider.get_tracer(names.SCOPE, version("cantrip-actors"), schema_url=names.SCHEMA_URL)

    @property
    def content_on_span(self) -> bool:
        """Whether content is written to spans."""
        return self.content in ("span", "both")

    @property
    def content_in_events(self) -> bool:
        """Whether content is written to events, which are log records."""
        return self.content in ("event", "both") and self.logger is not None

    @property
    def wants_content(self) -> bool:
        """Whether content is written anywhere."""
        return self.content != "none" or self.on_content is not None

    def record(self, span: Any, context: Any, texts: Mapping[str, Any]) -> None:
        """Write the texts of a query: to its span, as an event, and to the user's function."""
        if self.on_content is not None:
            self.on_content(
                span, texts.get(names.SYSTEM, ()), texts.get(names.INPUTS, ()), texts.get(names.OUTPUTS, ())
            )
        present = {name: value for name, value in texts.items() if value}
        if self.content_on_span and span.is_recording():
            span.set_attributes({name: dump_text(value) for name, value in present.items()})
        if self.content_in_events:
            from opentelemetry._logs import LogRecord

            attributes = {names.OPERATION: names.CHAT, **present}
            self.logger.emit(LogRecord(event_name=names.DETAILS_EVENT, attributes=attributes, context=context))

    def record_failure(self, context: Any, error: Exception, text: str) -> None:
        """Write the text of the error that a query ended with as an event; it may quote what was said."""
        if self.content_in_events:
            from opentelemetry._logs import LogRecord, SeverityNumber

            attributes = {
                names.OPERATION: names.CHAT,
                names.EXCEPTION: type(error).__name__,
                names.EXCEPTION_TEXT: text,
            }
            event = LogRecord(event_name=names.EXCEPTION_EVENT, attributes=attributes, context=context)
            event.severity_number = SeverityNumber.WARN
            self.logger.emit(event)
