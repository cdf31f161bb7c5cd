"""The texts that long-lived entities were given, as a service knows them: clients repeat their conversation each time.

A request reads what the log of its entity has grown by since the request before it, however long the log is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Final

from cantrip_actors import Loom

MOST_ENTITIES: Final = 256
MOST_CHARACTERS: Final = 1_000_000
"""Texts of one entity that are kept in memory: those of longer ones are read each time."""


class GivenTexts:
    """Remembers the texts of the entities that were asked for last."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, tuple[set[str], int]] = OrderedDict()
        """The texts of an entity, up to a position of its log."""

    def find(self, loom: Loom, entity_id: str, repeated: str | None) -> Collection[str]:
        """Return the texts that an entity was given; for a repeated request, those before its intent with that key.

        Reads the loom.
        """
        if repeated is not None:
            return loom.texts_before(entity_id, repeated)
        before, position = self._texts.pop(entity_id, (set[str](), -1))
        news, last = loom.texts_since(entity_id, position)
        texts = before | news
        if sum(map(len, texts)) <= MOST_CHARACTERS:
            self._texts[entity_id] = texts, last
        while len(self._texts) > MOST_ENTITIES:
            self._texts.popitem(last=False)
        return texts
