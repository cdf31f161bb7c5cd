"""The actor that sends webhooks: the outbox is the loom itself, and a position in it for each webhook (0173).

The events that a webhook gets are records, so nothing has to be stored for it but the position of the last one that its
receiver has accepted. The position is in an account of the loom, together with a lease: one process sends for a webhook
at a time. A message whose acceptance was not stored, because the process died, is sent again with the same id.

A receiver that does not answer delays the later messages of its own webhook, and nothing else.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.circle.public_post import post
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.redact.urls import render_url
from cantrip_actors.runtime.events.events import Bus
from cantrip_actors.runtime.events.loom_log import LoomEvent, LoomLog
from cantrip_actors.runtime.events.webhook_payload import build_payload, find_kind
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

GONE: Final = 410
"""The status by which a receiver says that it wants no further messages."""

_log = get_logger("cantrip_actors.runtime")


class WebhookAccount(msgspec.Struct, frozen=True, omit_defaults=True):
    """The shared state of a webhook: the position of the last accepted event, and the lease."""

    position: str
    holder: str = ""
    until: float = 0.0


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
                await self._change(None, lasts=0.0)

    async def _send_while_held(self) -> bool:
        """Send what is due, and wait for more; return True once the receiver is gone. Raises _LeaseLost."""
        news = self._bus.subscribe()
        log = LoomLog(self._core.loom, await self._change(None))
        while True:
            events, has_more = await self._core.in_store(log.read)
            for found in events:
                kind = find_kind(found.event, self._webhook.events)
                if kind is not None:
                    if not await self._deliver(found, kind):
                        return True
                    await self._change(found.position)
            if not has_more:
                with anyio.move_on_after(self._choose_interval()), suppress(StopAsyncIteration):
                    await anext(news)
                    news._skip()  # noqa: SLF001  # the next reading finds the events that they announce
                await self._renew(EventId(log.number, END_OF_RECORD))

    async def _deliver(self, found: LoomEvent, kind: WebhookKind) -> bool:
        """Send a message until it is accepted; return False if the receiver is gone."""
        payload = self._core.guard.redactor.value(build_payload(kind, found.event))
        payload["data"].update(self._make_link(found.event))
        id = f"{found.event.entity_id}_{found.event.id.replace('.', '_')}"
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
            await self._renew(None)

    def _choose_interval(self) -> float | None:
        """Return the seconds after which the loom is read without an event, if other processes may write it."""
        return POLL_INTERVAL if self._core.store.shared else None

    async def _renew(self, position: EventId | None) -> None:
        """Renew the lease, if another process could claim it otherwise."""
        if self._core.store.shared and anyio.current_time() >= self._renew_at:
            await self._change(position)

    async def _change(self, position: EventId | None, lasts: float = LEASE) -> EventId:
        """Claim or renew the lease, and store a position; return the stored one. Raises _LeaseLost.

        A webhook that is new to the loom begins at the loom's end.
        """
        begin = EventId(await self._core.in_store(self._core.loom.last_number), END_OF_RECORD)
        change = partial(_change_account, holder=self._holder, position=position, begin=begin, lasts=lasts)
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


def _change_account(
    text: str | None, now: float, *, holder: str, position: EventId | None, begin: EventId, lasts: float
) -> tuple[str, EventId | None]:
    """Return the account of a webhook after a claim, and its position; None if another process holds the lease.

    A lease never lasts longer than `LEASE`, whatever an earlier clock said.
    """
    account = WebhookAccount(str(begin)) if not text else _DECODER.decode(text)
    if account.holder not in ("", holder) and now < account.until <= now + LEASE:
        return text or "", None
    stored = account.position if position is None else str(position)
    changed = WebhookAccount(stored, holder if lasts else "", now + lasts)
    return msgspec.json.encode(changed).decode(), EventId.parse(stored)


_DECODER: Final = msgspec.json.Decoder(WebhookAccount)
