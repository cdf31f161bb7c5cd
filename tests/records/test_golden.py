"""`golden/records.jsonl` has lines of each kind of record: each is read, and is encoded with the same bytes."""

from pathlib import Path

import pytest

from cantrip_actors.records.codec import KINDS, decode, encode

LINES = (Path(__file__).parent / "golden" / "records.jsonl").read_bytes().splitlines()


@pytest.mark.rule("C-05")
def test_a_recorded_line_is_encoded_with_the_same_bytes():
    records = [decode(line) for line in LINES]
    assert [encode(record) for record in records] == LINES
    assert {record.__struct_config__.tag for record in records} == KINDS
