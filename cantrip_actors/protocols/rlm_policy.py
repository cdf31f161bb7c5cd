"""The script of the demo of long documents: what its crystal says, as a pure function of the context (SPEC 5.3).

It stands where a language model would, and sees no more than one would: its instructions, what it is asked, and what
its programs print. The document is in none of that; it is a variable of the sandbox, and goes to children as theirs.

Everybody follows the same rule. What is short enough is counted by a program. What is not is cut into pieces, a child
for each; their answers stay variables too, are checked, and merged. Only the one at the top looks first how much there
is, since nobody has told it.
"""

from __future__ import annotations

import re
from typing import Any, Final

from cantrip_actors import Invocation
from cantrip_actors.protocols.rlm_document import PLACES, TERM, TOP

__all__ = ["INTENT", "PIECE", "policy", "size_of"]

PIECE: Final = 100_000
"""Characters that an entity counts itself; of more than these it makes pieces."""

WIDE: Final = 8
"""Pieces that are made of a text at most, as long as they may be cut again."""

INTENT: Final = "How much is in this document, what does it speak of, and where is the sentence?"

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
        if left > 1:  # behind a line, or at least behind a word
            end = text.rfind('\\n', at, end) + 1 or text.rfind(' ', at, end) + 1 or end
        parts.append(text[at:end])
        at = end
    return parts

parts = cut(text, MANY)
requests, at, line = [], 0, context['line']
for n, part in enumerate(parts):
    at += len(part)
    requests.append({
        'intent': f'Count piece {n + 1} of {len(parts)}: {len(part)} characters.',
        'context': {'text': part, 'line': line, 'find': find,
                    'after': (text[at:at + len(find)] + context['after'])[:len(find)],
                    'column': at - len(part) - text.rfind('\\n', 0, at - len(part)) - 1 if line > context['line']
                    else at - len(part) + context['column']},
    })
    line += part.count('\\n')
answers = call_agent_batch(requests)
good = [one for one in answers if isinstance(one, dict) and 'characters' in one]
print(len(good), 'of', len(parts), 'answered:',
      sum([one['characters'] for one in good]), 'of', len(text), 'characters,',
      sum([one['lines'] for one in good]), 'of', text.count('\\n'), 'lines')
"""

MERGE: Final = """\
terms, found = {}, []
for one in answers:
    found += one['places']  # in order, as the pieces are
    for term, count in one['terms'].items():
        terms[term] = terms.get(term, 0) + count
"""

COUNT: Final = f"""\
import re

text, find = context['text'], context['find']
terms = {{}}
for term in re.findall('[A-Za-z]{{{TERM},}}', text):
    term = term.lower()
    terms[term] = terms.get(term, 0) + 1
found, whole = [], text + context['after']
at = whole.find(find) if find else -1
while 0 <= at < len(text) and len(found) < {PLACES}:
    line = text.count('\\n', 0, at)
    column = at - text.rfind('\\n', 0, at) if line else at + 1 + context['column']
    found.append([context['line'] + line + 1, column])
    at = whole.find(find, at + 1)
words = len(re.findall('[^ \\t\\n\\r\\f\\v]+', text))
"""

COUNTED: Final = """\
done({'characters': len(text), 'lines': text.count('\\n'), 'words': words, 'terms': terms, 'places': found})
"""

SUMMED: Final = "words = sum([one['words'] for one in answers])\n"

REPORT: Final = f"""\
top = sorted(terms.items(), key=lambda one: (-one[1], one[0]))[:{TOP}]
done({{'characters': len(text), 'lines': text.count('\\n'), 'words': words, 'different': len(terms),
      'terms': [[term, count] for term, count in top], 'places': found[:{PLACES}]}})
"""

# --------------------------------------------------------------------------------------------------------- the policy


def policy(context: Invocation) -> dict[str, Any]:
    """What the crystal says next, with tokens as a model would be billed for it (four characters each, roughly)."""
    said = _next(context)
    written = len(said["content"]) + len(said["code"])
    return {**said, "usage": {"prompt_tokens": size_of(context) // 4, "completion_tokens": written // 4}}


def size_of(context: Invocation) -> int:
    """The characters of a prompt."""
    return sum(len(message.content or "") for message in context)


def _next(context: Invocation) -> dict[str, Any]:
    asked = next(message.content or "" for message in context if message.role == "user")
    last = context[-1].content or ""
    mine = re.search(r"(\d+) characters\.$", asked)
    if last == asked:
        if mine is None:
            return _says("I look how much there is.", LOOK)
        return _takes(int(mine[1]), "call_agent_batch" in (context[0].content or ""), top=False)
    checked = re.search(r"(\d+) of (\d+) answered: (\d+) of (\d+) characters, (\d+) of (\d+) lines", last)
    if checked:
        answered, asked_for, *figures = map(int, checked.groups())
        if answered == asked_for and figures[0] == figures[1] and figures[2] == figures[3]:
            return _says("It adds up: I merge.", MERGE + SUMMED + (REPORT if mine is None else COUNTED))
        return _says("It does not add up.", f"done({{'problem': {checked[0]!r}}})\n")
    seen = re.match(r"(\d+) characters in \d+ lines", last)
    if seen:
        return _takes(int(seen[1]), delegates=True, top=True)
    return _says("My program failed.", f"done({{'problem': {last[:500]!r}}})\n")


def _takes(size: int, delegates: bool, *, top: bool) -> dict[str, Any]:
    """Count `size` characters, or have them counted."""
    if size <= PIECE or not delegates:
        return _says("Short enough: I count.", COUNT + (REPORT if top else COUNTED))
    pieces = -(-size // PIECE)
    many = min(pieces, WIDE) if top else pieces
    return _says(f"Too long for one: {many} pieces, a child for each.", SPLIT.replace("MANY", str(many)))


def _says(content: str, code: str) -> dict[str, Any]:
    return {"content": content, "code": code}
