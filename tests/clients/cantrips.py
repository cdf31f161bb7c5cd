"""The cantrips that the clients are tried with."""

from typing import Any

import anyio
from pydantic import BaseModel

from cantrip_actors import Cantrip, Circle, CrystalError, ask_first, gate, scripted
from cantrip_actors.wards import max_turns


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


def answer(context: Any) -> dict[str, Any]:
    """Do what the first word of the intent says, look at its pictures, or repeat it."""
    last = context[-1]
    if last.role == "tool":
        return {"content": f"It said: {last.content}"}
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
    if word == "pay":
        return {"content": "I pay.", "tool_calls": [{"gate": "pay", "args": {"amount": int(rest)}}]}
    if word == "slow":
        return {"content": "Let me wait.", "tool_calls": [{"gate": "nap", "args": {}}]}
    if word == "break":
        raise CrystalError("it is broken")
    if word == "recall":
        return {"content": " | ".join(str(message.content) for message in context)}
    return {"content": f"you said: {intent}", "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


ASSISTANT = Cantrip(
    scripted(answer),
    circle=Circle(["done", "question", locate, weather, nap, ask_first(pay)], [max_turns(9)]),
    name="assistant",
)

_BILL = {
    "content": "I add it up.",
    "tool_calls": [{"gate": "done", "args": {"answer": {"total": 3, "items": ["tea"]}}}],
}
INVOICE = Cantrip(scripted(lambda _context: _BILL), circle=Circle([done], [max_turns(3)]), name="invoice")
