"""The cantrips that the clients are tried with."""

import json
import re
from typing import Any

import anyio
from pydantic import BaseModel

from cantrip_actors import Cantrip, Circle, CrystalError, ask_first, gate, scripted
from cantrip_actors.wards import max_depth, max_turns


class Invoice(BaseModel):
    """An invoice."""

    total: int
    items: list[str]


@gate
async def weather(city: str) -> str:
    """Look the weather up."""
    return f"sunny in {city}"


@gate
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@gate(deferred=True)
async def locate() -> str:
    """Ask the page where it is."""


@gate
async def nap() -> str:
    """Sleep for a second."""
    await anyio.sleep(1)
    return "slept"


@gate
def done(answer: Invoice) -> None:
    """Finish with the invoice."""


RHYME = {"lines": ["A rose", "is a rose"]}
"""The answer to each schema that has these members."""


def write_rhyme(context: Any) -> dict[str, Any] | None:
    """Return an answer in the form that a client asks for with a schema; None if it asks for none."""
    for tool in context.tools:
        schema = tool.parameters["properties"].get("answer", {}) if tool.name == "done" else tool.parameters
        if "lines" in schema.get("properties", {}) or schema == {"type": "object"}:
            args = {"answer": RHYME} if tool.name == "done" else RHYME
            return {
                "content": "I rhyme.",
                "thinking": "What rhymes?",
                "tool_calls": [{"gate": tool.name, "args": args}],
            }
    is_described = any(
        re.search(r'"lines\\?"', str(message.content)) for message in context
    )  # in a prompt of the client
    return {"content": f"```json\n{json.dumps(RHYME)}\n```"} if is_described else None


def answer(context: Any) -> dict[str, Any]:
    """Do what the newest message asks for."""
    last = context[-1]
    if last.role == "tool":
        return write_rhyme(context) or {"content": f"It said: {last.content}"}
    if last.content.startswith("call "):  # a tool of the client, for each city
        _, gate, *cities = last.content.split()
        return {"content": "I call.", "tool_calls": [{"gate": gate, "args": {"city": city}} for city in cities]}
    if last.content.startswith("recall"):
        return {"content": " | ".join(str(message.content) for message in context)}
    return write_rhyme(context) or answer_words(last)


def answer_words(last: Any) -> dict[str, Any]:
    """Do what the first word of a message says, look at its pictures, or repeat it."""
    intent = last.content
    word, _, rest = intent.partition(" ")
    if last.images:
        return {"content": f"I see {len(last.images)} picture."}
    if word in ("where", "ask"):
        calls = {"where": {"gate": "locate", "args": {}}, "ask": {"gate": "question", "args": {"text": "Which one?"}}}
        return {"tool_calls": [calls[word]]}
    if word == "weather":
        call = {"gate": "weather", "args": {"city": rest}}
        return {"content": "Let me look.", "thinking": "Which city?", "tool_calls": [call]}
    if word == "delegate":
        return {"content": "I delegate.", "tool_calls": [{"gate": "call_agent", "args": {"intent": rest}}]}
    if word == "pay":
        return {"content": "I pay.", "tool_calls": [{"gate": "pay", "args": {"amount": int(rest)}}]}
    if word == "slow":
        return {"content": "Let me wait.", "tool_calls": [{"gate": "nap", "args": {}}]}
    if word == "break":
        raise CrystalError("it is broken")
    return {"content": f"you said: {intent}", "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


ASSISTANT = Cantrip(
    scripted(answer),
    circle=Circle(
        ["done", "question", "call_agent", locate, weather, nap, ask_first(pay)], [max_turns(9), max_depth(1)]
    ),
    name="assistant",
)

_BILL = {
    "content": "I add it up.",
    "tool_calls": [{"gate": "done", "args": {"answer": {"total": 3, "items": ["tea"]}}}],
}
INVOICE = Cantrip(scripted(lambda _context: _BILL), circle=Circle([done], [max_turns(3)]), name="invoice")
