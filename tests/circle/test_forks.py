"""A forked process begins anew: what its parent's threads held or ran at that moment does not concern it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("elsewhere processes are rarely forked", allow_module_level=True)

from tests.forked import Forked

HEAD = """
import os, signal, sys
from cantrip_actors.circle import scratch
from cantrip_actors.circle.browser import driver
from cantrip_actors.circle.javascript import clock, engine
from cantrip_actors.circle.medium import ProgramLimits, medium

def run_in_child(work):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    signal.alarm(60)
    work()
    sys.exit(0)
"""
HELD = {
    "folder": ("scratch._own.changing", "scratch.make_folder('x')"),
    "engine": ("engine._lock", "engine.get_pristine()"),
    "clock": ("clock.clock._changed", "medium('javascript').open([], ProgramLimits()).begin('1')"),
    "browser": ("driver._lock", "driver.get_driver()"),
}


def run_program(code: str) -> str:
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with Forked(HEAD + code, env=environment, **streams) as process:
        printed, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return printed


@pytest.mark.parametrize("what", HELD)
def test_a_forked_process_waits_for_no_lock_of_a_thread_of_its_parent(what: str) -> None:
    lock, use = HELD[what]
    assert run_program(f"with {lock}:\n    status = run_in_child(lambda: {use})\nprint(status)") == "0\n"


def test_a_forked_process_has_none_of_its_parents_running_programs_to_end() -> None:
    code = """
guest = engine.get_pristine().guest(2**24, lambda _: "", "[]")
clock.clock._running.append(guest)  # as if another thread ran it
print(run_in_child(lambda: sys.exit(len(clock.clock._running))))
clock.clock._running.clear()
"""
    assert run_program(code) == "0\n"


def test_a_forked_process_does_not_hold_the_folder_of_its_parent() -> None:
    code = """
scratch.make_folder("x")
inherited = scratch._own.lock
def look():
    try:
        os.fstat(inherited)
    except OSError:
        return
    sys.exit("it is open")
print(run_in_child(look))
"""
    assert run_program(code) == "0\n"
