"""Log lines of the command line: `--log-level`, `--log-format`, and redaction."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import MutableMapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TextIO

_SAYS_SO = re.compile(r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:_|$)", re.IGNORECASE)


class LogFormat(StrEnum):
    """How log lines look."""

    console = "console"
    json = "json"


class LogLevel(StrEnum):
    """The lowest level of lines that are logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


@dataclass
class Logs:
    """The settings of log lines that the options before the command give."""

    level: LogLevel | None = None
    form: LogFormat | None = None


logs: Final = Logs()


def configure_logs(*, whole: bool = False) -> None:
    """Send log lines to standard error, so that standard output has only the answer.

    With `whole`, or if an option asks for it, lines have the entity, the turn and the gate, and no secrets; that
    imports the runtime.
    """
    import structlog

    from cantrip_actors.cli.terminal import bare
    from cantrip_actors.terms.risk import LethalTrifecta

    warnings.simplefilter("ignore", LethalTrifecta)  # the runtime reports it, without a line of our code
    out = bare(sys.stderr)
    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty() and not os.environ.get("NO_COLOR"), exception_formatter=_write_plain_traceback
    )
    if whole or logs.form is not None or logs.level is not None:
        from cantrip_actors.observe.lines import configure
        from cantrip_actors.redact.redactor import Redactor

        form = logs.form or LogFormat.console
        redactor = Redactor(secrets_of_environment())
        configure(form.value, (logs.level or LogLevel.info).value, out, redactor, console, _make_values_printable)
        return
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            _make_values_printable,
            console,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LogLevel.info.value),
        logger_factory=lambda *_: structlog.PrintLogger(out),
    )


def _make_values_printable(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Make each value of a report printable and one line, because its colours go to the terminal unchanged."""
    from cantrip_actors.redact.logs import safe_repr
    from cantrip_actors.redact.visible import escape, frame

    shown: MutableMapping[str, Any] = {}
    for key, value in event.items():
        if key == "exc_info" or isinstance(value, (bool, int, float, type(None))):
            shown[key] = value
        elif key in ("exception", "stack"):
            shown[key] = "\n".join(frame(str(value), _WIDEST))
        else:
            shown[escape(key)] = escape(value if isinstance(value, str) else safe_repr(value))
    return shown


_WIDEST: Final = 1_000
"""Columns of a line of a traceback; longer ones are wrapped."""


def _write_plain_traceback(to: TextIO, error: Any) -> None:
    """Write a traceback in a frame, so that no text of an exception looks like a line of the log.

    It has no values of variables: secrets may be among them.
    """
    import structlog

    from cantrip_actors.redact.visible import frame

    text = io.StringIO()
    structlog.dev.plain_traceback(text, error)
    to.write("\n" + "\n".join(frame(text.getvalue().strip("\n"), _WIDEST)))


def secrets_of_environment() -> dict[str, str]:
    """Return the environment's variables whose names suggest a secret."""
    # a shorter value is a setting (`true`, a number) more often than a secret
    return {name: value for name, value in os.environ.items() if _SAYS_SO.search(name) and len(value.strip()) >= 8}
