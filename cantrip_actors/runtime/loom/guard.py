"""The secrets that the runtime removes from everything that leaves it.

They come from three sources: `Runtime.open(…, secrets=…)`, the keys of the crystals in use, and gate dependencies with
names such as `token` (`fetch.with_(token=…)`). Texts that look like a common kind of key are removed too
(`redact/patterns.py`).
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from cantrip_actors.loom.reading.redaction import redact_fields, redact_mail, redact_record
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Record
from cantrip_actors.records.submissions import SubmissionRow
from cantrip_actors.records.timers import Timer
from cantrip_actors.redact.logs import get_logger, redact_error
from cantrip_actors.redact.redactor import SHORTEST, Redactor, Secrets
from cantrip_actors.terms.circle import Circle

READ: Final = 100_000
"""The most characters of a traceback that are redacted: a message of megabytes would hold up the event loop."""

LOGGED: Final = 20_000
"""The most characters of a traceback in a log line: fewer than READ, because half of a secret is not recognised."""

_log = get_logger("cantrip_actors.runtime")

E = TypeVar("E", bound=BaseException)
V = TypeVar("V")

SECRET_NAME = re.compile(
    r"(?:^|_)(?:key|token|secret|password|passwd|credential|credentials|auth)s?(?:_|$)", re.IGNORECASE
)


def find_crystal_secrets(crystal: Any) -> Iterator[tuple[str, str]]:
    """Yield the keys of a crystal that has `secrets`, a mapping of names to texts."""
    secrets = getattr(crystal, "secrets", None)
    if isinstance(secrets, Mapping):
        yield from _select_secrets(secrets.items())


def find_circle_secrets(circle: Circle) -> Iterator[tuple[str, str]]:
    """Yield the gate dependencies of a circle that have names such as `api_key` or `token`."""
    for gate in circle.gates:
        values = (
            (f"{gate.name}.{name}", value) for name, value in gate.dependencies.items() if SECRET_NAME.search(name)
        )
        yield from _select_secrets(values)


def _select_secrets(pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, str]]:
    for name, value in pairs:
        if isinstance(value, str) and len(value) >= SHORTEST:
            yield str(name), value


class Guard:
    """Removes secrets from events, streams, errors and log lines; with `at_rest` also from records and mail.

    Each crystal and circle that the runtime uses adds its secrets (`learn`). Growing texts are redacted piece by piece
    (`stream/answer.py`).
    """

    def __init__(self, secrets: Secrets | Redactor = (), *, at_rest: bool = False) -> None:
        self.redactor = secrets if isinstance(secrets, Redactor) else Redactor(secrets)
        self.at_rest = at_rest
        self._learnt: set[tuple[str, str]] = set()

    def learn(self, crystal: Any, circle: Circle) -> None:
        """Add the secrets of a crystal and a circle."""
        new = {*find_crystal_secrets(crystal), *find_circle_secrets(circle)} - self._learnt
        if new:
            self._learnt |= new
            self.redactor = self.redactor.knowing(new)

    def redact_records(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records as the loom will store them."""
        if not self.at_rest:
            return records
        return [redact_record(record, self.redactor, show_images=False) for record in records]

    def redact_mail(self, mail: Mail) -> Mail:
        """Return mail as the loom will store it."""
        return redact_mail(mail, self.redactor) if self.at_rest else mail

    def redact_timer(self, timer: Timer) -> Timer:
        """Return a timer as the loom will store it."""
        if not self.at_rest:
            return timer
        schedule = timer.schedule
        if schedule is not None:
            schedule = replace(schedule, intent=self.redactor.text(schedule.intent))
        return replace(timer, schedule=schedule, mail=None if timer.mail is None else self.redact_mail(timer.mail))

    def redact_submission(self, row: SubmissionRow) -> SubmissionRow:
        """Return a submission as the loom will store it."""
        return replace(row, intent=self.redactor.text(row.intent)) if self.at_rest else row

    def redact_events(self, events: Iterable[V]) -> list[V]:
        """Return events as subscribers may see them."""
        return [redact_fields(event, self.redactor) for event in events]

    def redact_error(self, error: E) -> E:
        """Return the error with its text redacted."""
        return redact_error(error, self.redactor)

    def report_failure(self, what: str, gate: str, failure: BaseException) -> None:
        """Log an exception of a gate, or of a step around it, at level warning, with its redacted traceback.

        The traceback is a text, because some renderers show the variables of an `exc_info`. Only the beginning of a
        long traceback is logged.
        """
        size, read = 0, ""
        for part in traceback.TracebackException.from_exception(failure).format():
            size += len(part)
            read += part[: READ - len(read)]  # a message may have hundreds of megabytes: they are not joined
        shown = self.redactor.text(read.rstrip("\n"))
        more = size - LOGGED if size > READ else len(shown) - LOGGED
        if more > 0:
            shown = f"{shown[:LOGGED]}… ({more} more characters)"
        _log.warning(what, gate=gate, error=type(failure).__name__, exception=shown)


class GuardedLogger:
    """A structlog logger for the reports of supervisors; it redacts their values."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._logger = get_logger("supervisors")

    def __getattr__(self, level: str) -> Callable[..., object]:
        """Return the method that logs at a level, such as `error`."""
        log = getattr(self._logger, level)
        return lambda event, **values: log(event, **self._guard.redactor.value(values))
