"""Turn mail into an event of the entity's loop, or a reason why it cannot be carried out."""

from __future__ import annotations

from typing import NamedTuple

from cantrip_actors.machine.events import Begin, Interrupt, Steer, Steering, Stopped
from cantrip_actors.records.mail import Mail

__all__ = ["Void", "is_urgent", "meaning"]


class Void(NamedTuple):
    """The mail cannot be carried out; `reason` says why."""

    reason: str


def meaning(mail: Mail, episode: int | None) -> Begin | Steer | Interrupt | Stopped | Void:
    """Return the event of a mail; `episode` is the number of the episode under way, None if the entity is idle.

    An interrupt is void after the episode that it names (core.md 3). A body that lacks what its kind needs is void too:
    another version may have posted it.
    """
    body, key, sender = mail.body, mail.key, mail.sender or None
    match mail.kind, body:
        case "intent" | "timer", {"intent": str(text)} if text.strip():
            return Begin(text, body.get("context"), mail.images, key, sender)
        case "steer", {"text": str(text)}:
            return Steer((Steering(text, mail.images, key, sender),))
        case "interrupt", {"episode": int(number), "why": str(why)}:
            if number != episode:
                return Void("the episode that it was meant for is over")
            return Interrupt(why, key, sender)
        case "stop", {"reason": str(detail)}:
            return Stopped("cancelled", detail, key, sender)
        case _:
            return Void(f"this version cannot carry out mail of kind {mail.kind!r} with {', '.join(body) or 'no body'}")


def is_urgent(mail: Mail, episode: int) -> bool:
    """Return whether a mail ends the query or the gate under way, and not only the episode after it."""
    is_now = mail.kind == "interrupt" and mail.body.get("now") is True and mail.body.get("episode") == episode
    return is_now or mail.kind == "stop"
