"""Handlers for operators: metrics, actors, the overview, crash reports, and the dump of a stuck process."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

import anyio
from starlette.responses import Response

from cantrip_actors import LoomError, Runtime, RuntimeClosed
from cantrip_actors.http.calls import HttpCall, JsonAnswer
from cantrip_actors.http.health import CONTENT_TYPE
from cantrip_actors.http.problems import Problem
from cantrip_actors.http.supervision import row_of, rows_of, system_of, traceback_of
from cantrip_actors.observe import Telemetry
from cantrip_actors.user_code.threads import run_for_client


async def get_metrics(call: HttpCall) -> Response:
    """Return all metrics of the service in Prometheus' text format."""
    call.check_sees_all()
    telemetry = call.service.telemetry
    if telemetry is None:
        raise Problem(404, "metrics", "this service has no metrics")
    return Response(telemetry.prometheus(), headers={"content-type": CONTENT_TYPE})


async def get_actor(call: HttpCall) -> JsonAnswer:
    """Return an actor of the supervision tree, with the report of its last exit."""
    call.check_sees_all()
    system, path = call.runtime.inspect(), call.path["path"]
    node = next((actor for actor in system.tree.walk() if actor.path == path), None)
    if node is None:
        raise Problem(404, "unknown-actor", "no actor has this path now")
    report = call.runtime.redact(traceback_of(node.last_exit))
    return JsonAnswer({**row_of(node, system.at, call.runtime), "report": report})


async def get_system(call: HttpCall) -> JsonAnswer:
    """Return the service as it stands: a row for each actor, parents first; crystals, counters, loom and readers."""
    call.check_sees_all()
    system, service = call.runtime.inspect(), call.service
    shown = {**system_of(call.runtime, system), "items": list(rows_of(call.runtime, system).values())}
    shown["streams"]["http"] = service.readers
    return JsonAnswer(shown)


async def get_overview(call: HttpCall) -> JsonAnswer:
    """Return the entities, the open requests, and the state of the service, as `cantrip top` shows them."""
    call.check_sees_all()
    overview = await run_for_client(call.service.overview(call.runtime).look)
    telemetry = call.service.telemetry
    if telemetry is not None and call.token.tenant is None and call.token.allows("observe"):
        overview = {**overview, "live": _read_live(telemetry)}
    return JsonAnswer(overview)


def _read_live(telemetry: Telemetry) -> dict[str, Any]:
    """Return the metrics of the process: actors, restarts, the writer, crystals."""
    values = telemetry.counters.read_all()
    lag = telemetry.counters.read_histograms()["cantrip.loop.lag"].get(())
    actors: dict[str, dict[str, float]] = {}
    for (kind, state), count in values["cantrip.actors"].items():
        actors.setdefault(kind, {})[state] = count
    for (kind, stat), depth in values["cantrip.mailbox.depth"].items():
        actors.setdefault(kind, {})[f"mailbox_{stat}"] = depth
    for (kind,), count in values["cantrip.supervisor.restarts"].items():
        actors.setdefault(kind, {})["restarts"] = count
    crystals: dict[str, dict[str, float]] = {}
    for what in ("running", "waiting", "paused", "breaker"):
        for (name,), value in values.get(f"cantrip.crystal.{what}", {}).items():
            crystals.setdefault(name, {})[what] = value
    return {
        "restarts": sum(values["cantrip.supervisor.restarts"].values()),
        "crashes": sum(values["cantrip.supervisor.crashes"].values()),
        "backlog": sum(values["cantrip.loom.backlog"].values()),
        "lag": 0.0 if lag is None or not lag.count else round(lag.sum / lag.count, 4),
        "actors": actors,
        "crystals": crystals,
    }


async def list_crashes(call: HttpCall) -> JsonAnswer:
    """List the newest crash reports of the service."""
    call.check_sees_all()
    telemetry = call.service.telemetry
    return JsonAnswer({"items": [] if telemetry is None else list(telemetry.crashes)})


async def get_crash(call: HttpCall) -> JsonAnswer:
    """Return a crash report."""
    call.check_sees_all()
    telemetry, wanted = call.service.telemetry, call.path["id"]
    for report in () if telemetry is None else telemetry.crashes:
        if report["id"] == wanted:
            return JsonAnswer(report)
    raise Problem(404, "crash", "no crash report has this id, or it is too old")


@contextmanager
def dump_at_signal(runtime: Runtime, out: TextIO | None = None) -> Iterator[None]:
    """Write the tree of actors, the tasks and the stack of the event loop to standard error at SIGUSR2.

    The handler runs between two steps of the interpreter, so it answers while a gate blocks the loop. The code that it
    interrupts may be a gate's or an actor's, so the dump leaves out the parts that it cannot read or write.
    """

    def handle(_number: int, frame: FrameType | None) -> None:
        to = out or sys.stderr
        parts = [
            *_describe_state(runtime),
            "-- tasks",
            *_describe_tasks(),
            "-- the event loop is at",
            *traceback.format_stack(frame),
        ]
        text = "\n".join(part.rstrip("\n") for part in parts)
        # standard error may be closed, its reader gone, or the interrupted code in the middle of writing to it
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            print(runtime.redact(text), file=to, flush=True)

    before = signal.signal(signal.SIGUSR2, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, before)


def _describe_state(runtime: Runtime) -> list[str]:
    """Return the lines about the actors and the system, or the reason why they are missing."""
    try:
        shown = json.dumps(system_of(runtime, runtime.inspect()))
        return ["-- actors", runtime.dump(), *_describe_oldest_call(runtime), "-- system", shown]
    except (LoomError, RuntimeClosed) as error:
        return [f"-- no state: {error}"]


def _describe_oldest_call(runtime: Runtime) -> list[str]:
    """Return the lines about the call that an actor has had in hand for the longest time; none without a call."""
    busy = [(node.call_age, node) for node in runtime.inspect().tree.walk() if node.call_age is not None]
    if not busy:
        return []
    age, node = max(busy, key=lambda pair: pair[0])
    return ["-- the oldest call in hand", f"{node.path}: {node.call}, {age:.1f}s"]


def _describe_tasks() -> list[str]:
    try:
        return [f"{task.name or task.id}: {task.coro!r}" for task in anyio.get_running_tasks()]
    except RuntimeError:  # no event loop runs in this thread
        return []
