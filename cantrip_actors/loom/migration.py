"""How tables of another version are opened (N-66).

Opening tables of an earlier version for writing upgrades them to the current version, and keeps a copy. Tables of a
later version are used as they are, if that version has only added to them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from cantrip_actors.loom.schema import READABLE_BY, VERSION
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.errors import LoomError

T = TypeVar("T")

Migrate = Literal["copy", "in_place", "refuse"]
"""Whether an upgrade keeps a copy of the earlier tables (the default), works in place, or is refused."""

_log = get_logger("cantrip.loom")


class Migrated(NamedTuple):
    """Tables of version `found` became those of `version`; `copy` is the file or schema with the earlier ones."""

    found: int
    version: int
    copy: str | None


def choose_version(where: str, found: int, readable_by: int | None) -> int:
    """Return the version to use tables of version `found` as: at most the current one.

    `readable_by` is the earliest version that can use them, None if they do not say. Raises LoomError if the current
    version is earlier.
    """
    if found <= VERSION:
        return found
    if readable_by is not None and readable_by <= VERSION:
        return VERSION
    raise LoomError(
        f"{where} has tables of version {found}, this version knows up to {VERSION}: use a newer cantrip-actors"
    )


def check_migration(migrate: Migrate, where: str, found: int) -> None:
    """Raise LoomError if the tables must not be changed."""
    if migrate == "refuse":
        raise LoomError(
            f"{where} has tables of version {found}, this version writes {VERSION}, and migrate=refuse was given: open "
            "it read-only, or run `cantrip loom migrate`, after which earlier versions cannot open it"
        )


def free_name(names: Callable[[str], T], is_taken: Callable[[T], bool]) -> T:
    """Return the first free name for a copy: the copies of earlier upgrades are kept.

    `names` returns the name with an ending in it: "", "_2", "_3" and so on.
    """
    return next(one for n in count(1) if not is_taken(one := names("" if n == 1 else f"_{n}")))


def note_migration(where: str, found: int, copy: Path | str | None) -> Migrated:
    """Log an upgrade in one line, and return its description."""
    kept = None if copy is None else str(copy)
    _log.warning(
        "loom.migrated",
        loom=where,
        found=found,
        version=VERSION,
        copy=kept,
        hint=f"versions of cantrip-actors that know tables up to version {READABLE_BY - 1} can open the copy only",
    )
    return Migrated(found, VERSION, kept)
