"""Typed answers: each kind of type, what `Episode.result` is then, and what type checkers say of it."""

import asyncio
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, assert_type

from pydantic import AfterValidator, BaseModel, Field
from typing_extensions import TypedDict

from cantrip_actors import Cantrip, Runtime, Truncated, scripted


class Invoice(BaseModel):
    """A pydantic model."""

    total: int = Field(gt=0)
    items: list[str] = []


@dataclass
class City:
    """A dataclass."""

    name: str
    founded: date


class Point(TypedDict):
    """A typed dictionary."""

    x: int
    y: int


class Pair(NamedTuple):
    """A named tuple."""

    left: int
    right: str


class Mood(Enum):
    """An enumeration."""

    GOOD = "good"
    BAD = "bad"


def refuse_odd(number: int) -> int:
    """Return an even number; pydantic makes an error of the exception."""
    if number % 2:
        raise ValueError("an even number is needed")
    return number


Even = Annotated[int, AfterValidator(refuse_odd)]


def answers(*values: Any) -> Any:
    """Return a crystal that calls `done` with each value, until one is accepted."""
    return scripted([{"tool_calls": [{"gate": "done", "args": {"answer": value}}]} for value in values])


async def main() -> None:
    """Cast a cantrip of each kind. The first answer of most is wrong, and the entity corrects it."""
    async with Runtime.open("memory:") as runtime:
        invoice = await runtime.cast(Cantrip(answers({"total": 0}, {"total": 3}), answer=Invoice, max_turns=3), "go")
        print(assert_type(invoice.result, Invoice))
        city = {"name": "Rome", "founded": "1871-02-03"}
        rome = await runtime.cast(Cantrip(answers("Rome", city), answer=City, max_turns=3), "go")
        print(assert_type(rome.result, City))
        point = await runtime.cast(Cantrip(answers({"x": 1}, {"x": 1, "y": 2}), answer=Point, max_turns=3), "go")
        print(assert_type(point.result, Point))
        pair = await runtime.cast(Cantrip(answers([1], [1, "b"]), answer=Pair, max_turns=3), "go")
        print(assert_type(pair.result, Pair))
        mood = await runtime.cast(Cantrip(answers("so so", "good"), answer=Mood, max_turns=3), "go")
        print(assert_type(mood.result, Mood))
        number = await runtime.cast(Cantrip(answers("many", 7), answer=int, max_turns=3), "go")
        print(assert_type(number.result, int))
        words = await runtime.cast(Cantrip(answers("a", ["a", "b"]), answer=list[str], max_turns=3), "go")
        print(assert_type(words.result, list[str]))
        prices = await runtime.cast(Cantrip(answers([], {"apple": 1.2}), answer=dict[str, float], max_turns=3), "go")
        print(assert_type(prices.result, dict[str, float]))
        triple = await runtime.cast(Cantrip(answers([1, "b"]), answer=tuple[int, str], max_turns=3), "go")
        print(assert_type(triple.result, tuple[int, str]))
        either = await runtime.cast(Cantrip(answers(None, "three"), answer=int | str, max_turns=3), "go")
        print(assert_type(either.result, int | str))
        perhaps = await runtime.cast(Cantrip(answers("no", None), answer=Invoice | None, max_turns=3), "go")
        print(assert_type(perhaps.result, Invoice | None))
        letter = await runtime.cast(Cantrip(answers("c", "a"), answer=Literal["a", "b"], max_turns=3), "go")
        print(assert_type(letter.result, Literal["a", "b"]))
        even = await runtime.cast(Cantrip(answers(3, 4), answer=Even, max_turns=3), "go")
        print(assert_type(even.result, int))
        anything = await runtime.cast(Cantrip(answers({"a": [1]}), max_turns=3), "go")
        print(assert_type(anything.result, Any))

        cut_off = await runtime.cast(Cantrip(answers(1, 3, 5), answer=Even, max_turns=2), "go")
        try:
            print(cut_off.result)
        except Truncated as truncated:
            print("no answer:", truncated.ward)

        entity = await runtime.ensure("counter", Cantrip(answers(7, 8), answer=int, max_turns=3))
        print(
            assert_type((await entity.send("first")).result, int), assert_type((await entity.send("next")).result, int)
        )
        async with runtime.stream(Cantrip(answers(9), answer=int, max_turns=3), "go") as run:
            print(assert_type((await run.result()).result, int))


def ask_without_await() -> None:
    """Do the same in code without an event loop."""
    with Runtime.blocking("memory:") as runtime:
        print(assert_type(runtime.cast(Cantrip(answers(10), answer=int, max_turns=3), "go").result, int))
        entity = runtime.invoke(Cantrip(answers(11, 12, 13), answer=int, max_turns=3), "first")
        assert_type(entity.work.result().result, int)
        print(assert_type(entity.episode().result, int), assert_type(entity.send("next").result, int))
        print(assert_type(entity.post("last").result().result, int))
        with runtime.stream(Cantrip(answers(14), answer=int, max_turns=3), "go") as run:
            print(assert_type(run.result().result, int))


if __name__ == "__main__":
    asyncio.run(main())
    ask_without_await()
