"""A record as one line: encoding loses nothing, adds nothing, and refuses values that cannot be read back."""

import json
import math
from dataclasses import fields, replace
from typing import get_args

import orjson
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from cantrip_actors.records import codec as form
from cantrip_actors.records.codec import DEEPEST, KINDS, SCHEMA, decode, dump_json, encode
from cantrip_actors.records.records import GateFinished, Header, IntentGiven, Observation, Record, Utterance
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import NO_USAGE
from tests.loom.histories import AT, header, records, turn, values
from tests.pictures import png

UUID = "01a2002a-8ab4-71ba-9d5e-8e88887fdc92"


def finished(result: object) -> GateFinished:
    return GateFinished.of("e", "t", Observation("echo", None, result))


def nested(levels: int) -> object:
    value: object = "bottom"
    for _ in range(levels):
        value = [value]
    return value


def test_arbitrary_records_include_every_kind():
    missing = set(get_args(Record))

    def complete(record: Record) -> bool:
        missing.discard(type(record))
        return not missing

    find(records, complete, settings=settings(phases=[Phase.generate], max_examples=5000))
    assert not missing


@pytest.mark.rule("LOOM-1")
@given(records)
def test_an_encoded_record_decodes_to_the_same(record):
    assert decode(encode(record)) == record


@given(records)
def test_an_encoded_record_has_no_line_break(record):
    assert b"\n" not in encode(record)


@given(records)
def test_a_line_is_valid_utf_8_for_any_text(record):
    encode(record).decode()


@given(records)
def test_kind_comes_first_then_entity_then_turn(record):
    said = json.loads(encode(record))
    order = [name for name in said if name in {"kind", "entity", "turn"}]
    assert order == list(said)[: len(order)] == ["kind", "entity", "turn"][: len(order)]
    assert ("turn" in said) == hasattr(record, "turn_id")


@given(values)
def test_a_value_that_only_the_standard_library_writes_is_marked(value):
    line = encode(finished(value))
    if b'"wide":true' not in line:
        assert orjson.loads(line).get("result") == value


def test_a_line_leaves_out_defaults():
    said = orjson.loads(
        encode(Utterance(entity_id="e", turn_id="t", content="hi", tool_calls=(), usage=NO_USAGE, duration_ms=1.5))
    )
    assert said == {"kind": "utterance", "entity": "e", "turn": "t", "content": "hi", "duration_ms": 1.5}


def test_the_kinds_of_records_have_fixed_names():
    words = "header intent steer utterance gate_started gate_finished turn child fold sampled reward ended "
    words += "refused adopted query_posted asked requested decided forgotten resumed undone"
    assert frozenset(words.split()) == KINDS


@pytest.mark.rule("D-005")
def test_an_observation_keeps_all_its_parts():
    seen = Observation("search", {"q": "x"}, {"hits": [1, 2]}, True, "call_1", True, (Image(png()),), 2, ("child",))
    said = orjson.loads(encode(GateFinished.of("e", "t", seen, 2.0)))
    assert {f.name for f in fields(Observation)} <= set(said)
    assert decode(encode(GateFinished.of("e", "t", seen, 2.0))) == GateFinished.of("e", "t", seen, 2.0)


def test_a_turn_with_one_gate_costs_less_than_a_kilobyte_beyond_its_content():
    lines = [encode(record) for record in turn(UUID, UUID, UUID, 1000, text="")]
    assert sum(len(line) + 1 for line in lines) < 900


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**100, 10**400])
def test_integers_past_64_bits_stay_exact(number):
    result = decode(encode(finished({"n": number}))).observation.result
    assert result == {"n": number}
    assert type(result["n"]) is int


@pytest.mark.rule("D-005")
def test_json_for_other_programs_has_the_names_of_numbers_that_json_lacks():
    value = {"a": [math.nan, (math.inf, {"b": -math.inf})], "c": None, "d": 10**40, "e": "\ud800"}
    text = dump_json(value, mark=False).decode()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": ["NaN", ["Infinity", {"b": "-Infinity"}]],
        "c": None,
        "d": 10**40,
        "e": "\ud800",
    }


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_infinities_and_nan_are_decoded_as_they_were_encoded(number):
    (back,) = decode(encode(finished([number]))).observation.result
    assert back == number or (math.isnan(back) and math.isnan(number))


def test_a_null_is_not_decoded_as_a_number():
    line = encode(finished([None, "null"]))
    assert b"wide" not in line
    assert decode(line).observation.result == [None, "null"]


def test_a_lone_surrogate_is_decoded_as_it_was_encoded():
    assert decode(encode(IntentGiven("e", "half \ud83d of it", AT))).intent == "half \ud83d of it"


def test_two_surrogates_of_one_character_are_decoded_as_that_character():
    assert decode(encode(IntentGiven("e", "\ud83d\ude00", AT))).intent == "\U0001f600"


@pytest.mark.parametrize("levels", [200, 300, DEEPEST - 10])
def test_deeply_nested_values_are_decoded_as_they_were_encoded(levels):
    assert decode(encode(finished(nested(levels)))) == finished(nested(levels))


def test_a_value_too_deep_to_be_read_back_is_refused():
    with pytest.raises(LoomError, match=f"deeper than {DEEPEST} levels"):
        encode(finished(nested(DEEPEST + 1)))


def test_a_value_that_contains_itself_is_refused():
    value: list[object] = []
    value.append(value)
    with pytest.raises(LoomError, match="JSON cannot express"):
        encode(finished(value))


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, b"raw", {1: "key"}, {"deep": [object()]}, pytest.param(10**5000, id="5001 digits"), 1j]
)
def test_a_value_without_a_json_form_is_refused_with_its_type(value):
    with pytest.raises(LoomError, match="cannot store a gate_finished that JSON cannot express"):
        encode(finished(value))


def test_a_mapping_that_is_not_a_dict_is_encoded_as_one():
    from types import MappingProxyType

    assert decode(encode(finished({"m": MappingProxyType({"a": 1})}))) == finished({"m": {"a": 1}})
    assert decode(encode(finished({"m": MappingProxyType({"a": 2**70})}))) == finished({"m": {"a": 2**70}})


def test_the_header_carries_the_version_of_the_format():
    assert orjson.loads(encode(header("e")))["schema"] == SCHEMA


def test_a_line_of_a_later_version_is_refused():
    said = orjson.loads(encode(header("e"))) | {"schema": SCHEMA + 1}
    with pytest.raises(LoomError, match="use a newer cantrip-actors"):
        decode(orjson.dumps(said))


def test_a_line_of_an_earlier_version_is_read_through_every_version_since(monkeypatch):
    """As if version 2 had called an intent's words `text`, and version 3 had called them `intent` again, in English."""

    def renamed(said):
        return {"text": said.get("intent"), **said}

    def translated(said):
        return {**said, "intent": f"{said['text']}, in English"}

    first = encode(IntentGiven("e", "hello", AT))
    second = first.replace(b'"intent":"', b'"schema":2,"text":"')
    monkeypatch.setattr(form, "SCHEMA", 3)
    monkeypatch.setattr(form, "UPCASTS", (renamed, translated))
    assert decode(first) == decode(second) == IntentGiven("e", "hello, in English", AT)
    assert decode(encode(IntentGiven("e", "hello", AT))) == IntentGiven("e", "hello", AT)
    assert decode(encode(header("e"))) == header("e")


def test_there_is_an_upcast_for_every_earlier_version():
    assert len(form.UPCASTS) == SCHEMA - 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "not a record of a loom"),
        (b"[1]", "expected a JSON object"),
        (b"7", "expected a JSON object"),
        (b"null", "expected a JSON object"),
        (b'"kind"', "expected a JSON object"),
        (b"{}", "unknown kind None"),
        (b'{"kind":"haeder"}', "unknown kind 'haeder'; known: header"),
        (b'{"kind":"intent","entity":"e","at":"now"}', "missing required field `intent`"),
        (b'{"kind":"utterance","entity":"e","turn":"t","usage":5,"duration_ms":1}', "not a record of a loom"),
        (b'{"kind":"intent","entity":"e"', "not a record of a loom"),
        (b'{"kind":"intent","wide":true,"entity":', "not a record of a loom"),
        (b'{"wide":true,"x":' + b"[" * 5000, "not a record of a loom"),
    ],
)
def test_a_line_that_is_not_a_record_is_refused(line, why):
    with pytest.raises(LoomError, match="not a record of a loom") as caught:
        decode(line)
    assert why in str(caught.value)


@given(records, st.data())
def test_no_beginning_of_a_line_is_a_record(record, data):
    line = encode(record)
    with pytest.raises(LoomError):
        decode(line[: data.draw(st.integers(0, len(line) - 1))])


def test_a_field_of_a_later_minor_version_is_ignored():
    said = orjson.loads(encode(header("e"))) | {"colour": "red"}
    assert decode(orjson.dumps(said)) == header("e")


def test_a_header_keeps_its_parents_and_its_turn():
    whole: Header = replace(header("e"), parent_entity="p", parent_turn="t", depth=2, name="notes")
    assert decode(encode(whole)) == whole
