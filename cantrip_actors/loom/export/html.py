"""A loom as one HTML page that a person can read, click through, search and print.

The page is self-contained: no framework, no requests, and it works from a file. Each entity's history is JSON in a
`<script>` element of its own. So the page can be written while the loom is read, entity by entity, and a browser
renders only the parts that a reader opens; ten thousand turns stay usable.

Nothing that an entity said can be anything but text. In the data every `<`, `>` and `&` is an escape of JSON, so no
`</script>` ends it; the page's program puts it into text nodes only; and the page's own policy allows exactly its own
program and style, known by their hashes, embedded images, and no request to anywhere: an image that is only an address
is shown as that address. `page/` holds those three files.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any, Final

from cantrip_actors.loom.blobs import address_of
from cantrip_actors.loom.statistics import Tally, tally
from cantrip_actors.loom.view import Loom
from cantrip_actors.machine.project import Entry, collect_rewards, find_first_intent, find_header_in_force, read_entries
from cantrip_actors.records.codec import dump_json
from cantrip_actors.records.records import Header, Record, Rewarded
from cantrip_actors.records.turn import Turn
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import add_labels
from cantrip_actors.terms.messages import Message, as_text
from cantrip_actors.terms.server_tools import ServerCall


def html_page(loom: Loom, entities: Iterable[str] | None = None, *, title: str = "Loom") -> Iterator[bytes]:
    """Yield the page in pieces: of the whole loom, or of these entities (see `family`). Raises LoomError.

    A link to an entity that is not in the page says so.
    """
    style, program = _asset("page.css"), _read_program()
    policy = (
        f"default-src 'none'; style-src '{_hash_text(style)}'; script-src '{_hash_text(program)}'; "
        "img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    yield (
        _asset("page.html")
        .replace("{{policy}}", policy)
        .replace("{{title}}", html.escape(title))
        .replace("{{style}}", style)
        .encode("utf-8", "replace")
    )
    total = Tally()
    index: list[dict[str, Any]] = []
    for number, entity_id in enumerate(loom.entities() if entities is None else entities):
        header, records = loom.header(entity_id), loom.records(entity_id)
        entries = list(read_entries(records))
        turns = [entry.turn for entry in entries if entry.turn is not None]
        sums = tally(records)
        total.add(sums)
        now = find_header_in_force(header, records)
        index.append({"n": number, **_build_summary(loom, now, records, turns, sums)})
        yield _render_data(f"e-{number}", _build_entity(header, entries, collect_rewards(records)))
    yield _render_data("index", {"title": title, "entities": index, "totals": _replace_non_finite(total.as_json())})
    yield f"<script>{program}</script>\n</body>\n</html>\n".encode()


def family(loom: Loom, entity_id: str) -> list[str]:
    """Return an entity, everything that it spawned, and every fork of any of their turns, in order of discovery."""
    found: dict[str, None] = {}
    todo = [entity_id]
    while todo:
        one = todo.pop()
        if one in found:
            continue
        found[one] = None
        todo.extend(reversed([*loom.below(one), *loom.branches(one)]))
    return list(found)


# -------------------------------------------------------------------------------------------------- what is in the page


def _build_summary(
    loom: Loom, header: Header, records: Iterable[Record], turns: list[Turn], sums: Tally
) -> dict[str, Any]:
    """Return the facts about an entity that lists and links show."""
    first = find_first_intent(records)
    usage = sums.usage
    return {
        "id": header.entity_id,
        "at": header.at,
        "state": loom.state(header.entity_id),
        "crystal": header.crystal,
        "cantrip": header.cantrip_id,
        "name": header.name,
        "parent": header.parent_entity,
        "turn": header.parent_turn,
        "forked": header.forked,
        "intent": "" if first is None else add_labels(first.intent, first.own_images)[:300],
        "turns": [turn.id for turn in turns],
        "tokens": [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens],
        "cost": _convert_number(usage.cost),
        "ms": _convert_number(sums.turn_durations.total_ms),
        "errors": sums.errors,
        "below": len(loom.subtree(header.entity_id)) - 1,
    }


def _build_entity(header: Header, entries: list[Entry], rewards: dict[str, list[Rewarded]]) -> dict[str, Any]:
    """Return everything that happened to an entity, in order."""
    gates = [gate["name"] if isinstance(gate, dict) else str(gate) for gate in header.circle.get("gates", ())]
    circle = {"medium": header.circle.get("medium"), "wards": header.circle.get("wards")}
    call = {name: value for name, value in header.call.items() if name != "system_prompt"}
    return {
        "system": as_text(header.call.get("system_prompt") or ""),
        "gates": gates,
        "circle": as_text({"call": call, **circle}),
        "items": list(_build_items(entries, rewards)),
    }


def _build_items(entries: list[Entry], rewards: dict[str, list[Rewarded]]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        if entry.turn is not None:
            given = [_convert_number(one.reward) for one in rewards.get(entry.turn.id, ())]
            yield _build_turn(entry.turn, given, [_convert_number(one) for one in entry.durations])
        elif entry.kind == "fold":
            yield {"kind": "fold", "marker": entry.text}
        elif entry.kind == "undo":
            yield {"kind": "undo", "text": entry.text, "at": entry.at}
        elif entry.kind == "moved":
            yield {"kind": "moved", "cantrip": entry.reason, "text": as_text(entry.text)}
        elif entry.kind == "end":
            yield {"kind": "ended", "state": entry.reason, "at": entry.at, "detail": entry.text}
        else:
            said: dict[str, Any] = {"kind": entry.kind, "text": entry.text} | _build_images(entry.images)
            if entry.kind == "intent":
                said["context"] = "" if entry.context is None else as_text(entry.context)
                said["history"] = [
                    _build_past(past) for item in entry.history for past in (item.message, *item.results)
                ]
            yield said if entry.kind == "cut" else said | {"at": entry.at}


def _build_past(message: Message) -> dict[str, Any]:
    """Return a message of an intent's history."""
    calls = [{"gate": call.gate, "args": call.arguments} for call in message.tool_calls]
    who = f"result of {message.gate}" if message.role == "tool" else message.role
    return {"who": who, "text": message.content or "", "calls": calls, **_build_images(message.images)}


def _build_turn(turn: Turn, rewards: list[float | None], durations: list[float | None]) -> dict[str, Any]:
    meta = turn.metadata
    said = not turn.continues  # an utterance is shown with its first turn (LOOM-8)
    calls = {call.id for call in turn.tool_calls} if said else set()
    ends = "terminated" if turn.terminated else f"truncated: {turn.ward}" if turn.ward else "truncated"
    return {
        "kind": "turn",
        "id": turn.id,
        "no": turn.sequence,
        "at": meta.timestamp,
        "ms": _convert_number(meta.duration_ms),
        "goes": turn.continues,
        "say": (turn.content or "") if said else "",
        **_build_images(turn.made),
        "think": (turn.thinking or "") if said else "",
        "code": (turn.code or "") if said else "",
        "calls": [
            *(
                {"id": one.id, "gate": _describe_server_tool(one), "args": as_text(one.args)}
                for one in turn.server_calls
            ),
            *({"id": call.id, "gate": call.gate, "args": call.arguments} for call in (turn.tool_calls if said else ())),
        ],
        "seen": [
            *map(_build_server_result, turn.server_calls),
            *(
                {
                    "id": seen.tool_call_id,
                    "gate": seen.gate,
                    "args": None if seen.tool_call_id in calls or not seen.args else as_text(seen.args),
                    "text": seen.content,
                    "err": seen.is_error,
                    "eph": seen.ephemeral,
                    "ms": durations[number] if number < len(durations) else None,
                    **_build_images(seen.images),
                }
                for number, seen in enumerate(turn.gate_calls)
            ),
        ],
        **({"who": [one.in_words for one in turn.decisions]} if turn.decisions else {}),
        **({"resumed": [one.in_words for one in turn.resumes]} if turn.resumes else {}),
        "tokens": [meta.tokens_prompt, meta.tokens_completion, meta.tokens_cached],
        "cost": _convert_number(meta.cost),
        "reward": _convert_number(turn.reward),
        "rewards": rewards,
        "ends": ends if turn.terminated or turn.truncated else None,
    }


def _describe_server_tool(call: ServerCall) -> str:
    return f"{call.name or call.tool} (run by the provider)"


def _build_server_result(call: ServerCall) -> dict[str, Any]:
    """Return the result of a tool that the provider ran, in the form of a gate's result."""
    text = "" if call.result is None else as_text(call.result)
    return {
        "id": call.id,
        "gate": _describe_server_tool(call),
        "args": None,
        "text": text,
        "err": call.is_error,
    } | _UNTIMED


_UNTIMED: Final = {"eph": False, "ms": None}


def _build_images(images: tuple[File, ...]) -> dict[str, Any]:
    """Return images as the page shows them: with their bytes, or a description without bytes."""
    if not images:
        return {}
    shown = [(image, None if image.url is not None else address_of(image)) for image in images]
    return {"images": [{"src": src, "label": image.url or image.label} for image, src in shown]}


# -------------------------------------------------------------------------------------------------------- how it is put


@cache
def _read_program() -> str:
    """Return the page's program: what it shares with the live page, where that is a module, and its own part."""
    return _asset("shared.js").replace("\nexport ", "\n") + _asset("page.js")


def _asset(name: str) -> str:
    return files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def _hash_text(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


_ESCAPED = ((b"&", b"\\u0026"), (b"<", b"\\u003c"), (b">", b"\\u003e"))


def _render_data(id: str, value: dict[str, Any]) -> bytes:
    """Return JSON in a script element that no browser runs. JSON uses the escaped characters in its strings only."""
    said = dump_json(value, mark=False)
    for sign, escape in _ESCAPED:
        said = said.replace(sign, escape)
    return f'<script type="application/json" id="{id}">'.encode() + said + b"</script>\n"


def _convert_number(value: float | None) -> float | None:
    """Return a number that JSON can write."""
    return value if value is not None and math.isfinite(value) else None


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _replace_non_finite(part) for name, part in value.items()}
    return _convert_number(value) if isinstance(value, float) else value
