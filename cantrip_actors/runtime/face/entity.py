"""The handle of an entity, which `start`, `invoke` and `entity` return.

A handle refers to an entity and does not own it. The entity lives in the runtime's tree, even after its handles are
gone. A long-lived entity may be unloaded, so that only its log remains; a `send` loads it again.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, TypeVar

import anyio

from cantrip_actors.loom import Held, Quarantined
from cantrip_actors.loom.export.spending import read_spending
from cantrip_actors.loom.export.thread_messages import read_messages
from cantrip_actors.loom.reading.view import fold_entity, make_checked
from cantrip_actors.machine.life import Stage
from cantrip_actors.machine.project import find_refusal, get_outcome, list_intents
from cantrip_actors.machine.state import Phase
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.turn import Turn
from cantrip_actors.runtime.entity.cell import Cell
from cantrip_actors.runtime.entity.cells import check_input_size, make_begin
from cantrip_actors.runtime.entity.launcher import ONE_SHOT, STOP_GRACE, unload_when_idle
from cantrip_actors.runtime.events.events import Subscription
from cantrip_actors.runtime.events.log_feed import EventFeed, LogFeed, follow_turns
from cantrip_actors.runtime.face.episode import Episode, make_episode
from cantrip_actors.runtime.face.run import BEGINNING, EpisodeRun, FollowedEpisode, RunPosition, read_event_id
from cantrip_actors.runtime.face.work import MailState, NoAnswer, Work, check_timeout
from cantrip_actors.runtime.mail.inbox import Waiter
from cantrip_actors.runtime.mail.inboxes import POLL_INTERVAL
from cantrip_actors.runtime.tree import Tree
from cantrip_actors.stream.reading import EventId
from cantrip_actors.terms.answer import Answer_co
from cantrip_actors.terms.arguments import check_kind, check_name, check_texts
from cantrip_actors.terms.bounds import count_bytes
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.errors import (
    CantripError,
    EntityEnded,
    EntityInterrupted,
    InvalidIntent,
    LoomError,
    RuntimeClosed,
)
from cantrip_actors.terms.file import File
from cantrip_actors.terms.history import History
from cantrip_actors.terms.image import Said, select_files, split_message
from cantrip_actors.terms.messages import ThreadMessage
from cantrip_actors.terms.outcome import Outcome
from cantrip_actors.terms.period import Period, PeriodUsage

TAKEN_INTERVAL: Final = 0.05
"""Seconds between two looks whether control mail was taken."""

T = TypeVar("T")


class Entity(Generic[Answer_co]):
    """An entity, loaded here or not."""

    def __init__(
        self,
        tree: Tree,
        entity_id: str,
        name: str | None = None,
        cell: Cell | None = None,
        first: Waiter | None = None,
        cantrip: Cantrip[Answer_co] | None = None,
        *,
        is_beginning: bool = False,
        begun_with: Cantrip[Answer_co] | None = None,
        withdraw: Callable[..., Awaitable[MailState]] | None = None,
    ) -> None:
        self._tree = tree
        self._name = name
        self._id = entity_id
        self._cell = cell
        self._first = first
        self._cantrip = cantrip
        self._is_beginning = is_beginning
        self._begun_with = cantrip or begun_with
        """The cantrip that the caller named: its episodes have results of its type."""
        self._withdraw = withdraw
        """`Submission.withdraw` of the submission with which the entity begins, if it was submitted."""
        self.is_new: bool = False
        """Whether the call of `Runtime.ensure` that returned this has made the entity."""

    @property
    def id(self) -> str:
        """The entity's id: `runtime.loom.turns(entity.id)`."""
        return self._id

    @property
    def name(self) -> str | None:
        """The name under which the entity was invoked; None without one."""
        return self._name

    @property
    def loaded(self) -> bool:
        """Whether the entity runs, or waits for its next intent, in this process."""
        return self._find_cell() is not None

    @property
    def held(self) -> bool:
        """Whether this process or another runs the entity. It reads a shared loom in the calling thread."""
        return self.loaded or self._tree.is_held(self._id)

    @property
    def work(self) -> Work[Answer_co]:
        """The intent that the entity began with, as a piece of work; its id is the entity's."""
        return self._make_work("")

    async def episode(self) -> Episode[Answer_co]:
        """Wait for the episode of the entity's first intent, and return it.

        A repeated `start` or `invoke` with a key returns that same episode, whatever was sent since. For a long-lived
        entity whose handle comes from elsewhere, such as `Runtime.entity`: the episode under way, or the last one.

        Raises as `Runtime.cast` does, and EntityEnded for an entity that no process runs and that has no recorded end.
        """
        tree, cell = self._tree, self._find_cell() or self._cell
        if self._first is not None and not self._first.is_forgotten:
            outcome = await self._await_with_entity_id(self._wait_for_first_outcome(self._first))
            return await self._make_episode(outcome)
        if self._is_beginning:
            return await self._wait_for_episode("")
        if cell is not None and cell.plan.lasting:
            await cell.wait_until_begun()
            if cell.episode is not None:
                return await self._wait_for_episode(cell.episode.key)
        elif cell is not None:
            cell.callers += 1
            try:
                async with tree.questions.mark_waiting(self._id):
                    await cell.ending.wait()
            finally:
                cell.callers -= 1
            if cell.outcome is not None:
                if cell.error is not None:
                    raise self._add_entity_id(cell.error)
                return await self._make_episode(cell.outcome)
            if not (cell.is_suspended and tree.is_open):  # an unloaded tree that waits for people continues
                raise self._add_entity_id(cell.make_interruption_error())
        continues, key, ended = await tree.in_store(self._read_episode)
        if continues:
            return await self._wait_for_episode(key)
        if ended is None:
            raise EntityInterrupted(self._id)
        return await self._make_episode(ended)

    async def _make_episode(self, outcome: Outcome) -> Episode[Answer_co]:
        return await make_episode(self._tree, self._id, outcome, self._cell, self._begun_with)

    def _make_work(self, key: str) -> Work[Answer_co]:
        return Work(self._tree, self._id, key, self._begun_with, self._name)

    def _read_episode(self) -> tuple[bool, str | None, Outcome | None]:
        """Return from the log whether the last episode is still under way in any process, its key, and its outcome."""
        loom, is_held = make_checked(self._tree.loom), self._tree.is_held(self._id)
        state = fold_entity(loom, self._id)  # read after the lease: its process records the end before it releases it
        episode = state.episode
        if state.phase is Phase.IDLE and not episode.number:
            raise LoomError(f"entity {self._id} has had no intent yet: send it one")
        if episode.end is None and (is_held or self._is_continued()):
            return True, episode.key, None
        return False, episode.key, get_outcome(state, loom.usage_below(self._id))

    def _is_continued(self) -> bool:
        """Return whether some process continues the episode that is under way."""
        return self._tree.is_run_or_waiting(self._id) or self._tree.has_living_node()

    async def _wait_for_first_outcome(self, first: Waiter) -> Outcome:
        if first.settled.is_set:
            return await first.wait()
        first.callers += 1
        try:
            async with self._tree.questions.mark_waiting(self._id):
                return await first.wait()
        finally:
            first.callers -= 1

    async def _wait_for_episode(self, key: str | None) -> Episode[Answer_co]:
        self._tree.check_open()  # otherwise the caller would wait for ever
        async with self._tree.questions.mark_waiting(self._id):
            outcome = await self._await_with_entity_id(self._tree.inboxes.wait_for_outcome(self._id, key or ""))
        return await self._make_episode(outcome)

    async def send(
        self,
        intent: Said,
        *,
        context: Any = None,
        history: History = (),
        key: str | None = None,
        by: str = "",
        timeout: float | None = None,
    ) -> Episode[Answer_co]:
        """Give a long-lived entity a further intent, and wait for its episode; intents are taken in order.

        The intent is a text, or a list of texts, images and files; `context` may contain these, too. `history` are
        messages of another conversation, as for `Runtime.cast`. Cancelling the wait does not withdraw the intent:
        `runtime.receipt(entity, key).withdraw()` does, while it is in the inbox.

        With a `key` the entity works on the intent exactly once: a repeated send with the same content, also from
        another process or after a crash, returns the same episode. Other content with that key raises KeyUsed.

        `by` names the sender; the record of the intent has it as its `sender`. `timeout` is the longest wait for the
        episode, in seconds, once the intent is durable; after it NoAnswer is raised, with the work.

        Raises InvalidIntent without an intent, InvalidFile for a file that its crystal does not take, EntityEnded if
        the entity has ended, Withdrawn if the intent was withdrawn, InboxFull if too much mail waits for it, AskCycle
        in a gate of an entity that this entity waits for; else as `Runtime.cast`.
        """
        if timeout is not None:
            check_timeout(timeout)
        mail = await self._make_intent(intent, context, history, key, by)
        durable, limit = key is not None or timeout is not None, math.inf if timeout is None else timeout
        async with self._tree.questions.mark_waiting(self._id):
            outcome = await self._await_with_entity_id(self._tree.inboxes.send(mail, durable=durable, timeout=limit))
        if outcome is None:
            raise await self._tree.in_store(partial(NoAnswer, self._make_work(mail.key), limit))
        return await self._make_episode(outcome)

    async def post(
        self,
        intent: Said,
        *,
        context: Any = None,
        history: History = (),
        note: Any = None,
        key: str | None = None,
        by: str = "",
    ) -> Work[Answer_co]:
        """Give a long-lived entity a further intent without waiting for it: the intent is durable when this returns.

        `note` is JSON that you keep with the intent for yourself: `Work.note` returns it, and no crystal sees it.
        `key`, `by` and errors as for `send`. A process that does not know the entity's cantrip may post, too.
        """
        mail = await self._make_intent(intent, context, history, key, by, note=note, waits=False)
        await self._await_with_entity_id(self._tree.inboxes.post(mail))
        return self._make_work(mail.key)

    async def _make_intent(
        self,
        intent: Said,
        context: Any,
        history: History,
        key: str | None,
        by: str,
        *,
        note: Any = None,
        waits: bool = True,
    ) -> Mail:
        tree, cell = self._tree, self._find_cell()
        begin = make_begin(intent, context, history=history, note=note)
        tree.check_accepting()
        _check_sent(key, by)
        await self._make_loadable(key, waits=waits)
        if tree.allowances.is_used:
            await self._check_allowance(key, by)
        if cell is not None:
            if not cell.plan.lasting:
                raise InvalidIntent(ONE_SHOT)
            await cell.wait_until_begun()
        await self._check_files(begin.images)
        return tree.inboxes.make_intent(
            self._id,
            begin.intent,
            begin.context,
            begin.images,
            key=key,
            sender=by,
            cantrip=self._cantrip,
            history=begin.history,
            note=begin.note,
        )

    async def _check_allowance(self, key: str | None, by: str) -> None:
        """Raise AllowanceSpent if the sender has used up its allowance; a repeated send is not new work."""
        tree = self._tree
        if key is None or not await tree.in_store(lambda: self._make_work(key).is_known):
            header = await tree.in_store(partial(tree.loom.header, self._id))
            await tree.allowances.check(header.tenant, by)

    async def _make_loadable(self, key: str | None, *, waits: bool = True) -> None:
        """Check that some process can run the long-lived entity, if it is not loaded here.

        Raises EntityEnded, InvalidIntent and LoomError.
        """
        cell, launcher = self._cell, self._tree.launcher
        if self._cantrip is not None and not self._cantrip.additions:  # those come with the intent
            await launcher.adopt(self._id, self._cantrip)
        elif self._find_cell() is None:
            cantrip_here = None if cell is None or cell.is_for_episode else cell.plan.cantrip.unprovided
            await launcher.check_sendable(self._id, cantrip_here, key, waits=waits)

    async def _check_files(self, files: Iterable[File]) -> None:
        """Raise InvalidFile for a file that the entity's crystal does not take, as far as this process knows it."""
        if not select_files(files):
            return
        tree, cell = self._tree, self._find_cell()
        cantrip = self._cantrip or (None if cell is None else cell.plan.cantrip)
        if cantrip is None:
            with suppress(LoomError):  # this process only posts
                cantrip, _ = tree.find_cantrip(await tree.in_store(partial(tree.loom.facts, self._id)))
        if cantrip is not None:
            tree.launcher.check_files(cantrip, files)

    def stream(
        self,
        intent: Said,
        *,
        context: Any = None,
        history: History = (),
        key: str | None = None,
        by: str = "",
        resume: str | None = None,
    ) -> EpisodeRun[Answer_co]:
        """Send an intent, and follow its episode while it happens: `async with entity.stream(intent) as run`.

        The other arguments are as for `send`. Leaving the block before the episode has ended withdraws the intent
        or interrupts the episode, unless there is a `key`.

        With `resume`, the `position` of a run or the `id` of its last event, only later events come. With the `key`,
        the intent of that key is followed; without one, the episode at that position, and nothing is sent.

        Raises InvalidIntent for a `resume` that is no position; entering the block raises as `post`.
        """
        return EpisodeRun(partial(self._begin_run, intent, context, history, key, by), resume, keeps=key is not None)

    async def _begin_run(
        self, intent: Said, context: Any, history: History, key: str | None, by: str, after: RunPosition
    ) -> FollowedEpisode[Answer_co]:
        if key is None and after.event != BEGINNING:
            return await self._follow_episode_at(after.event)
        feed = EventFeed(self._tree, self._id, BEGINNING, deltas=True)  # before the intent is there to be taken
        work = await self.post(intent, context=context, history=history, key=key, by=by)
        return self._follow_intent(feed, work.key)

    async def _follow_episode_at(self, at: EventId) -> FollowedEpisode[Answer_co]:
        """Return the episode that an event belongs to."""
        tree = self._tree
        feed = EventFeed(tree, self._id, BEGINNING, deltas=True)
        header = await tree.in_store(partial(tree.loom.header, self._id))
        if not header.lasting:
            return self._follow_only_episode(feed)
        records = await tree.in_store(partial(tree.loom.records, self._id))
        intents = list_intents(records[: at.number])
        return self._follow_intent(feed, intents[-1].key or "" if intents else "")

    def _follow_intent(self, feed: EventFeed, key: str) -> FollowedEpisode[Answer_co]:
        work = self._make_work(key)

        async def cancel() -> None:
            await work.cancel(now=True)
            await work.result(timeout=STOP_GRACE)  # the process that runs the entity may have died

        has_none = work._has_no_episode  # noqa: SLF001  # of the same face
        load = partial(self._tree.inboxes.load_if_left, self._id)
        return FollowedEpisode(self._id, feed, key, work.result, cancel, has_none, load)

    def _follow_only_episode(self, feed: EventFeed) -> FollowedEpisode[Answer_co]:
        has_none = self.work._has_no_episode  # noqa: SLF001  # of the same face
        load = partial(self._tree.inboxes.load_if_left, self._id)
        return FollowedEpisode(self._id, feed, None, self.episode, self._cancel, has_none, load)

    def _follow_beginning(self) -> FollowedEpisode[Answer_co]:
        """Return the episode of a one-shot entity that has just begun, for `Runtime.stream`."""
        return self._follow_only_episode(EventFeed(self._tree, self._id, BEGINNING, deltas=True))

    async def steer(self, text: Said, *, pin: bool = False, key: str | None = None, by: str = "") -> None:
        """Insert a message before the entity's next query; if the entity is idle, before its next intent.

        The message is durable when this returns; it does not load an entity that is not loaded.

        It is a text, or a list of texts, images and files. With `pin` it stays in the context when the turns around it
        are folded. `key` and `by` are as for `send`. Raises InvalidIntent for an empty one, InvalidFile, EntityEnded,
        and KeyUsed.
        """
        message, images = split_message(text, "steer: expected a text for the entity")
        await self._check_files(images)
        check_kind("pin", pin, bool, "True or False", InvalidIntent)
        await self._post_control("steer", {"text": message, **({"pin": True} if pin else {})}, images, key, by)

    async def interrupt(
        self, why: str = "interrupted", *, now: bool = False, key: str | None = None, by: str = ""
    ) -> None:
        """End the entity's present episode before the next turn; an idle entity stays idle.

        With `now` the query, the gate or the child under way is cancelled, too, and this returns when it has ended and
        the end of the episode is recorded; whether a cancelled gate had its effect is then unknown. A caller that waits
        for the episode gets it, truncated, with the reason "interrupted". Repeated with the same `key` it interrupts no
        later episode; other content with that key raises KeyUsed. `by` names the person or program that interrupts.

        With `now`, raises EntityInterrupted if no process continues the episode: the process that resumes it interrupts
        it.
        """
        self._tree.check_open()
        check_texts(why=why, by=by)
        check_kind("now", now, bool, "True or False", InvalidIntent)
        cell, number, intent_key = await self._find_episode_under_way()
        is_continued = not now or await self._tree.in_store(self._is_continued)  # read first: the interrupt may end it
        if number is not None or key is not None:  # with a key, the mail records that the interrupt was requested
            target = {"episode": number or 0} if key is None else {"episode": number or 0, "keyed": True}
            await self._post_control("interrupt", {**target, "why": why, "now": now}, key=key, by=by)
        if now and number is not None:
            if not is_continued:
                raise EntityInterrupted(self._id)
            await self._wait_until_over(cell, intent_key)

    async def _find_episode_under_way(self) -> tuple[Cell | None, int | None, str | None]:
        """Return the cell if the entity is loaded here, the number of its present episode, if any, and its key."""
        cell = self._find_cell()
        if cell is not None:
            await cell.wait_until_begun()
        if cell is not None and cell.life.stage not in (Stage.LOADING, Stage.OVER):
            return (cell, None, None) if cell.episode is None else (cell, cell.episode.number, cell.episode.key)
        loom = self._tree.loom
        state = await self._tree.in_store(lambda: fold_entity(loom, self._id))
        number = None if state.phase in (Phase.IDLE, Phase.OVER) else state.episode.number
        return cell, number, state.episode.key

    async def undo(self, *, key: str | None = None, by: str = "") -> bool:
        """Go back to before the last intent of a long-lived entity; return whether there was one.

        It is a fork in place: the name and the inbox stay. An episode under way is interrupted first. Everything after
        the intent is in force no longer: the conversation, the sandbox and remembered decisions are as they were before
        it. The old turns stay in the loom, and can be forked. Effects of gates outside the entity stay, and so does the
        usage in budgets. Undone again, it goes back further. It returns when that is recorded, and the background
        children of the intent have ended. `key` and `by` as for `send`. Raises EntityEnded, KeyUsed, InvalidIntent for
        a one-shot entity, and Quarantined: then it goes back when it is tried again.
        """
        tree = self._tree
        tree.check_open()
        if not (await tree.in_store(partial(tree.loom.header, self._id))).lasting:
            raise InvalidIntent("undo: this entity was cast: only a long-lived one goes back to before its last intent")
        await self._make_loadable(key)
        mail_key = await self._post_control("undo", {}, key=key, by=by)
        was_undone = await self._wait_until_taken(mail_key)
        while was_undone and (children := await tree.in_store(self._list_undone_children)):
            tree.check_open()
            await self._wait_for_end_of(children)
        return was_undone

    def _list_undone_children(self) -> list[str]:
        """Return the background children of undone intents that have not ended."""
        loom = self._tree.loom
        children = [child_id for child_id in loom.below(self._id) if not loom.is_over(child_id)]
        if not children or loom.is_over(self._id):
            return []
        state = fold_entity(loom, self._id)
        wanted = {*state.background, *(child.child_id for child in state.turn.children)}
        return [child_id for child_id in children if child_id not in wanted]

    async def _wait_for_end_of(self, children: Iterable[str]) -> None:
        """Wait until the first of these children that runs here has stopped; for a moment if another process runs
        them.
        """
        cells = (self._tree.living.get(child_id) for child_id in children)
        cell = next((cell for cell in cells if cell is not None), None)
        if cell is None:
            await anyio.sleep(POLL_INTERVAL)
        else:
            await cell.ending.wait()

    async def compact(self, instructions: str | None = None, *, key: str | None = None, by: str = "") -> bool:
        """Fold older turns out of the context now; a working entity does so before its next query.

        With `instructions` a crystal writes the summary and obeys them: the one of `folding.summary`, else the entity's
        own; a blank text does not count. It returns when the fold is recorded: False if there was nothing to fold.
        `key` and `by` as for `send`. Raises EntityEnded, KeyUsed, Quarantined as `undo`, EntityInterrupted for a
        one-shot entity that no process continues, and AskCycle in a gate of an entity that this entity waits for, or of
        its own: the gate `compact` folds there.
        """
        check_kind("instructions", instructions, str | None, "a text, or None", InvalidIntent)
        tree = self._tree
        tree.check_open()
        if (await tree.in_store(partial(tree.loom.header, self._id))).lasting:
            await self._make_loadable(key)
        elif not await tree.in_store(lambda: self._is_continued() or self._is_gone()):
            raise EntityInterrupted(self._id)
        async with tree.questions.mark_waiting(self._id):
            mail_key = await self._post_control("compact", {"instructions": instructions}, key=key, by=by)
            return await self._wait_until_taken(mail_key)

    async def _wait_until_taken(self, key: str) -> bool:
        """Wait until a record has taken control mail; return whether it was carried out, and not refused."""
        tree = self._tree
        root = await tree.look_up_root(self._id)
        if self._find_cell() is None:
            tree.inboxes.load(root)
        while (was_carried_out := await tree.in_store(partial(self._find_taken, root, key))) is None:
            tree.check_open()
            await anyio.sleep(TAKEN_INTERVAL)
        return was_carried_out

    def _find_taken(self, root: str, key: str) -> bool | None:
        """Return whether control mail was carried out; None while it waits. Raises EntityEnded, Quarantined."""
        store, loom = self._tree.store, self._tree.loom
        row = store.find_mail(root, key)
        taken = None if row is None else row.taken
        ended = EntityEnded(f"entity {self._id} ended before it took the mail")
        if row is not None and taken is None:
            if loom.is_over(self._id):
                raise ended
            for held in store.quarantines():
                if held.entity_id == root and store.clock() < (held.until or math.inf):
                    raise Quarantined(*held)
            return None
        takers = () if taken is None or root == self._id else store.records(root, after=taken - 1, limit=1)
        if find_refusal(takers, key) is not None:  # a root refuses the mail of children that have ended
            raise ended
        return find_refusal(loom.records(self._id), key) is None

    async def _wait_until_over(self, cell: Cell | None, intent_key: str | None) -> None:
        """Wait until an episode has ended, however that may be."""
        if cell is not None and not cell.plan.lasting:
            await cell.ending.wait()
            return
        with suppress(CantripError):
            await self._tree.inboxes.wait_for_outcome(self._id, intent_key or "")

    async def _post_control(
        self, kind: Any, body: dict[str, Any], images: Any = (), key: str | None = None, by: str = ""
    ) -> str:
        """Make control mail durable, and return its key."""
        tree, cell = self._tree, self._find_cell()
        tree.check_open()
        _check_sent(key, by)
        check_input_size(
            f"{kind}: the text has", sum(count_bytes(text) for text in body.values() if isinstance(text, str))
        )
        if cell is not None:
            await cell.wait_until_begun()
        root = await tree.look_up_root(self._id)
        if root != self._id and await tree.in_store(self._is_gone):  # the store knows this of the root alone
            raise EntityEnded(f"entity {self._id} has ended: it takes no mail")
        mail = tree.inboxes.make_mail(self._id, kind, body, images, key=key, sender=by, root=root)
        await self._await_with_entity_id(tree.inboxes.post(mail))
        return mail.key

    async def stop(self, reason: str = "cancelled", *, by: str = "") -> None:
        """End the entity and its subtree, last started first; return when all have ended. `by` names the person or
        program that ends it.

        An entity that no process runs is ended in the loom, as "abandoned". An entity that another process runs is
        ended by that process. The submission of an entity that has not begun is withdrawn.
        """
        tree, is_requested = self._tree, False
        tree.check_open()
        check_texts(reason=reason, by=by)
        while self._withdraw is not None:
            if await self._withdraw(reason, by=by) != "waiting":
                break
            await anyio.sleep(POLL_INTERVAL)  # a process begins the entity now
        while True:
            cell = self._find_cell()
            if cell is not None:
                await tree.launcher.terminate(cell, reason, by)
            if await tree.in_store(self._is_gone):
                return
            try:
                await tree.launcher.abandon(self._id, reason, by)
            except Held:
                if not is_requested:
                    with suppress(EntityEnded):  # it has just ended there
                        await self._post_control("stop", {"reason": reason}, by=by)
                is_requested = True
                await anyio.sleep(POLL_INTERVAL)

    def _is_gone(self) -> bool:
        """Return whether the loom has no such entity, or has its end."""
        return not self._tree.loom.has(self._id) or self._tree.loom.is_over(self._id)

    def unload(self) -> None:
        """Unload the entity as soon as it is idle, without waiting `passivate_after`; its next intent loads it again.

        This releases its memory and its servers of tools. It does nothing for a one-shot entity, and for an entity that
        is not loaded here.
        """
        cell = self._find_cell()
        if cell is not None and cell.plan.lasting:
            unload_when_idle(cell)

    def events(self, after: str | None = None, *, deltas: bool = False) -> Subscription | EventFeed:
        """Subscribe to the entity's events, up to its end, for observation.

        With `after`, the `id` of an event, or "0" for the beginning, the events come from the loom: each recorded one
        once and in order, in whichever process the entity runs, and all have ids. So a reader that lost its connection
        continues after the last event that it got. Raises InvalidIntent for a text that is no id; iterating raises
        LoomError for an entity that is not in the loom.

        Without `after`, the events from now on come from this process, without ids; a subscription right after `start`
        or `invoke` includes the entity's first events. An entity that is over has no events. The subscription ends also
        if the entity ends in another process; iterating raises LoomError if the loom does not answer.

        With `deltas` the pieces of an answer (`StreamedEvent`) are among the events, while this process runs the
        entity; with `after`, those of an answer that is being given from its beginning.
        """
        tree, cell = self._tree, self._find_cell()
        if after is not None:
            return EventFeed(tree, self._id, read_event_id(after), deltas=deltas)
        first = () if cell is None or cell.start is None else tree.make_events(cell.start.records)
        subscription = tree.bus.subscribe(entity_id=self._id, deltas=deltas, first=first, has_ended=self._has_ended)
        if cell is not None and cell.is_over:
            subscription.close()
        return subscription

    async def _has_ended(self) -> bool:
        """Return whether the entity has ended, and is not loaded here; also if the runtime closes meanwhile."""
        try:
            return not self.loaded and await self._tree.in_store(partial(self._tree.loom.is_over, self._id))
        except RuntimeClosed:
            return True

    def story(self, after: int = 0) -> LogFeed[Turn]:
        """Return the entity's turns with a number above `after`, and the turns to come, in order, to its end.

        They come from the loom, so it does not matter which process runs the entity, or whether one does:
        `async for turn in entity.story(after=41)`. A turn is seen when it is recorded. Raises InvalidIntent for a wrong
        number; iterating raises LoomError for an entity that is not in the loom.
        """
        return follow_turns(self._tree, self._id, after)

    async def messages(self) -> list[ThreadMessage]:
        """Return the entity's thread as messages, oldest first: intents, steering, answers, results.

        They come from the loom, whichever process runs the entity: intents and steering messages with their senders,
        and the turns that are committed. Each is a `Message` with its author, the time at which it was recorded, and
        whether a fold took it out of the entity's context. The messages of a fork begin with those of its original. The
        system prompt is not among them. Raises UnknownEntity, LoomError.
        """
        return await self._tree.in_store(partial(read_messages, make_checked(self._tree.loom), self._id))

    async def spending(self, *, per: Period = "day", zone: str = "UTC") -> list[PeriodUsage]:
        """Return the usage of the entity and of all entities that it spawned in each intent, day or month, oldest
        first.

        Each has the name of its `period`, such as "2026-11-29", and its `usage`; periods without any are left out.
        `zone` is a name of the IANA database. Raises UnknownEntity, LoomError.
        """
        return await self._tree.in_store(partial(read_spending, self._tree.loom, self._id, per, zone))

    async def result(self) -> Episode[Answer_co]:
        """Wait as `episode` does; if the caller is cancelled meanwhile, end the entity."""
        try:
            return await self.episode()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._cancel()
            raise

    async def _cancel(self) -> None:
        """End the entity: here if this process runs it or it waits for a person, else by mail."""
        tree, cell = self._tree, self._find_cell()
        if cell is not None:
            await tree.launcher.terminate(cell, "cancelled")
        if not tree.is_open or await tree.in_store(self._is_gone):
            return
        is_held = await tree.in_store(partial(tree.is_held, self._id))  # read first: it may be unloaded, and wait
        if await tree.in_store(partial(tree.is_waiting, self._id)):
            await self.stop()
        elif is_held and not tree.is_draining:  # it continues elsewhere
            with suppress(EntityEnded):
                await self._post_control("stop", {"reason": "cancelled"})

    def _find_cell(self) -> Cell | None:
        return self._tree.living.get(self._id)

    async def _await_with_entity_id(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except CantripError as error:
            self._add_entity_id(error)
            raise

    def _add_entity_id(self, error: CantripError) -> CantripError:
        error.entity_id = self._id
        return self._tree.guard.redact_error(error)

    def __repr__(self) -> str:
        return f"<Entity {self._name or self._id} {'loaded' if self.loaded else 'not loaded here'}>"


def _check_sent(key: object, by: object) -> None:
    """Raise InvalidIntent for a key that no store can index, and for a sender that is not a text."""
    check_texts(by=by)
    if key is not None:
        check_name("key", key)
