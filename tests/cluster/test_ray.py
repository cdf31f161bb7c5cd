"""Workers over a real Ray cluster: a head and two nodes on this machine, whose processes are killed."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Runtime
from cantrip_actors.cluster.ray import Deployment, deploy
from tests.cluster.test_scaling import RECIPE
from tests.exhaustive import EXHAUSTIVE

pytestmark = [
    pytest.mark.rule("N-81"),
    pytest.mark.real_time,
    pytest.mark.skipif(not EXHAUSTIVE, reason="a Ray cluster takes half a minute to start: EXHAUSTIVE=1"),
]

PATIENCE = 90.0
MEMORY = 80 * 2**20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster whose nodes have a slot and a label each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    started = start_ray()
    ray.init(address=started.address, log_to_driver=False, logging_level="error")
    yield started
    ray.shutdown()
    started.shutdown()


def start_ray(tries: int = 3) -> Any:
    """Start a head and two nodes. Ray gives each of them 30 seconds, which a busy machine may exceed."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": True, "dashboard_port": 0}
    started = Cluster()
    try:
        started.add_node(**head)
        for zone in ("a", "b"):
            started.add_node(
                num_cpus=2, object_store_memory=MEMORY, resources={"slot": 2}, labels={"disk": "nfs1", "rack": zone}
            )
    except Exception as problem:
        started.shutdown()
        if tries == 1 or "timed out during startup" not in str(problem):
            raise
        return start_ray(tries - 1)
    return started


@pytest.fixture
def loom(tmp_path: Path) -> str:
    (tmp_path / "keeper.yaml").write_text(RECIPE)
    return f"sqlite:{tmp_path / 'loom.db'}"


@pytest.fixture
def deployment(cluster: Any, loom: str, tmp_path: Path) -> Iterator[Deployment]:
    options = ["--beat=0.5", "--ttl=4", "--quiet"]
    placing: Any = {"resources": {"slot": 1.0}, "labels": {"disk": "nfs1"}}
    with deploy(loom, [str(tmp_path / "keeper.yaml")], nodes=2, options=options, **placing) as deployed:
        wait_until(lambda: len(deployed.places()) == 2)
        yield deployed


def wait_until(is_true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.2)


def nodes_of(loom: str) -> list[Any]:
    async def work() -> list[Any]:
        async with Runtime.open(loom) as runtime:
            return [node for node in await runtime.cluster.nodes() if node.is_living]

    return anyio.run(work)


def is_gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def wanted() -> list[dict[str, float]]:
    """What Ray's autoscaler is asked for."""
    from ray.autoscaler._private.constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL
    from ray.experimental.internal_kv import _internal_kv_get

    text = _internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL)
    return [one.get("resources", one) for one in json.loads(text)]


def test_workers_are_spread_over_the_machines_and_have_their_labels(deployment: Deployment, loom: str) -> None:
    assert len({place.node for place in deployment.places()}) == 2
    wait_until(lambda: len(nodes_of(loom)) == 2)
    assert sorted(node.labels["rack"] for node in nodes_of(loom)) == ["a", "b"]


def test_ray_restarts_a_worker_whose_process_is_killed(deployment: Deployment, loom: str) -> None:
    before, other = deployment.places()
    os.kill(before.process, signal.SIGKILL)

    def is_back() -> bool:
        return {place.name for place in deployment.places() if place.process != before.process} == {
            before.name,
            other.name,
        }

    wait_until(is_back)
    wait_until(lambda: len(nodes_of(loom)) == 2)


def test_a_worker_ends_with_its_killed_actor_and_both_are_restarted(deployment: Deployment, loom: str) -> None:
    before, _ = deployment.places()
    os.kill(parent_of(before.process), signal.SIGKILL)
    wait_until(lambda: is_gone(before.process))
    wait_until(lambda: len(deployment.places()) == 2)
    wait_until(lambda: len(nodes_of(loom)) == 2)


def test_the_number_of_workers_and_the_request_for_machines_follow(deployment: Deployment, loom: str) -> None:
    deployment.scale(3)
    wait_until(lambda: len(deployment.places()) == 3)
    assert wanted() == [{"CPU": 1.0, "slot": 1.0}] * 3
    deployment.scale(1)
    assert len(deployment.places()) == 1
    assert wanted() == [{"CPU": 1.0, "slot": 1.0}]
    wait_until(lambda: len(nodes_of(loom)) == 1)


def test_a_worker_drained_from_outside_is_not_started_again(deployment: Deployment, loom: str) -> None:
    first = deployment.places()[0]

    async def drain() -> None:
        async with Runtime.open(loom) as runtime:
            await runtime.cluster.drain(first.name)

    wait_until(lambda: len(nodes_of(loom)) == 2)
    anyio.run(drain)
    wait_until(lambda: len(deployment.places()) == 1 and deployment.size == 1)
    assert is_gone(first.process)


def test_the_program_that_deploys_is_in_rays_list_of_jobs(deployment: Deployment, cluster: Any) -> None:
    from ray.util.state import list_actors, list_jobs

    here = cluster.address  # another program may run a cluster of its own on this machine
    assert any(job["status"] == "RUNNING" for job in list_jobs(here))
    assert sum(one["class_name"] == "WorkerProcess" and one["state"] == "ALIVE" for one in list_actors(here)) == 2
