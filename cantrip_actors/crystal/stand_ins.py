"""Crystals that stand in for others, and the refusal of real queries: `cantrip_actors.testing` sets them for tests.

Both hold for the whole process, so that they reach every runtime of an application, in whichever thread it runs.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from cantrip_actors.terms.crystal import Crystal, get_crystal_name
from cantrip_actors.terms.errors import CrystalError
from cantrip_actors.terms.secure_url import is_loopback

STAND_INS: Final[dict[str, Crystal]] = {}
"""The crystals that stand in, by the names of those whose place they take."""

REFUSING: Final[list[object]] = []
"""A mark of each block that is open and refuses real queries."""


class RealQuery(CrystalError):
    """A query would have gone to a provider, and a test refuses that (`testing.refuse_real_queries`)."""


def find_stand_in(crystal: Crystal | str) -> Crystal | str:
    """Return the crystal that stands in for this one, or this one."""
    return STAND_INS.get(get_crystal_name(crystal), crystal) if STAND_INS else crystal


def check_query(provider: str, url: str) -> None:
    """Raise RealQuery if a test refuses queries to providers. One to this machine itself reaches no provider."""
    if REFUSING and not is_loopback(urlsplit(url).hostname or ""):
        raise RealQuery(
            f"{provider}: a query to {urlsplit(url).hostname} was refused, because this test refuses real queries: "
            "give the cantrip a scripted crystal, or replace its crystal with testing.replace"
        )
