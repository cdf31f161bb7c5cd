"""Thirty cantrips of all kinds, made anew by each call, for tests of their content ids."""

import functools
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

import cantrip_actors.circle  # noqa: F401  # makes the standard gates known by name
from cantrip_actors import Call, Cantrip, Circle, Companion, Folding, Gate, Injected, Retry, gate, scripted, wrap
from cantrip_actors.recipes import load_recipe
from cantrip_actors.terms.gate import standard
from cantrip_actors.wards import (
    max_compute,
    max_cost,
    max_depth,
    max_gate_calls,
    max_tokens,
    max_turns,
    remove_gate,
    timeout,
)

RECIPE = """
name: from-a-recipe
crystal: anthropic:claude-sonnet-4-5
call: {system_prompt: You are terse., temperature: 0.2, stop: END}
circle: {gates: [done, echo, call_agent], wards: [{max_turns: 20}, {max_depth: 2}], medium: python}
folding: {trigger_after_turns: 40}
retry: {max_retries: 2}
"""


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str = Field(description="with its number")
    city: str = "Oslo"
    near: "list[Address]" = []


@dataclass
class Point:
    x: int
    y: float = 0.5


class Row(TypedDict):
    name: str
    value: int


@gate
async def search(query: str, limit: int = 5, kind: Literal["note", "mail"] | None = None) -> list[str]:
    """Search the notes."""
    return [query]


@gate(name="store", timeout=3, ephemeral=True, idempotent=True)
def keep(data: dict[str, Any], tags: list[str], ratio: float = 0.5, is_new: bool = True) -> None:
    """Keep data."""


@gate
def travel(to: Address, at: Point, colour: Colour = Colour.RED, rows: tuple[Row, ...] = ()) -> str:
    """Travel somewhere."""
    return to.city


@gate
def narrow(count: Annotated[int, Field(ge=1, le=9)], text: Annotated[str, Field(description="what it is")]) -> str:
    """Take few."""
    return text


@gate
def anything(first: Any, **more: Any) -> Any:
    """Take all."""
    return first


@gate
def pay(amount: int, account: Injected[str]) -> str:
    """Pay."""
    return account


def check(call: Any) -> None:
    """Let every call through."""


def inspect(call: Any, seen: Any) -> None:
    """Look at what came."""


class Desk:
    def answer(self, question: str) -> str:
        """Answer a question."""
        return question


def named(name: str) -> Any:
    """Return a crystal with a name that no family has: the ids of these cantrips are older than the check of names."""
    return scripted([{}], name=name)


def _tools(*gates: Any, **parts: Any) -> Cantrip:
    return Cantrip(named("a:b"), circle=Circle(["done", *gates], [max_turns(10)]), **parts)


def _medium(name: Any, *wards: Any) -> Cantrip:
    return Cantrip(named("a:b"), circle=Circle(["done", search], [max_turns(10), *wards], medium=name))


def cantrips(folder: Path) -> dict[str, Cantrip]:
    """Return the cantrips by what is special about each; `folder` is for a recipe."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    files = [standard(name).with_(root="/") for name in ("read", "list", "search", "write")]
    return {
        "smallest": _tools(),
        "another crystal": Cantrip(named("a:c"), circle=Circle(["done"], [max_turns(10)])),
        "a named crystal": Cantrip(scripted([{}], name="told"), circle=Circle(["done"], [max_turns(10)])),
        "a system prompt": _tools(call=Call("You are terse.")),
        "sampling": _tools(call=Call("p", temperature=0.5, top_p=0.9, max_tokens=99, stop=("A", "B"))),
        "options": _tools(call=Call("p", options={"top_k": 2**70, "nested": {"a": [1, None, "ø"]}})),
        "a tool choice": _tools(call=Call("p", tool_choice="required")),
        "done required": _tools(require_done_tool=True),
        "a child crystal": _tools("call_agent", child_crystal=named("c:d")),
        "crystals to choose from": _tools("call_agent_batch", crystals={"small": named("e:f"), 1: named("g:h")}),
        "standard gates": _tools("echo", "fetch", "post", "ask", *files),
        "another description": _tools(standard("echo").with_(description="Say it back.")),
        "a function": _tools(search),
        "a function with settings": _tools(keep),
        "classes as parameters": _tools(travel),
        "constraints": _tools(narrow),
        "any parameters": _tools(anything),
        "a dependency": _tools(pay.with_(account="anna")),
        "a method": _tools(Desk().answer),
        "a partial": _tools(functools.partial(inspect_order, order="o-1")),
        "a given schema": _tools(
            Gate.of(None, name="far", description="d", parameters={"properties": {"x": {"type": "integer"}}})
        ),
        "wrapped": _tools(wrap(search, pre=[check], post=[inspect]), wrap("done", pre=[check], name="checked")),
        "removed": _tools("echo", search, call=Call("p")).with_crystal(named("x:y")),
        "wards": Cantrip(
            named("a:b"),
            circle=Circle(
                ["done", "echo", "call_agent"],
                [max_tokens(1000), max_cost(0.5), timeout(60), max_depth(3), max_gate_calls(7), remove_gate("echo")],
            ),
        ),
        "python": _medium("python", max_compute(2)),
        "javascript": _medium("javascript"),
        "shell": _medium("shell"),
        "folding": _tools(folding=Folding(trigger_after_turns=40, keep_turns=3, summary=named("s:t"))),
        "a companion and retries": Cantrip(
            named("a:b"), circle=Circle(["done"], [max_turns(10)], companion=Companion()), retry=Retry(2)
        ),
        "a recipe": load_recipe(recipe),
    }


def inspect_order(order: str, line: int) -> str:
    """Inspect an order."""
    return order
