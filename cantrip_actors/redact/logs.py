"""Redaction of log lines and of the texts of errors.

`log_processor` is a processor for structlog: put it last before the renderer. It searches a line as it would be
printed: texts and values as values, other objects by their `repr`, exceptions by their traceback. Clean values are
passed on unchanged, so that the renderer can still format them.
"""

from __future__ import annotations

import contextlib
import reprlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from datetime import datetime
from types import MemberDescriptorType
from typing import Any, Final, TypeVar

from cantrip_actors.redact.redactor import Redactor

E = TypeVar("E", bound=BaseException)

INFO = 20
"""The level of the standard library; this package imports no module that writes."""

LogProcessor = Callable[[Any, str, MutableMapping[str, Any]], MutableMapping[str, Any]]
"""The signature of structlog's processors."""


def log_processor(redactor: Redactor) -> LogProcessor:
    """Return a processor for structlog that removes secrets from lines.

    An exception whose traceback would show one becomes the text `exception`, as `structlog.processors.format_exc_info`
    makes it, without the secret.
    """

    def redact(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if line.get("exc_info"):
            traceback_text = _traceback(line["exc_info"])
            if traceback_text is not None and redactor.spans(traceback_text):
                del line["exc_info"]
                line["exception"] = redactor.text(traceback_text)
        for key in list(line):
            value = line[key] if key == "exc_info" else _redact_value(redactor, line[key])
            name = redactor.text(key)
            if name != key:
                del line[key]
            line[name] = value
        return line

    return redact


class Logger:
    """A logger of this name: structlog's if the program has configured structlog, else one that writes to stderr.

    structlog's own default is stdout, which belongs to the program, with level debug. This configures nothing:
    importing or running the library does not change the program's own log lines. Nor does it import structlog, which
    takes longer than a cast: a program that has configured structlog has imported it.
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
        """Log at level error, with the exception that is being handled."""
        self._write("exception", event, values)

    def _write(self, method: str, event: str, values: Mapping[str, Any]) -> None:
        """Write a line. If that fails the line is lost: a log must not disturb the program's work."""
        with contextlib.suppress(Exception):
            structlog = sys.modules.get("structlog")
            if structlog is None:
                _write_plainly(method, event, values)
                return
            if structlog.is_configured():
                logger = structlog.get_logger(self._name)
            else:
                from_info = structlog.make_filtering_bound_logger(INFO)
                logger = structlog.wrap_logger(structlog.PrintLogger(sys.stderr), wrapper_class=from_info)
            getattr(logger, method)(event, **values)


def _write_plainly(method: str, event: str, values: Mapping[str, Any]) -> None:
    """Write a line of level info or above to stderr, as structlog's default does."""
    if method == "debug":
        return
    values, error = dict(values), sys.exc_info()[1] if method == "exception" else None
    error = values.pop("exc_info", error)
    level = "error" if method == "exception" else method
    stamp = datetime.now().strftime("%Y-%m-%d %H:%M:%S")  # noqa: DTZ005  # local time, as structlog's default
    trace = values.pop("exception", None) or (_traceback(error) if error else None)
    pairs = " ".join(f"{name}={value!r}" for name, value in values.items())
    text = f"{stamp} [{level:<9}] {event:<30} {pairs}".rstrip()
    sys.stderr.write(f"{text}\n" if trace is None else f"{text}\n{trace}\n")


def get_logger(name: str) -> Logger:
    """Return the logger of a part of the library."""
    return Logger(name)


def redact_error(error: E, redactor: Redactor) -> E:
    """Redact the text of an exception, its causes, its group and its notes, and return it.

    An exception has to keep its identity, so it is changed in place: call this where it leaves the runtime.
    """
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        link = todo.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        for name in ("args", *vars(link), *_list_members(link)):
            value = getattr(link, name)
            redacted = redactor.value(value)
            if redacted is not value:
                setattr(link, name, redacted)
        todo += [link.__cause__, link.__context__]
        if isinstance(link, BaseExceptionGroup):
            todo.extend(link.exceptions)
    return error


def _list_members(error: BaseException) -> Iterator[str]:
    """Yield the attributes outside of an exception's `__dict__` that have a text, as `filename` of an OSError."""
    for kind in type(error).__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, MemberDescriptorType) and isinstance(getattr(error, name, None), str):
                yield name


def _redact_value(redactor: Redactor, value: Any) -> Any:
    if isinstance(value, BaseException):
        text = repr(value)
        return redactor.text(text) if redactor.spans(text) else value
    redacted = redactor.value(value)
    if redacted is value and not isinstance(value, (str, int, float, type(None))):
        text = safe_repr(value)  # objects of any kind, also in lists and mappings
        if redactor.spans(text):
            return redactor.text(text)
    return redacted


_WHOLE: Final = reprlib.Repr()
_WHOLE.maxother = sys.maxsize


def safe_repr(value: Any) -> str:
    """Return the `repr` of an object; of one whose `repr` raises, its class."""
    return _WHOLE.repr_instance(value, 1)


def _traceback(exc_info: Any) -> str | None:
    error = exc_info
    if isinstance(exc_info, tuple):
        error = exc_info[1]
    elif not isinstance(exc_info, BaseException):
        error = sys.exc_info()[1]
    if not isinstance(error, BaseException):
        return None
    return "".join(traceback.format_exception(error)).rstrip("\n")
