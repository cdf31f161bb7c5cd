"""The worker processes of the Python medium: shared, replaceable, jailed, and never held by a program that waits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cantrip_actors.circle.medium import Answer, Exceeded, Finished, ProgramLimits, Suspended, medium
from cantrip_actors.circle.python import workers as python_workers
from cantrip_actors.circle.python.medium import PythonSandbox
from cantrip_actors.terms.own_gates import CALL_AGENT
from tests.exhaustive import EXHAUSTIVE

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
SPIN = "x = 2\nwhile True:\n    pass"


def opened(seconds: float = 20.0) -> PythonSandbox:
    return medium("python").open([CALL_AGENT.definition], ProgramLimits(seconds=seconds))


def spinning(sandbox: PythonSandbox, ended: list[object]) -> threading.Thread:
    thread = threading.Thread(target=lambda: ended.append(sandbox.begin(SPIN)))
    thread.start()
    return thread


def until_it_computes(sandbox: PythonSandbox) -> int:
    """The number of the worker that computes for a sandbox, and of its group."""
    deadline = time.monotonic() + 20
    while (worker := sandbox._worker) is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    if sys.platform == "linux":
        while not _interpreters(worker.process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.005)
    time.sleep(0.05)
    return worker.process.pid


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
def test_a_worker_that_dies_undoes_the_turn_and_is_replaced():
    sandbox = opened()
    sandbox.begin("x = 1")
    ended: list[object] = []
    thread = spinning(sandbox, ended)
    os.kill(until_it_computes(sandbox), signal.SIGKILL)
    thread.join(5)
    assert ended == [Exceeded("the interpreter broke down")]
    assert sandbox.begin("x") == Finished(1)


@LINUX
def test_an_interpreter_that_dies_undoes_the_turn_and_its_worker_continues():
    sandbox = opened()
    sandbox.begin("x = 1")
    ended: list[object] = []
    thread = spinning(sandbox, ended)
    worker = until_it_computes(sandbox)
    os.kill(_interpreters(worker)[0], signal.SIGKILL)
    thread.join(5)
    assert ended == [Exceeded("the interpreter broke down")]
    assert sandbox.begin("x") == Finished(1)
    assert _is_running(worker)


@LINUX
def test_a_worker_that_died_between_two_steps_is_replaced():
    sandbox = opened()
    sandbox.begin("x = 1")
    for one in _workers():
        os.kill(one, signal.SIGKILL)
        os.waitid(os.P_PID, one, os.WEXITED | os.WNOWAIT)
    assert sandbox.begin("x") == Finished(1)


def test_output_printed_before_an_interrupt_is_kept():
    sandbox = medium("python").open([], ProgramLimits(seconds=20, output=20))
    ended: list[object] = []
    printing = "print('seen')\nprint('cut' * 10)\nwhile True:\n    pass"
    thread = threading.Thread(target=lambda: ended.append(sandbox.begin(printing)))
    thread.start()
    until_it_computes(sandbox)
    time.sleep(0.3)
    sandbox.interrupt()
    thread.join(5)
    output = "seen\n" + ("cut" * 10)[:15] + "\n[16 more characters of output were cut]"
    assert ended == [Exceeded("interrupted from outside", output)]


def test_a_worker_that_fails_by_a_bug_of_the_host_reports_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(python_workers, "_list_folders", list)
    python_workers.close()
    with pytest.raises(RuntimeError, match="a worker of the Python medium failed: ModuleNotFoundError"):
        opened().begin("1")
    python_workers.close()


def test_interrupting_a_step_that_waits_for_a_worker_ends_no_other_worker():
    busy = [opened() for _ in range(python_workers._count_cores())]
    ended: list[object] = []
    threads = [spinning(one, ended) for one in busy]
    for one in busy:
        until_it_computes(one)
    waiting, given_up = opened(), []
    thread = spinning(waiting, given_up)
    time.sleep(0.1)
    waiting.interrupt()
    assert ended == []  # no other worker was ended for it
    for one in busy:
        one.interrupt()
    for one in [*threads, thread]:
        one.join(10)
    assert ended == [Exceeded("interrupted from outside")] * len(busy)
    assert given_up == [Exceeded("interrupted from outside")]


def test_the_pool_starts_again_after_it_was_closed():
    sandbox = opened()
    sandbox.begin("x = 1")
    step = sandbox.begin("call_agent('a')")
    assert isinstance(step, Suspended)
    python_workers.close()
    assert sandbox.answer(step, Answer("after")) == Finished("after")
    assert sandbox.begin("x") == Finished(1)


@pytest.mark.rule("COMP-2")
def test_many_programs_wait_at_a_gate_as_a_few_kilobytes_each():
    """Ten thousand behave the same: 4.4 KB each (docs/python-medium.md)."""
    opened().begin("1")  # what all programs share is there
    threads, processes = threading.active_count(), len(_children())
    waiting = []
    for number in range(1_000 if EXHAUSTIVE else 150):
        sandbox = opened()
        sandbox.begin("notes = ['a', 'b']\ndef more(n):\n    return n + 1")
        step = sandbox.begin(f"x = {number}\nr = call_agent('task ' + str(x))\n[r, more(x), notes]")
        assert isinstance(step, Suspended)
        waiting.append((sandbox, step))
    assert threading.active_count() <= threads  # idle workers of other tests end by themselves
    assert len(_children()) <= processes + python_workers._count_cores()
    assert all(len(step.image or b"") + len(sandbox.dump()) <= 8 * 1024 for sandbox, step in waiting)
    for number, (sandbox, step) in enumerate(waiting):
        assert sandbox.answer(step, Answer("r")) == Finished(["r", number + 1, ["a", "b"]])


@LINUX
def test_a_workers_environment_is_empty(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CANTRIP_CANARY", "seen")
    python_workers.close()
    opened().begin("1")
    (worker,) = _workers()
    for process in [worker, *_below(worker)]:
        assert b"CANTRIP_CANARY" not in _environment(process)
    python_workers.close()


@LINUX
def test_a_worker_has_nothing_of_the_host_open():
    with Path(__file__).open(encoding="utf-8") as file:
        inherited = os.dup(file.fileno())
        os.set_inheritable(inherited, True)
        python_workers.close()
        opened().begin("1")
        os.close(inherited)
    (worker,) = _workers()
    for process in [worker, *_below(worker)]:
        opens = [str(one.readlink()) for one in Path(f"/proc/{process}/fd").iterdir()]
        assert __file__ not in opens


@LINUX
def test_a_worker_yields_to_its_host_and_is_bounded():
    opened().begin("1")
    for process in [(worker := _workers()[0]), *_interpreters(worker)]:
        assert os.getpriority(os.PRIO_PROCESS, process) >= min(os.getpriority(os.PRIO_PROCESS, 0) + 5, 19)
        limits = Path(f"/proc/{process}/limits").read_text()
        assert any(line.split()[:4] == ["Max", "address", "space", str(4 * 2**30)] for line in limits.splitlines())


@LINUX
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_an_interpreter_runs_in_its_own_namespaces():
    opened().begin("1")
    (inside,) = _interpreters(_workers()[0])
    for kind in ("net", "mnt", "pid", "user"):
        assert Path(f"/proc/{inside}/ns/{kind}").readlink() != Path(f"/proc/self/ns/{kind}").readlink()
    assert {path.name for path in Path(f"/proc/{inside}/root").iterdir()} <= {"worker", "lib", "lib64", "usr"}


@LINUX
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_the_jail_dies_with_the_worker():
    sandbox = opened()
    ended: list[object] = []
    thread = spinning(sandbox, ended)
    below = _below(until_it_computes(sandbox))
    assert below
    sandbox.interrupt()
    thread.join(5)
    deadline = time.monotonic() + 5
    while any(_is_running(process) for process in below):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@LINUX
def test_workers_can_be_replaced_after_temporary_files_were_deleted():
    assert opened().begin("1") == Finished(1)
    script = python_workers._pool.script
    assert script is not None
    shutil.rmtree(script.parent)
    for _ in range(python_workers._count_cores() + 1):
        sandbox = opened()
        ended: list[object] = []
        thread = spinning(sandbox, ended)
        until_it_computes(sandbox)
        sandbox.interrupt()
        thread.join(5)
    assert opened().begin("2") == Finished(2)


@LINUX
def test_a_worker_without_bubblewrap_has_no_jail(monkeypatch: pytest.MonkeyPatch):
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "bwrap" else which(name))
    python_workers.close()
    assert opened().begin("1 + 1") == Finished(2)
    python_workers.close()


@LINUX
def test_the_interpreter_is_run_directly_where_scripts_cannot_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(python_workers, "_is_working", lambda _: False)
    python_workers.close()
    assert opened().begin("1 + 1") == Finished(2)
    assert python_workers._pool.script is None
    python_workers.close()


@LINUX
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking with threads: that is what this is about
def test_a_process_that_was_forked_has_workers_of_its_own():
    sandbox = opened()
    sandbox.begin("x = 1")
    mine = _workers()
    child = os.fork()
    if child == 0:
        is_fine = False
        try:
            is_fine = sandbox.begin("x + 1") == Finished(2) and not set(_workers()) & set(mine)
            python_workers.close()
        finally:
            os._exit(0 if is_fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sandbox.begin("x") == Finished(1)
    assert _workers() == mine


@LINUX
def test_workers_end_with_their_process():
    code = (
        "from cantrip_actors.circle.medium import ProgramLimits, medium\n"
        "from cantrip_actors.circle.python import workers\n"
        "medium('python').open([], ProgramLimits()).begin('1')\n"
        "print(workers._pool._idle[0].process.pid)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert not _is_running(int(said.stdout))


def _children() -> list[int]:
    return _below(os.getpid()) if sys.platform == "linux" else []


def _workers() -> list[int]:
    """The workers that wait for a step."""
    return [one.process.pid for one in python_workers._pool._idle]


def _interpreters(process: int) -> list[int]:
    """The interpreters below a worker."""
    return [one for one in _below(process) if Path(f"/proc/{one}/comm").read_text().strip() in ("worker", "monty")]


def _below(process: int) -> list[int]:
    """The processes that descend from a process, nearest first."""
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *_below(child)]
    return found


def _environment(process: int) -> bytes:
    return Path(f"/proc/{process}/environ").read_bytes()


def _is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
