"""What opening tables of an earlier version for writing does: they become the present ones, and a copy is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from cantrip_actors.loom.schema import VERSION
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.errors import LoomError

__all__ = ["Migrate", "Migrated", "check_migration", "note_migration"]

Migrate = Literal["copy", "in_place", "refuse"]
"""Keep a copy of tables of an earlier version (the default), do without one, or refuse to open them for writing."""

_log = get_logger("cantrip.loom")


class Migrated(NamedTuple):
    """Tables of version `found` became those of `version`; `copy` is the file or the schema with the earlier ones."""

    found: int
    version: int
    copy: str | None


def check_migration(migrate: Migrate, where: str, found: int) -> None:
    """Raise LoomError if the tables are not to be changed."""
    if migrate == "refuse":
        raise LoomError(
            f"{where} has tables of version {found}, this version writes {VERSION}, and migrate=refuse was given: open "
            "it read-only, or run `cantrip loom migrate`, after which earlier versions cannot open it"
        )


def note_migration(where: str, found: int, copy: Path | str | None) -> Migrated:
    """Log what was done, in one line, and return it."""
    kept = None if copy is None else str(copy)
    _log.warning(
        "loom.migrated",
        loom=where,
        found=found,
        version=VERSION,
        copy=kept,
        hint="versions of cantrip-actors before this one can open the copy only",
    )
    return Migrated(found, VERSION, kept)
