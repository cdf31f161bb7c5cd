"""How tables of another version are opened.

Opening tables of an earlier version for writing upgrades them, in one transaction. Tables of a later version are used
as they are, if that version has only added to them. All others are refused, with their version in the message.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from cantrip_actors.loom.tables import schema
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.errors import LoomError

Migrate = Literal["upgrade", "refuse"]
"""Whether tables of an earlier version are upgraded when they are opened for writing (the default), or refused."""

_log = get_logger("cantrip.loom")


class EarlierTables(LoomError):
    """The tables are of an earlier version, and were not to be upgraded: run `cantrip loom migrate`."""


class Migrated(NamedTuple):
    """Tables of version `found` became those of `version`."""

    found: int
    version: int


def check_version(where: str, version: int, readable_by: int | None, *, read_only: bool, migrate: Migrate) -> None:
    """Raise LoomError if tables of that `version` can be neither used as they are nor upgraded.

    `readable_by` is the earliest version that can use them, None if they do not say. Raises EarlierTables, a LoomError.
    """
    is_later = version > schema.VERSION
    if is_later and (readable_by is None or readable_by > schema.VERSION):
        raise LoomError(
            f"{where} has tables of version {version}, this version knows up to {schema.VERSION}: use a newer "
            "cantrip-actors"
        )
    if version < schema.VERSION and (read_only or migrate == "refuse"):
        why = "was opened read-only" if read_only else "migrate=refuse was given"
        raise EarlierTables(
            f"{where} has tables of version {version}, this version uses {schema.VERSION}, and it {why}: back it up, "
            "and run `cantrip loom migrate`, after which earlier versions may not open it"
        )


def note_migration(where: str, version: int) -> Migrated:
    """Log an upgrade in one line, and return its description."""
    _log.warning("loom.migrated", loom=where, found=version, version=schema.VERSION)
    return Migrated(version, schema.VERSION)
