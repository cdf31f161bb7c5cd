"""Real processes pass one entity from hand to hand: no send waits for long, however busy the machine is."""

import json
import subprocess
from pathlib import Path

import pytest

from cantrip_actors import open_loom
from tests.forked import Forked

PROCESSES = 8
SENDS = 5

LONGEST = 2.0
"""Seconds that a send may take, beside those for which the machine let a process wait for its processor."""

WORKER = """
import json, sys, time
import anyio
from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.wards import max_turns

url, number, backend = sys.argv[1:]
desk = Cantrip(scripted(lambda seen: f"re: {seen[-1].content}"), circle=Circle(["done"], [max_turns(5)]), name="desk")
late = [0.0]

async def measure_lateness():
    while True:
        began = time.monotonic()
        await anyio.sleep(0.02)
        late.append(time.monotonic() - began - 0.02)

async def main():
    took = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(measure_lateness)
        async with Runtime.open(url, cantrips=[desk]) as runtime:
            entity = await runtime.ensure("notes", desk)
            for n in range(int(sys.argv[2]) * 100, int(sys.argv[2]) * 100 + 5):
                began = time.monotonic()
                answer = await entity.send(str(n), timeout=60)
                took.append(time.monotonic() - began)
                assert answer.result == f"re: {n}", answer
        tasks.cancel_scope.cancel()
    print(json.dumps([took, max(late)]))

print("ready", flush=True)
sys.stdin.readline()
anyio.run(main, backend=backend)
"""


@pytest.mark.rule("Y-03")
@pytest.mark.real_time
def test_eight_processes_that_open_a_new_loom_at_once_answer_each_others_sends_in_time(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [Forked(WORKER, url, n, ("asyncio", "trio")[n % 2], **streams) for n in range(PROCESSES)]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    reports = [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]
    times = [seconds for took, _ in reports for seconds in took]
    latest = max(late for _, late in reports)
    assert len(times) == PROCESSES * SENDS
    assert max(times) <= LONGEST + 2 * latest  # the process that sends, and the one that answers, may each be late
    with open_loom(url) as loom:
        (entity_id,) = loom.entities()
        results = sorted(turn.utterance for turn in loom.turns(entity_id))
        assert results == sorted(f"re: {n * 100 + one}" for n in range(PROCESSES) for one in range(SENDS))
