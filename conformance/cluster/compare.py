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
    wrong = [f"{name}: lost: {one} was posted and is not recorded" for one in posted if not counts[one]]
    wrong += [f"{name}: twice: {one} is recorded {many} times" for one, many in counts.items() if many > 1]
    known = set(posted)
    wrong += [f"{name}: invented: {one} is recorded and was not posted" for one in counts if one not in known]
    order = [one for one in dict.fromkeys(recorded) if one in known]
    if order != [one for one in posted if counts[one]]:
        wrong.append(f"{name}: out of order: {order}")
    for one in posted:
        times = account.delivered.get(one, 0)
        if times > 1:
            wrong.append(f"{name}: twice: the effect of {one} happened {times} times")
        elif times == 0 and counts[one] and one not in account.unknown:
            wrong.append(f"{name}: lost: {one} has no effect, and its entity was not told that the outcome is unknown")
    return wrong
