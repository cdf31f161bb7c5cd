"""The processes of browsers: found in /proc, and what they have used of the processor."""

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def list_descendants(process: int) -> list[int]:
    """The processes below one. One that ends meanwhile may be missing."""
    children: list[int] = []
    for thread in Path(f"/proc/{process}/task").glob("*"):
        children += [int(child) for child in _read(thread / "children").split() if int(child) not in children]
    return [each for child in children for each in (child, *list_descendants(child))]


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def list_browsers(process: int) -> list[int]:
    """The browsers that a process has started: their own children, such as renderers, are not counted."""
    return [child for child in list_descendants(process) if _is_browser(read_command(child))]


def _is_browser(command: str) -> bool:
    is_script = command.startswith("/bin/sh")  # Debian's, which waits for the browser
    return "--remote-debugging-pipe" in command and "--type=" not in command and not is_script


def read_command(process: int) -> str:
    return _read(Path(f"/proc/{process}/cmdline")).replace("\0", " ")


def is_running(process: int) -> bool:
    status = _read(Path(f"/proc/{process}/stat"))
    return bool(status) and ") Z " not in status


def read_driver_seconds() -> float:
    """Seconds of CPU of Playwright's own processes below this one."""
    drivers = [each for each in list_descendants(os.getpid()) if "playwright/driver" in read_command(each)]
    fields = [Path(f"/proc/{each}/stat").read_text().rpartition(") ")[2].split() for each in drivers]
    return sum(int(field[11]) + int(field[12]) for field in fields) / TICKS
