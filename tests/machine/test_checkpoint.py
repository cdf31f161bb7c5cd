"""Checkpoints: a decoded state equals the encoded one, and damaged bytes are ignored."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.machine.checkpoint import decode_checkpoint, encode_checkpoint
from cantrip_actors.machine.events import Called, Computed
from cantrip_actors.machine.evolve import fold, renew_call
from cantrip_actors.machine.state import Identity, Plan
from cantrip_actors.records.blob import Blob, Snapshot
from cantrip_actors.terms.call import Call
from cantrip_actors.terms.messages import Response, Usage
from tests.machine.driver import Drive, call, cantrip, done, fields_of, say
from tests.machine.test_loop import programs
from tests.machine.test_loop_properties import Script, live, scripts

BELOW = Usage(3, 4, 0, 0.5)


def again(plan: Plan, state: Any) -> Any:
    data = encode_checkpoint(plan, state, BELOW)
    assert data is not None
    found = decode_checkpoint(data, lambda image: image)
    assert found is not None
    assert found.below == BELOW
    return found.state


@pytest.mark.rule("C-06")
@given(scripts, st.data())
def test_a_restored_state_continues_like_the_replay_of_the_whole_log(script: Script, data: st.DataObject) -> None:
    drive = live(script)
    cut = data.draw(st.integers(0, len(drive.records)))
    kept = again(drive.plan, fold(drive.plan.shape, drive.records[:cut]))
    assert fields_of(fold(drive.plan.shape, drive.records[cut:], kept)) == fields_of(drive.state)


@pytest.mark.rule("C-06")
def test_a_checkpoint_has_programs_and_their_snapshots() -> None:
    image = Blob.of_snapshot("toy", b"a sandbox", b"a key")
    kept = Snapshot(image.digest, image)
    drive = Drive(
        programs(9),
        Response(code="x = 1"),
        Called("echo", {"text": "a"}, "printed", kept),
        Computed(2, snapshot=kept),
        Response(code="y"),
        Called("submit_answer", {"answer": 1}),
        Computed(),
    )
    drive.go()
    for cut in range(len(drive.records) + 1):
        state = fold(drive.plan.shape, drive.records[:cut])
        assert fields_of(again(drive.plan, state)) == fields_of(state)


@pytest.mark.rule("C-06")
@given(st.data())
def test_damaged_bytes_are_refused_or_give_the_same_state(data: st.DataObject) -> None:
    drive = Drive(cantrip(), say(call("look")), say(done()))
    drive.go()
    whole = encode_checkpoint(drive.plan, drive.state, BELOW)
    assert whole is not None
    at = data.draw(st.integers(0, len(whole) - 1))
    assert decode_checkpoint(whole[:at], lambda image: image) is None


@pytest.mark.rule("C-06")
@pytest.mark.parametrize("image", ["", 7, [], {}, {"digest": 7}])
def test_a_checkpoint_with_an_image_that_is_none_is_refused(image: Any) -> None:
    drive = Drive(cantrip(), say(done()))
    drive.go()
    data: Any = msgspec.msgpack.decode(encode_checkpoint(drive.plan, drive.state, BELOW) or b"")
    data["state"]["conversation"]["images"] = [image]
    assert decode_checkpoint(msgspec.msgpack.encode(data), lambda image: image) is None


@pytest.mark.rule("C-06")
def test_a_state_with_values_that_msgpack_cannot_express_has_no_checkpoint() -> None:
    drive = Drive(cantrip(), say(done(2**70)))
    drive.go()
    assert encode_checkpoint(drive.plan, drive.state, BELOW) is None


@pytest.mark.rule("C-06", "CALL-2")
def test_a_restored_state_gets_the_call_of_its_plan() -> None:
    drive = Drive(cantrip(call=Call("Be kind.")), say(call("look")), say(done()))
    drive.go()
    for prompt in ("Be terse.", None, "Be kind."):
        shape = Plan.of(cantrip(call=Call(prompt)), Identity("e1")).shape
        kept = again(drive.plan, drive.state)
        renew_call(shape, kept)
        assert fields_of(kept) == fields_of(fold(shape, drive.records))
