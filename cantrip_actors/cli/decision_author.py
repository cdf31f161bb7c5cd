"""The person who decides at a command line: this process's user, who may give another name."""

from __future__ import annotations

from cantrip_actors.own_files.login import get_login


def author(by: str | None) -> str:
    """Return the name of the person who decides: the given one, or the login name. Raises BadParameter for a blank."""
    if by is None:
        return get_login()
    if not by.strip():
        import typer

        raise typer.BadParameter(
            "expected a name, got a blank text; leave it out to decide by your login", param_hint="--by"
        )
    return by


def door() -> str:
    """Return the door of a decision that is made here: a terminal of the user."""
    return f"terminal:{get_login()}"
