"""The lethal trifecta: private data, untrusted content and a way out, together in one circle.

An entity that reads what strangers wrote can be talked into anything that its gates allow. With private data and a way
out it can be talked into sending that data away. Authors declare the risks of their gates; none is guessed from a
gate's name or code, and no content id depends on them (decision 0140).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, get_args

from cantrip_actors.terms.arguments import check, is_list
from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest

Risk = Literal["private_data", "untrusted_content", "way_out"]
"""A risk that a gate brings into a circle: data that strangers must not get, text that strangers wrote, or a way to
send them something."""

RISKS: Final[tuple[Risk, ...]] = get_args(Risk)


class LethalTrifecta(UserWarning):
    """A circle has private data, untrusted content and a way out; `risks` names the gates that bring each of them."""

    def __init__(self, risks: Mapping[Risk, tuple[str, ...]]) -> None:
        self.risks = risks
        descriptions = [f"{risk.replace('_', ' ')} ({', '.join(gates)})" for risk, gates in risks.items()]
        super().__init__(
            f"this circle has the lethal trifecta, {', '.join(descriptions[:-1])} and a {descriptions[-1]}: what a "
            "stranger wrote can make the entity send private data away. Remove one of the three, put ask_first around "
            "the way out, or correct what a gate declares, gate.with_(risks=[…])"
        )


def read_risks(gate: str, declared: Iterable[str]) -> frozenset[Risk]:
    """Return the risks that the author of a gate declared. Raises InvalidCantrip for an unknown one."""
    check(is_list(declared), f"gate {gate}: risks", 'a list such as ["way_out"]', declared, InvalidCantrip)
    wanted = list(declared)
    for risk in wanted:
        if risk not in RISKS:
            raise InvalidCantrip(f"gate {gate}: unknown risk {risk!r}: {suggest_nearest(str(risk), RISKS)}")
    return frozenset(risk for risk in RISKS if risk in wanted)
