"""The actor that sends webhooks: the outbox is the loom itself, and a position in it for each webhook (0173).

The events that a webhook gets are records, so nothing has to be stored for it but the position of the last one that its
receiver has accepted. The position is in an account of the loom, together with a lease: one process sends for a webhook
at a time. A message whose acceptance was not stored, because the process died, is sent again with the same id.

Quarantines are no records: they are rows beside them. A webhook's account also has those that its receiver knows, so
the messages to send are the difference between the two.

A receiver that does not answer delays the later messages of its own webhook, and nothing else.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import msgspec

from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.circle.public_post import post
from cantrip_actors.loom import QuarantineRow
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.redact.urls import render_url
from cantrip_actors.runtime.events.events import Bus
from cantrip_actors.runtime.events.loom_log import LoomEvent, LoomLog
from cantrip_actors.runtime.events.webhook_payload import build_payload, build_quarantine_payload, find_kind
from cantrip_actors.runtime.mail.inboxes import POLL_INTERVAL
from cantrip_actors.runtime.people.approval_link import PATH, PURPOSE, make_link_token
from cantrip_actors.stream.events import EntityEvent, RequestedEvent
from cantrip_actors.stream.reading import END_OF_RECORD, EventId
from cantrip_actors.terms.errors import LoomError, RuntimeClosed
from cantrip_actors.terms.exact_json import dump_exactly
from cantrip_actors.terms.webhook import Webhook, WebhookKind
from supervisors import Actor

if TYPE_CHECKING:
    from cantrip_actors.runtime.loom.core import Core

PREFIX: Final = "webhook "
"""Begins the names of the accounts of webhooks."""

LEASE: Final = 15.0
"""Seconds for which a process keeps a webhook without renewing it."""

RENEWAL: Final = 5.0
"""Seconds after which a process renews its lease of a webhook."""

PATIENCE: Final = 10.0
"""Seconds in which a receiver has to answer."""

LONGEST_PAUSE: Final = 3600.0
"""The longest pause between two tries of a message, in seconds; the first is a second, and each doubles."""

GIVE_UP_AFTER: Final = 3 * 86400.0
"""Seconds after which a message that its receiver does not accept is left out."""

QUARANTINE_INTERVAL: Final = 5.0
"""Seconds between two looks at the quarantines, which end without an event."""

GONE: Final = 410
"""The status by which a receiver says that it wants no further messages."""

_log = get_logger("cantrip_actors.runtime")


class WebhookAccount(msgspec.Struct, frozen=True, omit_defaults=True):
    """The shared state of a webhook: the position of the last accepted event, and the lease.

    `quarantines` are those that the receiver was sent, as JSON arrays; None for a webhook that has not looked yet.
    """

    position: str
    holder: str = ""
    until: float = 0.0
    quarantines: tuple[QuarantineRow, ...] | None = None


class _State(NamedTuple):
    """The present or the new content of a webhook's account."""

    position: EventId | None = None
    quarantines: tuple[QuarantineRow, ...] | None = None


_UNCHANGED: Final = _State()
_QUARANTINES: Final[frozenset[WebhookKind]] = frozenset({"quarantine.began", "quarantine.ended"})


class WebhooksActor(Actor):
    """Sends the messages of each webhook in a task of its own."""

    has_tasks = True

    def __init__(self, core: Core, bus: Bus, derive_key: Callable[[str], bytes], webhooks: Sequence[Webhook]) -> None:
        self._core = core
        self._bus = bus
        self._derive_key = derive_key
        self._webhooks = webhooks

    async def init(self) -> None:
        """Start to send."""
        for webhook in self._webhooks:
            self.tasks.start_soon(_Sender(self._core, self._bus, self._derive_key, webhook).run)


class _LeaseLost(Exception):
    """Another process sends for the webhook."""


class _Sender:
    """Sends the messages of one webhook, as long as this process holds its lease."""

    def __init__(self, core: Core, bus: Bus, derive_key: Callable[[str], bytes], webhook: Webhook) -> None:
        self._core = core
        self._bus = bus
        self._derive_key = derive_key
        self._webhook = webhook
        self._holder = secrets.token_hex(8)
        self._renew_at = -math.inf
        """When the lease is renewed, by the clock of the event loop."""

    async def run(self) -> None:
        """Send until the runtime closes, or the receiver is gone."""
        is_gone = False
        try:
            while not is_gone:
                try:
                    is_gone = await self._send_while_held()
                except _LeaseLost:
                    await anyio.sleep(RENEWAL)
                except LoomError as error:
                    self._warn("a webhook cannot read its events", error)
                    await anyio.sleep(RENEWAL)
        except RuntimeClosed:
            return
        finally:
            with anyio.move_on_after(1, shield=True), suppress(LoomError, RuntimeClosed, _LeaseLost):
                await self._change(lasts=0.0)

    async def _send_while_held(self) -> bool:
        """Send what is due, and wait for more; return True once the receiver is gone. Raises _LeaseLost."""
        news = self._bus.subscribe()
        state = await self._change()
        assert state.position is not None, "an account has a position"
        log, quarantines = LoomLog(self._core.loom, state.position), state.quarantines
        number = log.begin
        while True:
            events, number, has_more = await self._core.in_store(partial(log.read, number))
            for event in events:
                kind = find_kind(event.event, self._webhook.events)
                if kind is not None:
                    if not await self._deliver(event, kind):
                        return True
                    await self._change(_State(event.position))
            if not has_more:
                quarantines = await self._send_quarantines(quarantines)
                if quarantines is None:
                    return True
                with anyio.move_on_after(self._choose_interval()), suppress(StopAsyncIteration):
                    await anext(news)
                    news._skip()  # noqa: SLF001  # the next reading finds the events that they announce
                await self._renew(_State(EventId(number, END_OF_RECORD)))

    async def _send_quarantines(self, sent: tuple[QuarantineRow, ...] | None) -> tuple[QuarantineRow, ...] | None:
        """Send the quarantines that began and ended since the receiver was sent some; return those that it knows now.

        Return None if the receiver is gone.
        """
        if not _QUARANTINES & {*self._webhook.events}:
            return sent or ()
        present = tuple((await self._core.in_store(self._core.loom.quarantines)).values())
        if sent is None:  # it begins with the events from now on
            return (await self._change(_State(quarantines=present))).quarantines
        changes: list[tuple[WebhookKind, QuarantineRow]] = [("quarantine.ended", row) for row in sent]
        changes = [(kind, row) for kind, row in changes if row.entity_id not in {one.entity_id for one in present}]
        changes += [("quarantine.began", row) for row in present if row not in sent]
        for kind, row in changes:
            if kind in self._webhook.events:
                payload = build_quarantine_payload(kind, row, self._core.read_time_of_day())
                if not await self._send(_name_quarantine(kind, row), self._core.guard.redactor.value(payload)):
                    return None
        if changes:
            await self._change(_State(quarantines=present))
        return present

    async def _deliver(self, found: LoomEvent, kind: WebhookKind) -> bool:
        """Send a message until it is accepted; return False if the receiver is gone."""
        payload = self._core.guard.redactor.value(build_payload(kind, found.event))
        payload["data"].update(self._make_link(found.event))
        return await self._send(f"{found.event.entity_id}_{found.event.id.replace('.', '_')}", payload)

    async def _send(self, id: str, payload: dict[str, Any]) -> bool:
        """Send a message until it is accepted, or left out; return False if the receiver is gone."""
        pause, began = 1.0, anyio.current_time()
        while (answer := await self._post(id, dump_exactly(payload))) is not None and answer != GONE:
            if anyio.current_time() - began > GIVE_UP_AFTER:
                _log.error("a message of a webhook is left out", webhook=self._shown, id=id)
                return True
            self._warn("a receiver did not accept a message", answer, id=id, retry_in=pause)
            await self._sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        if answer == GONE:
            self._warn("a receiver wants no further messages", answer)
        return answer is None

    def _make_link(self, event: EntityEvent) -> dict[str, str]:
        """Return the link with which a person decides a request or replies to it, if this webhook has links."""
        if not (self._webhook.links and isinstance(event, RequestedEvent) and event.kind in ("approval", "question")):
            return {}
        expires = int(self._core.read_time_of_day() + self._webhook.links_last)
        token = make_link_token(self._derive_key(PURPOSE), event.request_id, expires)
        return {"link": f"{self._webhook.links.rstrip('/')}{PATH}{token}"}

    async def _post(self, id: str, body: bytes) -> int | GateError | None:
        """Send a message once; return None if it was accepted, else the status or the error."""
        timestamp = int(self._core.read_time_of_day())
        headers = {
            "content-type": "application/json",
            "webhook-id": id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": self._webhook.sign(id, timestamp, body),
        }
        url, is_allowed = self._webhook.url, self._webhook.allow_private
        try:
            status = await post(url, body, headers, allow_private=is_allowed, seconds=PATIENCE)
        except GateError as error:
            return error
        return None if 200 <= status < 300 else status

    async def _sleep(self, seconds: float) -> None:
        """Sleep, and keep the lease meanwhile."""
        until = anyio.current_time() + seconds
        while (left := until - anyio.current_time()) > 0:
            await anyio.sleep(min(left, RENEWAL))
            await self._renew()

    def _choose_interval(self) -> float | None:
        """Return the seconds after which the loom is read without an event, if it may have changed without any."""
        if self._core.store.shared:
            return POLL_INTERVAL
        return QUARANTINE_INTERVAL if _QUARANTINES & {*self._webhook.events} else None

    async def _renew(self, state: _State = _UNCHANGED) -> None:
        """Renew the lease, if another process could claim it otherwise."""
        if self._core.store.shared and anyio.current_time() >= self._renew_at:
            await self._change(state)

    async def _change(self, state: _State = _UNCHANGED, lasts: float = LEASE) -> _State:
        """Claim or renew the lease, and store what `state` has; return what is stored. Raises _LeaseLost.

        A webhook that is new to the loom begins at the loom's end.
        """
        begin = EventId(await self._core.in_store(self._core.loom.last_number), END_OF_RECORD)
        change = partial(_change_account, holder=self._holder, state=state, begin=begin, lasts=lasts)
        name, now = PREFIX + self._webhook.name, anyio.current_time()
        stored = await self._core.in_store(partial(self._core.store.change_account, name, change, now))
        if stored is None:
            raise _LeaseLost
        self._renew_at = now + RENEWAL
        return stored

    @property
    def _shown(self) -> str:
        return render_url(self._webhook.url)

    def _warn(self, what: str, why: object, **facts: Any) -> None:
        _log.warning(what, webhook=self._shown, why=str(why), **facts)


def _name_quarantine(kind: WebhookKind, row: QuarantineRow) -> str:
    """Return the id of a message about a quarantine, which is the same if it is sent again."""
    facts = msgspec.json.encode((row, kind))
    return f"{row.entity_id}_{blake2b(facts, digest_size=8).hexdigest()}"


def _change_account(
    text: str | None, now: float, *, holder: str, state: _State, begin: EventId, lasts: float
) -> tuple[str, _State | None]:
    """Return the account of a webhook after a claim, and what it has; None if another process holds the lease.

    A lease never lasts longer than `LEASE`, whatever an earlier clock said.
    """
    account = WebhookAccount(str(begin)) if not text else _DECODER.decode(text)
    if account.holder not in ("", holder) and now < account.until <= now + LEASE:
        return text or "", None
    position = account.position if state.position is None else str(state.position)
    quarantines = account.quarantines if state.quarantines is None else state.quarantines
    changed = WebhookAccount(position, holder if lasts else "", now + lasts, quarantines)
    return msgspec.json.encode(changed).decode(), _State(EventId.parse(position), quarantines)


_DECODER: Final = msgspec.json.Decoder(WebhookAccount)
