"""Views of a loom for people: a list, a tree, one turn, a thread. They only read, and may do so during a run.

Ids are long and begin alike, so a unique beginning or end of one is enough (`Finder`), and lists show the last eight
characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rich.text import Text

from cantrip_actors import Loom, Move, Turn
from cantrip_actors.cli.errors import UnknownId
from cantrip_actors.cli.output import name_state, one_line, short, tokens
from cantrip_actors.cli.progress import STYLES, Branch, draw
from cantrip_actors.cli.terminal import printable
from cantrip_actors.loom.export.conversation import Heard, list_messages_by_turn
from cantrip_actors.loom.reading.view import make_unchecked
from cantrip_actors.records.records import Header, IntentGiven
from cantrip_actors.terms.image import add_labels
from cantrip_actors.terms.model_input import ModelInput
from cantrip_actors.terms.period import PeriodUsage

SHOWN = 8
"""Characters of an id that lists show."""
CANDIDATES = 8
"""Ids that a message about an ambiguous id lists."""

WIDEST = 500
"""Characters of a line that are shown if texts are cut."""

MANY_TURNS = 24
"""The most turns of an entity that a tree shows one by one; of more, it shows the first, the last and those with
branches."""


class FoundId(NamedTuple):
    """The turn or entity that a typed id names."""

    kind: Literal["turn", "entity"]
    id: str


class Finder:
    """Finds ids by typed text: a name, a whole id, or a part that no other id begins or ends with."""

    def __init__(self, loom: Loom) -> None:
        self._loom = loom

    def find(self, typed: str) -> FoundId:
        """Return the turn or entity of a typed id. Raises UnknownId."""
        named = self._loom.named(typed)
        if named is not None:
            return FoundId("entity", named)
        typed = typed.strip().lower()
        if typed in self._loom:
            return FoundId("turn", typed)
        ids = self._all_ids()
        if typed in ids:
            return ids[typed]
        fits = [fit for id, fit in ids.items() if typed and (id.endswith(typed) or id.startswith(typed))]
        if len(fits) == 1:
            return fits[0]
        if not fits:
            what = f"{len(ids):,} ids" if ids else "nothing"
            raise UnknownId(
                f'no turn and no entity is called "{typed}": the loom holds {what}; `cantrip loom tree` shows them'
            )
        some = ", ".join(f"{short(fit.id)} ({fit.kind})" for fit in fits[:CANDIDATES])
        more = "" if len(fits) <= CANDIDATES else f" and {len(fits) - CANDIDATES} more"
        raise UnknownId(f'"{typed}" could be any of {some}{more}: give more of it')

    def entity(self, typed: str) -> str:
        """Return the id of an entity by its name, its id, or at least as much of the id's end as lists show.

        A shorter end is refused, because a mistyped name is often the end of some id. Raises UnknownId.
        """
        named = self._loom.named(typed)
        if named is not None:
            return named
        fits = [entity for entity in self._loom.entities() if entity.endswith(typed.strip().lower())]
        if len(typed.strip()) < SHOWN or not fits:
            raise UnknownId(
                f'no entity is called "{typed}", and no entity\'s id ends so, in {SHOWN} characters or more: '
                "`cantrip entities` shows the long-lived ones, `cantrip loom ls` all"
            )
        if len(fits) > 1:
            raise UnknownId(f'"{typed}" could be any of {", ".join(fits[:CANDIDATES])}: give more of it')
        return fits[0]

    def owner(self, typed: str) -> str:
        """Return the entity of a typed id, or the entity of its turn. Raises UnknownId."""
        target = self.find(typed)
        return target.id if target.kind == "entity" else self._loom.owner(target.id)

    def turn(self, typed: str) -> str:
        """Return the turn of a typed id, or the last turn of its entity that was not undone. Raises UnknownId."""
        target = self.find(typed)
        if target.kind == "turn":
            return target.id
        turn = self._loom.last_turn(target.id)
        if turn is None:
            raise UnknownId(f"entity {short(target.id)} has no turns yet")
        return turn.id

    def _all_ids(self) -> dict[str, FoundId]:
        ids: dict[str, FoundId] = {}
        for entity in self._loom.entities():
            ids[entity] = FoundId("entity", entity)
            ids.update((turn.id, FoundId("turn", turn.id)) for turn in make_unchecked(self._loom).turns(entity))
        return ids


# ----------------------------------------------------------------------------------------------------------- the list


def entity_row(loom: Loom, header: Header) -> dict[str, Any]:
    """Return an entity in a few fields; tokens are those of its whole subtree."""
    entity, loom = header.entity_id, make_unchecked(loom)
    header, turns = loom.header_in_force(entity), loom.turns(entity)
    usage, quarantine = loom.subtree_usage(entity), loom.quarantines().get(entity)
    return {
        "id": entity,
        "at": header.at,
        "state": loom.state(entity) if quarantine is None else "quarantined",
        "quarantine": None if quarantine is None else {"why": quarantine.why, "until": quarantine.until},
        "turns": len(turns),
        "entities": len(loom.subtree(entity)),
        "tokens": usage.total_tokens,
        "cost": usage.cost,
        "crystal": header.crystal,
        "name": header.name,
        "parent_entity": header.parent_entity,
        "parent_turn": header.parent_turn,
        "forked": header.forked,
        "intent": _find_intent(loom, entity),
    }


def _find_intent(loom: Loom, entity: str) -> str:
    first = loom.first_intent(entity)
    return "" if first is None else _render_intent(first)


def _render_intent(intent: IntentGiven) -> str:
    return add_labels(intent.intent, intent.own_images)


def entity_table(rows: Iterable[dict[str, Any]], width: int) -> Iterator[Text]:
    """Yield the list of entities, in columns."""
    for at, row in enumerate(rows):
        if at == 0:
            yield Text(
                f"{'ENTITY':<10}{'BEGAN':<18}{'STATE':<14}{'TURNS':>6}{'TREE':>6}  {'TOKENS':>10}  INTENT", "dim"
            )
        line = Text(end="")
        line.append(f"{short(row['id']):<10}", "bold")
        line.append(f"{row['at'][:16].replace('T', ' '):<18}")
        line.append(f"{name_state(row['state']):<14}", STYLES.get(row["state"], "yellow"))
        line.append(f"{row['turns']:>6,}{row['entities']:>6,}  {row['tokens']:>10,}  ")
        sign = "fork: " if row["forked"] else ""
        line.append(sign + one_line(row["intent"], max(20, width - 66)))
        yield line


def spending_table(spent: Iterable[PeriodUsage]) -> Iterator[Text]:
    """Yield the usage of each period, in columns."""
    for at, (period, usage) in enumerate(spent):
        if at == 0:
            yield Text(f"{'PERIOD':<12}{'TOKENS':>12}{'COST':>12}", "dim")
        yield Text(f"{period:<12}{usage.total_tokens:>12,}{usage.cost:>12,.4f}")


def build_entity_row(loom: Loom, header: Header) -> dict[str, Any]:
    """Return a long-lived entity in a few fields: its state, its last intent, its last answer."""
    row, loom = entity_row(loom, header), make_unchecked(loom)
    intents = loom.intents(header.entity_id)
    return {
        **row,
        "intents": len(intents),
        "last_intent": _render_intent(intents[-1]) if intents else "",
        "last_said": _find_last_answer(loom.turns(header.entity_id)),
    }


def _find_last_answer(turns: list[Turn]) -> str | None:
    for turn in reversed([turn for turn in turns if not turn.undone]):
        answers = [seen.content for seen in turn.gate_calls if seen.gate == "done"]
        if answers or turn.content:
            return answers[-1] if answers else turn.content
    return None


def render_entities(rows: Iterable[dict[str, Any]], width: int) -> Iterator[Text]:
    """Yield long-lived entities, in columns."""
    for at, row in enumerate(rows):
        if at == 0:
            yield Text(f"{'ENTITY':<10}{'NAME':<18}{'STATE':<14}{'INTENTS':>8}{'TURNS':>7}  SAID LAST", "dim")
        line = Text(end="").append(f"{short(row['id']):<10}", "bold")
        line.append(f"{one_line(row['name'] or '', 17):<18}")
        line.append(f"{name_state(row['state']):<14}", STYLES.get(row["state"], "yellow"))
        line.append(f"{row['intents']:>8,}{row['turns']:>7,}  {one_line(row['last_said'] or '', max(20, width - 60))}")
        yield line


def moves_table(moves: Iterable[Move]) -> Iterator[Text]:
    """Yield the moves of long-lived entities to other cantrips, in columns."""
    for at, move in enumerate(moves):
        if at == 0:
            yield Text(f"{'ENTITY':<10}{'NAME':<18}{'CANTRIP':<18}{'FROM':<18}{'TO':<18}WHEN", "dim")
        line = Text(end="").append(f"{short(move.entity_id):<10}", "bold")
        line.append(f"{one_line(move.entity_name or '', 17):<18}{one_line(move.cantrip_name, 17):<18}")
        line.append(f"{move.from_id:<18}{move.cantrip.id:<18}")
        yield line.append("at its next intent" if move.is_idle else "after the episode under way")


# ----------------------------------------------------------------------------------------------------------- the tree


def tree(loom: Loom, roots: Iterable[str] | None = None, width: int = 120) -> Iterator[Text]:
    """Yield entities with their turns; children and forks are below the turn that they came from."""
    if roots is None:
        roots = [header.entity_id for header in loom.headers() if header.parent_turn is None]
    return draw(_render_entity(loom, root, width) for root in roots)


def _render_entity(loom: Loom, entity: str, width: int) -> Branch:
    row = entity_row(loom, loom.header(entity))
    state = row["state"]
    line = Text(end="").append("fork " if row["forked"] else "", "magenta").append(short(entity), "bold")
    line.append(f" {one_line(row['intent'], max(30, width - 70))} ")
    line.append(name_state(state), STYLES.get(state, "yellow"))
    line.append(f" · {tokens(row['tokens'])}", "dim")
    return Branch(line, list(_render_turns(loom, entity, width)))


def _render_turns(loom: Loom, entity: str, width: int) -> Iterator[Branch]:
    turns, heard = loom.turns(entity), list_messages_by_turn(loom, entity)
    is_first = True  # the line of the entity has its first intent
    kin = {turn.id: (*loom.children(turn.id), *loom.forks(turn.id)) for turn in turns}
    edge = MANY_TURNS // 4
    left_out = 0
    for at, turn in enumerate(turns):
        if len(turns) > MANY_TURNS and edge <= at < len(turns) - edge and not (kin[turn.id] or turn.id in heard):
            left_out += 1
            continue
        if left_out:
            yield Branch(Text(f"… {left_out} turns", "dim", end=""), [])
            left_out = 0
        for message in heard.get(turn.id, ()):
            if not is_first or message.kind != "intent":
                yield Branch(_render_message_line(message, width), [])
            is_first = is_first and message.kind != "intent"
        yield Branch(_turn_line(turn, width), [_render_entity(loom, child, width) for child in kin[turn.id]])
    for message in heard.get(None, ()):
        if not is_first or message.kind != "intent":
            yield Branch(_render_message_line(message, width), [])
        is_first = is_first and message.kind != "intent"


def _render_message_line(message: Heard, width: int) -> Text:
    line = Text(end="").append(f"{message.kind}{f' by {message.by}' if message.by else ''}: ", "dim")
    return line.append(one_line(add_labels(message.text, message.images), max(20, width - 40)))


def _turn_line(turn: Turn, width: int) -> Text:
    line = Text(end="").append(f"{turn.sequence} ", "dim").append(f"{short(turn.id)} ")
    if turn.gate_calls:
        for at, seen in enumerate(turn.gate_calls):
            line.append(", " if at else "").append(one_line(seen.gate, 64), "red" if seen.is_error else "cyan")
            if seen.is_error:
                line.append(" failed", "red")
    elif turn.tool_calls and not turn.continues:
        line.append(", ".join(one_line(call.gate, 64) for call in turn.tool_calls), "cyan")
    content = turn.content if turn.content and not turn.continues else ""
    if content:
        line.append(
            f'{" " if turn.gate_calls or turn.tool_calls else ""}"{one_line(content, max(20, width - 60))}"', "dim"
        )
    if turn.continues:
        line.append(" (goes on)", "dim")
    _append_end(line, turn)
    if turn.reward is not None:
        line.append(f" reward {turn.reward:g}", "magenta")
    return line


def tree_json(loom: Loom, entity: str) -> dict[str, Any]:
    """Return the same tree for programs: an entity, its turns, and below each turn the entities that it led to."""
    heard = list_messages_by_turn(loom, entity)
    return {
        **entity_row(loom, loom.header(entity)),
        "messages": [
            {**build_message_fields(message), "before_turn": turn_id}
            for turn_id, messages in heard.items()
            for message in messages
        ],
        "turns": [
            {
                "id": turn.id,
                "sequence": turn.sequence,
                "gates": [{"gate": seen.gate, "is_error": seen.is_error} for seen in turn.gate_calls],
                "terminated": turn.terminated,
                "truncated": turn.truncated,
                "undone": turn.undone,
                "reward": turn.reward,
                "children": [tree_json(loom, child) for child in loom.children(turn.id)],
                "forks": [tree_json(loom, fork) for fork in loom.forks(turn.id)],
            }
            for turn in loom.turns(entity)
        ],
    }


# ------------------------------------------------------------------------------------------------------- turn, thread


def turn_lines(loom: Loom, turn: Turn, longest: int | None = None) -> Iterator[Text]:
    """Yield everything about a turn. Texts of more than `longest` lines are cut, with a note."""
    meta = turn.metadata
    yield _render_title(turn)
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
    yield from _render_spoken(turn, longest)


def build_message_fields(message: Heard) -> dict[str, Any]:
    """Return an intent or a steering message for programs."""
    text = add_labels(message.text, message.images)
    return {"kind": message.kind, "text": text, "by": message.by, "at": message.at}


class ThreadView(NamedTuple):
    """A path of turns, with the intents and steering messages that led to each; None: no turn follows them yet."""

    turns: Sequence[Turn]
    messages: Mapping[str | None, Sequence[Heard]]


def find_thread(loom: Loom, finder: Finder, typed: str) -> ThreadView:
    """Return the thread that leads to a turn; of an entity, the one to its last turn. Raises UnknownId.

    Messages that no turn follows yet are there if the thread leads to the last turn of its entity.
    """
    entity = finder.owner(typed)
    last = loom.last_turn(entity)
    if last is not None or finder.find(typed).kind == "turn":
        turns = loom.thread(finder.turn(typed))
    else:
        parent_turn = loom.header(entity).parent_turn
        turns = [] if parent_turn is None else loom.thread(parent_turn)
    found: dict[str | None, list[Heard]] = {}
    for thread_entity in dict.fromkeys((*(turn.entity_id for turn in turns), entity)):
        found = {**found, None: [], **list_messages_by_turn(loom, thread_entity)}
    if turns and last is not None and turns[-1].id != last.id:
        found[None] = []
    return ThreadView(turns, found)


def thread_lines(thread: ThreadView, longest: int | None = 12) -> Iterator[Text]:
    """Yield a path of turns, oldest first, each after the intents and steering messages that led to it."""
    entity, messages = "", thread.messages
    for turn in thread.turns:
        if turn.entity_id != entity:
            entity = turn.entity_id
            yield Text(f"entity {short(entity)}", "bold", end="")
        yield from _render_messages(messages.get(turn.id, ()), longest)
        yield _render_title(turn)
        yield from _render_spoken(turn, longest)
    yield from _render_messages(messages[None], longest)


def input_lines(model_input: ModelInput, longest: int | None = None) -> Iterator[Text]:
    """Yield what a model was given for a turn: the messages of the query, the gates, the settings of the call."""
    count = f"{len(model_input.messages)} messages for {model_input.crystal}"
    yield Text(end="").append(f"turn {short(model_input.turn_id)}", "bold").append(f" {count}", "dim")
    for message in model_input.messages:
        text = add_labels(message.content or "", message.images)
        title = {"assistant": "says", "tool": "result"}.get(message.role, message.role)
        yield from _render_block("thinks", message.thinking or "", longest, "dim")
        if message.gate:
            text = f"{message.gate}: {text}"
        yield from _render_block(title, text, longest, "red" if message.is_error else "")
        for call in message.tool_calls:
            yield from _render_block("calls", f"{call.gate}({call.arguments})", longest, "cyan")
    facts = {
        "gates": ", ".join(str(tool["name"]) for tool in model_input.tools),
        "settings": ", ".join(f"{name}={value}" for name, value in model_input.settings.items() if value is not None),
        "folded": ", ".join(map(short, model_input.folded_turns)),
        "missing": "" if model_input.is_exact else "texts that are not in the loom, such as those of a medium",
    }
    for name, fact in facts.items():
        yield from _render_block(name, fact, longest, "dim")


def _render_messages(messages: Iterable[Heard], longest: int | None) -> Iterator[Text]:
    for message in messages:
        line = Text(end="").append(message.kind, "bold").append(f" by {message.by}" if message.by else "")
        yield line.append(f" at {message.at[:16].replace('T', ' ')}", "dim")
        yield from _render_block("", add_labels(message.text, message.images), longest, "")


def _render_title(turn: Turn) -> Text:
    line = Text(end="").append(f"turn {turn.sequence} {short(turn.id)}", "bold")
    return _append_end(line, turn)


def _append_end(line: Text, turn: Turn) -> Text:
    if turn.terminated:
        line.append(" completed", "green")
    if turn.truncated:
        line.append(f" truncated by {turn.ward or 'its surroundings'}", "yellow")
    if turn.undone:
        line.append(" undone", "yellow")
    return line


def _render_spoken(turn: Turn, longest: int | None) -> Iterator[Text]:
    if not turn.continues:
        yield from _render_block("thinks", turn.thinking or "", longest, "dim")
        yield from _render_block("says", turn.content or "", longest, "")
        if turn.code and turn.code != turn.content:
            yield from _render_block("code", turn.code, longest, "")
    ran = {seen.tool_call_id for seen in turn.gate_calls}
    for call in turn.tool_calls:
        if call.id in ran or not turn.continues:
            yield from _render_block("calls", f"{call.gate}({call.arguments})", longest, "cyan")
    for resumed in turn.resumes:
        yield from _render_block("resumed", resumed.in_words, longest, "yellow")
    for decision in turn.decisions:
        yield from _render_block("decided", decision.in_words, longest, "yellow")
    for seen, duration in zip(turn.gate_calls, turn.gate_durations, strict=True):
        title, style = ("failed", "red") if seen.is_error else ("answered", "")
        yield from _render_block(title, f"{seen.gate} ({duration:,.1f} ms): {seen.content}", longest, style)


def _render_block(title: str, text: str, longest: int | None, style: str) -> Iterator[Text]:
    lines = text.splitlines()
    cut = len(lines) if longest is None else longest
    for at, line in enumerate(lines[:cut]):
        head = f"  {title:<9}" if at == 0 else " " * 11
        shortened = line if longest is None else line[:WIDEST]
        shown = Text(end="").append(head, "dim").append(printable(shortened), style)
        yield (
            shown
            if len(shortened) == len(line)
            else shown.append(f" … {len(line) - len(shortened):,} more characters", "dim")
        )
    if len(lines) > cut:
        yield Text(f"{' ' * 11}… {len(lines) - cut} more lines", "dim", end="")
