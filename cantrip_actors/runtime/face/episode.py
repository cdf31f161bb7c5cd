"""The result that a caller gets: how an episode ended, and its thread in the loom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import TypeAdapter

from cantrip_actors.loom import Loom
from cantrip_actors.records.turn import Turn
from cantrip_actors.terms.errors import CantripError
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image, select_files, select_pictures
from cantrip_actors.terms.messages import Usage
from cantrip_actors.terms.outcome import EndReason, Outcome

T = TypeVar("T")


class Episode:
    """How one cast, send or fork ended (SPEC 1.2).

    Either `terminated` (the entity chose to stop; `result` is its answer) or `truncated` (a ward, a person or a failure
    ended it; `ward` names the ward, `reason` says why, `summary` what was accomplished until then). `usage` is the
    entity's own, over its life; `subtree_usage` counts its children too. `thread` is read from the loom on first use.
    `images` are the images whose handles the result contains, `files` the other files.
    """

    def __init__(self, entity_id: str, outcome: Outcome, read: Callable[[str], list[Turn]]) -> None:
        self.entity_id = entity_id
        self.result: Any = outcome.result
        self.terminated = outcome.terminated
        self.truncated = outcome.truncated
        self.reason: EndReason = outcome.reason
        self.ward = outcome.ward
        self.summary = outcome.summary
        self.usage: Usage = outcome.usage
        self.subtree_usage: Usage = outcome.subtree_usage
        self.images: tuple[Image, ...] = select_pictures(outcome.images) if outcome.images else ()
        self.files: tuple[File, ...] = select_files(outcome.images) if outcome.images else ()
        self._last_turn = outcome.last_turn
        self._read = read
        self._thread: list[Turn] | None = None

    @property
    def thread(self) -> list[Turn]:
        """The turns from the root of the entity's thread to the last, a fork's inherited ones included (LOOM-10)."""
        if self._thread is None:
            self._thread = [] if self._last_turn is None else self._read(self._last_turn)
        return self._thread

    def result_as(self, kind: type[T]) -> T:
        """Return the result as a `kind`: a pydantic model, a dataclass, or any other type that pydantic can validate.

        If the circle's `done` asks for this type, the entity had to correct its answer until it was valid. Raises
        pydantic.ValidationError for an invalid result, such as that of a truncated entity.
        """
        return TypeAdapter(kind).validate_python(self.result)

    def __repr__(self) -> str:
        said = f"result={self.result!r}" if self.terminated else f"{self.reason}: {self.summary}"
        return f"<Episode of {self.entity_id}: {said}>"


def make_episode(entity_id: str, outcome: Outcome, error: CantripError | None, loom: Loom) -> Episode:
    """Return the episode with this `outcome`; raise `error` if the crystal ended it."""
    if error is not None:
        error.entity_id = entity_id
        raise error
    return Episode(entity_id, outcome, lambda turn_id: loom.thread(turn_id, own=True))
