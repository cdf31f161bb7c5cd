"""The stream of one turn: its events, in order, as envelopes.

A `TurnStream` is made for each utterance before its crystal is asked. Its methods report what happens to the turn and
return the envelopes to publish: what the crystal emits, that an attempt failed, the answer, gate calls and their
observations, the end. It waits for nothing; the clock, the ids of events and the redactor are given to it.

The rules of this file:

- A turn has one `response_start` and one end, however often its crystal is asked (U-59). Events after the end are
  dropped.
- The end comes after the gates (U-58). A crystal's own `response_done` is kept until then, for its usage and its finish
  reason. A delegation does not end a turn here, although the loom commits a turn before it (LOOM-8): the stream's turn
  is the utterance with all of its observations, under the id of the first.
- The id of an item is `turn:attempt:block` (`ItemId`), and is made here and nowhere else: a crystal names blocks only.
  `AttemptFailed` ends an attempt: its open items are closed (code RETRY), its finished items stay finished, and their
  ids say that they belong to an attempt that failed.
- At the end no item is open. A call that was skipped after `done` has the output that the crystal reads too.
- Observers get the real result of an ephemeral gate; the placeholder is for the model (D-010).
- Secrets are redacted before an envelope is made, so each envelope and each delta is built once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace

from cantrip_actors.machine.context import SKIPPED
from cantrip_actors.records.records import Observation
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.redact.stream import RedactedStream
from cantrip_actors.stream.wire import (
    AttemptFailed,
    CancelReason,
    Emitted,
    Envelope,
    FinalFunctionCall,
    FinalFunctionCallOutput,
    FinalImage,
    FinalItem,
    FinalMessage,
    FinalReasoning,
    ItemCancelled,
    ItemDelta,
    ItemDone,
    ItemError,
    ItemId,
    ItemStart,
    ItemType,
    Parent,
    Payload,
    ResponseDone,
    ResponseError,
    ResponseStart,
    ResponseStatus,
    Step,
    StreamError,
    StreamUsage,
)
from cantrip_actors.terms.messages import Response, ToolCall, Usage
from cantrip_actors.terms.outcome import EndReason

RETRY: Final = StreamError("RETRY", "this attempt failed; another one is made")
INCOMPLETE: Final = StreamError("INCOMPLETE", "the crystal answered without finishing this item")

_CANCELLED: Final[dict[str, CancelReason]] = {"timeout": "timeout", "crashed": "process_death"}


def format_instant(seconds: float) -> str:
    """Return a time of the stream for seconds since the epoch: ISO 8601, UTC, milliseconds, Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def make_usage(usage: Usage) -> StreamUsage:
    """Return the stream's form of a response's usage."""
    return StreamUsage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens or None)


def choose_cancel_reason(reason: EndReason) -> CancelReason:
    """Return why items are cancelled when an entity ends for `reason`."""
    return _CANCELLED.get(reason, "user_cancel")


class TurnStream:
    """The envelopes of one turn. The session is the entity; `turn_id` is the loom's, known before the query (U-53).

    `now` returns seconds since the epoch. `parent` is the turn that spawned a child entity. `redactor` returns the
    redactor of the moment, because a runtime learns secrets while it runs.
    """

    def __init__(
        self,
        turn_id: str,
        session_id: str,
        new_event_id: Callable[[], str],
        now: Callable[[], float],
        *,
        parent: Parent | None = None,
        redactor: Callable[[], Redactor] | None = None,
    ) -> None:
        self.turn_id = turn_id
        self.session_id = session_id
        self.parent = parent
        self.is_ended = False
        self.failure: StreamError | None = None
        """The error that the crystal's own stream reported, if it did."""
        self._new_event_id = new_event_id
        self._now = now
        self._redactor = redactor
        self._attempt = 1
        self._started = False
        self._provider_id = ""
        self._open: dict[str, ItemType] = {}
        """Items that were started, by id; a call is open until its output is there."""
        self._calls: dict[str, str] = {}
        """The items of calls that have no output yet, by call id."""
        self._finished: dict[str, ItemType] = {}
        """Items that this attempt has finished, and not given up afterwards."""
        self._texts: dict[str, RedactedStream] = {}
        """The redacted streams of growing texts, which hold back an end in which a secret may begin."""
        self._has_emitted = False
        self._recorded: Mapping[str, ToolCall] = {}
        """The calls of an answer that an earlier incarnation recorded, by id."""
        self._outputs = 0
        self._done: ResponseDone | None = None

    # The crystal

    def start(self, model_id: str, provider_id: str) -> list[Envelope]:
        """Begin the turn: its crystal is about to be asked. A second call returns nothing."""
        if self._started or self.is_ended:
            return []
        self._started = True
        self._provider_id = provider_id
        return [self._make_envelope(ResponseStart(model_id, provider_id))]

    def pass_on(self, emitted: Emitted) -> list[Envelope]:
        """Add a payload of the crystal in its current attempt."""
        if self.is_ended:
            return []
        match emitted:
            case AttemptFailed(error):
                return self.retry(error)
            case ResponseStart():
                return self.start(emitted.model_id, emitted.provider_id)
            case ResponseDone():
                self._done = emitted
                if emitted.status == "error":
                    fallback = StreamError(emitted.finish_reason or "RESPONSE_ERROR", "the crystal's response failed")
                    self.failure = self.failure or emitted.error or fallback
                return []
            case ResponseError():
                self.failure = emitted.error
                return []
            case _:
                return [self._make_envelope(self._complete_item(emitted))]

    def retry(self, error: StreamError = RETRY) -> list[Envelope]:
        """Close the open items of an attempt that failed, with `error`; another attempt begins."""
        if self.is_ended:
            return []
        closed = [self._make_envelope(ItemError(item_id, error)) for item_id in self._open]
        for items in (self._open, self._calls, self._finished, self._texts):
            items.clear()
        self._attempt += 1
        self._has_emitted = False
        self._done = self.failure = None
        return closed

    def answer(self, response: Response) -> list[Envelope]:
        """Add the crystal's answer, validated, its calls with their ids. Parts that it did not stream follow (U-60)."""
        if self.is_ended:
            return []
        made: list[Envelope] = []
        for item_id in [item for item, kind in self._open.items() if kind != "function_call"]:
            made.append(self._make_envelope(ItemError(item_id, INCOMPLETE)))
            del self._open[item_id]
        if not self._finished and not self._open:
            self._attempt += self._has_emitted  # items that were given up keep their ids
        made += self._emit_unstreamed(response)
        for n, call in enumerate(response.tool_calls):
            if call.id not in self._calls:
                made += self._announce(f"call{n}", call)
        if self._done is None:
            reason = response.metadata.get("stop_reason")
            self._done = ResponseDone("completed", str(reason) if reason else None, usage=make_usage(response.usage))
        return made

    def restore(self, response: Response) -> list[Envelope]:
        """Add the texts of an answer that an earlier incarnation recorded; its calls follow with their outputs."""
        self._recorded = {call.id: call for call in response.tool_calls}
        return [] if self.is_ended else list(self._emit_unstreamed(response))

    def _emit_unstreamed(self, response: Response) -> Iterator[Envelope]:
        finals: list[FinalItem] = []
        if response.thinking:
            finals.append(FinalReasoning(response.thinking, self._provider_id))
        finals += [FinalMessage(text, "agent") for text in (response.content, response.code) if text]
        finals += map(FinalImage.of, response.images)
        prefix = "answer" if self._finished or self._open else ""  # the crystal's own blocks keep their names
        streamed = set(self._finished.values())
        for block, final in enumerate(one for one in finals if one.type not in streamed):
            item_id = self._make_item_id(f"{prefix}{block}")
            yield self._make_envelope(ItemStart(item_id, final.type))
            yield self._make_envelope(ItemDone(item_id, final))

    # The circle

    def begin_call(self, call: ToolCall) -> list[Envelope]:
        """Announce a gate call, unless the utterance named it: needed for the calls of a code circle."""
        if self.is_ended or call.id in self._calls:
            return []
        return self._announce(f"call:{call.id}", call)

    def progress_call(self, call_id: str, text: str) -> list[Envelope]:
        """Add a piece of the output of a running gate; its result replaces the pieces."""
        item_id = self._calls.get(call_id)
        if self.is_ended or item_id is None:
            return []
        output_id, made = f"{item_id}:output", []
        if output_id not in self._open:
            made.append(self._begin_output(output_id, call_id))
        made.append(self._make_envelope(ItemDelta(output_id, self._redact_delta(output_id, f"{text}\n"))))
        return made

    def _begin_output(self, output_id: str, call_id: str) -> Envelope:
        self._open[output_id] = "function_call_output"
        return self._make_envelope(ItemStart(output_id, "function_call_output", call_id=call_id))

    def finish_call(self, observation: Observation) -> list[Envelope]:
        """Add the result of a gate."""
        if self.is_ended:
            return []
        self._outputs += 1
        call_id = observation.tool_call_id or f"{self.turn_id}:call{self._outputs}"
        made: list[Envelope] = []
        if call_id not in self._calls:
            call = self._recorded.get(call_id) or ToolCall(call_id, observation.gate, observation.args)
            made += self._announce(f"call:{call_id}", call)
        made += self._finish_output(call_id, observation.content, is_error=observation.is_error)
        return made

    def _announce(self, block: str, call: ToolCall) -> list[Envelope]:
        item_id = self._make_item_id(block)
        start = ItemStart(item_id, "function_call", name=call.gate, call_id=call.id)
        done = ItemDone(item_id, FinalFunctionCall(call.gate, call.id, call.args or {}))
        self._open[item_id] = "function_call"
        self._calls[call.id] = item_id
        return [self._make_envelope(start), self._make_envelope(done)]

    def _finish_output(self, call_id: str, output: str, *, is_error: bool) -> Iterable[Envelope]:
        item_id = self._calls.pop(call_id)
        self._open.pop(item_id, None)
        output_id = f"{item_id}:output"
        if output_id not in self._open:
            yield self._begin_output(output_id, call_id)
        self._open.pop(output_id, None)
        self._texts.pop(output_id, None)
        yield self._make_envelope(ItemDone(output_id, FinalFunctionCallOutput(call_id, output, is_error)))

    # The end

    def complete(self, step: Step | None = None) -> list[Envelope]:
        """End a recorded turn whose gates have run, with the usage and the reason that the crystal reported."""
        if self.is_ended:
            return []
        made: list[Envelope] = []
        for call_id in list(self._calls):
            made += self._finish_output(call_id, SKIPPED, is_error=False)
        made += [self._make_envelope(ItemError(item_id, INCOMPLETE)) for item_id in self._open]
        made.append(self._end(self._make_done("completed", step)))
        return made

    def cancel(self, reason: CancelReason = "user_cancel", step: Step | None = None) -> list[Envelope]:
        """End a turn in which the entity was stopped. `step` is the loom's record of the turn, if any."""
        if self.is_ended:
            return []
        made = [self._make_envelope(ItemCancelled(item_id, reason)) for item_id in self._open]
        made.append(self._end(self._make_done("cancelled", step)))
        return made

    def fail(self, error: StreamError | None = None) -> list[Envelope]:
        """End a turn that failed: the crystal gave up, or the entity crashed. Subscribers close the open items.

        `error` defaults to the one that the crystal's own stream reported.
        """
        if self.is_ended:
            return []
        why = error or self.failure or StreamError("RESPONSE_ERROR", "the turn failed")
        return [self._end(ResponseError(why))]

    def _make_done(self, status: ResponseStatus, step: Step | None) -> ResponseDone:
        done = self._done or ResponseDone("completed")
        return ResponseDone(status, done.finish_reason, usage=done.usage, step=step)

    def _end(self, payload: ResponseDone | ResponseError) -> Envelope:
        self.is_ended = True
        self._open.clear()
        self._calls.clear()
        return self._make_envelope(payload)

    # Items and envelopes

    def _make_item_id(self, block: str) -> str:
        return str(ItemId(self.turn_id, self._attempt, block))

    def _complete_item(self, payload: ItemStart | ItemDelta | ItemDone | ItemError | ItemCancelled) -> Payload:
        """Return the payload with the item's full id; note which items are open and which calls have no output."""
        item_id = self._make_item_id(payload.item_id)
        self._has_emitted = True
        match payload:
            case ItemDelta():
                return ItemDelta(item_id, self._redact_delta(item_id, payload.delta_content))
            case ItemStart():
                self._open[item_id] = payload.item_type
                if payload.item_type == "function_call" and payload.call_id:
                    self._calls[payload.call_id] = item_id
            case ItemDone():
                final = payload.final_item
                self._finished[item_id] = final.type
                if isinstance(final, FinalFunctionCall):
                    self._open[item_id] = "function_call"
                    self._calls[final.call_id] = item_id
                else:
                    self._open.pop(item_id, None)
                if isinstance(final, FinalFunctionCallOutput):  # of a tool that the provider ran itself
                    self._open.pop(self._calls.pop(final.call_id, ""), None)
            case ItemError() | ItemCancelled():
                self._finished.pop(item_id, None)
                self._open.pop(item_id, None)
                self._calls = {call: item for call, item in self._calls.items() if item != item_id}
        self._texts.pop(item_id, None)
        return replace(payload, item_id=item_id)

    def _redact_delta(self, item_id: str, text: str) -> str:
        if self._redactor is None:
            return text
        if item_id not in self._texts:
            self._texts[item_id] = RedactedStream(self._redactor())
        return self._texts[item_id].feed(text)

    def _make_envelope(self, payload: Payload) -> Envelope:
        if self._redactor is not None and not isinstance(payload, ItemDelta):
            payload = self._redactor().value(payload)
        return Envelope(
            self._new_event_id(), format_instant(self._now()), self.turn_id, self.session_id, payload, self.parent
        )
