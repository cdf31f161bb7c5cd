"""Generate docs/rules.md: every rule of docs/rules.toml with the tests that prove it, or the word *open*.

A test names the rules it proves with ``@pytest.mark.rule("LOOM-4")``, on a function, a class, a module or a parameter;
a case of a behavioural suite with its key ``rule``. Nothing here knows whether those pass: CI runs them for that.

The SPEC's suite is outside of the project. If it is missing, its cases are copied from the current page, so that the
rest can still be made and checked.

``python -m tools.rules`` writes the page, ``--check`` only reports whether it is up to date.
"""

import argparse
import contextlib
import io
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tools.pages import ROOT, settle

CATALOGUE = ROOT / "docs" / "rules.toml"
PAGE = ROOT / "docs" / "rules.md"
SPEC_SUITE = "the SPEC's tests.yaml"

HEAD = """\
# Rules and their tests

<!-- Made by `make docs` from docs/rules.toml, the tests' `rule` marks and the suites. Do not edit. -->

Every rule this project keeps, in a few words (the sources decide), and what proves it: a test as `path::name`, or a
case of a behavioural suite that the conformance runner runs. **open** means that nothing proves the rule yet.
"""

Proofs = dict[str, list[str]]


class Section(NamedTuple):
    """A heading of the page and the rules under it, id to words."""

    title: str
    source: str
    rules: dict[str, str]


def read_catalogue(text: str) -> list[Section]:
    """Return the sections of docs/rules.toml, in its order."""
    return [Section(**section) for section in tomllib.loads(text)["section"]]


class _Marks:
    """A pytest plugin that notes the rules of every collected test."""

    def __init__(self) -> None:
        self.proofs: defaultdict[str, list[str]] = defaultdict(list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            name = item.nodeid.partition("[")[0]
            for rule in {rule for mark in item.iter_markers("rule") for rule in mark.args}:
                if name not in self.proofs[rule]:
                    self.proofs[rule].append(name)


def collect_marked_tests(*where: str) -> Proofs:
    """Return the tests of each rule, as pytest collects them."""
    marks, output = _Marks(), io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *where], plugins=[marks])
    if code not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        sys.exit(f"the tests cannot be collected:\n{output.getvalue()}")
    return {rule: sorted(names) for rule, names in marks.proofs.items()}


def suite_cases(text: str, label: str) -> Iterator[tuple[str, str]]:
    """Return the rules that a suite proves, with their cases; skipped cases and cases of text alone prove nothing."""
    cases: list[dict[str, Any]] = yaml.safe_load(text) or []
    for case in cases:
        if "action" in case and not case.get("skip"):
            name = " ".join(str(case["name"]).split()).replace("|", "/")
            for rule in str(case["rule"]).replace(",", " ").split():
                yield rule, f"{label}: *{name}*"


def cases_on_page(page: str) -> Iterator[tuple[str, str]]:
    """Return the cases of the SPEC's suite on the current page."""
    for row in re.finditer(r"^\| ([A-Z]+-\d+) \|.*\| (.*) \|$", page, re.MULTILINE):
        yield from ((row[1], proof) for proof in row[2].split("<br>") if proof.startswith(f"{SPEC_SUITE}: "))


def merge(*sources: Iterable[tuple[str, str]]) -> Proofs:
    """Return all proofs of each rule, in the given order, without duplicates."""
    proofs: defaultdict[str, list[str]] = defaultdict(list)
    for source in sources:
        for rule, proof in source:
            if proof not in proofs[rule]:
                proofs[rule].append(proof)
    return dict(proofs)


def render(sections: list[Section], proofs: Proofs) -> str:
    """Return the page."""
    rules = [rule for section in sections for rule in section.rules]
    proven = sum(rule in proofs for rule in rules)
    lines = [HEAD, f"{proven} of {len(rules)} have proofs.", ""]
    for section in sections:
        lines += [f"## {section.title}", "", f"From {section.source}.", ""]
        lines += ["| rule | in a few words | proven by |", "| --- | --- | --- |"]
        lines += [
            f"| {rule} | {words} | {'<br>'.join(proofs.get(rule, ['**open**']))} |"
            for rule, words in section.rules.items()
        ]
        lines.append("")
    return "\n".join(lines)


def make_page(shared: Path) -> str:
    """Return the page for the current tree; exits with the reason if the tree contradicts itself."""
    sections = read_catalogue(CATALOGUE.read_text(encoding="utf-8"))
    suite = shared / "conformance" / "tests.yaml"
    if suite.exists():
        spec = list(suite_cases(suite.read_text(encoding="utf-8"), SPEC_SUITE))
    else:
        print(f"notice: {suite} is not there; its cases are kept as docs/rules.md has them", file=sys.stderr)
        spec = list(cases_on_page(PAGE.read_text(encoding="utf-8"))) if PAGE.exists() else []
    own = [
        case
        for path in sorted((ROOT / "conformance" / "suites").glob("*.yaml"))
        for case in suite_cases(path.read_text(encoding="utf-8"), f"`{path.relative_to(ROOT).as_posix()}`")
    ]
    tests = [(rule, f"`{name}`") for rule, names in collect_marked_tests().items() for name in names]
    proofs = merge(tests, spec, own)
    known_rules = {rule for section in sections for rule in section.rules}
    if unknown := sorted(set(proofs) - known_rules):
        sys.exit(
            "\n".join(f"{rule} is not a rule of docs/rules.toml, but named by {proofs[rule][0]}" for rule in unknown)
        )
    return render(sections, proofs)


def main() -> int:
    """Write docs/rules.md, or compare it."""
    parser = argparse.ArgumentParser(prog="python -m tools.rules", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="where the SPEC's suite lies")
    options = parser.parse_args()
    return settle(PAGE, make_page(options.shared), check=options.check)


if __name__ == "__main__":
    sys.exit(main())
