"""Marks say which dependencies the gates of an episode have, so that no process runs it with those of another user.

The runtime never guesses the dependencies of a user (decision V-0001). `Runtime.open(dependencies=…)` provides them for
each episode (`providing.py`). Without it they are those of a cantrip that this process has. Then each intent has a
mark in the loom, and so has its mail if its sender gave a cantrip:

    offered     the dependencies of a cantrip that was given to `Runtime.open`, in any process
    values:…    a digest of plain values: a cantrip with the same values has the same mark in every process
    own:…       objects of one process

Where no cantrip of a process has the dependencies of a mark, the entity waits for one that has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import PurePath
from typing import Any, Final
from uuid import uuid4

from cantrip_actors.runtime.loom.guard import SECRET_NAME
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.provided import PROVIDED

REMEMBERED: Final = 4096
"""How many sets of objects are remembered with their marks, newest first."""

_OFFERED: Final = "offered"
_PLAIN: Final = frozenset({str, bytes, int, float, bool, type(None)})
"""Types of values that are equal in every process, beside paths and containers of such values."""


class Marks:
    """The marks of the dependencies of cantrips in this process. `offered` were given to `Runtime.open`."""

    def __init__(self, offered: Iterable[Cantrip]) -> None:
        self._offered = {_identify(cantrip): cantrip for cantrip in offered if cantrip.circle.has_injected}
        self._own: OrderedDict[tuple[object, ...], tuple[str, Cantrip]] = OrderedDict()
        """The marks of objects. The cantrip keeps them alive, so that no other object gets the id of one of them."""

    def make_mark(self, cantrip: Cantrip) -> str | None:
        """Return the mark of a cantrip's dependencies; None if it has none."""
        if not cantrip.circle.has_injected:
            return None
        identity = _identify(cantrip)
        return _OFFERED if identity in self._offered else self._make_own(identity, cantrip)

    def list_marks(self, cantrip: Cantrip) -> list[str]:
        """Return all marks of a cantrip's dependencies that other processes may know; none for objects and secrets."""
        identity = _identify(cantrip)
        marks = [_OFFERED] if identity in self._offered else []
        return marks if _has_objects(cantrip) else [*marks, _make_digest(identity)]

    def has(self, cantrip: Cantrip, mark: str | None) -> bool:
        """Return whether a cantrip has the dependencies of a mark; True without a mark, or if no gate has any."""
        if mark is None or not cantrip.circle.has_injected:
            return True
        identity = _identify(cantrip)
        if mark == _OFFERED:
            return identity in self._offered
        return mark == self._make_own(identity, cantrip)

    def _make_own(self, identity: tuple[object, ...], cantrip: Cantrip) -> str:
        if not _has_objects(cantrip):
            return _make_digest(identity)
        mark, _ = self._own.setdefault(identity, (f"own:{uuid4()}", cantrip))
        self._own.move_to_end(identity)
        if len(self._own) > REMEMBERED:
            self._own.popitem(last=False)
        return mark


def _list_dependencies(cantrip: Cantrip) -> Iterator[tuple[str, str, object]]:
    for gate in (gate for gate in cantrip.unprovided.circle.gates if gate.kind != "deferred"):
        for name in sorted(gate.dependencies):
            yield gate.name, name, gate.dependencies[name]


def _identify(cantrip: Cantrip) -> tuple[object, ...]:
    """Return what two cantrips have in common if their dependencies are the same: equal values, or the same objects."""
    return tuple((gate, name, _identify_value(value)) for gate, name, value in _list_dependencies(cantrip))


def _identify_value(value: Any) -> tuple[object, ...]:
    kind = type(value)
    if value is PROVIDED:
        return ("provided",)
    if kind in _PLAIN:
        return kind.__name__, value
    if isinstance(value, PurePath):
        return "path", str(value)
    if kind is list or kind is tuple:
        return kind.__name__, *map(_identify_value, value)
    if kind is dict:
        return "dict", *((_identify_value(name), _identify_value(part)) for name, part in value.items())
    return "object", id(value)


def _make_digest(identity: tuple[object, ...]) -> str:
    return f"values:{blake2b(repr(identity).encode(errors='replace'), digest_size=8).hexdigest()}"


def _has_objects(cantrip: Cantrip) -> bool:
    return any(_has_object(name, value) for _, name, value in _list_dependencies(cantrip))


def _has_object(name: str, value: Any) -> bool:
    """Return whether a dependency has an identity in one process only, or is a secret, of which the loom has no digest.

    PROVIDED is a placeholder, and equal in every process.
    """
    if value is PROVIDED:
        return False
    if type(value) in (list, tuple):
        return any(_has_object(name, part) for part in value)
    if type(value) is dict:
        return any(_has_object(str(part), value[part]) for part in value)
    return (type(value) not in _PLAIN and not isinstance(value, PurePath)) or SECRET_NAME.search(name) is not None
