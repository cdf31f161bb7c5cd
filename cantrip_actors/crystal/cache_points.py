"""The parts of a prompt that are marked for the provider's cache: tools, system, and the newest messages.

A mark asks the provider to cache everything before it. A read from the cache costs a tenth, a write a quarter more (for
5 minutes) or twice as much (for an hour). A provider accepts four marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from cantrip_actors.terms.arguments import check, check_kind, check_whole
from cantrip_actors.terms.errors import InvalidCantrip

MOST: Final = 4
"""The number of marks that a provider accepts."""


@dataclass(frozen=True, slots=True)
class CachePoints:
    """Marks of a prompt for the provider's cache. `ttl` is how long the cache keeps it.

    `messages` is how many of the newest messages of users and gates are marked. None depends on the query: tools are
    marked if there is no system prompt, whose mark would include them, and a second message is marked after a turn with
    so many calls that the provider would not find the last mark (it looks back over 20 blocks).

    Raises InvalidCantrip for invalid values, and for more than four marks.
    """

    ttl: Literal["5m", "1h"] = "5m"
    tools: bool | None = None
    system: bool = True
    messages: int | None = None

    def __post_init__(self) -> None:
        check(self.ttl in ("5m", "1h"), "cache", '"5m", "1h" or None', self.ttl, InvalidCantrip)
        check_kind("cache: tools", self.tools, bool | None, "True, False or None", InvalidCantrip)
        check_kind("cache: system", self.system, bool, "True or False", InvalidCantrip)
        marks = 0 if self.messages is None else self.messages
        check_whole("cache: messages", marks, 0, error=InvalidCantrip)
        if bool(self.tools) + self.system + marks > MOST:
            raise InvalidCantrip(f"cache: tools, system and messages are more than {MOST} marks")

    @property
    def mark(self) -> Mapping[str, Any]:
        """The mark in a request."""
        return {"type": "ephemeral"} if self.ttl == "5m" else {"type": "ephemeral", "ttl": "1h"}

    def has_tools(self, system: str) -> bool:
        """Return whether the tools of a query with this system prompt are marked."""
        return (not (self.system and system)) if self.tools is None else self.tools


def parse_cache_points(setting: object, family: str) -> CachePoints | None:
    """Return the marks for a `cache` setting: "5m", "1h", None or CachePoints. Raises InvalidCantrip for others."""
    if setting is None or isinstance(setting, CachePoints):
        return setting
    if setting not in ("5m", "1h"):
        raise InvalidCantrip(f'{family}: cache: expected "5m", "1h" or None, or CachePoints(…), got {setting!r}')
    return CachePoints(ttl="1h" if setting == "1h" else "5m")
