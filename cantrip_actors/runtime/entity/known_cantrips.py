"""The cantrips that this process can continue an entity with: after it was unloaded, after a crash, or in a fork.

The runtime never guesses crystals or dependencies (decision V-0001). An entity that was unloaded here continues with
its own cantrip. Any other entity continues with the known cantrip of the same content, if there is exactly one. If
several have different crystals or dependencies, the caller has to name one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

from cantrip_actors.machine.state import CantripRef
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Header
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.entity.marks import Marks
from cantrip_actors.terms.cantrip import Cantrip, is_interchangeable, is_same_but_for_crystal
from cantrip_actors.terms.episode_scope import Provide
from cantrip_actors.terms.errors import CantripUnknown, DependenciesUnknown, LoomError
from cantrip_actors.terms.extended_cantrip import extend, find_additions

REMEMBERED = 1024
"""Cantrip contents that are remembered, newest first, for forks and loads without a given cantrip."""

Key = TypeVar("Key", str, tuple[str, str | None])

_log = get_logger("cantrip_actors.runtime")

UNLOADED = 4096
"""Entities whose own cantrip is remembered while they are not loaded."""

SENT = 4096
"""Intents of this process that came with a cantrip, which is remembered until they are taken."""


class _Known(NamedTuple):
    """The first cantrip of one content, and whether all others are the same."""

    cantrip: Cantrip
    one_crystal: bool = True
    """Whether all cantrips of this content have the same crystal."""
    one_rest: bool = True
    """Whether they have the same functions and dependencies."""

    @property
    def is_clear(self) -> bool:
        """Whether all cantrips of this content are interchangeable."""
        return self.one_rest and self.one_crystal


class KnownCantrips:
    """The cantrips that a runtime can continue entities with. `cantrips` were given to `Runtime.open`.

    `provide`, if given, provides the dependencies of their gates for each episode.
    """

    def __init__(self, cantrips: Sequence[Cantrip], provide: Provide | None = None) -> None:
        self.provide = provide
        self._marks = Marks(cantrips)
        self._has_injected = False
        self.has_typed_answers = False
        """Whether one of these cantrips has an `answer` type."""
        self._sent: OrderedDict[tuple[str, str], Cantrip] = OrderedDict()
        """The cantrips that sent intents came with, by entity and key."""
        self.given = cantrips
        """The cantrips that were given to `Runtime.open`."""
        self._used: OrderedDict[str, _Known] = OrderedDict()
        self._named: OrderedDict[tuple[str, str | None], _Known] = OrderedDict()
        """The same by content and name, which tell cantrips of equal content and different crystals apart."""
        self._carved: OrderedDict[str, _Known] = OrderedDict()
        """Cantrips of children, separate because there may be many."""
        self._offered: dict[str, Cantrip] = {}
        """The latest cantrip of each name, for schedules."""
        self._ensured: OrderedDict[str, Cantrip] = OrderedDict()
        self._own: OrderedDict[str, Cantrip] = OrderedDict()
        """The cantrips of recently unloaded entities, by entity id."""
        for cantrip in cantrips:
            self.add(cantrip)
            self.offer(cantrip)

    def add(self, cantrip: Cantrip) -> None:
        """Remember the cantrip of a root entity; report one that is new and has the lethal trifecta."""
        if cantrip.id not in self._used and cantrip.circle.has_lethal_trifecta:
            risks = {risk: list(gates) for risk, gates in cantrip.circle.risks.items()}
            _log.warning("a cantrip has the lethal trifecta", cantrip=cantrip.id, name=cantrip.name, **risks)
        self._has_injected = self._has_injected or cantrip.circle.has_injected
        self.has_typed_answers = self.has_typed_answers or cantrip.answer is not None
        _remember(cantrip, cantrip.id, self._used)
        _remember(cantrip, (cantrip.id, cantrip.name), self._named)

    def learn(self, entity_id: str, wanted: CantripRef, read_header: Callable[[], Header]) -> None:
        """Remember an unknown cantrip if it is an offered one with the additions of a client, which a header has."""
        offered = self._offered.get(wanted.name or "")
        if offered is None or self.find_content(entity_id, wanted.id) is not None:
            return
        header = read_header()
        extended = extend(offered, find_additions(offered, header.circle, header.call))
        if extended.id == wanted.id:
            self.add(extended)

    def offer(self, cantrip: Cantrip) -> None:
        """Use this cantrip for schedules that cast the cantrip with its name, if it has one."""
        if cantrip.name is not None:
            self._offered[cantrip.name] = cantrip

    def find_offered(self, name: str) -> Cantrip | None:
        """Return the cantrip that is offered under a name."""
        return self._offered.get(name)

    @property
    def names(self) -> list[str]:
        """The names of the cantrips that are offered."""
        return list(self._offered)

    def list_served(self, *, moves: bool) -> list[str]:
        """Return the content ids of the cantrips that were given to `Runtime.open`, and if entities of other contents
        may move to them also their names.
        """
        names = [cantrip.name for cantrip in self.given if moves and cantrip.name is not None]
        return [*(cantrip.id for cantrip in self.given), *names]

    def add_carved(self, cantrip: Cantrip) -> None:
        """Remember the cantrip of a child."""
        _remember(cantrip, cantrip.id, self._carved)

    def note_unloaded(self, entity_id: str, cantrip: Cantrip) -> None:
        """Remember the cantrip of a long-lived entity that is unloaded."""
        self._own[entity_id] = cantrip
        self._own.move_to_end(entity_id)
        if len(self._own) > UNLOADED:
            self._own.popitem(last=False)

    def note_named(self, entity_id: str, cantrip: Cantrip) -> None:
        """Remember the cantrip that a caller names for a long-lived entity, unless one is remembered already."""
        if self.get_unloaded(entity_id) is None:
            self.note_unloaded(entity_id, cantrip)

    def note_ensured(self, entity_id: str, cantrip: Cantrip) -> None:
        """Remember the cantrip that `ensure` named last for an entity."""
        self._ensured[entity_id] = cantrip
        self._ensured.move_to_end(entity_id)
        if len(self._ensured) > UNLOADED:
            self._ensured.popitem(last=False)

    def get_ensured(self, entity_id: str) -> Cantrip | None:
        """Return the cantrip that `ensure` named last for an entity; None if it is not remembered."""
        return self._ensured.get(entity_id)

    def forget(self, entity_id: str) -> None:
        """Forget an entity that has ended."""
        self._own.pop(entity_id, None)
        self._ensured.pop(entity_id, None)

    def get_unloaded(self, entity_id: str) -> Cantrip | None:
        """Return the cantrip of an entity that was unloaded here; None if it is not remembered."""
        return self._own.get(entity_id)

    def make_mark(self, cantrip: Cantrip) -> str | None:
        """Return the mark of a cantrip's dependencies for the loom; None if it has none, or they are provided."""
        return None if self.provide is not None else self._marks.make_mark(cantrip)

    def has_dependencies(self, cantrip: Cantrip, mark: str | None) -> bool:
        """Return whether the gates of a cantrip have the dependencies of a mark, or get provided ones."""
        return self.provide is not None or self._marks.has(cantrip, mark)

    def check_dependencies(self, entity_id: str, cantrip: Cantrip, mark: str | None) -> None:
        """Raise DependenciesUnknown if a cantrip has other dependencies than those of an entity's mark."""
        if not self.has_dependencies(cantrip, mark):
            raise make_dependencies_unknown(entity_id)

    def list_dependencies(self, contents: Iterable[str]) -> dict[str, list[str]]:
        """Return the marks of the dependencies with which each of these contents is offered here.

        A content is left out if its gates have no dependencies, or get provided ones.
        """
        offered = [cantrip for cantrip in self.given if self.provide is None and cantrip.circle.has_injected]
        marks = {
            content: [self._marks.list_marks(cantrip) for cantrip in offered if cantrip.id == content]
            for content in contents
        }
        return {content: sorted({*chain.from_iterable(lists)}) for content, lists in marks.items() if lists}

    @property
    def has_marks(self) -> bool:
        """Whether marks of dependencies matter in this process."""
        return self.provide is None and self._has_injected

    def note_sent(self, entity_id: str, key: str, cantrip: Cantrip) -> str | None:
        """Remember the cantrip that an intent comes with until it is taken; return the mark of its dependencies."""
        mark = self.make_mark(cantrip)
        if mark is not None:
            self._has_injected = True
            self._sent[entity_id, key] = cantrip
            if len(self._sent) > SENT:
                self._sent.popitem(last=False)
        return mark

    def is_for(self, cantrip: Cantrip, intent: Mail) -> bool:
        """Return whether a cantrip has the dependencies that an intent came with.

        If it was sent here, perhaps again with its key, they are those of the cantrip that it was last sent with.
        """
        if intent.dependencies is None:
            return True
        sent = self.get_sent(intent.entity_id, intent.key)
        return self.has_dependencies(cantrip, intent.dependencies if sent is None else self.make_mark(sent))

    def forget_sent(self, entity_id: str, key: str) -> None:
        """Forget the cantrip of an intent that was taken."""
        self._sent.pop((entity_id, key), None)

    def get_sent(self, entity_id: str, key: str) -> Cantrip | None:
        """Return the cantrip that an intent of this process came with, if its dependencies matter."""
        return self._sent.get((entity_id, key))

    def is_clear(self, entity_id: str, wanted: CantripRef) -> bool:
        """Return whether the cantrip of an entity is unambiguous, so that it can be loaded without a given one."""
        own, used = self._own.get(entity_id), self._find_used(wanted)
        if own is not None and own.id == wanted.id:
            return True
        return used is not None and used.is_clear

    def _find_used(self, wanted: CantripRef) -> _Known | None:
        """Return what is known of a content; if that is ambiguous, what is known of it under the wanted name."""
        used = self._used.get(wanted.id)
        return used if used is None or used.is_clear else self._named.get(wanted, used)

    def find_unclear(self, contents: Iterable[str]) -> dict[str, list[str | None]]:
        """Return which of these contents are known with several crystals or dependencies, each with the names under
        which it is known with only one.
        """
        known = ((content, self._used.get(content)) for content in contents)
        unclear = {content for content, used in known if used is None or not used.is_clear}
        names: dict[str, list[str | None]] = {content: [] for content in sorted(unclear)}
        for (content, name), used in self._named.items() if unclear else ():
            if content in unclear and used.is_clear:
                names[content].append(name)
        return names

    def find_cantrip(self, entity_id: str, wanted: CantripRef, *, any_crystal: bool = False) -> Cantrip:
        """Return the cantrip that an entity continues with; `any_crystal` if the caller replaces its crystal.

        Raises CantripUnknown; LoomError for an ambiguous cantrip.
        """
        own, cantrip_id = self._own.get(entity_id), wanted.id
        if own is not None and own.id == cantrip_id:
            return own
        used = self._find_used(wanted) or self._carved.get(cantrip_id)
        if used is None:
            raise self._make_unknown(entity_id, wanted)
        if not (used.one_rest and (used.one_crystal or any_crystal)):
            raise LoomError(
                f"the cantrip of entity {entity_id} ({cantrip_id}) was used in this process with several "
                "crystals or dependencies: say with which it continues, cantrip=…, or give each a name of its own"
            )
        return used.cantrip

    def find_content(self, entity_id: str, cantrip_id: str) -> Cantrip | None:
        """Return a known cantrip of that content, whatever its crystal and its dependencies are."""
        own, used = self._own.get(entity_id), self._used.get(cantrip_id) or self._carved.get(cantrip_id)
        if own is not None and own.id == cantrip_id:
            return own
        return None if used is None else used.cantrip

    def _make_unknown(self, entity_id: str, wanted: CantripRef) -> CantripUnknown:
        offered = [(cantrip.name, cantrip.id) for cantrip in self.given]
        shown = ", ".join(_make_label(name, cantrip_id) for name, cantrip_id in offered) or "none"
        return CantripUnknown(
            f"the cantrip of entity {entity_id}, {_make_label(wanted.name, wanted.id)}, is not known in this process, "
            f"which offers {shown}: give the one that it works with to Runtime.open(…, cantrips=[…]), or another one "
            "to runtime.entity(name, cantrip=…) or runtime.resume(entity_id, cantrip=…), for a fork to "
            "runtime.fork(…, cantrip=…). An episode under way ends with the cantrip that it began with; after it, a "
            "long-lived entity moves to an offered cantrip of the same name, unless `upgrade` keeps it",
            entity_id=entity_id,
            cantrip_id=wanted.id,
            cantrip_name=wanted.name,
            offered=offered,
        )


def make_dependencies_unknown(entity_id: str) -> DependenciesUnknown:
    """Return the error for an entity that waits for dependencies that this process does not have."""
    return DependenciesUnknown(
        f"entity {entity_id} waits: its gates had dependencies that no cantrip of this process has, and it does not "
        "continue with others. Open the runtime with dependencies=provide, or pass a cantrip with the right ones: "
        "runtime.entity(name, cantrip=…), runtime.resume(entity_id, cantrip=…) or, for a fork, "
        "runtime.fork(…, cantrip=…)"
    )


def _make_label(name: str | None, cantrip_id: str) -> str:
    return f'"{name}" ({cantrip_id})' if name is not None else f"({cantrip_id})"


def _remember(cantrip: Cantrip, key: Key, among: OrderedDict[Key, _Known]) -> None:
    """Remember a cantrip; note that its content is ambiguous if it was used with different crystals or dependencies."""
    entry = among.get(key)
    if entry is None:
        entry = _Known(cantrip)
    elif entry.one_rest and not is_same_but_for_crystal(entry.cantrip, cantrip):
        entry = entry._replace(one_rest=False)
    elif entry.one_crystal and not is_interchangeable(entry.cantrip, cantrip):
        entry = entry._replace(one_crystal=False)
    among[key] = entry
    among.move_to_end(key)
    if len(among) > REMEMBERED:
        among.popitem(last=False)
