"""Every example in README.md and docs/ runs as printed.

A page is one program, run from top to bottom in an empty folder, in one namespace and one event loop:

- ``python`` blocks are executed; a block may use ``await`` and ``async with`` at its top level;
- a block with ``file=NAME`` after its language is written to that file first (a recipe that a later command reads);
- ``console`` blocks: each line ``$ cantrip ...`` or ``$ python ...`` is run, and must succeed, or exit with what a
  comment says (``# exit 3``). Its output is compared with the lines below it; ``...`` matches anything. A
  comment that begins with ``# until`` or ``# needs`` says why a command is not run;
- a block of a comparison whose statements are counted says so, ``python counted``;
- a block that cannot run says so in its language, ``python no-run``, and begins with a comment that says why.
"""

import ast
import asyncio
import doctest
import inspect
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.forked import COMMAND, PROGRAM, Forked

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^`\n]*)$")
COMMAND_LINE = re.compile(r"^\$ (?P<line>(?:cantrip|python)\b.*?)(?:\s+# exit (?P<code>\d+))?$")
NOT_RUN = re.compile(r"  # (until|needs) ")
SECONDS = 60


class Block(NamedTuple):
    """A fenced block: its first line, the words after the ticks, and its text."""

    line: int
    info: tuple[str, ...]
    text: str

    @property
    def language(self) -> str:
        return self.info[0] if self.info else ""

    @property
    def file(self) -> str | None:
        return next((word.removeprefix("file=") for word in self.info if word.startswith("file=")), None)


class Command(NamedTuple):
    """One command of a console block, the exit code it must have, and the output that the page shows, if any."""

    line: str
    code: int
    output: str


def blocks(page: str) -> Iterator[Block]:
    lines = enumerate(page.splitlines(), start=1)
    for number, line in lines:
        if opening := FENCE.match(line):
            closing, indent, text = opening["ticks"], len(opening["indent"]), []
            for _, inner in lines:
                if inner.strip() == closing:
                    break
                text.append(inner[indent:])
            yield Block(number, tuple(opening["info"].split()), "".join(f"{inner}\n" for inner in text))


def commands(text: str) -> Iterator[Command]:
    """The commands of a console block that are run here; others (``git``, ``make``) are for the reader."""
    found: re.Match[str] | None = None
    shown: list[str] = []
    for line in [*text.splitlines(), "$"]:
        if line.startswith("$"):
            if found:
                yield Command(found["line"], int(found["code"] or 0), "\n".join(shown).strip())
            found, shown = None if NOT_RUN.search(line) else COMMAND_LINE.match(line), []
        else:
            shown.append(line)


def run_command(command: Command) -> None:
    """Run a command: `cantrip` or a program as a fork that has imported most of it, one with pipes in a shell."""
    scripts = sysconfig.get_path("scripts")
    environment = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "120",
        "NO_COLOR": "1",
    }
    program, *arguments = shlex.split(command.line.removesuffix(" 2>&1"))
    is_simple = not re.search(r"[|&;<>$`*]", command.line.removesuffix(" 2>&1"))
    if is_simple and (program == "cantrip" or re.fullmatch(r"\w+\.py", arguments[0])):
        errors = subprocess.STDOUT if command.line.endswith(" 2>&1") else subprocess.PIPE
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": errors}
        process: subprocess.Popen[str] = Forked(
            COMMAND if program == "cantrip" else PROGRAM, *arguments, env=environment, text=True, **options
        )
    else:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command.line, shell=True, env=environment, text=True, **options)
    with process:
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    if process.returncode != command.code:
        pytest.fail(f"$ {command.line}\nexited with {process.returncode}:\n{out}{err}")
    printed = "\n".join(line.rstrip() for line in out.strip().splitlines())
    if command.output and not doctest.OutputChecker().check_output(command.output, printed, doctest.ELLIPSIS):
        pytest.fail(f"$ {command.line}\nthe page shows:\n{command.output}\nit printed:\n{printed}")


def run_page(page: Path, text: str) -> None:
    """Run the blocks of a page, in the current folder."""
    module = types.ModuleType(f"page_{page.stem}")
    sys.modules[module.__name__] = module  # where pydantic and dataclasses look for a class's annotations
    try:
        with asyncio.Runner() as runner:
            for block in blocks(text):
                if block.file:
                    Path(block.file).parent.mkdir(parents=True, exist_ok=True)
                    Path(block.file).write_text(block.text, encoding="utf-8")
                elif block.language == "python" and "no-run" not in block.info:
                    # The empty lines make a traceback point into the page.
                    source = "\n" * block.line + block.text
                    code = compile(source, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                    if code.co_flags & inspect.CO_COROUTINE:
                        runner.run(eval(code, vars(module)))
                    else:
                        exec(code, vars(module))
                elif block.language == "console":
                    for command in commands(block.text):
                        runner.run(asyncio.to_thread(partial(run_command, command)))
    finally:
        del sys.modules[module.__name__]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


TWICE = ("loom", "export", "approvals")
"""The pages that run again in the same folder."""
RULES = {"project": ("L-13",)}
"""The rules that a page proves by running."""


@pytest.mark.real_time
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=page.relative_to(ROOT).as_posix(),
            marks=[pytest.mark.rule(rule) for rule in RULES.get(page.stem, ())],
        )
        for page in PAGES
        if page.stem not in TWICE
    ],
)
def test_every_page_runs_as_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # an example may start the command that a reader has on the path
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    run_page(page, page.read_text(encoding="utf-8"))


@pytest.mark.real_time
@pytest.mark.parametrize("name", TWICE)
def test_a_page_runs_again_in_the_same_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / f"{name}.md"
    text = page.read_text(encoding="utf-8")
    run_page(page, text)
    for written in (*tmp_path.glob("loom.jsonl*"), *tmp_path.glob("heads.json")):  # as pages about looms say
        written.unlink()
    run_page(page, text)


def count_statements(block: Block) -> int:
    """The statements of a program, without imports and docstrings."""
    statements = [
        node
        for node in ast.walk(compile(block.text, "page", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        if isinstance(node, ast.stmt)
    ]
    return sum(
        not isinstance(node, ast.Import | ast.ImportFrom)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in statements
    )


@pytest.mark.rule("Y-08")
def test_a_comparison_counts_statements_and_ours_are_not_more() -> None:
    page = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    compared = [section for section in page.split("\n## ") if "| statements |" in section]
    assert len(compared) == 3
    for section in compared:
        theirs = sum(count_statements(block) for block in blocks(section) if "no-run" in block.info)
        ours = sum(count_statements(block) for block in blocks(section) if "counted" in block.info)
        assert f"| statements | {theirs} | {ours} |" in section, (theirs, ours)
        assert ours <= theirs


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_a_block_that_does_not_run_says_why_and_is_sound_python(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        if "no-run" in block.info:
            assert block.text.startswith("#"), f"{page}:{block.line}: begin with a comment that says why it cannot run"
            if block.language == "python":
                compile(block.text, f"{page}:{block.line}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_each_row_of_what_can_go_wrong_names_a_test_that_is_there() -> None:
    page = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| what", "| ---"))]
    named = [re.search(r"\[test\]\(\.\./(\S+) \"(\w+)\"\)", row) for row in rows]
    assert len(rows) > 25
    for row, test in zip(rows, named, strict=True):
        assert test is not None, f"no test: {row}"
        assert f"def {test[2]}(" in (ROOT / test[1]).read_text(encoding="utf-8"), row


class TestRunner:
    """A runner of examples that runs nothing would be the quietest failure of all."""

    @pytest.fixture(autouse=True)
    def _empty_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def run(self, text: str) -> None:
        run_page(Path("page.md"), text)

    def test_blocks_share_a_namespace_and_may_await(self) -> None:
        self.run("```python\nimport anyio\nx = 1\n```\n\n```python\nawait anyio.Path('x').write_text(f'{x}')\n```\n")
        assert Path("x").read_text() == "1"

    def test_a_block_may_start_a_loop_of_its_own(self) -> None:
        self.run("```python\nimport asyncio\nasync def main(): return 2\nassert asyncio.run(main()) == 2\n```\n")

    def test_a_failing_block_fails_and_points_into_the_page(self) -> None:
        with pytest.raises(ZeroDivisionError) as failure:
            self.run("text\n\n```python\nfine = 1\n1 / 0\n```\n")
        assert failure.traceback[-1].lineno == 4  # counted from 0

    def test_a_block_with_no_run_is_not_run(self) -> None:
        self.run("```python no-run\n# needs a key\n1 / 0\n```\n")

    def test_a_file_block_is_written_before_later_commands(self) -> None:
        write = "```text file=sub/a.txt\nhello\n```\n"
        self.run(f"{write}\n```console\n$ python -c \"print(open('sub/a.txt').read())\"\nhello\n```\n")

    def test_the_output_of_a_command_is_compared(self) -> None:
        with pytest.raises(pytest.fail.Exception, match="it printed:\nb"):
            self.run("```console\n$ python -c \"print('b')\"\na\n```\n")

    def test_dots_in_an_output_match_anything(self) -> None:
        self.run("```console\n$ python -c \"print('took 13 ms')\"\ntook ... ms\n$ python -c \"print('x')\"\n```\n")

    def test_the_exit_code_of_a_command_is_compared(self) -> None:
        self.run('```console\n$ python -c "raise SystemExit(3)"  # exit 3\n```\n')
        with pytest.raises(pytest.fail.Exception, match="exited with 3"):
            self.run('```console\n$ python -c "raise SystemExit(3)"\n```\n')

    def test_a_command_that_needs_something_or_does_not_end_is_not_run(self) -> None:
        self.run("```console\n$ cantrip serve a.yaml  # until ctrl-C\nserving\n$ python a.py  # needs a key\n```\n")

    def test_commands_other_than_cantrip_and_python_are_not_run(self) -> None:
        self.run("```console\n$ make nonsense\n```\n")
