"""The command line: its output, exit codes, JSON and error messages."""

import json
import os
import re
import runpy
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.main import get_command

from cantrip_actors import Runtime, open_loom
from cantrip_actors.cli.app import COMMANDS, app, commands_of
from cantrip_actors.recipes import load_recipe
from tests.exhaustive import part
from tests.forked import COMMAND as PROGRAM
from tests.forked import ROOT, Forked

COMMAND = [sys.executable, "-m", "cantrip_actors.cli.main"]

pytestmark = pytest.mark.real_time

FAILING = "crystal: {scripted: []}\ncircle: {gates: [done], wards: [{max_turns: 3}]}\n"
ENDLESS = """\
crystal: {scripted: [{tool_calls: [{gate: echo, args: {text: a}}]}, {tool_calls: [{gate: echo, args: {text: b}}]}]}
circle: {gates: [done, echo], wards: [{max_turns: 1}]}
"""


class TestCast:
    def test_the_answer_alone_is_on_standard_output(self, cantrip):
        said = cantrip("cast", "recipe.yaml", "count")
        assert (said.code, said.out) == (0, "five\n")
        assert "begins: count" in said.err
        assert "loom: sqlite:.cantrip/loom.db" in said.err

    def test_an_answer_that_is_not_text_is_printed_as_json(self, cantrip, place):
        recipe = (place / "recipe.yaml").read_text().replace("five", "{vowels: [a, e]}")
        (place / "recipe.yaml").write_text(recipe)
        assert cantrip("cast", "recipe.yaml", "count").json == {"vowels": ["a", "e"]}

    def test_quiet_shows_no_events(self, cantrip):
        said = cantrip("cast", "recipe.yaml", "count", "-q")
        assert "begins" not in said.err

    def test_json_prints_one_object_with_the_outcome(self, cantrip):
        said = cantrip("cast", "recipe.yaml", "count", "--json", "--loom", "jsonl:here.jsonl")
        outcome = said.json
        assert (said.code, said.err) == (0, "")
        assert outcome["entity_id"]
        assert {key: outcome[key] for key in ("result", "terminated", "truncated", "reason", "turns", "error")} == {
            "result": "five",
            "terminated": True,
            "truncated": False,
            "reason": "terminated",
            "turns": 2,
            "error": None,
        }
        assert outcome["usage"]["total_tokens"] == 24
        assert outcome["loom"] == "jsonl:here.jsonl"

    def test_events_are_lines_and_the_outcome_is_the_last(self, cantrip):
        said = cantrip("cast", "recipe.yaml", "count", "--events")
        events = [json.loads(line) for line in said.out.splitlines()]
        kinds = [event["type"] for event in events]
        assert kinds[0] == "EntityStartedEvent"
        assert kinds[-1] == "Episode"
        assert kinds.count("StepCompleteEvent") == 2
        assert events[-1]["result"] == "five"
        assert said.err == ""

    def test_a_truncated_cast_exits_with_3_and_says_why(self, cantrip, place):
        (place / "recipe.yaml").write_text(ENDLESS)
        said = cantrip("cast", "recipe.yaml", "go on")
        assert (said.code, said.out) == (3, "")
        assert "truncated by max_turns(1) after 1 turn; gates run: echo" in said.err

    def test_json_has_the_outcome_of_a_truncated_cast(self, cantrip, place):
        (place / "recipe.yaml").write_text(ENDLESS)
        said = cantrip("cast", "recipe.yaml", "go on", "--json")
        assert (said.code, said.json["truncated"], said.json["ward"]) == (3, True, "max_turns")

    def test_a_failed_cast_exits_with_1_and_says_where_to_look(self, cantrip, place):
        (place / "recipe.yaml").write_text(FAILING)
        said = cantrip("cast", "recipe.yaml", "try")
        assert (said.code, said.out) == (1, "")
        assert "error: scripted crystal has no response left" in said.err
        assert "Traceback" not in said.err
        shown = re.search(r"loom thread (\w+)", said.err)
        assert shown is not None

    def test_json_has_the_error_of_a_failed_cast(self, cantrip, place):
        (place / "recipe.yaml").write_text(FAILING)
        said = cantrip("cast", "recipe.yaml", "try", "--json")
        assert (said.code, said.err) == (1, "")
        assert said.json["error"]["type"] == "CrystalError"
        assert said.json["entity_id"]

    def test_a_wrong_recipe_exits_with_2_and_lists_every_mistake(self, cantrip, place):
        (place / "recipe.yaml").write_text("crystl: 1\ncircle: {gates: [don]}\n")
        said = cantrip("cast", "recipe.yaml", "try")
        assert said.code == 2
        assert 'recipe.yaml:1: unknown key "crystl": did you mean "crystal"?' in said.err
        assert 'recipe.yaml:2: unknown gate "don": did you mean "done"?' in said.err
        told = cantrip("cast", "recipe.yaml", "try", "--json")
        assert told.code == 2
        assert {mistake["line"] for mistake in told.json["error"]["mistakes"]} == {None, 1, 2}
        assert not (place / ".cantrip").exists()

    def test_a_missing_intent_exits_with_2(self, cantrip):
        said = cantrip("cast", "recipe.yaml", "  ")
        assert said.code == 2
        assert "intent is required" in said.err

    @pytest.mark.parametrize(
        ("given", "context"),
        [('{"a": [1]}', {"a": [1]}), ("data.json", {"b": 2}), ("data.yaml", {"c": 3}), ("data.txt", "words\n")],
    )
    def test_context_is_a_file_or_json(self, cantrip, place, given, context):
        (place / "data.json").write_text('{"b": 2}')
        (place / "data.yaml").write_text("c: 3\n")
        (place / "data.txt").write_text("words\n")
        entity = cantrip("cast", "recipe.yaml", "count", "--context", given, "--json").json["entity_id"]
        with open_loom("sqlite:.cantrip/loom.db") as loom:
            assert loom.records(entity)[1].context == context

    @pytest.mark.parametrize("given", ["nowhere.json", "{a", "broken.json", "binary.txt", "x" * 5000])
    def test_context_that_is_neither_file_nor_json_exits_with_2(self, cantrip, place, given):
        (place / "broken.json").write_text("{")
        (place / "binary.txt").write_bytes(b"\xff\xfe\x00")
        said = cantrip("cast", "recipe.yaml", "count", "--context", given)
        assert said.code == 2
        assert "--context" in said.err

    @pytest.mark.rule("W-21")
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("talk.json", '[{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]'),
            ("talk.yaml", "- {role: user, content: one}\n- {role: assistant, content: two}\n"),
            ("talk.jsonl", '{"role": "user", "content": "one"}\n\n{"role": "assistant", "content": "two"}\n'),
        ],
    )
    def test_an_earlier_conversation_is_read_from_a_file(self, cantrip, place, name, text):
        (place / name).write_text(text)
        entity = cantrip("cast", "recipe.yaml", "count", "--history", name, "--json").json["entity_id"]
        with open_loom("sqlite:.cantrip/loom.db") as loom:
            history = loom.records(entity)[1].history
            assert [(one.role, one.content) for one in history] == [("user", "one"), ("assistant", "two")]

    @pytest.mark.rule("W-21")
    @pytest.mark.parametrize(
        ("name", "text", "why"),
        [
            ("none.json", None, "--history"),
            ("a.json", "{", "--history"),
            ("a.jsonl", '{"role": "user", "content": "one"}\n{', "--history"),
            ("a.json", '{"role": "user"}', "--history"),
            ("a.json", '[{"role": "judge", "content": "x"}]', "history[0]"),
        ],
    )
    def test_a_conversation_that_cannot_be_read_exits_with_2(self, cantrip, place, name, text, why):
        if text is not None:
            (place / name).write_text(text)
        said = cantrip("cast", "recipe.yaml", "count", "--history", name)
        assert (said.code, why in said.err) == (2, True)
        assert not (place / ".cantrip").exists() or why == "history[0]"

    @pytest.mark.parametrize("url", ["nothing:x", "jsonl:", "loom.txt", "jsonl:recipe.yaml/x.jsonl"])
    def test_a_loom_that_cannot_be_opened_exits_with_2(self, cantrip, url):
        said = cantrip("cast", "recipe.yaml", "count", "--loom", url)
        assert said.code == 2
        assert said.err.startswith("error: ")

    def test_the_environment_can_name_the_loom(self, cantrip, place, monkeypatch):
        monkeypatch.setenv("CANTRIP_LOOM", "jsonl:mine.jsonl")
        assert "loom: jsonl:mine.jsonl" in cantrip("cast", "recipe.yaml", "count").err
        assert (place / "mine.jsonl").exists()
        assert "count" in cantrip("loom", "ls").out

    def test_a_cast_runs_on_trio(self, cantrip):
        assert cantrip("cast", "recipe.yaml", "count", "--backend", "trio", "-q").out == "five\n"
        assert cantrip("cast", "recipe.yaml", "count", "--backend", "curio").code == 2

    @pytest.mark.rule("PROD-1")
    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_the_same_cantrip_gives_the_same_turns_from_the_command_line_and_from_code(self, cantrip, place, backend):
        by_command = cantrip("cast", "recipe.yaml", "count", "--json", "--backend", backend).json
        same = ("cantrip_id", "sequence", "utterance", "observation", "gate_calls", "terminated", "truncated", "usage")
        with Runtime.blocking("memory:", backend=backend) as runtime, open_loom("sqlite:.cantrip/loom.db") as loom:
            by_code = runtime.cast(load_recipe(place / "recipe.yaml"), "count")
            turns = loom.turns(by_command["entity_id"])
            assert by_command["result"] == by_code.result
            assert len(turns) == len(by_code.thread) == 2
            for one, other in zip(turns, by_code.thread, strict=True):
                assert [getattr(one, name) for name in same] == [getattr(other, name) for name in same]


class TestDemo:
    @pytest.fixture
    def texts(self, place):
        folder = place / "my texts"
        (folder / "sub").mkdir(parents=True)
        (folder / "README.md").write_text("# Hello\n\nsome words here\n")
        (folder / "sub" / "größe ✓.txt").write_text("eins zwei drei\n", encoding="utf-8")
        (folder / "sub" / "code.py").write_text("def f():\n    return 1\n")
        return folder

    def test_the_demo_reports_the_contents_of_the_files(self, cantrip, texts):
        said = cantrip("demo", str(texts))
        assert said.code == 0
        assert re.search(r"\| README.md +\| +3 \| +5 \| +25 \|", said.out)
        assert re.search(r"\| sub/code.py +\| +2 \| +4 \| +22 \|", said.out)
        assert "größe ✓.txt" in said.out
        assert re.search(r"\| all together +\| +6 \| +12 \|", said.out)
        assert "was not there" in said.out
        assert re.search(r"loom tree \w{8}", said.err)

    def test_the_figures_of_the_demo_match_the_files(self, cantrip, texts):
        answer = cantrip("demo", str(texts), "--json").json["result"]
        assert len(answer["files"]) == 3
        for one in answer["files"]:
            text = (texts / one["file"]).read_text(encoding="utf-8")
            assert (one["lines"], one["words"], one["characters"]) == (
                text.count("\n"),
                len(text.split()),
                len(text),
            )

    def test_children_work_and_one_of_them_steers_around_a_missing_file(self, cantrip, texts):
        root = cantrip("demo", str(texts), "--json").json["entity_id"]
        with open_loom("sqlite:.cantrip/loom.db") as loom:
            children = loom.subtree(root)[1:]
            assert len(children) == 3
            gates = [
                [(seen.gate, seen.is_error) for turn in loom.turns(one) for seen in turn.gate_calls] for one in children
            ]
            steering = [("read", True), ("list", False), ("read", False), ("done", False)]
            assert sorted(gates, key=len) == [[("read", False), ("done", False)]] * 2 + [steering]

    def test_the_demo_works_on_a_folder_of_hard_cases(self, cantrip, place):
        folder = place / "hard"
        folder.mkdir()
        (folder / "empty.txt").write_text("")
        (folder / "huge.log").write_text("word " * 200_000)
        (folder / "lines.txt").write_text("a b\n" * 100_000)
        (folder / "binary.dat").write_bytes(bytes(range(256)))
        (folder / "latin.txt").write_bytes("h\xe9llo\n".encode("latin-1"))
        (folder / 'quote".md').write_text("# x\n")
        (folder / "[brackets].md").write_text("[x]")
        (folder / "gone").symlink_to(folder / "nowhere")
        said = cantrip("demo", str(folder), "--json")
        answer = said.json["result"]
        assert said.code == 0
        read = {one["file"]: one for one in answer["files"]}
        assert read["empty.txt"]["lines"] == 0
        assert not read["huge.log"]["whole"]
        assert not read["lines.txt"]["whole"]
        assert read["[brackets].md"]["characters"] == 3
        assert any("binary" in problem for problem in answer["problems"])

    @pytest.mark.parametrize("name", ["", "picture.png", ".hidden"])
    def test_the_demo_works_on_a_folder_without_texts(self, cantrip, place, name):
        folder = place / "nothing"
        folder.mkdir()
        if name:
            (folder / name).write_text("x")
        said = cantrip("demo", str(folder))
        assert said.code == 0
        assert "folder is empty" in said.out or "0 were read" in said.out

    def test_the_demo_starts_a_bounded_number_of_children_for_many_files(self, cantrip, place):
        folder = place / "many"
        folder.mkdir()
        for n in range(1500):
            (folder / f"{n}.txt").write_text(f"number {n}\n")
        answer = cantrip("demo", str(folder), "--json").json["result"]
        assert (answer["listed"], len(answer["files"])) == (1500, 10)

    @pytest.mark.parametrize(("folder", "said"), [("nowhere", "there is no folder"), ("recipe.yaml", "is a file")])
    def test_an_invalid_folder_exits_with_2(self, cantrip, folder, said):
        told = cantrip("demo", folder)
        assert told.code == 2
        assert said in told.err

    def test_the_demo_accepts_trio_and_a_pace(self, cantrip, texts):
        began = time.monotonic()
        assert cantrip("demo", str(texts), "--backend", "trio", "--pace", "0.05", "-q").code == 0
        assert time.monotonic() - began > 0.15

    def test_the_demo_reads_the_project_by_default(self, cantrip):
        answer = cantrip("demo", "--json").json["result"]
        assert "README.md" in {one["file"] for one in answer["files"]}


class TestProcess:
    """Pipes: no colours, nothing that moves, whatever the environment wishes."""

    def test_progress_is_printed_as_lines_without_a_terminal(self, process):
        said = process("cast", "recipe.yaml", "count", TERM="xterm-256color")
        assert (said.code, said.out) == (0, "five\n")
        assert "\x1b" not in said.err
        lines = said.err.splitlines()
        assert re.fullmatch(r"\w{8} begins: count", lines[0])
        assert re.fullmatch(r"\w{8} ended, done after 2 turns, 24 tokens", lines[-3])

    def test_help_has_examples_and_exit_codes(self, process):
        said = process("--help")
        assert said.code == 0
        assert "Examples:" in said.out
        assert "3 truncated" in said.out
        for command in (["cast"], ["demo"], *(["loom", one] for one in ("ls", "tree", "show", "thread", "export"))):
            assert "Examples:\n" in process(*command, "--help").out

    @pytest.mark.rule("L-20")
    def test_the_package_is_run_as_the_command(self, monkeypatch):
        ran = []
        monkeypatch.setattr("cantrip_actors.cli.main.main", lambda: ran.append(sys.argv))
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / "cantrip_actors" / "__main__.py"), run_name="__main__")
        assert (ran, end.value.code) == ([sys.argv], None)

    def test_the_version_is_printed_without_a_command(self, process):
        said = process("--version")
        assert (said.code, said.out) == (0, f"cantrip {version('cantrip-actors')}\n")

    def test_help_lists_each_command_in_a_section_with_a_whole_sentence(self, process):
        lines = process("--help", COLUMNS="80").out.splitlines()
        for name, (_, sentence) in COMMANDS.items():
            assert f"  {name:12}{sentence}" in lines
        assert [line for line in lines if line == "Run entities:"]

    @pytest.mark.parametrize("module", sorted({module for module, _ in COMMANDS.values()}))
    def test_help_lists_all_commands_of_a_module_with_the_lines_of_their_own_help(self, module):
        commands = commands_of(module)
        assert list(commands) == [name for name, (home, _) in COMMANDS.items() if home == module]
        listed = get_command(app).commands
        for name, command in commands.items():
            for width in range(1, 200):
                assert listed[name].get_short_help_str(width) == command.get_short_help_str(width)

    def test_a_mistyped_command_is_answered_with_similar_commands(self, process):
        assert "No such command 'cats'. Did you mean 'chat', 'cast'?" in process("cats").err
        assert "No such command 'tre'. Did you mean 'tree', 'thread'?" in process("loom", "tre").err

    def test_a_typo_exits_with_2_and_suggests_a_correction(self, process):
        assert process("cats").code == 2
        said = process("cast", "recipe.yaml", "count", "--lom", "x")
        assert said.code == 2
        assert "--loom" in said.err

    def test_a_closed_output_pipe_is_not_an_error(self, process, place):
        (place / "go.sh").write_text(f'"{sys.executable}" -m cantrip_actors.cli.main "$@" 2>&1 | head -1')
        done = subprocess.run(["sh", "go.sh", "demo"], capture_output=True, text=True, timeout=60, check=False)
        assert "Traceback" not in done.stdout + done.stderr

    def test_a_cast_without_a_loom_proposes_no_command_that_reads_it(self, process):
        said = process("cast", "recipe.yaml", "count", "--loom", "memory:")
        assert (said.code, said.out) == (0, "five\n")
        assert said.err.endswith("loom: memory:, which is gone now: --loom PATH.db keeps what happened\n")

    @pytest.mark.parametrize("closed", part(["<&- >&- 2>&-", ">&-", "2>&-", ">&- 2>&-"], 2))
    def test_a_cast_completes_when_its_streams_are_closed(self, place, closed):
        code = subprocess.run(
            ["sh", "-c", f'"$@" {closed}', "sh", *COMMAND, "cast", "recipe.yaml", "count"], check=False
        )
        assert code.returncode == 0
        with open_loom("sqlite:.cantrip/loom.db") as loom:
            assert [loom.state(entity) for entity in loom.entities()] == ["terminated"]

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
    @pytest.mark.parametrize(
        "what",
        [
            ["cast", "recipe.yaml", "count"],
            ["cast", "recipe.yaml", "count", "--events"],
            ["loom", "ls"],
            ["loom", "export"],
        ],
    )
    def test_a_full_output_device_is_reported_without_a_traceback(self, cantrip, what):
        cantrip("cast", "recipe.yaml", "count")
        with (
            Path("/dev/full").open("w") as full,
            Forked(PROGRAM, *what, stdout=full, stderr=subprocess.PIPE, text=True) as done,
        ):
            _, err = done.communicate(timeout=60)
        assert done.returncode == 1
        assert err.endswith(
            "error: the output could not be printed, because its disk is full: the loom has the result\n"
        )
        assert "Traceback" not in err

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
    def test_progress_that_cannot_be_printed_does_not_end_a_cast(self, place):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [*COMMAND, "cast", "recipe.yaml", "count"], stdout=subprocess.PIPE, stderr=full, text=True, check=False
            )
        assert (done.returncode, done.stdout) == (0, "five\n")

    def test_an_intent_in_another_encoding_is_refused(self, place):
        command = [*COMMAND, "cast", "recipe.yaml", b"caf\xe9"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        told = "error: intent: expected a text in utf-8, got b'caf\\xe9'; give it in UTF-8\n"
        assert (done.returncode, done.stderr) == (2, told)
        assert not (place / ".cantrip").exists()

    def test_an_intent_that_the_locale_cannot_decode_is_refused_with_the_setting_that_helps(self, place):
        ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        command = [*COMMAND, "cast", place / "recipe.yaml", "café"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | ascii_only)
        assert (done.returncode, done.stderr.rpartition("; ")[2]) == (2, "set PYTHONUTF8=1\n")

    @pytest.mark.parametrize(
        "command",
        [
            *("send bob hi", "post bob hi", "withdraw bob key", "withdraw key", "stop bob", "abandon bob", "resume"),
            *("requests", "allow x", "schedule pause x", "schedule rm x", "cluster ls", "cluster drain w1"),
            *("cluster where bob", "cluster stranded", "cluster queues", "cluster free bob", "cluster release 2"),
        ],
    )
    def test_a_command_for_what_is_in_a_loom_does_not_make_one(self, cantrip, place, command):
        said = cantrip(*command.split(), "--loom", "typo.db")
        assert said.code == 2
        assert "There is no such loom" in said.err
        assert not list(place.glob("typo.db*"))

    def test_a_second_writer_of_a_jsonl_loom_is_refused(self, cantrip, process):
        with Runtime.blocking("sqlite:.cantrip/loom.db"):
            assert process("cast", "recipe.yaml", "count").out == "five\n"
        with Runtime.blocking("jsonl:one.jsonl"):  # this kind has one writer at a time
            said = process("cast", "recipe.yaml", "count", "--loom", "jsonl:one.jsonl")
            assert said.code == 2
            assert "Traceback" not in said.err
            assert cantrip("loom", "ls", "--loom", "jsonl:one.jsonl").code == 0

    def test_crash_reports_are_not_printed_to_standard_output(self, process, place):
        (place / "spells.py").write_text(
            "class Bug:\n    name = 'bug'\n    @property\n    def invoke(self): raise SystemError\n"
        )
        (place / "recipe.yaml").write_text(
            "crystal: 'python:spells:Bug'\ncircle: {gates: [done], wards: [{max_turns: 3}]}\n"
        )
        said = process("cast", "recipe.yaml", "count")
        assert said.code != 0
        assert said.out == ""
