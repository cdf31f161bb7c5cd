"""The jails that shell tests run in. What a machine lacks is said by name."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cantrip_actors.circle.medium import Medium, medium
from cantrip_actors.circle.shell.confine import JailName
from cantrip_actors.terms.errors import InvalidCantrip

JAILS: tuple[JailName, ...] = ("bubblewrap", "landlock")


def confined_by(jail: JailName) -> Medium:
    """The medium in that jail, or a skipped test."""
    try:
        return medium("shell", jail)
    except InvalidCantrip as missing:
        pytest.skip(str(missing))


@contextmanager
def public_folder() -> Iterator[Path]:
    """A folder that users other than the host's can get to; pytest's own are closed again by each run of it."""
    path = Path(tempfile.mkdtemp(prefix="cantrip-tests-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)
