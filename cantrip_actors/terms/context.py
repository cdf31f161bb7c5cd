"""The working context: an append-only sequence that turns share, and the view of it that the crystal gets.

A context only grows between folds (ENTITY-3). `Shared` is a value all the same: it is a list that several values look
at, each up to its own length. Appending to the longest of them extends the list in place, which costs the same for turn
10,000 as for turn 10; appending to a shorter one (a fork) copies once. No other code touches the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar, overload

from cantrip_actors.terms.messages import Message

__all__ = ["Fading", "Shared", "View"]

T = TypeVar("T")


class _Items(list[T]):
    """The list beneath: equal to none but itself, so that a prefix can name it without reading it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # as every list


class _Compared(Sequence[T], Generic[T]):
    """A sequence that equals any other with the same items."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sequence)
            and len(self) == len(other)
            and all(a == b for a, b in zip(self, other, strict=True))
        )

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r})"


class Shared(_Compared[T]):
    """An append-only sequence as a value: `append` returns the longer one and leaves this one as it was."""

    __slots__ = ("_items", "_length")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = _Items(items)
        self._length = len(self._items)

    @classmethod
    def _of(cls, items: _Items[T], length: int) -> Shared[T]:
        made: Shared[T] = object.__new__(cls)
        made._items = items
        made._length = length
        return made

    def append(self, item: T) -> Shared[T]:
        """This sequence and `item`; constant time at the tip."""
        return self.extend((item,))

    def extend(self, more: Iterable[T]) -> Shared[T]:
        """This sequence and all of `more`."""
        items = self._items
        if len(items) != self._length:  # another value was extended from here: a fork
            items = _Items(islice(items, self._length))
        items.extend(more)
        return Shared._of(items, len(items))

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self._items[i] for i in range(*index.indices(self._length))]
        if index < 0:
            index += self._length
        if not 0 <= index < self._length:
            raise IndexError(f"index {index} of a sequence of {self._length}")
        return self._items[index]

    def __iter__(self) -> Iterator[T]:
        return islice(self._items, self._length)

    @property
    def origin(self) -> object:
        """Equal for two sequences that look at one list, of which one therefore begins as the other does."""
        return self._items


class Fading(NamedTuple):
    """A message of the context that is shown as `placeholder` from query number `since` on (D-010)."""

    message: Message
    placeholder: Message
    since: int


class View(_Compared[Message]):
    """A context as the crystal gets it in query number `query`: an ephemeral result that has faded is a placeholder.

    Views share the context with the entity; nothing is copied. `faded` counts the results that have faded.
    """

    __slots__ = ("_context", "_faded", "_query")

    def __init__(self, context: Shared[Message | Fading], query: int = 0, faded: int = 0) -> None:
        self._context = context
        self._query = query
        self._faded = faded

    def __len__(self) -> int:
        return len(self._context)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return [self._shown(item) for item in self._context[index]]
        return self._shown(self._context[index])

    def _shown(self, item: Message | Fading) -> Message:
        if isinstance(item, Message):
            return item
        return item.placeholder if self._query >= item.since else item.message

    def __iter__(self) -> Iterator[Message]:
        return map(self._shown, self._context)

    @property
    def query(self) -> int:
        """How many utterances came before, folded ones included."""
        return self._query

    @property
    def prefix(self) -> tuple[Any, ...]:
        """What this view begins with: equal for two views of which the longer only continues the other.

        An adapter that keeps its encoding of one view may continue it for the next while this stays equal. A fold, a
        fork and a placeholder that takes the place of a result change it.
        """
        return (self._context.origin, self._faded)
