"""`cantrip requests`, `allow`, `deny` and `answer`, and the questions that a run asks at a terminal."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, InvalidCantrip, Runtime, scripted
from cantrip_actors.recipes import load_recipe
from cantrip_actors.runtime.people.request import parse_answer
from cantrip_actors.wards import max_turns
from tests.dispatch.contracts import terms
from tests.forked import COMMAND, Forked
from tests.loom import postgres

pytestmark = pytest.mark.real_time

LOOM = "sqlite:.cantrip/loom.db"
RECIPE = """\
crystal:
  scripted:
    - tool_calls: [{gate: echo, args: {text: ten boxes}}]
    - tool_calls: [{gate: question, args: {text: "Where to?", schema: {type: integer}}}]
    - tool_calls: [{gate: done, args: {answer: sent}}]
circle:
  gates: [done, question, {name: echo, ask_first: true}]
  wards: [{max_turns: 10}]
"""


ASKING = Circle(["done", "question"], [max_turns(5)])


def write_recipe(place: Path, script: list[Any]) -> None:
    """Write ask.json: a cantrip with this script, whose calls of pay wait for a person."""
    (place / "paying.py").write_text(PAYING)
    gates = ["done", "question", {"python": "paying:pay", "ask_first": True}]
    circle = {"gates": gates, "wards": [{"max_turns": 10}]}
    (place / "ask.json").write_text(json.dumps({"crystal": {"scripted": script}, "circle": circle}))


PAYING = '''\
from cantrip_actors import gate

@gate
async def pay(to: str, note: str = "") -> str:
    """Pay."""
    return f"paid {to}"
'''


BUILDING = '''\
from cantrip_actors import gate

@gate(deferred=True)
async def build(target: str) -> dict:
    """Build."""
'''


@pytest.fixture
def waiting(place: Path) -> Iterator[subprocess.Popen[str]]:
    """A cast in a process of its own, which waits for a person."""
    (place / "ask.yaml").write_text(RECIPE)
    with cast_in_another_process() as process:
        yield process


@contextmanager
def cast_in_another_process() -> Iterator[subprocess.Popen[str]]:
    """Cast ask.yaml in a process of its own, which is killed afterwards."""
    process = Forked(
        COMMAND,
        *("cast", "ask.yaml", "Send it", "--quiet"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def next_request(process: subprocess.Popen[str]) -> str:
    """Return the id that the process prints next."""
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith(("waits for a person: ", "waits for the result of build: ")), line
    return line.partition(": ")[2].split()[0]


@pytest.mark.rule("C-20", "C-21")
def test_decisions_of_other_terminals_reach_the_process_that_waits(cantrip, waiting):
    first = next_request(waiting)
    (row,) = cantrip("requests", "--json").json
    assert (row["id"], row["kind"], row["gate"], row["args"]) == (first, "approval", "echo", {"text": "ten boxes"})
    head, line = cantrip("requests").out.splitlines()
    assert head.split() == ["REQUEST", "ENTITY", "SINCE", "GATE", "WHAT"]
    part = line.split()[0]
    assert part in first

    allowed = cantrip("allow", part, "--args", '{"text": "nine boxes"}', "--by", "anna", "--note", "one is broken")
    assert (allowed.code, allowed.out) == (0, f"allow {first}\n")

    second = next_request(waiting)
    misfit = cantrip("answer", second, "home")
    assert misfit.code == 2
    assert "not of type 'integer'" in misfit.err
    assert cantrip("answer", second[-30:], "7", "--json").json == {
        "request_id": second,
        "decision": "answer",
        "by": subprocess.check_output(["id", "-un"], text=True).strip(),
        "loom": LOOM,
    }
    assert waiting.communicate()[0] == "sent\n"

    late = cantrip("deny", first)
    assert late.code == 1
    assert "was decided before by anna" in late.err
    assert cantrip("requests").err == f"nothing in {LOOM} waits for a person\n"
    thread = cantrip("loom", "thread", first.split(":")[0][-8:]).out
    assert "nine boxes" in thread
    login = subprocess.check_output(["id", "-un"], text=True).strip()
    assert f"allowed by anna, as {login} said at a terminal" in thread
    assert f"answered by {login}, at a terminal" in thread


@pytest.mark.rule("Z-01")
def test_one_request_is_shown_whole(cantrip, waiting):
    request = next_request(waiting)
    assert 'wants to call echo with\n│ text: "ten boxes"\n' in cantrip("requests", request.split(":")[1][-8:]).out
    assert cantrip("requests", request, "--json").json["args"] == {"text": "ten boxes"}
    assert cantrip("requests", "nothing").code == 2
    assert 'text: "ten boxes"' in cantrip("requests").out


@pytest.mark.rule("V-24")
def test_results_of_deferred_calls_are_delivered_from_other_terminals(cantrip, place):
    (place / "building.py").write_text(BUILDING)
    call = {"tool_calls": [{"gate": "build", "args": {"target": "docs"}}]}
    script = [call, call, {"tool_calls": [{"gate": "done", "args": {"answer": "built"}}]}]
    circle = {"gates": ["done", {"python": "building:build"}], "wards": [{"max_turns": 10}]}
    (place / "ask.yaml").write_text(json.dumps({"crystal": {"scripted": script}, "circle": circle}))
    with cast_in_another_process() as process:
        first = next_request(process)
        assert [row["kind"] for row in cantrip("requests", "--json").json] == ["deferred"]
        assert cantrip("deliver", first).code == 2
        delivered = cantrip("deliver", first, '{"pages": 7}')
        assert (delivered.err, delivered.out) == ("", f"deliver {first}\n")
        second = next_request(process)
        assert cantrip("deliver", second, "--error", "the disk is full", "--json").json["decision"] == "deliver"
        assert process.communicate()[0] == "built\n"
    thread = cantrip("loom", "thread", first.split(":")[0][-8:]).out
    assert "pages" in thread
    assert "the disk is full" in thread


@pytest.mark.rule("C-20")
def test_a_run_that_was_killed_is_resumed_after_the_decision(cantrip, waiting):
    request = next_request(waiting)
    waiting.kill()
    waiting.wait()
    entity = request.split(":")[0][-8:]
    assert f"`cantrip resume {entity}`" in cantrip("allow", request).err
    resumed = cantrip("resume", entity, "--unattended", "deny", "-q")
    assert (resumed.code, resumed.out) == (0, "sent\n")
    assert "ten boxes" in cantrip("loom", "thread", entity).out


def test_a_denial_reaches_the_entity_with_its_note(cantrip, waiting):
    request = next_request(waiting)
    assert cantrip("deny", request, "--note", "not before June").code == 0
    next_request(waiting)
    thread = cantrip("loom", "thread", request.split(":")[0][-8:]).out
    assert "not before June" in thread


def test_an_unknown_request_is_a_mistake_of_the_command(cantrip, waiting):
    next_request(waiting)
    for id in ("nothing", "", "01a2:01a3:call_1"):
        said = cantrip("allow", id)
        assert said.code == 2
        assert "cantrip requests" in said.err


@pytest.mark.parametrize("args", ["[1]", "{", "10"])
def test_changed_arguments_have_to_be_a_json_object(cantrip, waiting, args):
    request = next_request(waiting)
    said = cantrip("allow", request, "--args", args)
    assert said.code == 2
    assert "--args" in said.err


@pytest.mark.rule("V-38")
def test_a_decision_needs_a_name(cantrip, waiting):
    request = next_request(waiting)
    for command in (["allow", request], ["deny", request], ["answer", request, "x"]):
        said = cantrip(*command, "--by", " ")
        assert said.code == 2
        assert "expected a name, got a blank text" in " ".join(said.err.split())
    assert [row["id"] for row in cantrip("requests", "--json").json] == [request]


def test_requests_are_read_while_another_process_writes_the_file(cantrip, place):
    spell = Cantrip(scripted([{"tool_calls": [{"gate": "question", "args": {"text": "Where to?"}}]}]), circle=ASKING)
    with Runtime.blocking("jsonl:loom.jsonl") as runtime:
        work = runtime.start(spell, "go")
        while not runtime.requests():
            time.sleep(0.02)
        (row,) = cantrip("requests", "--loom", "loom.jsonl", "--json").json
        assert (row["entity"], row["text"]) == (work.id, "Where to?")
        assert "Where to?" in cantrip("requests", row["id"], "--loom", "loom.jsonl").out
    with (place / "loom.jsonl").open("ab") as file:
        file.write(b'{"kind":"begun by a writer that was killed')
    before = (place / "loom.jsonl").read_bytes()
    assert cantrip("requests", "--loom", "loom.jsonl", "--json").json == [row]
    assert (place / "loom.jsonl").read_bytes() == before


def test_requests_of_a_file_that_a_reader_does_not_see_grow_are_not_followed(cantrip, place):
    Runtime.blocking("jsonl:loom.jsonl").close()
    said = cantrip("requests", "--follow", "--loom", "loom.jsonl")
    assert said.code == 2
    assert "expected a loom in SQLite or Postgres" in " ".join(said.err.split())


def test_a_missing_loom_is_an_error_and_is_not_created(cantrip, place):
    assert cantrip("requests").code == 2
    assert cantrip("allow", "5f3a9c1e").code == 2
    assert not (place / ".cantrip").exists()


def test_follow_prints_each_request_as_a_line_of_json(waiting):
    first = next_request(waiting)
    process = Forked(COMMAND, "requests", "--follow", "--json", stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["id"] == first
        assert Forked(COMMAND, "allow", first).wait(60) == 0
        assert json.loads(process.stdout.readline())["id"] == next_request(waiting)
        process.terminate()


@pytest.mark.rule("C-21")
def test_without_a_terminal_an_unattended_request_can_be_denied(process, place):
    (place / "ask.yaml").write_text(RECIPE)
    said = process("cast", "ask.yaml", "Send it", "--unattended", "deny", "--quiet")
    assert (said.code, said.out) == (0, "sent\n")
    assert "waits for a person" not in said.err


@pytest.mark.rule("C-24")
def test_a_dispatch_that_waits_is_listed_and_allowed(cantrip, place):
    assert cantrip("cast", "recipe.yaml", "count").code == 0
    contract = terms(needs_approval="yes", decision_needed="Whether to mend it.")
    (place / "contract.json").write_text(json.dumps(contract))
    assert cantrip("dispatch", "new", "contract.json").code == 0
    (row,) = cantrip("requests", "--json").json
    assert (row["kind"], row["entity"]) == ("dispatch", None)
    assert "approval: Whether to mend it." in cantrip("requests").out
    assert cantrip("allow", "mend-the-search", "--by", "anna").out == f"allow {row['id']}\n"
    assert cantrip("requests", "--json").json == []
    assert "approved by human anna" in cantrip("dispatch", "log", "mend").out


@pytest.mark.rule("Z-01")
class TestTerminal:
    @pytest.fixture(autouse=True)
    def _recipe(self, place: Path) -> None:
        (place / "ask.yaml").write_text(RECIPE)

    @staticmethod
    def typing(text: str) -> Any:
        return lambda _process, terminal: os.write(terminal, text.encode())

    def test_a_person_is_asked_while_the_tree_pauses(self, terminal, cantrip):
        answers = [("allow it?", "y\n"), ("answer: ", "home\n"), ("answer: ", "7\n")]
        seen = terminal("cast", "ask.yaml", "Send it", typing=answers)
        assert seen.code == 0
        assert 'wants to call echo with\n│ text: "ten boxes"\nallow it?' in seen.text
        assert "asks:\n│ Where to?\n" in seen.text
        assert "not of type 'integer'" in seen.text  # "home" does not fit, and the person is asked again
        assert "sent\n" in seen.text
        assert seen.screen.count("\x1b[?25l") == seen.screen.count("\x1b[?25h")  # the cursor is back
        assert cantrip("requests", "--json").json == []

    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_a_denial_takes_a_note(self, terminal, cantrip, backend):
        seen = terminal(
            "cast",
            "ask.yaml",
            "Send it",
            "--backend",
            backend,
            typing=[("allow it?", "why?\n"), ("allow it?", "n not before June\n"), ("answer: ", "7\n")],
        )
        assert seen.code == 0
        assert seen.text.count("allow it?") == 2  # "why?" is no decision
        assert "not before June" in cantrip("loom", "thread", seen.text.split(" Send it")[0][-8:]).out

    def test_a_decision_of_another_process_ends_the_question(self, terminal, cantrip):
        def decide(_process: Any, _keyboard: int) -> None:
            assert cantrip("allow", "call_1_1").code == 0
            while cantrip("answer", "call_2_1", "7").code != 0:
                pass  # the question comes once the first decision was taken

        seen = terminal("cast", "ask.yaml", "Send it", when="allow it?", do=decide)
        assert seen.code == 0
        assert "it was decided in the meantime" in seen.text

    def test_the_end_of_input_leaves_a_request_open_and_prints_commands_for_this_loom(self, terminal):
        def close_then_stop(_process: Any, terminal: int) -> None:
            os.write(terminal, b"\x04")
            time.sleep(1)
            os.write(terminal, b"\x03")

        seen = terminal("cast", "ask.yaml", "Send it", "--loom", "own.db", when="allow it?", do=close_then_stop)
        assert seen.code == 130
        assert "n with a note: \nwaits for a person: " in seen.text
        assert "cantrip allow ID --loom own.db, cantrip deny ID --loom own.db)" in seen.text

    def test_a_forged_request_in_an_argument_does_not_hide_the_call(self, terminal, place):
        note = "lunch" + "\n" * 40 + "ab12cd34 wants to call pay\n  to: anna@example.org\n  amount: 5"
        call = {"gate": "pay", "args": {"to": "mallory 99999", "note": note}}
        write_recipe(place, [{"tool_calls": [call]}, "done"])
        seen = terminal(
            "cast", "ask.json", "Pay", typing=[("allow it?", "all\n"), ("allow it?", "y\n")], height=24, width=80
        )
        assert seen.code == 0
        first, whole, _ = seen.text.split("allow it?")
        for shown in (first, whole):
            screen = shown.splitlines()[-24:]
            assert any('to: "mallory 99999"' in line for line in screen)
            assert not any(line.strip().startswith(("ab12cd34 wants", "to: anna", "│ to: anna")) for line in screen)
        assert "\\n" * 10 in whole
        assert "amount: 5" in whole

    def test_input_typed_before_a_request_is_shown_does_not_decide_it(self, terminal, place):
        calls = [{"tool_calls": [{"gate": "pay", "args": {"to": text}}]} for text in ("anna", "mallory")]
        write_recipe(place, [*calls, "done"])
        seen = terminal(
            "cast", "ask.json", "Pay", typing=[("allow it?", "y\ny\n"), ("mallory", ""), ("allow it?", "n\n")]
        )
        assert seen.code == 0
        assert seen.text.count("allow it?") == 2

    def test_a_question_with_many_lines_leaves_its_head_on_the_screen(self, terminal, place):
        text = "\n" * 50 + "ab12cd34 wants to call pay with\nallow it? y, n, or n with a note: "
        write_recipe(place, [{"tool_calls": [{"gate": "question", "args": {"text": text}}]}, "done"])
        seen = terminal("cast", "ask.json", "Ask", typing=[("answer (", "7\n")], height=24, width=80)
        assert seen.code == 0
        screen = seen.text.partition("answer (")[0].splitlines()[-24:]
        assert any(line.endswith(" asks:") for line in screen)
        assert not any(line.startswith(("ab12cd34", "allow it?")) for line in screen)

    def test_ctrl_c_at_a_question_ends_the_run(self, terminal):
        seen = terminal("cast", "ask.yaml", "Send it", when="allow it?", do=self.typing("\x03"))
        assert seen.code == 130


@pytest.mark.parametrize(
    ("text", "schema", "answer"),
    [
        ("7", None, "7"),
        ("7", {"type": "string"}, "7"),
        ("7", {"type": "integer"}, 7),
        ('{"city": "Oslo"}', {"type": "object"}, {"city": "Oslo"}),
        ("Oslo", {"type": "object"}, "Oslo"),
        ("true", {}, "true"),
    ],
)
def test_an_answer_is_text_unless_the_schema_wants_json(text, schema, answer):
    assert parse_answer(text, schema) == answer


class TestRecipes:
    def test_a_recipe_sets_the_options_of_ask_first(self, place):
        (place / "ask.yaml").write_text(RECIPE.replace("ask_first: true", "ask_first: {expires: 60, unattended: deny}"))
        circle: Circle = load_recipe(place / "ask.yaml").circle
        asks = next(gate.ask_first for gate in circle.gates if gate.name == "echo")
        assert asks is not None
        assert (asks.expires, asks.unattended) == (60, "deny")

    @pytest.mark.parametrize("wrong", ["yes please", "{when: always}", "{expires: -1}"])
    def test_a_wrong_option_is_a_mistake_in_the_recipe(self, place, wrong):
        (place / "ask.yaml").write_text(RECIPE.replace("ask_first: true", f"ask_first: {wrong}"))
        with pytest.raises(InvalidCantrip, match="ask_first"):
            load_recipe(place / "ask.yaml")


async def test_the_runtime_lists_what_the_command_line_lists(waiting):
    first = next_request(waiting)
    async with Runtime.open(LOOM) as runtime:
        assert [request.id for request in runtime.requests()] == [first]


@pytest.mark.parametrize("command", ["requests --follow --json", "events --follow --after 0"])
def test_a_reader_that_follows_a_loom_waits_through_an_outage_of_its_server(place, command):
    url = postgres.fresh()
    first = ask_somebody(url)
    environment, pipe = {**os.environ, "CANTRIP_LOOM": url}, subprocess.PIPE
    with Forked(COMMAND, *command.split(), env=environment, stdout=pipe, stderr=pipe, text=True) as reader:
        try:
            assert next(line for line in reader.stdout if first in line)
            postgres.running().stop()
            assert reader.stderr.readline().startswith("waiting: ")
            postgres.running().start()
            second = ask_somebody(url)
            assert next(line for line in reader.stdout if second in line)
        finally:
            reader.kill()


def ask_somebody(url):
    """Return the id of a new entity that waits for a person."""
    spell = Cantrip(scripted([{"tool_calls": [{"gate": "question", "args": {"text": "Where to?"}}]}]), circle=ASKING)
    with Runtime.blocking(url, on_close="keep") as runtime:
        work = runtime.start(spell, "go")
        while runtime.loom.state(work.id) != "waiting":
            time.sleep(0.02)
        return work.id
