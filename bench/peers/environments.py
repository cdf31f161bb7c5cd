"""Virtual environments of the peers, in the user's cache: one for each set of requirements."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["NotInstalledError", "find_cache", "install", "list_versions"]

PATIENCE = 600.0
"""Seconds that an installation may take."""

_VERSIONS = (
    "import sys, importlib.metadata as m; print(*(f'{name} {m.version(name)}' for name in sys.argv[1:]), sep=', ')"
)


class NotInstalledError(Exception):
    """A peer that cannot be installed; its text is the reason."""


def find_cache() -> Path:
    """Return the folder of the environments."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "cantrip-actors" / "peers"


def install(requirements: Sequence[str], cache: Path) -> Path:
    """Return the interpreter of an environment with the newest versions of these, or raise NotInstalledError.

    The interpreter is the one that runs the bench, so that all subjects have the same.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache / f"{version}-{re.sub(r'[^a-z0-9]+', '-', ' '.join(requirements)).strip('-')}"
    reason = ""
    for commands in _list_ways(folder, requirements):
        try:
            for command in commands:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.CalledProcessError as error:
            reason = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1].strip()
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
        else:
            return folder / "bin" / "python"
    raise NotInstalledError(f"cannot be installed: {reason}")


def _list_ways(folder: Path, requirements: Sequence[str]) -> Iterator[list[list[str]]]:
    """Yield the commands of uv, if it is there, and those of pip."""
    python = str(folder / "bin" / "python")
    uv = [shutil.which("uv")] if shutil.which("uv") else [sys.executable, "-m", "uv"]
    if len(uv) == 1 or importlib.util.find_spec("uv") is not None:
        make = [*uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)]
        yield [make, [*uv, "pip", "install", "--quiet", "--upgrade", "--python", python, *requirements]]
    yield [
        [sys.executable, "-m", "venv", str(folder)],
        [python, "-m", "pip", "install", "--quiet", "--upgrade", "--disable-pip-version-check", *requirements],
    ]


def list_versions(python: Path, requirements: Sequence[str]) -> str:
    """Return the installed versions of these, as text."""
    names = [re.split(r"[\[<>=]", requirement)[0] for requirement in requirements]
    ran = subprocess.run([python, "-c", _VERSIONS, *names], check=True, capture_output=True, text=True)
    return ran.stdout.strip()
