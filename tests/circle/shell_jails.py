"""The jails that shell tests run in. What a machine lacks is said by name."""

import pytest

from cantrip_actors.circle.shell import Shell
from cantrip_actors.circle.shell_confine import JailName
from cantrip_actors.model.errors import InvalidCantrip

JAILS: tuple[JailName, ...] = ("bubblewrap", "landlock")


def confined_by(jail: JailName) -> Shell:
    """The medium in that jail, or a skipped test."""
    try:
        return Shell(jail)
    except InvalidCantrip as missing:
        pytest.skip(str(missing))
