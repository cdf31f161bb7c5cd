"""The user that this process runs as, by whose name records name a decision at this machine."""

from __future__ import annotations

import os


def get_login() -> str:
    """Return the login name of the user that this process runs as, whatever the environment says.

    A user that the machine does not list, as in a container, is named by the number.
    """
    try:
        import pwd
    except ImportError:  # there is no list of users
        import getpass

        return getpass.getuser()
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
