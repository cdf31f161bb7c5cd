"""Messages: the gates `post`, `ask` and `wake_me`, and the detection of deadlocks.

An entity that asks another one waits for the other's episode. If the other waits for the first, directly or through
more entities, neither ever gets an answer. So this module notes each wait of one entity for another: for a gate `ask`,
for a child, and for Python code in a gate that calls `send` or `cast`. A wait that would close a cycle is refused, and
the error shows the path. For entities of other processes, the waits are read from their logs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

from cantrip_actors.loom.reading.view import fold_entity
from cantrip_actors.machine.actions import Await, Contact
from cantrip_actors.machine.delegate import may_wait_for_background
from cantrip_actors.machine.events import Observed, Questioned
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Observation
from cantrip_actors.records.timers import Timer
from cantrip_actors.runtime.entity.cell import Cell
from cantrip_actors.runtime.events.context_variables import find_asker
from cantrip_actors.runtime.loom.core import Core
from cantrip_actors.runtime.mail.inboxes import Inboxes, is_open
from cantrip_actors.runtime.time.wake_me import set_timer
from cantrip_actors.terms.cut_off import note_cut_off
from cantrip_actors.terms.errors import AskCycle, CantripError, LoomError
from cantrip_actors.terms.own_gate_names import ASK, WAKE_ME


class Questions:
    """The waits of a runtime's entities for other entities."""

    def __init__(self, core: Core, inboxes: Inboxes) -> None:
        self._core = core
        self._inboxes = inboxes
        self._calls: dict[str, list[str]] = {}
        """For each entity whose Python gates wait for episodes: the entities of those episodes."""

    def mark_waiting(self, entity_id: str) -> AbstractAsyncContextManager[None]:
        """Return a context in which the calling gate's entity, if any, waits for another. Raises AskCycle."""
        asker = find_asker()
        return nullcontext() if asker is None else self._mark_calling(asker, entity_id)

    @asynccontextmanager
    async def _mark_calling(self, asker: str, entity_id: str) -> AsyncIterator[None]:
        await self.check(asker, entity_id)
        calls = self._calls.setdefault(asker, [])
        calls.append(entity_id)
        try:
            yield
        finally:
            calls.remove(entity_id)
            if not calls:
                self._calls.pop(asker, None)

    async def check(self, asker: str, asked: str) -> None:
        """Raise AskCycle if `asked` already waits, directly or through others, for `asker`.

        The last search for a cycle reads no log, so no other task runs between it and the caller's registration.
        """
        logged: dict[str, Sequence[str]] = {}
        while True:
            path, unread = self._find_cycle(asker, asked, logged)
            if path:
                raise AskCycle(await self._core.in_store(partial(self._find_names, path)))
            if not unread:
                return
            logged |= await self._core.in_store(partial(self._read_awaited, unread))

    def _find_cycle(
        self, asker: str, asked: str, logged: Mapping[str, Sequence[str]]
    ) -> tuple[Sequence[str], Sequence[str]]:
        """Return the path from `asker` to itself, empty without one, and the entities whose logs may have more."""
        paths = {asked: [asker, asked]}
        todo, unread = [asked], []
        while todo:
            one = todo.pop()
            if one == asker:
                return paths[one], ()
            awaited = [*self._calls.get(one, ())]
            cell = self._core.living.get(one)
            if cell is not None:
                awaited += self._core.living.list_awaited(cell)
            elif one in logged:
                awaited += logged[one]
            else:
                unread.append(one)
            for other in awaited:
                if other not in paths:
                    paths[other] = [*paths[one], other]
                    todo.append(other)
        return (), unread

    def _find_names(self, entities: Sequence[str]) -> list[str]:
        return [self._core.find_name(entity) or entity for entity in entities]

    def _read_awaited(self, entities: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the entities that each entity waits for according to its log: those that it asks, and its children.

        Another process may run it. A question that has its answer is waited for no more, even if that process has not
        read the answer yet; children in the background are waited for only in `wait_for_children`.
        """
        loom, store, found = self._core.loom, self._core.store, dict[str, list[str]]()
        for entity in entities:
            awaited = found[entity] = list[str]()
            if not loom.has(entity) or loom.is_over(entity):
                continue
            state = fold_entity(loom, entity)
            asked = state.turn.asked
            if asked is not None and is_open(store, loom, asked.to, asked.key):
                awaited.append(asked.to)
            background = () if may_wait_for_background(state) else state.background
            awaited += [child_id for child_id in loom.below(entity) if child_id not in background]
        return found

    async def contact(self, cell: Cell, action: Contact) -> tuple[Observed | Questioned, Sequence[Mail | Timer]]:
        """Return the event of a message, and the mail or the timer for the transaction that records it.

        If the message cannot be sent, the event is an error observation.
        """
        if action.gate.name == WAKE_ME:
            return set_timer(cell, action, self._core, self._inboxes)
        gate, call, to, message = action.gate, action.call, action.args["to"], action.args["message"]
        inboxes = self._inboxes
        allowed = gate.dependencies.get("to", ())
        try:
            if not any(fnmatchcase(to, pattern) for pattern in allowed):
                known = ", ".join(allowed) or "none"
                raise LoomError(f'expected an entity that this circle may reach ({known}), got "{to}"')
            entity_id = await self._core.in_store(partial(inboxes.resolve_address, to, cell.plan.tenant))
            if gate.name == ASK:
                await self.check(cell.entity_id, entity_id)
            key = f"{cell.entity_id}:{action.turn_id}:{call.id}"
            mail = inboxes.make_intent(entity_id, message, key=key, sender=cell.plan.name or cell.entity_id)
            if cell.spans is not None:
                mail = replace(mail, trace=cell.spans.trace)
            await self._core.in_store(partial(self._core.store.check_room, mail))
        except CantripError as error:
            return Observed(Observation(gate.name, call.args, f"{gate.name}: {error}", True, call.id)), []
        if gate.name == ASK:
            return Questioned(entity_id, key), [mail]
        return Observed(Observation(gate.name, call.args, f"sent to {to}", False, call.id)), [mail]

    async def wait_for_answer(self, cell: Cell, action: Await) -> Observed:
        """Wait for the other entity's episode, and return its answer as an observation."""
        to, key = action.to, action.key
        waiter = await self._inboxes.expect(to, key)
        try:
            if not waiter.settled.is_set:
                self._inboxes.listen_for_asker(to, key, cell.root.entity_id)
            await waiter.settled.wait()
        finally:
            self._inboxes.forget(to, key, waiter)
        call, outcome = action.call, waiter.outcome
        if waiter.error is not None:
            return Observed(Observation(call.gate, call.args, f"{ASK}: {waiter.error}", True, call.id))
        assert outcome is not None, "an intent that was posted is taken or fails"
        if outcome.terminated:
            result = note_cut_off(outcome.result, outcome.cut_off)
            return Observed(Observation(call.gate, call.args, result, False, call.id, images=outcome.images))
        why = f"{ASK}: no answer: {outcome.error or outcome.summary or outcome.reason}"
        return Observed(Observation(call.gate, call.args, why, True, call.id))
