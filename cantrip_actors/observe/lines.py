"""Log lines of a program with entities: their destination, their content, and their redaction.

The library configures no logging. The command line does, with `configure`, and so may a user's program; or it puts
`add_context` among the processors of its own configuration.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, MutableMapping
from typing import Any, Final, Literal, TextIO

import structlog

from cantrip_actors.observe import names
from cantrip_actors.redact.logs import log_processor, safe_repr
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.runtime.events.context_variables import DOING, WORKING

Form = Literal["console", "json"]
LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

LONGEST: Final = 10_000
"""The approximate size of a line in JSON, in bytes: longer texts are cut."""

DEEPEST: Final = 20
"""The levels of lists and mappings that a value of a line may have; deeper ones are left out."""

LEFT_OUT: Final = "…"

FRAMES: Final = 20
"""The most frames of one exception in a line in JSON."""

LogLine = MutableMapping[str, Any]


def add_context(_logger: Any, _method: str, line: LogLine) -> LogLine:
    """Add the current context: `entity_id`, `cantrip`, `tenant`, `turn`, `gate`, `trace_id`, `span_id`.

    A processor for structlog. Keys that the line already has are not changed.
    """
    working = WORKING.get()
    if working is not None:
        for name, value in working._asdict().items():
            if value:
                line.setdefault(name, value)
    doing = DOING.get()
    if doing is not None:
        line.setdefault("turn", doing[0])
        line.setdefault("gate", doing[1])
    if "opentelemetry" in sys.modules:
        from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

        span = get_current_span().get_span_context()
        if span.is_valid:
            line.setdefault("trace_id", format_trace_id(span.trace_id))
            line.setdefault("span_id", format_span_id(span.span_id))
    return line


def export_line(_logger: Any, _method: str, line: LogLine) -> LogLine:
    """Send a line as a log record to OpenTelemetry's logger provider, which an SDK exports over OTLP.

    A processor for structlog: put it last before the renderer, after the redaction. It does nothing in a program that
    has not loaded OpenTelemetry. An exception is `exception.type`, `exception.message` and `exception.stacktrace`.
    """
    if "opentelemetry" in sys.modules:
        from opentelemetry._logs import LogRecord, SeverityNumber, get_logger

        level = str(line.get("level", "info"))
        exported = {key: value for key, value in line.items() if key not in _FIELDS}
        record = LogRecord(
            timestamp=time.time_ns(),
            severity_number=SeverityNumber[_SEVERITIES.get(level, "INFO")],
            severity_text=level.upper(),
            body=str(line.get("event", "")),
            attributes={key: _make_attribute(value) for key, value in exported.items()} | _describe_error(line),
        )
        get_logger(str(line.get("logger") or names.SCOPE)).emit(record)
    return line


_FIELDS: Final = frozenset(("event", "level", "timestamp", "logger", "exc_info", "exception", "trace_id", "span_id"))
"""The keys of a line that a log record has elsewhere; the span is that of the current context."""

_SEVERITIES: Final = {"debug": "DEBUG", "warning": "WARN", "error": "ERROR", "critical": "FATAL"}


def _make_attribute(value: Any) -> Any:
    return value if isinstance(value, (str, bool, int, float)) else safe_repr(value)


def _describe_error(line: LogLine) -> dict[str, str]:
    """Return the exception of a line as attributes: it is there as data, as text, or not rendered yet."""
    exception = line.get("exception")
    if isinstance(exception, list) and exception:
        first = exception[0]
        frames = (
            f"{frame.get('filename')}:{frame.get('lineno')} in {frame.get('name')}"
            for described in exception
            for frame in described.get("frames", ())
        )
        about = {names.EXCEPTION: first.get("exc_type"), names.EXCEPTION_TEXT: first.get("exc_value")}
        return {name: str(value) for name, value in about.items()} | {names.EXCEPTION_TRACE: "\n".join(frames)}
    if isinstance(exception, str):
        last = exception.rstrip().rpartition("\n")[2]
        kind, _, text = last.partition(": ")
        return {names.EXCEPTION: kind, names.EXCEPTION_TEXT: text, names.EXCEPTION_TRACE: exception}
    error = line.get("exc_info")
    error = error[1] if isinstance(error, tuple) else sys.exc_info()[1] if error is True else error
    if not isinstance(error, BaseException):
        return {}
    trace = "".join(traceback.format_exception(error))
    return {names.EXCEPTION: type(error).__name__, names.EXCEPTION_TEXT: str(error), names.EXCEPTION_TRACE: trace}


def configure(
    form: Form,
    level: str,
    out: TextIO,
    redactor: Redactor,
    console: Callable[[Any, str, LogLine], str | LogLine] | None = None,
    *more: Callable[[Any, str, LogLine], LogLine],
) -> None:
    """Configure structlog: lines from `level` on go to `out`, as JSON, or as `console` renders them after `more`."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        add_context,
        structlog.processors.add_log_level,
        _drop_cycles,
    ]
    if form == "json":
        rendered: list[Any] = [
            _add_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
            structlog.processors.ExceptionRenderer(
                structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=FRAMES)
            ),
            log_processor(redactor),
            export_line,
            _render_json,
        ]
    else:
        stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
        renderer = console or structlog.dev.ConsoleRenderer(colors=False)
        rendered = [stamp, log_processor(redactor), export_line, *more, renderer]
    structlog.configure(
        processors=[*shared, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *names: _Named(out, names[0] if names else ""),
        cache_logger_on_first_use=False,
    )


def _drop_cycles(_logger: Any, _method: str, line: LogLine) -> LogLine:
    """Leave out what a value contains of itself, and what is nested too deep: the redaction reads all of a value."""
    return {name: _flatten(value, ()) if name != "exc_info" else value for name, value in line.items()}


def _flatten(value: Any, outside: tuple[Any, ...]) -> Any:
    kind = type(value)
    if kind not in (dict, list, tuple):
        return value
    if len(outside) == DEEPEST or any(container is value for container in outside):
        return LEFT_OUT
    around = (*outside, value)
    if kind is dict:
        return {key: _flatten(part, around) for key, part in value.items()}
    return kind(_flatten(part, around) for part in value)


class _Named(structlog.PrintLogger):
    """Writes to a stream, and knows its name."""

    def __init__(self, out: TextIO, name: str) -> None:
        super().__init__(out)
        self.name = name


def _add_name(logger: Any, _method: str, line: LogLine) -> LogLine:
    name = getattr(logger, "name", "")
    if name:
        line["logger"] = name
    return line


def _render_json(_logger: Any, _method: str, line: LogLine) -> str:
    """Render a line: surrogates are escaped, other objects written as their `repr`, and long texts cut."""
    text = json.dumps(line, default=safe_repr)
    if len(text) > LONGEST:
        room = max(100, LONGEST // (len(line) + 1))
        if isinstance(line.get("exception"), list):
            line["exception"] = _shorten_error(line["exception"], room)
        text = json.dumps({_cut(name, room): _cut(value, room) for name, value in line.items()}, default=safe_repr)
    return text


def _shorten_error(exceptions: list[Any], room: int) -> list[Any]:
    """Return a chain of exceptions that stays data: the first ones, with the frames next to where they were raised."""
    shown: list[Any] = []
    for most in (10, 5, 2, 0):
        shown = [
            {
                **described,
                "exc_value": str(described.get("exc_value", ""))[:500],
                "frames": described.get("frames", [])[-most:] if most else [],
            }
            for described in exceptions[: max(1, most // 2)]
        ]
        if len(json.dumps(shown, default=safe_repr)) <= room:
            break
    return shown


def _cut(value: Any, room: int) -> Any:
    if isinstance(value, (int, float, type(None))):
        return value
    text = value if isinstance(value, str) else json.dumps(value, default=safe_repr)
    return value if len(text) <= room else f"{text[:room]}… ({len(text) - room} more characters)"
