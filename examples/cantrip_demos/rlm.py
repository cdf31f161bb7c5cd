"""`cantrip demo rlm`: a document that fits no prompt, read by entities that never see it (SPEC 5.3).

The document is a variable in a sandbox. An entity's programs cut it into pieces and hand each piece to a child as that
child's variable, two levels down; children count, parents check the sums and merge. The answer is compared with a plain
count of the whole. Sandboxes, programs, children and the loom are real; only the crystal is scripted.

The script is a pure function of the prompt, in the place of a language model. It sees its instructions, its intent and
what its programs print. Every entity follows one rule: count a short text, cut a long one and delegate the pieces. The
root prints the size of the document first, because its intent does not say it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import anyio

from cantrip_actors import Cantrip, Circle, Episode, Invocation, Loom, Runtime
from cantrip_actors.wards import max_depth, max_turns, timeout
from cantrip_demos.rlm_document import PLACES, Figures, count
from cantrip_demos.script import scripted_demo, size_of

__all__ = ["Reading", "read"]

INTENT: Final = "How much is in this document, and where is the sentence?"

DEPTH: Final = 2

PIECE: Final = 100_000
"""Characters that an entity counts itself; a longer text is cut into pieces."""

WIDE: Final = 8
"""Pieces of a text, at most, if children can cut them again."""


@dataclass(frozen=True)
class Reading:
    """A reading of a document: the episode, the plain count, and how much of the document a prompt had."""

    episode: Episode
    sentence: str
    figures: Figures
    prompts: list[int]
    """The characters of each prompt."""
    entities: int
    depth: int

    @property
    def is_right(self) -> bool:
        """Whether the answer agrees with the plain count in every figure."""
        return bool(self.episode.result == asdict(self.figures))

    def as_json(self) -> dict[str, Any]:
        """Return the fields that `--json` adds to the episode."""
        return {
            "checked": self.is_right,
            "counted": asdict(self.figures),
            "sentence": self.sentence,
            "prompts": len(self.prompts),
            "largest_prompt": max(self.prompts, default=0),
            "entities": self.entities,
            "depth": self.depth,
        }

    def report(self) -> Iterator[str]:
        """Yield the answer beside the plain count, and the sizes."""
        result = self.episode.result
        if not isinstance(result, Mapping) or "problem" in result:
            yield f"No answer: {result['problem'] if isinstance(result, Mapping) else result}"
            return
        yield f"{'':<16}{'counted by entities':>20}{'counted plainly':>18}"
        for name in ("characters", "lines", "words"):
            reported, true = result[name], getattr(self.figures, name)
            yield f"{name:<16}{reported:>20,}{true:>18,}  {'✓' if reported == true else '✗'}"
        if self.sentence:
            places = ", ".join(f"line {line:,}, column {column}" for line, column in result["places"])
            yield f'\n"{self.sentence}" is in {places}.' if places else f'\n"{self.sentence}" is nowhere in it.'
        size = self.figures.characters
        yield f"\ndocument        {size:>11,} characters, about {size // 4:,} tokens"
        yield f"largest prompt  {max(self.prompts, default=0):>11,} characters, of {len(self.prompts)} prompts"
        yield f"entities        {self.entities:>11,}, {self.depth} levels of children"
        yield f"tokens          {self.episode.subtree_usage.total_tokens:>11,}\n"
        yield (
            "Checked: every figure and place is that of a plain count."
            if self.is_right
            else "WRONG: the plain count says otherwise."
        )


async def read(runtime: Runtime, document: str, sentence: str, pace: float = 0.0) -> Reading:
    """Have entities read `document`, and check their answer; each of the crystal's answers takes `pace` seconds.

    Raises as `Runtime.cast`.
    """
    prompts: list[int] = []
    cantrip = Cantrip(
        crystal=scripted_demo(
            policy, pace, name="scripted:rlm", watch=lambda context: prompts.append(size_of(context))
        ),
        circle=Circle(["done", "call_agent_batch"], [max_turns(6), max_depth(DEPTH), timeout(300)], medium="python"),
        name="rlm",
    )
    context = {"text": document, "find": sentence, "at": 0, "after": ""}
    episode = await runtime.cast(cantrip, INTENT, context=context)
    figures = await anyio.to_thread.run_sync(count, document, sentence)
    entities = runtime.loom.subtree(episode.entity_id)
    depth = max(_measure_depth(runtime.loom, entity) for entity in entities)
    return Reading(episode, sentence, figures, prompts, len(entities), depth)


def _measure_depth(loom: Loom, entity: str) -> int:
    above = loom.header(entity).parent_entity
    return 0 if above is None else 1 + _measure_depth(loom, above)


# ------------------------------------------------------------------------------------------------------- the programs

LOOK: Final = """\
print(len(context['text']), 'characters in', context['text'].count('\\n'), 'lines')
"""

SPLIT: Final = """\
text, find = context['text'], context['find']

def cut(text, many):
    parts, at = [], 0
    for left in range(many, 0, -1):
        end = at + (len(text) - at) // left
        if left > 1:  # after a line, or at least after a word
            end = text.rfind('\\n', at, end) + 1 or text.rfind(' ', at, end) + 1 or end
        parts.append(text[at:end])
        at = end
    return parts

parts = cut(text, MANY)
requests, at = [], 0
for n, part in enumerate(parts):
    end = at + len(part)
    requests.append({
        'intent': f'Count piece {n + 1} of {len(parts)}: {len(part)} characters.',
        'context': {'text': part, 'find': find, 'at': context['at'] + at,
                    'after': (text[end:end + len(find)] + context['after'])[:len(find)]},
    })
    at = end
answers = call_agent_batch(requests)
good = [one for one in answers if isinstance(one, dict) and 'characters' in one]
print(len(good), 'of', len(parts), 'answered:',
      sum([one['characters'] for one in good]), 'of', len(text), 'characters,',
      sum([one['lines'] for one in good]), 'of', text.count('\\n'), 'lines')
"""

MERGE: Final = """\
found = []
for one in answers:
    found += one['places']  # in order, as the pieces are
words = sum([one['words'] for one in answers])
"""

COUNT: Final = f"""\
import re

text, find = context['text'], context['find']
found, whole = [], text + context['after']
at = whole.find(find) if find else -1
while 0 <= at < len(text) and len(found) < {PLACES}:
    found.append(context['at'] + at)
    at = whole.find(find, at + 1)
words = len(re.findall('[^ \\t\\n\\r\\f\\v]+', text))
"""

COUNTED: Final = """\
done({'characters': len(text), 'lines': text.count('\\n'), 'words': words, 'places': found})
"""

REPORT: Final = f"""\
places = [[text.count('\\n', 0, at) + 1, at - text.rfind('\\n', 0, at)] for at in found[:{PLACES}]]
done({{'characters': len(text), 'lines': text.count('\\n'), 'words': words, 'places': places}})
"""

# --------------------------------------------------------------------------------------------------------- the policy


def policy(context: Invocation) -> dict[str, Any]:
    """Return what the crystal says next."""
    intent = next(message.content or "" for message in context if message.role == "user")
    printed = context[-1].content or ""
    own_size = re.search(r"(\d+) characters\.$", intent)
    if printed == intent:
        if own_size is None:
            return _run("I look how much there is.", LOOK)
        return _begin(int(own_size[1]), "call_agent_batch" in (context[0].content or ""), is_root=False)
    sums = re.search(r"(\d+) of (\d+) answered: (\d+) of (\d+) characters, (\d+) of (\d+) lines", printed)
    if sums:
        figures = sums.groups()
        if figures[::2] == figures[1::2]:
            return _run("It adds up: I merge.", MERGE + (REPORT if own_size is None else COUNTED))
        return _run("It does not add up.", f"done({{'problem': {sums[0]!r}}})\n")
    size = re.match(r"(\d+) characters in \d+ lines", printed)
    if size:
        return _begin(int(size[1]), can_delegate=True, is_root=True)
    return _run("My program failed.", f"done({{'problem': {printed[:500]!r}}})\n")


def _begin(size: int, can_delegate: bool, *, is_root: bool) -> dict[str, Any]:
    """Count `size` characters, or have children count them."""
    if size <= PIECE or not can_delegate:
        return _run("Short enough: I count.", COUNT + (REPORT if is_root else COUNTED))
    pieces = -(-size // PIECE)
    many = min(pieces, WIDE) if is_root else pieces
    return _run(f"Too long for one: {many} pieces, a child for each.", SPLIT.replace("MANY", str(many)))


def _run(content: str, code: str) -> dict[str, Any]:
    return {"content": content, "code": code}
