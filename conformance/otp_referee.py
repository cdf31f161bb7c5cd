"""Erlang itself, kept running: the referee of `../shared/otp`, asked for one trace after another.

`oracle.py` starts a virtual machine and compiles its script for each scenario, half a second each. Here the same script
gets another `main`, which reads file names from its input, so that a trace costs only its steps. Nothing else of the
script is changed, and nothing is copied: both files are read in place.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

SHARED = Path(__file__).resolve().parents[2] / "shared" / "otp"

_MAIN = """
main(_) -> again().

again() ->
    case io:get_line("") of
        eof -> halt(0);
        Line ->
            {_, M} = spawn_monitor(fun() -> one(string:trim(Line)) end),
            receive {'DOWN', M, process, _, Why} -> sweep(), io:format("end ~w.~n", [Why =:= normal]) end,
            again()
    end.

%% The names of this run have to be free before the next one begins.
sweep() ->
    Left = [N || N <- registered(),
                 N =:= collector orelse N =:= counts orelse lists:prefix("sup_", atom_to_list(N))
                     orelse lists:prefix("worker_", atom_to_list(N))],
    [case whereis(N) of undefined -> ok; P -> exit(P, kill) end || N <- Left],
    case Left of [] -> ok; _ -> timer:sleep(1), sweep() end.
"""


class NoReferee(Exception):
    """Erlang or the oracle is missing here; the text says which."""


def missing() -> str | None:
    """Return what is missing for the comparison; `None` if it can run."""
    if shutil.which("escript") is None:
        return "escript is not installed (Debian: apt-get install erlang-base)"
    if not (SHARED / "oracle.escript").exists():
        return "../shared/otp/oracle.escript is not there"
    return None


def _oracle() -> ModuleType:
    spec = importlib.util.spec_from_file_location("oracle", SHARED / "oracle.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Referee:
    """A running Erlang. `with Referee() as referee: referee.trace(scenario)`

    Raises:
        NoReferee: on entering, if something is missing.
    """

    def __enter__(self) -> Self:
        if (what := missing()) is not None:
            raise NoReferee(what)
        self._oracle = _oracle()
        self._folder = tempfile.TemporaryDirectory(prefix="referee")
        script = Path(self._folder.name) / "oracle.escript"
        text = (SHARED / "oracle.escript").read_text(encoding="utf-8")
        text, replaced = re.subn(r"^main\(\[File\]\) ->", "one(File) ->", text, flags=re.MULTILINE)
        text, silenced = re.subn(r"^(\s*)halt\(0\)\.", r"\1ok.", text, flags=re.MULTILINE)
        if (replaced, silenced) != (1, 1):
            raise NoReferee("../shared/otp/oracle.escript has changed; adapt conformance/otp_referee.py to it")
        script.write_text(text + _MAIN, encoding="utf-8")
        self._process = subprocess.Popen(  # noqa: S603
            ["escript", str(script)],  # noqa: S607
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def trace(self, scenario: dict[str, Any]) -> list[dict[str, Any]]:
        """Return Erlang's trace of a scenario."""
        oracle = self._oracle
        steps = ",".join(oracle.step(scenario["tree"], step) for step in scenario["steps"])
        source = Path(self._folder.name) / "scenario.term"
        source.write_text(f"{{{oracle.tree(scenario['tree'])},[{steps}]}}.\n", encoding="utf-8")
        assert self._process.stdin is not None
        self._process.stdin.write(f"{source}\n")
        self._process.stdin.flush()
        rows = []
        for line in self._lines():
            number, events, result, alive = oracle.split(line[1:-1])
            rows.append(
                {
                    "step": int(number),
                    "events": oracle.value(events),
                    "result": oracle.value(result),
                    "alive": alive.strip() == "true",
                }
            )
        return rows

    def _lines(self) -> list[str]:
        assert self._process.stdout is not None
        lines: list[str] = []
        text = ""
        for part in self._process.stdout:
            text += part.strip()
            if not part.rstrip("\n").endswith("."):
                continue
            line, text = text.removesuffix("."), ""
            if line.startswith("end "):
                if line != "end true":
                    raise RuntimeError(f"the referee failed after {lines}")
                return lines
            lines.append(line)
        raise RuntimeError("the referee ended")
