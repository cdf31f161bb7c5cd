"""Which secrets the runtime knows, so that none of them leaves it by accident.

They are those that it was given (`Runtime.open(…, secrets=…)`), the keys of the crystals that it asks, and what gates
were given under a name that says so (`fetch.with_(token=…)`). What looks like a common key is found without being
known (`redact/patterns.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import structlog

from cantrip_actors.loom.redaction import redacted_fields, redacted_mail, redacted_record
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Record
from cantrip_actors.redact.logs import redact_error
from cantrip_actors.redact.redactor import SHORTEST, Redactor, Secrets
from cantrip_actors.terms.circle import Circle

__all__ = ["Guard", "GuardedLogger", "of_circle", "of_crystal"]

E = TypeVar("E", bound=BaseException)
V = TypeVar("V")

_SAYS_SO = re.compile(
    r"(?:^|_)(?:key|token|secret|password|passwd|credential|credentials|auth)s?(?:_|$)", re.IGNORECASE
)


def of_crystal(crystal: Any) -> Iterator[tuple[str, str]]:
    """The keys of a crystal that has `secrets`, a mapping of names to texts."""
    secrets = getattr(crystal, "secrets", None)
    if isinstance(secrets, Mapping):
        yield from _worth(secrets.items())


def of_circle(circle: Circle) -> Iterator[tuple[str, str]]:
    """What the gates of a circle were given under names such as `api_key` or `token`."""
    for gate in circle.gates:
        given = ((f"{gate.name}.{name}", value) for name, value in gate.dependencies.items() if _SAYS_SO.search(name))
        yield from _worth(given)


def _worth(pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, str]]:
    for name, value in pairs:
        if isinstance(value, str) and len(value) >= SHORTEST:
            yield str(name), value


class Guard:
    """What takes secrets out of whatever leaves the runtime: events, streams, errors, log lines, and, if wished,
    records.

    It learns as the runtime does: each crystal and circle that is used adds its own. The streams of turns use its
    `redactor` themselves (`stream/turn.py`).
    """

    def __init__(self, secrets: Secrets = (), *, at_rest: bool = False) -> None:
        self.redactor = Redactor(secrets)
        self.at_rest = at_rest
        self._learnt: set[tuple[str, str]] = set()

    def learn(self, crystal: Any, circle: Circle) -> None:
        """Know the secrets of a crystal and a circle too."""
        new = {*of_crystal(crystal), *of_circle(circle)} - self._learnt
        if new:
            self._learnt |= new
            self.redactor = self.redactor.knowing(new)

    def redact_records(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records as the loom is to keep them."""
        if not self.at_rest:
            return records
        return [redacted_record(record, self.redactor, show_images=False) for record in records]

    def redact_mail(self, mail: Mail) -> Mail:
        """Return mail as the loom is to keep it."""
        return redacted_mail(mail, self.redactor) if self.at_rest else mail

    def redact_events(self, events: Iterable[V]) -> list[V]:
        """Events as others may see them."""
        return [redacted_fields(event, self.redactor) for event in events]

    def error(self, error: E) -> E:
        """The error, its text without secrets."""
        return redact_error(error, self.redactor)


class GuardedLogger:
    """structlog's logger for what supervisors report, with a guard before it."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._logger = structlog.get_logger("supervisors")

    def error(self, event: str, **values: Any) -> None:
        """At level error."""
        self._logger.error(event, **self._guard.redactor.value(values))

    def warning(self, event: str, **values: Any) -> None:
        """At level warning."""
        self._logger.warning(event, **self._guard.redactor.value(values))

    def info(self, event: str, **values: Any) -> None:
        """At level info."""
        self._logger.info(event, **self._guard.redactor.value(values))

    def debug(self, event: str, **values: Any) -> None:
        """At level debug."""
        self._logger.debug(event, **self._guard.redactor.value(values))
