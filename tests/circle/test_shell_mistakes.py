"""Mistakes of entities in a shell, and their error texts, which name the entity's own lines and say what to do.

Everything here is what models do write: misspelt commands and options, a gate under xargs, `done` without an answer,
`set -x`, traps, and scripts that clean up after themselves.
"""

import signal
import subprocess
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("shells are confined on Linux only", allow_module_level=True)

from cantrip_actors.circle.medium import Answer, Finished, ProgramLimits, Raised, Suspended
from cantrip_actors.circle.shell.gates import find_hint, read_arguments
from cantrip_actors.circle.shell.source import prepare
from cantrip_actors.terms.done_gate import DONE
from cantrip_actors.terms.gate_function import gate
from cantrip_actors.terms.own_gates import CALL_AGENT
from tests.circle.shell_jails import JAILS, confined_by


@gate
async def search(query: str, limit: int = 5) -> list[str]:
    """Search the notes."""
    return []


GATES = [one.definition for one in (DONE, CALL_AGENT, search)]


@pytest.fixture(params=JAILS)
def box(request):
    opened = confined_by(request.param).open(GATES, ProgramLimits(seconds=5))
    yield opened
    opened.close()


def ran(box, code):
    """Return the output of a program, and its error or "". Its calls are answered with "ok"."""
    step = box.begin(code)
    printed = step.output
    while isinstance(step, Suspended):
        step = box.answer(step, Answer("ok"))
        printed += step.output
    assert isinstance(step, (Finished, Raised)), step
    return printed, step.error if isinstance(step, Raised) else ""


# ------------------------------------------------------------------------------------------------------------- lines


@pytest.mark.rule("CIRCLE-5")
def test_line_numbers_are_those_of_the_program(box):
    assert ran(box, "x=1\n" * 2_000 + "nope_at_all")[0] == "line 2001: nope_at_all: command not found\n"
    for _ in range(2):  # of each one
        assert ran(box, "x=1\n\nnope_at_all") == ("line 3: nope_at_all: command not found\n", "exit code 127")
        assert ran(box, "\necho $LINENO")[0] == "2\n"


@pytest.mark.rule("CIRCLE-5")
def test_a_syntax_error_is_reported_with_line_and_text(box):
    printed, error = ran(box, "echo a\nfor i in 1 2; echo $i; done")
    assert printed.splitlines() == [
        "a",
        "line 2: syntax error near unexpected token `echo'",
        "line 2: `for i in 1 2; echo $i; done'",
    ]
    assert error == "exit code 2"


def test_a_program_may_use_return(box):
    assert ran(box, "echo a\nreturn 4\necho b") == ("a\n", "exit code 4")


# ---------------------------------------------------------------------------- what is run at each of its commands


def test_command_tracing_shows_only_the_programs_commands(box):
    assert ran(box, "set -x")[0] == ""
    shown, _ = ran(box, "echo one")
    assert shown.replace("+", "") == " echo one\none\n"
    assert ran(box, "set +x")[0].replace("+", "") == " set x\n"
    assert ran(box, "echo two")[0] == "two\n"
    assert ran(box, "set -v") == ("", "")
    assert ran(box, "echo three") == ("three\n", "")


def test_an_error_trap_persists_and_fires_only_for_the_programs_errors(box):
    assert ran(box, "trap 'echo oops' ERR") == ("", "")
    assert ran(box, "true\nfalse\ntrue") == ("oops\n", "")
    assert ran(box, "trap - ERR\nfalse\ntrue") == ("", "")
    assert ran(box, "false\ntrue") == ("", "")


WORDS = subprocess.run(
    ["bash", "-c", "compgen -b; compgen -k"], capture_output=True, text=True, check=False
).stdout.split()
"""All that a shell does or understands without a program of its own."""


def all_mine(made: str) -> str:
    """A program that gives every word another meaning, except the one by which the old ones can be had."""
    return "\n".join(made.format(word) for word in WORDS if word != "builtin")


@pytest.mark.parametrize(
    "made", ["function {0} {{ builtin printf 'MINE {0}\\n'; }}", "builtin alias {0}='echo MINE {0};'"]
)
def test_redefined_host_commands_do_not_affect_the_next_program(box, made):
    assert ran(box, f"x=there; shopt -s expand_aliases; {all_mine(made)}") == ("", "")
    begun = box.begin('a=$(search milk)\nbuiltin printf "%s %s\\n" "$a" "$x"')
    assert isinstance(begun, Suspended)
    assert box.answer(begun, Answer("found")) == Finished(None, "found there\n")


def test_aliases_and_functions_survive_an_exit(box):
    ran(box, f"shopt -s expand_aliases; {all_mine('function {0} {{ builtin printf mine; }}')}")
    assert ran(box, "builtin exit 0")[1] == ""
    assert ran(box, ":; set; declare; alias") == ("mine" * 4, "")
    ran(box, "\\unset -f alias unalias; alias l='echo a\nalias b' m=\"builtin echo 'it'\"")
    ran(box, "builtin exit 0")
    assert ran(box, "m; builtin alias l") == ("it\nalias l='echo a\nalias b'\n", "")


@pytest.mark.rule("CIRCLE-9")
def test_functions_that_need_an_option_to_be_parsed_survive_an_exit(box):
    ran(
        box,
        "shopt -s extglob\nkind() {\n case $1 in +([0-9])) echo number ;; *) echo text ;; esac\n}\nother() { echo o; }",
    )
    ran(box, "exit 0")
    assert ran(box, "kind 12; kind x; other") == ("number\ntext\no\n", "")


def test_a_debug_trap_is_not_run_for_the_hosts_commands(box):
    assert ran(box, "trap 'echo .' DEBUG") == ("", "")
    printed, _ = ran(box, ":\n:\necho x")
    assert "x\n" in printed
    assert 3 <= printed.count(".") <= 5


# -------------------------------------------------------------------------------------------------------- at its end


@pytest.mark.rule("CIRCLE-9")
@pytest.mark.parametrize("end", ["exit 3", "set -e; false", "set -u; echo $unset_one", "true"])
def test_an_exit_trap_runs_once_and_nothing_is_lost(box, end):
    printed, _ = ran(box, f"trap 'echo bye; y=2' EXIT\nx=1\n{end}")
    assert printed.splitlines().count("bye") == 1
    assert ran(box, "set +eu; echo $x $y") == ("1 2\n", "")  # and it does not run again


def test_an_exit_trap_can_be_removed_and_coexists_with_other_traps(box):
    assert ran(box, "trap 'echo bye' EXIT INT; trap - EXIT; trap -p INT") == ("trap -- 'echo bye' SIGINT\n", "")


@pytest.mark.rule("C-67")
@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("timeout 0.1 sleep 60", 124),
        ("timeout 0.1 bash -c 'while :; do :; done'", 124),
        ("timeout -k 0.1 0.1 bash -c 'trap \"\" TERM; while :; do :; done' 2>/dev/null", 137),
        ("echo $(timeout 0.1 sleep 60); timeout 0.1 sleep 60 | cat; (exit ${PIPESTATUS[0]})", 124),
    ],
)
def test_a_time_limit_ends_its_command_and_not_the_program(box, command, status):
    printed, error = ran(box, f"x=1\n{command}\necho after $? $x")
    assert (printed.splitlines()[-1], error) == (f"after {status} 1", "")
    assert ran(box, "echo $x") == ("1\n", "")


@pytest.mark.rule("C-67")
def test_a_shell_does_not_inherit_ignored_signals_from_its_host(box):
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGHUP)]
    try:
        caught = "trap 'echo caught' INT HUP; kill -INT $$; kill -HUP $$; (kill -INT $BASHPID; echo never)"
        assert ran(box, caught) == ("caught\ncaught\n", "exit code 130")
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@pytest.mark.rule("C-67")
@pytest.mark.parametrize(("name", "status"), [("INT", 130), ("TERM", 143)])
def test_a_program_that_a_signal_ends_has_its_exit_code(box, name, status):
    assert ran(box, f"x=1; kill -{name} $$; echo never") == ("", f"exit code {status}")


def test_a_subshell_has_its_own_end(box):
    assert ran(box, "(trap 'echo inner' EXIT; echo in); echo out") == ("in\ninner\nout\n", "")


@pytest.mark.parametrize(
    ("code", "made"),
    [
        ("trap 'rm -f x' EXIT", "__trap 'rm -f x' EXIT"),
        ('trap "rm -f $x" EXIT INT', '__trap "rm -f $x" EXIT INT'),
        ("trap -- clean INT 0", "__trap -- clean INT 0"),
        ("f() { trap '\nrm x\n' exit; }", "f() { __trap '\nrm x\n' exit; }"),
        ("trap - SIGEXIT; echo", "__trap - SIGEXIT; echo"),
        ("trap 'echo EXIT' ERR", "trap 'echo EXIT' ERR"),
        ("echo trap x EXIT", "echo trap x EXIT"),
        ("trap -p EXIT", "trap -p EXIT"),
        ("echo 'trap x EXIT' # trap x EXIT", "echo 'trap x EXIT' # trap x EXIT"),
        ("cat <<E\ntrap x EXIT\nE", "cat <<E\ntrap x EXIT\nE"),
    ],
)
def test_prepare_renames_only_exit_traps(code, made):
    assert prepare(code) == made


# --------------------------------------------------------------------------------------------------- words of a gate


@pytest.mark.rule("CIRCLE-5")
def test_an_unknown_option_is_not_an_argument(box):
    printed, error = ran(box, "search milk --limt 3")
    assert printed == (
        "unknown option --limt: did you mean --limit? usage: search QUERY [--limit …]; "
        "where --limt is text, write -- before it\n"
    )
    assert error == "exit code 1"


@pytest.mark.rule("CIRCLE-5")
def test_an_option_without_its_value_is_an_error(box):
    printed, error = ran(box, "search --query")
    assert printed == "--query needs a value; usage: search QUERY [--limit …]\n"
    assert error == "exit code 1"


@pytest.mark.rule("V-38")
@pytest.mark.parametrize(
    "words", [["--query"], ["--query", "--limit", "3"], ["--query", "--limit=3"], ["--query", "--"]]
)
def test_an_option_before_another_one_has_no_value(words):
    with pytest.raises(ValueError, match="--query needs a value; usage: search QUERY"):
        read_arguments(search.definition, words)


def test_help_shows_usage_and_description(box):
    assert ran(box, "search --help")[0] == "usage: search QUERY [--limit …]\nSearch the notes.\n"


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["--", "--limt"], {"query": "--limt"}),
        (["--limt is no option"], {"query": "--limt is no option"}),
        (["--- a line"], {"query": "--- a line"}),
        (["--query=--x"], {"query": "--x"}),
        (["-n"], {"query": "-n"}),
        (["a", "--limit", "36893488147419103232"], {"query": "a", "limit": "36893488147419103232"}),
    ],
)
def test_text_that_looks_like_an_option_can_be_passed(words, made):
    assert read_arguments(search.definition, words) == made


@pytest.mark.rule("CIRCLE-8")
def test_long_numbers_keep_their_digits():
    assert read_arguments(DONE.definition, ["[36893488147419103232, 1e5, 7]"]) == {
        "answer": ["36893488147419103232", 1e5, 7]
    }


# ------------------------------------------------------------------------------------------------------------- hints


@pytest.mark.rule("CIRCLE-5")
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("searhc milk", 'searhc: did you mean "search"?'),
        ("done", 'if this was to end the task: it is done ANSWER, as in done "the answer"'),
        ("echo milk | xargs search", "search is a function of bash"),
        ("sh -c 'search milk'", "search is a function of bash"),
        ("timeout 3 search milk", "search is a function of bash"),
    ],
)
def test_a_mistaken_gate_call_is_an_error_with_advice(box, code, said):
    assert said in ran(box, code)[1]


@pytest.mark.parametrize(
    "output", ["cat: search: No such file or directory", "line 1: frobnicate: command not found", "searhc", ""]
)
def test_other_errors_get_no_advice(output):
    assert find_hint(output, GATES) == ""


@pytest.mark.parametrize("word", ["9" * 5000, "[" * 100_000 + "9" * 19, "9" * 19 + "x"])
def test_a_word_that_only_resembles_a_number_is_text(word):
    assert read_arguments(DONE.definition, [word]) == {"answer": word}


def test_the_capability_text_omits_a_missing_done():
    assert find_hint("line 1: syntax error near unexpected token `done'", [search.definition]) == ""
