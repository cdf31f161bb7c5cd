"""A script that answers in place of a model, for tests and for a first look without a key."""

import re

from cantrip_actors import Invocation

REQUESTS = (
    re.compile(r"pay (?P<amount>\d+) to (?P<to>\w+)", re.IGNORECASE),
    re.compile(r"send (?P<to>\w+) (?P<amount>\d+)", re.IGNORECASE),
)


def rehearse(context: Invocation) -> dict[str, object]:
    """Pay what the newest intent asks for, then say what the gate returned."""
    last = context[-1]
    if last.role == "tool":
        return {"tool_calls": [{"gate": "done", "args": {"answer": last.content}}]}
    intent = last.content or ""
    match = next((match for request in REQUESTS if (match := request.search(intent))), None)
    if match is None:
        return {"tool_calls": [{"gate": "done", "args": {"answer": "Say how much, and to whom."}}]}
    payment = {"to": match["to"], "amount": int(match["amount"])}
    return {"tool_calls": [{"gate": "pay", "args": payment}]}
