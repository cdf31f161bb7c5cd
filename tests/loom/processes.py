"""Programs that the stores' tests run in processes of their own."""

import subprocess
import sys

from tests.forked import ROOT, Forked


def python(script, *arguments, stdin=None):
    return Forked(script, *arguments, stdin=stdin, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def child(script, *arguments, stdin=None):
    """Run a program as a child of this process, which is a zombie when it was killed."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True, cwd=ROOT)
