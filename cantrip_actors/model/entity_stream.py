"""The stream of one entity: the steps of its loop, turn after turn, as envelopes.

Whoever drives the loop hands over each step when its records are in the loom, and what the crystal streams in between.
Nothing is decided here, and nothing is shown that the loom does not hold but for the crystal's own preview (LOOM-1).
How a turn looks is `turn_stream.py`; here is only where one ends and the next begins:

    the step has              and the action is             the turn's stream
    an utterance              any                           has its items
    a gate's observation      any but a cancelling Finish   has its output
    a committed turn          Spawn                         goes on: the utterance is not done with (LOOM-8)
    a committed turn          Ask, Finish                   is completed
    any                       Finish: failed                failed
    any                       Finish: stopped from outside  is cancelled, and so is every call that waits
    any                       Ask                           begins, under the id that the loom will give the turn

After a crash another `EntityStream` goes on: `crashed` ended the turn for those who watch, and the first step of the
next incarnation begins it anew, under the same id where the utterance was in the loom.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cantrip_actors.model.loop import Ask, Finish, Outcome, Spawn
from cantrip_actors.model.loop import Step as LoopStep
from cantrip_actors.model.messages import Response, ToolCall
from cantrip_actors.model.stream import Envelope, Parent, Payload, Step, StreamError
from cantrip_actors.model.turn import Committed, GateFinished, GateStarted, Utterance
from cantrip_actors.model.turn_stream import RETRY, TurnStream, cancel_reason

__all__ = ["CRASHED", "EntityStream"]

CRASHED: Final = StreamError("PROCESS_CRASH", "the process that ran this turn is gone")

_BY_ITSELF: Final = frozenset({"terminated", "truncated"})


class EntityStream:
    """The envelopes of one entity. `crystal` is its name, as `provider:model`; `now` is in seconds since the epoch."""

    def __init__(
        self,
        entity_id: str,
        crystal: str,
        new_event_id: Callable[[], str],
        now: Callable[[], float],
        *,
        parent: Parent | None = None,
    ) -> None:
        provider, _, model = crystal.partition(":")
        self._entity_id = entity_id
        self._provider, self._model = provider, model or provider
        self._new_event_id = new_event_id
        self._now = now
        self._parent = parent
        self._turn: TurnStream | None = None

    @property
    def as_parent(self) -> Parent:
        """What the envelopes of a child name that is spawned now (U-61)."""
        return Parent(self._entity_id, None if self._turn is None else self._turn.turn_id)

    def said(self, payload: Payload) -> list[Envelope]:
        """What the crystal streams while it is asked."""
        return [] if self._turn is None else self._turn.said(payload)

    def retry(self, error: StreamError = RETRY) -> list[Envelope]:
        """An attempt of the crystal failed, and another one is made."""
        return [] if self._turn is None else self._turn.retry(error)

    def step(self, step: LoopStep, turn_id: str) -> list[Envelope]:
        """What a step of the loop is in the stream. `turn_id` is the state's after it: of the turn in the making."""
        outcome = step.action.outcome if isinstance(step.action, Finish) else None
        stopped = outcome is not None and outcome.reason not in _BY_ITSELF
        made: list[Envelope] = []
        committed: Committed | None = None
        for record in step.records:
            match record:
                case Utterance():
                    made += self._in(record.turn_id, made).answered(_response(record))
                case GateStarted() if record.args is not None:
                    call = ToolCall(record.tool_call_id, record.gate, record.args)
                    made += self._in(record.turn_id, made).called(call)
                case GateFinished() if not stopped:
                    made += self._in(record.turn_id, made).observed(record.observation)
                case Committed():
                    committed = record
                case _:
                    pass
        made += self._ended(committed, outcome, goes_on=isinstance(step.action, Spawn))
        if isinstance(step.action, Ask):
            made += self._begin(turn_id)
        return made

    def crashed(self, error: StreamError = CRASHED) -> list[Envelope]:
        """What ran the entity died within a turn, or between two."""
        return [] if self._turn is None else self._turn.failed(error)

    def _begin(self, turn_id: str) -> list[Envelope]:
        self._turn = TurnStream(turn_id, self._entity_id, self._new_event_id, self._now, parent=self._parent)
        return self._turn.start(self._model, self._provider)

    def _in(self, turn_id: str, made: list[Envelope]) -> TurnStream:
        """The running turn; where none runs, as after a restart, it begins, and `made` says so."""
        if self._turn is None or self._turn.ended:
            made += self._begin(turn_id)
        assert self._turn is not None
        return self._turn

    def _ended(self, committed: Committed | None, outcome: Outcome | None, *, goes_on: bool) -> list[Envelope]:
        turn = self._turn
        if turn is None or goes_on or (committed is None and outcome is None):
            return []
        step = None
        if committed is not None:
            result = None if outcome is None else outcome.result
            step = Step(committed.sequence, committed.terminated, committed.truncated, result)
        if outcome is None or outcome.reason in _BY_ITSELF:
            return turn.completed(step)
        if outcome.reason == "failed":
            code = "CRYSTAL_ERROR" if turn.failure is None else turn.failure.code
            return turn.failed(StreamError(code, outcome.error or "the crystal failed"))
        return turn.cancelled(cancel_reason(outcome.reason), step)


def _response(said: Utterance) -> Response:
    """The response that an utterance was."""
    return Response(said.content, said.tool_calls, said.usage, said.thinking, said.code, said.blocks, said.metadata)
