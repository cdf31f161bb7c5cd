"""The inbox of one entity in this process: the mail that no record has taken, and the callers that wait for episodes.

Mail belongs to the entity's identity and is stored in the loom. An inbox is one runtime's view of that mail. It
outlives the entity's cell, and after a crash the entity's actor reads the mail from the store again. Mail is taken in
two steps: the actor claims it, and the transaction that writes the record with its key marks it as taken.

An idle entity may also get an *offer*: an intent that is not in the store, because the record that takes it follows at
once. Its sender waits for it, and can withdraw the offer until the actor claims it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import anyio

from cantrip_actors.loom import Store
from cantrip_actors.machine.mail import is_urgent
from cantrip_actors.machine.project import find_refusal
from cantrip_actors.records.mail import CONTROL, Mail, MailKind, Pending, get_key
from cantrip_actors.records.records import MailRefused, Record
from cantrip_actors.runtime.entity.one_shot_event import OneShotEvent
from cantrip_actors.runtime.events.context_variables import ContextVariables
from cantrip_actors.terms.errors import CantripError, InvalidIntent, Withdrawn
from cantrip_actors.terms.outcome import Outcome

PAGE: Final = 1_200
"""The most intents of one entity in memory: the store has the others. By default less may wait."""

OFFER: Final = 0
"""The number of mail that is not in the store."""


def read_mail(store: Store, root: str) -> tuple[Sequence[Pending], bool]:
    """Return all control mail that waits for a tree and the first intents, and whether further intents wait."""
    most = store.count_mail(root).control + PAGE
    mail = store.pending(root, most)
    return mail, len(mail) == most


@dataclass(slots=True, eq=False)
class Waiter:
    """A caller that waits for an episode, and gets an outcome or an error."""

    context_variables: ContextVariables = ()
    """The context variables of the caller, for the gates and crystals that work for it."""
    callers: int = 1
    """How many callers wait. With 0, only a handle has this waiter, and the entity may be unloaded."""
    is_sender: bool = False
    """Whether it has the context variables of a sender that does not wait, until the intent is taken."""
    is_recorded: bool = False
    """Whether the intent is in the log."""
    is_forgotten: bool = False
    """Whether the entity was unloaded while no caller waited: a caller that comes later needs another waiter."""
    settled: OneShotEvent = field(default_factory=OneShotEvent)
    outcome: Outcome | None = None
    error: CantripError | None = None
    began: float = field(default_factory=anyio.current_time)
    """When the caller began to wait, in event loop time."""
    patience: float = 0.0
    """Seconds for which it at least waits for an entity that an outage has stopped; any caller on a node waits some."""
    since: float | None = None
    """When a check first found that no entity loaded here works for this caller, in event loop time."""

    def settle(self, outcome: Outcome | None, error: CantripError | None = None) -> None:
        """Give the caller an outcome or an error, and let it continue."""
        self.outcome, self.error = outcome, error
        self.settled.set()

    async def wait(self) -> Outcome:
        """Wait for the outcome and return it. Raises the error that the waiter was settled with."""
        await self.settled.wait()
        if self.error is not None:
            raise self.error
        assert self.outcome is not None, "it is settled with one of them"
        return self.outcome


class Inbox:
    """The mail of one entity, and the callers that wait for its episodes.

    `load` reads the oldest untaken mail from the store, and says whether there is more. `signal`, if the entity is
    loaded here, notifies its actor. `notify_processes` is called at the end of an episode for which no caller in this
    process waits: a caller in another process may wait for it.
    """

    def __init__(
        self, load: Callable[[], Awaitable[tuple[Sequence[Pending], bool]]], notify_processes: Callable[[], object]
    ) -> None:
        self._load = load
        self._notify_processes = notify_processes
        self.signal: Callable[[], object] | None = None
        self.is_watched = False
        """Whether the entity is idle and waits for mail: then it takes an offer at once."""
        self.is_answered = False
        """Whether a background child of the entity has ended, and its answer has not come in."""
        self.position = 0
        """The position up to which its log was searched for ends of episodes, while another process runs it."""
        self.lease: int | None = None
        """The lease of this process with which its log was searched for the ends before it."""
        self.posts = 0
        """The number of mails that are being posted: an offer may not overtake them."""
        self._control: list[Pending] = []
        self._intents: list[Pending] = []
        """The intents that wait, in the order of their numbers: offers first."""
        self._arrived: list[Pending] | None = None
        """The mail that was delivered while the store is read, which comes after the read mail; None at other times."""
        self._has_more = False
        """Whether the store has mail that this inbox has not read."""
        self._known: set[int] = set()
        """The numbers of the mail in this inbox, claimed or not."""
        self._claimed: dict[str, Pending] = {}
        """Mail that the actor has claimed and no record has taken yet, by key."""
        self._is_signalled = False
        self._waiters: dict[str, list[Waiter]] = {}
        self._listeners: dict[str, list[Callable[[], object]]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no mail waits and no caller waits."""
        mail = self._control or self._intents or self._claimed or self._has_more
        return not mail and not any(waiter.callers for waiting in self._waiters.values() for waiter in waiting)

    def has_urgent(self, episode: int) -> bool:
        """Whether mail waits that ends the episode with this number at once."""
        return any(is_urgent(pending.mail, episode) for pending in self._control)

    @property
    def has_control(self) -> bool:
        """Whether control mail waits."""
        return bool(self._control)

    @property
    def has_unrecorded_control(self) -> bool:
        """Whether control mail waits, or was claimed and is not recorded yet."""
        return bool(self._control or self._claimed)

    @property
    def has_intents(self) -> bool:
        """Whether intents wait."""
        return bool(self._intents or self._has_more)

    @property
    def has_loading_mail(self) -> bool:
        """Whether mail of the store waits for which an entity is loaded."""
        mail = (*self._control, *self._intents, *self._claimed.values())
        return self._has_more or any(one.no != OFFER and one.mail.loads for one in mail)

    # Mail

    def list_control(self) -> list[Pending]:
        """Return the control mail that no record has taken."""
        return [*self._control, *self._claimed.values()]

    async def open(self, signal: Callable[[], object], is_recorded: Callable[[str], bool]) -> None:
        """Read all mail from the store, for a new incarnation: mail that the last incarnation had claimed waits again.

        `is_recorded` says whether the log has taken the intent with a key.
        """
        offers = self._clear(is_recorded)
        self.signal = signal
        for waiter in chain.from_iterable(self._waiters.values()):
            waiter.since = None
        await self._read()
        self._intents = offers + self._intents  # they were taken while nothing else waited

    def close(self, is_recorded: Callable[[str], bool]) -> list[Mail]:
        """Empty the inbox of an entity that is not loaded any more. Return untaken offers; the store has other mail."""
        return [pending.mail for pending in self._clear(is_recorded)]

    def _clear(self, is_recorded: Callable[[str], bool]) -> list[Pending]:
        """Forget all mail, and return the offers that no record has taken."""
        offers = [intent for intent in self._intents if intent.no == OFFER]
        for pending in self._claimed.values():
            if pending.no == OFFER and is_recorded(pending.mail.key):
                self._mark_recorded(pending.mail.key)
            elif pending.no == OFFER:
                offers.insert(0, pending)
        self.signal, self.is_watched, self._is_signalled, self._has_more = None, False, False, False
        self._arrived = None
        self._known.clear()
        self._control.clear()
        self._intents.clear()
        self._claimed.clear()
        return offers

    def add(self, mail: Sequence[Pending], *, has_more: bool = False) -> None:
        """Add mail that is durable and that no record has taken, and notify the actor.

        `has_more` says that the store has more mail than this, which is its first.
        """
        if self._arrived is not None:
            self._arrived += mail  # the actor waits until the store is read
        elif self._insert(mail, has_more=has_more):
            self.notify_actor()

    async def _read(self) -> None:
        """Read the first mail from the store, and insert it."""
        self._arrived = []
        page: Sequence[Pending] = ()
        has_more = self._has_more
        try:
            with anyio.CancelScope(shield=True):  # mail that arrives meanwhile must not be lost
                page, has_more = await self._load()
            self._has_more = False
        finally:
            arrived, self._arrived = self._arrived, None
            self._insert(page, has_more=has_more)
            self._insert(arrived or ())

    def offer(self, mail: Mail) -> bool:
        """Offer an intent to an idle entity; return False if it does not wait for mail, or other intents wait."""
        if not self.is_watched or self._intents or self._has_more or self.posts:
            return False
        self._intents.append(Pending(OFFER, mail))
        self.notify_actor()
        return True

    def withdraw(self, key: str) -> None:
        """Withdraw an offer, unless the actor has claimed it."""
        for at, pending in enumerate(self._intents):
            if pending.no != OFFER:
                return  # offers come first
            if pending.mail.key == key:
                del self._intents[at]
                return

    def remove(self, no: int) -> None:
        """Remove an intent that was withdrawn, unless the actor has claimed it."""
        at = bisect_left(self._intents, no, key=_get_number)
        if at < len(self._intents) and self._intents[at].no == no:
            del self._intents[at]
            self._known.discard(no)

    def may_lack_intents(self, waiting: int) -> bool:
        """Return whether some intents here may have been withdrawn elsewhere; `waiting` is their count in the store."""
        claimed = sum(pending.no != OFFER and pending.mail.lane != CONTROL for pending in self._claimed.values())
        return self._has_more or waiting < claimed + len(self.list_stored())

    def list_stored(self) -> list[int]:
        """Return the numbers of the intents that are in the store and wait here, oldest first."""
        return [pending.no for pending in self._intents if pending.no != OFFER]

    def _insert(self, mail: Sequence[Pending], *, has_more: bool = False) -> bool:
        """Add mail; return whether any of it is new. With `has_more` it is the first mail of the store."""
        # senders that repeat a key at the same moment all get the row of the same mail
        new = list({pending.no: pending for pending in mail if pending.no not in self._known}.values())
        self._has_more |= has_more  # the rest is read when this page is taken
        for pending in new:
            if pending.mail.lane == CONTROL:
                insort(self._control, pending, key=_get_number)
            elif len(self._intents) >= PAGE or (self._has_more and not has_more):
                self._has_more = True
                continue
            else:
                insort(self._intents, pending, key=_get_number)
            self._known.add(pending.no)
        return bool(new)

    def notify_actor(self) -> None:
        """Have the actor look at its mail, and at its children."""
        if self.signal is not None and not self._is_signalled:
            self._is_signalled = True
            self.signal()

    def acknowledge(self) -> None:
        """Note that the actor was notified and looks at its mail: it is notified again of mail that arrives from now
        on.
        """
        self._is_signalled = False

    def take(self, kind: MailKind) -> list[Pending]:
        """Claim all control mail of a kind, and return it, oldest first."""
        matching = [pending for pending in self._control if pending.mail.kind == kind]
        self._control = [pending for pending in self._control if pending.mail.kind != kind]
        for pending in matching:
            self._claimed[pending.mail.key] = pending
        return matching

    def put_back(self, mail: Pending) -> None:
        """Put claimed mail back into the inbox."""
        del self._claimed[mail.mail.key]
        insort(self._control if mail.mail.lane == CONTROL else self._intents, mail, key=_get_number)

    async def take_intent(self) -> Pending | None:
        """Claim the next intent and return it; None if no intent waits."""
        if not self._intents and self._has_more:
            await self._read()
        if not self._intents:
            return None
        pending = self._intents.pop(0)
        self._claimed[pending.mail.key] = pending
        return pending

    def find_taken(self, records: Sequence[Record]) -> list[tuple[int, int]]:
        """Return which of `records` take claimed mail, as pairs of index and mail number, for `Store.append`."""
        if not self._claimed:
            return []
        keys = ((index, get_key(record)) for index, record in enumerate(records))
        claims = ((index, self._claimed.get(key or "")) for index, key in keys)
        return [(index, pending.no) for index, pending in claims if pending is not None and pending.no != OFFER]

    def remove_taken(self, records: Iterable[Record]) -> list[Mail]:
        """Remove the mail that these records, which are in the loom now, have taken, and return it."""
        mail: list[Mail] = []
        if not self._claimed:
            return mail
        for record in records:
            key = get_key(record)
            if key is not None:
                pending = self._claimed.pop(key, None)
                if pending is not None:
                    self._known.discard(pending.no)
                    mail.append(pending.mail)
                self._mark_recorded(key)
        return mail

    def _mark_recorded(self, key: str) -> None:
        for waiter in self._waiters.get(key, ()):
            waiter.is_recorded = True

    # Callers that wait

    @property
    def awaited(self) -> list[str]:
        """The keys of the intents whose episodes callers wait for; "" is the key of the first intent."""
        return [key for key, waiting in self._waiters.items() if any(waiter.callers for waiter in waiting)]

    @property
    def expected(self) -> list[str]:
        """The keys of the intents whose episodes callers wait for, or whose ends have listeners."""
        return [*dict.fromkeys([*self.awaited, *self._listeners])]

    def lacks_expected(self, under_way: Collection[str]) -> bool:
        """Return whether a caller waits for an intent that neither waits here nor is `under_way`, as its key says."""
        here = {pending.mail.key for pending in (*self._intents, *self._claimed.values())}
        return not here.union(under_way).issuperset(self.expected)

    def get_variables(self, key: str) -> ContextVariables:
        """Return the context variables of the first caller that waits for an intent."""
        return next((waiter.context_variables for waiter in self._waiters.get(key, ())), ())

    def expect(self, key: str, waiter: Waiter) -> Waiter:
        """Settle `waiter` when the episode of the intent with this key has ended."""
        self._waiters.setdefault(key, []).append(waiter)
        return waiter

    def listen(self, key: str, listener: Callable[[], object]) -> None:
        """Call `listener` once the episode of the intent with this key has ended; an unloaded entity stays unloaded."""
        listeners = self._listeners.setdefault(key, [])
        if listener not in listeners:
            listeners.append(listener)

    def forget(self, key: str, waiter: Waiter) -> None:
        """Forget a caller that no longer waits."""
        waiting = self._waiters.get(key, [])
        if waiter in waiting:
            waiting.remove(waiter)
        if not waiting:
            self._waiters.pop(key, None)

    def forget_unawaited(self) -> None:
        """Forget the waiters without a caller: the entity is not loaded any more."""
        for key, waiting in list(self._waiters.items()):
            for waiter in [left for left in waiting if not left.callers and not left.is_sender]:
                waiter.is_forgotten = True
                self.forget(key, waiter)

    @property
    def has_senders(self) -> bool:
        """Whether it has the context variables of a sender that does not wait."""
        return any(waiter.is_sender for waiting in self._waiters.values() for waiter in waiting)

    def forget_senders(self) -> None:
        """Forget the senders that do not wait: another process works on their intents."""
        for key, waiting in list(self._waiters.items()):
            for waiter in [left for left in waiting if left.is_sender]:
                self.forget(key, waiter)

    def list_waiting_since(self, now: float, patience: float) -> list[Waiter]:
        """Return the callers for which no entity has been loaded here for `patience` seconds; then restart their count.

        `now` is event loop time.
        """
        late = []
        for waiter in (each for waiting in self._waiters.values() for each in waiting):
            if waiter.since is None:
                waiter.since = now
            elif now >= waiter.since + patience:
                late.append(waiter)
                waiter.since = now
        return late

    def settle(self, key: str, outcome: Outcome | None, error: CantripError | None = None) -> None:
        """Give the callers that wait for an episode its outcome or error, and call the listeners to its end."""
        for listener in self._listeners.pop(key, ()):
            listener()
        waiters = self._waiters.pop(key, ())
        for waiter in waiters:
            waiter.settle(outcome, error)
        if not any(waiter.callers for waiter in waiters):
            self._notify_processes()

    def settle_refused(self, records: Sequence[Record]) -> None:
        """Give the callers whose intents these records refused or withdrew their errors."""
        for key in self.expected:
            refusal = find_refusal(records, key)
            if refusal is not None:
                self.settle(key, None, make_refusal_error(refusal))

    def settle_all(self, make_error: Callable[[Waiter], CantripError | None]) -> None:
        """Fail each caller with the error that `make_error` returns for it; with None, the caller keeps waiting."""
        for key, waiting in list(self._waiters.items()):
            for waiter in list(waiting):
                error = make_error(waiter)
                if error is not None:
                    self.forget(key, waiter)
                    waiter.settle(None, error)


def make_refusal_error(record: MailRefused) -> CantripError:
    """Return the error for the callers that wait for an intent that this record refused or withdrew."""
    if record.why is not None:
        return Withdrawn(record.entity_id, record.key, record.sender or "", record.why)
    return InvalidIntent(f"entity {record.entity_id} refused the mail: {record.reason}")


def _get_number(pending: Pending) -> int:
    return pending.no
