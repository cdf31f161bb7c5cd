"""A real terminal: the live tree, and leaving by ctrl-C at any moment."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cantrip_actors import open_loom
from tests.exhaustive import part
from tests.forked import COMMAND, Forked

pytestmark = pytest.mark.real_time

STOPPED = (130, -signal.SIGINT)
"""How a process ends that was interrupted; the second where the signal found the interpreter on its way out."""

SLOW = """\
crystal:
  scripted:
    - tool_calls: [{gate: call_agent_batch, args: {intents: [one, two, three]}}]
    - &slow {delay: 60, content: too late}
    - *slow
    - *slow
circle:
  gates: [done, call_agent_batch]
  wards: [{max_turns: 10}]
"""


STUCK = 60
"""Seconds that the gate of `stuck.yaml` takes, and the thread that it runs in."""


@pytest.fixture
def stuck(place: Path) -> None:
    """A recipe whose gate blocks its thread."""
    (place / "stuck.py").write_text(
        "import time\nfrom cantrip_actors import gate\n"
        f"@gate\ndef stuck() -> str:\n    time.sleep({STUCK})\n    return ''\n"
    )
    (place / "stuck.yaml").write_text(
        "crystal: {scripted: [{tool_calls: [{gate: stuck}]}]}\n"
        "circle: {gates: [done, {python: 'stuck:stuck'}], wards: [{max_turns: 3}]}\n"
    )


def ctrl_c(process: subprocess.Popen, terminal: int) -> None:
    os.write(terminal, b"\x03")


def ended(place: Path) -> dict[str, str]:
    with open_loom(f"sqlite:{place}/.cantrip/loom.db") as loom:
        return {header.entity_id: loom.state(header.entity_id) for header in loom.headers()}


def test_the_tree_is_drawn_in_place_and_its_last_state_stays(terminal, place):
    seen = terminal("demo", str(place), "--pace", "0.1")
    assert seen.code == 0
    assert "\x1b[1A" in seen.screen  # the cursor went up: a picture was replaced
    assert seen.screen.endswith(("\n", "\x1b[0m\n"))
    assert seen.screen.count("\x1b[?25l") == seen.screen.count("\x1b[?25h") == 1  # the cursor is back
    assert re.search(r"✓ \w{8} What does this folder hold\?.* 4 turns", seen.text)
    assert re.search(r"└─ ✓ \w{8} Read the file .* 1 failed", seen.text)
    assert "│ thinking" in seen.text.replace("·", "│")
    assert "| all together" in seen.text


def test_no_color_is_respected(terminal, place):
    seen = terminal("demo", str(place), "--pace", "0", NO_COLOR="1")
    assert seen.code == 0
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", seen.screen)


def test_a_dumb_terminal_gets_lines(terminal, place):
    seen = terminal("cast", "recipe.yaml", "count", TERM="dumb")
    assert seen.code == 0
    assert "\x1b" not in seen.screen
    assert "ended, done" in seen.screen


def test_a_tree_that_does_not_fit_is_truncated(terminal, place):
    (place / "texts").mkdir()
    for n in range(10):
        (place / "texts" / f"{n}.txt").write_text("x\n")
    seen = terminal("demo", str(place / "texts"), "--pace", "0.4", height=9)
    assert seen.code == 0
    assert re.search(r"… and \d+ more", seen.text)


UP = """
import runpy, sys
print("up", file=sys.stderr, flush=True)
runpy.run_module("cantrip_actors.cli.main", run_name="__main__", alter_sys=True)
"""


class TestCtrlC:
    def test_ctrl_c_stops_a_cast_whose_children_wait_for_their_crystals(self, terminal, place):
        (place / "slow.yaml").write_text(SLOW)
        seen = terminal("cast", "slow.yaml", "wait", when="three", do=ctrl_c)
        assert seen.code in STOPPED
        assert "Traceback" not in seen.text
        assert "interrupted; what was done until then is in sqlite:.cantrip/loom.db" in seen.text
        assert seen.screen.count("\x1b[?25l") == seen.screen.count("\x1b[?25h")
        assert sorted(ended(place).values()) == ["cancelled", "parent_ended", "parent_ended", "parent_ended"]

    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    @pytest.mark.parametrize("moment", ["thinking", "1 turn ·", "call_agent_batch", "Read the file", "1 failed", "✓"])
    def test_ctrl_c_stops_the_demo_at_any_moment(self, terminal, place, moment, backend):
        (place / "other.txt").write_text("words\n")
        # a busy machine has to draw each moment before the next
        seen = terminal("demo", str(place), "--pace", "0.5", "--backend", backend, when=moment, do=ctrl_c)
        assert seen.code in STOPPED
        assert "Traceback" not in seen.text
        states = ended(place)
        assert states
        assert "active" not in states.values()

    def test_ctrl_c_stops_a_process_without_a_terminal(self, place):
        (place / "slow.yaml").write_text(SLOW)
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            pipe = subprocess.PIPE
            process = Forked(COMMAND, "cast", "slow.yaml", "wait", stdout=pipe, stderr=pipe, text=True)
            while "three" not in process.stderr.readline():
                pass
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
            assert (process.returncode, out) == (code, "")
            assert "Traceback" not in err
            assert "interrupted" in err
        assert "active" not in ended(place).values()

    def test_a_process_that_nohup_starts_outlives_its_terminal(self, place):
        done = "{tool_calls: [{gate: done, args: {answer: five}}], delay: 3}"
        (place / "slow.yaml").write_text(
            f"crystal: {{scripted: [{done}]}}\ncircle: {{gates: [done], wards: [{{max_turns: 3}}]}}\n"
        )
        program = ["nohup", sys.executable, "-c", UP, "cast", "slow.yaml", "wait"]
        process = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while b"wait" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGHUP)
        assert process.communicate(timeout=60)[0] == b"five\n"

    @pytest.mark.parametrize("moment", part([0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 1.8], 2))
    def test_ctrl_c_stops_a_cast_while_it_starts(self, place, moment):
        process = subprocess.Popen(
            [sys.executable, "-c", UP, "demo", "--pace", "0.5"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr.readline() == "up\n"  # until then it is the interpreter that starts
        time.sleep(moment)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode in STOPPED, err
        assert "Traceback" not in err
        assert "interrupted" in err

    def test_ctrl_c_stops_a_cast_that_prints_events(self, terminal, place):
        (place / "slow.yaml").write_text(SLOW)
        seen = terminal("cast", "slow.yaml", "wait", "--events", when='"three"', do=ctrl_c)
        assert seen.code in STOPPED
        assert "Traceback" not in seen.text

    @pytest.mark.usefixtures("stuck")
    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_ctrl_c_does_not_wait_for_the_thread_of_a_gate(self, terminal, place, backend):
        began = time.monotonic()
        seen = terminal("cast", "stuck.yaml", "wait", "--backend", backend, when="stuck", do=ctrl_c)
        assert time.monotonic() - began < STUCK
        assert seen.code == 130
        assert "interrupted; what was done until then is in" in seen.text
        assert list(ended(place).values()) == ["cancelled"]

    @pytest.mark.usefixtures("stuck")
    def test_a_second_ctrl_c_exits_at_once_and_leaves_a_readable_loom(self, terminal, place):
        def twice(process: subprocess.Popen, terminal: int) -> None:
            ctrl_c(process, terminal)
            time.sleep(0.3)
            ctrl_c(process, terminal)

        began = time.monotonic()
        seen = terminal("cast", "stuck.yaml", "wait", when="stuck", do=twice)
        assert time.monotonic() - began < 15
        assert seen.code in STOPPED
        assert "Traceback" not in seen.text
        assert ended(place)
