"""The life of a loaded entity: one table of its stages, and one function that says what it may do now.

Pure, like the rest of this package. The runtime reports a change (`LoadedCells.change`), and `change_life` alone
moves an entity from stage to stage.

    stage     change      next stage
    LOADING   begins      WORKING     its first intent is recorded, or its episode is resumed
    LOADING   rests       IDLE        a long-lived entity has no episode under way
    WORKING   waits       WAITING     its action waits for a person, a crystal, another entity or a period (`Cause`)
    WAITING   continues   WORKING
    WORKING   rests       IDLE        the episode of a long-lived entity has ended
    IDLE      begins      WORKING     it has taken an intent
    any       ends        OVER        its log has its end
    LEAVING   ends        OVER        it is stopped for good before it has left
    any       leaves      LEAVING     its memory is released and its log stays; the next load continues it
    any       crashes     LOADING     its next incarnation folds the log again

`OVER` and `LEAVING` are final: the entity takes no more mail, and is removed. The table is data (`NEXT`), and a test
compares this text with it.

An entity may leave, be suspended or move to another cantrip only while nothing in its tree works. `find_causes`
collects what a tree of entities waits for, down to its leaves; `may` compares these causes with those that an occasion
allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final, Literal, NamedTuple


class Stage(Enum):
    """The stage of a loaded entity's life."""

    LOADING = "loading"
    WORKING = "working"
    WAITING = "waiting"
    IDLE = "idle"
    LEAVING = "leaving"
    OVER = "over"


class Change(Enum):
    """A change that moves an entity to another stage."""

    BEGINS = "begins"
    WAITS = "waits"
    CONTINUES = "continues"
    RESTS = "rests"
    ENDS = "ends"
    LEAVES = "leaves"
    CRASHES = "crashes"


NEXT: Final[Mapping[tuple[Stage, Change], Stage]] = MappingProxyType(
    {
        (Stage.LOADING, Change.BEGINS): Stage.WORKING,
        (Stage.LOADING, Change.RESTS): Stage.IDLE,
        (Stage.WORKING, Change.WAITS): Stage.WAITING,
        (Stage.WAITING, Change.CONTINUES): Stage.WORKING,
        (Stage.WORKING, Change.RESTS): Stage.IDLE,
        (Stage.IDLE, Change.BEGINS): Stage.WORKING,
        (Stage.LEAVING, Change.ENDS): Stage.OVER,
    }
    | {
        (stage, change): after
        for stage in (Stage.LOADING, Stage.WORKING, Stage.WAITING, Stage.IDLE)
        for change, after in (
            (Change.ENDS, Stage.OVER),
            (Change.LEAVES, Stage.LEAVING),
            (Change.CRASHES, Stage.LOADING),
        )
    }
)
"""The stage after each change that is possible in a stage."""

WaitKind = Literal["person", "children", "entity", "crystal", "node", "budget"]
"""The event that a waiting entity waits for: a decision, its children, the answer of another entity, a query that was
posted, or, between two turns, another node that takes it over, or the period for which it has a budget again."""


class LoadedLife(NamedTuple):
    """Where a loaded entity stands. `waits_for` is set in the stage WAITING alone."""

    stage: Stage = Stage.LOADING
    waits_for: WaitKind | None = None

    @property
    def is_final(self) -> bool:
        """Whether the entity takes no more mail: it has ended, or its memory is being released."""
        return self.stage is Stage.OVER or self.stage is Stage.LEAVING


def change_life(life: LoadedLife, change: Change, waits_for: WaitKind | None = None) -> LoadedLife:
    """Return the life after a change. Raises ValueError for a change that is not possible in this stage."""
    after = NEXT.get((life.stage, change))
    if after is None:
        raise ValueError(f"an entity that is {life.stage.value} cannot change by {change.value!r}")
    if (after is Stage.WAITING) is not (waits_for is not None):
        raise ValueError(f"expected what the entity waits for exactly if it waits, got {waits_for!r} for {after.value}")
    return LoadedLife(after, waits_for)


class Cause(Enum):
    """The reason why an entity, or a tree of entities, does nothing at this moment; or that it works."""

    WORK = "work"
    """It works, or is about to: mail waits that it acts on."""
    PERSON = "person"
    """A person has to decide."""
    CRYSTAL = "crystal"
    """A crystal that took a query answers later."""
    ANSWER = "answer"
    """Another entity has to answer."""
    NODE = "node"
    """Another node takes it over."""
    BUDGET = "budget"
    """The budget of this period is used up."""
    INTENT = "intent"
    """It is idle."""
    CALLER = "caller"
    """It is idle, and a caller in this process waits for an episode that it has not begun."""


class Occasion(Enum):
    """A reason to release the memory of an entity's tree, or to continue without the tree."""

    UNLOAD = "unload"
    """It has done nothing for long."""
    CLOSE = "close"
    """The runtime closes: an entity that only waits is suspended, and continues from its log."""
    DRAIN = "drain"
    """The runtime is about to close, and waits for entities that have work."""
    HAND_OVER = "hand over"
    """Another node continues it."""
    MOVE = "move"
    """It continues with another cantrip."""


class _Rule(NamedTuple):
    """The causes for which an occasion finds a tree free."""

    allowed: frozenset[Cause]
    ignores_mail: bool = False
    """Whether waiting control mail counts for nothing, because it stays in the inbox for the next load."""
    follows_answers: bool = True
    """Whether an entity that waits for another one counts as that one does, if it is loaded here."""
    respects_callers: bool = False
    """Whether callers in this process that wait for an episode keep the tree loaded."""


_LATER: Final = frozenset({Cause.PERSON, Cause.CRYSTAL, Cause.ANSWER, Cause.BUDGET})
"""The causes that may last for days."""

_RULES: Final[Mapping[Occasion, _Rule]] = MappingProxyType(
    {
        Occasion.UNLOAD: _Rule(frozenset({Cause.PERSON, Cause.INTENT}), follows_answers=False, respects_callers=True),
        Occasion.CLOSE: _Rule(_LATER, ignores_mail=True),
        Occasion.DRAIN: _Rule(_LATER | {Cause.INTENT}, ignores_mail=True),
        Occasion.HAND_OVER: _Rule(
            frozenset(Cause) - {Cause.WORK},
            ignores_mail=True,
            follows_answers=False,
        ),
        Occasion.MOVE: _Rule(frozenset({Cause.INTENT, Cause.CALLER}), ignores_mail=True),
    }
)


class Standing(NamedTuple):
    """The facts about one loaded entity that decide whether its tree may leave."""

    life: LoadedLife
    has_mail: bool = False
    """Whether control mail waits, or was claimed and is not recorded yet."""
    has_callers: bool = False
    """Whether callers in this process wait for its episodes."""
    children: Sequence[Standing] = ()
    """Its loaded children, unless it works: those that it waits for, and those that work in the background."""
    answerer: Standing | None = None
    """The entity whose answer it waits for, if that is loaded here."""


def find_causes(standing: Standing, *, ignores_mail: bool = False, follows_answers: bool = True) -> frozenset[Cause]:
    """Return what a tree of entities waits for, down to its leaves; `WORK` is among them if anything works.

    Args:
        standing: the root of the tree.
        ignores_mail: do not count waiting control mail as work.
        follows_answers: count an entity that waits for another one as that other one, if it is loaded here.
    """
    causes: dict[int, frozenset[Cause]] = {}
    todo = [standing]
    while todo:  # without recursion: entities that ask each other make long chains, and several may ask the same one
        entity = todo[-1]
        is_working = entity.has_mail and not ignores_mail
        below = () if is_working else _list_awaited(entity, follows_answers=follows_answers)
        if unknown := [awaited for awaited in below if id(awaited) not in causes]:
            todo += unknown
            continue
        causes[id(entity)] = _WORKS if is_working else _join_causes(entity, [causes[id(awaited)] for awaited in below])
        todo.pop()
    return causes[id(standing)]


def _list_awaited(standing: Standing, *, follows_answers: bool) -> Sequence[Standing]:
    """Return an entity's loaded children, and behind them the entity whose answer it waits for."""
    life = standing.life
    if life.is_final:
        return ()
    if life.waits_for == "entity" and standing.answerer and follows_answers:
        return (*standing.children, standing.answerer)
    return standing.children


def _join_causes(standing: Standing, below: Sequence[frozenset[Cause]]) -> frozenset[Cause]:
    """Return what an entity and its children wait for, given what its children wait for, and then its answerer."""
    life = standing.life
    if life.is_final:
        return frozenset()
    of_children: frozenset[Cause] = frozenset().union(*below[: len(standing.children)])
    if life.waits_for == "children":
        return of_children or _WORKS  # all of them have ended, and their parent is about to continue
    return of_children | _find_own_causes(standing, below[len(standing.children) :])


def _find_own_causes(standing: Standing, of_answerer: Sequence[frozenset[Cause]]) -> frozenset[Cause]:
    """Return what an entity waits for, apart from its children."""
    if standing.life.stage is Stage.IDLE:
        return _AWAITED if standing.has_callers else _IDLE
    if not of_answerer:
        return _CAUSES[standing.life.waits_for]
    return of_answerer[0] - _AWAITED or _CAUSES["entity"]


_WORKS: Final = frozenset({Cause.WORK})
_IDLE: Final = frozenset({Cause.INTENT})
_AWAITED: Final = frozenset({Cause.INTENT, Cause.CALLER})
_CAUSES: Final[Mapping[WaitKind | None, frozenset[Cause]]] = MappingProxyType(
    {
        None: _WORKS,
        "person": frozenset({Cause.PERSON}),
        "children": _WORKS,  # it starts them
        "entity": frozenset({Cause.ANSWER}),
        "crystal": frozenset({Cause.CRYSTAL}),
        "node": frozenset({Cause.NODE}),
        "budget": frozenset({Cause.BUDGET}),
    }
)
"""The cause of each kind of wait, for an entity alone."""


def may(occasion: Occasion, standing: Standing) -> bool:
    """Return whether a tree of loaded entities may leave on this occasion without losing work under way."""
    rule = _RULES[occasion]
    if rule.respects_callers and standing.has_callers:
        return False
    causes = find_causes(standing, ignores_mail=rule.ignores_mail, follows_answers=rule.follows_answers)
    return causes <= rule.allowed


# After a crash


RESTARTS: Final = 3
"""Restarts of a loaded entity after different crashes, before it is given up."""


class CrashMark(NamedTuple):
    """A crash of an entity: after which of its records, and with which exception."""

    position: int
    """The number of the entity's records at the crash."""
    error: str
    """The type and the text of the exception."""


def may_restart(crashes: Sequence[CrashMark]) -> bool:
    """Return whether an entity is tried again after the last of these crashes, oldest first.

    A crash that repeats at the same record with the same exception would repeat for ever. Crashes at different records
    are tried `RESTARTS` times.
    """
    return crashes[-1] not in crashes[:-1] and len(crashes) <= RESTARTS
