"""`python -m conformance wire DIR`: recorded answers of providers, decoded however the network cuts them.

`DIR` has a folder for each interface (anthropic, cohere, google, mistral, ollama, openai-chat, openai-responses) with
recordings: `*.json` is a whole body, `*.chunks.txt` a stream, one JSON event per line. Each response of each file is
framed as its provider frames it and decoded in one piece, in pieces of several sizes down to single bytes, and with
every kind of line end. It passes if all results are the same and right: a valid response or, if the provider reports
a failure, an error; and a valid sequence of canonical events with the same content as the response.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cantrip_actors.crystals import Outcome, Recording, faults, recordings

SIZES = (1, 2, 3, 7, 64, 1460, 4096)
"""Bytes of a chunk; 1460 is the payload of an Ethernet packet."""


def main(argv: list[str]) -> int:
    """Print a line for each recording and a last line with the counts; return 0 if all passed."""
    if len(argv) != 1 or not Path(argv[0]).is_dir():
        print("expected a folder: python -m conformance wire DIR", file=sys.stderr)
        return 2
    passed = failed = 0
    for file, family in _files(Path(argv[0])):
        problems, reports = check(file, family)
        name = file.relative_to(argv[0])
        if problems:
            failed += 1
            print(f"FAILED {name}", *(f"  {problem}" for problem in problems), sep="\n")
        else:
            passed += 1
            print(f"passed {name}: {reports}")
    print(f"{passed} passed, {failed} failed")
    if passed + failed == 0:
        print("no recordings there: expected files that end in .json or .chunks.txt", file=sys.stderr)
    return int(failed > 0 or passed == 0)


def _files(folder: Path) -> Iterator[tuple[Path, str | None]]:
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name.endswith((".json", ".chunks.txt")):
            yield file, file.parent.name if file.parent.name in ENDS else None


def check(file: Path, family: str | None) -> tuple[list[str], str]:
    """Return the problems of decoding a file, and a short description of its content."""
    try:
        recorded = recordings(file, family)
    except ValueError as error:
        return [str(error).removeprefix(f"recording {file}: ")], ""
    problems: list[str] = []
    reports = []
    for number, recording in enumerate(recorded, 1):
        outcome = recording.play()
        broken = [str(n) for n, event in enumerate(recording.events, 1) if not isinstance(_read(event), dict)]
        reports.append(_describe(outcome) + (f" (no JSON object: event {', '.join(broken[:5])})" if broken else ""))
        wrong = [*_wrong(outcome, recording), *_cut(recording, outcome)]
        problems += [f"response {number}: {problem}" for problem in wrong]
    return problems, ", then ".join(reports)


def _wrong(outcome: Outcome, recording: Recording) -> Iterator[str]:
    yield from faults(outcome.payloads)
    response = outcome.response
    if response is None:
        reports = [value for event in recording.events if isinstance(value := _read(event), dict)]
        if not (any(map(_reports, reports)) or _is_silent(recording, reports)):
            yield f"an error, although the provider reports none: {outcome.error}"
        return
    finals = [payload.final_item for payload in outcome.payloads if payload.type == "item_done"]
    messages = [final.content for final in finals if final.type == "message"]
    if "".join("".join(messages).split()) != "".join((response.content or "").split()):
        yield "the stream's messages are not the response's content"
    calls = [(final.name, final.call_id) for final in finals if final.type == "function_call"]
    if calls != [(call.gate, call.id) for call in response.tool_calls]:
        yield "the stream's calls are not the response's"
    if len({call.id for call in response.tool_calls}) < len(response.tool_calls) or not all(i for _, i in calls):
        yield "calls without ids of their own"
    whole: dict[str, str] = {}
    for payload in outcome.payloads:
        if payload.type == "item_delta":
            whole[payload.item_id] = whole.get(payload.item_id, "") + payload.delta_content
        elif payload.type == "item_done" and payload.final_item.type == "message":
            shown = whole.get(payload.item_id, "")
            # Responses repeat the text at its end, and that counts: recordings may leave out deltas
            if shown not in ("", payload.final_item.content) and recording.family != "openai-responses":
                yield f"the deltas of item {payload.item_id} are not its content"


def _reports(event: dict[str, Any]) -> bool:
    """Return whether the provider reports in this event that the answer failed or is incomplete."""
    response, candidate, choice = _mapping(event.get("response")), _first(event, "candidates"), _first(event, "choices")
    reports = _mapping(event.get("delta")).get("stop_reason") or event.get("stop_reason")
    return bool(
        event.get("error")
        or event.get("type") == "error"
        or event.get("object") == "error"
        or choice.get("error")
        or response.get("error")
        or response.get("incomplete_details")
        or event.get("incomplete_details")
        or "failed" in (event.get("status"), response.get("status"))
        or "cancelled" in (event.get("status"), response.get("status"))
        or _mapping(event.get("promptFeedback")).get("blockReason")
        or (candidate.get("finishReason") or "STOP") != "STOP"
        or (choice.get("finish_reason") or "stop") in ("content_filter", "length", "error")
        or _mapping(event.get("delta")).get("finish_reason") in ("ERROR", "ERROR_TOXIC", "TIMEOUT")
        or reports in ("refusal", "max_tokens", "pause_turn", "model_context_window_exceeded")
    )


def _read(event: bytes) -> Any:
    """Return the JSON value of an event; None for a broken event, which some recordings contain on purpose."""
    try:
        return json.loads(event)
    except (ValueError, RecursionError):
        return None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _first(event: dict[str, Any], name: str) -> dict[str, Any]:
    listed = event.get(name)
    return _mapping(listed[0]) if isinstance(listed, list) and listed else {}


ENDS = {
    "anthropic": ("message_stop", '"stop_reason"'),
    "openai-responses": ("response.completed", "response.incomplete", "response.failed", '"status"'),
    "openai-chat": ("choices",),
    "google": ("finishReason",),
    "mistral": ("choices",),
    "cohere": ("finish_reason",),
    "ollama": ('"done"',),
}
"""Keys of which a complete recording has at least one."""


def _is_silent(recording: Recording, reports: list[dict[str, Any]]) -> bool:
    """Return whether a recording has no text and no call (an image is not an answer), or its end is missing."""
    text = b" ".join(recording.events).decode(errors="replace")
    if not any(end in text for end in ENDS[recording.family]):
        return True
    return not any(_says(value) for value in reports)


def _says(value: Any) -> bool:
    """Return whether an event of a provider contains text or a call."""
    if isinstance(value, list):
        return any(map(_says, value))
    if not isinstance(value, dict):
        return False
    if value.get("type") in ("tool_use", "function_call", "custom_tool_call") or value.get("functionCall"):
        return True
    words = [value.get(name) for name in ("text", "content", "refusal", "delta")]
    if not value.get("thought") and any(isinstance(word, str) and word.strip() for word in words):
        return True
    return any(
        _says(inner) for name, inner in value.items() if name not in ("tools", "instructions", "input", "summary")
    )


def _cut(recording: Recording, outcome: Outcome) -> Iterator[str]:
    framed = recording.framed()
    chance = random.Random(7)
    for ends in (b"\n", b"\r\n", b"\r"):
        text = framed if ends == b"\n" else framed.replace(b"\n", ends)
        for size in SIZES:
            if len(text) // size > 400_000:
                continue  # a recording of images; the sizes above show the same
            chunks = (text[at : at + size] for at in range(0, len(text), size))
            if _differs(recording.play(chunks), outcome):
                yield f"another result in chunks of {size} bytes with line ends {ends!r}"
        places = sorted(chance.randrange(len(text) + 1) for _ in range(20))
        pieces = (text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True))
        if _differs(recording.play(pieces), outcome):
            yield f"another result in pieces of any size with line ends {ends!r}"


def _differs(first: Outcome, other: Outcome) -> bool:
    return first.payloads != other.payloads or first.response != other.response or str(first.error) != str(other.error)


def _describe(outcome: Outcome) -> str:
    response = outcome.response
    if response is None:
        return f"an error ({outcome.error})"
    parts = [f"{len(response.content)} characters"] if response.content else []
    if response.tool_calls:
        parts.append(f"{len(response.tool_calls)} {'call' if len(response.tool_calls) == 1 else 'calls'}")
    if response.thinking:
        parts.append("thinking")
    usage = response.usage
    return f"{' and '.join(parts) or 'nothing yet'}; {usage.prompt_tokens}+{usage.completion_tokens} tokens"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
