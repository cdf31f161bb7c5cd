"""Gates as commands of a shell: their names, how words become arguments, and the capability text for the entity.

    read a.txt            read a.txt --limit 5            read '{"path": "a.txt", "limit": 5}'

Words are assigned to parameters in order, options by name, and a single JSON object with the parameters' names gives
all of them. For a parameter that is not a text, the word is read as JSON, or as text if it is not JSON. An option that
no parameter has is refused: as the next argument it would only fail later, or not at all.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cantrip_actors.circle.gate_names import name_gates
from cantrip_actors.circle.medium import ProgramLimits
from cantrip_actors.circle.plain import plain
from cantrip_actors.circle.shell.source import COMMAND
from cantrip_actors.terms.bounds import check_value
from cantrip_actors.terms.exact_json import has_long_number, parse_exactly
from cantrip_actors.terms.messages import ToolDefinition, as_text

_BUILTINS: Final = (
    "alias bg bind break builtin caller case cd command compgen complete compopt continue coproc declare dirs disown"
    " do echo elif else enable esac eval exec exit export false fc fg fi for function getopts hash help history if in"
    " jobs kill let local logout mapfile popd printf pushd pwd read readarray readonly return select set shift shopt"
    " source suspend test then time times trap true type typeset ulimit umask unalias unset until wait while"
)
_OWN: Final = frozenset(_BUILTINS.split())
"""Commands that the shell needs. A gate with such a name gets another command: `read` becomes `gate_read`."""

_OPTION: Final = re.compile(r"--[A-Za-z][\w-]*(=.*)?\Z", re.ASCII | re.DOTALL)
_NOT_FOUND: Final = re.compile(r"line \d+: ([\w.+-]+): command not found$", re.MULTILINE)
_NO_PROGRAM: Final = re.compile(
    r"^(?:sh: \d+:|xargs:|env:|find:|[a-z]+: failed to run command) "
    r"['‘]?([\w.+-]+)['’]?: (?:not found|No such file or directory)$",
    re.MULTILINE,
)
TOLD: Final = 20
"""The most unknown commands of one program that get advice."""


_NO_NAME: Final = re.compile(r"[^\w.+-]")


def name_commands(gates: Sequence[ToolDefinition]) -> Mapping[str, str]:
    """Return each command and the gate that it calls."""
    return {command: gate.name for command, gate in name_gates(gates, _make_command).items()}


def _make_command(name: str) -> str:
    command = _NO_NAME.sub("_", name)
    return f"gate_{command}" if command in _OWN else command


def name_functions(gates: Sequence[ToolDefinition]) -> Mapping[str, str]:
    """Return each shell function and the gate that it calls: `done` has the name that `source.py` gives it."""
    return {COMMAND if command == "done" else command: gate for command, gate in name_commands(gates).items()}


def write_definitions(gates: Sequence[ToolDefinition]) -> str:
    """Return the commands as shell functions."""
    lines = []
    for name, gate in name_functions(gates).items():
        lines.append(f"builtin unalias {name} 2>/dev/null || builtin :")
        lines.append(f'{name}() {{ __call {shlex.quote(gate)} "$@"; }}')
        lines.append(f"builtin export -f {name}")
    return "\n".join(lines)


def read_arguments(gate: ToolDefinition, words: Sequence[str]) -> dict[str, Any]:
    """Return a command's words as the gate's arguments. Raises ValueError with the usage, or with
    the bound that they exceed.
    """
    args = _bind(gate, words)
    check_value(args)
    return args


def _bind(gate: ToolDefinition, words: Sequence[str]) -> dict[str, Any]:
    properties: Mapping[str, Any] = gate.parameters.get("properties", {})
    names = list(properties)
    if len(words) == 1 and words[0][:1] == "{":
        whole = _read_json(words[0])
        if isinstance(whole, dict) and (not names or set(whole) <= set(names)):
            return whole
    args: dict[str, Any] = {}
    waiting, placed = deque(words), list[str]()
    while waiting:
        word = waiting.popleft()
        name, equals, value = _split_option(word, properties)
        if word == "--":
            placed += waiting
            waiting.clear()
        elif _OPTION.match(word) and name not in properties and not equals and name == "help":
            raise ValueError(render_usage(gate))
        elif _OPTION.match(word) and name not in properties:
            raise ValueError(_explain_unknown(gate, name, word))
        elif word[:2] == "--" and name in properties:
            if not equals:
                has_value = bool(waiting) and not _is_option(waiting[0], properties)
                if not has_value and not _is_switch(properties[name]):
                    raise ValueError(f"{word} needs a value; usage: {render_signature(gate)}")
                value = waiting.popleft() if has_value else "true"
            args[name] = _read_value(properties[name], value)
        else:
            placed.append(word)
    free = [name for name in names if name not in args]
    if len(placed) > len(free):
        more = f"{len(placed)} words where {len(free)} can be; text with spaces needs quotes"
        raise ValueError(f"{more}; usage: {render_signature(gate)}")
    return args | {name: _read_value(properties[name], word) for name, word in zip(free, placed, strict=False)}


def _split_option(word: str, properties: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the name of the parameter in `--name=value`, the equals sign, and the value."""
    name, equals, value = word[2:].partition("=")
    return name if name in properties else name.replace("-", "_"), equals, value


def _is_option(word: str, properties: Mapping[str, Any]) -> bool:
    return word == "--" or (word[:2] == "--" and _split_option(word, properties)[0] in properties)


def _explain_unknown(gate: ToolDefinition, name: str, word: str) -> str:
    close = difflib.get_close_matches(name, gate.parameters.get("properties", {}), n=1)
    meant = f"did you mean --{close[0]}? " if close else ""
    return f"unknown option --{name}: {meant}usage: {render_signature(gate)}; where {word} is text, write -- before it"


def render_usage(gate: ToolDefinition) -> str:
    """Return the text of `--help`: a command's usage and description."""
    return "\n".join([f"usage: {render_signature(gate)}", *filter(None, [gate.description])])


def find_hint(output: str, gates: Sequence[ToolDefinition]) -> str:
    """Return advice for the shell's own error messages, if they concern `gates`; else an empty text."""
    named = name_commands(gates)
    for other in _NO_PROGRAM.findall(output):
        if other in named:
            return (
                f"; {other} is a function of bash, which other programs do not know: have them run bash -c '{other} …'"
            )
    for unknown in _NOT_FOUND.findall(output)[:TOLD]:
        close = difflib.get_close_matches(unknown, named, n=1)
        if close:
            return f'; {unknown}: did you mean "{close[0]}"?'
    if "done" in named and "unexpected token `done'" in output:
        return '; if this was to end the task: it is done ANSWER, as in done "the answer"'
    return ""


def _is_switch(shape: Any) -> bool:
    return isinstance(shape, Mapping) and shape.get("type") == "boolean"


def _read_value(shape: Any, word: str) -> Any:
    if _is_text(shape):
        return word
    value = _read_json(word)
    return word if value is _NONE else value


_NONE: Final = object()


def _read_json(word: str) -> Any:
    try:
        value = parse_exactly(word)
    except ValueError:
        return _NONE
    # an integer of more than 64 bits is kept as its digits (D-005)
    return plain(value) if has_long_number(word) else value


def _is_text(shape: Any) -> bool:
    """Return whether a parameter accepts only text, or text and null."""
    if not isinstance(shape, Mapping):
        return False
    for key in ("anyOf", "oneOf"):
        if key in shape:
            kinds = [
                option for option in shape[key] if not (isinstance(option, Mapping) and option.get("type") == "null")
            ]
            return bool(kinds) and all(map(_is_text, kinds))
    return shape.get("type") == "string" or ("enum" in shape and all(isinstance(value, str) for value in shape["enum"]))


def render_result(value: Any) -> str:
    """Return a gate's result as a command prints it: text unchanged, anything else as JSON."""
    if value is None:
        return ""
    text = as_text(value)
    return text if text.endswith("\n") else f"{text}\n"


def render_signature(gate: ToolDefinition) -> str:
    """Return the usage of a command, such as `read PATH [--limit LIMIT]`."""
    required = gate.parameters.get("required", ())
    words = [name.upper() if name in required else f"[--{name} …]" for name in gate.parameters.get("properties", {})]
    return " ".join([_make_command(gate.name), *words])


_LANGUAGE: Final = """\
You act by writing programs for bash. They run one after the other in a shell of your own, whose variables, functions,
directory and files live on; each starts with no input, and you are shown what it prints and its exit code. There is no
network, nothing of the machine but its programs, and nothing to write to but your directory and /tmp."""

_CALLS: Final = """\
Words are their arguments in order, --name WORD names one, and one JSON object is all of them by name. A command prints
its result, text as it is and anything else as JSON; when it fails it prints why and its exit code is 1."""

_DONE: Final = """\
done ANSWER ends the task, and so does submit_answer ANSWER; an answer that is JSON is taken as what it denotes."""


def write_capability(gates: Sequence[ToolDefinition], limits: ProgramLimits, *, names: bool = True) -> str:
    """Return the text about this medium for the entity. `names` says whether files can be changed by their names."""
    lines = [_LANGUAGE]
    if gates:
        lines += ["", "What you can do beyond that are these commands:", ""]
    for gate in gates:
        about = " ".join(gate.description.split("\n\n")[0].split())
        lines.append(f"  {render_signature(gate)}{f'  # {about}' if about else ''}")
    if gates:
        lines += ["", _CALLS]
    if any(gate.name == "done" for gate in gates):
        lines.append(_DONE)
    lines.append(
        f"A program may run for {limits.seconds:g} s, each of its processes use {limits.memory / 2**20:.4g} MiB, and "
        f"it may print {limits.output} characters and make {limits.gate_calls} calls. One that exceeds a limit is "
        "ended: variables, directory and files are then as they were before. Processes end with the program that "
        "started them."
    )
    if not names:
        lines.append("Rights, owners and times of files cannot be changed here: run a script as `bash FILE`.")
    return "\n".join(lines)
