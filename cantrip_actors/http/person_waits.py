"""Answers to calls that wait for a person whom their client cannot ask: their texts, and the client's next request for
the result.

The clients of these APIs have no forms. So the call returns at once: its text says where a person decides, and names
the call in its last line. A later request whose conversation ends with that text, or with a message after it, is about
the same call; from other conversations the text and the message after it are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from cantrip_actors import Request, Work
from cantrip_actors.http.calls import HttpCall
from cantrip_actors.http.prefix import service_url

MOST_METADATA: Final = 512
"""Characters of a value of metadata."""

_COLUMNS: Final = 100
_ROWS: Final = 60
"""The size of a request in an answer."""
_NAME: Final = re.compile(r"\[the call (\S+) waits for a person\]\s*\Z")


class PersonWait(NamedTuple):
    """The content of an answer to a call that waits for a person."""

    text: str
    metadata: dict[str, str]
    """The same for programs: texts, as OpenAI's API has them."""


def describe_wait(call: HttpCall, work: Work, requests: Sequence[Request]) -> PersonWait:
    """Return the answer to a call whose work waits until a person has decided these requests."""
    metadata = {
        "waits_for": "a person",
        "requests": ",".join(request.id for request in requests)[:MOST_METADATA],
        "response": f"resp_{work.id}"[:MOST_METADATA],
    }
    places = [f"`cantrip requests {request.id}`" for request in requests]
    if call.service.page:
        metadata["link"] = f"{service_url(call.request)}/#/e/{work.entity_id}"
        places.insert(0, metadata["link"])
    asks = "\n".join(line for request in requests for line in request.render(columns=_COLUMNS, rows=_ROWS))
    text = (
        f"This call waits for a person, who decides at {' or with '.join(places)}. Then send a message, such as "
        f'"continue", for the answer; the message itself is not read.\n\n{call.redact_for_token(asks)}\n\n'
        f"{name_wait(work)}"
    )
    return PersonWait(text, metadata)


def name_wait(work: Work) -> str:
    """Return the last line of the text of `describe_wait`, which names the work."""
    return f"[the call {quote(work.id)} waits for a person]"


def find_wait(text: str) -> str | None:
    """Return the id of the work that a text of `describe_wait` names; None for any other text."""
    match = _NAME.search(text)
    return None if match is None else unquote(match[1])
