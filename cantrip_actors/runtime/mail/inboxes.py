"""The inboxes of a runtime: deliver mail to entities, loaded here or not, and settle the callers that wait.

Mail is made durable first. If its entity is loaded here, the entity's actor gets the mail at once. If no process runs
the entity and its cantrip is known here, the mail actor loads it. Otherwise the process that runs it takes the mail. If
several processes write the loom, the mail actor polls it every `POLL_INTERVAL` seconds for mail that others posted, and
for the ends of episodes that are expected here.

The end of an episode is expected by callers, which wait, and by listeners, for which nothing is loaded: the schedule of
the next firing, and the tree of each asker, which is loaded by its answer if it has stopped meanwhile.

After an outage of the loom the mail actor also loads the entities that it stopped, and searches for mail and timers of
which no actor was notified (`runtime/loom/outages.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
import msgspec

from cantrip_actors.loom import DamagedLoom, Fenced, Held, Store, Taken
from cantrip_actors.loom.export.spending import sum_usage_under
from cantrip_actors.loom.reading.view import Loom, fold_entity, make_checked
from cantrip_actors.machine.mail import is_urgent
from cantrip_actors.machine.project import find_episode, find_refusal, find_settled_at, has_taken
from cantrip_actors.machine.state import Phase
from cantrip_actors.records.instant import format_instant
from cantrip_actors.records.mail import Mail, MailKind, MailRow, Pending
from cantrip_actors.records.records import Asked, MailRefused, Record
from cantrip_actors.records.tenant import scope_name
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.entity.cell import Cell
from cantrip_actors.runtime.events.context_variables import ContextVariables
from cantrip_actors.runtime.loom.core import Core
from cantrip_actors.runtime.loom.loom_writer import Post, WriterTask
from cantrip_actors.runtime.loom.outage_log import OutageLog, is_outage
from cantrip_actors.runtime.loom.outages import PATIENCE, Outages
from cantrip_actors.runtime.mail.hints import Hints
from cantrip_actors.runtime.mail.inbox import Inbox, Waiter, make_refusal_error, read_mail
from cantrip_actors.runtime.nodes.placing import find_stranding, read_services
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.errors import (
    CantripError,
    CrystalError,
    EntityEnded,
    InvalidIntent,
    LoomError,
    RuntimeClosed,
    UnknownEntity,
)
from cantrip_actors.terms.file import File
from cantrip_actors.terms.history import PastMessage
from cantrip_actors.terms.image import NO_IMAGES
from cantrip_actors.terms.outcome import Outcome
from supervisors import Actor, ActorRef, Alarm, ExitReason, NotRunning

POLL_INTERVAL: Final = 0.5
"""Seconds between two polls of the store for mail that other processes have posted."""

FULL_POLL_EVERY: Final = 60
"""After this many polls, one reads all mail."""

EXPIRE_INTERVAL: Final = 3600.0
"""Seconds between two removals of old keys."""

_POLL = object()
_HINT = object()
_OUTAGE = object()
"""The message that an outage has interrupted work, or that such work is due."""
HINTED = object()
"""The message to the node actor about a hint."""
_EXPIRE = object()

_log = get_logger("cantrip_actors.runtime")


def is_open(store: Store, loom: Loom, entity_id: str, key: str) -> bool:
    """Return whether the intent of that mail waits, or is under way: the few records since it was taken say so."""
    row = store.find_mail(entity_id, key)
    if row is None or row.taken is None:
        return row is not None
    records = loom.records(entity_id, after=row.taken - 1)
    return bool(records) and find_settled_at(records) is None


class Inboxes:
    """The inboxes of the entities that are loaded here, or whose episodes a caller here waits for."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._inboxes: dict[str, Inbox] = {}
        self.actor: ActorRef[Any] = ActorRef()
        self.outages = Outages(self._notify_of_outage)
        self.hints: Hints | None = None
        """Sends hints to the other processes of the loom; None if no process receives them."""
        self.hints_received = 0
        """The number of hints received from other processes."""
        self._polls = 0
        self._last_read = 0
        """The number of the newest mail that was read."""
        self._answered: set[str] = set()
        """The roots of trees that may have an answer in the loom for which one of their entities waits."""

    # Inboxes and cells

    def get_inbox(self, entity_id: str) -> Inbox:
        """Return the inbox of an entity; the first call makes it."""
        inbox = self._inboxes.get(entity_id)
        if inbox is None:
            inbox = self._inboxes[entity_id] = Inbox(partial(self._load, entity_id), self.notify_processes)
        return inbox

    def attach(self, cell: Cell) -> Inbox:
        """Attach the inbox of a cell's entity to the cell, and return it."""
        if cell.inbox is None:
            cell.inbox = self.get_inbox(cell.entity_id)
        return cell.inbox

    async def _load(self, entity_id: str) -> tuple[Sequence[Pending], bool]:
        cell = self._core.living.get(entity_id)
        root = entity_id if cell is None else cell.root.entity_id
        child = None if root == entity_id else entity_id
        mail, has_more = await self._core.in_store(partial(read_mail, self._core.store, root))
        if child is None:
            self._refuse_late([pending for pending in mail if pending.mail.child is not None])
        return [pending for pending in mail if pending.mail.child == child], child is None and has_more

    def _refuse_late(self, mail: Sequence[Pending]) -> None:
        """Have the mail actor refuse the mail of children that have ended: it would load their root for ever."""
        for pending in mail:
            self.actor.cast(pending)

    def detach(self, cell: Cell) -> None:
        """Detach the inbox of a cell that has ended, and fail the callers that will get no outcome here."""
        inbox, core, entity_id = cell.inbox, self._core, cell.entity_id
        if entity_id in self._answered:
            self._answered.discard(entity_id)
            if cell.episode is not None and not cell.is_over:
                self.note_answer(entity_id)
        if inbox is None:
            return
        is_wanted = inbox.has_loading_mail and cell.is_suspended and not cell.leaves_when_idle
        if cell.is_over and cell.parent is not None:
            self._refuse_late(inbox.list_control())
        for mail in inbox.close(lambda key: has_taken(core.loom.records(entity_id), key)):
            self.actor.cast(mail)  # post the offer, which the entity did not take
        if core.is_open:
            inbox.settle_all(lambda waiter: self._make_error(waiter, cell))
            inbox.forget_unawaited()
            if inbox.awaited or cell.is_loaded_again or (cell.is_over and inbox.expected):
                self._load_later(cell)
            elif is_wanted:  # mail came as it was unloaded
                self.load(cell.root.entity_id)
        self._drop(entity_id)

    def _load_later(self, cell: Cell) -> None:
        """Load a root entity that has stopped here: after an outage, once the loom answers again."""
        if is_outage(cell.error):
            self.suspend(cell.entity_id, cell.error, has_recorded=cell.recorded > 0)
        else:
            self.load(cell.entity_id)

    def _notify_of_outage(self) -> None:
        if self.actor.alive:  # it searches without a message when it starts
            self.actor.send(_OUTAGE)

    def suspend(self, entity_id: str, error: CantripError, *, has_recorded: bool = False) -> None:
        """Load a root entity again once the loom answers; `has_recorded` as for `Outages.suspend`."""
        if self._core.is_open:
            self.outages.suspend(entity_id, error, anyio.current_time(), has_recorded=has_recorded)

    def note_load(self, entity_id: str, error: LoomError | None, began: float) -> None:
        """Handle the end of an attempt to load an entity, which began at that time: an error says that the loom did
        not answer.
        """
        if error is not None:
            self.suspend(entity_id, error)
            self._fail_impatient(entity_id, error, began)
        elif self._core.living.get(entity_id) is None and not self.outages.is_suspended(entity_id):
            self.outages.forget(entity_id)  # another process runs it, or it cannot be loaded
            inbox = self._inboxes.get(entity_id)
            if inbox is not None:
                inbox.forget_senders()
                self._drop(entity_id)

    def _fail_impatient(self, entity_id: str, error: LoomError, attempt: float) -> None:
        inbox = self._inboxes.get(entity_id)
        if inbox is not None:
            inbox.settle_all(lambda waiter: None if self._keeps_waiting(entity_id, waiter, attempt) else error)
            self._drop(entity_id)

    def _keeps_waiting(self, entity_id: str, waiter: Waiter, attempt: float | None = None) -> bool:
        now = anyio.current_time()
        patience = max(self.patience, waiter.patience)
        return self.outages.keeps_waiting(entity_id, waiter.began, now, patience, attempt=attempt)

    @property
    def patience(self) -> float:
        """Seconds for which callers wait for an entity that an outage has stopped."""
        return 0.0 if self._core.membership is None else PATIENCE

    def _make_error(self, waiter: Waiter, cell: Cell) -> CantripError | None:
        if isinstance(cell.error, Held) or cell.is_suspended:  # another process runs it, or it is loaded again
            return None
        if self.patience and isinstance(cell.error, Fenced):
            return None  # it is resumed elsewhere
        if is_outage(cell.error) and self._keeps_waiting(cell.root.entity_id, waiter):
            return None  # it is resumed when the store is back
        if waiter.is_recorded or isinstance(cell.error, LoomError):
            return cell.make_interruption_error()
        if cell.is_over:
            how = "it crashed" if cell.outcome is None else cell.outcome.summary or cell.outcome.reason
            return EntityEnded(f"entity {cell.entity_id} ended before it took the intent: {how}")
        return None

    def close(self) -> None:
        """Fail all callers that still wait: the runtime has closed."""
        for entity_id, inbox in self._inboxes.items():
            inbox.settle_all(partial(self._make_closed_error, entity_id))

    def _make_closed_error(self, entity_id: str, waiter: Waiter) -> CantripError:
        if waiter.is_recorded:
            return RuntimeClosed(
                f"the runtime closed while entity {entity_id} was at work: its intent is in the loom, so do not send "
                "it again; resume the entity, or send it something else, and it continues from there"
            )
        return RuntimeClosed(
            f"the runtime closed before entity {entity_id} took the intent: it is sent, and taken when the entity is "
            "loaded next"
        )

    def _drop(self, entity_id: str) -> None:
        inbox = self._inboxes.get(entity_id)
        if inbox is None or self._core.living.get(entity_id) is not None:
            return
        if inbox.is_empty and not inbox.expected and not inbox.has_senders:
            del self._inboxes[entity_id]

    # Posting

    def resolve_address(self, to: str, tenant: str = "") -> str:
        """Return the id of a tenant's long-lived entity with that name or id. Reads the loom: call it `in_store`.

        Raises LoomError, EntityEnded, InvalidIntent.
        """
        core, name = self._core, scope_name(tenant, to)
        cell = core.living.find_named(name) or core.living.get(to)
        if cell is not None:
            lasting, entity_id, whose = cell.plan.lasting and cell.parent is None, cell.entity_id, cell.plan.tenant
        else:
            header = core.loom.header(core.store.named(name) or to)
            lasting, entity_id, whose = header.lasting, header.entity_id, header.tenant
        if whose != tenant:
            raise UnknownEntity(to)
        if cell is None and core.loom.is_over(entity_id):
            raise EntityEnded(f'entity "{to}" has ended')
        if not lasting:
            raise InvalidIntent(
                f'entity "{to}" was cast and ends with its first intent: only a long-lived one takes more'
            )
        return entity_id

    def make_intent(
        self,
        entity_id: str,
        text: str,
        context: Any = None,
        images: tuple[File, ...] = NO_IMAGES,
        *,
        key: str | None,
        sender: str = "",
        cantrip: Cantrip | None = None,
        history: tuple[PastMessage, ...] = (),
        note: Any = None,
    ) -> Mail:
        """Return the mail of an intent for a root entity; `cantrip` is the one that its sender gave for it."""
        body = {"intent": text} if context is None else {"intent": text, "context": context}
        if cantrip is not None and cantrip.additions:
            body["additions"], cantrip = msgspec.to_builtins(cantrip.additions), None
        if history:
            body["history"] = msgspec.to_builtins(history)
        if note is not None:
            body["note"] = note
        mail = self.make_mail(entity_id, "intent", body, images, key=key, sender=sender, root=entity_id)
        mark = None if cantrip is None else self._core.cantrips.note_sent(entity_id, mail.key, cantrip)
        return mail if mark is None else msgspec.structs.replace(mail, dependencies=mark)

    def make_mail(
        self,
        entity_id: str,
        kind: MailKind,
        body: dict[str, Any],
        images: tuple[File, ...] = NO_IMAGES,
        *,
        key: str | None = None,
        sender: str = "",
        root: str | None = None,
    ) -> Mail:
        """Return mail for an entity; for a child it goes to the inbox of its root, which is looked up if not given."""
        moment, instrument = self._core.make_moment(), self._core.instrument
        root = self._core.find_root(entity_id) if root is None else root
        child = None if root == entity_id else entity_id
        return Mail(
            entity_id=root,
            key=key or moment.fresh,
            kind=kind,
            body=body,
            sender=sender,
            at=moment.at,
            child=child,
            images=images,
            trace=None if instrument is None or kind != "intent" else instrument.trace(),
        )

    async def post(self, mail: Mail) -> MailRow:
        """Make mail durable. Raises KeyUsed, InboxFull, EntityEnded, LoomError."""
        await anyio.lowlevel.checkpoint_if_cancelled()  # a caller that is cancelled already must not send it
        message = Post(self._core.guard.redact_mail(mail), mail)
        sender, is_waiting = self._note_sender(mail), False
        inbox = self._inboxes.get(mail.entity_id)
        if inbox is not None:
            inbox.posts += 1
        try:
            row: MailRow | CantripError = await self._core.writer.call(message)
            is_waiting = isinstance(row, MailRow) and row.taken is None
        except NotRunning as gone:
            raise RuntimeClosed("the runtime closes: the mail is not sent") from gone
        finally:
            if inbox is not None:
                inbox.posts -= 1
            if sender is not None and not is_waiting:
                self.forget(mail.entity_id, mail.key, sender)
        if isinstance(row, CantripError):
            raise row
        if self._core.living.get(mail.entity_id) is None:
            self.notify_processes()
        return row

    def _note_sender(self, mail: Mail) -> Waiter | None:
        """Note the context variables of the sender of an intent, for the gates and crystals that work for it here.

        Returns the waiter that has them, for no caller, until the entity takes the intent or cannot be loaded here.
        """
        variables = self._core.capture_variables() if mail.kind == "intent" else ()
        if not variables:
            return None
        return self.get_inbox(mail.entity_id).expect(mail.key, Waiter(variables, callers=0, is_sender=True))

    async def can_hint(self) -> bool:
        """Return whether the loom has nodes that receive hints."""
        return await self._core.in_store(self._core.store.can_hint)

    def notify_processes(self) -> None:
        """Send a hint to the other processes: they poll the store at once."""
        if self.hints is not None:
            self.hints.send()

    def deliver(self, mail: Sequence[Pending], more_for: str | None = None) -> None:
        """Deliver durable mail to the entities that are loaded here, and load the other ones.

        A tree whose root unloads takes no more mail: it is loaded again. `more_for` is the root entity of this mail if
        the store has more of it.
        """
        by_cell: dict[str, tuple[Cell, list[Pending]]] = {}
        living = self._core.living
        if more_for is not None and (root := living.get(more_for)) is not None:
            by_cell[more_for] = root, []
        for one in mail:
            entity_id = one.mail.child or one.mail.entity_id
            cell = living.get(entity_id)
            has_root = living.get(one.mail.entity_id) is not None
            if cell is not None and has_root:
                by_cell.setdefault(entity_id, (cell, []))[1].append(one)
            elif has_root:
                self._refuse_late([one])
            elif one.mail.loads:
                self.load(one.mail.entity_id)
        for cell, own in by_cell.values():
            self.attach(cell).add(own, has_more=cell.entity_id == more_for)
            for one in own:
                self._interrupt_if_urgent(cell, one.mail)

    async def refuse_if_late(self, pending: Pending) -> None:
        """Refuse the mail of a child that has ended, by a record of its root. Other mail stays."""
        core, mail = self._core, pending.mail
        if mail.child is None or not await core.in_store(partial(core.loom.is_over, mail.child)):
            return
        at, why = core.make_moment().at, f"entity {mail.child} has ended"
        with suppress(Taken, Fenced):  # another process has refused it, or runs the tree now
            await core.append(
                [MailRefused(mail.entity_id, mail.key, mail.kind, why, at, mail.sender or None)], [(0, pending.no)]
            )

    def _interrupt_if_urgent(self, cell: Cell, mail: Mail) -> None:
        """Interrupt the entity's query or gate if the mail is urgent."""
        episode = cell.episode
        if episode is not None and is_urgent(mail, episode.number):
            episode.interrupt()

    def load(self, entity_id: str) -> None:
        """Load an entity for which mail waits, if it may be loaded here; deliver the mail if it is loaded."""
        if self._core.living.get(entity_id) is not None:
            self._core.writer.cast(WriterTask(lambda writer: writer.fetch(entity_id)))
        elif self._core.is_open:
            self.actor.cast(entity_id)

    def load_unless_suspended(self, entity_id: str) -> None:
        """Do what `load` does, but not for an entity that an outage has stopped: it will be loaded."""
        if not self.outages.is_suspended(entity_id):
            self.load(entity_id)

    def load_if_left(self, entity_id: str) -> None:
        """Load an entity whose episode a reader follows, if it is not loaded here and no process runs it."""
        if self._core.living.get(entity_id) is None:
            self.load_unless_suspended(entity_id)

    # Waiting

    async def send(self, mail: Mail, *, durable: bool, timeout: float) -> Outcome | None:
        """Send an intent, wait for its episode, and return its outcome; None if that took more than `timeout` seconds.

        The wait begins when the intent is posted. An intent that is not `durable` may be offered to an idle entity,
        which takes it at once. Raises the error that ended the episode; as `post`; and Stranded, as `wait_for_outcome`:
        the mail stays in the inbox then.
        """
        entity_id, key, waiter = mail.entity_id, mail.key, Waiter(self._core.capture_variables())
        inbox = self.get_inbox(entity_id)
        inbox.expect(key, waiter)
        is_offered = not durable and inbox.offer(mail)
        try:
            if not is_offered:
                row = await self.post(mail)
                if row.taken is not None:
                    await self.settle_from_log(entity_id)
                if self._core.living.get(entity_id) is None:
                    self.load(entity_id)
            with anyio.move_on_after(timeout):
                return await waiter.wait()
            await self.settle_from_log(entity_id)
            return await waiter.wait() if waiter.settled.is_set else None
        finally:
            if is_offered:
                inbox.withdraw(key)
            self.forget(entity_id, key, waiter)

    async def wait_for_outcome(self, entity_id: str, key: str, patience: float = 0.0) -> Outcome:
        """Wait for the episode of an intent that was posted, and return its outcome; "" is the key of the first intent.

        For `patience` seconds it waits for an entity that an outage has stopped. Raises the error that ended the
        episode. If no living process can run the entity, it raises Stranded after `stranded_after` seconds.
        """
        waiter = await self.expect(entity_id, key, self._core.capture_variables(), patience)
        try:
            return await waiter.wait()
        finally:
            self.forget(entity_id, key, waiter)

    async def expect(
        self, entity_id: str, key: str, context_variables: ContextVariables = (), patience: float = 0.0
    ) -> Waiter:
        """Return a waiter for the episode of an intent that was posted; `forget` it at the end."""
        inbox, waiter = self.get_inbox(entity_id), Waiter(context_variables, patience=patience)
        inbox.expect(key, waiter)
        try:
            row = await self._core.in_store(partial(self._core.store.find_mail, entity_id, key))
            if row is None or row.taken is not None:
                await self.settle_from_log(entity_id)
        except BaseException:
            self.forget(entity_id, key, waiter)
            raise
        if not waiter.settled.is_set and self._core.living.get(entity_id) is None:
            self.load(entity_id)
        return waiter

    # Withdrawing

    async def withdraw(self, entity_id: str, key: str, why: str, by: str) -> None:
        """Withdraw an intent if it still waits, whichever process runs the entity.

        One transaction takes it out of the inbox and records the withdrawal. If an actor takes it at the same time, one
        of the two transactions fails with Taken. Raises LoomError, RuntimeClosed.
        """
        core = self._core
        row = await self._core.in_store(partial(core.store.find_mail, entity_id, key))
        if row is None or row.taken is not None:
            return
        record = MailRefused(entity_id, key, "intent", "withdrawn", core.make_moment().at, by or None, why)
        with anyio.CancelScope(shield=True):  # once it is recorded, the callers that wait must get the error
            try:
                await core.append([record], [(0, row.no)])
            except Taken:
                return
            inbox = self._inboxes.get(entity_id)
            if inbox is not None:
                inbox.remove(row.no)
                inbox.settle(key, None, make_refusal_error(record))
                self._drop(entity_id)
            cell = core.living.get(entity_id)
            if cell is not None and cell.episode is not None and cell.episode.key == key:
                cell.episode.interrupt()  # it has not recorded the intent
            self.notify_processes()

    def make_interrupt(
        self, entity_id: str, intent_key: str, why: str, *, now: bool, key: str | None = None, sender: str = ""
    ) -> Mail | None:
        """Return the mail that ends the episode of the intent with that key, and no other; None if it is not under way.

        "" is the key of the first intent.
        """
        state = fold_entity(self._core.loom, entity_id)
        if state.phase in (Phase.IDLE, Phase.OVER) or (state.episode.key or "") != intent_key:
            return None
        body = {"episode": state.episode.number, "why": why, "now": now}
        return self.make_mail(entity_id, "interrupt", body, key=key, sender=sender)

    def forget(self, entity_id: str, key: str, waiter: Waiter) -> None:
        """Forget a waiter."""
        self.get_inbox(entity_id).forget(key, waiter)
        self._drop(entity_id)

    async def settle_from_log(self, entity_id: str) -> None:
        """Settle those that wait for episodes of an entity which have ended according to the log."""
        inbox = self._inboxes.get(entity_id)
        if inbox is None:
            return
        for ended in await self._core.in_store(partial(self._find_ends, entity_id, inbox.expected)):
            inbox.settle(*ended)
        self._drop(entity_id)

    # Waiting without a caller

    async def listen(self, entity_id: str, key: str, listener: Callable[[], object]) -> None:
        """Call `listener` once the episode of the intent with this key has ended, in any process.

        "" is the key of the first intent. The entity is not loaded for this: it may be for a person to resume it.
        """
        cell = self._core.living.get(entity_id)
        inbox = self.get_inbox(entity_id) if cell is None else self.attach(cell)
        inbox.listen(key, listener)
        await self.settle_from_log(entity_id)

    def listen_for_asker(self, asked: str, key: str, root: str) -> None:
        """Load the tree of an asker at the end of that episode, if it has stopped by then: an answer is like mail."""
        self.get_inbox(asked).listen(key, partial(self.note_answer, root))

    def note_answer(self, root: str) -> None:
        """Load a tree that no process runs if one of its entities has an answer; else wait for the answers."""
        self._answered.add(root)
        if self._core.living.get(root) is None:
            self.actor.send(_HINT)

    async def _load_answered(self) -> None:
        for root in [one for one in self._answered if self._core.living.get(one) is None]:
            try:
                is_answered, asks = await self._core.in_store(partial(self._read_asks, root))
                self._answered.discard(root)
                if is_answered:
                    self.load(root)
                    continue
                for ask in asks:
                    await self.listen(ask.to, ask.key, partial(self.note_answer, root))
            except LoomError as error:
                if is_outage(error):
                    self._answered.add(root)
                    raise
                self._answered.discard(root)
                _log.warning("a tree that waits for an answer cannot be read", entity=root, error=str(error))

    def _read_asks(self, root: str) -> tuple[bool, list[Asked]]:
        """Return whether an entity of a tree has an answer for which it waits, and the questions without an answer."""
        loom = self._core.loom
        found = [fold_entity(loom, one).turn.asked for one in loom.subtree(root) if not loom.is_over(one)]
        asks = [one for one in found if one is not None]
        open_asks = [ask for ask in asks if not self._find_ends(ask.to, [ask.key])]
        return len(open_asks) < len(asks), open_asks

    def _find_ends(self, entity_id: str, keys: Sequence[str]) -> list[tuple[str, Outcome | None, CantripError | None]]:
        """Return the keys whose intents have ended according to the log, each with its outcome or its error.

        The answers of a log that is not what was written are errors (0171).
        """
        loom = make_checked(self._core.loom)
        if not loom.has(entity_id):
            return []
        is_over = loom.is_over(entity_id)  # read first, so that the records include the end
        try:
            if not is_over and all(is_open(self._core.store, loom, entity_id, key) for key in keys):
                return []
            records = loom.records(entity_id)
        except DamagedLoom as error:
            return [(key, None, error) for key in keys]
        found: list[tuple[str, Outcome | None, CantripError | None]] = []
        for key in keys:
            refusal = find_refusal(records, key)
            outcome = find_episode(records, key, partial(sum_usage_under, loom))
            if refusal is not None:
                found.append((key, None, make_refusal_error(refusal)))
            elif outcome is not None:
                failed = outcome.reason == "failed"
                found.append((key, outcome, CrystalError(outcome.error or "") if failed else None))
            elif is_over:
                found.append((key, None, EntityEnded(f"entity {entity_id} ended before it took the intent")))
        return found

    async def poll(self, *, is_hinted: bool = False, is_full: bool = False) -> None:
        """Read the mail and the records that other processes have written.

        It reads all mail if it `is_full`. From time to time it does so by itself, because a process that has died may
        have left some. The entities that an outage has stopped are not loaded for it: they will be.
        """
        store = self._core.store
        self._polls += not is_hinted
        await self._load_answered()
        self._last_read, rows = await self._core.in_store(partial(store.new_mail, self._last_read))
        roots = {row.entity_id: None for row in rows if row.loads or self._core.living.get(row.entity_id)}
        if is_full or (self._polls % FULL_POLL_EVERY == 0 and not is_hinted):
            roots.update(dict.fromkeys(await self._core.in_store(store.waiting)))
        for entity_id in roots:
            self.load_unless_suspended(entity_id)
        for entity_id, inbox in list(self._inboxes.items()):
            if not inbox.expected:
                continue
            try:
                await self._check_expected(entity_id, inbox)
            except LoomError as error:
                if is_outage(error):
                    raise
                self.fail_waiters(entity_id, error)

    async def _check_expected(self, entity_id: str, inbox: Inbox) -> None:
        """Settle the callers that wait for an entity, as far as other processes have decided."""
        cell = self._core.living.get(entity_id)
        if cell is not None:
            lease = self._core.living.tokens.get(cell.root.entity_id)
            if lease is not None and lease != inbox.lease:  # another process may have ended episodes until then
                if inbox.lacks_expected([] if cell.episode is None else [cell.episode.key or ""]):
                    await self.settle_from_log(entity_id)
                inbox.lease = lease  # only now: an outage has the search repeated
            await self._settle_withdrawn(entity_id, inbox)
            return
        tip = await self._core.in_store(partial(self._core.store.tip, entity_id))
        if tip is not None and tip.position != inbox.position:
            await self.settle_from_log(entity_id)
            inbox.position = tip.position  # likewise
        if inbox.awaited:
            self.load_unless_suspended(entity_id)
            await self._fail_stranded(entity_id, inbox)

    async def _settle_withdrawn(self, entity_id: str, inbox: Inbox) -> None:
        """Settle the callers here whose intents, for an entity that is loaded here, another process has withdrawn."""
        store = self._core.store
        if not inbox.has_intents:
            return
        waiting = await self._core.in_store(partial(store.count_mail, entity_id))
        if not inbox.may_lack_intents(waiting.intents):
            return
        inbox.settle_refused(await self._core.in_store(partial(self._find_taking, entity_id, inbox.expected)))
        stored = inbox.list_stored()  # before the store is read: mail may arrive meanwhile
        mail, has_more = await self._core.in_store(partial(read_mail, store, entity_id))
        last = mail[-1].no if has_more else math.inf
        for no in {*stored}.difference(pending.no for pending in mail):
            if no < last:
                inbox.remove(no)

    def _find_taking(self, entity_id: str, keys: Sequence[str]) -> list[Record]:
        """Return the records that have taken the intents with these keys, or withdrawn them."""
        store = self._core.store
        numbers = (row.taken for key in keys if (row := store.find_mail(entity_id, key)) is not None)
        return [record for no in numbers if no for record in store.records(entity_id, after=no - 1, limit=1)]

    async def check_callers(self, entity_id: str) -> bool:
        """Fail the callers that have waited long for an entity that this process alone could run, and does not.

        Return whether callers still wait for it.
        """
        inbox = self._inboxes.get(entity_id)
        if inbox is None or self._core.living.get(entity_id) is not None:
            return False
        try:
            await self._fail_stranded(entity_id, inbox)
        except LoomError as error:
            self.fail_waiters(entity_id, error)
        return bool(inbox.awaited)

    async def _fail_stranded(self, entity_id: str, inbox: Inbox) -> None:
        """Fail the callers that have waited long for an entity that no living process can run."""
        late = inbox.list_waiting_since(anyio.current_time(), self._core.limits.stranded_after)
        if late:
            why = await self._core.in_store(partial(self._find_stranding, entity_id))
            if why is not None:
                await self.settle_from_log(entity_id)  # it may have ended, and was released for that
                inbox.settle_all(lambda waiter: why if waiter in late else None)

    def _find_stranding(self, entity_id: str) -> CantripError | None:
        core = self._core
        return find_stranding(core, core.find_root(entity_id), read_services(core.store))

    @property
    def stranded_after(self) -> float:
        """After how many seconds callers get an error for an entity that no living process can run."""
        return self._core.limits.stranded_after

    async def expire(self) -> None:
        """Remove the keys of mail that was settled more than `keep_keys` seconds ago."""
        before = format_instant(max(0.0, self._core.store.clock() - self._core.limits.keep_keys))
        await self._core.access.run_in_thread(partial(self._core.store.expire_mail, before))

    def fail_waiters(self, entity_id: str, error: CantripError) -> None:
        """Fail the callers that wait for an entity."""
        inbox = self._inboxes.get(entity_id)
        if inbox is not None:
            inbox.settle_all(lambda _: error)
            self._drop(entity_id)

    async def post_again(self, mail: Mail) -> None:
        """Post an intent that was offered to an entity that was unloaded meanwhile."""
        inbox = self.get_inbox(mail.entity_id)
        if mail.key not in inbox.awaited:
            return
        try:
            await self.post(mail)
        except CantripError as error:
            inbox.settle(mail.key, None, error)


class _Again(NamedTuple):
    """The message that an entity, for which callers wait, is to be loaded again."""

    entity_id: str


class MailActor(Actor):
    """Loads entities, posts mail, and searches for mail from other processes, and for all mail after an outage.

    `load` loads the entity with that id, if it may be loaded here, and raises LoomError in an outage. `wake_scheduler`
    has due timers searched for.
    """

    has_tasks = True

    def __init__(
        self,
        inboxes: Inboxes,
        store: Store,
        load: Callable[..., Coroutine[Any, Any, object]],
        wake_scheduler: Callable[[], object],
        node: ActorRef[Any] | None,
    ) -> None:
        self._inboxes = inboxes
        self._node = node
        self._store = store
        self._load_for_mail = load
        self._wake_scheduler = wake_scheduler
        self._alarm: Alarm | None = None
        self._polls = store.shared
        self._hints = Hints(store, self._handle_hint)
        self._is_hinted = False
        self._hint_checks = 0
        self._log = OutageLog("the loom could not be searched for mail", "the loom is searched for mail again")

    async def init(self) -> None:
        """Start the timers: search for mail if other processes may post, and expire keys."""
        if self._polls:
            self.send_every(POLL_INTERVAL, _POLL)
            self.ref.send(_POLL)
        self.send_every(EXPIRE_INTERVAL, _EXPIRE)
        self.ref.send(_OUTAGE)

    async def terminate(self, reason: ExitReason) -> None:  # noqa: ARG002  # whatever it is
        """Stop the threads that send and receive hints."""
        self._inboxes.hints = None
        await self._hints.stop()

    def _handle_hint(self) -> None:
        """Poll the store soon: another process announced new mail."""
        self._inboxes.hints_received += 1
        if self._node is not None:
            self._node.send(HINTED)
        if not self._is_hinted:
            self._is_hinted = True
            self.ref.send(_HINT)

    async def _begin_hints(self) -> None:
        """Send and receive hints as soon as the loom has nodes; check for nodes from time to time."""
        self._hint_checks += 1
        if self._hint_checks % FULL_POLL_EVERY == 1 and not self._hints.has_started and await self._inboxes.can_hint():
            self._hints.start()
            self._inboxes.hints = self._hints

    async def handle_cast(self, message: str | Mail | Pending) -> None:
        """Load the entity with that id, post that mail, or refuse mail that came after the end of a child."""
        if isinstance(message, Mail):
            self.tasks.start_soon(self._inboxes.post_again, message)
        elif isinstance(message, Pending):
            self.tasks.start_soon(self._refuse, message)
        else:
            self.tasks.start_soon(self._load, message)

    async def handle_info(self, message: Any) -> None:
        """Search for mail, expire keys, load an entity again, or do the work that an outage has interrupted."""
        if message is _OUTAGE:
            await self._continue_work()
            return
        if isinstance(message, _Again):
            self.tasks.start_soon(self._load, message.entity_id)
            return
        with self._log.watch():
            if message is _POLL:
                await self._begin_hints()
                await self._inboxes.poll()
            elif message is _HINT:
                self._is_hinted = False
                await self._inboxes.poll(is_hinted=True)
            elif message is _EXPIRE:
                await self._inboxes.expire()
        if self._log.has_failed:
            self._inboxes.outages.note(anyio.current_time())

    async def _continue_work(self) -> None:
        """Do the work that outages have interrupted and that is due; what fails is due again later."""
        inboxes, outages = self._inboxes, self._inboxes.outages
        due = outages.take_due(anyio.current_time())
        for entity_id in due.entities:
            self.tasks.start_soon(partial(self._load, entity_id, is_placed=True))  # it ran here
        if due.has_search:
            with self._log.watch():
                await inboxes.poll(is_full=True)
            if self._log.has_failed:
                outages.note(anyio.current_time())
            else:
                self._wake_scheduler()
        if self._alarm is not None:
            self._alarm.cancel()
        delay = outages.next - anyio.current_time()
        self._alarm = None if delay == math.inf else self.send_after(max(0.0, delay), _OUTAGE)

    async def _refuse(self, pending: Pending) -> None:
        try:
            await self._inboxes.refuse_if_late(pending)
        except LoomError as error:  # it is refused when its root is loaded next
            _log.warning("late mail could not be refused", entity=pending.mail.entity_id, error=str(error))

    async def _load(self, entity_id: str, *, is_placed: bool = False) -> None:
        failure, began = None, anyio.current_time()
        try:
            await self._load_for_mail(entity_id, is_placed=is_placed)
        except LoomError as error:
            failure = error
        self._inboxes.note_load(entity_id, failure, began)
        if not self._polls and await self._inboxes.check_callers(entity_id):
            self.send_after(self._inboxes.stranded_after, _Again(entity_id))
