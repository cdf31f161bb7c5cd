"""`cantrip demo approval`: four processes, one kill, one payment."""

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.real_time


@pytest.mark.rule("C-20")
def test_the_demo_pays_exactly_once_although_the_process_that_asked_was_killed(process):
    said = process("demo", "approval")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert "It wants to call pay with {'to': 'the print shop', 'amount': 120}." in lines[0]
    assert lines[1].endswith("nothing is paid.")
    assert lines[2].endswith("was killed with SIGKILL while it waited.")
    assert lines[3].endswith("The same request still waits; nothing is paid.")
    assert lines[4].startswith("Another process ran `cantrip allow ")
    assert lines[5].endswith("Now 1 payment is made.")
    assert lines[6:] == ["It paid exactly once: ['120 EUR to the print shop']"]


def test_the_demo_refuses_a_loom_that_only_one_process_can_open(cantrip, place):
    said = cantrip("demo", "approval", "--loom", "jsonl:loom.jsonl")
    assert said.code == 2
    assert "sqlite:PATH" in said.err
    assert not (place / "loom.jsonl").exists()


def test_the_demo_prints_json_for_programs(process):
    said = process("demo", "approval", "--json")
    assert said.code == 0, said.err
    assert said.json["payments"] == ["120 EUR to the print shop"]
    assert said.json["request_id"].startswith(said.json["entity_id"])


def test_ctrl_c_at_the_terminal_ends_the_demo_and_its_processes_without_a_traceback(place):
    command = [sys.executable, "-m", "cantrip_actors.cli.main", "demo", "approval"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as demo:
        for _ in range(4):  # now the second process waits
            demo.stdout.readline()
        os.killpg(demo.pid, signal.SIGINT)
        _, err = demo.communicate(timeout=60)
    assert (demo.returncode, err.strip()) == (130, "interrupted")
