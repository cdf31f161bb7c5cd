"""Programs that the stores' tests run in processes of their own."""

import subprocess
import sys
from pathlib import Path


def python(script, *arguments, stdin=None):
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
