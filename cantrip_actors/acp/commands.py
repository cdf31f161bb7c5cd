"""Slash commands: an editor's user gives them to the session, not to its entity."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from cantrip_actors import Usage
from cantrip_actors.acp.session import EditorSession
from cantrip_actors.acp.updates import title_of

NO_TURN: Final = "No turn yet."


class _Command(NamedTuple):
    text: str
    hint: str | None
    run: Callable[[EditorSession, str], Awaitable[str]]


def available_commands() -> list[dict[str, Any]]:
    """Return the commands as editors list them."""
    return [
        {
            "name": name,
            "description": command.text,
            **({} if command.hint is None else {"input": {"hint": command.hint}}),
        }
        for name, command in COMMANDS.items()
    ]


def command_in(text: str) -> Callable[[EditorSession], Awaitable[str]] | None:
    """Return the function for a prompt that is a command; None for any other prompt."""
    if not text.startswith("/"):
        return None
    name, _, rest = text[1:].partition(" ")
    command = COMMANDS.get(name)
    return None if command is None else lambda session: command.run(session, rest.strip())


def read_number(text: str) -> int | None:
    """Return the number that a text of at most nine digits says; None for another text, such as thousands of digits."""
    return int(text) if text.isdecimal() and len(text) < 10 else None


async def _undo(session: EditorSession, _: str) -> str:
    def look() -> tuple[list[str], list[str]]:
        turns = [turn.id for turn in session.thread()]
        return turns, session.runtime.loom.first_turns(turns[-1]) if turns else []

    turns, first_turns = await session.runtime.read(look)
    end = session.count_turns_before_next(turns)
    if not end:
        return "There is nothing to undo."
    at = max((number for number in range(end) if turns[number] in first_turns), default=0)
    session.go_back(turns[at - 1] if at else "")
    place = "the beginning" if not at else f"turn {at} of {len(turns)}"
    return f"The next prompt continues from {place}. What came after stays in the loom."


async def _fork(session: EditorSession, rest: str) -> str:
    turns = await session.runtime.read(session.thread)
    if not turns:
        return NO_TURN
    number = read_number(rest)
    if number is None or not 1 <= number <= len(turns):
        return f"/fork N: expected the number of a turn from 1 to {len(turns)}; /tree shows them."
    session.go_back(turns[number - 1].id)
    return f"The next prompt continues from turn {number} of {len(turns)}. What came after stays in the loom."


async def _render_tree(session: EditorSession, _: str) -> str:
    turns = await session.runtime.read(session.thread)
    lines = [f"{n}. {title_of(turn.utterance or turn.observation)}" for n, turn in enumerate(turns, 1)]
    return "\n".join(lines) or NO_TURN


async def _render_cost(session: EditorSession, _: str) -> str:
    def look() -> Usage | None:
        return session.runtime.loom.subtree_usage(session.entity_id) if session.has_begun else None

    usage = await session.runtime.read(look)
    if usage is None:
        return "Nothing yet."
    cost = f", ${usage.cost:.4f}" if usage.cost else ""
    return f"{usage.prompt_tokens:,} tokens read, {usage.completion_tokens:,} written{cost}."


async def _compact(session: EditorSession, _: str) -> str:
    session.fold_next()
    return "Older turns are folded away before the next query; the loom keeps them."


async def _steer(session: EditorSession, rest: str) -> str:
    if not rest:
        return "/steer TEXT: expected what to tell the entity."
    entity = await session.find_entity()
    if entity is None:
        return "No entity is running yet that could be steered."
    await entity.steer(rest, by=session.by)
    return "Said, before its next query."


COMMANDS: Final[Mapping[str, _Command]] = {
    "undo": _Command("Go back to before the last prompt", None, _undo),
    "fork": _Command("Continue from an earlier turn", "the number of the turn", _fork),
    "tree": _Command("List the turns", None, _render_tree),
    "cost": _Command("Say what the session has used", None, _render_cost),
    "compact": _Command("Fold older turns away", None, _compact),
    "steer": _Command("Tell the entity something while it works", "what to tell it", _steer),
}
