"""The runner: every wrong statement and every unknown key of a case is a failure."""

import copy
import json
import subprocess
from pathlib import Path

import pytest
import yaml

from conformance.cases import NoSuite, read_suite
from conformance.run import run_case
from tests.forked import CONFORMANCE, Forked

ROOT = Path(__file__).parent.parent.parent

# A case that says something of everything there is, and is right.
RIGHT = yaml.safe_load("""
rule: TEST-1
name: a parent, a child, an error and a fork
setup:
  crystal:
    responses:
      - content: "first words"
        tool_calls: [{ id: c1, gate: broken, args: { n: 1 } }, { id: c2, gate: echo, args: { text: "heard" } }]
        usage: { prompt_tokens: 10, completion_tokens: 2 }
      - tool_calls: [{ id: c3, gate: done, args: { answer: "the end" } }]
        usage: { prompt_tokens: 20, completion_tokens: 3, cached_tokens: 5 }
    name: main
  circle:
    gates: [done, echo, { name: broken, behavior: throw, error: "snapped" }]
    wards: [{ max_turns: 5 }]
  call: { system_prompt: "Be brief.", tool_choice: required }
action: { cast: { intent: "say something" } }
expect:
  result: "the end"
  result_contains: "end"
  results: ["the end"]
  terminated: true
  truncated: false
  ward: null
  turns: 2
  entities: 1
  threads: 1
  thread: [{ role: entity }, { role: circle }, { role: entity }, { role: circle }]
  thread_0: { turns: 2, length: 2, result: "the end", terminated: true, truncated: false, last_turn: { sequence: 2 } }
  gate_calls_executed: [broken, echo, done]
  gate_call_order: [broken, echo, done]
  usage: { prompt_tokens: 30, completion_tokens: 5, cached_tokens: 5, total_tokens: 35 }
  cumulative_usage: { total_tokens: 35 }
  subtree_usage: { total_tokens: 35 }
  crystal_received_tools: [{ name: done }, { name: echo }, { name: broken }]
  crystal_received_tool_choice: required
  crystal_invocations: 2
  turn_1_observation: { is_error: true, content_contains: "heard" }
  turn_1_observations:
    - { gate: broken, args: { n: 1 }, is_error: true, content_contains: "snapped", tool_call_id: c1 }
    - { gate: echo, result: "heard", content: "heard", is_error: false, tool_call_id: c2 }
  call: { system_prompt: "Be brief." }
  elapsed_ms: 0
  loom:
    turn_count: 2
    threads: 1
    turns:
      - id: not_null
        parent_id: null
        entity_id: the_one
        sequence: 1
        utterance_contains: "first words"
        content: "first words"
        tool_calls: [{ id: c1 }, { id: c2 }]
        observation_contains: "heard"
        gate_calls: [broken, echo]
        terminated: false
        truncated: false
        reward: null
        continues: false
        metadata:
          tokens_prompt: 10
          tokens_completion: 2
          tokens_cached: 0
          duration_ms: greater_than(0)
          timestamp: not_null
      - { parent_id: "turns[0].id", entity_id: the_one, terminated: true }
    entities:
      - entity_id: the_one
        parent_entity: null
        call: { system_prompt: "Be brief." }
        crystal: main
        gates: [done, echo, broken]
        wards: { max_turns: 5 }
        depth: 0
        forked: false
        state: terminated
        turn_count: 2
""")

# Each of these makes one statement wrong: its position in `expect`, and the wrong value.
WRONG = [
    ("result", "the End"),
    ("result", "end"),
    ("result_contains", "beginning"),
    ("results", ["the end", "the end"]),
    ("terminated", False),
    ("terminated", 1),
    ("truncated", True),
    ("ward", "max_turns"),
    ("turns", 1),
    ("turns", 3),
    ("turns", "2"),
    ("entities", 2),
    ("entity_ids_unique", True),
    ("threads", 2),
    ("threads_alike", True),
    ("thread", [{"role": "entity"}, {"role": "circle"}]),
    ("thread", [{"role": "entity"}, {"role": "entity"}, {"role": "circle"}, {"role": "circle"}]),
    ("thread_0.turns", 1),
    ("thread_0.length", 3),
    ("thread_0.result", "other"),
    ("thread_0.terminated", False),
    ("thread_0.truncated", True),
    ("thread_0.last_turn.sequence", 1),
    ("thread_1", {"turns": 2}),
    ("gate_calls_executed", ["broken", "done"]),
    ("gate_calls_executed", ["broken", "echo", "done", "echo"]),
    ("gate_call_order", ["echo", "broken", "done"]),
    ("gate_results", ["heard", "the end"]),
    ("usage.prompt_tokens", 29),
    ("usage.completion_tokens", 6),
    ("usage.cached_tokens", 0),
    ("usage.total_tokens", 30),
    ("cumulative_usage.total_tokens", 36),
    ("subtree_usage.total_tokens", 36),
    ("crystal_received_tools", [{"name": "done"}, {"name": "echo"}]),
    ("crystal_received_tools", [{"name": "echo"}, {"name": "done"}, {"name": "broken"}]),
    ("crystal_received_tool_choice", "auto"),
    ("crystal_invocations", 1),
    ("crystal_invocations", 3),
    ("crystal_invocations", [{}, {}, {}]),
    ("crystal_invocations", [{"message_count": 1}]),
    ("crystal_invocations", [{"first_message": {"role": "user"}}]),
    ("crystal_invocations", [{"messages": [{"role": "system", "content": "Be brief."}]}]),
    ("crystal_invocations", [{}, {"messages_include": "never said"}]),
    ("crystal_invocations", [{}, {"messages_exclude": "heard"}]),
    ("crystal_invocations", [{}, {"message_count_includes": "never said"}]),
    ("crystal_invocations", [{}, {"message_count_excludes": "heard"}]),
    ("crystal_invocations", [{}, {"messages_include": '"n"'}]),  # only in the arguments that the crystal made itself
    ("crystal_invocations", [{}, {"messages_exclude": '"n":1'}]),  # there it is, in those arguments
    ("crystal_invocations", {"count": 3}),
    ("crystal_invocations", {"each": {"message_count": 2}}),
    ("crystal_invocations", {"last": {"roles": ["system", "user"]}}),
    ("crystal_invocations", {"first": {"tool_choice": "auto"}}),
    ("crystal_invocations", {"first": {"tools": ["done"]}}),
    ("crystal_invocations", {"list": [{}]}),
    ("crystal_invocations", {"context_grows": False}),
    ("child_crystal_invocations", 0),
    ("turn_1_observation.is_error", False),
    ("turn_1_observation.content_contains", "unheard"),
    ("turn_1_observation.content", "heard"),
    ("turn_3_observation", {"is_error": False}),
    ("turn_1_observations", []),
    ("turn_2_observations", [{"result": "another end"}]),
    ("call.system_prompt", "Be long."),
    ("elapsed_ms", 1),
    ("elapsed_ms", "greater_than(0)"),
    ("summary_contains", "anything"),
    ("error", "anything"),
    ("loom.turn_count", 3),
    ("loom.threads", 2),
    ("loom.turns", [{}, {}, {}]),
    ("loom.turns.0.id", None),
    ("loom.turns.0.parent_id", "not_null"),
    ("loom.turns.0.parent_id", "turns[1].id"),
    ("loom.turns.1.parent_id", "turns[1].id"),
    ("loom.turns.1.parent_id", "turns[7].id"),
    ("loom.turns.1.parent_id", None),
    ("loom.turns.1.entity_id", "another"),
    ("loom.turns.0.sequence", 2),
    ("loom.turns.0.utterance_contains", "last words"),
    ("loom.turns.0.content", "last words"),
    ("loom.turns.0.tool_calls", [{"id": "c1"}]),
    ("loom.turns.0.observation_contains", "unheard"),
    ("loom.turns.0.gate_calls", ["broken"]),
    ("loom.turns.0.gate_calls", ["echo", "broken"]),
    ("loom.turns.0.terminated", True),
    ("loom.turns.1.terminated", False),
    ("loom.turns.0.truncated", None),
    ("loom.turns.0.reward", 0.0),
    ("loom.turns.0.reward", "not_null"),
    ("loom.turns.0.continues", True),
    ("loom.turns.0.metadata.tokens_prompt", 11),
    ("loom.turns.0.metadata.tokens_completion", 3),
    ("loom.turns.0.metadata.tokens_cached", 1),
    ("loom.turns.0.metadata.duration_ms", "greater_than(100000)"),
    ("loom.turns.0.metadata.duration_ms", "less_than(0)"),
    ("loom.turns.0.metadata.timestamp", None),
    ("loom.turns.0.metadata.timestamp", "matches(^yesterday)"),
    ("loom.entities", []),
    ("loom.entities.0.entity_id", "someone_else"),
    ("loom.entities.0.call.system_prompt", "Be long."),
    ("loom.entities.0.crystal", "child"),
    ("loom.entities.0.gates", ["done"]),
    ("loom.entities.0.wards", {"max_turns": 5, "max_depth": 1}),
    ("loom.entities.0.depth", 1),
    ("loom.entities.0.forked", True),
    ("loom.entities.0.state", "active"),
    ("loom.entities.0.turn_count", 1),
    ("loom.entities.0.parent_entity", "the_one"),
]

UNKNOWN = [
    ("expect.reslut", "x"),
    ("expect.loom.turn_cuont", 2),
    ("expect.loom.turns.0.obsrvation", "x"),
    ("expect.loom.turns.0.metadata.tokens", 1),
    ("expect.loom.entities.0.name_of_it", "x"),
    ("expect.thread_0.lengthh", 2),
    ("expect.thread_0.last_turn.reworded", True),
    ("expect.turn_1_observation.contents", "x"),
    ("expect.usage.prompt", 1),
    ("expect.crystal_invocations", [{"mesages": []}]),
    ("expect.crystal_invocations", {"all": {}}),
    ("expect.crystal_invocations", [{"messages": [{"rôle": "system"}, {}]}]),
    ("setup.cristal", {"responses": []}),
    ("setup.crystal.temperature", 1),
    ("setup.crystal.responses.0.tools", []),
    ("setup.crystal.responses.0.tool_calls.0.arguments", {}),
    ("setup.circle.gate", []),
    ("setup.circle.gates.2.behaviour", "throw"),
    ("setup.circle.gates.2.behavior", "explode"),
    ("setup.call.prompt", "x"),
    ("setup.folding", {"after": 3}),
    ("setup.retry", {"retries": 3}),
    ("action.cast.intents", "x"),
    ("action.then", {"frok": {}}),
    ("expected", {}),
]


def planted(place: str, value: object) -> dict:
    """The right case with `value` at `place`."""
    case = copy.deepcopy(RIGHT)
    here = case
    *path, last = place.split(".")
    for part in path:
        here = here[int(part)] if isinstance(here, list) else here.setdefault(part, {})
    if isinstance(here, list):
        here[int(last)] = value
    else:
        here[last] = value
    return case


@pytest.fixture
def verdict(tmp_path):
    """What the runner says of a case."""

    def judge(case: dict, *backends: str):
        file = tmp_path / "suite.yaml"
        file.write_text(json.dumps([case]), encoding="utf-8")  # JSON is YAML, and fast to write
        (read,) = read_suite(file)
        return run_case(read, backends or ("asyncio",))

    return judge


def test_the_right_case_passes_on_both_backends(verdict):
    judged = verdict(RIGHT, "asyncio", "trio")
    assert judged.problems == ()
    assert judged.status == "ok"


@pytest.mark.parametrize(("place", "value"), WRONG)
def test_a_wrong_statement_is_a_failure_that_names_it(verdict, place, value):
    judged = verdict(planted(f"expect.{place}", value))
    assert judged.status == "FAIL"
    assert place.partition(".")[0] in "\n".join(judged.problems)


@pytest.mark.parametrize(("place", "value"), UNKNOWN)
def test_an_unknown_key_is_a_failure_and_not_a_skip(verdict, place, value):
    judged = verdict(planted(place, value))
    assert judged.status == "FAIL"
    assert "know" in "\n".join(judged.problems) or "expected" in "\n".join(judged.problems)


def test_every_key_of_expect_is_tried_with_something_wrong():
    from conformance import facts

    tried = {place.partition(".")[0] for place, _ in WRONG}
    assert set(facts._STORY) <= tried | {"error", "threads_alike"}


FALLS_SILENT = yaml.safe_load("""
rule: TEST-2
name: the script ends before the entity does
setup:
  crystal: { responses: [{ tool_calls: [{ gate: echo, args: { text: "x" } }] }] }
  circle: { gates: [done, echo], wards: [{ max_turns: 5 }] }
action: { cast: { intent: "go on" } }
""")


def test_an_exhausted_script_does_not_fail_expectations_about_turns(verdict):
    case = {**FALLS_SILENT, "expect": {"turn_1_observation": {"content": "x"}}}
    assert verdict(case).status == "ok"


@pytest.mark.parametrize(
    "expect", [{"result": "x"}, {"terminated": True}, {"truncated": False}, {"usage": {"prompt_tokens": 0}}]
)
def test_an_exhausted_script_fails_expectations_about_the_ending(verdict, expect):
    judged = verdict({**FALLS_SILENT, "expect": expect})
    assert judged.status == "FAIL"
    assert "no response left" in judged.problems[0]


def test_an_error_that_the_case_does_not_state_is_a_failure(verdict):
    case = copy.deepcopy(RIGHT)
    case["setup"]["circle"]["wards"] = []
    case["expect"] = {"crystal_invocations": 0}
    judged = verdict(case)
    assert judged.status == "FAIL"
    assert "expected no error, got InvalidCantrip" in judged.problems[0]


def test_an_error_of_an_earlier_step_than_the_last_is_not_the_stated_one(verdict):
    case = copy.deepcopy(RIGHT)
    case["setup"]["circle"]["wards"] = []
    case["action"] = {"cast": {"intent": "x"}, "then": {"delete_turn": 0}}
    case["expect"] = {"error": "truncation ward"}
    assert "an earlier step raised it" in verdict(case).problems[0]


def test_passing_only_new_messages_to_a_stateless_crystal_is_a_failure(verdict):
    case = copy.deepcopy(RIGHT)
    case["setup"]["crystal"]["stateless"] = True
    case["setup"]["crystal"]["responses"][1:1] = [{"tool_calls": [{"gate": "echo", "args": {"text": "x"}}]}] * 3
    case["expect"] = {"terminated": True}
    assert verdict(case).status == "ok"
    case["setup"]["folding"] = {"trigger_after_turns": 1}  # a fold takes something away
    judged = verdict(case)
    assert judged.status == "FAIL"
    assert "stateless" in judged.problems[0]


def test_a_statement_about_one_entity_is_a_failure_when_there_are_two(verdict):
    case = copy.deepcopy(RIGHT)
    case["setup"]["crystal"]["responses"] *= 2
    case["action"] = [{"cast": {"intent": "one"}}, {"cast": {"intent": "two"}}]
    case["expect"] = {"result": "the end"}
    assert "use thread_0" in verdict(case).problems[0]
    case["expect"] = {
        "results": ["the end", "the end"],
        "entities": 2,
        "threads_alike": True,
        "entity_ids_unique": True,
    }
    assert verdict(case).status == "ok"


def test_a_case_that_states_nothing_or_does_nothing_is_a_failure(verdict):
    assert verdict({**RIGHT, "expect": {}}).status == "FAIL"
    assert verdict({key: value for key, value in RIGHT.items() if key != "action"}).status == "FAIL"


@pytest.mark.rule("V-40")
@pytest.mark.parametrize(
    "expect",
    [
        {"loom": {}},
        {"loom": "not_null"},
        {"loom": {"turns": []}},
        {"thread": {}},
        {"usage": {}},
        {"crystal_received": []},
        {"crystal_received": {"each": {}}},
        {"crystal_received": {"first": "not_null"}},
        {"crystal_received": {"last": {"messages_include": []}}},
        {"crystal_received": {"last": {"messages_exclude": []}}},
        {"result": {}},
        {"result": "matches()"},
        {"result": "matches(.*)"},
        {"result": "matches(^)"},
        {"result_contains": []},
        {"turn_1_observations": [{"content_contains": []}]},
    ],
    ids=str,
)
def test_a_statement_that_states_nothing_is_a_failure_that_names_it(verdict, expect):
    found = verdict({**RIGHT, "expect": {**RIGHT["expect"], **expect}})
    assert found.status == "FAIL"
    assert "states nothing" in str(found)


def test_text_and_skipped_cases_neither_pass_nor_fail(verdict):
    assert verdict({"rule": "TEST-3", "name": "only words"}).status == "text"
    assert verdict({"rule": "TEST-3", "name": "proven elsewhere", "skip": True}).status == "skip"
    assert verdict({**RIGHT, "skip": True}).status == "FAIL"


def test_a_crash_of_the_product_is_the_failure_of_its_case(verdict, monkeypatch):
    from conformance.acts import Acts

    async def crash(self: Acts, action: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Acts, "play", crash)
    judged = verdict(RIGHT)
    assert judged.status == "FAIL"
    assert "crashed with ZeroDivisionError: a bug" in judged.problems[0]


def test_an_unknown_medium_is_a_failure(verdict):
    case = copy.deepcopy(RIGHT)
    case["setup"]["circle"] |= {"type": "code", "language": "cobol"}
    judged = verdict(case)
    assert judged.status == "FAIL"
    assert "cobol" in judged.problems[0]


def test_a_case_that_needs_a_missing_medium_is_not_yet(verdict, monkeypatch):
    from conformance import run

    case = copy.deepcopy(RIGHT)
    case["setup"]["circle"]["type"] = "code"
    monkeypatch.setattr(run, "_has_medium", lambda medium, backend: False)
    judged = verdict(case)
    assert (judged.status, judged.note) == ("not yet", "needs medium javascript")


@pytest.mark.parametrize("text", ["{a: 1}", "- 1", "a: [", "just text"])
def test_an_invalid_suite_is_refused(tmp_path, text):
    file = tmp_path / "suite.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(NoSuite):
        read_suite(file)


def command(*args: str) -> subprocess.CompletedProcess[str]:
    pipe = subprocess.PIPE
    with Forked(CONFORMANCE, *args, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def test_the_last_line_counts_and_the_exit_code_follows(tmp_path):
    file = tmp_path / "suite.yaml"
    words = {"rule": "TEST-3", "name": "only words"}
    file.write_text(yaml.safe_dump([RIGHT, words]), encoding="utf-8")
    good = command("suite", str(file))
    assert good.returncode == 0
    assert good.stdout.splitlines()[-2:] == ["1 of text alone: TEST-3", "1 passed, 0 failed"]

    file.write_text(yaml.safe_dump([RIGHT, planted("expect.turns", 7)]), encoding="utf-8")
    bad = command("suite", "--backend", "trio", str(file))
    assert bad.returncode == 1
    assert bad.stdout.splitlines()[-1] == "1 passed, 1 failed"
    assert "turns: expected 7, got 2" in bad.stdout


def test_a_missing_file_is_named(tmp_path):
    missing = command("suite", str(tmp_path / "none.yaml"))
    assert missing.returncode == 2
    assert "none.yaml: cannot be read" in missing.stderr


def test_an_unknown_subcommand_lists_the_known_ones():
    asked = command("siute")
    assert asked.returncode == 2
    assert "suite" in asked.stderr
