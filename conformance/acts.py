"""Carry out the steps of an action through the public API, and record their results.

A step that raises a public error ends the action; the checks decide whether the case expects that error. Any other
exception is a defect of the product and propagates unchanged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Self

import anyio

from cantrip_actors import Cantrip, CantripError, EntityEndedEvent, Runtime, StepCompleteEvent
from conformance.cases import steps
from conformance.stage import Stage
from conformance.story import Run, Story

__all__ = ["Acts"]


class Acts:
    """One case's action: `play` carries it out, `story` is the result. The runtime is open inside `async with`."""

    def __init__(self, stage: Stage) -> None:
        self.story = Story(crystals=stage.crystals)
        self._stage = stage
        self._runtime: Runtime | None = None
        self._events: Any = None
        self._open = AsyncExitStack()
        self._cantrips: dict[str | None, Cantrip] = {}
        self._steps: Mapping[str, Callable[[Any], Awaitable[None]]] = {
            "construct_cantrip": self._construct,
            "cast": self._cast,
            "invoke": self._invoke,
            "send": self._send,
            "mutate_call": self._mutate_call,
            "delete_turn": self._delete_turn,
            "replace_turn": self._replace_turn,
            "annotate_reward": self._reward,
            "fork": self._fork,
            "extract_thread": self._extract,
            "reopen": self._reopen,
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def play(self, action: Any) -> Story:
        """Carry out all steps, or those up to the first that raises a public error."""
        story, began = self.story, anyio.current_time()
        todo = list(steps(action))
        for n, (name, value) in enumerate(todo, 1):
            try:
                await self._steps[name](value)
            except CantripError as error:
                story.error, story.error_is_last = error, n == len(todo)
                break
        story.elapsed = anyio.current_time() - began
        await self._settle()
        story.executed, story.own_gates = self._stage.executed, frozenset(self._stage.own_gates)
        return story

    async def _settle(self) -> None:
        """Read the events that have arrived; every turn of the story is committed by now."""
        if self._events is not None:
            self._events.close()
            async for event in self._events:
                if isinstance(event, StepCompleteEvent):
                    self.story.announced.append(event.turn_id)
            self._events = None

    async def _open_runtime(self) -> Runtime:
        if self._runtime is None:
            self._runtime = await self._open.enter_async_context(Runtime.open(self._stage.url))
            self._events = self._runtime.events()
            self.story.loom = self._runtime.loom
        return self._runtime

    def _cantrip(self, crystal: str | None = None) -> Cantrip:
        """Return the cantrip with this crystal: the same value for every cast (CANTRIP-2)."""
        if crystal not in self._cantrips:
            self._cantrips[crystal] = self._stage.cantrip(crystal)
        self.story.cantrip = self._cantrips[crystal]
        return self._cantrips[crystal]

    # ------------------------------------------------------------------------------------------------------- the steps

    async def _construct(self, wanted: Any) -> None:
        del wanted
        self._cantrip()

    async def _cast(self, step: Mapping[str, Any]) -> None:
        cantrip, runtime = self._cantrip(step.get("crystal")), await self._open_runtime()
        runs = [Run(None) for _ in range(step.get("at_once", 1))]

        async def cast(run: Run) -> None:
            await self._await_run(run, lambda: runtime.cast(cantrip, step["intent"], **_context(step)))

        if len(runs) == 1:
            try:
                await cast(runs[0])
            finally:
                self._keep(runs)
            return
        async with anyio.create_task_group() as casts:
            for run in runs:
                casts.start_soon(self._hold_run, cast, run)
        self._keep(runs)
        for run in runs:
            if run.error is not None:
                raise run.error

    def _keep(self, runs: list[Run]) -> None:
        """Add the runs that became an entity to the story; a refused cast made no entity."""
        self.story.runs += [run for run in runs if run.entity_id is not None]

    async def _hold_run(self, cast: Callable[[Run], Awaitable[None]], run: Run) -> None:
        try:
            await cast(run)
        except CantripError as error:
            run.error = error

    async def _await_run(self, run: Run, cast: Callable[[], Awaitable[Any]]) -> None:
        """Await the cast, and store its episode or its error in `run`."""
        try:
            episode = await cast()
        except CantripError as error:
            run.entity_id, run.error = error.entity_id or run.entity_id, error
            raise
        run.entity_id = episode.entity_id
        assert (
            episode.thread is not None
        )  # read from the loom now, because it may be closed and opened again before the end
        run.episodes.append(episode)
        self.story.outcomes.append(episode)

    async def _invoke(self, step: Mapping[str, Any]) -> None:
        cantrip, runtime = self._cantrip(step.get("crystal")), await self._open_runtime()
        events = runtime.events()
        entity = await runtime.invoke(cantrip, step["intent"], name=step.get("name"), **_context(step))
        self._keep([Run(entity.id, live=entity)])
        async for event in events:  # the first intent is over when its last turn is committed, or the entity ends
            if event.entity_id != entity.id:
                continue
            last_turn = isinstance(event, StepCompleteEvent) and (event.terminated or event.truncated)
            if last_turn or isinstance(event, EntityEndedEvent):
                break
        events.close()

    async def _send(self, step: Mapping[str, Any]) -> None:
        lasting = [run for run in self.story.runs if run.live is not None]
        run = lasting[step.get("to", 0)]
        await self._await_run(run, lambda: run.live.send(step["intent"], **_context(step)))

    async def _mutate_call(self, changes: Mapping[str, Any]) -> None:
        for name, value in changes.items():
            setattr(self._cantrip().call, name, value)

    async def _delete_turn(self, index: int) -> None:
        del self.story.read[self._turn(index)]  # type: ignore[attr-defined]  # the case checks that this fails

    async def _replace_turn(self, index: int) -> None:
        turn = self._turn(index)
        self.story.read[turn] = self.story.read[turn]  # type: ignore[index]  # likewise

    async def _reward(self, step: Mapping[str, Any]) -> None:
        runtime = await self._open_runtime()
        await runtime.loom.reward(self._turn(step["turn"], step.get("of", 0)), step["reward"])

    async def _fork(self, step: Mapping[str, Any]) -> None:
        runtime, run = await self._open_runtime(), Run(None)
        turn_id = self._turn(step["from_turn"] - 1, step.get("of", 0))
        settings = _context(step)
        if "crystal" in step:
            settings["crystal"] = self._stage.crystals[step["crystal"]]
        try:
            await self._await_run(run, lambda: runtime.fork(turn_id, intent=step["intent"], **settings))
        finally:
            self._keep([run])

    async def _extract(self, index: int) -> None:
        runtime, run = await self._open_runtime(), self.story.runs[index]
        self.story.extracted = runtime.loom.thread(self.story.turns_of(run)[-1].id)

    async def _reopen(self, wanted: Any) -> None:
        """Close the runtime and open the loom again, so that later checks see only stored data."""
        del wanted
        await self._settle()
        await self._open.aclose()
        self._runtime = None
        _ = await self._open_runtime()

    def _turn(self, index: int, run: int = 0) -> str:
        """Return the id of turn `index`, counted from 0, of a run's own turns."""
        turns = self.story.turns_of(self.story.runs[run])
        turn_id: str = turns[index].id
        return turn_id


def _context(step: Mapping[str, Any]) -> dict[str, Any]:
    return {"context": step["context"]} if "context" in step else {}
