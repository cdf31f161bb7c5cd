"""Workers over a Ray cluster: `deploy` places them, and Ray starts them again.

    with deploy("postgresql://loom@db/loom", ["desk.yaml"], nodes=3) as deployment:
        deployment.scale(5)

For each worker there is one Ray actor, spread over Ray's nodes, which runs one process, `cantrip worker`. If the
process, the actor or its machine dies, Ray starts the actor again, where there is room. Ray stores nothing and
transports nothing: the loom has the leases and the mail. So it does no harm if Ray notices a frozen machine late or
never.

The actors belong to the program that deploys, and end with it. Run that program as a job of Ray's, and it is in Ray's
list of jobs and in its dashboard: `ray job submit --working-dir . -- cantrip up desk.yaml --ray`.

Needs `pip install "cantrip-actors[ray]"`, here and on each machine of the Ray cluster.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

__all__ = ["Deployment", "Placed", "WorkerProcess", "deploy"]

LOOM: Final = "CANTRIP_LOOM"
KEYS: Final = ("CANTRIP_SNAPSHOT_KEY", "CANTRIP_SEAL_KEY")
"""Variables that each worker gets; the second is the path of a file, which each machine has."""

ANSWERS: Final = 30.0
"""Seconds in which a started actor has to report its place."""

_BEGIN: Final = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)  # PR_SET_PDEATHSIG: it drains when its actor dies
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit("its actor has ended")
from cantrip_actors.cli.main import main
main()
"""


class Placed(NamedTuple):
    """The place of a worker: its name, the id of Ray's node, the host, and the process."""

    name: str
    node: str
    host: str
    process: int


class WorkerProcess:
    """The content of a Ray actor: one worker process.

    If the process dies, so does the actor, and Ray starts both again. A worker that was asked to drain has ended, and
    its actor only waits to be removed.
    """

    def __init__(self, name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        import ray

        context = ray.get_runtime_context()
        labels = dict(context.get_node_labels() or {})
        options = [f"--label={key}={value}" for key, value in labels.items() if not key.startswith("ray.io/")]
        if zone := labels.get("ray.io/availability-zone"):
            options.append(f"--zone={zone}")
        command = [sys.executable, "-c", _BEGIN, str(os.getpid()), "worker", *arguments, f"--name={name}", *options]
        self._name = name
        self._node = context.get_node_id()
        self._process = subprocess.Popen(  # noqa: S603  # our own program
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, start_new_session=True
        )
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        if self._process.wait() != 0:
            os._exit(1)  # an actor that ends like this is one that Ray starts again

    def place(self) -> Placed | None:
        """Return where the worker runs; None if it has drained and ended."""
        if self._process.poll() is not None:
            return None
        return Placed(self._name, self._node, os.uname().nodename, self._process.pid)

    def drain(self) -> int:
        """Have the worker hand over its entities; return its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait()


class Deployment:
    """Workers over a Ray cluster. Leaving its `with` block drains them all."""

    def __init__(self, loom: str, arguments: Sequence[str], options: Mapping[str, Any], name: str) -> None:
        self._loom = loom
        self._arguments = tuple(arguments)
        self._options = dict(options)
        self._name = name
        self._actors: dict[str, Any] = {}
        self._number = 0

    @property
    def size(self) -> int:
        """The intended number of workers."""
        return len(self._actors)

    def scale(self, workers: int) -> None:
        """Change the number of workers: start more, or drain the newest. Ray's autoscaler gets a request for their
        resources.

        Blocks while workers drain.
        """
        import ray
        from ray.autoscaler.sdk import request_resources

        needs = [selector for selector in (self._options.get("label_selector"),) if selector]
        bundles: list[dict[str, float]] = [_bundle(self._options)] * workers
        request_resources(bundles=bundles, bundle_label_selectors=needs * workers or None)
        actor = ray.remote(WorkerProcess)
        while len(self._actors) < workers:
            self._number += 1
            name = f"{self._name}-{self._number}"
            environment = {key: os.environ[key] for key in KEYS if key in os.environ} | {LOOM: self._loom}
            self._actors[name] = actor.options(**self._options).remote(name, self._arguments, environment)
        extra = list(self._actors)[workers:]
        self._drain([self._actors.pop(name) for name in extra])

    def _drain(self, actors: Sequence[Any]) -> None:
        import ray

        waiting = [actor.drain.remote() for actor in actors]
        for actor, drained in zip(actors, waiting, strict=True):
            with contextlib.suppress(ray.exceptions.RayActorError):  # it died instead: others take over
                ray.get(drained)
            ray.kill(actor)

    def places(self) -> list[Placed]:
        """Return the places of the workers that answer now, without those whose actor waits for a machine.

        A worker that was drained by other means is removed.
        """
        import ray

        pending = {name: actor.place.remote() for name, actor in self._actors.items()}
        if pending:
            ray.wait(list(pending.values()), num_returns=len(pending), timeout=ANSWERS)
        placed = []
        for name, answer in pending.items():
            try:
                place = ray.get(answer, timeout=0)
            except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError):
                continue  # it waits for a machine, or is being started again
            if place is None:
                ray.kill(self._actors.pop(name))
            else:
                placed.append(place)
        return placed

    def drain(self) -> None:
        """Drain all workers, and withdraw the request to the autoscaler. Blocks until they have ended."""
        self.scale(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.drain()


def deploy(
    loom: str,
    recipes: Sequence[str] = (),
    *,
    nodes: int = 3,
    address: str | None = None,
    name: str = "cantrip",
    options: Sequence[str] = (),
    cpus: float = 1.0,
    resources: Mapping[str, float] | None = None,
    labels: Mapping[str, str] | None = None,
    working_dir: str | None = None,
) -> Deployment:
    """Start so many workers over a Ray cluster, and return the deployment.

    `recipes` and `options` are those of `cantrip worker`. Without `address`, the cluster is that of this program, or a
    new one on this machine. Each worker needs `cpus` and `resources` of a machine with these `labels` (Ray's label
    selectors); the machine's labels are the worker's. `working_dir` is uploaded to each machine, and recipes are files
    in it; without it they are files that each machine has. The snapshot key and the path of the seal key are taken from
    the environment.

    Raises ImportError without the extra `ray`, ValueError for an invalid number of workers.
    """
    if nodes < 0:
        raise ValueError(f"nodes: expected 0 or more, got {nodes}")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ImportError("workers over Ray need an extra: pip install 'cantrip-actors[ray]'") from error
    if not ray.is_initialized():
        environment = None if working_dir is None else {"working_dir": working_dir}
        ray.init(address, runtime_env=environment, log_to_driver=False, logging_level=logging.ERROR)
    in_job = working_dir is not None or bool(ray.get_runtime_context().runtime_env.get("working_dir"))
    files = [_name_recipe(recipe, is_uploaded=in_job) for recipe in recipes]
    placing: dict[str, Any] = {
        "num_cpus": cpus,
        "resources": dict(resources or {}),
        "max_restarts": -1,
        "max_concurrency": 4,  # `place` answers while `drain` waits
        "scheduling_strategy": "SPREAD",
    }
    if labels:
        placing["label_selector"] = dict(labels)
    deployment = Deployment(loom, [*files, *options], placing, name)
    deployment.scale(nodes)
    return deployment


def _name_recipe(recipe: str, *, is_uploaded: bool) -> str:
    """Return how an actor names a recipe: its directory is another one, unless it was uploaded."""
    path = Path(recipe)
    return recipe if is_uploaded or ":" in recipe or not path.exists() else str(path.resolve())


def _bundle(options: Mapping[str, Any]) -> dict[str, float]:
    return {"CPU": options["num_cpus"], **options["resources"]}
