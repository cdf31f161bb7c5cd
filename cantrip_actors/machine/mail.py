"""Turn mail into an event of the entity's loop, or into the reason for refusing it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, get_args

from cantrip_actors.machine.events import Begin, Compact, Decide, Interrupt, Steer, Steering, Stopped, Undo
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Decision, IntentGiven
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.history import read_recorded_history

NOTHING_TO_FOLD: Final = "there is nothing to fold: the context has only the newest turn"


class Void(NamedTuple):
    """The mail cannot be carried out; `reason` says why."""

    reason: str


MailEvent = Begin | Steer | Interrupt | Stopped | Decide | Compact | Undo


def read_mail(
    mail: Mail,
    episode: int | None,
    request: str | None = None,
    *,
    can_fold: bool = False,
    can_undo: bool = False,
) -> MailEvent | Void:
    """Return the event of a mail; `episode` is the number of the episode under way, None if the entity is idle.

    `request` is the id of the open request, if there is one. `can_fold` and `can_undo` say whether the context has
    turns to fold, and whether the entity has an intent to undo. An interrupt and a timeout are void after the episode
    that they name, and a decision after its request was decided. A body that lacks what its kind needs
    is void too: another version may have posted it.
    """
    key, sender = mail.key, mail.sender or None
    match mail.kind, mail.body.get("instructions"):
        case "compact", str() | None as instructions:
            return Compact((instructions or "").strip() or None, key, sender) if can_fold else Void(NOTHING_TO_FOLD)
        case "undo", _:
            return Undo(key, sender) if can_undo else Void("the entity has no intent to undo")
        case _:
            return _read_message(mail, episode, request)


def _read_message(mail: Mail, episode: int | None, request: str | None) -> MailEvent | Void:
    body, key, sender = mail.body, mail.key, mail.sender or None
    match mail.kind, body:
        case "intent" | "timer", {"intent": str(text)} if text.strip():
            return _read_intent(text, mail)
        case "steer", {"text": str(text)}:
            return Steer((Steering(text, mail.images, key, sender, body.get("pin") is True),))
        case ("interrupt", {"episode": int(number)}) | ("stop", {"timeout_of": int(number)}) if number != episode:
            return Void("the episode that it was meant for is over")
        case "interrupt", {"episode": int(), "why": str(why)}:
            return Interrupt(why, key, sender)
        case "decision", {"request": str(id), "decision": decision} if decision in get_args(Decision):
            if id != request:
                return Void("the request that it was meant for is not open")
            by, note, args = str(body.get("by", "")), str(body.get("note", "")), body.get("args")
            door, remember = str(body.get("door", "")), body.get("remember") is True
            answer, later, memo = body.get("answer"), body.get("later"), body.get("memo")
            return Decide(decision, by, note, args, answer, remember, key, sender, door, mail.images, later, memo)
        case "stop", {"reason": str(detail)}:
            return Stopped("timeout" if "timeout_of" in body else "cancelled", detail, key, sender)
        case _:
            return Void(f"this version cannot carry out mail of kind {mail.kind!r} with {', '.join(body) or 'no body'}")


def _read_intent(text: str, mail: Mail) -> Begin | Void:
    history = read_recorded_history(mail.body.get("history", []))
    if history is None:
        return Void("this version cannot read the history of the intent")
    try:
        for tool in mail.additions.tools:
            tool.make_gate()
    except InvalidCantrip as problem:
        return Void(str(problem))
    context, sender = mail.body.get("context"), mail.sender or None
    note = mail.body.get("note")
    return Begin(text, context, mail.images, mail.key, sender, mail.trace, history=history, note=note)


def list_waiting_intents(mails: Iterable[Mail]) -> list[IntentGiven]:
    """Return the intents of waiting mail, in its order, as they will be recorded."""
    events = ((mail, read_mail(mail, None)) for mail in mails)
    return [
        IntentGiven(mail.entity_id, event.intent, mail.at, *event[1:])
        for mail, event in events
        if isinstance(event, Begin)
    ]


def is_urgent(mail: Mail, episode: int) -> bool:
    """Return whether a mail ends the query or the gate under way, and not only the episode after it."""
    is_now = mail.kind == "interrupt" and mail.body.get("now") is True and mail.body.get("episode") == episode
    return is_now or mail.kind == "undo" or (mail.kind == "stop" and mail.body.get("timeout_of", episode) == episode)
