"""Types of answers, for type checkers only: `make lint-types` checks it with mypy, a test with pyright."""

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, assert_type

from pydantic import AfterValidator, BaseModel

from cantrip_actors import Cantrip, Runtime


class Model(BaseModel):
    title: str


class Deep(BaseModel):
    models: list[Model]


@dataclass
class Data:
    title: str


class Typed(TypedDict):
    title: str


class Pair(NamedTuple):
    left: int
    right: str


class Colour(Enum):
    RED = "red"


def check_even(number: int) -> int:
    if number % 2:
        raise ValueError("expected an even number")
    return number


NAME = "openai:gpt-5"


async def ask(runtime: Runtime) -> None:
    assert_type((await runtime.cast(Cantrip(NAME, answer=Model), "go")).result, Model)
    assert_type((await runtime.cast(Cantrip(NAME, answer=Deep), "go")).result, Deep)
    assert_type((await runtime.cast(Cantrip(NAME, answer=Data), "go")).result, Data)
    assert_type((await runtime.cast(Cantrip(NAME, answer=Typed), "go")).result, Typed)
    assert_type((await runtime.cast(Cantrip(NAME, answer=Pair), "go")).result, Pair)
    assert_type((await runtime.cast(Cantrip(NAME, answer=Colour), "go")).result, Colour)
    assert_type((await runtime.cast(Cantrip(NAME, answer=int), "go")).result, int)
    assert_type((await runtime.cast(Cantrip(NAME, answer=date), "go")).result, date)
    assert_type((await runtime.cast(Cantrip(NAME, answer=list[str]), "go")).result, list[str])
    assert_type((await runtime.cast(Cantrip(NAME, answer=dict[str, Model]), "go")).result, dict[str, Model])
    assert_type((await runtime.cast(Cantrip(NAME, answer=Model | Data), "go")).result, Model | Data)
    even = Cantrip[int](NAME, answer=Annotated[int, AfterValidator(check_even)])
    assert_type((await runtime.cast(even, "go")).result, int)
    word = Cantrip[Literal["yes", "no"]](NAME, answer=Literal["yes", "no"])
    assert_type((await runtime.cast(word, "go")).result, Literal["yes", "no"])
    assert_type((await runtime.cast(Cantrip(NAME), "go")).result, Any)

    entity = await runtime.invoke(Cantrip(NAME, answer=Model), "go")
    assert_type((await entity.send("again")).result, Model)
    assert_type((await (await entity.post("again")).result()).result, Model)
    async with runtime.stream(Cantrip(NAME, answer=Model), "go") as run:
        assert_type((await run.result()).result, Model)


def ask_in_a_thread() -> None:
    with Runtime.blocking("memory:") as runtime:
        assert_type(runtime.cast(Cantrip(NAME, answer=Model), "go").result, Model)
        entity = runtime.invoke(Cantrip(NAME, answer=Model), "go")
        assert_type(entity.send("again").result, Model)
        assert_type(entity.episode().result, Model)
        assert_type(entity.work.result().result, Model)
        assert_type(entity.post("again").result().result, Model)
        with runtime.stream(Cantrip(NAME, answer=Model), "go") as run:
            assert_type(run.result().result, Model)
