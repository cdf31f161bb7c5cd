"""Whether this installation has the shell medium: asked when a circle wants it, and no sooner."""

from __future__ import annotations

import sys

from cantrip_actors.circle.medium import Medium
from cantrip_actors.terms.errors import InvalidCantrip

__all__ = ["make"]


def make() -> Medium:
    """The shell medium. Raises InvalidCantrip, saying what is missing, where no shell can be confined."""
    if sys.platform != "linux":
        raise InvalidCantrip(f'medium "shell" needs Linux: {sys.platform} has nothing to confine a shell with')
    try:
        from cantrip_actors.circle.shell.medium import Shell
    except ModuleNotFoundError as missing:
        if missing.name not in ("pyseccomp", "tree_sitter", "tree_sitter_bash"):
            raise
        raise InvalidCantrip(
            'medium "shell" needs a filter of system calls and a parser: pip install "cantrip-actors[shell]"'
        ) from missing
    return Shell()
