"""The conditions after a round: each intent is recorded once and in order, and no effect happened twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["Account", "compare"]


class Account(NamedTuple):
    """The posts of a sender to one entity, and their results."""

    posted: Sequence[str]
    """The intents, in the order of their first posts."""
    recorded: Sequence[str]
    """The intents in the loom, in its order."""
    delivered: Mapping[str, int]
    """How often each intent had its effect, according to the ledger."""
    unknown: frozenset[str]
    """Intents whose entity got `outcome unknown`, because their node died while the gate ran."""


def compare(name: str, account: Account) -> list[str]:
    """Return the problems of an entity, one line each."""
    posted, recorded = account.posted, account.recorded
    counts = Counter(recorded)
    wrong = [f"{name}: lost: {intent} was posted and is not recorded" for intent in posted if not counts[intent]]
    wrong += [f"{name}: twice: {intent} is recorded {many} times" for intent, many in counts.items() if many > 1]
    known_intents = set(posted)
    wrong += [
        f"{name}: invented: {intent} is recorded and was not posted" for intent in counts if intent not in known_intents
    ]
    order = [intent for intent in dict.fromkeys(recorded) if intent in known_intents]
    if order != [intent for intent in posted if counts[intent]]:
        wrong.append(f"{name}: out of order: {order}")
    for intent in posted:
        times = account.delivered.get(intent, 0)
        if times > 1:
            wrong.append(f"{name}: twice: the effect of {intent} happened {times} times")
        elif times == 0 and counts[intent] and intent not in account.unknown:
            wrong.append(
                f"{name}: lost: {intent} has no effect, and its entity was not told that the outcome is unknown"
            )
    return wrong
