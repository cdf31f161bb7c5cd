"""A loom as one HTML page that a person can read, click through, search and print.

It is the live page over other data: the same modules and the same stylesheet in one file, which works from a disk and
asks for nothing. Each entity has its story as JSON in a `<script>` element of its own. So the page can be written while
the loom is read, entity by entity, and a browser reads only the entities that a reader opens.

Nothing that an entity said can be anything but text. In the data every `<`, `>` and `&` is an escape of JSON, so no
`</script>` ends it; the page's program puts it into text nodes only; and the page's own policy allows exactly its own
program and style, known by their hashes, embedded images, and no request to anywhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cantrip_actors.loom.export.shapes import listed_shape
from cantrip_actors.loom.export.story import DurableEvent, build_item, read_durable
from cantrip_actors.loom.reading.overview import read_overview
from cantrip_actors.loom.reading.statistics import Tally, tally
from cantrip_actors.loom.reading.view import Loom
from cantrip_actors.machine.project import as_intent, find_cut_utterance, find_header_in_force, render_utterance
from cantrip_actors.page.texts import bundle, fill_page, read_texts
from cantrip_actors.records.codec import dump_json
from cantrip_actors.records.records import Header, Record
from cantrip_actors.stream.reading import EventLog
from cantrip_actors.terms.messages import as_text

INTENT = 300
"""Characters of an intent in the index: its entity has the whole of it."""


def html_page(loom: Loom, entities: Iterable[str] | None = None, *, title: str = "Loom") -> Iterator[bytes]:
    """Yield the page in pieces: of the whole loom, or of these entities (see `family`). Raises LoomError.

    A link to an entity that is not in the page says so.
    """
    style, program = read_texts()["page.css"], bundle("export.js")
    policy = (
        f"default-src 'none'; style-src '{_hash_text(style)}'; script-src '{_hash_text(program)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="referrer" content="no-referrer">\n<style>{style}</style>'
    )
    yield fill_page(read_texts()["page.html"], title=title, head=head).encode("utf-8", "replace")
    total = Tally()
    index: list[dict[str, Any]] = []
    for number, entity_id in enumerate(loom.entities() if entities is None else entities):
        records = loom.records(entity_id)
        header = find_header_in_force(loom.header(entity_id), records)
        total.add(tally(records))
        index.append({"n": number, **_build_listed(loom, header)})
        yield _render_data(f"e-{number}", _build_entity(entity_id, records))
    yield _render_data("index", {"title": title, "entities": index, "totals": total.as_json()})
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


def _build_listed(loom: Loom, header: Header) -> dict[str, Any]:
    """Return an entity for the index, with its cantrip, crystal and gates."""
    shape = listed_shape(loom, header, read_overview(loom, header.entity_id, below=False))
    call = {name: value for name, value in header.call.items() if name != "system_prompt"}
    gates = [gate["name"] if isinstance(gate, dict) else str(gate) for gate in header.circle.get("gates", ())]
    circle = {"gates": gates, "medium": header.circle.get("medium"), "wards": header.circle.get("wards"), "call": call}
    about = {"system": as_text(header.call.get("system_prompt") or ""), "circle": circle}
    return {**shape, "intent": (shape["intent"] or "")[:INTENT], "about": about}


def _build_entity(entity_id: str, records: Sequence[Record]) -> dict[str, Any]:
    """Return the story of an entity, and an utterance that is not yet a turn."""
    cut = find_cut_utterance(records)
    upsert = {"type": "message", "sessionId": entity_id, "turnId": "", "itemId": "said", "status": "update"}
    return {
        "items": list(map(_build_item, read_durable(EventLog(), records))),
        "live": [] if cut is None else [{**upsert, "content": render_utterance(cut)}],
    }


def _build_item(durable: DurableEvent) -> dict[str, Any]:
    """Return an event as the live page gets it, with the context of an intent, without what a turn says twice."""
    item = build_item(durable)
    data = {name: value for name, value in item["data"].items() if name not in ("utterance", "observation")}
    given = as_intent(durable.record)
    if given is not None and given.context is not None:
        data["context"] = given.context
    return {**item, "data": data}


def _hash_text(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


_ESCAPED = ((b"&", b"\\u0026"), (b"<", b"\\u003c"), (b">", b"\\u003e"))


def _render_data(id: str, value: dict[str, Any]) -> bytes:
    """Return JSON in a script element that no browser runs. JSON uses the escaped characters in its strings only."""
    text = dump_json(value, mark=False)
    for sign, escape in _ESCAPED:
        text = text.replace(sign, escape)
    return f'<script type="application/json" id="{id}">'.encode() + text + b"</script>\n"
