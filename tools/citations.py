"""Check that code and pages cite only what is in the repository.

- A rule of the SPEC (`LOOP-4`), a frozen decision (`D-011`) and a section (`SPEC 7.2`) have a heading in
  docs/specification.md. A decision that is cited by its number has a file in docs/decisions.
- Ids and sections of working papers are refused: a reader cannot look them up. Tests may name them in their marks, so
  only the names of tests are checked.

``python -m tools.citations`` checks it, as part of ``make lint``.
"""

import re
import sys
from collections.abc import Iterator
from typing import Final

from tools.layers import ROOT
from tools.names import TOPS

SPECIFICATION: Final = ROOT / "docs" / "specification.md"
DECISIONS: Final = ROOT / "docs" / "decisions"
PROSE: Final = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
GENERATED: Final = "docs/reference/"
"""The folder of pages that are made of docstrings, which are checked where they are written."""
SUFFIXES: Final = frozenset({".py", ".js", ".html"})

_OURS: Final = re.compile(
    r"(?<![\w-])(?:(?:LOOP|CANTRIP|INTENT|ENTITY|CRYSTAL|CALL|CIRCLE|COMP|LOOM|PROD)-\d+|D-\d{3})(?!\w)|SPEC \d\.\d+"
)
_DECISION: Final = re.compile(r"[Dd]ecisions? ((?:[ASV]-)?\d{4})(?:(?:,| and) ((?:[ASV]-)?\d{4}))*")
_NUMBER: Final = re.compile(r"(?:[ASV]-)?\d{4}")
_FOREIGN: Final = re.compile(
    r"(?<![\w-])(?:[A-Z]|ACP|HTTP|LOG|MCP|METRIC|OTEL|PAGE|WIRE)-\d{2}(?![\w-])"
    r"|\((?:[VX]\d{1,2}(?:, )?)+\)|\bseed (?:decision )?\d{3}\b"
    r"|\btraps? \d+|\bsections? \d+\.\d of the "
    r"|(?<![\w-])(?:cantrip|circles|core|doors|hardening|kernel|landscape|language|long-life|protocols|providers|sandboxes"
    r"|second-step|supervision)\.md\b"
)
_CODED: Final = re.compile(r"^ *(?:async )?def (test_trap_\d\w*)", re.MULTILINE)


def list_headings(page: str) -> frozenset[str]:
    """Return what a page has headings for: the first word of each, or the first two after "SPEC"."""
    headings = re.findall(r"^#+ (SPEC \d(?:\.\d+)?|[\w-]+)", page, re.MULTILINE)
    return frozenset(headings)


def unknown_citations(text: str, stated: frozenset[str], decisions: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield the citations of rules, sections and decisions that do not exist, with the numbers of their lines."""
    for match in _OURS.finditer(text):
        if match[0] not in stated:
            yield _count_lines(text, match), match[0]
    for match in _DECISION.finditer(text):
        for number in _NUMBER.findall(match[0]):
            if number not in decisions:
                yield _count_lines(text, match), f"decision {number}"


def foreign_citations(text: str) -> Iterator[tuple[int, str]]:
    """Yield the ids and sections of working papers that a text cites, with the numbers of their lines."""
    yield from ((_count_lines(text, match), match[0]) for match in _FOREIGN.finditer(text))


def _count_lines(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


def coded_names(text: str) -> Iterator[tuple[int, str]]:
    """Yield the tests of a file that are named after a trap of a working paper, with the numbers of their lines."""
    yield from ((_count_lines(text, match), match[1]) for match in _CODED.finditer(text))


def read_texts() -> Iterator[tuple[str, str]]:
    """Yield the files that are checked: the path and the text."""
    sources = (path for top in TOPS for path in sorted((ROOT / top).rglob("*")) if path.suffix in SUFFIXES)
    pages = (path for path in sorted((ROOT / "docs").rglob("*.md")))
    for path in (*sources, *pages, *(ROOT / name for name in PROSE)):
        file = path.relative_to(ROOT)
        if not file.as_posix().startswith(GENERATED):
            yield str(file), path.read_text(encoding="utf-8")


def main() -> int:
    """Check the tree; the exit code says whether it is clean."""
    stated = list_headings(SPECIFICATION.read_text(encoding="utf-8"))
    decisions = frozenset(path.name for path in DECISIONS.glob("*.md"))
    numbers = frozenset(match[0] for name in decisions if (match := _NUMBER.match(name)))
    problems: list[str] = []
    for file, text in read_texts():
        for line, citation in unknown_citations(text, stated, numbers):
            problems.append(
                f"{file}:{line}: {citation} has no heading in docs/specification.md, or no file in decisions"
            )
        for line, citation in foreign_citations(text):
            problems.append(f"{file}:{line}: {citation} is of a working paper: state the rule in words instead")
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for line, name in coded_names(path.read_text(encoding="utf-8")):
            problems.append(f"{path.relative_to(ROOT)}:{line}: {name}: name the test after its behaviour")
    if problems:
        print(*problems, sep="\n")
    else:
        print("citations: all are in the repository")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
