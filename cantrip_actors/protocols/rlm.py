"""`cantrip demo rlm`: a document that fits no prompt, worked through by entities that never see it (SPEC 5.3).

The document is a variable in a sandbox. The entity's programs cut it into pieces and hand each to a child as that
one's variable, two levels down; children count, parents check and merge. Only the crystal is scripted
(`rlm_policy.py`); sandboxes, programs, children and the loom are those of any cast. In the end the answer is held
against a plain count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import anyio

from cantrip_actors import Cantrip, Circle, Episode, Invocation, Loom, Runtime, scripted
from cantrip_actors.protocols.rlm_document import TERM, Figures, counted
from cantrip_actors.protocols.rlm_policy import INTENT, policy, size_of
from cantrip_actors.wards import max_depth, max_turns, timeout

__all__ = ["Reading", "read", "reader"]

DEPTH = 2


@dataclass
class Prompts:
    """The prompts that the crystal was given: how many, and the size of the largest."""

    many: int = 0
    largest: int = 0

    def saw(self, context: Invocation) -> None:
        """Take note of one."""
        self.many += 1
        self.largest = max(self.largest, size_of(context))


@dataclass(frozen=True)
class Reading:
    """What came of it: the episode, the yardstick, and how much of the document anybody was shown."""

    episode: Episode
    sentence: str
    figures: Figures
    prompts: Prompts
    entities: int
    depth: int

    @property
    def right(self) -> bool:
        """Whether the answer agrees with the plain count in every figure."""
        return bool(self.episode.result == asdict(self.figures))

    def as_json(self) -> dict[str, Any]:
        """What programs are told beside the episode."""
        return {
            "checked": self.right,
            "counted": asdict(self.figures),
            "sentence": self.sentence,
            "prompts": self.prompts.many,
            "largest_prompt": self.prompts.largest,
            "entities": self.entities,
            "depth": self.depth,
        }

    def report(self) -> Iterator[str]:
        """The answer beside the plain count, and the sizes."""
        result = self.episode.result
        if not isinstance(result, Mapping) or "problem" in result:
            yield f"No answer: {result['problem'] if isinstance(result, Mapping) else result}"
            return
        yield from _table(result, self.figures)
        yield ""
        terms = ", ".join(f"{term} ({count:,})" for term, count in result["terms"])
        yield f"Most frequent: {terms or f'nothing of {TERM} letters or more'}."
        if self.sentence:
            places = ", ".join(f"line {line:,}, column {column}" for line, column in result["places"])
            yield f'"{self.sentence}" is in {places}.' if places else f'"{self.sentence}" is nowhere in it.'
        yield ""
        size, largest = self.figures.characters, self.prompts.largest
        yield f"document        {size:>11,} characters, about {size // 4:,} tokens"
        yield f"largest prompt  {largest:>11,} characters, of {self.prompts.many} prompts"
        yield f"entities        {self.entities:>11,}, {self.depth} levels of children"
        yield f"tokens          {self.episode.subtree_usage.total_tokens:>11,}"
        yield ""
        yield (
            "Checked: every figure, term and place is that of a plain count."
            if self.right
            else "WRONG: the plain count says otherwise."
        )


def reader(prompts: Prompts, pace: float = 0.0) -> Cantrip:
    """A reader of long documents. Each answer of its crystal takes `pace` seconds, so that people can follow."""

    async def paced(context: Invocation) -> dict[str, Any]:
        prompts.saw(context)
        if pace:
            await anyio.sleep(pace)
        return policy(context)

    return Cantrip(
        crystal=scripted(paced, name="scripted:rlm", record=False),
        circle=Circle(["done", "call_agent_batch"], [max_turns(6), max_depth(DEPTH), timeout(300)], medium="python"),
        name="rlm",
    )


async def read(runtime: Runtime, document: str, sentence: str, pace: float = 0.0) -> Reading:
    """Have `document` read by entities, and check what they say. Raises as `Runtime.cast`."""
    prompts = Prompts()
    context = {"text": document, "find": sentence, "line": 0, "column": 0, "after": ""}
    episode = await runtime.cast(reader(prompts, pace), INTENT, context=context)
    figures = await anyio.to_thread.run_sync(counted, document, sentence)
    everybody = runtime.loom.subtree(episode.entity_id)
    depth = max(_depth(runtime.loom, one) for one in everybody)
    return Reading(episode, sentence, figures, prompts, len(everybody), depth)


def _depth(loom: Loom, entity: str) -> int:
    above = loom.header(entity).parent_entity
    return 0 if above is None else 1 + _depth(loom, above)


def _table(result: Mapping[str, Any], figures: Figures) -> Iterator[str]:
    rows = [("", "counted by entities", "counted plainly", "")]
    for name, title in (
        ("characters", "characters"),
        ("lines", "lines"),
        ("words", "words"),
        ("different", "different terms"),
    ):
        said, true = result[name], getattr(figures, name)
        rows.append((title, f"{said:,}", f"{true:,}", "✓" if said == true else "✗"))
    for title, said, true, sign in rows:
        yield f"{title:<16}{said:>20}{true:>18}  {sign}".rstrip()
