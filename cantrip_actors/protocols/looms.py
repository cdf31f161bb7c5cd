"""A loom as people look at it: a list, a tree, one turn, a thread. Reading only; a run may be going on meanwhile.

Ids are long and look alike at the front, so any end or beginning of one that is unique will do (`Finder`), and lists
show the last eight characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from rich.text import Text

from cantrip_actors import Loom, LoomError, Turn
from cantrip_actors.model.image import labelled
from cantrip_actors.model.turn import Header, IntentGiven
from cantrip_actors.protocols.progress import STYLES, Branch, drawn, one_line, short, tokens

__all__ = [
    "Finder",
    "Found",
    "UnknownId",
    "entity_row",
    "safe",
    "shown_turn",
    "table",
    "thread_lines",
    "tree",
    "tree_json",
]

SHOWN = 8
"""Characters of an id that lists show."""
CANDIDATES = 8
"""Ids that a message about an ambiguous one lists."""

WIDEST = 500
"""Characters of a line that are shown where texts are cut."""

MANY_TURNS = 24
"""Turns of one entity that a tree shows one by one; of more than these, the first, the last and those with branches."""


class UnknownId(LoomError):
    """An id that names nothing in the loom, or more than one thing."""


@dataclass(frozen=True, slots=True)
class Found:
    """What an id names."""

    kind: Literal["turn", "entity"]
    id: str


class Finder:
    """Looks up what people type: a name, a whole id, or a part that no other id begins or ends with."""

    def __init__(self, loom: Loom) -> None:
        self._loom = loom
        self._ids: dict[str, Found] | None = None

    def find(self, typed: str) -> Found:
        """The turn or entity that is meant. Raises UnknownId."""
        named = self._loom.named(typed)
        if named is not None:
            return Found("entity", named)
        typed = typed.strip().lower()
        if typed in self._loom:
            return Found("turn", typed)
        known = self._known()
        if typed in known:
            return known[typed]
        fits = [found for id, found in known.items() if typed and (id.endswith(typed) or id.startswith(typed))]
        if len(fits) == 1:
            return fits[0]
        if not fits:
            what = f"{len(known):,} ids" if known else "nothing"
            raise UnknownId(
                f'no turn and no entity is called "{typed}": the loom holds {what}; `cantrip loom tree` shows them'
            )
        some = ", ".join(f"{short(one.id)} ({one.kind})" for one in fits[:CANDIDATES])
        more = "" if len(fits) <= CANDIDATES else f" and {len(fits) - CANDIDATES} more"
        raise UnknownId(f'"{typed}" could be any of {some}{more}: give more of it')

    def entity(self, typed: str) -> str:
        """The entity that is to do something, or to end: by its name, its id, or so much of that as lists show.

        A mistyped name is often the end of some id. Raises UnknownId.
        """
        named = self._loom.named(typed)
        if named is not None:
            return named
        fits = [one for one in self._loom.entities() if one.endswith(typed.strip().lower())]
        if len(typed.strip()) < SHOWN or not fits:
            raise UnknownId(
                f'no entity is called "{typed}", and no entity\'s id ends so, in {SHOWN} characters or more: '
                "`cantrip entities` shows those that last, `cantrip loom ls` all"
            )
        if len(fits) > 1:
            raise UnknownId(f'"{typed}" could be any of {", ".join(fits[:CANDIDATES])}: give more of it')
        return fits[0]

    def turn(self, typed: str) -> str:
        """The turn that is meant: itself, or the last one of the entity that is meant."""
        found = self.find(typed)
        if found.kind == "turn":
            return found.id
        turns = self._loom.turns(found.id)
        if not turns:
            raise UnknownId(f"entity {short(found.id)} has no turns yet")
        return turns[-1].id

    def _known(self) -> dict[str, Found]:
        if self._ids is None:
            self._ids = {}
            for entity in self._loom.entities():
                self._ids[entity] = Found("entity", entity)
                self._ids.update((turn.id, Found("turn", turn.id)) for turn in self._loom.turns(entity))
        return self._ids


# ----------------------------------------------------------------------------------------------------------- the list


def entity_row(loom: Loom, header: Header) -> dict[str, Any]:
    """One entity in a few fields; tokens are those of its whole subtree."""
    entity = header.entity_id
    turns = loom.turns(entity)
    usage = loom.subtree_usage(entity)
    return {
        "id": entity,
        "at": header.at,
        "state": loom.state(entity),
        "turns": len(turns),
        "entities": len(loom.subtree(entity)),
        "tokens": usage.total_tokens,
        "cost": usage.cost,
        "crystal": header.crystal,
        "name": header.name,
        "parent_entity": header.parent_entity,
        "parent_turn": header.parent_turn,
        "forked": header.forked,
        "intent": _intent(loom, entity, forked=header.forked),
    }


def _intent(loom: Loom, entity: str, *, forked: bool) -> str:
    intents = [record for record in loom.records(entity) if isinstance(record, IntentGiven)]
    return _said(intents[-1 if forked else 0]) if intents else ""


def _said(intent: IntentGiven) -> str:
    return labelled(intent.intent, intent.images)


def table(rows: Iterable[dict[str, Any]], width: int) -> Iterator[Text]:
    """The list, in columns."""
    yield Text(f"{'ENTITY':<10}{'BEGAN':<18}{'STATE':<14}{'TURNS':>6}{'TREE':>6}  {'TOKENS':>10}  INTENT", "dim")
    for row in rows:
        line = Text(end="")
        line.append(f"{short(row['id']):<10}", "bold")
        line.append(f"{row['at'][:16].replace('T', ' '):<18}")
        line.append(f"{row['state']:<14}", STYLES.get(row["state"], "yellow"))
        line.append(f"{row['turns']:>6,}{row['entities']:>6,}  {row['tokens']:>10,}  ")
        sign = "fork: " if row["forked"] else ""
        line.append(sign + one_line(row["intent"], max(20, width - 66)))
        yield line


def lasting_row(loom: Loom, header: Header) -> dict[str, Any]:
    """One entity that lasts: how it stands, what it was asked last, and what it said."""
    row = entity_row(loom, header)
    records = loom.records(header.entity_id)
    if row["state"] in ("terminated", "truncated", "failed", "interrupted") and not loom.is_over(header.entity_id):
        row["state"] = "asleep"  # how the last episode ended is no matter: it waits for the next
    return {
        **row,
        "intents": sum(isinstance(record, IntentGiven) for record in records),
        "last_intent": next((_said(one) for one in reversed(records) if isinstance(one, IntentGiven)), ""),
        "last_said": _last_said(loom.turns(header.entity_id)),
    }


def _last_said(turns: list[Turn]) -> str | None:
    """The last answer, else the last words."""
    for turn in reversed(turns):
        answers = [seen.content for seen in turn.gate_calls if seen.gate == "done"]
        if answers or turn.content:
            return answers[-1] if answers else turn.content
    return None


def lasting_table(rows: Iterable[dict[str, Any]], width: int) -> Iterator[Text]:
    """Entities that last, in columns; nothing where there are none."""
    for at, row in enumerate(rows):
        if at == 0:
            yield Text(f"{'ENTITY':<10}{'NAME':<18}{'STATE':<14}{'INTENTS':>8}{'TURNS':>7}  SAID LAST", "dim")
        line = Text(end="").append(f"{short(row['id']):<10}", "bold")
        line.append(f"{one_line(row['name'] or '', 17):<18}")
        line.append(f"{row['state']:<14}", "green" if row["state"] == "asleep" else STYLES.get(row["state"], "yellow"))
        line.append(f"{row['intents']:>8,}{row['turns']:>7,}  {one_line(row['last_said'] or '', max(20, width - 60))}")
        yield line


# ----------------------------------------------------------------------------------------------------------- the tree


def tree(loom: Loom, roots: Iterable[str] | None = None, width: int = 120) -> Iterator[Text]:
    """Entities with their turns; children and forks hang below the turn that they come from."""
    if roots is None:
        roots = [header.entity_id for header in loom.headers() if header.parent_turn is None]
    return drawn(_entity(loom, root, width) for root in roots)


def _entity(loom: Loom, entity: str, width: int) -> Branch:
    row = entity_row(loom, loom.header(entity))
    state = row["state"]
    line = Text(end="").append("fork " if row["forked"] else "", "magenta").append(short(entity), "bold")
    line.append(f" {one_line(row['intent'], max(30, width - 70))} ")
    line.append(state, STYLES.get(state, "yellow"))
    line.append(f" · {tokens(row['tokens'])}", "dim")
    return Branch(line, list(_turns(loom, entity, width)))


def _turns(loom: Loom, entity: str, width: int) -> Iterator[Branch]:
    turns = loom.turns(entity)
    kin = {turn.id: (*loom.children(turn.id), *loom.forks(turn.id)) for turn in turns}
    edge = MANY_TURNS // 4
    left_out = 0
    for at, turn in enumerate(turns):
        if len(turns) > MANY_TURNS and edge <= at < len(turns) - edge and not kin[turn.id]:
            left_out += 1
            continue
        if left_out:
            yield Branch(Text(f"… {left_out} turns", "dim", end=""), [])
            left_out = 0
        yield Branch(_turn_line(turn, width), [_entity(loom, one, width) for one in kin[turn.id]])


def _turn_line(turn: Turn, width: int) -> Text:
    line = Text(end="").append(f"{turn.sequence} ", "dim").append(f"{short(turn.id)} ")
    if turn.gate_calls:
        for at, seen in enumerate(turn.gate_calls):
            line.append(", " if at else "").append(seen.gate, "red" if seen.is_error else "cyan")
            if seen.is_error:
                line.append(" failed", "red")
    elif turn.tool_calls and not turn.continues:
        line.append(", ".join(call.gate for call in turn.tool_calls), "cyan")
    said = turn.content if turn.content and not turn.continues else ""
    if said:
        line.append(
            f'{" " if turn.gate_calls or turn.tool_calls else ""}"{one_line(said, max(20, width - 60))}"', "dim"
        )
    if turn.continues:
        line.append(" (goes on)", "dim")
    if turn.terminated or turn.truncated:
        word = "terminated" if turn.terminated else f"truncated by {turn.ward or 'its surroundings'}"
        line.append(f" {word}", "green" if turn.terminated else "yellow")
    if turn.reward is not None:
        line.append(f" reward {turn.reward:g}", "magenta")
    return line


def tree_json(loom: Loom, entity: str) -> dict[str, Any]:
    """The same tree for programs: an entity, its turns, and below each the entities that come from it."""
    return {
        **entity_row(loom, loom.header(entity)),
        "turns": [
            {
                "id": turn.id,
                "sequence": turn.sequence,
                "gates": [{"gate": seen.gate, "is_error": seen.is_error} for seen in turn.gate_calls],
                "terminated": turn.terminated,
                "truncated": turn.truncated,
                "reward": turn.reward,
                "children": [tree_json(loom, child) for child in loom.children(turn.id)],
                "forks": [tree_json(loom, fork) for fork in loom.forks(turn.id)],
            }
            for turn in loom.turns(entity)
        ],
    }


# ------------------------------------------------------------------------------------------------------- turn, thread


def shown_turn(loom: Loom, turn: Turn, longest: int | None = None) -> Iterator[Text]:
    """Everything about a turn. Texts of more than `longest` lines are cut, and say so."""
    meta = turn.metadata
    yield _title(turn)
    facts = {
        "turn": turn.id,
        "entity": turn.entity_id,
        "after": turn.parent_id or "nothing: it is a root",
        "began by": "the same utterance as the turn before" if turn.continues else "",
        "time": f"{meta.timestamp}, {meta.duration_ms:,.1f} ms",
        "tokens": f"{meta.tokens_prompt:,} in ({meta.tokens_cached:,} cached), {meta.tokens_completion:,} out",
        "reward": "" if turn.reward is None else f"{turn.reward:g}",
        "children": ", ".join(map(short, loom.children(turn.id))),
        "forks": ", ".join(map(short, loom.forks(turn.id))),
    }
    for name, fact in facts.items():
        if fact:
            yield Text(end="").append(f"  {name:<9}", "dim").append(fact)
    yield from _spoken(turn, longest)


def thread_lines(turns: Iterable[Turn], longest: int | None = 12) -> Iterator[Text]:
    """A path of turns, oldest first, as it would be told."""
    entity = ""
    for turn in turns:
        if turn.entity_id != entity:
            entity = turn.entity_id
            yield Text(f"entity {short(entity)}", "bold", end="")
        yield _title(turn)
        yield from _spoken(turn, longest)


def _title(turn: Turn) -> Text:
    line = Text(end="").append(f"turn {turn.sequence} {short(turn.id)}", "bold")
    if turn.terminated:
        line.append(" terminated", "green")
    if turn.truncated:
        line.append(f" truncated by {turn.ward or 'its surroundings'}", "yellow")
    return line


def _spoken(turn: Turn, longest: int | None) -> Iterator[Text]:
    if not turn.continues:
        yield from _block("thinks", turn.thinking or "", longest, "dim")
        yield from _block("says", turn.content or "", longest, "")
        if turn.code and turn.code != turn.content:
            yield from _block("code", turn.code, longest, "")
    ran = {seen.tool_call_id for seen in turn.gate_calls}
    for call in turn.tool_calls:
        if call.id in ran or not turn.continues:
            yield from _block("calls", f"{call.gate}({call.arguments})", longest, "cyan")
    for seen in turn.gate_calls:
        style = "red" if seen.is_error else ""
        yield from _block("failed" if seen.is_error else "answered", f"{seen.gate}: {seen.content}", longest, style)


def _block(title: str, text: str, longest: int | None, style: str) -> Iterator[Text]:
    lines = text.splitlines()
    cut = len(lines) if longest is None else longest
    for at, line in enumerate(lines[:cut]):
        head = f"  {title:<9}" if at == 0 else " " * 11
        kept = line if longest is None else line[:WIDEST]
        shown = Text(end="").append(head, "dim").append(safe(kept), style)
        yield shown if len(kept) == len(line) else shown.append(f" … {len(line) - len(kept):,} more characters", "dim")
    if len(lines) > cut:
        yield Text(f"{' ' * 11}… {len(lines) - cut} more lines", "dim", end="")


def safe(line: str) -> str:
    """A line without what a terminal would obey: a file that was read must not move the cursor of who looks at it."""
    return "".join(sign if sign.isprintable() or sign == "\t" else "\N{REPLACEMENT CHARACTER}" for sign in line)
