"""The agent that is evaluated, and a scorer."""

from cantrip_actors import Episode
from cantrip_actors.evals import Case
from payments_desk.agent import make_desk
from payments_desk.bank import Account


class NoBank:
    """A bank that takes each transfer and forgets it: an evaluation moves no money."""

    async def transfer(self, payer: str, to: str, amount: int, *, key: str) -> None:
        """Do nothing."""


desk = make_desk(Account(NoBank(), "evaluation"))


def pays_at_most_once(_case: Case, episode: Episode) -> bool:
    """Score 1 for an episode that called the gate once or not at all."""
    return sum(call.gate == "pay" for turn in episode.thread for call in turn.gate_calls) <= 1
