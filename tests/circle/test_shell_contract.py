"""The shell keeps the contract of the mediums, in its own way; and what an entity may expect of it in particular.

It has no values, so the tests to inherit (`medium_contract.py`) do not fit: what a program comes to is what it prints.
"""

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

if sys.platform != "linux":
    pytest.skip("shells are confined on Linux only", allow_module_level=True)

from cantrip_actors.circle.medium import CLOSED, Answer, Exceeded, Finished, ProgramLimits, Raised, Suspended, medium
from cantrip_actors.circle.shell import confine as shell_confine
from cantrip_actors.circle.shell.source import COMMAND, TRAP, prepare
from cantrip_actors.terms.done_gate import DONE
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.gate_function import gate
from cantrip_actors.terms.own_gates import CALL_AGENT, CALL_AGENT_BATCH
from tests.circle.shell_jails import JAILS, confined_by, public_folder

LIMITS = ProgramLimits(seconds=5, output=2000, gate_calls=20)


@gate
async def read(path: str, limit: int | None = None) -> str:
    """Read a file."""
    return ""


@gate
async def save(data: dict, name: str = "", keep_it: bool = False) -> str:
    """Keep something."""
    return ""


GATES = [one.definition for one in (DONE, CALL_AGENT, CALL_AGENT_BATCH, read, save)]


@pytest.fixture(params=JAILS)
def shell(request):
    return confined_by(request.param)


@pytest.fixture
def box(shell):
    opened = shell.open(GATES, LIMITS)
    yield opened
    opened.close()


def turn(box, code, answers=(), **variables):
    """A whole turn: its calls, all that it printed, and how it ended."""
    calls, step, answers = [], box.begin(code, variables or None), iter(answers)
    printed = step.output
    while isinstance(step, Suspended):
        calls.append((step.gate, dict(step.args)))
        answer = next(answers, None)
        step = box.answer(step, answer if isinstance(answer, Answer) else Answer(answer))
        printed += step.output
    return calls, printed, step


def printed(box, code, answers=(), **variables):
    _, text, step = turn(box, code, answers, **variables)
    assert isinstance(step, Finished), (text, step)
    return text


def calls(box, code, answers=()):
    made, text, step = turn(box, code, answers)
    assert isinstance(step, Finished), (text, step)
    return made


# --------------------------------------------------------------------------------------------------- variables live on


@pytest.mark.rule("CIRCLE-9")
def test_variables_functions_directory_and_files_persist(box):
    printed(box, "x=41; f() { echo $((x + 1)); }; declare -A m=([k]=v); mkdir d; cd d; echo hi > note; set -o pipefail")
    assert printed(box, "f; echo ${m[k]}; cat note; basename $PWD; set -o | grep pipefail").split() == [
        *("42", "v", "hi", "d", "pipefail", "on")
    ]


@pytest.mark.alternate_jails
@pytest.mark.rule("CIRCLE-9")
@pytest.mark.parametrize(
    ("last", "step"),
    [
        ("exit 0", Finished(None)),
        ("exit 3", Raised("exit code 3")),
        ("set -e; false; x=9", Raised("exit code 1")),
        ("set -u; echo $unheard_of_variable 2>/dev/null", Raised("exit code 1")),
    ],
)
def test_variables_persist_when_a_program_exits(box, last, step):
    _, _, ended = turn(box, f"x='a  b'; y=(1 '2 3'); f() {{ echo \"$x\"; }}; mkdir -p d; cd d; {last}")
    assert (type(ended), getattr(ended, "error", None)) == (type(step), getattr(step, "error", None))
    assert printed(box, 'set +eu; f; echo "${y[1]}"; basename "$PWD"') == "a  b\n2 3\nd\n"


@pytest.mark.alternate_jails
@pytest.mark.rule("CIRCLE-9")
@pytest.mark.parametrize(
    "spoils",
    [
        *(f"exec {way}>&-" for way in range(103, 107)),
        "exec 104</dev/null",
        "exec 103>/dev/null",
        "readonly __program",
        "readonly __token __status __length __answer",
        "readonly $(compgen -v | grep '^__')",
        "declare -n __program=x",
        "__call() { echo mine; }; readonly -f __call",
        "call_agent() { echo mine; }; readonly -f call_agent; export -f call_agent",
    ],
)
def test_a_program_that_spoils_its_shell_spoils_no_later_one(box, spoils):
    printed(box, f"x=1; {spoils}")
    for _ in range(2):
        made, text, _ = turn(box, "call_agent 'sub task'; echo $x; echo error >&2", ["child"])
        assert (made, text) == ([("call_agent", {"intent": "sub task"})], "child\n1\nerror\n")


@pytest.mark.rule("CIRCLE-9")
def test_a_function_named_exec_is_not_called_by_the_host_where_a_shell_is_replaced(box):
    printed(box, "exec() { echo mine; }; builtin exec 104<&-")
    assert printed(box, "echo theirs") == "theirs\n"


@pytest.mark.rule("CIRCLE-9")
def test_a_program_that_can_no_longer_report_its_end_is_undone_at_once(box):
    printed(box, "x=1")
    step = turn(box, "x=2; exec 107>&-")[2]
    assert step == Exceeded("the interpreter broke down")
    assert printed(box, "echo $x") == "1\n"


@pytest.mark.rule("CIRCLE-9")
def test_readonly_variables_of_a_program_persist_where_its_shell_is_replaced(box):
    printed(box, "readonly mine='a b' __program; declare -ar list=(1 2)")
    _, text, step = turn(box, 'echo "$mine" ${list[1]} ${__program-none}; mine=3')
    assert text.startswith("a b 2 none\n")
    assert "mine: readonly variable" in text
    assert isinstance(step, Raised)


@pytest.mark.parametrize("gone", ["exec true", "kill -KILL $$"])
def test_a_shell_that_died_is_replaced_by_one_with_its_last_state(box, gone):
    printed(box, "x=1; cd /tmp")
    turn(box, f"x=2; cd /; {gone}")
    assert printed(box, "echo $x $PWD") == "1 /tmp\n"


@pytest.mark.alternate_jails
@pytest.mark.parametrize(
    ("bomb", "limit"),
    [
        ("sleep 100", "0.4 s of running, waiting included"),
        ("while :; do :; done", "0.4 s of running, waiting included"),
        ("for i in 1 2 3 4; do call_agent $i; done", "3 gate calls in one program"),
        ("touch f{1..25000}; sleep 1", None),
    ],
)
def test_a_limit_undoes_the_turn(shell, bomb, limit):
    box = shell.open(GATES, ProgramLimits(seconds=0.4 if limit and "running" in limit else 60, gate_calls=3))
    printed(box, "x=1")
    _, _, step = turn(box, f"x=2; {bomb}")
    assert step.limit == (limit or "what its files may take")
    assert printed(box, "echo $x") == "1\n"
    box.close()


def test_no_process_of_a_program_outlives_it(box):
    printed(box, "for n in 1 2 3; do (trap '' TERM HUP; exec sleep 7654$n) & done; (setsid sleep 76549 &); disown -a")
    time.sleep(0.1)
    assert printed(box, "echo next") == "next\n"
    assert not [
        line
        for line in subprocess.run(
            ["ps", "axo", "args"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        if line.startswith("sleep 7654")
    ]


def test_variables_are_set_before_the_program_runs(box):
    text = "a'b\"$x\n" * 50_000
    assert printed(box, 'echo "${#context} $n $list"; [ "$context" = "$context" ]', context=text, n=5, list=[1]) == (
        f"{len(text)} 5 [1]\n"
    )
    with pytest.raises(ValueError, match="is not a variable's name"):
        box.begin("true", {"x; rm": 1})


# --------------------------------------------------------------------------------------------------- gates as commands


@pytest.mark.alternate_jails
@pytest.mark.rule("CIRCLE-3", "CIRCLE-7", "D-003")
@pytest.mark.parametrize(
    ("code", "gate_", "args"),
    [
        ("gate_read a.txt", "read", {"path": "a.txt"}),
        ("gate_read a.txt 5", "read", {"path": "a.txt", "limit": 5}),
        ("gate_read 5", "read", {"path": "5"}),
        ("gate_read --limit 5 'a b.txt'", "read", {"limit": 5, "path": "a b.txt"}),
        ("gate_read --limit=5 --path=a.txt", "read", {"limit": 5, "path": "a.txt"}),
        ("gate_read -- --limit", "read", {"path": "--limit"}),
        ("""gate_read '{"path": "a", "limit": 2}'""", "read", {"path": "a", "limit": 2}),
        ("gate_read \"$(printf 'two\\nlines\\t')\"", "read", {"path": "two\nlines\t"}),
        ("""save '{"a": 1}' name""", "save", {"data": {"a": 1}, "name": "name"}),
        ("""save '{"data": {"a": 1}}'""", "save", {"data": {"a": 1}}),
        ("""save '{"a": 1}' --keep-it""", "save", {"data": {"a": 1}, "keep_it": True}),
        ('done "the answer"', "done", {"answer": "the answer"}),
        ("done 42", "done", {"answer": 42}),
        ("""done '{"total": 42}'""", "done", {"answer": {"total": 42}}),
        ("submit_answer yes", "done", {"answer": "yes"}),
        ('for i in 1; do [ $i = 1 ] && done "$i"; done', "done", {"answer": 1}),
        ("call_agent 'sub task' --context '[1]'", "call_agent", {"intent": "sub task", "context": [1]}),
        ("call_entity x", "call_agent", {"intent": "x"}),
        ("""call_agent_batch '["a", "b"]'""", "call_agent_batch", {"intents": ["a", "b"]}),
        ("echo x | xargs -I{} bash -c 'call_agent {}'", "call_agent", {"intent": "x"}),
        ("(call_agent x) | cat", "call_agent", {"intent": "x"}),
    ],
)
def test_words_of_a_command_get_argument_names(box, code, gate_, args):
    assert calls(box, code) == [(gate_, args)]


@pytest.mark.rule("COMP-2")
@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, ""),
        ("text", "text\n"),
        ("lines\n", "lines\n"),
        (42, "42\n"),
        ([1, {"a": None}], '[1,{"a":null}]\n'),
        ("ä東", "ä東\n"),
    ],
)
def test_a_command_prints_its_result(box, result, text):
    assert printed(box, "call_agent x", [result]) == text


@pytest.mark.alternate_jails
@pytest.mark.rule("COMP-2", "COMP-4")
def test_a_result_of_any_length_can_be_stored_whole(box):
    long = "0123456789" * 60_000  # many pipes full
    assert printed(box, 'r=$(call_agent x); echo "got ${#r} ${r: -3}"', [long]) == f"got {len(long)} 789\n"


@pytest.mark.rule("CIRCLE-5", "COMP-8")
def test_a_gates_failure_is_exit_code_1_and_its_message(box):
    failed = Answer("child exploded", is_error=True)
    assert printed(box, 'r=$(call_agent x 2>&1) || echo "caught $?: $r"', [failed]) == "caught 1: child exploded\n"
    _, text, step = turn(box, "call_agent x", [failed])
    assert (text, step) == ("child exploded\n", Raised("exit code 1", "child exploded\n"))


def test_wrong_arguments_are_an_error_with_the_usage(box):
    made, text, step = turn(box, "gate_read a b c")
    assert (made, text, type(step)) == (
        [],
        "3 words where 2 can be; text with spaces needs quotes; usage: gate_read PATH [--limit …]\n",
        Raised,
    )


@pytest.mark.rule("CIRCLE-3")
@pytest.mark.parametrize("made", ["save() { echo mine; }", "alias save='echo mine'; shopt -s expand_aliases"])
def test_a_gate_that_a_program_replaced_is_back_in_the_next_program(box, made):
    assert isinstance(box.begin(made), Finished)
    step = box.begin("save 1")
    assert isinstance(step, Suspended)
    assert step.gate == "save"


@pytest.mark.rule("COMP-6")
def test_an_unknown_gate_is_not_found(shell):
    box = shell.open([DONE.definition], LIMITS)
    _, text, step = turn(box, "call_agent x || { echo blocked; false; }")
    assert "not found" in text
    assert isinstance(step, Raised)
    box.close()


@pytest.mark.rule("D-003")
def test_after_done_the_program_runs_to_its_end_and_every_gate_is_closed(box):
    step = box.begin("done 1; after=2; call_agent x; echo $?")
    assert isinstance(step, Suspended)
    assert box.answer(step, Answer(None, closed=True)) == Finished(None, f"{CLOSED}\n1\n")
    assert printed(box, "echo $after") == "2\n"
    assert calls(box, "call_agent again") == [("call_agent", {"intent": "again"})]


def test_simultaneous_calls_are_handled_one_after_the_other(box):
    made = calls(box, "for n in 1 2 3 4 5; do call_agent $n & done; wait", ["a"] * 5)
    assert sorted(args["intent"] for _, args in made) == ["1", "2", "3", "4", "5"]


def test_output_is_the_text_printed_since_the_step_began(box):
    step = box.begin("echo one; echo two >&2; call_agent x; echo three")
    assert step.output == "one\ntwo\n"
    assert box.answer(step, Answer(None)) == Finished(None, "three\n")


def test_output_after_a_programs_end_does_not_reach_the_next(box):
    for _ in range(10):
        assert printed(box, "echo first") == "first\n"
        if box._process is not None:  # the host ends a shell that it cannot stop in time, as on a busy machine
            break
    shells = Path(f"/proc/{box._process._process.pid}/fd/1")  # which those that die share, and may have written to
    shells.write_text("fork: retry\n", encoding="utf-8")
    assert printed(box, "echo second") == "second\n"


def test_output_over_the_limit_is_cut_with_a_note(shell):
    box = shell.open(GATES, ProgramLimits(output=10))
    assert (
        printed(box, "echo 12345; yes | head -c 100000")
        == "12345\ny\ny\n\n… (cut: at most 10 characters a turn are kept)\n"
    )
    assert printed(box, "echo again") == "again\n"
    box.close()


@pytest.mark.alternate_jails
@pytest.mark.parametrize("broken", ["if", "echo 'x", "for i in 1 2; do", "done", "( "])
def test_a_syntax_error_is_an_error_and_the_shell_continues(box, broken):
    printed(box, "x=1")
    assert isinstance(turn(box, broken)[2], Raised)
    assert printed(box, "echo $x") == "1\n"


# --------------------------------------------------------------------------------------------------------------- steps


def test_an_answer_belongs_to_the_call_that_waits(box):
    first = box.begin("call_agent x")
    box.answer(first, Answer(1))
    with pytest.raises(ValueError, match="expected an answer to the gate call"):
        box.answer(first, Answer(2))


def test_an_abandoned_turn_is_undone_by_the_next(box):
    printed(box, "x=1")
    box.begin("x=2; call_agent x")
    assert printed(box, "echo $x") == "1\n"


def test_time_that_a_gate_takes_is_not_computing(shell):
    box = shell.open(GATES, ProgramLimits(seconds=0.5))
    step = box.begin("call_agent x")
    time.sleep(0.7)
    assert box.answer(step, Answer(1)) == Finished(None, "1\n")
    box.close()


def test_an_interrupt_ends_running_and_waiting_programs(shell):
    box = shell.open(GATES, ProgramLimits(seconds=30))
    box.interrupt()
    printed(box, "x=1")
    ended = threading.Event()

    def interrupt():
        while not ended.wait(0.2):  # the first one may come before the program begins
            box.interrupt()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    assert box.begin("x=2; sleep 100") == Exceeded("interrupted from outside")
    ended.set()
    interrupter.join()
    step = box.begin("x=2; call_agent x")
    box.interrupt()
    assert box.answer(step, Answer(1)).limit == "interrupted from outside"
    assert printed(box, "echo $x") == "1\n"
    box.close()


def test_close_leaves_nothing_at_any_point_of_a_program(shell):
    before = set(threading.enumerate())
    idle, suspended, computing, unused = (shell.open(GATES, ProgramLimits(seconds=30)) for _ in range(4))
    printed(idle, "echo x > file; mkdir -p a/b; chmod 000 a; ln -s / root")
    suspended.begin("sleep 98761 & call_agent x; sleep 98762")
    steps = []
    worker = threading.Thread(target=lambda: steps.append(computing.begin("trap '' TERM; sleep 98763 & sleep 98764")))
    worker.start()
    time.sleep(0.3)
    began = time.monotonic()
    for one in (idle, suspended, computing, unused, idle):
        one.close()
    worker.join(5)
    assert steps == [Exceeded("interrupted from outside")]
    assert time.monotonic() - began < 60
    time.sleep(0.2)
    assert set(threading.enumerate()) <= before
    assert not any(one._files.folder.exists() for one in (idle, suspended, computing, unused))
    ps = subprocess.run(["ps", "axo", "args"], capture_output=True, text=True, check=True).stdout
    assert "sleep 9876" not in ps
    with pytest.raises(ValueError, match="closed"):
        idle.begin("true")


def test_shells_end_with_the_process_that_started_them(shell):
    """Also where it has no time to close them."""
    jail = shell.engine.rpartition(" ")[2]
    code = f"""if True:
        import os, sys, threading
        from cantrip_actors.circle.medium import ProgramLimits, medium
        box = medium('shell', {jail!r}).open([], ProgramLimits(seconds=60))
        box.begin("true")
        print(box._files.folder, flush=True)
        threading.Timer(0.5, os._exit, [7]).start()
        box.begin("exec -a orphaned-by-test-{jail} sleep 1000")
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 7, run.stderr
    shutil.rmtree(run.stdout.strip(), ignore_errors=True)  # the watcher may be removing it, too
    for _ in range(50):
        ps = subprocess.run(["ps", "axo", "args"], capture_output=True, text=True, check=True).stdout
        if f"orphaned-by-test-{jail}" not in ps.replace(code, ""):
            break
        time.sleep(0.1)
    else:
        pytest.fail("a shell outlived its process")


def test_a_waiting_program_has_no_snapshot(box):
    step = box.begin("call_agent x")
    assert (step.image, box.dump()) == (None, None)
    with pytest.raises(ValueError, match="no snapshots"):
        box.resume(b"x")


@pytest.mark.parametrize("image", [b"", b"x", b"-1\n", b"5\nabc", b"0\n[]x", b"0\nno JSON\n"])
def test_an_invalid_snapshot_is_refused(box, image):
    printed(box, "x=1; echo 1 > f")
    with pytest.raises(ValueError, match=r"\w"):
        box.load(image)
    assert printed(box, "echo $x; cat f") == "1\n1\n"


# -------------------------------------------------------------------------------------------------------- confinement


@pytest.mark.rule("CIRCLE-6")
def test_the_shell_medium_is_refused_without_a_jail(monkeypatch):
    monkeypatch.setattr(shell_confine, "_look", shell_confine._look.__wrapped__)
    monkeypatch.setattr(shell_confine.shutil, "which", lambda _: None)
    monkeypatch.setattr(shell_confine.shell_landlock, "read_version", lambda: 4)
    with pytest.raises(
        InvalidCantrip, match=r"bubblewrap: the program bwrap is missing.*version 4 of Landlock, 6 is needed"
    ):
        medium("shell")


@pytest.mark.rule("CIRCLE-6")
def test_a_jail_that_fails_its_check_is_not_used(monkeypatch):
    monkeypatch.setattr(shell_confine, "_look", shell_confine._look.__wrapped__)
    monkeypatch.setattr(shell_confine, "TELLING", 0.2)
    monkeypatch.setattr(shell_confine.shell_landlock, "read_version", lambda: 0)
    with public_folder() as folder:
        fake = folder / "bwrap"
        fake.write_text('#!/bin/bash\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
        fake.chmod(0o755)
        monkeypatch.setattr(shell_confine.shutil, "which", lambda _: str(fake))
        with pytest.raises(InvalidCantrip, match="bubblewrap: bash: "):
            medium("shell")


def test_a_missing_dependency_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "cantrip_actors.circle.shell.medium", raising=False)
    monkeypatch.delitem(sys.modules, "cantrip_actors.circle.shell.confine", raising=False)
    monkeypatch.delitem(sys.modules, "cantrip_actors.circle.shell.syscalls", raising=False)
    monkeypatch.delattr("cantrip_actors.circle.shell.syscalls", raising=False)
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    with pytest.raises(InvalidCantrip, match=r"cantrip-actors\[shell\]"):
        medium("shell")
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InvalidCantrip, match="needs Linux"):
        medium("shell")


def test_the_capability_text_names_language_gates_and_limits(shell):
    text = shell.capability(GATES, ProgramLimits(seconds=2.5, memory=2**25, output=99, gate_calls=7))
    for part in (
        "bash",
        "gate_read PATH [--limit …]  # Read a file.",
        "done ANSWER",
        "submit_answer",
        "2.5 s",
        "32 MiB",
    ):
        assert part in text
    for part in ("99 characters", "7 calls", "call_agent INTENT"):
        assert part in text
    assert len(shell.capability([DONE.definition], LIMITS)) < 1500


# ------------------------------------------------------------------------------------------------------- `done`, a word


@pytest.mark.parametrize(
    ("code", "becomes"),
    [
        ('done "x"', '_ "x"'),
        ("for i in 1 2; do echo $i; done", None),
        ('for f in *; do grep -q x $f && done "$f"; done', 'for f in *; do grep -q x $f && _ "$f"; done'),
        ("echo done now", None),
        ("echo \"done x\" 'done y' # done z\ndone 5", "echo \"done x\" 'done y' # done z\n_ 5"),
        ("while :; do :; done < file", None),
        ("while :; do :; done 2>/dev/null | cat", None),
        ("done <<< x", None),
        ("cat <<EOF\ndone x\nEOF\ndone y", "cat <<EOF\ndone x\nEOF\n_ y"),
        ("cat <<-'E'\n\tdone x\n\tE\ndone y", "cat <<-'E'\n\tdone x\n\tE\n_ y"),
        ('echo "$(done q)" `done r`', 'echo "$(_ q)" `_ r`'),
        ("if true; then done 1; fi", "if true; then _ 1; fi"),
        ("case x in x) done 1;; esac", "case x in x) _ 1;; esac"),
        ('f() { done "$1"; }', 'f() { _ "$1"; }'),
        ("(done 5) || ! done 6", "(_ 5) || ! _ 6"),
        ("echo $((1 + 2)) $'a\\'done b'; done 4", "echo $((1 + 2)) $'a\\'done b'; _ 4"),
        ("abandoned 5; done_it 6; done", None),
        ("echo ${x#done }; done 1", "echo ${x#done }; _ 1"),
        ("a=1 done 5", None),
    ],
)
def test_done_followed_by_a_word_is_the_gate(code, becomes):
    assert prepare(code) == (code if becomes is None else becomes.replace("_ ", f"{COMMAND} "))


@pytest.mark.parametrize(
    "code", ["(" * 100_000 + "done x", "`done x " * 30_000, "$(done x " * 20_000, "<<a\ndone x" * 9000]
)
def test_preparing_any_program_takes_bounded_time(code):
    began = time.process_time()
    prepare(code)
    assert time.process_time() - began < 3


@given(st.text(alphabet="done trap EXIT'\"`$(){};|&<>\\\n#-=x0", max_size=80))
def test_only_the_names_of_commands_are_changed(code):
    assert prepare(code).replace(COMMAND, "done").replace(TRAP, "trap") == code


# ------------------------------------------------------------------------------------------------------- among others


@pytest.mark.real_time
@pytest.mark.rule("COMP-2")
async def test_twenty_levels_of_children_wait_on_two_threads(shell):
    cores = anyio.CapacityLimiter(2)

    async def cast(depth):
        box = await anyio.to_thread.run_sync(shell.open, GATES, LIMITS, limiter=cores)
        text = ""
        try:
            code = "echo leaf" if depth == 0 else f'echo "$(call_agent deeper){depth}"'
            step = await anyio.to_thread.run_sync(box.begin, code, limiter=cores)
            while isinstance(step, Suspended):
                result = await cast(depth - 1)
                step = await anyio.to_thread.run_sync(box.answer, step, Answer(result), limiter=cores)
            text = step.output
        finally:
            await anyio.to_thread.run_sync(box.close, limiter=cores)
        return text.strip()

    with anyio.fail_after(60):
        assert await cast(20) == "leaf" + "".join(map(str, range(1, 21)))


@pytest.mark.real_time
async def test_suspended_shells_hold_no_thread(shell):
    cores, boxes = anyio.CapacityLimiter(2), [shell.open(GATES, LIMITS) for _ in range(10)]
    before = threading.active_count()
    steps = [await anyio.to_thread.run_sync(box.begin, "echo $(call_agent x)", limiter=cores) for box in boxes]
    assert threading.active_count() <= before + 4  # the loop's workers, and the one that starts shells
    for box, step in zip(boxes, steps, strict=True):
        assert await anyio.to_thread.run_sync(box.answer, step, Answer("y"), limiter=cores) == Finished(None, "y\n")
        await anyio.to_thread.run_sync(box.close, limiter=cores)


def test_closing_a_shell_closes_its_descriptors(shell):
    def count():
        return len(list(Path("/proc/self/fd").iterdir()))

    def churn():
        box = shell.open(GATES, LIMITS)
        printed(box, "true")
        box.close()

    churn()
    before = count()
    for _ in range(4):
        churn()
    assert count() == before
