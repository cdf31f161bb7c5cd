"""The person who decides at a command line: this process's user, who may give another name."""

from __future__ import annotations

import os


def author(by: str | None) -> str:
    """Return the name of the person who decides: the given one, or the login name. Raises BadParameter for a blank."""
    if by is None:
        return login()
    if not by.strip():
        import typer

        raise typer.BadParameter(
            "expected a name, got a blank text; leave it out to decide by your login", param_hint="--by"
        )
    return by


def door() -> str:
    """Return the door of a decision that is made here: a terminal of the user."""
    return f"terminal:{login()}"


def login() -> str:
    """Return the login name of the user that this process runs as, whatever the environment says."""
    try:
        import pwd

        return pwd.getpwuid(os.geteuid()).pw_name
    except (ImportError, KeyError):  # there is no list of users, or the user is not in it
        import getpass

        return getpass.getuser()
