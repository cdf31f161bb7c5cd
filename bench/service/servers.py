"""The processes of a measurement: the provider, and a service with its workers. Their CPU is read from /proc."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.service.load import LoadError

__all__ = ["open_provider", "open_service", "read_tree_cpu"]

ROOT = Path(__file__).parent.parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
START = 180.0
"""Seconds that a service may take to start."""
STOP = 10.0


@contextmanager
def open_provider() -> Iterator[str]:
    """Yield the address of a fake provider in a process of its own."""
    command = [sys.executable, "-m", "bench.service.provider"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        process.kill()  # its clients may still be connected


@contextmanager
def open_service(python: Path, app: str, workers: int, provider: str, loom: str) -> Iterator[tuple[int, int]]:
    """Yield the port and the process of a service that has begun to answer; raise LoadError if it does not start."""
    port = _find_port()
    command = [str(python), "-m", "uvicorn", f"bench.service.apps.{app}:app", "--port", str(port)]
    command += ["--workers", str(workers), "--log-level", "warning", "--no-access-log", "--backlog", "1000"]
    environment = {**os.environ, "BENCH_PROVIDER": provider, "BENCH_LOOM": loom, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            _wait_until_ready(process, port, workers)
            yield port, process.pid
        finally:
            _stop(process)


def _find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, workers: int) -> None:
    """Wait until the service answers and its processes use no CPU any more: all workers have started."""
    end, seen = time.monotonic() + START, -1.0
    while time.monotonic() < end:
        if process.poll() is not None:
            assert process.stderr is not None
            lines = process.stderr.read().decode(errors="replace").strip().splitlines() or ["no output"]
            raise LoadError(f"did not start: {lines[-1].strip()[:200]}")
        spent = read_tree_cpu(process.pid)
        if spent - seen < 0.02 * workers and _answers(port):
            return
        seen = spent
        time.sleep(0.5)
    raise LoadError(f"did not start in {START:.0f} s")


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json", timeout=5).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the service and its workers, which are of its session."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def read_tree_cpu(pid: int) -> float:
    """Return the CPU seconds, user and system, of a process and of all that descend from it."""
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            parents[int(folder.name)] = int(fields[1])
            spent[int(folder.name)] = int(fields[11]) + int(fields[12])
    family = {pid}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    return sum(spent.get(member, 0) for member in family) / TICKS
