"""Make cells: for a new entity, for an entity that is loaded from its log, and for a child."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from cantrip_actors.circle.capability import make_capability
from cantrip_actors.circle.medium import ProgramLimits
from cantrip_actors.circle.plain import NotPlain, Pictured, convert_with_images, is_plain
from cantrip_actors.loom import EntityFacts, Loom
from cantrip_actors.loom.reading.view import make_checked
from cantrip_actors.machine.actions import Child
from cantrip_actors.machine.budget import Ledger
from cantrip_actors.machine.events import Begin
from cantrip_actors.machine.life import LoadedLife, Stage
from cantrip_actors.machine.project import Life, find_last_beginning, make_fork_state, measure_waited
from cantrip_actors.machine.state import Identity, Plan, State
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Header, Record
from cantrip_actors.runtime.circles.tool_servers import ToolServers
from cantrip_actors.runtime.crystals.crystal_pool import Crystals, find_window, read_crystal
from cantrip_actors.runtime.entity.cell import Adoption, Bound, Cell, EpisodeCaller, Start
from cantrip_actors.runtime.entity.mail_reader import find_extended
from cantrip_actors.runtime.loom.core import Core
from cantrip_actors.runtime.time.deadline import Deadline
from cantrip_actors.terms.bounds import count_bytes
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.crystal import Crystal
from cantrip_actors.terms.errors import EntityEnded, InvalidIntent, LoomError
from cantrip_actors.terms.exact_json import dump_exactly
from cantrip_actors.terms.file import File
from cantrip_actors.terms.history import NO_HISTORY, History, PastMessage, measure_history, read_history
from cantrip_actors.terms.image import NO_IMAGES, split_message

MAX_INPUT = 16 * 2**20
"""The most bytes of an intent with its context and its history."""

MAX_NOTE = 256 * 2**10
"""The most bytes of a note."""

CACHED_CAPABILITIES = 16
"""How many capability texts are cached; circles of the same kind share one."""

NEVER_BEGAN = "was about to begin when its process was killed, and its intent is not recorded"


def make_begin(
    intent: object,
    context: Any,
    images: tuple[File, ...] = NO_IMAGES,
    *,
    sender: str | None = None,
    history: History = (),
    note: Any = None,
) -> Begin:
    """Return the Begin event of an intent of `sender`: its text, its context as JSON, its history, its note, and all
    images.

    `images` come first, then the images of the intent, of the context and of the history. Raises InvalidIntent.
    """
    text, of_intent = split_message(intent, "intent is required: expected a text that says what to achieve")
    past, of_past = NO_HISTORY if history == () else read_history(history)
    of_context = NO_IMAGES
    if not is_plain(context):
        try:
            context = convert_with_images(context)
        except NotPlain as problem:
            raise InvalidIntent(
                f"context: expected JSON data, pydantic models, dataclasses or images, got {problem}"
            ) from problem
        if isinstance(context, Pictured):
            context, of_context = context
    _check_size(text, context, past)
    _check_note(note)
    return Begin(text, context, (*images, *of_intent, *of_context, *of_past), None, sender, history=past, note=note)


def _check_note(note: Any) -> None:
    """Raise InvalidIntent for a note that is no JSON, or has more than MAX_NOTE bytes: a store keeps it twice."""
    if note is None:
        return
    if not is_plain(note):
        raise InvalidIntent(f"note: expected JSON data, got {type(note).__name__}")
    size = _measure_json("note", note)
    if size > MAX_NOTE:
        raise InvalidIntent(f"note: expected at most {MAX_NOTE:,} bytes of JSON, got {size:,}")


def _check_size(text: str, context: Any, history: Sequence[PastMessage]) -> None:
    """Raise InvalidIntent for more than MAX_INPUT bytes: handling them would block the event loop."""
    size = count_bytes(text) + measure_history(history)
    if context is not None:
        size += _measure_json("context", context)
    check_input_size("the intent, its context and its history have", size)


def _measure_json(what: str, data: Any) -> int:
    """Return the size of data as JSON, in bytes. Raises InvalidIntent for data that have no JSON form."""
    try:
        return len(dump_exactly(data))
    except (TypeError, ValueError) as problem:
        raise InvalidIntent(f"{what}: expected JSON data, got {problem}") from problem


def check_input_size(what: str, size: int) -> None:
    """Raise InvalidIntent for a message of more than MAX_INPUT bytes: handling it would block the event loop."""
    if size > MAX_INPUT:
        raise InvalidIntent(
            f"{what} {size:,} bytes: expected at most {MAX_INPUT:,}; put large data where a gate can read it part by "
            "part"
        )


def find_forked(loom: Loom, turn_id: str) -> str:
    """Return the entity of a turn that is to be forked. Raises LoomError for an unknown and for a forgotten turn."""
    owner = loom.owner(turn_id)
    if loom.is_forgotten(owner):
        raise LoomError(f"turn {turn_id} is forgotten: it cannot be forked, because its context is deleted")
    return owner


class Cells:
    """Makes the cells of one runtime."""

    def __init__(self, core: Core, crystals: Crystals, servers: ToolServers) -> None:
        self._core = core
        self._crystals = crystals
        self._servers = servers
        self._capabilities: deque[tuple[object, str]] = deque(maxlen=CACHED_CAPABILITIES)

    def make_cell(
        self,
        cantrip: Cantrip,
        identity: Identity,
        begin: Begin | None,
        parent: Cell | None = None,
    ) -> Cell:
        """Return a new cell, with its crystal bound; crystals are bound in the order of the requests.

        Without `begin`, the entity's log has its first intent. Raises InvalidCantrip.
        """
        core = self._core
        # raises here, before anything starts, if the medium is not available
        capability = self._get_capability(cantrip.circle)
        crystal = self._bind(cantrip.crystal, cantrip.circle)
        plan = Plan.of(
            cantrip,
            identity,
            window=find_window(crystal.uses.crystal),
            capability=capability,
            release="" if core.membership is None else core.membership.info.release,
        )
        summary = cantrip.folding.summary
        if summary is not False:
            own = Bound(crystal.crystal, crystal.uses)
            crystal.summariser = own if summary is True else self._bind(summary, cantrip.circle)
        servers = self._servers.list_servers(cantrip.circle)
        if servers:
            crystal.servers = servers
            crystal.samplers = {
                server.server.name: self._bind(server.server.sampling, cantrip.circle)
                for server in servers
                if server.server.sampling is not None
            }
        return Cell(
            plan,
            crystal,
            Ledger(plan.wards, None if parent is None else parent.ledger, is_new=begin is not None),
            Deadline(plan.wards),
            parent,
            None if begin is None else Start(begin),
            EpisodeCaller(core.capture_variables() if parent is None else parent.context_variables),
        )

    def _bind(self, crystal: Crystal | str, circle: Circle) -> Bound:
        used = self._crystals.find(crystal)
        return Bound(read_crystal(used.crystal, partial(self._learn_and_bind, circle)), used)

    def _learn_and_bind(self, circle: Circle, crystal: Crystal) -> Crystal:
        self._core.guard.learn(crystal, circle)
        bind = getattr(crystal, "bind", None)
        return crystal if bind is None else bind()

    def _get_capability(self, circle: Circle) -> str | None:
        """Return the capability text of a circle; code circles of the same kind share one text, to save memory."""
        if not circle.has_programs:
            return make_capability(circle)
        kind = circle.language, circle.definitions, ProgramLimits.under(circle.resolved)
        for cached, text in self._capabilities:
            if cached == kind:
                return text
        text = make_capability(circle) or ""
        self._capabilities.append((kind, text))
        return text

    async def fork(self, turn_id: str, cantrip: Cantrip, identity: Identity, begin: Begin) -> Cell:
        """Return the cell of an entity that begins at a turn of another (LOOM-4). Raises LoomError."""
        records = await self._core.in_store(partial(self._read_lineage, turn_id))
        cell = self.make_cell(cantrip, identity, begin)
        cell.start = Start(begin, make_fork_state(cell.plan.shape, records))
        return cell

    def _read_lineage(self, turn_id: str) -> Sequence[Record]:
        loom = make_checked(self._core.loom)
        find_forked(loom, turn_id)
        return loom.lineage(turn_id)

    async def get_child_cell(self, parent: Cell, turn_id: str, child: Child, known: str | None) -> Cell:
        """Return the cell of a child: a new cell or, after a crash of the parent, one loaded from the log.

        A new child sees its intent and the context that it is given, and nothing of its parent's context (COMP-4).
        """
        loom, request = self._core.loom, child.request
        if known is not None and (earlier := self._core.living.get(known)) is not None:
            await earlier.ending.wait()  # it ended with the parent's last incarnation
        if known is not None:
            facts = await self._core.in_store(
                lambda: loom.facts(known) if known in loom.below(parent.entity_id) else None
            )
            if facts is not None:
                return await self.load_cell(facts, child.cantrip, "at_once", parent, child)
        begin = make_begin(request.intent, request.context, child.images)
        identity = Identity(
            known or self._core.make_moment().fresh, parent.entity_id, turn_id, tenant=parent.plan.tenant
        )
        return self.make_cell(child.cantrip, identity, begin, parent)

    def choose_cantrip(
        self, facts: EntityFacts, cantrip: Cantrip | None = None, intent: Mail | None = None
    ) -> tuple[Cantrip, Adoption | None]:
        """Return the cantrip with which a root entity is loaded, and how it moves to that one if it does.

        `intent` is its next one, if it is idle. Raises LoomError, EntityEnded.
        """
        if facts.life >= Life.OVER:
            raise EntityEnded(f"entity {facts.entity_id} has ended ({self._core.loom.state(facts.entity_id)})")
        if cantrip is None:
            cantrip, move = self._core.find_cantrip(facts)
            self._core.check_dependencies(facts, cantrip, intent)
            extended = cantrip if intent is None else find_extended(cantrip, intent)
            return extended, None if move is None and extended is cantrip else "with_intent"
        return cantrip, "after_episode" if self._core.will_move(facts, cantrip) else "at_once"

    async def load_cell(
        self,
        facts: EntityFacts,
        cantrip: Cantrip,
        adoption: Adoption | None,
        parent: Cell | None = None,
        child: Child | None = None,
    ) -> Cell:
        """Return the cell of an entity to load: of a root entity, or of that `child` of `parent`. Raises LoomError.

        `choose_cantrip` returns the other arguments for a root entity.
        """
        loom, header, entity_id = self._core.loom, facts.header, facts.entity_id
        begin = None
        if not facts.has_begun:
            if child is None:
                raise LoomError(f"entity {entity_id} {NEVER_BEGAN}: abandon it, and cast again")
            begin = make_begin(child.request.intent, child.request.context, child.images)
        cell = self.make_cell(cantrip, Identity.of_header(header), begin, parent)
        cell.adoption = adoption
        if cell.start is not None:
            cell.start.state = State(header.parent_turn, has_header=True)
        if cell.deadline.is_set:
            now = self._core.store.clock()
            began, waited = await self._core.in_store(partial(self._measure_episode, header, now))
            cell.deadline.start(now - began, waited)
        if parent is not None and facts.life >= Life.OVER:
            cell.life = LoadedLife(Stage.OVER)
            cell.outcome = await self._core.in_store(partial(loom.outcome, entity_id))
        return cell

    def _measure_episode(self, header: Header, now: float) -> tuple[float, float]:
        """Return when the last episode began, and how many seconds it and its children have waited for people."""
        loom, entity_id = self._core.loom, header.entity_id
        began = datetime.fromisoformat(find_last_beginning(loom.records(entity_id)) or header.at).timestamp()
        members = loom.subtree(entity_id)
        return began, sum(measure_waited(loom.records(member), now, began) for member in members)
