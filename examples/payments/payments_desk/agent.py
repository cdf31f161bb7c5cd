"""The agent: its gate, its limits, its prompt and its model."""

import os
from collections.abc import Mapping
from typing import Any

from cantrip_actors import PROVIDED, Call, Cantrip, Circle, GateCall, Injected, ask_first, gate, scripted
from cantrip_actors.wards import max_cost, max_turns
from payments_desk.bank import Account
from payments_desk.rehearsal import rehearse

PROMPT = "You pay for people. Pay what the user asks for, once, and say so in one sentence."
LARGE = 100
"""Above this amount a person decides about each payment."""


@gate(idempotent=True)
async def pay(to: str, amount: int, account: Injected[Account], call: GateCall) -> str:
    """Pay an amount in whole crowns from the account of the user."""
    await account.pay(to, amount, key=call.id)
    return f"Paid {amount} to {to}."


def is_large(arguments: Mapping[str, Any]) -> bool:
    """Whether a person decides about a payment."""
    return bool(arguments["amount"] > LARGE)


def make_desk(account: Any = PROVIDED) -> Cantrip[Any]:
    """Return the agent. `MODEL` in the environment names its model, as "anthropic:claude-sonnet-5-5"."""
    return Cantrip(
        os.environ.get("MODEL") or scripted(rehearse),
        Call(PROMPT),
        Circle(
            ["done", ask_first(pay.with_(account=account), when=is_large)],
            [max_turns(8), max_cost(2.0, per="day")],
        ),
        name="desk",
    )
