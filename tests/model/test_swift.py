"""Frozen values with a quick `__init__`: they are what they would be without it."""

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.model import messages, turn
from cantrip_actors.model.swift import swift


class Read:
    """A base without fields, as `Message` has one."""

    __slots__ = ()

    def first(self) -> Any:
        return getattr(self, "one")  # noqa: B009  # it has no field itself


@dataclass(frozen=True, slots=True)
class Slow(Read):
    one: Any
    two: Any = 2
    three: list[Any] = field(default_factory=list)
    four: Any = None


@swift
@dataclass(frozen=True, slots=True)
class Swift(Read):
    one: Any
    two: Any = 2
    three: list[Any] = field(default_factory=list)
    four: Any = None


def of(value: Any) -> list[Any]:
    return [getattr(value, one.name) for one in fields(value)]


@given(
    st.lists(st.integers(), max_size=6),
    st.dictionaries(st.sampled_from(["one", "two", "three", "four", "five"]), st.integers()),
)
def test_it_takes_and_refuses_the_same_arguments(args: list[int], named: dict[str, int]) -> None:
    def made(kind: Any) -> Any:
        try:
            return of(kind(*args, **named))
        except TypeError as error:
            return str(error).replace("Slow", "").replace("Swift", "")

    assert made(Swift) == made(Slow)


def test_it_is_frozen() -> None:
    value = Swift(1)
    with pytest.raises(FrozenInstanceError):
        value.one = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del value.one
    assert type(value) is Swift
    assert not hasattr(value, "__dict__")


def test_what_is_made_for_each_is_its_own() -> None:
    assert Swift(1).three == []
    assert Swift(1).three is not Swift(1).three


def test_it_can_be_compared_copied_and_shown() -> None:
    value = Swift(1, four="x")
    assert value == Swift(1, 2, [], "x")
    assert value != Swift(1)
    other: object = Slow(1, four="x")
    assert value != other
    assert repr(value) == "Swift(one=1, two=2, three=[], four='x')"
    assert replace(value, one=3) == Swift(3, 2, [], "x")
    for again in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert again == value
        assert type(again) is Swift
    assert inspect.signature(Swift) == inspect.signature(Slow)
    assert value.first() == 1


def test_a_subclass_of_it_stays_what_it_is() -> None:
    class Louder(Swift):
        pass

    @dataclass(frozen=True, slots=True)
    class Longer(Swift):
        five: int = 5

    assert type(Louder(1)) is Louder
    assert of(Longer(1, five=6)) == [1, 2, [], None, 6]
    with pytest.raises(FrozenInstanceError):
        Louder(1).one = 2  # type: ignore[misc]


def test_what_it_could_not_keep_up_is_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class Checked:
        one: int

        def __post_init__(self) -> None:
            raise ValueError

    @dataclass(frozen=True, slots=True)
    class Derived:
        one: int = field(init=False, default=1)
        two: int = 2

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        one: int

    for kind in (Checked, Derived, Named):
        with pytest.raises(TypeError, match="expected a dataclass"):
            swift(kind)


@pytest.mark.parametrize("kind", [messages.Message, messages.Response, turn.Utterance, turn.Committed])
def test_what_a_turn_makes_is_swift(kind: type) -> None:
    assert "thaw" in kind.__init__.__code__.co_names  # type: ignore[misc]
