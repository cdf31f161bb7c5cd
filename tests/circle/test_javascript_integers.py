"""C-67: no integer loses a digit between a JavaScript program and its host, in either direction."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.circle.javascript.values import decode_incoming, encode_outgoing
from cantrip_actors.circle.medium import Answer, Finished, ProgramLimits, Raised, Suspended, medium
from cantrip_actors.gates import gate
from cantrip_actors.terms.messages import ToolDefinition
from cantrip_actors.wards import max_turns

pytestmark = pytest.mark.rule("C-67")

ID = 9007199254740993
"""2**53 + 1, which no Number has."""

PAY = ToolDefinition("pay", "", {"type": "object", "properties": {"id": {}}, "required": ["id"]})

INTEGERS = st.integers(-(2**63), 2**64 - 1) | st.sampled_from([2**53 - 1, 2**53, ID, -ID, 2**64 - 1, -(2**63)])
"""Integers of more than 64 bits are text everywhere in the loom (D-005)."""

TEXTS = st.text(max_size=5) | st.sampled_from(["\0", "\0n5", "\0\0n", "n7", "9007199254740993", str(ID) * 3])
FLOATS = st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: not 2**53 <= abs(x) < 1e21)
VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | TEXTS | FLOATS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def box():
    made = medium("javascript").open([PAY], ProgramLimits(memory=2**25))
    yield made
    made.close()


def same(one, other):
    """Equal, where JavaScript has no -0 and no difference between 1 and 1.0 in JSON."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=0, abs_tol=0) or one == other
    return type(one) is type(other) and one == other


@given(VALUES)
def test_a_value_passes_through_a_program_unchanged(box, value):
    assert same(value, box.begin("v", {"v": value}).value)


@given(VALUES)
def test_a_gates_result_passes_unchanged_as_an_argument(box, value):
    step = box.begin("const got = pay({id: 0}); pay({id: got}); got")
    step = box.answer(step, Answer(value))
    assert isinstance(step, Suspended)
    assert same(value, step.args["id"])
    assert same(value, box.answer(step, Answer(None)).value)


@given(VALUES)
def test_values_at_the_border_are_read_as_written(value):
    sent = encode_outgoing(value)
    if sent[0] == "b":
        assert same(value, decode_incoming(sent[1:].encode()))


def test_a_value_that_is_nested_too_deeply_is_refused():
    with pytest.raises(ValueError, match="nested"):
        decode_incoming(("[" * 1000 + str(ID) + "]" * 1000).encode())


def test_an_integer_beyond_a_number_is_a_bigint_in_the_program(box):
    assert box.begin("typeof v + (v === 9007199254740993n)", {"v": ID}) == Finished("biginttrue")
    assert box.begin("typeof v", {"v": 2**53 - 1}) == Finished("number")


def test_a_bigint_of_more_than_64_bits_is_its_digits(box):
    assert box.begin("[v, 2n ** 64n]", {"v": 10**30}) == Finished([str(10**30), str(2**64)])


def test_a_bigint_of_any_length_is_its_digits(box):
    step = box.begin("pay(10n ** 5000n)")
    assert isinstance(step, Suspended)
    assert step.args == {"id": "1" + "0" * 5000}
    assert box.answer(step, Answer(None)) == Finished(None)
    assert box.begin("-(10n ** 5000n)") == Finished("-1" + "0" * 5000)


def test_a_small_bigint_is_an_integer(box):
    assert box.begin("[5n, -1n]") == Finished([5, -1])


@pytest.mark.parametrize("number", ["9007199254740993", "2 ** 53", "-(2 ** 60)", "1e20", "[{a: 2 ** 53}]"])
def test_a_number_that_may_have_lost_digits_is_refused_as_an_argument(box, number):
    step = box.begin(f"try {{ pay({{id: {number}}}) }} catch (e) {{ e.message }}")
    assert isinstance(step, Finished)
    assert "beyond 2**53, where a Number loses digits: write integers of that size as BigInt" in step.value


@pytest.mark.parametrize("number", ["9007199254740993", "({a: [2 ** 53]})"])
def test_a_number_that_may_have_lost_digits_is_an_error_as_a_value(box, number):
    step = box.begin(number)
    assert isinstance(step, Raised)
    assert "RangeError: the value: 900719925474099" in step.error


@pytest.mark.parametrize("number", [2**53 - 1, 0.5, 1.5e300, 6.02e23])
def test_exact_numbers_are_accepted(box, number):
    assert box.begin(f"{number!r}") == Finished(number)


def test_a_snapshot_keeps_every_digit(box):
    box.begin("var kept = [v, {v}]", {"v": ID})
    other = medium("javascript").open([PAY], ProgramLimits(memory=2**25))
    other.load(box.dump())
    assert other.begin("kept") == Finished([ID, {"v": ID}])
    other.close()


async def test_no_digit_is_lost_in_a_cast():
    got = []

    @gate
    async def order(id: int) -> dict[str, int]:
        got.append(id)
        return {"id": id + 2}

    code = "const made = order(context.id); order(made.id); done(made)"
    crystal = scripted([{"code": code}])
    async with Runtime.open("memory:") as runtime:
        circle = Circle(["done", order], [max_turns(3)], medium="javascript")
        episode = await runtime.cast(Cantrip(crystal, circle=circle), "go", context={"id": ID})
    assert got == [ID, ID + 2]
    assert episode.result == {"id": ID + 2}
