"""The resources of a server as two more of its tools: `resources` lists them, and `read` reads one. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, Self

from mcp_types import ListResourcesResult, ListResourceTemplatesResult, Resource, ResourceTemplate

from cantrip_actors.terms.tool_server import Tool

LISTED: Final = 100
"""Resources that one call lists, at most."""

REQUESTS: Final = 10
"""Pages that one call asks a server for, at most."""

LONGEST: Final = 500
"""Characters of a resource's description that are kept."""

RESOURCES: Final = Tool(
    "resources",
    "List the resources of this server: their addresses (uri), names and types. An entry with a uriTemplate stands for "
    f"many: fill in the template. At most {LISTED} are listed; if there is a `next`, call again with it as `cursor`.",
    {
        "type": "object",
        "properties": {"cursor": {"type": "string", "description": "`next` of the result before"}},
        "additionalProperties": False,
    },
    read_only=True,
    kind="resources",
)
READ: Final = Tool(
    "read",
    "Read a resource of this server.",
    {
        "type": "object",
        "properties": {"uri": {"type": "string", "description": "its address, as `resources` lists it"}},
        "required": ["uri"],
        "additionalProperties": False,
    },
    read_only=True,
    kind="read",
)

_CURSOR: Final = re.compile(r"(resource|template)s (\d{1,9}) ?(.*)", re.DOTALL)


class ResourcePosition(NamedTuple):
    """A place in the list of resources, after which come the templates: `skip` entries of the page at `cursor`."""

    kind: Literal["resource", "template"]
    skip: int
    cursor: str

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Return the place that a cursor says; None if it is not a cursor."""
        match = _CURSOR.fullmatch(text)
        if match is None:
            return None
        kind, skip, cursor = match.groups()
        return cls("resource" if kind == "resource" else "template", int(skip), cursor)

    def __str__(self) -> str:
        return f"{self.kind}s {self.skip} {self.cursor}" if self.cursor else f"{self.kind}s {self.skip}"

    def take(
        self, page: ListResourcesResult | ListResourceTemplatesResult, room: int
    ) -> tuple[Sequence[Resource | ResourceTemplate], ResourcePosition | None]:
        """Return the entries from here on for which there is room, and the place after them; None is the end."""
        every: Sequence[Resource | ResourceTemplate]
        every = page.resources if isinstance(page, ListResourcesResult) else page.resource_templates
        end = self.skip + room
        if end < len(every):
            return every[self.skip : end], self._replace(skip=end)
        then = FIRST._replace(kind="template") if self.kind == "resource" else None
        if page.next_cursor:  # some servers end a list with an empty one
            then = self._replace(skip=0, cursor=page.next_cursor)
        return every[self.skip :], then


FIRST: Final = ResourcePosition("resource", 0, "")


def entry_of(listed: Resource | ResourceTemplate) -> dict[str, Any]:
    """Return the entry of a resource in the list that an entity reads."""
    address = {"uri": listed.uri} if isinstance(listed, Resource) else {"uriTemplate": listed.uri_template}
    more = {
        "name": listed.title or listed.name,
        "description": (listed.description or "")[:LONGEST] or None,
        "type": listed.mime_type,
        "size": listed.size if isinstance(listed, Resource) else None,
    }
    return {**address, **{name: value for name, value in more.items() if value is not None}}
