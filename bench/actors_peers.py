"""The peers of `python -m bench actors`: the same measures, each in its subject's own idiom.

Raw asyncio and trio are the floor: a task, a deque, and the loop's own way to wake a task; no supervision, no errors,
no scope. Their restart is a task that is woken and ends; its last step makes the next one, which reports that it is up;
plus one iteration of the loop, the least that a question to a supervisor takes.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.actors_load import CALLS, CASTS, IDLE, IN_A_ROW, RESTARTS, STOPPED, Figures
from bench.processes import resident


def measure(subject: str, what: str) -> Figures:
    """Measure one figure; empty if the subject lacks the feature."""
    match subject:
        case "raw asyncio":
            return asyncio.run(_measure_asyncio(what))
        case "raw trio":
            import trio

            figures: Figures = trio.run(_measure_trio, what)
            return figures
        case "pykka":
            return _measure_pykka(what)
        case "xoscar":
            return asyncio.run(_measure_xoscar(what))
        case "erlang":
            return _measure_erlang(what)
    raise ValueError(subject)


# --- asyncio
# ----------------------------------------------------------------------------------------------------------


class _Box:
    __slots__ = ("items", "waiter")

    def __init__(self) -> None:
        self.items: collections.deque[Any] = collections.deque()
        self.waiter: asyncio.Future[None] | None = None

    def put(self, item: Any) -> None:
        self.items.append(item)
        waiter = self.waiter
        if waiter is not None:
            self.waiter = None
            if not waiter.done():
                waiter.set_result(None)

    async def get(self) -> Any:
        while not self.items:
            self.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None
        return self.items.popleft()


async def _run_asyncio_echo(box: _Box) -> None:
    while True:
        message, future = await box.get()
        if future is not None:
            future.set_result(message)


async def _run_asyncio_ping(mine: _Box, other: _Box) -> None:
    while n := await mine.get():
        other.put(n - 1)


async def _measure_asyncio(what: str) -> Figures:
    loop, box = asyncio.get_running_loop(), _Box()
    match what:
        case "call":
            task = asyncio.create_task(_run_asyncio_echo(box))
            began = time.perf_counter()
            for n in range(CALLS):
                future: asyncio.Future[Any] = loop.create_future()
                box.put((n, future))
                await future
            took = time.perf_counter() - began
            task.cancel()
            return {"call /s": CALLS / took}
        case "ping":
            other = _Box()
            tasks = [asyncio.create_task(_run_asyncio_ping(*pair)) for pair in ((box, other), (other, box))]
            began = time.perf_counter()
            box.put(2 * CALLS)
            await tasks[0]
            tasks[1].cancel()
            return {"ping /s": CALLS / (time.perf_counter() - began)}
        case "cast":
            task = asyncio.create_task(_run_asyncio_echo(box))
            began = time.perf_counter()
            for n in range(CASTS):
                box.put((n, None))
            box.put((None, future := loop.create_future()))
            await future
            took = time.perf_counter() - began
            task.cancel()
            return {"cast /s": CASTS / took}
        case "idle":
            memory, began = resident(), time.perf_counter()
            idle = [asyncio.create_task(_run_asyncio_echo(_Box())) for _ in range(IDLE)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            figures = {
                "idle up us": (time.perf_counter() - began) / IDLE * 1e6,
                "idle bytes": (resident() - memory) / IDLE,
            }
            began = time.perf_counter()
            for task in idle:
                task.cancel()
            await asyncio.gather(*idle, return_exceptions=True)
            return figures | {"idle down us": (time.perf_counter() - began) / IDLE * 1e6}
        case "restart":
            return {
                f"restart us ({how})": await _measure_asyncio_restarts(crash=how == "crash")
                for how in ("kill", "crash")
            }
    return {}


async def _measure_asyncio_restarts(*, crash: bool) -> float:
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    wake, up, more = loop.create_future(), loop.create_future(), True
    tasks: set[asyncio.Task[None]] = set()

    def begin() -> None:
        tasks.add(loop.create_task(life(), name="a", context=context.copy()))

    async def life() -> None:
        nonlocal wake
        try:
            wake = loop.create_future()
            up.set_result(None)
            await wake
            if crash:
                raise ValueError("boom")
        except ValueError:
            pass
        finally:
            tasks.clear()
            if more:
                begin()

    begin()
    await up
    began = time.perf_counter()
    for _ in range(RESTARTS):
        up = loop.create_future()
        wake.set_result(None)
        await up
        await asyncio.sleep(0)
    took = time.perf_counter() - began
    more = False
    wake.set_result(None)
    await asyncio.sleep(0)
    return took / RESTARTS * 1e6


# --- trio
# -------------------------------------------------------------------------------------------------------------


async def _measure_trio(what: str) -> Figures:  # noqa: C901 - one case a measure
    import trio
    from trio.lowlevel import Abort, current_task, reschedule, wait_task_rescheduled

    class Box:
        def __init__(self) -> None:
            self.items: collections.deque[Any] = collections.deque()
            self.task: Any = None

        def put(self, item: Any) -> None:
            self.items.append(item)
            if self.task is not None:
                task, self.task = self.task, None
                reschedule(task)

        def leave(self, _: object) -> Abort:
            self.task = None
            return Abort.SUCCEEDED

        async def get(self) -> Any:
            while not self.items:
                self.task = current_task()
                await wait_task_rescheduled(self.leave)
            return self.items.popleft()

    async def echo(box: Box) -> None:
        while True:
            message, reply = await box.get()
            if reply is not None:
                reply.put(message)

    async def ping(mine: Box, other: Box) -> None:
        while n := await mine.get():
            other.put(n - 1)
        nursery.cancel_scope.cancel()

    box, reply = Box(), Box()
    figures: Figures = {}
    began = 0.0
    async with trio.open_nursery() as nursery:
        match what:
            case "call" | "cast":
                nursery.start_soon(echo, box)
                began = time.perf_counter()
                for n in range(CALLS if what == "call" else CASTS):
                    if what == "call":
                        box.put((n, reply))
                        await reply.get()
                    else:
                        box.put((n, None))
                box.put((None, reply))
                await reply.get()
                figures = {f"{what} /s": (CALLS if what == "call" else CASTS) / (time.perf_counter() - began)}
                nursery.cancel_scope.cancel()
            case "ping":
                began = time.perf_counter()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ping, box, reply)
                    nursery.start_soon(ping, reply, box)
                    box.put(2 * CALLS)
                figures = {"ping /s": CALLS / (time.perf_counter() - began)}
            case "restart":
                for how in ("kill", "crash"):
                    figures[f"restart us ({how})"] = await _measure_trio_restarts(nursery, crash=how == "crash")
            case "idle":
                memory, began = resident(), time.perf_counter()
                for _ in range(IDLE):
                    nursery.start_soon(echo, Box())
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
                up = time.perf_counter() - began
                figures = {"idle up us": up / IDLE * 1e6, "idle bytes": (resident() - memory) / IDLE}
                began = time.perf_counter()
                nursery.cancel_scope.cancel()
    if what == "idle":
        figures["idle down us"] = (time.perf_counter() - began) / IDLE * 1e6
    return figures


async def _measure_trio_restarts(nursery: Any, *, crash: bool) -> float:
    import trio
    from trio.lowlevel import Abort, current_task, reschedule, wait_task_rescheduled

    context = contextvars.copy_context()
    user, child, more = current_task(), current_task(), True

    def refuse(_: object) -> Abort:
        return Abort.FAILED

    def begin() -> None:
        context.run(nursery.start_soon, life)

    async def life() -> None:
        nonlocal child
        try:
            child = current_task()
            reschedule(user)
            await wait_task_rescheduled(refuse)
            if crash:
                raise ValueError("boom")
        except ValueError:
            pass
        finally:
            if more:
                begin()

    begin()
    await wait_task_rescheduled(refuse)
    began = time.perf_counter()
    for _ in range(RESTARTS):
        reschedule(child)
        await wait_task_rescheduled(refuse)
        await trio.lowlevel.checkpoint()
    took = time.perf_counter() - began
    more = False
    reschedule(child)
    return took / RESTARTS * 1e6


# --- Pykka and xoscar
# -------------------------------------------------------------------------------------------------


def _measure_pykka(what: str) -> Figures:
    import pykka  # type: ignore[import-not-found,unused-ignore]

    class Echo(pykka.ThreadingActor):  # type: ignore[misc,unused-ignore]
        def on_receive(self, message: Any) -> Any:
            return message

    ref = Echo.start()
    try:
        if what == "call":
            began = time.perf_counter()
            for n in range(CALLS):
                ref.ask(n)
            return {"call /s": CALLS / (time.perf_counter() - began)}
        if what == "cast":
            began = time.perf_counter()
            for n in range(CASTS):
                ref.tell(n)
            ref.ask(None)
            return {"cast /s": CASTS / (time.perf_counter() - began)}
        if what == "idle":  # a thread each: a hundredth of the number
            few = IDLE // 100
            memory, began = resident(), time.perf_counter()
            refs = [Echo.start() for _ in range(few)]
            figures = {
                "idle up us": (time.perf_counter() - began) / few * 1e6,
                "idle bytes": (resident() - memory) / few,
            }
            began = time.perf_counter()
            for actor_ref in refs:
                actor_ref.stop()
            return figures | {"idle down us": (time.perf_counter() - began) / few * 1e6}
        return {}
    finally:
        pykka.ActorRegistry.stop_all()


async def _measure_xoscar(what: str) -> Figures:
    import xoscar  # type: ignore[import-untyped,import-not-found,unused-ignore]

    class Echo(xoscar.Actor):  # type: ignore[misc,unused-ignore]
        async def echo(self, message: Any) -> Any:
            return message

    pool = await xoscar.create_actor_pool("127.0.0.1:0", n_process=0)
    async with pool:
        address = pool.external_address
        ref = await xoscar.create_actor(Echo, address=address)
        if what == "call":
            calls = CALLS // 10
            began = time.perf_counter()
            for n in range(calls):
                await ref.echo(n)
            return {"call /s": calls / (time.perf_counter() - began)}
        if what == "cast":
            casts = CASTS // 50
            began = time.perf_counter()
            for n in range(casts):
                await ref.echo.tell(n)
            await ref.echo(None)
            return {"cast /s": casts / (time.perf_counter() - began)}
    return {}


# --- Erlang
# -----------------------------------------------------------------------------------------------------------

_ERLANG = """
-mode(compile).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2, start_link/0, start_link/1]).

start_link() -> gen_server:start_link(?MODULE, idle, []).
start_link(Told) -> gen_server:start_link(?MODULE, {told, Told}, []).
init({sup, Flags, Specs}) -> {ok, {Flags, Specs}};
init({told, Pid}) -> Pid ! {up, self()}, {ok, nothing};
init(idle) -> {ok, nothing}.
handle_call(M, _, S) -> {reply, M, S}.
handle_cast(crash, _) -> error(boom);
handle_cast(_, S) -> {noreply, S}.
handle_info(_, S) -> {noreply, S}.
terminate(_, _) -> ok.

main(["call"]) ->
    {ok, P} = start_link(),
    {T, _} = timer:tc(fun() -> [gen_server:call(P, N) || N <- lists:seq(1, CALLS)] end),
    figure("call /s", CALLS * 1.0e6 / T);
main(["cast"]) ->
    {ok, P} = start_link(),
    {T, _} = timer:tc(fun() -> [gen_server:cast(P, N) || N <- lists:seq(1, CASTS)], gen_server:call(P, x, infinity)
    end), figure("cast /s", CASTS * 1.0e6 / T);
main(["ping"]) ->
    Me = self(),
    A = spawn(fun() -> receive {to, P} -> ping(P, Me) end end),
    B = spawn(fun() -> ping(A, Me) end),
    A ! {to, B},
    {T, _} = timer:tc(fun() -> A ! 2 * CALLS, receive done -> ok end end),
    figure("ping /s", CALLS * 1.0e6 / T);
main(["idle"]) ->
    Spec = #{id => i, start => {?MODULE, start_link, []}, restart => temporary},
    {ok, S} = supervisor:start_link(?MODULE, {sup, #{strategy => simple_one_for_one}, [Spec]}),
    Before = erlang:memory(total),
    {T, _} = timer:tc(fun() -> [supervisor:start_child(S, []) || _ <- lists:seq(1, IDLE)] end),
    figure("idle up us", T / IDLE),
    figure("idle bytes", (erlang:memory(total) - Before) / IDLE),
    {D, _} = timer:tc(fun() -> gen_server:stop(S, normal, infinity) end),
    figure("idle down us", D / IDLE);
main(["restart"]) ->
    logger:set_primary_config(level, none),
    [figure("restart us (" ++ Name ++ ")", restarts(How)) || {Name, How} <- [{"kill", kill}, {"crash", crash}]];
main(["reported"]) ->
    Hows = [{"kill", kill}, {"crash", crash}],
    [begin timer:sleep(1000), figure("reported us (" ++ Name ++ ")", restarts(How)) end || {Name, How} <- Hows],
    Supervisors = fun(#{msg := {report, #{label := {supervisor, _}}}} = Event, _) -> Event; (_, _) -> stop end,
    ok = logger:add_primary_filter(supervisors, {Supervisors, nothing}),
    ok = logger:update_handler_config(default, config,
        #{burst_limit_enable => false, drop_mode_qlen => 1000000, flush_qlen => 1000000}),
    [begin timer:sleep(1000), figure("reported us (" ++ Name ++ ", all)", restarts(How)) end || {Name, How} <- Hows];
main(["stop"]) ->
    [begin
        Specs = [#{id => I, start => {?MODULE, start_link, []}} || I <- lists:seq(1, N)],
        {ok, S} = supervisor:start_link(?MODULE, {sup, #{}, Specs}),
        {T, _} = timer:tc(fun() -> gen_server:stop(S, normal, infinity) end),
        figure("stop us (" ++ Name ++ ")", T / N)
     end || {N, Name} <- STOPPED];
main(_) -> ok.

restarts(How) -> lists:sum([restarts_of_one(How) || _ <- lists:seq(1, RESTARTS div INAROW)]) / RESTARTS.

restarts_of_one(How) ->
    Spec = #{id => i, start => {?MODULE, start_link, [self()]}, restart => permanent},
    Flags = #{strategy => simple_one_for_one, intensity => 1000000000, period => 1},
    {ok, S} = supervisor:start_link(?MODULE, {sup, Flags, [Spec]}),
    {ok, P} = supervisor:start_child(S, []),
    receive {up, P} -> ok end,
    {T, _} = timer:tc(fun() -> again(How, S, P, INAROW) end),
    gen_server:stop(S),
    T.

again(_, _, P, 0) -> P;
again(How, S, P, N) ->
    case How of kill -> exit(P, kill); crash -> gen_server:cast(P, crash) end,
    receive {up, New} -> supervisor:which_children(S), again(How, S, New, N - 1) end.

ping(Other, Main) ->
    receive 0 -> Main ! done; N -> Other ! N - 1, ping(Other, Main) end.

figure(Name, Value) -> io:format("~s=~f~n", [Name, Value * 1.0]).
"""


_FIGURE = re.compile(r"^([a-z][a-z /(),0-9]*)=(-?[0-9.]+)$", re.MULTILINE)


def _measure_erlang(what: str) -> Figures:
    if shutil.which("escript") is None:
        raise SystemExit("escript is not installed (Debian: erlang-base)")
    stopped = f'[{{{STOPPED // 10}, "{STOPPED // 10:,}"}}, {{{STOPPED}, "{STOPPED:,}"}}]'
    numbers = {"CALLS": CALLS, "CASTS": CASTS, "IDLE": IDLE, "RESTARTS": RESTARTS, "INAROW": IN_A_ROW} | {
        "STOPPED": stopped
    }
    source = _ERLANG
    for name, number in numbers.items():
        source = source.replace(name, str(number))
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bench.escript"
        script.write_text(f"#!/usr/bin/env escript\n%%! +P 1000000\n{source}", encoding="utf-8")
        done = subprocess.run(["escript", str(script), what], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"escript: {done.stdout}{done.stderr}")
    return {name: float(value) for name, value in _FIGURE.findall(done.stdout)}
