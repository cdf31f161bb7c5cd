"""The result that a caller gets: the outcome of an episode, and its thread in the loom."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cantrip_actors.loom.reading.view import make_checked
from cantrip_actors.records.turn import Turn
from cantrip_actors.runtime.entity.loading import find_cantrip_in_force
from cantrip_actors.terms.answer import Answer_co
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.cut_off import CutOff
from cantrip_actors.terms.errors import Truncated
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image, select_files, select_pictures
from cantrip_actors.terms.messages import Usage
from cantrip_actors.terms.outcome import EndReason, Outcome

if TYPE_CHECKING:
    from cantrip_actors.runtime.entity.cell import Cell
    from cantrip_actors.runtime.tree import Tree

T = TypeVar("T")


class Episode(Generic[Answer_co]):
    """How one cast, send or fork ended: `completed`, or `truncated` (SPEC 1.2)."""

    def __init__(
        self,
        entity_id: str,
        outcome: Outcome,
        read: Callable[[str], list[Turn]],
        cantrip: Cantrip[Answer_co] | None = None,
    ) -> None:
        self.entity_id: str = entity_id
        self.raw_result: Any = outcome.result
        """The result as the loom has it, in JSON."""
        self.terminated: bool = outcome.terminated
        """Whether the entity called `done` or chose to stop: `result` is its answer. SPEC's word for `completed`."""
        self.truncated: bool = outcome.truncated
        """Whether a ward, a person or a failure ended the episode before that."""
        self.reason: EndReason = outcome.reason
        """Why it ended."""
        self.ward: str | None = outcome.ward
        """The ward that ended it, if one did."""
        self.summary: str | None = outcome.summary
        """The work that a truncated episode had accomplished, as a text."""
        self.usage: Usage = outcome.usage
        """The entity's own usage, over its life."""
        self.subtree_usage: Usage = outcome.subtree_usage
        """The usage of the entity and its children, over its life."""
        self.images: tuple[Image, ...] = select_pictures(outcome.images) if outcome.images else ()
        """The images whose handles the result contains."""
        self.files: tuple[File, ...] = select_files(outcome.images) if outcome.images else ()
        """The other files whose handles the result contains."""
        self.last_turn: str | None = outcome.last_turn
        """The id of the entity's last turn."""
        self.cut_off: CutOff | None = outcome.cut_off
        """Why the answer is incomplete: the provider ended it at the limit on its length, or by a filter."""
        self._read = read
        self._thread: list[Turn] | None = None
        self._answer: Any = None if cantrip is None else cantrip.answer
        self._read_answer: Callable[[Any], Any] | None = None if cantrip is None else cantrip.read_answer

    @property
    def completed(self) -> bool:
        """Whether the entity decided that its task was complete: `terminated` in plain words."""
        return self.terminated

    @property
    def result(self) -> Answer_co:
        """The answer: a value of the cantrip's `answer` type, if it has one, else as the loom has it.

        With such a type it raises Truncated for an episode that ended without an answer, and AnswerMisfit for an answer
        of another type, which an earlier version of the cantrip allowed. Without one it is None for an episode without
        an answer.
        """
        result: Answer_co
        if self._answer is None or self._read_answer is None:
            result = self.raw_result
        elif self.terminated:
            result = self._read_answer(self.raw_result)
        else:
            raise Truncated(self.entity_id, self.reason, self.ward, self.summary)
        return result

    @property
    def thread(self) -> list[Turn]:
        """The turns from the root of the entity's thread to the last, a fork's inherited ones included (LOOM-10)."""
        if self._thread is None:
            self._thread = [] if self.last_turn is None else self._read(self.last_turn)
        return self._thread

    def result_as(self, kind: type[T]) -> T:
        """Return the result as a `kind`: a pydantic model, a dataclass, or any other type that pydantic can validate.

        If the circle's `done` asks for this type, the entity had to correct its answer until it was valid. Raises
        pydantic.ValidationError for an invalid result, such as that of a truncated entity.
        """
        from pydantic import TypeAdapter

        return TypeAdapter(kind).validate_python(self.raw_result)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what another process can have of it: all but the loom, so its thread is read now."""
        facts = {name: value for name, value in self.__dict__.items() if name not in ("_read", "_read_answer")}
        return _make_detached, (type(self), facts | {"_thread": self.thread})

    def __repr__(self) -> str:
        words = f"result={self.raw_result!r}" if self.terminated else f"{self.reason}: {self.summary}"
        return f"<Episode of {self.entity_id}: {words}>"


def _make_detached(kind: type[Episode[Any]], facts: dict[str, Any]) -> Episode[Any]:
    """Return an episode that was pickled. It reads its answer without its cantrip."""
    episode = object.__new__(kind)
    episode.__dict__.update(facts, _read=lambda _: [], _read_answer=partial(_read_answer_of, facts["_answer"]))
    return episode


def _read_answer_of(kind: Any, answer: Any) -> Any:
    from cantrip_actors.terms.argument_model import read_answer_of

    return read_answer_of(kind, answer)


async def make_episode(
    tree: Tree, entity_id: str, outcome: Outcome, cell: Cell | None = None, begun_with: Cantrip[Answer_co] | None = None
) -> Episode[Answer_co]:
    """Return the episode with this `outcome`, whose result has the type that the entity's cantrip says.

    `cell` is the one that the entity had, `begun_with` the cantrip that the caller named.
    """
    cell = tree.living.get(entity_id) or cell
    cantrip = begun_with if cell is None else cell.plan.cantrip
    if cantrip is None and tree.cantrips.has_typed_answers:
        cantrip = await tree.in_store(partial(_find_cantrip, tree, entity_id))
    return Episode(entity_id, outcome, lambda turn_id: make_checked(tree.loom).thread(turn_id, own=True), cantrip)


def _find_cantrip(tree: Tree, entity_id: str) -> Cantrip | None:
    """Return the cantrip that an entity works with, if this process knows one of its content."""
    in_force = find_cantrip_in_force(tree.loom, tree.loom.facts(entity_id))
    return tree.cantrips.find_content(entity_id, in_force.id)
