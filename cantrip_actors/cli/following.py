"""Commands that follow a loom until ctrl-C: they look at it again and again, also after it could not be reached."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NoReturn

from cantrip_actors.cli import output

LOOK: Final = 0.5
"""Seconds between two looks at the loom."""


def repeat_look(look: Callable[[], object]) -> NoReturn:
    """Call `look` again and again. While the loom cannot be reached, say so once, and wait. Raises LoomError."""
    from cantrip_actors import LoomError
    from cantrip_actors.runtime.loom.outage_log import is_outage

    failure = ""
    while True:
        try:
            look()
            failure = ""
        except LoomError as error:
            if not is_outage(error):
                raise
            if str(error) != failure:
                output.print_note(f"waiting: {error}")
            failure = str(error)
        time.sleep(LOOK)
