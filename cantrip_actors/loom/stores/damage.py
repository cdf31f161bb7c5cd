"""The error for a damaged loom, which cannot be continued as it is."""

from __future__ import annotations

from cantrip_actors.terms.errors import LoomError

REPAIR = (
    "Restore it from a backup; or make a copy without the damaged parts: `cantrip loom repair URL`, or open it with "
    "`repair=True`. Reading the undamaged parts needs no repair: open it read-only"
)


class DamagedLoom(LoomError):
    """The loom is damaged: a page or a line cannot be read, or the hash chain is broken. Nothing is written to it."""
