"""The working context: render records as messages, choose those of the next query, and estimate their size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from cantrip_actors.machine.state import Shape, State
from cantrip_actors.records.records import Observation, Utterance
from cantrip_actors.terms.context import LEAST_SHOWN, View, measure
from cantrip_actors.terms.image import NO_IMAGES
from cantrip_actors.terms.messages import Message, ToolCall
from cantrip_actors.terms.on_demand import restore_call
from cantrip_actors.terms.own_gate_names import PERSON

SKIPPED: Final = "[not run: done was called before]"
LEFT_OUT: Final = "[not run: the thread was forked before]"
NO_GATE: Final = "[no gate was called; go on, and call done(answer) when the task is complete]"

TOKENS_A_CHARACTER: Final = 0.3
"""Used until the crystal has reported tokens: high for prose, right for code."""


def render_utterance(utterance: Utterance) -> Message:
    """Return the assistant message of an utterance: its text and its code, as one text."""
    text = (
        utterance.content
        if not utterance.code
        else f"{utterance.content}\n{utterance.code}"
        if utterance.content
        else utterance.code
    )
    calls = tuple(map(restore_call, utterance.tool_calls)) if utterance.tool_calls else ()
    return Message("assistant", text, calls, None, None, False, utterance.thinking, utterance.blocks, utterance.images)


def call_person(message: Message, number: int) -> tuple[ToolCall, ...]:
    """Return the call that an utterance without calls is in a circle with medium="person": its text is for a person.

    `number` counts the utterances of the thread from 1. A blank text is no call.
    """
    text = message.content
    if message.tool_calls or text is None or not text.strip():
        return ()
    return (ToolCall(f"call_{number}_1", PERSON, {"text": text}),)


def render_reply(observation: Observation) -> Message:
    """Return the user message of a person's reply: to a crystal it is the next message of a conversation."""
    return Message("user", observation.content, images=observation.images)


def render_result(observation: Observation, *, hidden: bool) -> Message:
    """Return the tool message of an observation; `hidden` if it is ephemeral and has faded (D-010)."""
    text = f"[ephemeral:{observation.gate}]" if hidden else observation.content
    images = NO_IMAGES if hidden else observation.images
    gate, failed = observation.gate, observation.is_error
    return Message("tool", text, (), observation.tool_call_id, gate, failed, None, (), images)


def render_unanswered(calls: Iterable[ToolCall], why: str) -> Iterator[Message]:
    """Yield tool messages for calls that were not run: providers demand a result for every call of an utterance."""
    for call in calls:
        yield Message("tool", why, (), call.id, call.gate, False)


def build_view(shape: Shape, state: State, squeezed: int | None = None) -> View:
    """Return the messages of the next query: the call, the intents in force, the visible turns (LOOP-5, LOOM-6).

    Long results are shown in part. With `squeezed`, it shows at most so many characters of one result, and of one
    earlier intent.
    """
    conversation = state.conversation
    said, fading = conversation.said, conversation.fading
    faded = conversation.faded + sum(since <= said for since in fading) if fading else conversation.faded
    bound = shape.bound
    if squeezed is not None:
        bound = bound._replace(squeezed=squeezed, intent_at=conversation.intent_at)
    return View(conversation.context, said, faded, bound)


def find_smaller_bound(shape: Shape, state: State, squeezed: int | None) -> int | None:
    """Return the bound on the shown characters of one result with which a query shows half of what it showed with
    `squeezed`, so that the longest are cut first; None if nothing is left to cut.
    """
    bound = shape.bound._replace(intent_at=state.conversation.intent_at)
    shown = enumerate(build_view(shape, state, squeezed))
    lengths = sorted(measure(message) for at, message in shown if bound.is_on(at, message))
    left, target = len(lengths), sum(lengths) // 2
    for length in lengths:
        if length * left >= target:
            break
        target -= length
        left -= 1
    if not left or lengths[-1] <= LEAST_SHOWN:
        return None
    return max(target // left, LEAST_SHOWN)


def estimate_tokens(state: State) -> int:
    """Return how many prompt tokens the next query takes: those of the last query, and an estimate of the new part.

    0 if the crystal reported no tokens and the size of the context is not counted.
    """
    conversation = state.conversation
    if not conversation.tokens:
        return round(conversation.size * TOKENS_A_CHARACTER)
    before = conversation.tokens_for
    rate = min(2.0, max(0.02, conversation.tokens / before)) if before else TOKENS_A_CHARACTER
    return conversation.tokens + round(max(0, conversation.size - before) * rate)


def summarise(state: State, how: str) -> str:
    """Return what the episode accomplished before it was cut off (LOOP-4): turns, gates that answered, last words."""
    episode = state.episode
    parts = [f"{how} after {episode.utterances} {'turn' if episode.utterances == 1 else 'turns'}"]
    for title, counted in (("gates run", episode.ran), ("gates failed", episode.failed)):
        if counted:
            parts.append(f"{title}: " + ", ".join(f"{name} x{n}" if n > 1 else name for name, n in counted.items()))
    words = episode.words
    if words is not None:
        parts.append(f"last words: {words if len(words) <= 200 else words[:199] + '…'}")
    return "; ".join(parts)
