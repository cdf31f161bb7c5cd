"""Values and errors in other hands: copied, pickled for another process, or fields of users' own models."""

import copy
import pickle
from dataclasses import asdict

import pytest
from pydantic import BaseModel, ConfigDict

from cantrip_actors import (
    AllowanceSpent,
    Call,
    Cantrip,
    CantripError,
    Circle,
    Message,
    ProviderError,
    UnknownEntity,
    Usage,
    gate,
    scripted,
)
from cantrip_actors.terms.errors import (
    AlreadyDecided,
    AskCycle,
    CantripUnknown,
    EntityInterrupted,
    Truncated,
    Unavailable,
    UnfinishedWork,
    Withdrawn,
)
from supervisors import SpecError

ERRORS = [
    ProviderError("no answer", status=500, retry_after=2.0, usage=Usage(1, 2)),
    UnknownEntity("desk"),
    AskCycle(["a", "b"]),
    AlreadyDecided("r", "allow", "anna", "2026-11-30", ""),
    AllowanceSpent("anna", None, 1.0, "day", 3.0),
    CantripUnknown("unknown", entity_id="e", cantrip_id="c", cantrip_name=None, offered=[]),
    Truncated("e", "truncated", "max_turns", "so far"),
    Unavailable("the database is away", retry_after=3.0),
    Withdrawn("e", "k", "anna", "not needed"),
    EntityInterrupted("e"),
    UnfinishedWork("e"),
    SpecError("name", "expected a text"),
]


@gate
def pay(amount: int, ledger: object = None) -> str:
    """Pay."""
    return "paid"


CANTRIP = Cantrip(
    scripted([]), call=Call(system_prompt="Be brief.", options={"user": {"id": 1}}), gates=[pay], max_turns=3
)


@pytest.mark.rule("D-011")
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_reaches_another_process_with_its_text_and_its_attributes(error):
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.__dict__ == error.__dict__


class Late(CantripError):
    """An error of a user with a constructor that takes other arguments than the text."""

    def __init__(self, order: int, days: int) -> None:
        super().__init__(f"order {order} is {days} days late")
        self.days = days


@pytest.mark.rule("D-011")
def test_an_error_of_a_users_own_class_reaches_another_process():
    again = pickle.loads(pickle.dumps(Late(7, 2)))
    assert (str(again), again.days) == ("order 7 is 2 days late", 2)


@pytest.mark.rule("CANTRIP-2")
@pytest.mark.parametrize("value", [CANTRIP, CANTRIP.call, CANTRIP.circle, pay], ids=lambda value: type(value).__name__)
def test_a_copy_of_a_value_that_never_changes_is_that_value(value):
    assert copy.copy(value) is value
    assert copy.deepcopy({"agents": [value]})["agents"][0] is value


@pytest.mark.rule("CANTRIP-2")
def test_cantrips_and_calls_are_defaults_of_users_own_settings():
    class Settings(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        agent: Cantrip = CANTRIP
        call: Call = CANTRIP.call
        circle: Circle | None = None

    settings = Settings(circle=CANTRIP.circle)
    assert settings.agent is CANTRIP
    assert settings.call is CANTRIP.call
    assert settings.circle is CANTRIP.circle


@pytest.mark.rule("LOOM-9")
def test_usage_and_messages_are_fields_of_the_models_of_a_web_service():
    class Reply(BaseModel):
        text: str
        usage: Usage
        history: list[Message]

    usage, message = Usage(10, 2, cost=0.5), Message("user", "Hello.")
    reply = Reply(text="Hi.", usage=usage, history=[message])
    assert reply.usage is usage
    assert reply.model_dump()["usage"] == asdict(usage)
    assert '"cost":0.5' in reply.model_dump_json()
    schema = Reply.model_json_schema(mode="serialization")["properties"]["usage"]
    assert "prompt_tokens" in schema["properties"]
