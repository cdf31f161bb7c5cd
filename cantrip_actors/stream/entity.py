"""The stream of one entity: the steps of its loop, turn after turn, as envelopes.

The driver of the loop passes each step when its records are in the loom, and what the crystal emits in between. Nothing
is decided here, and everything but the crystal's own preview is already in the loom (LOOM-1). `turn.py` makes the
events of a turn; this file says where one turn ends and the next begins:

    the step has              and the action is             the turn's stream
    an utterance              any                           has its items
    a gate's observation      any but a cancelling Finish   has its output
    a committed turn          Spawn                         continues: the utterance is not finished (LOOM-8)
    a committed turn          Ask, Finish                   is completed
    any                       Finish: failed                failed
    any                       Finish: stopped from outside  is cancelled, and so is every call without output
    any                       Ask                           begins, under the id that the loom will give the turn

After a crash another `EntityStream` continues: `crash` ended the turn for its subscribers, and the first step of the
next incarnation begins it anew, under the same id and with its texts if the utterance was in the loom.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cantrip_actors.machine.actions import Ask, Finish, Spawn
from cantrip_actors.machine.actions import Step as LoopStep
from cantrip_actors.machine.project.observed import Done, read_observed
from cantrip_actors.records.records import Observation
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.stream.turn import RETRY, TurnStream, choose_cancel_reason
from cantrip_actors.stream.wire import Emitted, Envelope, Parent, Step, StreamError
from cantrip_actors.terms.messages import Response, ToolCall
from cantrip_actors.terms.outcome import Outcome

CRASHED: Final = StreamError("PROCESS_CRASH", "the process that ran this turn is gone")

_BY_ITSELF: Final = frozenset({"terminated", "truncated"})


class EntityStream:
    """The envelopes of one entity. `crystal` is a name such as `provider:model`; for the rest see `TurnStream`."""

    def __init__(
        self,
        entity_id: str,
        crystal: str,
        new_event_id: Callable[[], str],
        now: Callable[[], float],
        *,
        parent: Parent | None = None,
        redactor: Callable[[], Redactor] | None = None,
    ) -> None:
        provider, _, model = crystal.partition(":")
        self._entity_id = entity_id
        self._provider, self._model = provider, model or provider
        self._new_event_id = new_event_id
        self._now = now
        self._parent = parent
        self._redactor = redactor
        self._turn: TurnStream | None = None

    @property
    def as_parent(self) -> Parent:
        """The `parent` of a child that is spawned now (U-61)."""
        return Parent(self._entity_id, None if self._turn is None else self._turn.turn_id)

    def pass_on(self, emitted: Emitted) -> list[Envelope]:
        """Add a payload of the crystal during a query."""
        return [] if self._turn is None else self._turn.pass_on(emitted)

    def retry(self, error: StreamError = RETRY) -> list[Envelope]:
        """Close the items of an attempt of the crystal that failed; another attempt begins."""
        return [] if self._turn is None else self._turn.retry(error)

    def step(
        self, step: LoopStep, turn_id: str, recorded: Callable[[], Response | None] = lambda: None
    ) -> list[Envelope]:
        """Add a step of the loop. `turn_id` is the id of the turn in progress after the step.

        `recorded` returns the last utterance in the loom: a turn that begins anew after a restart begins with it.
        """
        outcome = step.action.outcome if isinstance(step.action, Finish) else None
        stopped = outcome is not None and outcome.reason not in _BY_ITSELF
        made: list[Envelope] = []
        committed: Done | None = None
        for _, turn, seen in read_observed(step.records):
            match seen:
                case Response():
                    made += self._find_turn(turn, made).answer(seen)
                case ToolCall():
                    made += self._find_turn(turn, made, recorded).begin_call(seen)
                case Observation() if not stopped:
                    made += self._find_turn(turn, made, recorded).finish_call(seen)
                case Done():
                    committed = seen
                case _:
                    pass
        if not isinstance(step.action, Spawn):
            made += self._end(committed, outcome)
        if isinstance(step.action, Ask):
            made += self._begin(turn_id)
        return made

    def progress(self, call_id: str, text: str) -> list[Envelope]:
        """Add a piece of the output of a running gate."""
        return [] if self._turn is None else self._turn.progress_call(call_id, text)

    def crash(self, error: StreamError = CRASHED) -> list[Envelope]:
        """End the current turn: the actor that ran the entity crashed."""
        return [] if self._turn is None else self._turn.fail(error)

    def _begin(self, turn_id: str) -> list[Envelope]:
        self._turn = TurnStream(
            turn_id, self._entity_id, self._new_event_id, self._now, parent=self._parent, redactor=self._redactor
        )
        return self._turn.start(self._model, self._provider)

    def _find_turn(
        self, turn_id: str, made: list[Envelope], recorded: Callable[[], Response | None] = lambda: None
    ) -> TurnStream:
        """Return the running turn. If none runs, as after a restart, begin it and append its beginning to `made`."""
        if self._turn is None or self._turn.is_ended:
            made += self._begin(turn_id)
            assert self._turn is not None
            said = recorded()
            if said is not None:
                made += self._turn.restore(said)
        return self._turn

    def _end(self, committed: Done | None, outcome: Outcome | None) -> list[Envelope]:
        turn = self._turn
        if turn is None or (committed is None and outcome is None):
            return []
        step = None
        if committed is not None:
            result = None if outcome is None else outcome.result
            step = Step(*committed, result)
        if outcome is None or outcome.reason in _BY_ITSELF:
            return turn.complete(step)
        if outcome.reason == "failed":
            code = "CRYSTAL_ERROR" if turn.failure is None else turn.failure.code
            return turn.fail(StreamError(code, outcome.error or "the crystal failed"))
        return turn.cancel(choose_cancel_reason(outcome.reason), step)
