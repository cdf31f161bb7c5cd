"""Responses and their items by their ids: clients refer to an item of an earlier response instead of repeating it.

The loom has the answers and the calls. The text before an answer comes back with the calls of the same utterance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cantrip_actors import Work
from cantrip_actors.http.answer_form import AnswerForm, read_note
from cantrip_actors.http.calls import HttpCall
from cantrip_actors.http.client_rounds import read_last_words
from cantrip_actors.http.episode_tools import CALL, get_function, split_client_id
from cantrip_actors.http.openai_encoders import WAIT, answer_text
from cantrip_actors.http.openai_models import REPEATED, ResponseBody
from cantrip_actors.http.past_answers import PastAnswer, PastAnswers, read_past_answers
from cantrip_actors.http.person_waits import name_wait
from cantrip_actors.http.problems import Problem
from cantrip_actors.http.request_messages import ID
from cantrip_actors.records.records import IntentGiven
from cantrip_actors.terms.outcome import Outcome
from cantrip_actors.terms.work_id import make_work_id

ROUND: Final = "~"
SETTINGS: Final = "response"
"""The member of the note of an intent that has the settings of its request."""
_AFTER_ROUND: Final = re.compile(f"{ROUND}[0-9a-f]{{16}}$")
_NUMBER: Final = re.compile(r"_\d+$")
_REFERENCE: Final = "item_reference"


def find_response(call: HttpCall, id: str) -> Work:
    """Return the work on a response. Raises Problem 404."""
    work = call.runtime.work(_AFTER_ROUND.sub("", id.removeprefix(ID))) if id.startswith(ID) else None
    if work is None or not call.sees(work.entity_id):
        raise Problem(404, "not_found", "no response has this id")
    return work


def find_stored(call: HttpCall, id: str) -> Work:
    """Return the work on a response whose content is there. Raises Problem 404."""
    work = find_response(call, id)
    if call.runtime.loom.is_forgotten(work.entity_id):
        raise Problem(404, "not_found", "the content of this response was erased")
    return work


def get_round_key(id: str) -> str:
    """Return the key of the results with which the response before this one was continued; "" for the first one."""
    return id.partition(ROUND)[2]


def find_previous_id(call: HttpCall, work: Work, past: PastAnswers) -> str | None:
    """Return the id of the response before the one that has `past` answers before it: that of an earlier round of a
    work, or of an earlier intent; None if the response begins a conversation. Reads the loom.
    """
    if past.before:
        return _make_id(work.id, past.before[:-1])
    loom = call.runtime.loom
    header, intents = loom.header(work.entity_id), loom.intents(work.entity_id)
    at = next((at for at, intent in enumerate(intents) if at and intent.key == work.key), 0 if not work.key else None)
    before = intents[:at]  # all of them, if the intent still waits
    if not before and header.forked and header.parent_turn is not None:
        before = loom.intents_before(header.parent_turn)
    if not before:
        return None
    last, is_first = before[-1], before[-1] == loom.first_intent(before[-1].entity_id)
    key = "" if is_first else last.key or ""
    work_id = make_work_id(last.entity_id, key)
    return _make_id(work_id, read_past_answers(call, last.entity_id, key).after)


def _make_id(work_id: str, rounds: Sequence[PastAnswer]) -> str:
    """Return the id of the answer after these of a work."""
    return f"{ID}{work_id}{ROUND}{rounds[-1].key}" if rounds else f"{ID}{work_id}"


def find_memo(call: HttpCall, answer: PastAnswer) -> Any:
    """Return the note of the request that continued an earlier answer, with results or a reply; None if it had none.

    Reads the loom.
    """
    ids = (split_client_id(id) or (id.partition(":")[0], id.split(":")[2]) for id in answer.results)
    calls = (call.runtime.shown_loom.find_call(*names) for names in ids)
    return next((made.memo for made in calls if made is not None and made.memo is not None), None)


def find_noted_form(call: HttpCall, work: Work, note: Any, outcome: Outcome | None) -> AnswerForm | None:
    """Return the form of answer that the note of a request says, if the client asked for one. Reads the loom."""
    if note is None:
        return None
    loom, last = call.runtime.loom, None if outcome is None else outcome.last_turn
    header = loom.header_in_force(work.entity_id) if last is None else loom.header_at(last)
    return read_note(note, next((gate["parameters"] for gate in header.circle["gates"] if gate["name"] == "done"), {}))


def write_settings(body: ResponseBody) -> dict[str, Any]:
    """Return the fields of a request that its response repeats, in the form of a response."""
    settings = {name: value for name in REPEATED if (value := getattr(body, name)) is not None}
    functions = map(get_function, body.tools or ())
    settings["tools"] = [
        {
            "type": "function",
            "name": function.get("name"),
            "description": function.get("description"),
            "parameters": function.get("parameters"),
            "strict": function.get("strict"),
        }
        for function in functions
    ]
    if isinstance(body.tool_choice, dict):
        settings["tool_choice"] = {"type": "function", "name": get_function(body.tool_choice).get("name")}
    if body.text is not None and body.text.verbosity is not None:
        settings["text"] = {"verbosity": body.text.verbosity}
    return settings


def read_settings(note: Any) -> Mapping[str, Any]:
    """Return the settings in the note of a request; empty for one that no request for a response has written."""
    settings = note.get(SETTINGS) if isinstance(note, Mapping) else None
    return settings if isinstance(settings, Mapping) else {}


def find_intent(call: HttpCall, work: Work) -> IntentGiven | None:
    """Return the intent of a work; None if it was forgotten. Reads the loom."""
    loom = call.runtime.loom
    listed = [*loom.waiting_intents(work.entity_id), *loom.intents(work.entity_id)]
    return next((intent for intent in listed if (intent.key or "") == work.key), None)


def has_references(items: Sequence[dict[str, Any]]) -> bool:
    """Return whether items refer to items of earlier responses."""
    return any(item.get("type") == _REFERENCE for item in items)


def resolve_references(
    call: HttpCall, places: Sequence[str], items: Sequence[dict[str, Any]]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return items, and where the request has each, with those of earlier responses in place of references to them.

    Reads the loom. Raises Problem 400 for a reference to an unknown item.
    """
    resolved: list[tuple[str, dict[str, Any]]] = []
    texts: set[str] = set()
    """The ids of the responses and of the turns whose text is there."""
    for number, (where, item) in enumerate(zip(places, items, strict=True)):
        if item.get("type") != _REFERENCE:
            resolved.append((where, item))
            continue
        id = str(item.get("id"))
        if id.startswith("msg_") and _precedes_call(items[number + 1 :]):
            continue  # its words come with the call
        if not id.startswith("rs_"):  # the reasoning of an answer is no part of a context
            resolved += [(where, part) for part in _find_item(call, where, id, texts)]
    return [where for where, _ in resolved], [item for _, item in resolved]


def _precedes_call(rest: Sequence[dict[str, Any]]) -> bool:
    ids = (str(item.get("id")) if item.get("type") == _REFERENCE else "" for item in rest)
    return next((id for id in ids if not id.startswith(("msg_", "rs_"))), "").startswith("fc_")


def _find_item(call: HttpCall, where: str, id: str, texts: set[str]) -> Iterator[dict[str, Any]]:
    entity_id, call_id = split_client_id(CALL + id.removeprefix("fc_")) or ("", "")
    is_call = id.startswith("fc_") and call.runtime.loom.has(entity_id) and call.sees(entity_id)
    made = call.runtime.shown_loom.find_call(entity_id, call_id) if is_call else None
    utterance = None if made is None else made.utterance
    if utterance is not None:
        if utterance.content and utterance.turn_id not in texts:
            yield _make_message(utterance.content)
        texts.add(utterance.turn_id)
        tool_call = next(tool_call for tool_call in utterance.tool_calls if tool_call.id == call_id)
        name = f"{CALL}{entity_id}.{call_id}"
        yield {"type": "function_call", "call_id": name, "name": tool_call.gate, "arguments": tool_call.arguments}
        return
    if id.startswith(WAIT):
        yield _make_message(name_wait(_find_response(call, where, id.removeprefix(WAIT))[1]))
        return
    response_id, work = _find_response(call, where, id.partition("_")[2])
    if response_id not in texts:
        texts.add(response_id)
        yield _make_message(_read_text(call, work, response_id) or "")


def _read_text(call: HttpCall, work: Work, response_id: str) -> str | None:
    """Return the text of a response."""
    past = read_past_answers(call, work.entity_id, work.key, get_round_key(response_id)).after
    outcome = None if past else work.find_outcome(redacted=True)
    if outcome is not None:
        return answer_text(outcome)
    return past[0].rest.words if past else read_last_words(call, work.entity_id)


def _find_response(call: HttpCall, where: str, id: str) -> tuple[str, Work]:
    """Return the id of the response of an item, and its work: a streamed item has a number behind that id."""
    for candidate in (id, _NUMBER.sub("", id)):
        try:
            return candidate, find_response(call, candidate)
        except Problem:
            continue
    text = f"{where}: no response has an item with this id: send the message or the call itself"
    raise Problem(400, "invalid", text, param="input")


def _make_message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
