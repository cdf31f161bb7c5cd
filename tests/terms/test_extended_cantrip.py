"""An offered cantrip with the additions of a client is the same in each process: made for a request, or of a log."""

import json
import subprocess
import sys
from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, gate, scripted
from cantrip_actors.terms.additions import NO_ADDITIONS, AddedTool, Additions, read_additions
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.extended_cantrip import extend, find_additions
from cantrip_actors.wards import max_turns

pytestmark = pytest.mark.rule("W-20")

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORM = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
TOOL = AddedTool("weather", CITY, "The weather.")


@gate(deferred=True)
async def locate() -> str:
    """Ask the page where it is."""


def offered(**more: Any) -> Cantrip:
    return Cantrip(scripted(["hi"]), circle=Circle(["done", locate], [max_turns(9)]), name="desk", **more)


@pytest.mark.parametrize(
    "additions",
    [
        NO_ADDITIONS,
        Additions((TOOL,)),
        Additions((TOOL, AddedTool("other", {"type": "object"})), must_call=True),
        Additions(done=FORM),
        Additions((TOOL,), FORM),
    ],
)
def test_the_circle_of_a_log_makes_the_cantrip_of_a_request_again(additions: Additions) -> None:
    first = extend(offered(), additions)
    recorded = json.loads(json.dumps([first.circle.as_json(), first.call.as_json()], default=dict))
    again = find_additions(offered(), *recorded)
    assert again == additions
    assert extend(offered(), again).id == first.id
    assert (first.id == offered().id) == (not additions)
    assert first.offered.id == offered().id


def test_a_client_replaces_neither_a_gate_nor_the_form_of_answer_of_the_cantrip() -> None:
    typed = offered(answer=int)
    assert extend(typed, Additions((AddedTool("locate", CITY),), FORM)).id == typed.id


@pytest.mark.parametrize("data", [7, {"tools": 7}, {"tools": [{"name": "x"}]}, {"done": "x"}])
def test_additions_of_another_version_are_refused(data: object) -> None:
    with pytest.raises(InvalidCantrip, match="additions to the cantrip cannot be read"):
        read_additions(data)


def test_a_tool_becomes_a_gate_without_the_imports_of_its_checks() -> None:
    code = (
        "import sys; from cantrip_actors.terms.additions import AddedTool; "
        f"AddedTool('weather', {CITY!r}).make_gate(); print('jsonschema' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "False"
