"""`cantrip up --ray`: keep workers running over a Ray cluster, as many as there is work for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cantrip_actors.cli import output
from cantrip_actors.cli.sealed import seal_key

if TYPE_CHECKING:
    from cantrip_actors import Runtime
    from cantrip_actors.cluster.ray import Deployment

LOOK = 5.0
"""Seconds between two readings of the backlog."""


def run_over_ray(
    loom: str, recipes: Sequence[str], options: Sequence[str], address: str, capacity: int, nodes: int, most: int
) -> None:
    """Run workers until ctrl-C, SIGTERM or SIGHUP, which drains them. Raises InvalidCantrip without the extra `ray`."""
    import anyio

    from cantrip_actors import InvalidCantrip, Runtime
    from cantrip_actors.cluster.ray import deploy
    from cantrip_actors.runtime.nodes.node import cancel_at_signal

    where = None if address == "local" else address
    try:
        deployment = deploy(loom, recipes, nodes=nodes, address=where, options=options)
    except ImportError as error:
        raise InvalidCantrip(str(error)) from error
    except ConnectionError as error:
        raise InvalidCantrip(f"--ray {address}: no Ray cluster answers there: {error}") from error

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_at_signal, tasks.cancel_scope)
            async with Runtime.open(loom, seal_key=seal_key()) as runtime:
                await _follow(runtime, deployment, capacity, nodes, most)

    with deployment:
        anyio.run(work)


async def _follow(runtime: Runtime, deployment: Deployment, capacity: int, nodes: int, most: int) -> None:
    """Watch the backlog, and keep as many workers as it needs."""
    import anyio

    from cantrip_actors import LoomError
    from cantrip_actors.cluster.scaling import FleetSize, advance
    from cantrip_actors.redact.logs import get_logger

    log, size, seen = get_logger("cantrip_actors.cluster"), FleetSize(nodes), set[tuple[str, int]]()
    while True:
        places = await anyio.to_thread.run_sync(deployment.places)
        for place in places:
            if (place.name, place.process) not in seen:
                seen.add((place.name, place.process))
                output.print_note(f"{place.name} is process {place.process} on {place.host}")
        try:
            work = await runtime.cluster.backlog()
        except LoomError as error:  # a server that is away comes back
            log.warning("the backlog cannot be read", error=str(error))
        else:
            size = advance(size, work, capacity, nodes, most)
            if size.workers != deployment.size:
                output.print_note(f"{work} entities have work: {size.workers} workers")
                await anyio.to_thread.run_sync(deployment.scale, size.workers)
        await anyio.sleep(LOOK)
