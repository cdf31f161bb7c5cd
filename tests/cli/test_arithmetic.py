"""`cantrip arithmetic`: what it prints, what it refuses, and how it ends."""

import contextlib
import json

import anyio
import pytest

from cantrip_actors import Runtime
from cantrip_actors.agentic import AgentExhausted
from cantrip_actors.crystals import local as crystal_at
from cantrip_demos.arithmetic import ArithmeticTask, make_agent_dispatcher, make_tool_registry, run
from cantrip_demos.local import serving
from tests.cli.test_demo_local import MODEL, real


def answers(place, *texts):
    """A crystal in a file that says these texts."""
    (place / "model.json").write_text(json.dumps([{"content": text} for text in texts]))
    return ["--crystal", "scripted:model.json"]


PLAN = '{"task":{"op":"ADD","a":2,"b":3},"worker_id":"worker_addsub"}'
ACCEPT = '{"decision":"ACCEPT"}'


class TestAnswers:
    @pytest.mark.parametrize(
        ("text", "answer"),
        [
            ("12 * 7", "84"),
            ("12x7", "84"),
            ("12 × 7", "84"),
            ("-3 - -4", "1"),
            ("-3-4", "-7"),
            ("1_000 + 1", "1001"),
            (f"{10**40} * {10**40}", str(10**80)),
        ],
    )
    @pytest.mark.rule("A-03")
    def test_the_number_alone_is_on_standard_output(self, cantrip, text, answer):
        said = cantrip("arithmetic", text)
        assert (said.code, said.out) == (0, f"{answer}\n")

    def test_the_steps_are_shown_as_they_happen(self, cantrip):
        lines = cantrip("arithmetic", "12 * 7").err.splitlines()
        told = [line.partition(" says: ")[2] for line in lines if " says: " in line]
        assert [line.split('"')[3] for line in told] == ["PLAN", "WORK", "CRITIC"]

    def test_quiet_prints_only_the_loom(self, cantrip):
        said = cantrip("arithmetic", "12 * 7", "--quiet")
        assert said.out == "84\n"
        assert said.err.splitlines()[0].startswith("loom: ")

    def test_json_has_the_response_and_its_trace(self, cantrip):
        said = cantrip("arithmetic", f"{10**30} - 1", "--json").json
        assert said["result"]["worker_output"]["result"]["value"] == 10**30 - 1
        assert [entry["state"] for entry in said["trace"]] == ["PLAN", "WORK", "CRITIC", "END"]
        assert said["checked"]["decision"] == "ACCEPT"

    def test_arithmetic_runs_on_trio_and_records_its_turns_in_the_loom(self, cantrip):
        assert cantrip("arithmetic", "2 + 3", "--backend", "trio").out == "5\n"
        (tree,) = cantrip("loom", "tree", "--json").json
        assert len(tree["turns"]) == 3


class TestMistakes:
    @pytest.mark.parametrize("text", ["", "1 / 2", "1.5 + 2", "twelve", "1 + 2 + 3", "9" * 2001 + " * 2"])
    def test_text_that_is_not_a_task_is_rejected_with_an_error_message(self, cantrip, text):
        said = cantrip("arithmetic", text)
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith("error: expected ")

    @pytest.mark.parametrize("options", [["--local", "--crystal", "x:y"], ["--model", "x.gguf"], ["--attempts", "-1"]])
    def test_contradicting_options_are_rejected(self, cantrip, options):
        assert cantrip("arithmetic", "1 + 1", *options).code == 2

    def test_an_unknown_crystal_is_rejected(self, cantrip):
        said = cantrip("arithmetic", "1 + 1", "--crystal", "nowhere:x")
        assert said.code == 1
        assert 'no crystal family "nowhere"' in said.err
        assert "Traceback" not in said.err


class TestCrystals:
    def test_a_single_crystal_plays_every_role(self, cantrip, place):
        said = cantrip("arithmetic", "2 + 3", *answers(place, PLAN, '{"result":{"value":5}}', ACCEPT))
        assert (said.code, said.out) == (0, "5\n")

    def test_a_result_that_the_critic_rejects_is_not_an_answer(self, cantrip, place):
        no = '{"decision":"REJECT","feedback":{"kind":"OTHER","message":"ugly"}}'
        said = cantrip("arithmetic", "2 + 3", *answers(place, PLAN, '{"result":{"value":5}}', no))
        assert (said.code, said.out) == (1, "")
        assert "rejected: OTHER: ugly (worker_addsub said 5)" in said.err

    def test_a_wrong_result_that_the_critic_accepts_is_not_an_answer(self, cantrip, place):
        script = answers(place, PLAN, '{"result":{"value":32}}', ACCEPT)
        said = cantrip("arithmetic", "2 + 3", *script)
        assert (said.code, said.out) == (1, "")
        assert "wrong, although its critic accepts it: MATH_ERROR: ADD 2 3 is 5, not 32" in said.err
        answers(place, PLAN, '{"result":{"value":32}}', ACCEPT)
        assert cantrip("arithmetic", "2 + 3", *script, "--json").json["checked"]["decision"] == "REJECT"

    def test_a_crystal_that_follows_no_schema_ends_with_an_error_message(self, cantrip, place):
        said = cantrip("arithmetic", "2 + 3", *answers(place, PLAN, "five", "5", "{}"))
        assert (said.code, said.out) == (1, "")
        assert "Agent 'worker_addsub' failed after 3" in said.err
        assert "Last raw payload: {}" in said.err
        assert "Traceback" not in said.err
        assert "the turns that it recorded: cantrip loom thread" in said.err

    def test_a_crystal_that_follows_no_schema_ends_with_a_json_error(self, cantrip, place):
        said = cantrip("arithmetic", "2 + 3", *answers(place, "no", "no"), "--attempts", "2", "--json")
        assert said.code == 1
        assert said.json["error"]["type"] == "ControllerFailed"


@real
@pytest.mark.real_time
def test_a_real_model_plays_the_worker_and_any_answer_leads_to_an_outcome():
    async def main(address):
        dispatcher = make_agent_dispatcher(worker=crystal_at(address, MODEL.stem), max_retries=1)
        async with Runtime.open("memory:") as runtime:
            task = ArithmeticTask(op="ADD", a=2, b=3)
            with contextlib.suppress(AgentExhausted, RuntimeError):
                response = await run(task, dispatcher=dispatcher, tool_registry=make_tool_registry(), runtime=runtime)
                assert isinstance(response.worker_output.result.value, int)
            (header,) = runtime.loom.headers()
            assert runtime.loom.state(header.entity_id) in {"terminated", "failed"}

    with serving(MODEL) as address:  # one backend will do: it takes seconds
        anyio.run(main, address)
