"""Redaction where a program talks about itself: log lines and the texts of errors.

`log_processor` is a processor for structlog: put it last before the renderer. Whatever is in a line is looked at as it
would be printed: texts and values as values, other objects by their `repr`, exceptions by their traceback. What is
clean stays as it is, so that a renderer may still do with it what it does.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, TypeVar

import structlog

from cantrip_actors.redact.redactor import Redactor

__all__ = ["LogProcessor", "Logger", "get_logger", "log_processor", "redact_error"]

E = TypeVar("E", bound=BaseException)

INFO = 20
"""The level of the standard library; this package imports nothing that writes."""

_FROM_INFO = structlog.make_filtering_bound_logger(INFO)

LogProcessor = Callable[[Any, str, MutableMapping[str, Any]], MutableMapping[str, Any]]
"""The shape of structlog's processors."""


def log_processor(redactor: Redactor) -> LogProcessor:
    """A processor for structlog that lets no secret into a line.

    An exception whose traceback would show one becomes the text `exception`, as `structlog.processors.format_exc_info`
    makes it, without the secret.
    """

    def redact(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if line.get("exc_info"):
            told = _traceback(line["exc_info"])
            if told is not None and redactor.spans(told):
                del line["exc_info"]
                line["exception"] = redactor.text(told)
        for key in list(line):
            value = line[key] if key == "exc_info" else _redact_value(redactor, line[key])
            name = redactor.text(key)
            if name != key:
                del line[key]
            line[name] = value
        return line

    return redact


class Logger:
    """A logger of this name: structlog's, where the program has configured structlog, and else one to stderr.

    structlog's own default is stdout, which belongs to the program, with level debug. This configures nothing: neither
    importing nor running the library changes what the program's own log lines look like (LOG-01).
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, event: str, **values: Any) -> None:
        """Log at level debug."""
        self._write("debug", event, values)

    def info(self, event: str, **values: Any) -> None:
        """Log at level info."""
        self._write("info", event, values)

    def warning(self, event: str, **values: Any) -> None:
        """Log at level warning."""
        self._write("warning", event, values)

    def error(self, event: str, **values: Any) -> None:
        """Log at level error."""
        self._write("error", event, values)

    def exception(self, event: str, **values: Any) -> None:
        """Log at level error, with the exception that is handled."""
        self._write("exception", event, values)

    def _write(self, method: str, event: str, values: Mapping[str, Any]) -> None:
        """Write a line. One that cannot be written is lost: the program's log is no part of its work (LOG-01)."""
        with contextlib.suppress(Exception):
            if structlog.is_configured():
                logger = structlog.get_logger(self._name)
            else:
                logger = structlog.wrap_logger(structlog.PrintLogger(sys.stderr), wrapper_class=_FROM_INFO)
            getattr(logger, method)(event, **values)


def get_logger(name: str) -> Logger:
    """Return the logger of a part of the library."""
    return Logger(name)


def redact_error(error: E, redactor: Redactor) -> E:
    """The same exception with its text redacted, and those of what caused it, of its group and of its notes.

    An exception has to stay the one that it is, so this changes it: call it where it leaves the runtime.
    """
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        args = redactor.value(one.args)
        if args is not one.args:
            one.args = args
        for name, value in list(vars(one).items()):
            kept = redactor.value(value)
            if kept is not value:
                setattr(one, name, kept)
        todo += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            todo.extend(one.exceptions)
    return error


def _redact_value(redactor: Redactor, value: Any) -> Any:
    if isinstance(value, BaseException):
        text = repr(value)
        return redactor.text(text) if redactor.spans(text) else value
    kept = redactor.value(value)
    if kept is value and not isinstance(value, (str, int, float, type(None))):
        text = repr(value)  # objects of any kind, also inside of lists and mappings
        if redactor.spans(text):
            return redactor.text(text)
    return kept


def _traceback(exc_info: Any) -> str | None:
    error = exc_info
    if isinstance(exc_info, tuple):
        error = exc_info[1]
    elif not isinstance(exc_info, BaseException):
        error = sys.exc_info()[1]
    if not isinstance(error, BaseException):
        return None
    where: TracebackType | None = error.__traceback__
    return "".join(traceback.format_exception(type(error), error, where)).rstrip("\n")
