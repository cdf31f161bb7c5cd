"""Reads an entity's mail as events of its loop. Mail that cannot be carried out is refused, by a record."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import anyio

from cantrip_actors.machine.events import Begin, Event, Interrupt, Steer
from cantrip_actors.machine.mail import MailEvent, Void, read_mail
from cantrip_actors.records.mail import Mail, MailKind
from cantrip_actors.records.records import MailRefused
from cantrip_actors.runtime.entity.cell import Cell, EpisodeCaller
from cantrip_actors.runtime.entity.known_cantrips import KnownCantrips
from cantrip_actors.runtime.entity.recorder import StepRecorder
from cantrip_actors.runtime.mail.inbox import Inbox, make_refusal_error
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.extended_cantrip import extend
from cantrip_actors.terms.json_schema import load
from cantrip_actors.user_code.threads import run_apart

_FIRST: Final[tuple[MailKind, ...]] = ("stop", "interrupt", "decision")
"""The kinds of control mail that come before steering messages, in their order."""


def find_extended(cantrip: Cantrip, intent: Mail) -> Cantrip:
    """Return the cantrip of an entity with the additions of an intent alone; the same one if it has just these, or if
    they are invalid: then the entity refuses the intent.
    """
    with suppress(InvalidCantrip):
        if intent.additions != cantrip.additions:
            extended = extend(cantrip.offered, intent.additions)
            return cantrip if extended.id == cantrip.id else extended
    return cantrip


class MailReader:
    """The mail of one incarnation of an entity, as events. `recorder` has the entity's state.

    `cantrips` says which intents come with dependencies that the entity's cantrip has.
    """

    def __init__(self, cell: Cell, recorder: StepRecorder, cantrips: KnownCantrips) -> None:
        self._cantrips = cantrips
        self._cell = cell
        self._recorder = recorder

    async def take_control(self) -> Event | None:
        """Take control mail: a stop, an interrupt of this episode or a decision first, then all steering messages,
        then the wish for a fold.

        Steering messages and folds wait as long as the entity waits for a person.
        """
        inbox, event = self._cell.inbox, await self.take_decisive()
        if event is not None or inbox is None or not inbox.has_control or self._recorder.open_request is not None:
            return event
        steers = [
            event for pending in inbox.take("steer") if isinstance(event := await self._read(pending.mail), Steer)
        ]
        if steers:
            return Steer(tuple(message for event in steers for message in event.messages))
        return await self._take_first("compact")

    async def take_undo(self) -> MailEvent | None:
        """Take the wish to undo the last intent; None if no such mail waits. The entity is idle."""
        return await self._take_first("undo")

    async def take_decisive(self) -> MailEvent | None:
        """Take a stop, an interrupt of this episode, or a decision; None if no such mail waits.

        The wish to undo an intent interrupts the episode under way, and waits until the entity is idle.
        """
        for kind in _FIRST:
            event = await self._take_first(kind)
            if event is not None:
                return event
        inbox = self._cell.inbox
        waiting = () if inbox is None or self._cell.episode is None else inbox.list_control()
        undo = next((pending.mail for pending in waiting if pending.mail.kind == "undo"), None)
        return None if undo is None else Interrupt("undone", sender=undo.sender or None)

    async def _take_first(self, kind: MailKind) -> MailEvent | None:
        """Take the first mail of a kind that can be carried out, and leave the others in the inbox."""
        inbox = self._cell.inbox
        if inbox is None or not inbox.has_control:
            return None
        claimed = inbox.take(kind)
        for index, pending in enumerate(claimed):
            event = await self._read(pending.mail)
            if event is not None:
                for later in claimed[index + 1 :]:
                    inbox.put_back(later)
                return event
        return None

    async def take_intent(self, inbox: Inbox) -> Begin | None:
        """Take the next intent, and note its caller; None if no intent waits.

        If the next intent wants other dependencies, the entity leaves, to be loaded with them here or elsewhere. If it
        brings other additions, the entity is loaded again with them.
        """
        while (pending := await inbox.take_intent()) is not None:
            if not self._cantrips.is_for(self._cell.plan.cantrip, pending.mail):
                inbox.put_back(pending)
                self._cell.leaves_when_idle = True
                return None
            cantrip = self._cell.plan.cantrip
            if "additions" in pending.mail.body:
                await run_apart(load)
            if find_extended(cantrip, pending.mail) is not cantrip:
                inbox.put_back(pending)
                self._cell.adoption = "when_loaded_again"
                return None
            event = await self._read(pending.mail)
            if event is not None:
                assert isinstance(event, Begin), "intents are in a lane of their own"
                self._cell.caller = EpisodeCaller(inbox.get_variables(pending.mail.key), sent=pending.mail.at)
                return event
        return None

    async def _read(self, mail: Mail) -> MailEvent | None:
        """Return the event of claimed mail; if the mail is void, record its refusal and return None."""
        episode = self._cell.episode
        state = self._recorder.state
        event = read_mail(
            mail,
            None if episode is None else episode.number,
            self._recorder.open_request,
            can_fold=state.can_fold,
            can_undo=state.episode.number > 0,
        )
        if not isinstance(event, Void):
            return event
        inbox, at = self._cell.inbox, self._recorder.make_moment().at
        assert inbox is not None, "the mail came from there"
        refusal = MailRefused(self._cell.entity_id, mail.key, mail.kind, event.reason, at, mail.sender or None)
        with anyio.CancelScope(shield=True):  # a record that is being written belongs to the state
            await self._recorder.record([refusal])
        inbox.settle(mail.key, None, make_refusal_error(refusal))
        return None
