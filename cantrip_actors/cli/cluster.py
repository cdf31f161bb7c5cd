"""The commands for many machines: `cantrip worker`, `cantrip up` and `cantrip cluster`.

A worker is a plain process: systemd, Kubernetes or `cantrip up` starts it again when it dies. The loom has the rest.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from cantrip_actors.cli import output
from cantrip_actors.cli.command import (
    LOOM,
    Backend,
    Dependencies,
    Json,
    Loop,
    OfferedRecipes,
    Url,
    examples,
    import_extra,
    open_store,
    print_rows,
    report_errors,
    run_quietly,
)
from cantrip_actors.cli.sealed import seal_key
from cantrip_actors.redact.urls import render_url

if TYPE_CHECKING:
    from rich.text import Text

    from cantrip_actors import Node, Queue, Runtime
    from cantrip_actors.observe import Telemetry
    from cantrip_actors.runtime.nodes.cluster import ClusterReader

T = TypeVar("T")

app = typer.Typer(rich_markup_mode=None)
cluster = typer.Typer(
    name="cluster",
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Look at the nodes of a loom, drain one, choose a release.",
)
app.add_typer(cluster)

AGAIN = 1.0
"""Seconds after which a worker that died is started again."""

SNAPSHOT_KEY = "CANTRIP_SNAPSHOT_KEY"

CapacityOption = Annotated[int, typer.Option("--capacity", min=1, help="Root entities that may be at work at once.")]
ReleaseOption = Annotated[
    str, typer.Option("--release", help="The name of the deployed version; the newest one is preferred.")
]
QueueOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        metavar="NAME[:BOUND=N,...]",
        help="A queue, with max_running, per_node and max_waiting; repeat for more.",
    ),
]
Grace = Annotated[float, typer.Option("--grace", min=0, help="Seconds to hand entities over in, at a shutdown.")]
Beat = Annotated[float, typer.Option("--beat", min=0.01, help="Seconds between two renewals.")]
Ttl = Annotated[float, typer.Option("--ttl", min=0.04, help="Seconds of silence after which others take over.")]


@app.command(
    epilog=examples(
        "cantrip worker desk.yaml --loom postgresql://loom@db/loom --name w1 --release 41",
        "cantrip worker desk.yaml scout.yaml --capacity 50 --label disk=nfs1 --health 0.0.0.0:8080",
        "cantrip worker scout.yaml --queue reports:max_running=10,per_node=2",
    )
)
def worker(
    recipes: OfferedRecipes = None,
    loom: Url = LOOM,
    dependencies: Dependencies = None,
    name: Annotated[str | None, typer.Option("--name", help="For people; left out: this machine's.")] = None,
    capacity: CapacityOption = 200,
    release: ReleaseOption = "",
    zone: Annotated[str, typer.Option("--zone", help="Where it runs, for people.")] = "",
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="More about it; repeat for more.")
    ] = None,
    queue: QueueOptions = None,
    grace: Grace = 60.0,
    beat: Beat = 2.0,
    ttl: Ttl = 10.0,
    health: Annotated[
        str | None,
        typer.Option("--health", metavar="HOST:PORT", help="Answer /health/live, /health/ready and /metrics there."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Run entities of these cantrips as a node of the loom.

    It runs until SIGTERM, SIGHUP or ctrl-C.

    The first signal hands entities over to other nodes and exits with 0; a second one stops at once. Snapshots of
    sandboxes are sealed with the key in the variable CANTRIP_SNAPSHOT_KEY.
    """
    from cantrip_actors.runtime.nodes.node import list_ending_signals

    early: list[int] = []
    for number in set(list_ending_signals()) - {signal.SIGINT}:
        signal.signal(number, lambda number, _: early.append(number))  # until it serves; it must not raise
    with report_errors(json=False, loom=loom):
        import socket

        import anyio

        from cantrip_actors import Node
        from cantrip_actors.cli.cantrip_source import load_dependencies
        from cantrip_actors.cli.offered_cantrips import load_cantrips

        try:
            node = Node(
                name or socket.gethostname(),
                capacity=capacity,
                release=release,
                zone=zone,
                labels=dict(_parse_label(text) for text in label or ()),
                grace=grace,
                beat=beat,
                ttl=ttl,
            )
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        queues = _parse_queues(queue or ())
        offer: dict[str, Any] = {
            "cantrips": load_cantrips(loom, recipes or ()),
            "dependencies": load_dependencies(dependencies),
        }

        async def serve() -> None:
            await _run_worker(loom, offer, node, queues, health, early, quiet=quiet)

        anyio.run(serve, backend=backend.value)


async def _run_worker(
    loom: str,
    offer: Mapping[str, Any],
    node: Node,
    queues: list[Queue],
    health: str | None,
    early: list[int],
    *,
    quiet: bool,
) -> None:
    import anyio

    from cantrip_actors import Runtime
    from cantrip_actors.cli.errors import opening
    from cantrip_actors.observe import Telemetry

    is_traced = "opentelemetry" in sys.modules  # true under `opentelemetry-instrument`
    telemetry = Telemetry(otel=is_traced) if is_traced or health is not None else None
    key = os.environ.get(SNAPSHOT_KEY, "").encode() or None
    runtime_of_node = Runtime.open(
        loom,
        node=node,
        queues=queues,
        snapshot_key=key,
        seal_key=seal_key(),
        telemetry=telemetry,
        **offer,
    )
    async with AsyncExitStack() as stack:
        with opening():
            runtime = await stack.enter_async_context(runtime_of_node)
        beat = None
        if health is not None and telemetry is not None:
            beat = _answer_checks(runtime, telemetry, health, stack)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        if beat is not None:
            tasks.start_soon(beat)
        if not quiet:
            output.print_note(f"{node.name} works on {render_url(loom)}")
        sys.stderr.flush()
        await runtime.serve(early=early)
        tasks.cancel_scope.cancel()


def _answer_checks(
    runtime: Runtime, telemetry: Telemetry, health: str, stack: AsyncExitStack
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Answer health checks until `stack` is closed; return the function that has to run meanwhile. Raises
    CannotServe.
    """
    import_extra("cantrip_actors.http", "serve", "--health")
    from cantrip_actors.http.health import TICK, Pulse, health_server

    class NodePulse(Pulse):
        def ready(self) -> tuple[bool, dict[str, object]]:
            """Return whether the node takes work, and the checks."""
            is_ready, checks = super().ready()
            return is_ready and runtime.cluster.is_ready, {**checks, "node": runtime.cluster.is_ready}

    pulse = NodePulse()
    stack.enter_context(health_server(pulse, health, telemetry.prometheus))
    return partial(pulse.beat, runtime, TICK, partial(telemetry.counters.observe, "cantrip.loop.lag", ()))


def _parse_label(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not (key and sign):
        raise typer.BadParameter(f"expected KEY=VALUE, got {text!r}", param_hint="--label")
    return key, value


def _parse_queues(texts: Sequence[str]) -> list[Queue]:
    parsed = [_parse_queue(text) for text in texts]
    names = [queue.name for queue in parsed]
    if len(set(names)) < len(names):
        raise typer.BadParameter(f"expected each name once, got {', '.join(names)}", param_hint="--queue")
    return parsed


_NUMBER = re.compile(r"\d{1,18}")


def _parse_queue(text: str) -> Queue:
    from cantrip_actors import Queue

    name, _, bounds = text.partition(":")
    limits: dict[str, int] = {}
    for bound in bounds.split(",") if bounds else ():
        what, _, most = bound.partition("=")
        if what not in ("max_running", "per_node", "max_waiting") or what in limits or not _NUMBER.fullmatch(most):
            raise typer.BadParameter(
                f"expected NAME[:max_running=N,per_node=N,max_waiting=N], got {text!r}", param_hint="--queue"
            )
        limits[what] = int(most)
    try:
        return Queue(name, **limits)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--queue") from error


_ADDRESS = re.compile(r"auto|local|ray://.+|[\w.-]+:\d+")


class _Up(TyperCommand):
    """A command whose `--ray` means `--ray=auto` if no address follows."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        after = zip(args, [*args[1:], ""], strict=True)
        args = [
            "--ray=auto" if argument == "--ray" and not _ADDRESS.fullmatch(two) else argument for argument, two in after
        ]
        return super().parse_args(ctx, args)


@app.command(
    cls=_Up,
    epilog=examples(
        "cantrip up desk.yaml --nodes 3",
        "cantrip up desk.yaml --loom postgresql://localhost/loom",
        "cantrip up desk.yaml --ray --nodes 3 --max-nodes 10",
    ),
)
def up(
    recipes: OfferedRecipes = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="How many workers.")] = 3,
    loom: Url = LOOM,
    capacity: CapacityOption = 200,
    release: ReleaseOption = "",
    queue: QueueOptions = None,
    grace: Grace = 60.0,
    beat: Beat = 2.0,
    ttl: Ttl = 10.0,
    ray: Annotated[
        str | None,
        typer.Option("--ray", metavar="[ADDRESS]", help="Over a Ray cluster: auto, local, HOST:PORT or ray://…"),
    ] = None,
    max_nodes: Annotated[
        int | None, typer.Option("--max-nodes", min=1, help="With --ray: as many workers, if there is work for them.")
    ] = None,
) -> None:
    """Run several workers on this machine, to try a cluster.

    Ctrl-C drains them.

    A worker that dies is started again; the others resume its entities meanwhile. With --ray they run over a Ray
    cluster, where Ray starts them again.
    """
    options = [f"--{name}={value}" for name, value in (("capacity", capacity), ("grace", grace), ("beat", beat))]
    options += [f"--ttl={ttl}", f"--release={release}", *(f"--queue={text}" for text in queue or ())]
    with report_errors(json=False, loom=loom):
        _check_workers(loom, recipes or [], queue or [])
        if ray is not None:
            from cantrip_actors.cli.ray_cluster import run_over_ray

            return run_over_ray(loom, recipes or [], options, ray, capacity, nodes, max(nodes, max_nodes or nodes))
        _check_joins(loom)

    from cantrip_actors.runtime.nodes.node import list_ending_signals

    stopped: list[int] = []
    for number in list_ending_signals():
        signal.signal(number, lambda number, _: stopped.append(number))
    workers = {name: _start(name, loom, recipes or [], options) for name in (f"w{n + 1}" for n in range(nodes))}
    for name, process in workers.items():
        output.print_note(f"{name} is process {process.pid}")
    while workers and not stopped:
        time.sleep(0.1)
        for name, process in list(workers.items()):
            code = process.poll()
            if code == 0 and not stopped:
                output.print_note(f"{name} was asked to drain, and has ended; it is not started again")
                del workers[name]
            elif code is not None and not stopped:
                output.print_note(f"{name} ended with {code}; it is started again")
                time.sleep(AGAIN)
                workers[name] = _start(name, loom, recipes or [], options)
    if workers:
        output.print_note(f"{', '.join(workers)} drain; ctrl-C again stops them at once")
    sent = 0
    while any(process.poll() is None for process in workers.values()):
        if len(stopped) > sent:
            sent = len(stopped)
            for process in workers.values():
                process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    as_asked = (0, -signal.SIGTERM)  # a worker that had not begun is ended by the signal itself
    raise typer.Exit(0 if all(process.returncode in as_asked for process in workers.values()) else 1)


def _check_workers(loom: str, recipes: list[str], queues: list[str]) -> None:
    """Report a mistake in a recipe, or in an option of all workers, once and not once per worker."""
    from cantrip_actors.cli.offered_cantrips import load_cantrips

    load_cantrips(loom, recipes)
    _parse_queues(queues)


def _check_joins(loom: str) -> None:
    """Report a loom that no worker can use, once and not whenever a worker has ended for it."""
    with open_store(loom, seal_key=seal_key()) as store:
        if why := store.can_join():
            raise typer.BadParameter(f"no worker can join {render_url(loom)}: {why}", param_hint="--loom")


def _start(name: str, loom: str, recipes: list[str], options: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cantrip_actors.cli.main", "worker", *recipes, f"--name={name}", *options]
    environment = {**os.environ, "CANTRIP_LOOM": loom}  # not an option, which `ps` would show with its password
    return subprocess.Popen(  # noqa: S603  # our own program
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # ctrl-C is only for this process
    )


def _read(loom: str, read: Callable[[ClusterReader], T], *, as_json: bool) -> T:
    """Return what `read` returns about a loom that is opened for reading only, and report its errors."""
    with report_errors(json=as_json, loom=loom):
        import anyio

        from cantrip_actors.runtime.nodes.cluster import ClusterReader

        with open_store(loom, read_only=True, seal_key=seal_key() or False) as store:

            async def work() -> T:
                return read(ClusterReader.of_store(store))

            return anyio.run(work)


@cluster.command(epilog=examples("cantrip cluster ls", "cantrip cluster ls --json"))
def ls(loom: Url = LOOM, as_json: Json = False) -> None:
    """List the nodes: where they are, what they serve, how much they run. Dead ones are listed for a day."""
    nodes, risks = _read(loom, lambda reader: (reader.nodes(), reader.risks()), as_json=as_json)
    rows = [_build_row(node) for node in nodes]
    for risk in risks:
        output.print_note(f"warning: {risk}")
    print_rows(rows, _render_nodes(rows), f"{render_url(loom)} has no nodes: cantrip worker", as_json=as_json)


@cluster.command(epilog=examples("cantrip cluster where desk-17"))
def where(
    name: Annotated[str, typer.Argument(metavar="ENTITY", help="A name or an id.")],
    loom: Url = LOOM,
    as_json: Json = False,
) -> None:
    """Print the node that runs an entity."""
    node = _read(loom, lambda reader: reader.where(name), as_json=as_json)
    line = f"no node runs {name}" if node is None else node.name
    output.show(None if node is None else _build_row(node), [line], as_json=as_json)


@cluster.command(epilog=examples("cantrip cluster stranded --json"))
def stranded(loom: Url = LOOM, as_json: Json = False) -> None:
    """List the entities that have work and that no living process can run, and those in quarantine."""
    stranded_entities = _read(loom, lambda reader: reader.stranded(), as_json=as_json)
    rows = [entity._asdict() for entity in stranded_entities]
    print_rows(rows, _render_stranded(rows), "no entity is stranded", as_json=as_json)


@cluster.command(epilog=examples("cantrip cluster queues", "cantrip cluster queues --json"))
def queues(loom: Url = LOOM, as_json: Json = False) -> None:
    """List the queues of submissions: how much waits and runs, and their bounds."""
    shown = _read(loom, lambda reader: reader.queues(), as_json=as_json)
    rows = [queue._asdict() for queue in shown]
    print_rows(rows, _render_queues(rows), f"{render_url(loom)} has no queues: cantrip worker --queue", as_json=as_json)


@cluster.command(epilog=examples("cantrip cluster free desk-17"))
def free(
    name: Annotated[str, typer.Argument(metavar="ENTITY", help="A name or an id, as `cluster stranded` shows it.")],
    loom: Url = LOOM,
) -> None:
    """Lift the quarantine of an entity, so that a node runs it again."""
    was_quarantined = run_quietly(loom, lambda runtime: runtime.cluster.free(name), as_json=False)
    output.print_lines([f"{name} is free" if was_quarantined else f"{name} is not in quarantine"])


@cluster.command(epilog=examples("cantrip cluster drain w1"))
def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A name or an id.")],
    loom: Url = LOOM,
) -> None:
    """Ask a worker to hand its entities over and to exit; whatever runs it may start it again."""
    is_known = run_quietly(loom, lambda runtime: runtime.cluster.drain(node), as_json=False)
    if not is_known:
        output.print_note(f"error: no living node is called {node}")
        raise typer.Exit(2)
    output.print_lines([f"{node} drains"])


@cluster.command(epilog=examples("cantrip cluster manifest kubernetes desk.yaml", "cantrip cluster manifest systemd"))
def manifest(
    engine: Annotated[str, typer.Argument(metavar="ENGINE", help="kubernetes, systemd, compose or ray.")],
    recipes: OfferedRecipes = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="How many workers, at least.")] = 3,
    max_nodes: Annotated[int, typer.Option("--max-nodes", min=1, help="How many workers, at most.")] = 10,
    capacity: CapacityOption = 200,
    release: ReleaseOption = "1",
    grace: Grace = 60.0,
    image: Annotated[str, typer.Option("--image", help="The container image that has cantrip.")] = "cantrip:latest",
) -> None:
    """Print a file to start from, for whatever runs your processes."""
    from cantrip_actors.cluster.manifests import manifest as text_of

    try:
        text = text_of(
            engine,
            recipes or ["recipe.yaml"],
            nodes=nodes,
            most=max_nodes,
            capacity=capacity,
            release=release,
            grace=grace,
            image=image,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    output.print_lines(text.rstrip("\n").split("\n"))


@cluster.command("release", epilog=examples("cantrip cluster release 40"))
def release_(
    release: Annotated[str, typer.Argument(metavar="RELEASE", help="The release to prefer from now on.")],
    loom: Url = LOOM,
) -> None:
    """Make a release the newest one: idle entities move to it with their next intents. This is how to roll back."""
    run_quietly(loom, lambda runtime: runtime.cluster.use_release(release), as_json=False)
    output.print_lines([f"{release} is the newest release"])


def _build_row(node: Any) -> dict[str, Any]:
    state = "dead" if not node.is_living else "draining" if node.is_draining else "living"
    return {"name": node.name, "state": state, **node._asdict()}


def _render_nodes(rows: list[dict[str, Any]]) -> Iterator[Text]:
    from rich.text import Text

    from cantrip_actors.cli.output import one_line

    for at, row in enumerate(rows):
        if at == 0:
            yield Text(f"{'NODE':<20}{'STATE':<10}{'BUSY':<12}{'RELEASE':<16}{'ZONE':<10}SERVES", "dim")
        style = {"dead": "red", "draining": "yellow"}.get(row["state"], "green")
        line = Text(end="").append(f"{one_line(row['name'], 19):<20}", "bold").append(f"{row['state']:<10}", style)
        busy = f"{row['busy']}/{row['capacity']}"
        line.append(f"{busy:<12}{one_line(row['release'], 15):<16}{one_line(row['zone'], 9):<10}")
        line.append(one_line(", ".join(row["serves"]), 60))
        yield line


def _render_queues(rows: list[dict[str, Any]]) -> Iterator[Text]:
    from rich.text import Text

    from cantrip_actors.cli.output import one_line

    bounds = ("max_running", "per_node", "max_waiting")
    for at, row in enumerate(rows):
        if at == 0:
            columns = f"{'WAITING':<10}{'RUNNING':<10}{'MAX RUNNING':<13}{'PER NODE':<10}MAX WAITING"
            yield Text(f"{'QUEUE':<20}{columns}", "dim")
        line = Text(end="").append(f"{one_line(row['name'], 19):<20}", "bold")
        most, each, waiting = ("-" if row[bound] is None else str(row[bound]) for bound in bounds)
        yield line.append(f"{row['waiting']:<10}{row['running']:<10}{most:<13}{each:<10}{waiting}")


def _render_stranded(rows: list[dict[str, Any]]) -> Iterator[Text]:
    from rich.text import Text

    for row in rows:
        line = Text(end="").append(row["entity_id"], "bold")
        line.append(f" {row['name'] or ''} of {row['cantrip_name'] or row['cantrip_id']}: {row['why']}")
        yield line
