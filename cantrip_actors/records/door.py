"""The door through which a decision came, and a text that names the person who decided.

A door is `terminal:<login>`, `editor:<login>` or `mcp:<login>` for a user of this machine, `token:<name>` for the
holder of that token, or empty for a program that called `decide`, whose claim of who decides is unchecked.
"""

from __future__ import annotations

KINDS = ("terminal", "editor", "mcp", "token")


def check_door(door: str) -> None:
    """Raise ValueError for a text that does not name a door."""
    kind, colon, name = door.partition(":")
    if door and not (kind in KINDS and colon and name):
        kinds = ", ".join(f'"{kind_name}:<name>"' for kind_name in KINDS)
        raise ValueError(f'door: expected {kinds} or "", got {door!r}')


def name_decider(by: str, door: str) -> str:
    """Return a text that names the person who decided, and the evidence for that name.

    >>> name_decider("ann", "terminal:ann"), name_decider("bob", "terminal:ann")
    ('ann, at a terminal', 'bob, as ann said at a terminal')
    >>> name_decider("", "token:deploy"), name_decider("ann", "")
    ('somebody with the token deploy', 'ann, according to a program without authentication')
    """
    kind, _, name = door.partition(":")
    match kind:
        case "terminal":
            return f"{name}, at a terminal" if by in ("", name) else f"{by}, as {name} said at a terminal"
        case "editor":
            return f"{name}, in an editor"
        case "mcp":
            return f"{name}, in an MCP client"
        case "token":
            return f"{by or 'somebody'} with the token {name}"
        case _:
            return f"{by or 'somebody'}, according to a program without authentication"
