"""Streams in which a gateway went over to another server, sent an answer twice, or mixed two answers (R-04)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.terms.errors import ProviderError
from tests.crystal.streams import STREAMS, Said, fed

pytestmark = pytest.mark.rule("R-04")

FIRST = Said("", "the first answer", (("delete", {"path": "/"}),))
SECOND = Said("", "another answer", (("read", {"path": "/etc"}),))
IDS = {"anthropic": "msg_1", "openai": "resp_1", "openai-chat": "chatcmpl-1", "google": "r1"}


def stream(family: str, said: Said, id: str) -> list[dict]:
    """The events of an answer whose message has this id."""
    return json.loads(json.dumps(STREAMS[family](said)).replace(f'"{IDS[family]}"', f'"{id}"'))


def calls(response) -> list[tuple]:
    return [(call.gate, call.args) for call in response.tool_calls]


@pytest.mark.parametrize("family", IDS)
@given(data=st.data())
def test_an_answer_that_another_one_cuts_off_is_a_broken_stream(family, data) -> None:
    first, second = stream(family, FIRST, "one"), stream(family, SECOND, "two")
    cut = data.draw(st.integers(2, len(first) - 3))
    with pytest.raises(ProviderError, match="a second message began within the first one") as broken:
        fed(family, *first[:cut], *second)
    assert broken.value.retryable


@pytest.mark.parametrize("family", IDS)
def test_two_answers_whose_pieces_come_in_turns_are_a_broken_stream(family) -> None:
    first, second = stream(family, FIRST, "one"), stream(family, SECOND, "two")
    with pytest.raises(ProviderError, match="a second message began within the first one"):
        fed(family, *(event for pair in zip(first, second, strict=False) for event in pair))


@pytest.mark.parametrize("family", IDS)
def test_an_answer_that_follows_a_whole_one_is_not_read(family) -> None:
    response = fed(family, *stream(family, FIRST, "one"), *stream(family, SECOND, "two"))
    assert (response.content, calls(response)) == ("the first answer", [("delete", {"path": "/"})])


@pytest.mark.parametrize("family", [family for family in IDS if family != "google"])  # its events mark no beginning
def test_an_answer_that_is_sent_twice_counts_once(family) -> None:
    response = fed(family, *STREAMS[family](FIRST), *STREAMS[family](FIRST))
    assert (response.content, calls(response)) == ("the first answer", [("delete", {"path": "/"})])


def test_a_second_message_of_bedrock_is_a_broken_stream() -> None:
    first, second = STREAMS["bedrock"](FIRST), STREAMS["bedrock"](SECOND)
    with pytest.raises(ProviderError, match="a second message began within the first one"):
        fed("bedrock", *first[:4], *second)


@pytest.mark.parametrize(
    ("family", "roles", "pieces"),
    [("google", False, 1), ("openai-chat", False, 1), ("openai-chat", True, 1), ("openai-chat", False, 2)],
)
def test_a_server_that_makes_up_an_id_for_each_piece_is_read(family, roles, pieces) -> None:
    sent = stream(family, FIRST, "one")
    for n, event in enumerate(sent):
        event["id" if family == "openai-chat" else "responseId"] = f"made-up-{n // pieces}"
        for choice in event.get("choices", ()) if roles else ():
            choice["delta"]["role"] = "assistant"
    response = fed(family, *sent)
    assert (response.content, calls(response)) == ("the first answer", [("delete", {"path": "/"})])
