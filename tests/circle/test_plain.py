"""Results of gates are converted to JSON values without loss."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import pathlib
import uuid

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr

from cantrip_actors.circle.plain import NotPlain, Pictured, convert_with_images, is_plain, plain
from cantrip_actors.terms.bounds import DEEPEST
from cantrip_actors.terms.image import Image
from tests.pictures import png


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Point:
    x: float
    where: object = None


class Model(BaseModel):
    name: str = Field(alias="theName")
    at: dt.date = dt.date(2026, 1, 2)
    point: Point | None = None


Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024  # the untyped kind has to work as well


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "text"),
        (None, None),
        (True, True),
        (12, 12),
        (1.5, 1.5),
        ([1, (2, 3)], [1, [2, 3]]),
        ({"a": {"b": None}}, {"a": {"b": None}}),
        (float("nan"), "NaN"),
        (-math.inf, "-Infinity"),
        ({"deep": [math.inf]}, {"deep": ["Infinity"]}),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (b"text", "text"),
        (b"\xff\x00", {"base64": "/wA="}),
        (bytearray(b"x"), "x"),
        (memoryview(b"x"), "x"),
        (2**64 - 1, 2**64 - 1),
        (2**64, "18446744073709551616"),
        (-(2**63) - 1, "-9223372036854775809"),
        (10**5000, hex(10**5000)),
        (Point(math.nan, {1}), {"x": "NaN", "where": [1]}),
        (Model(theName="n"), {"theName": "n", "at": "2026-01-02", "point": None}),
        (
            Model(theName="n", point=Point(1.0)),
            {"theName": "n", "at": "2026-01-02", "point": {"x": 1.0, "where": None}},
        ),
        (Pair(1, 2), [1, 2]),
        (Colour.RED, "red"),
        (Level.LOW, 1),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.Counter("aa"), {"a": 2}),
        (collections.UserDict({"a": 1}), {"a": 1}),
        (collections.deque([1, math.nan]), [1, "NaN"]),
        ({"b": 1, "a": 2}.keys(), ["b", "a"]),
        (range(3), [0, 1, 2]),
        (map(str, [1]), ["1"]),
        (dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC), "2026-01-02T03:04:05Z"),
        (dt.timedelta(days=1), "P1D"),
        (uuid.UUID(int=0), "00000000-0000-0000-0000-000000000000"),
        (decimal.Decimal("1.10"), "1.10"),
        (pathlib.PurePosixPath("a/b"), "a/b"),
        ({1: "a", 2.5: "b", None: "c"}, {"1": "a", "2.5": "b", "None": "c"}),
        ({Colour.RED: 1}, {"red": 1}),
        (SecretStr("hidden"), "**********"),
        ("\ud800", "\\ud800"),
        ({"\ud800": 1}, {"\\ud800": 1}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_converts_a_value_to_its_nearest_json_form(value, expected):
    assert plain(value) == expected
    orjson.dumps(plain(value))


async def _coroutine():
    """Never awaited, as the results that are refused."""


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (object(), "a object"),
        ([{"a": [object()]}], "a object at result[0]['a'][0]"),
        (len, "a builtin_function_or_method"),
        (Point, "a type"),
        (ValueError("x"), "a ValueError"),
        ({(1, object()): 1}, "a key of type tuple"),
        ({1: "a", "1": "b"}, "two keys that both read '1'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_without_a_json_form_is_reported_with_type_and_path(value, told):
    with pytest.raises(NotPlain) as caught:
        plain(value)
    assert told in str(caught.value)


def test_an_unawaited_coroutine_is_refused():
    forgotten = _coroutine()
    with pytest.raises(NotPlain, match="was never awaited"):
        plain([forgotten])
    forgotten.close()


def test_a_cycle_is_reported():
    loop: list[object] = []
    loop.append({"inner": loop})
    with pytest.raises(NotPlain, match="contains itself"):
        plain(loop)


def test_a_repeated_value_is_not_a_cycle():
    shared = [1]
    assert plain([shared, shared]) == [[1], [1]]


@pytest.mark.parametrize("depth", [DEEPEST + 1, 100_000])
def test_too_deep_nesting_is_reported(depth):
    deep: list[object] = []
    for _ in range(depth):
        deep = [deep]
    with pytest.raises(NotPlain, match="levels deep"):
        plain(deep)
    while deep:  # let go of it level by level: the interpreter's own way would recurse
        deep = deep.pop()


def test_the_deepest_allowed_nesting_is_encoded_by_orjson_and_read_by_json():
    deep: object = 1
    for _ in range(DEEPEST):
        deep = {"a": [deep]} if isinstance(deep, list) else [deep]
    made = plain([1]) and plain(_nested(DEEPEST))
    assert json.loads(orjson.dumps({"record": {"result": made}}))


def _nested(depth):
    made: object = 1
    for _ in range(depth):
        made = [made]
    return made


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None))
    | st.binary()
    | st.dates()
    | st.uuids()
    | st.decimals(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
        | st.builds(Point, st.floats(), inner)
        | st.sets(st.integers() | st.text())
    ),
    max_leaves=30,
)


@given(values)
def test_any_converted_value_survives_a_json_round_trip(value):
    made = plain(value)
    assert orjson.loads(orjson.dumps(made)) == made
    assert plain(made) == made


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(json_values)
def test_a_json_value_is_returned_unchanged(value):
    assert plain(value) == value


NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | NUMBERS | st.text("abß")
ODD = st.sampled_from([Colour.RED, b"x", frozenset((1,)), Point(1.0), decimal.Decimal(1), object(), Image(png())])


def nested(leaves):
    parts = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text("ab"), inner), max_leaves=8)
    return parts | parts.map(lambda part: (part,))


@given(nested(LEAVES))
def test_is_plain_recognises_json_values(value):
    assert is_plain(value)
    assert json.dumps(plain(value)) == json.dumps(value)


@given(nested(LEAVES | ODD))
def test_is_plain_rejects_other_values(value):
    odd = any(type(part) not in (str, int, float, bool, type(None)) for part in leaves_of(value))
    assert is_plain(value) is not odd


def leaves_of(value):
    if isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves_of(part)
    else:
        yield value


def test_conversion_of_an_endless_value_ends():
    value = []
    value += [value, {"a": value}, value]
    assert not is_plain(value)
    assert not is_plain({1: "a"})
    with pytest.raises(NotPlain, match="contains itself"):
        plain(value)


def test_data_has_handles_in_the_places_of_its_images():
    one, other = Image(png()), Image(png(shade=9))
    data = {"photos": [one, other, one], "n": 1}
    assert convert_with_images(data) == Pictured(
        {"photos": [one.handle, other.handle, one.handle], "n": 1}, (one, other)
    )
