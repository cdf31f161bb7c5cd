"""Run a supervision scenario on `supervisors`, and trace it in the referee's format (`../shared/otp/README.md`).

    python -m conformance otp SCENARIO.json     (or - for standard input; --backend trio)

The scenario's words are translated into the package's public API and nothing else; `oracle.py` next to the README does
the same with Erlang's `supervisor`, and the two traces must not differ. Time is virtual: a child that is killed after
five seconds costs no real time.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from supervisors import (
    Actor,
    ActorRef,
    ActorSystem,
    AlreadyPresent,
    AlreadyStarted,
    ChildNotFound,
    ChildRestarting,
    ChildRunning,
    ChildSpec,
    Crash,
    Died,
    DynamicSupervisor,
    ExitReason,
    Ignore,
    Killed,
    Normal,
    NotRunning,
    Shutdown,
    ShuttingDown,
    SpecError,
    Stop,
    Supervisor,
    SupervisorRef,
    SupervisorsError,
)
from supervisors.events import Event, Exited
from supervisors.inspect import build_tree
from supervisors.testing import virtual

Node = dict[str, Any]
Row = dict[str, Any]


class Refused(Exception):
    """The exception of a worker's failing start."""


def word(reason: ExitReason) -> str:
    """Return a reason in the form that a monitor reports."""
    match reason:
        case Normal():
            return "normal"
        case Shutdown():
            return "shutdown"
        case Killed():
            return "killed"
        case Crash():
            return "crash"


class Scenario:
    """One run: the tree, its actors by name, and the events since the last step."""

    def __init__(self, tree: Node, system: ActorSystem) -> None:
        self.tree = tree
        self.system = system
        self.events: list[list[str]] = []
        self.workers: dict[str, ActorRef] = {}  # the latest worker of each id
        self.ids: dict[ActorRef, str] = {}
        self.supervisors: dict[str, SupervisorRef] = {}
        self.starts: dict[str, int] = {}

    # --- the tree ---------------------------------------------------------------------------------------------------

    def supervisor(self, id: str, node: Node) -> Supervisor | DynamicSupervisor:
        """Return a new supervisor for this node."""
        flags = {"max_restarts": node.get("max_restarts", 1), "period": node.get("period", 5)}
        if node.get("strategy") == "dynamic":
            if node.get("auto_shutdown", "never") != "never":
                raise SpecError("auto_shutdown", "is not for a dynamic supervisor (OTP 25 still takes it)")
            template = {**node["template"], "significant": False}  # the referee leaves it out too
            child_spec: ChildSpec[Actor] = ChildSpec("template", self.worker, **self._options(template))
            dynamic = _Dynamic(child_spec, **flags)
            dynamic.begin = self._note_supervisor(id)
            return dynamic
        static = _Static(
            [self.spec(child) for child in node.get("children", [])],
            strategy=node.get("strategy", "one_for_one"),
            auto_shutdown=node.get("auto_shutdown", "never"),
            **flags,
        )
        static.begin = self._note_supervisor(id)
        return static

    def _note_supervisor(self, id: str) -> Callable[[SupervisorRef], None]:
        def note(ref: SupervisorRef) -> None:
            self.supervisors[id] = ref

        return note

    def spec(self, node: Node) -> ChildSpec[Any]:
        """Return the spec of a child of a static supervisor."""
        id, options = node["id"], self._options(node)
        if node.get("type") == "supervisor":
            return ChildSpec(id, lambda: self.supervisor(id, node), type="supervisor", **options)
        return ChildSpec(id, lambda: self.worker(node), **options)

    def _options(self, node: Node) -> dict[str, Any]:
        shutdown = node.get("shutdown")
        options: dict[str, Any] = {
            "restart": node.get("restart", "permanent"),
            "significant": node.get("significant", False),
        }
        if isinstance(shutdown, str):
            options["shutdown"] = {"brutal_kill": "kill", "infinity": math.inf}[shutdown]
        elif shutdown is not None:
            options["shutdown"] = shutdown / 1000
        return options

    def worker(self, node: Node) -> Actor:
        """Return the worker of the next start: as the scenario says, whose last word applies to all further starts."""
        id, starts = node["id"], node.get("starts", ["ok"])
        self.starts[id] = count = self.starts.get(id, 0) + 1
        match starts[min(count, len(starts)) - 1]:
            case "error":
                self.events.append(["start_error", id])
                raise Refused(id)
            case "ignore":
                self.events.append(["start_ignore", id])
                raise Ignore
        return _Worker(self, id, obeys=node.get("on_stop", "prompt") == "prompt")

    def note(self, event: Event) -> None:
        """Note the end of a worker; this is a sink."""
        if isinstance(event, Exited) and event.ref in self.ids:
            self.events.append(["stop", self.ids[event.ref], word(event.reason)])

    # --- the steps --------------------------------------------------------------------------------------------------

    async def step(self, step: Node) -> Any:
        """Carry out a step, and return the trace's `result`."""
        match step:
            case {"op": "exit", "id": id, "reason": reason}:
                return self._exit(id, reason)
            case {"op": "sleep", "ms": ms}:
                await anyio.sleep(ms / 1000)
                return "ok"
        name = step.get("supervisor", "root")
        supervisor = self.supervisors.get(name)
        if supervisor is None or not supervisor.alive:
            return "noproc"
        try:
            return await self._ask(name, supervisor, step)
        except NotRunning:
            return "noproc"
        except (ShuttingDown, Died):
            return ["supervisor_exit", word(await supervisor.exited())]
        except SupervisorsError as refusal:
            return ["error", _REFUSALS.get(type(refusal), "start_failed")]

    def _exit(self, id: str, reason: str) -> str:
        ref = self.workers.get(id)
        if ref is None or not ref.alive:
            return "not_running"
        if reason == "kill":
            ref.kill()
        else:
            ref.cast(reason)
        return "ok"

    async def _ask(self, name: str, supervisor: SupervisorRef, step: Node) -> Any:
        is_dynamic = self._is_dynamic(name)
        op = step["op"]
        if op in ("which_children", "count_children"):
            return await self._list(supervisor, op, is_dynamic=is_dynamic)
        if op == "stop":
            return await self._stop(name, supervisor)
        if op == "start_child":
            return _start_result(
                await supervisor.start_child(step["child"] if is_dynamic else self.spec(step["child"]))
            )
        if op == "restart_child":
            return _start_result(await supervisor.restart_child(step["id"]))
        if op == "delete_child":
            await supervisor.delete_child(step["id"])
            return "ok"
        if op == "terminate_child":
            await supervisor.terminate_child(self._running(step["id"]) if is_dynamic else step["id"])
            return "ok"
        raise ValueError(f"unknown op: {op!r}")

    def _running(self, id: str) -> ActorRef:
        """Return the ref of a running worker; children of a dynamic supervisor are named by their process."""
        ref = self.workers.get(id)
        if ref is None or not ref.alive:
            raise ChildNotFound(id)
        return ref

    async def _list(self, supervisor: SupervisorRef, op: str, *, is_dynamic: bool) -> Any:
        if op == "count_children":
            counts = await supervisor.count_children()
            return [[key, getattr(counts, key)] for key in ("active", "specs", "supervisors", "workers")]
        names = {"running": "running", "restarting": "restarting", "stopped": "undefined"}
        children = await supervisor.which_children()
        return [["undefined" if is_dynamic else child.id, names[child.state]] for child in children]

    async def _stop(self, name: str, supervisor: SupervisorRef) -> str:
        # Erlang's supervisor accepts an exit signal from its parent only, and the referee is the parent of the root
        # only.
        if name != "root":
            return "timeout"
        supervisor.exit()
        with anyio.move_on_after(5):
            return word(await supervisor.exited())
        return "timeout"

    def _is_dynamic(self, name: str) -> bool:
        node = _find(self.tree, name)
        return node is not None and node.get("strategy") == "dynamic"

    async def settle(self) -> None:
        """Let all work finish in the referee's way: ask each supervisor a question, several times."""
        for _ in range(4):
            await anyio.sleep(0.004)
            for supervisor in list(self.supervisors.values()):
                await _await_answer(supervisor)

    def is_busy(self) -> bool:
        """Whether a supervisor is restarting or stopping a child."""
        return any(node.state in ("restarting", "ending") for node in build_tree(self.system).walk())

    def row(self, number: int, result: Any) -> Row:
        """Return a line of the trace."""
        events, self.events = self.events, []
        root = self.supervisors.get("root")
        return {"step": number, "events": events, "result": result, "alive": root is not None and root.alive}


_REFUSALS: dict[type[SupervisorsError], str] = {
    AlreadyStarted: "already_started",
    AlreadyPresent: "already_present",
    ChildNotFound: "not_found",
    ChildRunning: "running",
    ChildRestarting: "restarting",
}


async def _await_answer(supervisor: SupervisorRef) -> None:
    """Wait until a supervisor has finished its work: it is up again, or gone."""
    while True:
        try:
            await supervisor.count_children()
        except ShuttingDown:  # Erlang's supervisor would answer after its restart, or never
            await anyio.sleep(0.001)
        except SupervisorsError:
            return
        else:
            return


def _start_result(ref: ActorRef) -> str:
    return "ok" if ref.alive else "ignored"


class _Static(Supervisor):
    begin: Callable[[SupervisorRef], None]

    async def init(self) -> None:
        await super().init()
        self.begin(self.ref)


class _Dynamic(DynamicSupervisor):
    begin: Callable[[SupervisorRef], None]

    async def init(self) -> None:
        self.begin(self.ref)


class _Worker(Actor):
    """A worker that ends on command, and obeys its supervisor or does not."""

    def __init__(self, scenario: Scenario, id: str, *, obeys: bool) -> None:
        self.scenario = scenario
        self.id = id
        self.obeys = obeys
        self.leaving = False

    async def init(self) -> None:
        self.scenario.workers[self.id] = self.ref
        self.scenario.ids[self.ref] = self.id
        self.scenario.events.append(["start", self.id])

    async def handle_cast(self, message: str) -> None:
        self.leaving = True
        match message:
            case "normal":
                raise Stop
            case "shutdown":
                raise Stop(Shutdown())
            case _:
                raise RuntimeError(message)

    async def terminate(self, reason: ExitReason) -> None:  # noqa: ARG002 - the actor's interface
        if not self.obeys and not self.leaving:
            await anyio.sleep_forever()


def _find(node: Node, name: str, here: str = "root") -> Node | None:
    if here == name:
        return node
    for child in node.get("children", []):
        if child.get("type") == "supervisor" and (hit := _find(child, name, child["id"])):
            return hit
    return None


async def trace(scenario: Node, *, only_sure: bool = False) -> list[Row]:
    """Trace a scenario on the running event loop, which should be a virtual one.

    Args:
        scenario: in the format of the referee.
        only_sure: stop before a step that ends a child while another child is being restarted or stopped: the order of
            these two is not defined, and the format excludes such steps.
    """
    async with ActorSystem("system", reports=None) as system:
        run = Scenario(scenario["tree"], system)
        system.sinks.append(run.note)
        result: Any = "ok"
        try:
            await system.start(ChildSpec("root", lambda: run.supervisor("root", run.tree), restart="temporary"))
        except SupervisorsError as failure:
            reason = getattr(failure, "reason", None)
            result = ["error", word(reason) if isinstance(reason, Shutdown) else "failed"]
        await run.settle()
        rows = [run.row(0, result)]
        for number, step in enumerate(scenario["steps"], 1):
            if only_sure and step["op"] == "exit" and run.is_busy():
                break
            result = await run.step(step)
            await run.settle()
            rows.append(run.row(number, result))
    return rows


def run(scenario: Node, backend: str = "asyncio", *, only_sure: bool = False) -> list[Row]:
    """Return the trace of a scenario, in virtual time; see `trace`."""
    name, options = virtual(backend)
    return anyio.run(partial(trace, scenario, only_sure=only_sure), backend=name, backend_options=options)


def main(argv: list[str]) -> int:
    """`python -m conformance otp`."""
    parser = argparse.ArgumentParser("conformance otp", description=__doc__.splitlines()[0])
    parser.add_argument("scenario", help="a JSON file, or - for standard input")
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    options = parser.parse_args(argv)
    text = sys.stdin.read() if options.scenario == "-" else Path(options.scenario).read_text(encoding="utf-8")
    for row in run(json.loads(text), options.backend):
        print(json.dumps(row))
    return 0
