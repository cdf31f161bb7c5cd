"""`cantrip worker`, `cantrip up`, `cantrip cluster` and `cantrip demo cluster`: real processes on one loom."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Runtime
from cantrip_actors.recipes import load_recipe
from tests.forked import COMMAND, Forked
from tests.loom import postgres
from tests.runtime.spells import cantrip as spell
from tests.runtime.spells import done

pytestmark = pytest.mark.real_time

LOOM = "sqlite:.cantrip/loom.db"
QUICK = ("--beat", "0.1", "--ttl", "1")
RECIPE = """\
name: keeper
crystal:
  scripted:
    - {tool_calls: [{gate: done, args: {answer: one}}]}
    - {tool_calls: [{gate: done, args: {answer: two}}]}
circle:
  gates: [done]
  wards: [{max_turns: 10}]
"""


@pytest.fixture
def start(place: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command, which is killed after the test."""
    started: list[subprocess.Popen[str]] = []
    (place / "keeper.yaml").write_text(RECIPE)

    def run(*arguments: str, before: Sequence[str] = ()) -> subprocess.Popen[str]:
        if before:
            command = [*before, sys.executable, "-m", "cantrip_actors.cli.main", *arguments]
            started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        else:
            started.append(Forked(COMMAND, *arguments, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def wait_for(said: subprocess.Popen[str], text: str) -> str:
    assert said.stderr is not None
    seen = []
    while line := said.stderr.readline():
        seen.append(line)
        if text in line:
            return line
    raise AssertionError(f"it ended without {text!r}: {seen}")


def invoke() -> None:
    async def work() -> None:
        spell = load_recipe(Path("keeper.yaml"))
        async with Runtime.open(LOOM, passivate_after=0) as runtime:
            await (await runtime.invoke(spell, "begin", name="notes")).episode()

    anyio.run(work)


def wait_until(is_true: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.1)


ASKING = """\
name: shop
crystal:
  scripted:
    - {tool_calls: [{gate: echo, args: {text: ten boxes}}]}
    - {content: sent}
circle:
  gates: [done, {name: echo, ask_first: true}]
  wards: [{max_turns: 10}]
"""


def test_a_send_names_the_request_for_which_an_entity_of_a_worker_waits(start: Any, cantrip: Any, place: Path) -> None:
    (place / "shop.yaml").write_text(ASKING)
    wait_for(start("worker", "shop.yaml", "--name", "w1", *QUICK), "w1 works on")
    assert cantrip("ensure", "shop", "shop.yaml").code == 0
    sender = start("send", "shop", "Order.", "--quiet")
    request = wait_for(sender, "waits for a person: ").split()[4]
    assert cantrip("allow", request).code == 0
    assert sender.wait(20) == 0


def test_a_send_that_denies_unattended_requests_denies_those_of_a_worker(start: Any, cantrip: Any, place: Path) -> None:
    (place / "shop.yaml").write_text(ASKING)
    wait_for(start("worker", "shop.yaml", "--name", "w1", *QUICK), "w1 works on")
    assert cantrip("ensure", "shop", "shop.yaml").code == 0
    assert cantrip("send", "shop", "Order.", "--quiet", "--unattended", "deny").out == "sent\n"
    assert "no program follows requests" in cantrip("loom", "thread", "shop", "--json").out


def test_a_send_loads_an_entity_whose_cantrip_no_worker_serves(start: Any, cantrip: Any, place: Path) -> None:
    (place / "notes.yaml").write_text(RECIPE.replace("keeper", "notes"))
    wait_for(start("worker", "keeper.yaml", "--name", "w1", *QUICK), "w1 works on")
    assert cantrip("invoke", "notes.yaml", "begin", "--name", "notes", "--quiet").out == "one\n"
    began = time.monotonic()
    assert cantrip("send", "notes", "continue", "--quiet").out == "one\n"
    assert time.monotonic() - began < 20


@pytest.mark.rule("N-78", "N-63")
def test_a_worker_runs_entities_until_a_signal_and_exits_with_0(start: Any, cantrip: Any) -> None:
    invoke()
    worker = start("worker", "keeper.yaml", "--name", "w1", "--release", "7", "--label", "disk=d", *QUICK)
    wait_for(worker, "w1 works on")
    assert cantrip("send", "notes", "go on", "--key", "k").out == "one\n"
    (node,) = cantrip("cluster", "ls", "--json").json
    assert (node["name"], node["state"], node["release"]) == ("w1", "living", "7")
    assert (node["labels"], node["serves"]) == ({"disk": "d"}, ["keeper"])
    assert cantrip("cluster", "where", "notes").out == "w1\n"
    assert cantrip("cluster", "stranded", "--json").json == []
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert cantrip("cluster", "ls", "--json").json == []


SLOW = """\
name: slow
crystal:
  scripted:
    - {tool_calls: [{gate: done, args: {answer: at last}}], delay: 60}
    - {tool_calls: [{gate: done, args: {answer: after another load}}], delay: 60}
circle:
  gates: [done]
  wards: [{max_turns: 10}]
"""


@pytest.mark.rule("N-78", "N-63")
def test_a_second_signal_stops_a_worker_that_still_drains(start: Any, place: Path) -> None:
    (place / "slow.yaml").write_text(SLOW)
    worker = start("worker", "slow.yaml", "--name", "w1", *QUICK)
    wait_for(worker, "w1 works on")

    async def submit() -> None:
        async with Runtime.open(LOOM) as runtime:
            submission = await runtime.submit("slow", "go")
            while not submission.has_begun:
                await anyio.sleep(0.05)

    anyio.run(submit)
    worker.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):  # its query takes a minute
        worker.wait(2)
    worker.send_signal(signal.SIGTERM)
    worker.wait(10)


@pytest.mark.rule("N-14")
def test_an_entity_that_brings_its_nodes_down_is_quarantined_until_it_is_freed(
    start: Any, cantrip: Any, place: Path
) -> None:
    (place / "slow.yaml").write_text(SLOW)

    async def submit() -> str:
        async with Runtime.open(LOOM) as runtime:
            return (await runtime.submit("slow", "go", key="job")).entity_id

    entity = ""

    def runs_it(name: str) -> bool:
        return bool(cantrip("cluster", "where", entity).out == f"{name}\n")

    for n in range(3):  # a beginning is no progress, and the others record nothing
        worker = start("worker", "slow.yaml", "--name", f"w{n}", *QUICK)
        wait_for(worker, f"w{n} works on")
        entity = entity or anyio.run(submit)
        wait_until(lambda name=f"w{n}": runs_it(name))
        worker.kill()
        worker.wait()
    wait_for(start("worker", "slow.yaml", "--name", "last", *QUICK), "last works on")
    wait_until(lambda: bool(cantrip("cluster", "stranded", "--json").json))
    (stranded,) = cantrip("cluster", "stranded", "--json").json
    assert stranded["entity_id"] == entity
    assert "quarantined" in stranded["why"]
    assert cantrip("cluster", "free", entity).code == 0
    wait_until(lambda: runs_it("last"))


@pytest.mark.rule("N-78")
def test_a_worker_that_is_process_1_drains_at_a_signal(start: Any, cantrip: Any) -> None:
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a namespace for processes")
    invoke()
    worker = start("worker", "keeper.yaml", "--name", "w1", *QUICK, before=alone)
    wait_for(worker, "w1 works on")
    inner = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text(encoding="ascii").split()
    assert cantrip("cluster", "ls", "--json").json[0]["state"] == "living"
    os.kill(int(inner[0]), signal.SIGTERM)
    assert worker.wait(20) == 0
    assert cantrip("cluster", "ls", "--json").json == []


@pytest.mark.rule("N-88")
def test_dead_nodes_are_listed_also_when_no_node_lives(start: Any, cantrip: Any) -> None:
    invoke()
    workers = [start("worker", "keeper.yaml", "--name", name, *QUICK) for name in ("w1", "w2")]
    for worker, name in zip(workers, ("w1", "w2"), strict=True):
        wait_for(worker, f"{name} works on")
    for killed in (1, 2):
        workers[killed - 1].kill()
        workers[killed - 1].wait()
        states = [(node["name"], node["state"]) for node in cantrip("cluster", "ls", "--json").json]
        assert states == [(f"w{n}", "dead" if n <= killed else "living") for n in (1, 2)]


@pytest.mark.rule("N-70")
def test_ls_warns_of_a_server_that_may_lose_records(start: Any, cantrip: Any) -> None:
    url = postgres.fresh()
    worker = start("worker", "keeper.yaml", "--name", "w1", "--loom", url, *QUICK)
    wait_for(worker, "w1 works on")
    said = cantrip("cluster", "ls", "--loom", url)
    assert "w1" in said.out
    assert "fsync is off" in said.err


@pytest.mark.rule("N-63", "N-88")
def test_a_worker_can_be_asked_to_drain_from_another_process(start: Any, cantrip: Any) -> None:
    invoke()
    worker = start("worker", "keeper.yaml", "--name", "w1", *QUICK)
    wait_for(worker, "w1 works on")
    assert cantrip("cluster", "drain", "w1").out == "w1 drains\n"
    assert worker.wait(20) == 0
    assert cantrip("cluster", "drain", "w1").code == 2
    assert "has no nodes" in cantrip("cluster", "ls").err


@pytest.mark.rule("N-78", "N-83")
def test_a_worker_answers_health_checks_and_has_a_page_of_metrics(start: Any, place: Path) -> None:
    invoke()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    worker = start("worker", "keeper.yaml", "--name", "w1", "--health", f"127.0.0.1:{port}", *QUICK)
    wait_for(worker, "w1 works on")
    for check in ("live", "ready"):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/{check}", timeout=10) as answer:
            assert answer.status == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert b"cantrip_node_capacity 200" in answer.read()


@pytest.mark.rule("N-78")
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (("--label", "x"), "KEY=VALUE"),
        (("--ttl", "1"), "four beats"),
        (("--capacity", "0"), "greater"),
        (("--health", "8080"), "expected HOST:PORT"),
        (("--health", "127.0.0.1:99999"), "a port from 0 to 65535"),
        (("--health", "192.0.2.1:8080"), "cannot listen there"),
        (("--queue", "reports:most=3"), "NAME[:max_running=N,per_node=N,max_waiting=N]"),
        (("--queue", "reports:per_node=0"), "a whole number >= 1, or None, got 0"),
        (("--queue", "a:per_node=1", "--queue", "a"), "each name once"),
    ],
)
def test_a_worker_reports_mistakes_in_its_options(cantrip: Any, wrong: tuple[str, ...], says: str) -> None:
    said = cantrip("worker", "recipe.yaml", *wrong)
    assert said.code == 2
    assert says in said.err


@pytest.mark.rule("N-50")
def test_a_queue_keeps_to_its_bound_while_a_worker_is_killed(start: Any, cantrip: Any, place: Path) -> None:
    answer = "    - {delay: 1, tool_calls: [{gate: done, args: {answer: one}}]}\n"
    head, _, _ = RECIPE.partition("    -")
    (place / "queued.yaml").write_text(head + 20 * answer + "circle:\n  gates: [done]\n  wards: [{max_turns: 10}]\n")
    given = ("worker", "queued.yaml", "--queue", "reports:max_running=3,per_node=2", *QUICK)
    workers = [start(*given, "--name", f"w{n}") for n in range(3)]
    for number, worker in enumerate(workers):
        wait_for(worker, f"w{number} works on")
    most = 0

    async def work() -> list[object]:
        nonlocal most
        async with Runtime.open(LOOM) as runtime:
            casts = [await runtime.submit("keeper", f"job {n}", queue="reports") for n in range(8)]
            ids, loom, is_killed = [cast.entity_id for cast in casts], runtime.loom, False
            while not all(loom.has_begun(one) and loom.is_over(one) for one in ids):
                running = [one for one in ids if loom.has_begun(one) and not loom.is_over(one)]
                most = max(most, len(running))
                if len(running) == 3 and not is_killed:
                    found = await runtime.cluster.where(running[0])
                    if found is not None:
                        workers[int(found.name[1])].kill()
                        is_killed = True
                await anyio.sleep(0.02)
            assert is_killed
            return [(await cast.episode()).result for cast in casts]

    assert anyio.run(work) == ["one"] * 8
    assert most == 3
    wait_until(lambda: not cantrip("cluster", "queues", "--json").json[0]["running"])
    (queue,) = cantrip("cluster", "queues", "--json").json
    bounds = {"max_running": 3, "per_node": 2, "max_waiting": None}
    assert queue == {"name": "reports", "waiting": 0, "running": 0, **bounds}
    assert "reports" in cantrip("cluster", "queues").out


@pytest.mark.rule("N-79")
def test_up_starts_workers_again_that_die_and_drains_all_at_a_signal(start: Any, cantrip: Any) -> None:
    invoke()
    both = start("up", "keeper.yaml", "--nodes", "2", *QUICK)
    pid = int(wait_for(both, "w1 is process").split()[-1])

    def living() -> int:
        return sum(node["state"] == "living" for node in cantrip("cluster", "ls", "--json").json)

    wait_until(lambda: living() == 2)
    os.kill(pid, signal.SIGKILL)
    wait_for(both, "w1 ended with -9")
    wait_until(lambda: living() == 2)
    both.send_signal(signal.SIGTERM)
    assert both.wait(30) == 0
    assert living() == 0


@pytest.mark.rule("N-79")
def test_up_keeps_the_other_workers_when_one_is_drained_and_ends_with_the_last(start: Any, cantrip: Any) -> None:
    invoke()
    both = start("up", "keeper.yaml", "--nodes", "2", *QUICK)
    wait_for(both, "w1 works on")
    wait_until(lambda: [node["name"] for node in cantrip("cluster", "ls", "--json").json] == ["w1", "w2"])
    assert cantrip("cluster", "drain", "w1").code == 0
    wait_for(both, "w1 was asked to drain, and has ended")
    assert [node["name"] for node in cantrip("cluster", "ls", "--json").json] == ["w2"]
    assert cantrip("cluster", "drain", "w2").code == 0
    assert both.wait(30) == 0


@pytest.mark.rule("N-79")
@pytest.mark.parametrize(
    ("loom", "why"), [("jsonl:loom.jsonl", "no worker can join"), ("sqlite:keeper.yaml/loom.db", "cannot open")]
)
def test_up_refuses_a_loom_that_no_worker_can_use_in_place_of_starting_workers_again(
    start: Any, loom: str, why: str
) -> None:
    refused = start("up", "keeper.yaml", "--loom", loom)
    _, told = refused.communicate(timeout=30)
    assert refused.returncode == 2
    assert why in told
    assert "is process" not in told


@pytest.mark.rule("N-50", "N-79")
def test_up_gives_its_queues_to_its_workers(start: Any, cantrip: Any) -> None:
    assert cantrip("up", "keeper.yaml", "--queue", "reports:x=1").code == 2
    invoke()
    said = cantrip("cluster", "queues")
    assert "has no queues: cantrip worker --queue" in said.out + said.err
    one = start("up", "keeper.yaml", "--nodes", "1", "--queue", "reports:max_running=4", *QUICK)
    wait_until(lambda: bool(cantrip("cluster", "queues", "--json").json))
    assert cantrip("cluster", "queues", "--json").json[0]["max_running"] == 4
    one.send_signal(signal.SIGHUP)  # its terminal is closed
    assert one.wait(30) == 0


@pytest.mark.rule("N-14", "N-60")
def test_commands_without_nodes_say_so(start: Any, cantrip: Any) -> None:
    invoke()
    worker = start("worker", "keeper.yaml", "--name", "w1", "--release", "41", *QUICK)
    wait_for(worker, "w1 works on")
    assert "is not in quarantine" in cantrip("cluster", "free", "notes").out
    said = cantrip("cluster", "release", "40")
    assert said.code != 0
    assert "has had the release '40'; known releases, oldest first: '41'" in said.err
    assert cantrip("cluster", "release", "41").code == 0
    worker.send_signal(signal.SIGHUP)  # its terminal is closed
    assert worker.wait(30) == 0


@pytest.mark.rule("N-10", "N-23", "N-26", "N-79")
def test_the_demo_loses_and_repeats_nothing(process: Any) -> None:
    said = process("demo", "cluster")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[0].startswith("3 workers are up")
    assert lines[1].startswith("180 orders are posted to 60 entities")
    assert lines[-1] == "180 of 180 orders were paid and recorded, each exactly once."


@pytest.mark.rule("N-80")
def test_a_manifest_is_printed_for_each_engine(cantrip: Any) -> None:
    for engine in ("kubernetes", "systemd", "compose", "ray"):
        said = cantrip("cluster", "manifest", engine, "keeper.yaml", "--release", "41")
        assert said.code == 0
        assert "keeper.yaml" in said.out
        assert "41" in said.out
    said = cantrip("cluster", "manifest", "nomad")
    assert said.code == 2
    assert "expected one of kubernetes, systemd, compose, ray" in said.err


@pytest.mark.rule("N-81")
def test_without_a_ray_cluster_up_says_so(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    said = start("up", "keeper.yaml", "--ray")
    assert "no Ray cluster answers there" in wait_for(said, "--ray auto")
    assert said.wait(20) == 2


def test_the_commands_that_look_at_a_cluster_only_read(cantrip: Any, place: Path) -> None:
    with Runtime.blocking("jsonl:loom.jsonl") as runtime:
        runtime.invoke(spell([done("a")]), "go", name="notes").episode()  # nothing is written after it
        look_at_cluster(cantrip, place)  # while another process writes
    with (place / "loom.jsonl").open("ab") as file:
        file.write(b'{"kind":"begun by a writer that was killed')
    look_at_cluster(cantrip, place)


def look_at_cluster(cantrip: Any, place: Path) -> None:
    """Run each command that looks at a cluster on a JSONL loom, and check its answer and that nothing is written."""
    before = (place / "loom.jsonl").read_bytes()
    answers = {"ls": [], "where notes": None, "stranded": [], "queues": []}
    for command, answer in answers.items():
        shown = cantrip("cluster", *command.split(), "--loom", "jsonl:loom.jsonl", "--json")
        assert (command, shown.code, shown.err, json.loads(shown.out)) == (command, 0, "", answer)
    assert cantrip("cluster", "where", "nobody", "--loom", "jsonl:loom.jsonl").code == 2
    assert (place / "loom.jsonl").read_bytes() == before
