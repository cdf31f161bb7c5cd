"""Plain JSON data that cannot change: the data of a response.

A `Frozen` is a dict and a `FrozenList` a list, so that `json.dumps` takes them and they compare as such; they refuse to
change. The keys of a `Frozen` can be read as attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from cantrip_actors.terms.value import Immutable


def _refuse(_: object, *__: object, **___: object) -> NoReturn:
    raise TypeError("a response is immutable: make a copy of it, dict(…) or list(…), and change that")


class _Fixed(Immutable):
    __slots__ = ()

    __setitem__ = __delitem__ = clear = pop = _refuse


class Frozen(_Fixed, dict[str, Any]):
    """A mapping that cannot change: `decision["decision"]` or `decision.decision`."""

    __slots__ = ()

    __ior__ = popitem = setdefault = update = __setattr__ = __delattr__ = _refuse

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no field {name!r}: there are {', '.join(self)}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return Frozen, (dict(self),)


class FrozenList(_Fixed, list[Any]):
    """A list that cannot change."""

    __slots__ = ()

    __iadd__ = __imul__ = append = extend = insert = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


def freeze(value: Any) -> Any:
    """Return the value with all its mappings and lists frozen, in all depths."""
    if isinstance(value, _Fixed):
        return value
    if isinstance(value, Mapping):
        return Frozen({str(key): freeze(part) for key, part in value.items()})
    if isinstance(value, (list, tuple)):
        return FrozenList([freeze(part) for part in value])
    return value
