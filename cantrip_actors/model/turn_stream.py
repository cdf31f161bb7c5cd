"""The stream of one turn: what happens to it, in order, as envelopes.

A `TurnStream` is made for each utterance when its crystal is about to be asked, and told what happens: what the crystal
streams, that an attempt failed, what it answered, what its gates came to, how the turn ended. Each call returns the
envelopes to publish. It waits for nothing and keeps no text; the clock and the ids of events are handed in.

Rules that hold here:

- One `response_start` and one end for each turn, however often the crystal is asked (U-59). Whatever is told after the
  end is dropped.
- The end comes after the gates (U-58): a crystal's own `response_done` is kept until then, for its usage and its
  finish reason. A delegation does not end a turn here, although the loom commits one at the seam (LOOM-8): the stream's
  turn is the utterance with all of its observation, under the id of the first.
- An item is `turn:attempt:block`. Attempts are counted from 1 by whoever makes them: what a crystal streams comes with
  its attempt (`2:0` is the first item of the second), as `crystal/contract.py` hands it on. An item whose attempt is
  not said belongs to the current one, which `retry` ends. What a failed attempt left open is closed (code RETRY); what
  it had finished stays finished, and its id says that it is not the turn's.
- At the end nothing is left open. A call that was skipped after `done` has the output that the crystal reads too.
- Observers get the real result of an ephemeral gate; the placeholder is for the model (D-010).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from cantrip_actors.model.messages import Response, ToolCall, Usage
from cantrip_actors.model.stream import (
    CancelReason,
    Envelope,
    FinalFunctionCall,
    FinalFunctionCallOutput,
    FinalItem,
    FinalMessage,
    FinalReasoning,
    ItemCancelled,
    ItemDelta,
    ItemDone,
    ItemError,
    ItemStart,
    ItemType,
    Parent,
    Payload,
    ResponseDone,
    ResponseError,
    ResponseStart,
    Step,
    StreamError,
    StreamUsage,
)
from cantrip_actors.model.turn import SKIPPED, EndReason, Observation

__all__ = ["INCOMPLETE", "RETRY", "TurnStream", "cancel_reason", "instant", "usage_of"]

RETRY: Final = StreamError("RETRY", "this attempt failed; another one is made")
INCOMPLETE: Final = StreamError("INCOMPLETE", "the crystal answered without finishing this item")

_CANCELLED: Final[dict[str, CancelReason]] = {"timeout": "timeout", "crashed": "process_death"}


def instant(seconds: float) -> str:
    """A time of day as the stream has it, from seconds since the epoch: ISO 8601, UTC, milliseconds, Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def usage_of(usage: Usage) -> StreamUsage:
    """A response's usage as the stream has it."""
    return StreamUsage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens or None)


def cancel_reason(reason: EndReason) -> CancelReason:
    """Why items are cancelled when an entity ends like this."""
    return _CANCELLED.get(reason, "user_cancel")


class TurnStream:
    """The envelopes of one turn. `now` is in seconds since the epoch, `parent` what a child entity hangs from.

    The session is the entity, the turn the loom's: its id is there before the crystal is asked (U-53).
    """

    def __init__(
        self,
        turn_id: str,
        session_id: str,
        new_event_id: Callable[[], str],
        now: Callable[[], float],
        *,
        parent: Parent | None = None,
    ) -> None:
        self.turn_id = turn_id
        self.session_id = session_id
        self.parent = parent
        self._new_event_id = new_event_id
        self._now = now
        self._attempt = 1
        self._started = False
        self._ended = False
        self._provider_id = ""
        self._open: dict[str, ItemType] = {}
        """Items that were started, by id; a call is one until its output is there."""
        self._calls: dict[str, str] = {}
        """The items of calls whose output has not come, by call id."""
        self._standing: set[str] = set()
        """Items that were streamed and have not been given up, finished or not."""
        self._touched = False
        self._outputs = 0
        self._done: ResponseDone | None = None
        self._failure: StreamError | None = None

    @property
    def ended(self) -> bool:
        """Whether the end was told."""
        return self._ended

    @property
    def failure(self) -> StreamError | None:
        """What the crystal's own stream said of its failure, if it did."""
        return self._failure

    # The crystal

    def start(self, model_id: str, provider_id: str) -> list[Envelope]:
        """The crystal is asked. Nothing, the second time."""
        if self._started or self._ended:
            return []
        self._started = True
        self._provider_id = provider_id
        return [self._envelope(ResponseStart(model_id, provider_id))]

    def said(self, payload: Payload) -> list[Envelope]:
        """What the crystal streams, as its adapter made it: in the current attempt."""
        if self._ended:
            return []
        match payload:
            case ResponseStart():
                return self.start(payload.model_id, payload.provider_id)
            case ResponseDone():
                self._done = payload
                if payload.status == "error":
                    fallback = StreamError(payload.finish_reason or "RESPONSE_ERROR", "the crystal's response failed")
                    self._failure = self._failure or payload.error or fallback
                return []
            case ResponseError():
                self._failure = payload.error
                return []
            case _:
                return [self._envelope(self._item(payload))]

    def retry(self, error: StreamError = RETRY) -> list[Envelope]:
        """The attempt failed and another one is made: what it left open is closed with `error`."""
        if self._ended:
            return []
        closed = [self._envelope(ItemError(item_id, error)) for item_id in self._open]
        self._open.clear()
        self._calls.clear()
        self._attempt += 1
        self._standing.clear()
        self._touched = False
        self._done = self._failure = None
        return closed

    def answered(self, response: Response) -> list[Envelope]:
        """The crystal's answer, checked, its calls with their ids. Of one that did not stream, these are the items."""
        if self._ended:
            return []
        made: list[Envelope] = []
        if not self._standing:
            self._attempt += self._touched  # the ids of what was given up are not used again
            made += self._texts(response)
        for item_id in [item for item, kind in self._open.items() if kind != "function_call"]:
            made.append(self._envelope(ItemError(item_id, INCOMPLETE)))
            del self._open[item_id]
        for n, call in enumerate(response.tool_calls):
            if call.id not in self._calls:
                made += self._announced(f"call{n}", call)
        if self._done is None:
            reason = response.metadata.get("stop_reason")
            self._done = ResponseDone("completed", str(reason) if reason else None, usage=usage_of(response.usage))
        return made

    def _texts(self, response: Response) -> Iterator[Envelope]:
        finals: list[FinalItem] = []
        if response.thinking:
            finals.append(FinalReasoning(response.thinking, self._provider_id))
        finals += [FinalMessage(text, "agent") for text in (response.content, response.code) if text]
        for block, final in enumerate(finals):
            item_id = self._item_id(str(block))
            yield self._envelope(ItemStart(item_id, final.type))
            yield self._envelope(ItemDone(item_id, final))

    # The circle

    def called(self, call: ToolCall) -> list[Envelope]:
        """A gate is about to run. Only needed where the utterance did not name the call: in a code circle."""
        if self._ended or call.id in self._calls:
            return []
        return self._announced(f"call:{call.id}", call)

    def observed(self, observation: Observation) -> list[Envelope]:
        """What a gate came to."""
        if self._ended:
            return []
        self._outputs += 1
        call_id = observation.tool_call_id or f"{self.turn_id}:call{self._outputs}"
        made: list[Envelope] = []
        if call_id not in self._calls:
            made += self._announced(f"call:{call_id}", ToolCall(call_id, observation.gate, observation.args))
        made += self._output(call_id, observation.content, is_error=observation.is_error)
        return made

    def _announced(self, block: str, call: ToolCall) -> list[Envelope]:
        item_id = self._item_id(block)
        start = ItemStart(item_id, "function_call", name=call.gate, call_id=call.id)
        done = ItemDone(item_id, FinalFunctionCall(call.gate, call.id, call.args or {}))
        self._open[item_id] = "function_call"
        self._calls[call.id] = item_id
        return [self._envelope(start), self._envelope(done)]

    def _output(self, call_id: str, output: str, *, is_error: bool) -> Iterable[Envelope]:
        item_id = self._calls.pop(call_id)
        self._open.pop(item_id, None)
        made = f"{item_id}:output"
        yield self._envelope(ItemStart(made, "function_call_output", call_id=call_id))
        yield self._envelope(ItemDone(made, FinalFunctionCallOutput(call_id, output, is_error)))

    # The end

    def completed(
        self, step: Step | None = None, *, usage: Usage | None = None, finish_reason: str | None = None
    ) -> list[Envelope]:
        """The turn is in the loom, its gates have run. What is not given is as the crystal told it."""
        if self._ended:
            return []
        made: list[Envelope] = []
        for call_id in list(self._calls):
            made += self._output(call_id, SKIPPED, is_error=False)
        made += [self._envelope(ItemError(item_id, INCOMPLETE)) for item_id in self._open]
        made.append(self._end(self._summary(finish_reason, usage, step)))
        return made

    def cancelled(self, reason: CancelReason = "user_cancel", step: Step | None = None) -> list[Envelope]:
        """The entity was stopped in this turn. `step` where what there was of it is in the loom."""
        if self._ended:
            return []
        made = [self._envelope(ItemCancelled(item_id, reason)) for item_id in self._open]
        made.append(self._end(replace(self._summary(None, None, step), status="cancelled")))
        return made

    def failed(self, error: StreamError | None = None) -> list[Envelope]:
        """The turn failed: the crystal did for good, or what ran the entity died.

        Left out, `error` is what the crystal's own stream said of it. What is open is closed by whoever reads it.
        """
        if self._ended:
            return []
        why = error or self._failure or StreamError("RESPONSE_ERROR", "the turn failed")
        return [self._end(ResponseError(why))]

    def _summary(self, finish_reason: str | None, usage: Usage | None, step: Step | None) -> ResponseDone:
        told = self._done
        if finish_reason is None and told is not None:
            finish_reason = told.finish_reason
        counted = usage_of(usage) if usage is not None else None if told is None else told.usage
        return ResponseDone("completed", finish_reason, usage=counted, step=step)

    def _end(self, payload: ResponseDone | ResponseError) -> Envelope:
        self._ended = True
        self._open.clear()
        self._calls.clear()
        return self._envelope(payload)

    # Items and envelopes

    def _item_id(self, block: str) -> str:
        return f"{self.turn_id}:{self._attempt}:{block}"

    def _streamed_id(self, given: str) -> str:
        attempt, said, _ = given.partition(":")
        if not (said and attempt.isdecimal()):
            return self._item_id(given)
        self._attempt = max(self._attempt, int(attempt))
        return f"{self.turn_id}:{given}"

    def _item(self, payload: ItemStart | ItemDelta | ItemDone | ItemError | ItemCancelled) -> Payload:
        """The payload with the item's full id; what is open, and which calls wait, is noted."""
        item_id = self._streamed_id(payload.item_id)
        self._touched = True
        match payload:
            case ItemDelta():
                return ItemDelta(item_id, payload.delta_content)
            case ItemStart():
                self._standing.add(item_id)
                self._open[item_id] = payload.item_type
                if payload.item_type == "function_call" and payload.call_id:
                    self._calls[payload.call_id] = item_id
            case ItemDone():
                self._standing.add(item_id)
                final = payload.final_item
                if isinstance(final, FinalFunctionCall):
                    self._open[item_id] = "function_call"
                    self._calls[final.call_id] = item_id
                else:
                    self._open.pop(item_id, None)
            case ItemError() | ItemCancelled():
                self._standing.discard(item_id)
                self._open.pop(item_id, None)
                self._calls = {call: item for call, item in self._calls.items() if item != item_id}
        return replace(payload, item_id=item_id)

    def _envelope(self, payload: Payload) -> Envelope:
        return Envelope(self._new_event_id(), instant(self._now()), self.turn_id, self.session_id, payload, self.parent)
