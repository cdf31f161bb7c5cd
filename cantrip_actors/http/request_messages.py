"""The messages of a request in the form of OpenAI's API: an intent, its history, and results of calls.

Chat completions have messages, responses have items, and those of Anthropic's API come as messages of a chat completion
(`anthropic.py`). The last message of the user is the intent, and all others are its history, with their roles, calls,
results and images. No part is left out silently: a part that cannot be in a history is refused, and the error names its
message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from cantrip_actors import File, InvalidImage
from cantrip_actors.http.calls import HttpCall
from cantrip_actors.http.client_rounds import ClientResult, Results, make_unknown_call
from cantrip_actors.http.episode_tools import CALL, split_client_id
from cantrip_actors.http.files import data_of, file_of, image_of
from cantrip_actors.http.person_waits import find_wait
from cantrip_actors.http.problems import Problem
from cantrip_actors.terms.image import split_message

ID: Final = "resp_"
"""How the id of a response begins."""
CONTINUE: Final = "The results of your calls are above: continue."
"""The intent of a request that ends with results of calls for which no entity waits."""

_PARTS: Final = frozenset({"text", "input_text", "output_text"})
_IMAGES: Final = frozenset({"image_url", "input_image"})
_FILES: Final = frozenset({"file", "input_file"})
_OF_MODEL: Final = frozenset({"function_call", "custom_tool_call", "reasoning"})
"""The kinds of items that a model makes, beside messages of an assistant."""
_OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output"})
_ROLES: Final[Mapping[Any, str]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}

LONGEST_NAME: Final = 64
"""The most characters of the name of a speaker, as in OpenAI's API."""
_NAME: Final = re.compile(r"[^\s<|\\/>]+")

_Said = str | list[str | File] | None

Past = dict[str, Any]
"""A message of a history, as `Runtime.cast` takes it."""


class ChatInput(NamedTuple):
    """The input of an entity: the last message of the user as its intent, and all other messages as its history.

    With `results`, of calls that the client has carried out, an entity continues instead; the history are messages for
    it. With `waits`, the id of work that waited for a person, the request asks for its answer.
    """

    intent: Any
    history: Sequence[Past] = ()
    results: Results = MappingProxyType({})
    waits: str | None = None


def parse_messages(
    call: HttpCall, messages: Sequence[dict[str, Any]], param: str, places: Sequence[str] | None = None
) -> ChatInput:
    """Return the intent and the history of messages, or the results of calls. Raises Problem 400.

    `places` say where the request has each message; without them it has all of them in `param`.
    """
    places = [f"{param}[{number}]" for number in range(len(messages))] if places is None else places
    request = [
        _RequestMessage(where, _find_role(where, message), message)
        for where, message in zip(places, messages, strict=True)
    ]
    if call.service.system_messages == "refuse" and any(message.role == "system" for message in request):
        text = "this service refuses system messages: cantrips have their own"
        raise Problem(400, "unsupported_value", text, param=param)
    request, waits = _leave_out_waits(request)
    if waits is not None:
        return ChatInput(None, waits=waits)
    reply = 1 + max((number for number, message in enumerate(request) if message.role == "assistant"), default=-1)
    results = _read_results(request[reply:], param)
    if any(map(split_client_id, results)):
        news = [past for past in _read_history(request[reply:]) if past["role"] in ("user", "system")]
        return ChatInput(None, news, results)
    chat_input = _find_intent(request, param)
    calls = {tool_call["id"] for past in chat_input.history for tool_call in past.get("tool_calls", ())}
    for id in results:  # of another service: a part of the conversation
        if id not in calls:
            raise make_unknown_call(param, id)
    return chat_input


def _leave_out_waits(request: list[_RequestMessage]) -> tuple[list[_RequestMessage], str | None]:
    """Return the messages without the answers about a person's decision and without the messages after them, which
    asked again; and the id of the work of the last one, if the request asks again.
    """
    left: list[_RequestMessage] = []
    waits: str | None = None
    for message in request:
        work_id = find_wait(_get_text(message)) if message.role == "assistant" else None
        if message.role == "system" or (work_id is None and (waits is None or message.role != "user")):
            left.append(message)
        if message.role == "assistant":
            waits = work_id
    return left, waits


def _get_text(message: _RequestMessage) -> str:
    """Return the text of an answer, or that in its place."""
    content = message.fields.get("content")
    parts = content if isinstance(content, list) else [{"text": content}, message.fields]
    texts = [part.get("text") or part.get("refusal") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


class _RequestMessage(NamedTuple):
    where: str
    role: str
    fields: Mapping[str, Any]


def select_news(history: Iterable[Past], texts: Collection[str], *, is_whole: bool) -> list[Past]:
    """Return the messages that an entity does not have; `texts` are those that it was given.

    A client that sends its `is_whole` conversation repeats what the entity has: messages of users and systems with such
    a text, and the answers to them. Otherwise only system messages are repeated.
    """
    news: list[Past] = []
    is_repeated = False
    for past in history:
        if past["role"] == "system" or (is_whole and past["role"] == "user"):
            is_repeated = split_message(past["content"], "history").text in texts
        elif not is_whole:
            is_repeated = False
        if not is_repeated:
            news.append(past)
    return news


def _find_role(where: str, message: Mapping[str, Any]) -> str:
    kind, role = str(message.get("type", "message")), str(message.get("role"))  # a client may send any JSON
    if kind in _OF_MODEL:
        return "assistant"
    if kind in _OUTPUTS:
        return "tool"
    if kind != "message":
        why = "tools that a provider runs belong to the cantrip"
        raise _refuse(where, f"expected messages, calls of functions and their results, got {kind:.50}; {why}")
    if role not in _ROLES:
        raise _refuse(where, f"expected one of the roles {', '.join(_ROLES)}, got {role:.50}")
    return _ROLES[role]


def _find_intent(request: Sequence[_RequestMessage], param: str) -> ChatInput:
    """Return the last message of the user as the intent, and the others as its history."""
    history = _read_history(request)
    end = next((past["role"] for past in reversed(history) if past["role"] != "system"), None)
    if end == "tool":
        return ChatInput(CONTINUE, history)
    if not any(message.role == "user" for message in request):
        raise Problem(400, "invalid", f"{param}: expected a message of the user", param=param)
    final = request[-1]
    if end is None or (final.role == "user" and not _read_content(final.where, final.fields.get("content"))):
        raise Problem(400, "invalid", f"{param}: the last message of the user has no text", param=param)
    if end == "assistant":
        text = "expected a message of the user at the end, got one of the assistant: an entity begins its own answers"
        raise _refuse(final.where, text)
    last = max(number for number, past in enumerate(history) if past["role"] == "user")
    return ChatInput(history[last]["content"], [*history[:last], *history[last + 1 :]])


# ------------------------------------------------------------------------------------------------------- the history


def _read_history(request: Iterable[_RequestMessage]) -> list[Past]:
    """Return messages as a history, without empty ones."""
    history: list[Past] = []
    for where, role, fields in request:
        past = {"role": role, **_READERS[role](where, fields)}
        before = history[-1] if history else None
        if before is not None and role == before["role"] == "assistant" and _belongs_to(fields, before):
            history[-1] = _join(before, past)
        elif _says_something(past) or past.get("thinking"):
            history.append(past)
    return list(filter(_says_something, _name_assistants(history)))


def _name_assistants(history: Sequence[Past]) -> Iterator[Past]:
    """Yield a history in which the texts of assistants begin with their names, if it has several assistants.

    If it has one, its text stays as it is: the model would answer with its name, too.
    """
    names = {past.get("name") for past in history if past["role"] == "assistant" and past.get("content")}
    for past in history:
        name = past.pop("name", None)
        yield past if len(names) < 2 else {**past, "content": _name_speaker(name, past.get("content"))}


def _says_something(past: Past) -> bool:
    return bool(past.get("content") or past.get("tool_calls") or past["role"] == "tool")


def _belongs_to(item: Mapping[str, Any], before: Past) -> bool:
    """Return whether an item is of the same answer as the item before it: reasoning, a message, calls."""
    is_reasoning_only = not before.get("content") and not before.get("tool_calls")
    return is_reasoning_only or item.get("type") in _OF_MODEL - {"reasoning"}


def _join(before: Past, after: Past) -> Past:
    calls = [*before.get("tool_calls", ()), *after.get("tool_calls", ())]
    thinking = "\n\n".join(filter(None, (before.get("thinking"), after.get("thinking")))) or None
    return {
        "role": "assistant",
        "content": before.get("content") or after.get("content"),
        "tool_calls": calls,
        "thinking": thinking,
        "name": before.get("name") or after.get("name"),
    }


def _read_assistant(where: str, message: Mapping[str, Any]) -> Past:
    kind = message.get("type")
    if kind == "reasoning":
        texts = [
            part.get("text")
            for key in ("summary", "content")
            for part in message.get(key) or ()
            if isinstance(part, dict)
        ]
        return {"thinking": "\n\n".join(text for text in texts if isinstance(text, str)) or None}
    if kind in _OF_MODEL:
        return {"tool_calls": [_read_call(where, message.get("call_id"), message)]}
    if message.get("audio"):
        raise _refuse(where, "audio of an earlier answer is not kept here: send its transcript as content")
    calls = [_read_tool_call(where, call) for call in message.get("tool_calls") or ()]
    if message.get("function_call"):
        calls.append(_read_call(where, "", message["function_call"]))
    content = _read_content(where, message.get("content")) or message.get("refusal") or None
    name = _read_name(where, message.get("name"))
    thinking = message.get("reasoning_content") or message.get("reasoning")
    spoken = {"content": content, "thinking": thinking if isinstance(thinking, str) else None}
    return {**spoken, "tool_calls": calls, "name": name}


def _read_tool_call(where: str, call: Any) -> Past:
    fields = call if isinstance(call, dict) else {}
    return _read_call(where, fields.get("id"), fields.get("function") or fields.get("custom"))


def _read_call(where: str, id: Any, function: Any) -> Past:
    """Return a call of a function, or of a custom tool, whose input is any text."""
    fields = function if isinstance(function, dict) else {}
    name, arguments = fields.get("name"), fields.get("arguments")
    if not isinstance(id, str) or not isinstance(name, str) or not name:
        raise _refuse(where, "expected calls with an id and the name of a function")
    if "input" in fields and arguments is None:
        arguments = {"input": fields["input"]}
    return {"id": id, "gate": name, "args": arguments or {}}


def _read_result(where: str, message: Mapping[str, Any]) -> Past:
    id = message.get("call_id", message.get("tool_call_id"))
    content = message.get("output" if message.get("type") in _OUTPUTS else "content")
    name, is_error = message.get("name"), message.get("is_error")
    if not isinstance(is_error, bool | None):
        raise _refuse(where, f"is_error: expected true or false, got {is_error!r:.50}")
    gate = name if isinstance(name, str) else None
    return {"content": _read_content(where, content), "tool_call_id": id, "gate": gate, "is_error": is_error is True}


def _read_said(where: str, message: Mapping[str, Any]) -> Past:
    """Return what a user or a system says; a text of one with a name begins with that."""
    content = _read_content(where, message.get("content"))
    return {"content": _name_speaker(_read_name(where, message.get("name")), content)}


def _read_name(where: str, name: Any) -> str | None:
    """Return the name of a speaker, None without one. Raises Problem 400 for one that could be taken for a text."""
    if name is None or name == "":
        return None
    if not (isinstance(name, str) and len(name) <= LONGEST_NAME and _NAME.fullmatch(name)):
        text = f"name: expected at most {LONGEST_NAME} characters without white space and <|\\/>, got {name!r:.80}"
        raise _refuse(where, text)
    return name


def _name_speaker(name: str | None, content: _Said) -> _Said:
    """Return a content that begins with the name of its speaker, if that has one."""
    if name is None or content is None:
        return content
    if isinstance(content, str):
        return f"{name}: {content}"
    first, *rest = content
    return [f"{name}: {first}", *rest] if isinstance(first, str) else [f"{name}:", *content]


_READERS: Final[Mapping[str, Callable[[str, Mapping[str, Any]], Past]]] = {
    "system": _read_said,
    "user": _read_said,
    "assistant": _read_assistant,
    "tool": _read_result,
}


# ----------------------------------------------------------------------------------------------- results and contents


def _read_results(request: Iterable[_RequestMessage], param: str) -> dict[str, ClientResult]:
    """Return the results of the calls of the last answer, by the ids of the calls. Raises Problem 400.

    A call that had the answer in a form, and no entity that waits, has no result: the messages are a conversation.
    """
    results: dict[str, ClientResult] = {}
    for where, role, message in request:
        if role != "tool" or message.get("role") == "function":
            continue
        id = message.get("call_id", message.get("tool_call_id"))
        if not isinstance(id, str):
            raise Problem(400, "invalid", f"{param}: expected the id of the call with its result", param=param)
        if not id.startswith((f"{CALL}chatcmpl-", f"{CALL}{ID}", "toolu_")):
            past = _read_result(where, message)
            content = past["content"] or ""
            if not isinstance(content, str):  # the texts first, as the result of a deferred call has them
                content = sorted(content, key=lambda part: isinstance(part, File))
            results[id] = ClientResult(content, past["is_error"])
    return results


def _read_content(where: str, content: Any) -> str | list[str | File] | None:
    """Return the content of a message: a text, or a list of texts, images and files in order; None if it is empty."""
    if content is None or isinstance(content, str):
        return content if content is not None and content.strip() else None
    parts = [_read_part(where, item) for item in (content if isinstance(content, list) else [content])]
    parts = [part for part in parts if not isinstance(part, str) or part.strip()]
    if all(isinstance(part, str) for part in parts):
        return "\n".join(map(str, parts)) or None
    return parts


def _read_part(where: str, item: Any) -> str | File:
    """Return a part of a message. Raises Problem 400."""
    part: dict[str, Any] = item if isinstance(item, dict) else {}
    kind = str(part.get("type"))
    if kind in _PARTS and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if kind in _IMAGES:
        address = part.get("image_url")
        url = address.get("url") if isinstance(address, dict) else address
        if not isinstance(url, str):
            raise Problem(400, "invalid", f"{where}: expected the URL of an image", param=_get_param(where))
        try:
            return image_of(url, where)
        except InvalidImage as error:
            raise _refuse(where, str(error)) from error
    if kind in _FILES:
        return _read_file(where, part if kind == "input_file" else part.get("file"))
    if kind == "input_audio":
        return _read_sound(where, part.get("input_audio"))
    raise _refuse(where, f"expected texts, images, files and audio, got {part.get('type', item)!r:.50}")


def _read_file(where: str, part: Any) -> File:
    """Return the file that a part embeds or links to."""
    file = part if isinstance(part, dict) else {}
    url, name = file.get("file_data") or file.get("file_url"), file.get("filename")
    if not isinstance(url, str) or not isinstance(name, str | None):
        raise _refuse(where, "expected a file as file_data or file_url; this service keeps no files of its own")
    is_bare = not url.startswith(("data:", "https:", "http:"))  # OpenAI also takes base64 without a data: URL
    return file_of(f"data:;base64,{url}" if is_bare else url, name, where)


def _read_sound(where: str, part: Any) -> File:
    sound = part if isinstance(part, dict) else {}
    data, form = sound.get("data"), sound.get("format")
    if not isinstance(data, str) or form not in ("wav", "mp3"):
        text = f"{where}: expected audio as data in base64 and format wav or mp3"
        raise Problem(400, "invalid", text, param=_get_param(where))
    return File(data_of(data, where), filename=f"audio.{form}")


def _refuse(where: str, text: str) -> Problem:
    return Problem(400, "unsupported_value", f"{where}: {text}", param=_get_param(where))


def _get_param(where: str) -> str:
    return where.partition("[")[0]
