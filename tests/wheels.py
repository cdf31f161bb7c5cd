"""Builds the distributions of this repository and of its examples."""

import subprocess
import sys
from pathlib import Path


def build(project: Path, kind: str = "wheel", umask: int = -1, directory: Path | None = None) -> Path:
    """Build a distribution of a project, in its folder `dist` or in `directory`, and return it."""
    target = directory or project / "dist"
    before = set(target.glob("*"))
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", target]
    subprocess.run(command, cwd=project, check=True, capture_output=True, umask=umask)
    (built,) = {path for path in target.glob("*") if path.name != ".gitignore"} - before
    return built
