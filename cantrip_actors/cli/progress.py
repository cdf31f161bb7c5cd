"""The state of a running tree of entities, folded from their events, and its lines. Pure; `watch.py` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from rich.text import Text

from cantrip_actors import (
    EntityEndedEvent,
    EntityEvent,
    EntityStartedEvent,
    StepCompleteEvent,
    StepStartEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from cantrip_actors.cli.output import one_line, short, tokens, turns

STYLES = {
    "active": "cyan",
    "idle": "green",
    "terminated": "green",
    "truncated": "yellow",
    "timeout": "yellow",
    "budget": "yellow",
    "cancelled": "yellow",
    "parent_ended": "yellow",
    "failed": "red",
    "crashed": "red",
}
SIGNS = {"active": "●", "terminated": "✓", "failed": "✗", "crashed": "✗"}
"""The mark of any other end, which the entity did not decide itself, is `!`."""


@dataclass
class EntityProgress:
    """The state of one entity. `calling` are the gates that were called and have not returned."""

    id: str
    intent: str
    parent: str | None
    depth: int
    state: str = "active"
    turns: int = 0
    tokens: int = 0
    failures: int = 0
    asking: bool = False
    calling: dict[str, str] = field(default_factory=dict)
    children: list[str] = field(default_factory=list)
    detail: str | None = None

    @property
    def doing(self) -> str:
        """The gates or the crystal that the entity waits for, in a word or two."""
        if self.state != "active":
            return ""
        return ", ".join(self.calling.values()) or ("thinking" if self.asking else "")


class Progress:
    """The entities seen so far, in the order of their starts."""

    def __init__(self) -> None:
        self.entities: dict[str, EntityProgress] = {}

    def see(self, event: EntityEvent) -> None:
        """Add an event. Events of an entity whose start was missed are ignored."""
        if isinstance(event, EntityStartedEvent):
            self._note_started(event)
            return
        entity = self.entities.get(event.entity_id)
        if entity is None:
            return
        match event:
            case StepStartEvent():
                entity.asking = True
            case ToolCallEvent():
                entity.calling[event.tool_call_id] = one_line(event.gate, 64)  # the model chooses it
            case ToolResultEvent():
                entity.calling.pop(event.tool_call_id or "", None)
                entity.failures += event.is_error
            case UsageEvent():
                entity.asking = False
                entity.tokens += event.usage.total_tokens
            case StepCompleteEvent():
                entity.turns = event.sequence
                if event.terminated or event.truncated:
                    entity.calling.clear()
            case EntityEndedEvent():
                entity.state, entity.detail = event.reason, event.detail
                entity.calling.clear()
            case _:
                pass

    def _note_started(self, event: EntityStartedEvent) -> None:
        known = self.entities.get(event.entity_id)
        if known is not None:  # a further intent of a long-lived entity
            known.state = "active"
            return
        self.entities[event.entity_id] = EntityProgress(event.entity_id, event.intent, event.parent_entity, event.depth)
        if event.parent_entity in self.entities:
            self.entities[event.parent_entity].children.append(event.entity_id)

    @property
    def roots(self) -> Iterator[EntityProgress]:
        """Yield the entities whose parents were not seen."""
        return (entity for entity in self.entities.values() if entity.parent not in self.entities)

    def lines(self, height: int, width: int = 120) -> list[Text]:
        """Return the tree in at most `height` lines; if it does not fit, without the entities that ended well."""
        lines = list(draw(self._branch(root, lambda _: True, width) for root in self.roots))
        if len(lines) <= height:
            return lines
        everything = len(lines)
        lines = list(draw(self._branch(root, self._matters, width) for root in self.roots))[: max(1, height - 1)]
        lines.append(Text(f"… and {everything - len(lines)} more", "dim"))
        return lines

    def _matters(self, entity: EntityProgress) -> bool:
        return entity.state != "terminated" or any(self._matters(self.entities[child]) for child in entity.children)

    def _branch(self, entity: EntityProgress, shown: Callable[[EntityProgress], bool], width: int) -> Branch:
        below = [self.entities[child] for child in entity.children]
        return Branch(
            _render_line(entity, width), [self._branch(child, shown, width - 3) for child in below if shown(child)]
        )


@dataclass
class Branch:
    """A line, and the branches below it."""

    line: Text
    below: list[Branch]


def draw(roots: Iterable[Branch]) -> Iterator[Text]:
    """Yield trees as lines, with the strokes that connect them."""
    for root in roots:
        yield root.line
        yield from _draw_below(root, "")


def _draw_below(branch: Branch, above: str) -> Iterator[Text]:
    for one in branch.below:
        last = one is branch.below[-1]
        yield Text(end="").append(above + ("└─ " if last else "├─ "), "dim").append_text(one.line)
        yield from _draw_below(one, above + ("   " if last else "│  "))


def _render_line(entity: EntityProgress, width: int) -> Text:
    style = STYLES.get(entity.state, "yellow")
    facts = [turns(entity.turns), tokens(entity.tokens)]
    if entity.failures:
        facts.append(f"{entity.failures} failed")
    ending = Text(" · ".join(facts), "dim")
    if entity.doing:
        ending = Text().append_text(ending).append(f" · {entity.doing}", "cyan")
    elif entity.state not in ("terminated", "active"):
        ending = Text().append_text(ending).append(f" · {entity.state}", style)
    line = Text(end="").append(f"{SIGNS.get(entity.state, '!')} ", style).append(short(entity.id), "bold")
    room = max(16, width - len(line) - len(ending) - 2)
    return line.append(f" {one_line(entity.intent, room)} ").append_text(ending)
