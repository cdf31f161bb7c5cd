"""The shell medium: the entity writes programs for bash, in a shell of its own, and gates are commands.

The shell is a process in a jail (`confine.py`) that lives from turn to turn; a step talks to it through pipes
(`process.py`). `source.py` changes a program's text, `gates.py` turns commands into gate calls, and each shell reads
`prelude.sh` before each program.

A process cannot be copied. But after each program, the shell's state is saved as text (variables, functions, options,
directory) together with its files (`files.py`). So after a program that exceeds a limit or leaves by `exit`, a new
shell continues in the same state. Text and files are also the sandbox's snapshot, if every shell sees its files under
the same name (bubblewrap) and there are few files. There is no snapshot of a program that waits for a gate: the runtime
runs it again.
"""

from __future__ import annotations

import codecs
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from typing import Any, Final

from cantrip_actors.circle.live_sandbox import LiveSandbox
from cantrip_actors.circle.medium import (
    Answer,
    Finished,
    LimitExceeded,
    Medium,
    ProgramLimits,
    Raised,
    Stepped,
    Suspended,
)
from cantrip_actors.circle.shell import gates as shell_gates
from cantrip_actors.circle.shell.bounds import FILE, Bounds
from cantrip_actors.circle.shell.confine import Jail
from cantrip_actors.circle.shell.confine import jail as find_jail
from cantrip_actors.circle.shell.files import ShellFiles
from cantrip_actors.circle.shell.groups import find_delegated
from cantrip_actors.circle.shell.landlock import SYSTEM
from cantrip_actors.circle.shell.process import OUTPUT, WAYS, Gone, ShellEnded, ShellProcess
from cantrip_actors.circle.shell.source import prepare
from cantrip_actors.circle.shell.state_text import OWN, split_large_variables
from cantrip_actors.own_files.claims import Own
from cantrip_actors.terms.circle import JailName
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.exact_json import dump_exactly
from cantrip_actors.terms.languages import BUILT_IN
from cantrip_actors.terms.messages import ToolDefinition

ASKS: Final = 1_000
"""Gate calls that a program may make in all, refused ones included."""

PROCESSES: Final = 64
WHOLE: Final = 4
"""The memory limit of a whole jail, as a multiple of one process's, if a control group bounds it."""

PROCESSOR: Final = 120
"""CPU seconds that one process may use, the shell itself over all of its turns; it is then replaced."""

_OPEN: Final = b"# files are open\n"
"""The beginning of a state whose shell holds files open."""

_CALM: Final = (
    r"{ __left=$?; __flow=$(\builtin trap -p DEBUG ERR RETURN CHLD CONT); "
    r"case $- in *v*x* | *x*v*) __shows=xv ;; *v*) __shows=v ;; *x*) __shows=x ;; *) __shows= ;; esac; "
    r"__flow+=${__shows:+$'\n'builtin set -$__shows}; "
    r"\builtin trap - DEBUG ERR RETURN CHLD CONT; \builtin set +xv; } &>/dev/null"
)
"""Saves the traps and tracing of a program for the next one, so that they do not apply to the commands between two
programs."""

_ALIASES: Final = "builtin shopt -${__o:-s} expand_aliases; builtin unset __o"
"""Makes the shell know the program's aliases in the text that follows."""

_FLOWS: Final = re.compile(r"\b(?:trap|set|source|eval)\b|(?:^|[\s;&|])\.\s")
"""Words that may have set that. For a shell whose programs contain none of them, a process is saved."""

_NO_ROOM: Final = "alloc: cannot allocate "
"""The messages of a shell that ends because it has no memory left."""

_UNENDED: Final = ": unexpected EOF while looking for matching "
"""The shell's message for a program that ends too soon. Such a shell (bash 5.2) has corrupted its own memory, and may
crash during a later program."""

HELD: Final = 3_000
"""Bytes of a program that every pipe can hold."""

_OWN_NAME: Final = re.compile(r"^/dev/fd/\d+: (?=line \d)", re.MULTILINE)
"""The program's name in the shell's messages."""

_DECODER: Final = codecs.getincrementaldecoder("utf-8")
_NAME: Final = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_PRELUDE: Final = (
    files(__package__)
    .joinpath("prelude.sh")
    .read_text(encoding="utf-8")
    .replace("OWN_VARIABLES", b" ".join(sorted(OWN)).decode())
)


class ShellMedium(Medium):
    """Programs for bash, in shells that a jail confines. `jail` requires one kind of jail.

    Raises InvalidCantrip if no shell can be confined.
    """

    name = "shell"
    fences = BUILT_IN[name].fences

    def __init__(self, jail: JailName | None = None) -> None:
        self._jail = find_jail(jail)
        self.settings = {} if jail is None else {"jail": jail}
        self.engine = f"bash {self._jail.bash} in {self._jail.name}"

    def capability(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> str:
        """Return the text for the entity."""
        return shell_gates.write_capability(gates, limits, names=not self._jail.is_host)

    def open(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> ShellSandbox:
        """Return a new, empty sandbox. Raises InvalidCantrip if its programs could read files of the runtime."""
        return ShellSandbox(self._jail, gates, limits)


class ShellSandbox(LiveSandbox):
    """One entity's shell and workspace, which is empty at first; the first program starts the shell.

    Raises InvalidCantrip if files of the runtime lie in a system folder, which every shell can read.
    """

    def __init__(self, confined: Jail, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> None:
        super().__init__(gates, limits)
        for path in Own.now().paths:
            if any(path.is_relative_to(folder) for folder in SYSTEM):
                raise InvalidCantrip(
                    f"{path} belongs to the runtime, and programs of a shell can read what is there: move it out of "
                    "the folders of the system"
                )
        self._jail = confined
        own_functions = " ".join(["__call", "__trap", *shell_gates.name_functions(gates)])
        self._common = "\n".join(
            [_PRELUDE.replace("OWN_FUNCTIONS", own_functions), shell_gates.write_definitions(gates)]
        )
        """The text that a shell reads before each program."""
        self._files = ShellFiles(confined.choose_user())
        machine = find_delegated()
        self._bounds = Bounds(self._files, self._list_processes, shares=machine is not None and machine.bounds_memory)
        self._process: ShellProcess | None = None
        self._state = b""
        self._flows = False
        self._asks = 0
        self._decoder = _DECODER("replace")
        self._interrupted = False

    # -------------------------------------------------------------------------------------------------------- the turn

    def _start(self, code: str, variables: Mapping[str, Any]) -> Stepped:
        self._interrupted, self._asks, self._decoder = False, 0, _DECODER("replace")
        state, large = split_large_variables(b"" if self._process else self._state)
        encoded = large | _encode_variables(variables)
        if self._process is None:
            self._files.grant_access()
            self._process = ShellProcess(self._jail, self._files, self._write_greeting, self._list_group_limits())
        if self._interrupted:  # while there was no shell to kill
            raise LimitExceeded("interrupted")
        self._bounds.begin()
        self._process.begin(state, encoded, self._write_program(prepare(code)))
        return self._advance(self._process)

    def _continue(self, answer: Answer) -> Stepped:
        assert self._process is not None
        text = f"{answer.value}\n" if answer.is_error else shell_gates.render_result(answer.value)
        self._process.answer(text, failed=answer.is_error)
        return self._advance(self._process)

    def interrupt(self) -> None:
        """End the program, from any thread; the step returns Exceeded. Does nothing between turns."""
        if self._has_program:
            self._interrupted = True
            if (process := self._process) is not None:
                process.kill()

    def _advance(self, process: ShellProcess) -> Stepped:
        began = time.monotonic()
        try:
            while True:
                event = process.wait(self._left - (time.monotonic() - began), self._receive, self._bounds.find_exceeded)
                if self._interrupted:  # a killed shell may still have printed something
                    raise LimitExceeded("interrupted")
                if event is None:  # the host cannot tell whether a shell's processes compute or wait
                    raise LimitExceeded("seconds", f"{self.limits.seconds:g} s of running, waiting included")
                if isinstance(event, LimitExceeded):
                    raise event
                if isinstance(event, ShellEnded):
                    return self._handle_end(event)
                if isinstance(event, Gone):
                    return self._handle_exit(event)
                self._asks += 1
                if self._asks > ASKS:
                    raise LimitExceeded("gate_calls")
                called = self._call(event.gate, partial(shell_gates.read_arguments, words=event.words))
                if isinstance(called, Suspended):
                    return called
                process.answer(f"{called}\n", failed=True)
        finally:
            self._left -= time.monotonic() - began

    def _handle_end(self, event: ShellEnded) -> Stepped:
        self._state = event.state
        unended = event.status and self._has_printed(_UNENDED) and not event.state.startswith(_OPEN)
        process = self._process
        if process is not None and not event.leaves and not unended and process.stop():
            hidden = self._bounds.measure_unnamed()
            if isinstance(hidden, str):
                raise LimitExceeded(hidden)
        else:  # the next program gets a shell with the same state
            hidden = 0
            self._discard()
        self._keep(hidden)
        return self._finish(event.status)

    def _keep(self, hidden: int = 0) -> None:
        if not self._files.keep(hidden):
            raise LimitExceeded("disk")

    def _handle_exit(self, event: Gone) -> Stepped:
        """Handle a shell that ended without a report: it was killed, or replaced by `exec`."""
        if self._process is not None and self._process.ran_out_of_memory():
            raise LimitExceeded("memory")
        if event.status not in range(126):
            raise LimitExceeded("crash")
        if event.telling or self._has_printed(_NO_ROOM):
            raise LimitExceeded("memory")
        self._discard()
        self._keep()
        return self._finish(event.status)

    def _finish(self, status: int) -> Finished | Raised:
        self._print(self._decoder.decode(b"", final=True))
        output = self._take_output()
        if status == 0:
            return Finished(None, output)
        return Raised(f"exit code {status}{shell_gates.find_hint(output, tuple(self._gates.values()))}", output)

    # ------------------------------------------------------------------------------------------------ what it is given

    def _write_greeting(self, descriptors: Sequence[int]) -> str:
        """Return the text that a new shell reads first: limits that it cannot raise, its pipes, and its saved state."""
        kib = 1024
        processes = PROCESSES + self._jail.count_others()
        limits = f"-c 0 -d {self.limits.memory // kib} -f {FILE // kib} -n 256 -u {processes} -t {PROCESSOR}"
        moves = " ".join(f"{way}>&{there} {there}>&-" for way, there in zip(WAYS, descriptors, strict=True))
        return f"ulimit {limits}\nexec {OUTPUT}>&1 {moves}\nprintf 'end\\0000\\0on\\0\\0\\0\\0\\0' >&{WAYS[0]}\n"

    def _list_group_limits(self) -> dict[str, str]:
        """Return the limits of the jail's control group, for a machine that has delegated one."""
        cores = max((os.cpu_count() or 1) // 2, 1)
        return {
            "memory.max": str(WHOLE * self.limits.memory),
            "memory.swap.max": "0",
            "pids.max": str(2 * PROCESSES),  # threads count, and so do the host's own processes
            "cpu.max": f"{cores}00000 100000",
        }

    def _list_processes(self) -> Iterator[int]:
        return iter(()) if self._process is None else self._process.list_processes()

    def _write_program(self, code: str) -> bytes:
        """Return the text that runs a program: the common part, then the program."""
        # `source` and not `eval`: it counts the program's lines from 1. The shell has read the rest of the line before
        # the program can turn on `set -v`. A short text comes from a pipe that holds all of it, so that a shell that
        # can start no more processes still continues.
        self._flows = self._flows or _FLOWS.search(code) is not None
        text = f'"${{__flow:+builtin eval \\"\\$__flow\\"; }}"{_quote(code)}'
        fits = len(code.encode("utf-8", "replace")) <= HELD
        given_as = f"/dev/fd/63 63<<<{text}" if fits else f"<(\\builtin printf %s {text})"
        lines = [
            self._common,
            f"builtin trap {_quote(self._write_end('exit'))} EXIT",
            f"{_ALIASES}; builtin source {given_as} </dev/null; {self._write_end('on')}\n",
        ]
        return "\n".join(lines).encode("utf-8", "replace")

    def _write_end(self, how: str) -> str:
        """Return the text that runs after a program: its exit trap, and the report of its end, also under `set -e`."""
        # read with the program's aliases active; the backslashes bypass them
        bye = '__bye=${__exit-}; __exit=; \\builtin eval "$__bye"'
        calm = _CALM if self._flows else "__left=$?"
        return f'{calm}; {bye}; \\__end end "$__left" {how} "$@" || \\builtin :'

    def _receive(self, data: bytes) -> None:
        self._print(self._decoder.decode(data))

    def _has_printed(self, words: str) -> bool:
        return words in "".join(self._output)

    def _take_output(self) -> str:
        return _OWN_NAME.sub("", super()._take_output())

    # ------------------------------------------------------------------------------------------------- before and after

    def _save(self) -> bytes | None:
        """Return the shell's state and files as a snapshot; None if none can be made.

        None can be made under Landlock, where the files' paths differ between sandboxes, for too many files, or while
        the shell holds files open, which text cannot express.
        """
        if not self._jail.same_paths or self._state.startswith(_OPEN):
            return None
        files = self._files.pack()
        return None if files is None else b"%d\n%b%b" % (len(self._state), self._state, files)

    def _restore(self, image: bytes) -> None:
        length, _, rest = image.partition(b"\n")
        if not self._jail.same_paths or not length.isdigit():
            raise ValueError("expected a snapshot of a shell that is confined in the same way, got other bytes")
        self._discard()
        self._files.unpack(rest[int(length) :])
        self._state = rest[: int(length)]
        self._flows = b"__flow=" in self._state

    def _release(self) -> None:
        self._discard()
        self._files.remove()

    def _undo(self) -> None:
        """End the shell, and restore the files from before the turn."""
        self._discard()
        self._files.undo()

    def _discard(self) -> None:
        """End the shell. The next program gets a new shell with the state from before the turn."""
        process, self._process, self._pending = self._process, None, None
        if process is not None:
            process.close()


def _encode_variables(variables: Mapping[str, Any]) -> dict[str, bytes]:
    """Return variables as text. Raises ValueError for an invalid name."""
    encoded = {}
    for name, value in variables.items():
        if not _NAME.match(name):
            raise ValueError(f"{name!r} is not a variable's name")
        text = value.replace("\0", "").encode("utf-8", "replace") if isinstance(value, str) else dump_exactly(value)
        encoded[name] = text
    return encoded


def _quote(text: str) -> str:
    return shlex.quote(text.replace("\0", ""))
