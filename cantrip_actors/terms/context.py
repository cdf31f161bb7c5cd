"""The working context: an append-only sequence that turns share, and the crystal's view of it.

A context only grows between folds (ENTITY-3). `Shared` is still a value: several values share one list, each up to its
own length. Appending to the longest of them extends the list in place, which costs the same for turn 10,000 as for turn
10; appending to a shorter one (a fork) copies once. No other code touches the list.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload

from cantrip_actors.terms.image import NO_IMAGES
from cantrip_actors.terms.messages import Message, as_text

T = TypeVar("T")


class _Items(list[T]):
    """The underlying list. It equals only itself, so that comparing two prefixes does not read it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # like every list


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
    """An append-only sequence as a value: `append` returns a longer one and does not change this one."""

    __slots__ = ("_items", "_length")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = _Items(items)
        self._length = len(self._items)

    @classmethod
    def _make(cls, items: _Items[T], length: int) -> Shared[T]:
        shared: Shared[T] = object.__new__(cls)
        shared._items = items
        shared._length = length
        return shared

    def append(self, item: T) -> Shared[T]:
        """Return this sequence followed by `item`; takes constant time at the tip."""
        return self.extend((item,))

    def extend(self, more: Iterable[T]) -> Shared[T]:
        """Return this sequence followed by all of `more`."""
        items = self._items
        if len(items) != self._length:  # another value was extended from here: a fork
            items = _Items(islice(items, self._length))
        items.extend(more)
        return Shared._make(items, len(items))

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
        """A token that is equal for two sequences that share a list, so that one is a prefix of the other."""
        return self._items


class Fading(NamedTuple):
    """A message of the context that is shown as `placeholder` from query number `since` on (D-010)."""

    message: Message
    placeholder: Message
    since: int


LEAST_SHOWN: Final = 400
"""Characters of a result that every query shows."""

MOST_SHOWN: Final = 100_000
"""Characters of a result that a query shows at most, unless its gate says otherwise (`max_shown`)."""

_SHARE: Final = 0.25
"""The share of a model's window that one result may take by default."""

_CHARACTERS_A_TOKEN: Final = 3
"""Low for prose: a result has to fit."""

_IMAGE: Final = 5_000
"""Characters that an image counts for."""


def measure(message: Message) -> int:
    """Return the size of a message in characters, with its images."""
    return len(message.content or "") + _IMAGE * len(message.images)


class ShownBound(NamedTuple):
    """How much of a message a query shows: `most` characters of a result, or as many as `by_gate` says.

    `recall` says whether the gate of that name can read the rest. After a provider has refused the context as too long,
    a query shows at most `squeezed` characters of a result, its images included, and of a message before that at
    `intent_at`, the intent in force.
    """

    most: int = MOST_SHOWN
    by_gate: Mapping[str, int] = {}  # nothing writes to it
    recall: bool = False
    squeezed: int | None = None
    intent_at: int = 0

    @classmethod
    def of(cls, window: int | None, by_gate: Mapping[str, int], *, recall: bool) -> ShownBound:
        """Return the bound for a model with a window of so many tokens; None if it is unknown."""
        share = MOST_SHOWN if window is None else round(window * _SHARE * _CHARACTERS_A_TOKEN)
        return cls(max(LEAST_SHOWN, min(MOST_SHOWN, share)), by_gate, recall)

    def is_on(self, at: int, message: Message) -> bool:
        """Return whether the bound holds for this message, at index `at` of the context."""
        return message.gate is not None or (message.role == "user" and at < self.intent_at)

    def measure_shown(self, message: Message) -> int:
        """Return how many characters of a message's text are shown where nothing is squeezed."""
        length = len(message.content or "")
        return length if message.gate is None else min(length, self.by_gate.get(message.gate, self.most))

    def apply(self, at: int, message: Message) -> Message:
        """Return a message as it is shown: its beginning and its end, and how much is missing in between."""
        if not self.is_on(at, message):
            return message
        text, images = message.content or "", message.images
        limit = sys.maxsize if message.gate is None else self.by_gate.get(message.gate, self.most)
        why = f"{limit:,} of a result are shown"
        if self.squeezed is not None and measure(message) > self.squeezed:
            if self.squeezed < limit:
                limit, why = self.squeezed, _SQUEEZED
            images = NO_IMAGES
        if len(text) > limit:
            text = self._shorten(text, limit, why, message.tool_call_id)
        if len(images) != len(message.images):
            missing = len(message.images)
            text += f"\n[{missing} {'image' if missing == 1 else 'images'} left out: {_SQUEEZED}]"
        elif text is message.content:
            return message
        return replace(message, content=text, images=images)

    def _shorten(self, text: str, limit: int, why: str, call_id: str | None) -> str:
        half = max(limit - _NOTE, limit // 2) // 2
        end = len(text) - half
        rest = ""
        if self.recall and call_id is not None:
            rest = f"; recall returns them: call={as_text([call_id])[1:-1]}, from={half}, to={end}"
        return f"{text[:half]}\n[{end - half:,} characters left out: {why}{rest}]\n{text[end:]}"


_NOTE: Final = 150
"""Characters for the notes about what is missing."""

_SQUEEZED: Final = "the context was too long"


class View(_Compared[Message]):
    """The context as the crystal sees it in query number `query`, with placeholders for faded ephemeral results.

    Views share the context with the entity; nothing is copied. `faded` counts the results that have faded. With a
    `bound`, long results are shown in part.
    """

    __slots__ = ("_bound", "_context", "_faded", "_query")

    def __init__(
        self, context: Shared[Message | Fading], query: int = 0, faded: int = 0, bound: ShownBound | None = None
    ) -> None:
        self._bound = bound
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
            return [self[at] for at in range(*index.indices(len(self)))] if self._bound else self._render_all(index)
        message = self._render(self._context[index])
        return message if self._bound is None else self._bound.apply(index % len(self), message)

    def _render_all(self, index: slice) -> list[Message]:
        return [self._render(item) for item in self._context[index]]

    def _render(self, item: Message | Fading) -> Message:
        if isinstance(item, Message):
            return item
        return item.placeholder if self._query >= item.since else item.message

    def __iter__(self) -> Iterator[Message]:
        messages = map(self._render, self._context)
        return messages if self._bound is None else map(self._bound.apply, count(), messages)

    @property
    def query(self) -> int:
        """The number of earlier utterances, folded ones included."""
        return self._query

    @property
    def prefix(self) -> tuple[Any, ...]:
        """A token that is equal for two views if the longer one only extends the other.

        While it stays equal, an adapter may extend its cached encoding of the last view. A fold, a fork, a placeholder
        that replaces a result and a bound change it.
        """
        return (self._context.origin, self._faded, self._bound)
