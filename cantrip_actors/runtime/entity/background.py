"""Background children: those for which an entity does not wait (`call_agent(…, wait=False)`), while they are under way.

They are children of their parent's actor, as all children are. The log says which of them are under way:
those whose `ChildStarted` is a background one, and whose answer no later record has. So a new incarnation of the parent
loads them again, and takes the answers of those that have ended meanwhile from their logs: no answer is lost, and none
comes in twice. A child that has ended only notifies its parent.

The records of a long-lived entity that rests while children of its work say so, and a store finds it as an entity that
is busy: after a crash it is resumed, and resumes its children.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

import anyio

from cantrip_actors.machine.actions import Child, Contact, Spawn
from cantrip_actors.machine.delegate import make_wait_answer, plan_children, render_answer
from cantrip_actors.machine.events import Begin, ChildOutcome, Observed, Returned, Steering
from cantrip_actors.machine.state import BackgroundChild, Phase
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Observation
from cantrip_actors.runtime.entity.cell import Cell
from cantrip_actors.runtime.entity.delegation import ParentEntity, describe_outcome, read_outcome
from cantrip_actors.runtime.entity.ends import end_trees
from cantrip_actors.terms.bounds import measure_share
from cantrip_actors.terms.errors import AskCycle, CantripError, LoomError
from cantrip_actors.terms.gate import Refused
from cantrip_actors.terms.messages import as_text
from cantrip_actors.terms.own_gate_names import CANCEL_CHILD, INTERRUPT_CHILD, LIST_CHILDREN, WAIT_FOR_CHILDREN

SHOWN: Final = 200
"""Characters of a child's intent that `list_children` shows."""


class BackgroundChildren:
    """The background children of one incarnation of an entity.

    `interrupt` cuts the query short that the entity makes; it has no effect if it makes none.
    """

    def __init__(self, parent: ParentEntity, interrupt: Callable[[], None]) -> None:
        self._parent = parent
        self._cell = parent.cell
        self._recorder = parent.recorder
        self._environment = parent.environment
        self._interrupt = interrupt
        self._cells: dict[str, Cell] = {}
        """The children that were started here, by their ids, the first one first."""
        self._lost: dict[str, ChildOutcome] = {}
        """The outcomes of children that cannot be resumed."""
        self._urgent: set[str] = set()
        self._news = anyio.Event()
        """Set when a child has ended."""

    @property
    def _under_way(self) -> dict[str, BackgroundChild]:
        return self._recorder.state.background

    @property
    def has_answers(self) -> bool:
        """Whether children have ended whose answers have not come in."""
        return bool(self._under_way) and any(map(self._has_ended, self._under_way))

    def _has_ended(self, child_id: str) -> bool:
        if child_id in self._lost:
            return True
        cell = self._cells.get(child_id)
        return cell is not None and (cell.ending.is_set or (cell.is_over and cell.actor.parent is None))

    # Beginnings

    async def resume(self) -> None:
        """Load and start the children that are under way and do not run here, and end those that an undo took back.

        One that cannot be resumed, because the parent has moved to a cantrip without it, has ended. Raises LoomError.
        """
        state, core = self._recorder.state, self._environment.core
        if state.phase is Phase.OVER:
            return
        for child_id in reversed(list(self._cells)):
            if child_id not in state.background:
                await self._parent.stop(self._cells.pop(child_id), "cancelled")
        for child_id, child in list(state.background.items()):
            if child_id not in self._cells and child_id not in self._lost:
                await self._load(child_id, child)
        if state.undone:  # the process may have died before it had ended them
            wanted = {*state.background, *(child.child_id for child in state.turn.children)}
            below = await core.in_store(partial(core.loom.below, self._cell.entity_id))
            await end_trees(core, [child for child in below if child not in wanted], "its parent's intent was undone")
        self._note_answers(are_left=self.has_answers)

    async def _load(self, child_id: str, child: BackgroundChild) -> None:
        plan, images = self._cell.plan, self._recorder.state.conversation.images
        gate = plan.gates.get(child.call.gate)
        unavailable = Refused(plan.circle.unavailable(child.call.gate))
        planned = unavailable if gate is None else plan_children(plan, gate, child.call, images)
        if isinstance(planned, Refused):
            await self._lose(child_id, planned.reason)
            return
        try:
            request = planned[child.place]
            cell = await self._parent.maker.get_child_cell(self._cell, child.turn_id, request, child_id)
        except LoomError:
            raise
        except CantripError as error:
            await self._lose(child_id, str(error))
        else:
            await self._start(cell, request)

    async def _lose(self, child_id: str, why: str) -> None:
        """Note that a child cannot be resumed, and end it in the loom, unless it has ended before."""
        core, why = self._environment.core, f"it cannot be resumed: {why}"
        await end_trees(core, [child_id], why)
        outcome = await core.in_store(
            lambda: core.loom.outcome(child_id) if core.loom.has(child_id) else None  # it may not have begun
        )
        self._lost[child_id] = ChildOutcome(None, why) if outcome is None else describe_outcome(outcome)

    async def spawn(self, action: Spawn) -> Returned:
        """Start the children of a call, and return their ids. Raises LoomError."""
        outcomes: list[ChildOutcome] = []
        cells: dict[int, Cell] = {}
        for index, child in enumerate(action.children):
            known = action.started.get(index)  # from before a crash: `resume` has started it
            if known is None:
                cell = await self._parent.make_child(action.turn_id, child, None)
                if isinstance(cell, ChildOutcome):
                    outcomes.append(cell)
                    continue
                cells[index], known = cell, cell.entity_id
            outcomes.append(ChildOutcome(known))
        with anyio.CancelScope(shield=True):  # once they are recorded, they are under way
            await self._parent.record_beginnings(action, cells)
            for index, cell in cells.items():
                await self._start(cell, action.children[index])
        return Returned(tuple(outcomes))

    async def _start(self, cell: Cell, child: Child) -> None:
        self._cells[cell.entity_id] = cell
        if child.urgent:
            self._urgent.add(cell.entity_id)
        if not cell.is_over:
            self._environment.core.living.note_background(cell.entity_id)
            cell.ending.listen(partial(self._note_end, cell.entity_id))
            await self._parent.start(cell)

    def _note_end(self, child_id: str) -> None:
        self._news.set()
        self._note_answers(are_left=True)
        if self._cell.inbox is not None:
            self._cell.inbox.notify_actor()
        if child_id in self._urgent:
            self._interrupt()

    def _note_answers(self, *, are_left: bool) -> None:
        """Note whether answers are left: an entity that rests is not unloaded then."""
        if self._cell.inbox is not None:
            self._cell.inbox.is_answered = are_left

    # Answers

    def find_intent(self) -> Begin | None:
        """Return the intent with which the entity, which rests, takes the answers of its children; None without any."""
        if not self.has_answers or self._cell.leaves_when_idle or self._environment.core.is_draining:
            return None
        ended = next(filter(self._has_ended, self._under_way))
        return Begin("Children that worked in the background have ended.", key=ended, sender=ended)

    async def take_answers(self) -> tuple[Steering, ...]:
        """Return the answers that have not come in, as messages. Raises LoomError of a child that could not record."""
        answers = []
        for child_id in list(filter(self._has_ended, self._under_way)):
            outcome = await self._read_outcome(child_id)
            text = render_answer(child_id, outcome)
            answers.append(Steering(text, outcome.images, sender=child_id, child=child_id))
        self._note_answers(are_left=False)
        return tuple(answers)

    async def _read_outcome(self, child_id: str) -> ChildOutcome:
        if child_id in self._lost:
            return self._lost[child_id]
        cell = self._cells[child_id]
        if cell.outcome is None and isinstance(cell.error, LoomError):
            raise cell.error  # it has not failed but stopped, and continues when its parent is resumed
        return await read_outcome(self._environment.core, cell)

    # Gates

    async def contact(self, action: Contact, waiting: Callable[[], AbstractContextManager[None]]) -> Observed:
        """Carry out a gate for children. The entity is `waiting()` while it waits for some. Raises LoomError."""
        gate, call, args = action.gate, action.call, action.args
        wanted = args.get("children") if gate.name == WAIT_FOR_CHILDREN else None
        named = tuple(wanted or self._under_way) if "child" not in args else (args["child"],)
        unknown = [child_id for child_id in named if child_id not in self._under_way]
        if unknown:
            known = ", ".join(self._under_way) or "none"
            error = f"{gate.name}: expected children that work in the background ({known}), got {', '.join(unknown)}"
            return Observed(Observation(gate.name, call.args, error, True, call.id))
        if gate.name == WAIT_FOR_CHILDREN:
            return await self._wait(action, named, waiting)
        if gate.name == LIST_CHILDREN:
            children = [self._describe(child_id) for child_id in self._under_way]
            return Observed(Observation(gate.name, call.args, children, False, call.id))
        self._recorder.outgoing = [self._make_mail(action)]
        return Observed(Observation(gate.name, call.args, f"sent to {args['child']}", False, call.id))

    def _describe(self, child_id: str) -> dict[str, str]:
        cell, child = self._cells.get(child_id), self._under_way[child_id]
        status = "ended" if self._has_ended(child_id) or cell is None else cell.life.waits_for or "works"
        args = child.call.args or {}
        requests = args.get("intents") or args.get("requests") or [args]
        request = requests[child.place]
        intent = request if isinstance(request, str) else request["intent"]
        how = status if status in ("ended", "works") else f"waits for: {status}"
        return {"child": child_id, "intent": intent[:SHOWN], "status": how}

    def _make_mail(self, action: Contact) -> Mail:
        """Return the mail to a child, which is posted with the record of the call."""
        parent, args, name = self._cell, action.args, action.gate.name
        inboxes, child_id, root = self._environment.inboxes, args["child"], parent.root.entity_id
        post = partial(
            inboxes.make_mail,
            key=f"{parent.entity_id}:{action.turn_id}:{action.call.id}",
            sender=parent.plan.name or parent.entity_id,
            root=root,
        )
        if name == CANCEL_CHILD:
            return post(child_id, "stop", {"reason": args["why"]})
        if name == INTERRUPT_CHILD:  # a child has one episode
            return post(child_id, "interrupt", {"episode": 1, "why": args["why"], "now": False})
        return post(child_id, "steer", {"text": args["message"]})

    async def _wait(
        self, action: Contact, named: Sequence[str], waiting: Callable[[], AbstractContextManager[None]]
    ) -> Observed:
        gate, call = action.gate, action.call
        try:
            for child_id in named:
                await self._environment.questions.check(self._cell.entity_id, child_id)
        except AskCycle as cycle:
            return Observed(Observation(gate.name, call.args, f"{gate.name}: {cycle}", True, call.id))
        with waiting():
            while not self._is_waited_for(named, first=action.args["first"]):
                self._news = anyio.Event()
                await self._news.wait()
        outcomes: dict[str, ChildOutcome] = {}
        share = 0.0
        for child_id in filter(self._has_ended, named):
            outcome = await self._read_outcome(child_id)
            share += measure_share(as_text(outcome.result))
            if share > 1 and outcomes:
                break  # it exceeds what one call may return, and comes as a message
            outcomes[child_id] = outcome
        left = [child_id for child_id in self._under_way if child_id not in outcomes]
        self._note_answers(are_left=any(map(self._has_ended, left)))
        return Observed(make_wait_answer(gate, call, outcomes, left))

    def _is_waited_for(self, named: Sequence[str], *, first: bool) -> bool:
        """Return whether the wait for these children is over; the end of an urgent child ends each wait."""
        ended = set(filter(self._has_ended, self._under_way))
        return ended.issuperset(named) or (first and not ended.isdisjoint(named)) or not ended.isdisjoint(self._urgent)

    # Ends

    async def end(self) -> None:
        """End the children that are under way, last started first, and wait until their ends are recorded."""
        with anyio.CancelScope(shield=True):
            for cell in reversed(self._cells.values()):
                await self._parent.stop(cell, "parent_ended")
            await end_trees(self._environment.core, list(self._under_way), "its parent ended")
