"""Children that behave as a test needs: crash on the nth message, hang, start slowly, ignore being stopped.

    flaky = Script("flaky", crash_on=3)
    ref = await system.start(flaky.spec())
    ...
    assert flaky.incarnations == 2

They are deterministic; with virtual time, each run is the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import anyio

from supervisors.actor import Actor
from supervisors.caller import Caller
from supervisors.reasons import ExitReason, Ignore, Stop
from supervisors.spec import ChildSpec


class Boom(Exception):
    """The exception of a scripted crash."""


@dataclasses.dataclass(frozen=True, slots=True)
class Leave:
    """A message that makes a scripted actor end with a reason."""

    reason: ExitReason


@dataclasses.dataclass
class Script:
    """The script of a child, for all of its incarnations. Use it as the `start` of a `ChildSpec`.

    The actor replies to a call with the message, appends the messages of casts to `seen`, crashes on the message
    `"crash"`, and ends on a `Leave`.

    Args:
        name: the child's id.
        starts: what each start does: `ok`, `error` (raises `Boom` in `init`), `ignore`; the last one applies to all
            further starts.
        slow_start: seconds that `init` takes.
        crash_on: the number of the message that crashes each incarnation, counted from 1.
        hang_on: the number of the message whose handler never returns.
        stop_takes: seconds that `terminate` takes; `math.inf`: until it is killed.
        immortal: it swallows every cancellation, until `release` is called.
    """

    name: str
    starts: Sequence[Literal["ok", "error", "ignore"]] = ("ok",)
    slow_start: float = 0.0
    crash_on: int | None = None
    hang_on: int | None = None
    stop_takes: float = 0.0
    immortal: bool = False

    incarnations: int = 0
    seen: list[Any] = dataclasses.field(default_factory=list)
    ends: list[ExitReason] = dataclasses.field(default_factory=list)
    _released: bool = False

    def __call__(self) -> Actor:
        """Return the next incarnation."""
        self.incarnations += 1
        return _Scripted(self, self.starts[min(self.incarnations, len(self.starts)) - 1])

    def spec(self, **options: Any) -> ChildSpec[Actor]:
        """Return a spec for it; `options` are those of `ChildSpec`."""
        return ChildSpec(self.name, self, **options)

    def release(self) -> None:
        """Let an immortal child end."""
        self._released = True

    async def hang(self) -> None:
        """Never return: the handler of the script's `hang_on` message."""
        if not self.immortal:
            await anyio.sleep_forever()
        while not self._released:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)


class _Scripted(Actor):
    def __init__(self, script: Script, start: str) -> None:
        self._script = script
        self._start = start
        self._count = 0

    async def init(self) -> None:
        if self._script.slow_start:
            await anyio.sleep(self._script.slow_start)
        if self._start == "error":
            raise Boom(f"start {self._script.incarnations} of {self._script.name}")
        if self._start == "ignore":
            raise Ignore

    async def _take(self, message: Any) -> None:
        self._count += 1
        if message == "crash" or self._count == self._script.crash_on:
            raise Boom(self._script.name)
        if message == "hang" or self._count == self._script.hang_on:
            await self._script.hang()
        if isinstance(message, Leave):
            raise Stop(message.reason)

    async def handle_call(self, message: Any, caller: Caller) -> Any:  # noqa: ARG002 - the actor's interface
        await self._take(message)
        return message

    async def handle_cast(self, message: Any) -> None:
        self._script.seen.append(message)
        await self._take(message)

    async def handle_info(self, message: Any) -> None:
        self._script.seen.append(message)

    async def terminate(self, reason: ExitReason) -> None:
        self._script.ends.append(reason)
        if self._script.immortal:
            await self._script.hang()
        elif self._script.stop_takes == math.inf:
            await anyio.sleep_forever()
        elif self._script.stop_takes:
            await anyio.sleep(self._script.stop_takes)
