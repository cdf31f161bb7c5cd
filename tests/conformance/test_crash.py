"""The torture bench finds no fault in the product, and finds each fault that is planted."""

import json
import os
import subprocess
from itertools import product
from pathlib import Path

import pytest

from conformance.crash.fate import Fate
from conformance.crash.history import History, Kill
from conformance.crash.ledger import Ledger, lines
from tests.exhaustive import FULL, part
from tests.forked import Forked
from tests.loom.postgres import server

KILLS = 20 if FULL else 5
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.real_time

DRIVER = """
import sys
{fault}
from conformance.crash.command import main
sys.exit(main(sys.argv[1:]))
"""


def crash(*options: str, fault: str = "") -> tuple[int, dict]:
    """The bench, in a process of its own: it forks, and a test runner has threads."""
    pipe = subprocess.PIPE
    streams = {"stdout": pipe, "stderr": pipe, "text": True}
    environment = {**os.environ, "CANTRIP_POSTGRES": server()} if "postgres" in options else None
    with Forked(DRIVER.format(fault=fault), "--json", *options, cwd=ROOT, env=environment, **streams) as bench:
        printed, errors = bench.communicate(timeout=400)
    assert printed, errors
    return bench.returncode, json.loads(printed)


@pytest.mark.rule("LOOM-1", "LOOM-2", "LOOM-3", "LOOM-8", "D-008", "D-011", "COMP-5")
@pytest.mark.parametrize("store", part(["jsonl", "sqlite"], 2))
def test_processes_killed_at_any_moment_lose_and_repeat_nothing(store):
    some = () if FULL else ("--kills", "15", "--durability", "process", "--workload", "small")
    code, told = crash("--parts", "kills", "--store", store, *some)
    assert told["rows"][0]["wrong"] == []
    assert code == 0
    assert told["kills"] >= (100 if FULL else 15)
    assert told["rows"][0]["from_outside"]
    assert told["rows"][0]["in_recovery"]


@pytest.mark.unvaried
@pytest.mark.rule("C-40", "C-10")
def test_an_entity_that_moves_between_versions_loses_and_repeats_nothing_after_kills():
    code, told = crash("--parts", "kills", "--store", "sqlite", "--kills", "8", "--workload", "moved")
    assert told["rows"][0]["wrong"] == []
    assert code == 0


@pytest.mark.rule("LOOM-1", "D-011")
@pytest.mark.parametrize("store", part(["sqlite", "jsonl"], 2))
def test_a_failing_disk_is_a_clear_error_and_work_resumes_after_repair(store):
    whole = ("--kills", "1") if FULL else ()
    code, told = crash("--parts", "faults", "--store", store, *whole)
    assert told["rows"][0]["wrong"] == []
    assert told["rows"][0]["refused"] > 10
    assert code == 0


@pytest.mark.rule("LOOM-1")
@pytest.mark.parametrize("store", part(["postgres", "jsonl", "sqlite"], 2))
def test_one_of_two_processes_runs_an_entity_even_after_a_freeze(store):
    code, told = crash("--parts", "rivals", "--store", store)
    assert told["rows"][0]["wrong"] == []
    assert told["rows"][0]["refused"]
    assert code == 0


@pytest.mark.unvaried
@pytest.mark.rule("LOOM-1", "D-011")
def test_a_killed_server_loses_nothing_and_entities_continue_when_it_is_back():
    code, told = crash("--parts", "outages", "--store", "postgres")
    assert told["rows"][0]["wrong"] == []
    assert told["rows"][0]["refused"]
    assert code == 0


@pytest.mark.rule("LOOM-1", "LOOM-4", "CIRCLE-9", "D-001")
@pytest.mark.parametrize(("store", "workload"), part([("jsonl", "nudged"), ("sqlite", "code")], 2))
def test_programs_and_messages_survive_kills(store, workload):
    kills = KILLS
    wanted = {"--parts": "kills", "--store": store, "--workload": workload, "--kills": kills, "--durability": "process"}
    code, told = crash(*(str(word) for option in wanted.items() for word in option))
    assert told["rows"][0]["wrong"] == []
    assert told["kills"] >= kills
    assert code == 0


@pytest.mark.rule("C-30", "C-20")
@pytest.mark.parametrize(
    ("workload", "store"),
    [*product(("timed", "asked", "consulting"), ("sqlite", "jsonl", "postgres"))]
    if FULL
    else part([("timed", "sqlite"), ("timed", "postgres"), ("asked", "jsonl"), ("consulting", "sqlite")], 2),
)
def test_timers_and_decisions_happen_once_under_kills(workload, store):
    kills = 60 if FULL else KILLS
    options = ("--store", store, "--workload", workload, "--kills", str(kills), "--durability", "process")
    code, told = crash("--parts", "kills", *options)
    assert told["rows"][0]["wrong"] == []
    assert told["kills"] >= kills
    assert code == 0


@pytest.mark.unvaried
def test_a_history_is_parsed_as_it_was_printed():
    history = History("sqlite", "power", (Kill(37), Kill(seconds=0.0213)), "tiny")
    assert str(history) == "sqlite/power/tiny 37 ~0.0213"
    assert History.of(str(history)) == history


@pytest.mark.unvaried
def test_half_a_line_of_a_ledger_does_not_count(tmp_path):
    path = tmp_path / "ledger"
    Ledger(path, 0, Fate()).write("begin", "alpha/00")
    whole = path.read_bytes()
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        Ledger(path, 1, Fate()).write("begin", "alpha/01")
        found = [(line.life, line.key) for line in lines(path)]
        assert found in ([(1, "alpha/01")], [(0, "alpha/00"), (1, "alpha/01")])
        assert (len(found) == 2) == (cut == len(whole) - 1)


# ------------------------------------------------------------------------------------ products with the faults it seeks

RUNS_GATES_AGAIN = """
from cantrip_actors.machine import loop
loop.is_unknown = lambda plan, state, call: False
"""
ASKS_AGAIN = """
from cantrip_actors.runtime.entity import loading
def forgetful(shape, records, state, whole=loading.fold_log):
    kept = list(records)
    if kept and type(kept[-1]).__name__ == "Utterance":
        kept.pop()
    return whole(shape, kept, state)
loading.fold_log = forgetful
"""
ACKNOWLEDGES_TOO_SOON = """
from cantrip_actors.loom.memory.jsonl import JsonlStore
def lazy(self, records, *leases, taken=(), post=(), timers=(), whole=JsonlStore.append, waiting=[]):
    if waiting:
        late, mail = waiting.pop()
        whole(self, late, *leases, **mail)
    waiting.append((list(records), {"taken": taken, "post": post, "timers": timers}))
JsonlStore.append = lazy
"""
STARTS_CHILDREN_AGAIN = """
from msgspec.structs import replace
from cantrip_actors.runtime.entity.delegation import Delegation
whole = Delegation._make_child
def again(self, index):
    self._action = replace(self._action, started={})
    return whole(self, index)
Delegation._make_child = again
"""
FORGETS_HINTS = """
from cantrip_actors.runtime.entity import loading
loading.fold_log = lambda shape, records, state, whole=loading.fold_log: whole(
    shape, [one for one in records if type(one).__name__ != "Steered"], state)
"""
LOSES_VARIABLES = """
from msgspec.structs import replace
from cantrip_actors.runtime.circles.program_actor import CircleActor
whole = CircleActor._rebuild
async def empty(self, wanted):
    await whole(self, replace(wanted, before=wanted.before[:1], snapshots=()))
CircleActor._rebuild = empty
"""


@pytest.mark.parametrize(
    ("fault", "said", "workload", "first"),
    part(
        [
            pytest.param(RUNS_GATES_AGAIN, "gate run 2 times", "tiny", 0, id="a gate is run again"),
            pytest.param(ASKS_AGAIN, "paid again", "tiny", 1, id="a crystal is asked again"),
            pytest.param(
                ACKNOWLEDGES_TOO_SOON,
                "acknowledged in life 0, and lost",
                "tiny",
                0,
                id="an append is acknowledged unwritten",
            ),
            pytest.param(STARTS_CHILDREN_AGAIN, "is there more than once", "tiny", 0, id="children are started again"),
            pytest.param(FORGETS_HINTS, "and not ['hint ", "nudged", 0, id="a hint is forgotten"),
            pytest.param(LOSES_VARIABLES, "turn", "code", 0, id="a sandbox comes back empty"),
        ],
        3,
    ),
)
def test_the_campaign_detects_a_broken_product(fault, said, workload, first):
    """Each fault shows at its first seed; the others are for a product whose points have moved."""
    wanted = {
        "--parts": "kills",
        "--store": "jsonl",
        "--durability": "process",
        "--workload": workload,
        "--kills": "6",
    }
    found = False
    for seed in range(first, first + 8):  # some kills fall where the fault does not show
        code, told = crash(*(word for option in wanted.items() for word in option), "--seed", str(seed), fault=fault)
        found = any(said in what for one in told["rows"][0]["wrong"] for what in one["what"])
        assert code == bool(told["rows"][0]["wrong"])
        if found:
            break
    assert found
