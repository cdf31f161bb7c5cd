"""Check that every rule of tests/rules.toml has a proof: a test, or a case of a behavioural suite.

    python -m tools.rules            print each rule with the number of its proofs
    python -m tools.rules LOOM-4     print the tests and cases that prove these rules
    python -m tools.rules --check    fail if a rule has no proof; those under `open` may have none yet

A test names the rules it proves with ``@pytest.mark.rule("LOOM-4")``, on a function, a class, a module or a parameter;
a case of a behavioural suite with its key ``rule``. Nothing here knows whether those pass: CI runs them for that.

The SPEC's suite is outside of the project. Without it, its cases are not counted, and a notice says so.
"""

import argparse
import contextlib
import io
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tools.pages import ROOT

CATALOGUE = ROOT / "tests" / "rules.toml"

Proofs = dict[str, list[str]]


class Section(NamedTuple):
    """A part of the catalogue: rule ids to words."""

    title: str
    source: str
    rules: dict[str, str]


class Catalogue(NamedTuple):
    """The rules, and those among them that nothing proves yet."""

    sections: Sequence[Section]
    open_rules: frozenset[str] = frozenset()

    @property
    def rules(self) -> Mapping[str, str]:
        """Each rule, in a few words."""
        return {rule: words for section in self.sections for rule, words in section.rules.items()}


def read_catalogue(text: str) -> Catalogue:
    """Return the rules of tests/rules.toml, in its order."""
    content = tomllib.loads(text)
    return Catalogue([Section(**section) for section in content["section"]], frozenset(content["open"]))


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
            name = " ".join(str(case["name"]).split())
            for rule in str(case["rule"]).replace(",", " ").split():
                yield rule, f"{label}: {name}"


def merge(*sources: Iterable[tuple[str, str]]) -> Proofs:
    """Return all proofs of each rule, in the given order, without duplicates."""
    proofs: defaultdict[str, list[str]] = defaultdict(list)
    for source in sources:
        for rule, proof in source:
            if proof not in proofs[rule]:
                proofs[rule].append(proof)
    return dict(proofs)


def find_proofs(shared: Path) -> Proofs:
    """Return the tests of this repository and the cases of all suites, by rule."""
    suites = {path: path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "conformance/suites").glob("*.yaml"))}
    specification = shared / "conformance" / "tests.yaml"
    if specification.exists():
        suites[specification] = "the SPEC's tests.yaml"
    else:
        print(f"notice: {specification} is not there; its cases are not counted", file=sys.stderr)
    cases = [case for path, label in suites.items() for case in suite_cases(path.read_text(encoding="utf-8"), label)]
    tests = [(rule, name) for rule, names in collect_marked_tests().items() for name in names]
    return merge(tests, cases)


def find_faults(catalogue: Catalogue, proofs: Proofs) -> list[str]:
    """Return a line for each rule that nothing proves, that is proven and called open, or that does not exist."""
    rules, is_open = catalogue.rules, catalogue.open_rules
    return [
        *(f"{rule} has no proof: {rules[rule]}" for rule in rules if rule not in proofs and rule not in is_open),
        *(
            f"{rule} has a proof, {proofs[rule][0]}, and is under `open`"
            for rule in rules
            if rule in proofs and rule in is_open
        ),
        *(f"{rule} is under `open` and is no rule of tests/rules.toml" for rule in sorted(is_open - set(rules))),
        *(
            f"{rule} is not a rule of tests/rules.toml, but named by {proofs[rule][0]}"
            for rule in sorted(proofs)
            if rule not in rules
        ),
    ]


def render(catalogue: Catalogue, proofs: Proofs) -> str:
    """Return the table: each rule with the number of its proofs."""
    lines = []
    for section in catalogue.sections:
        lines += [f"{section.title} ({section.source})"]
        lines += [f"  {rule:11} {len(proofs.get(rule, ())):5}  {words}" for rule, words in section.rules.items()]
    return "\n".join(
        [*lines, f"{sum(rule in proofs for rule in catalogue.rules)} of {len(catalogue.rules)} have proofs."]
    )


def main() -> int:
    """Print the rules, the proofs of some, or what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.rules", description=__doc__.splitlines()[0])
    parser.add_argument("rules", nargs="*", metavar="RULE", help="print the proofs of these rules only")
    parser.add_argument("--check", action="store_true", help="print what is wrong only, and fail if something is")
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="the folder of the SPEC's suite")
    options = parser.parse_args()
    catalogue, proofs = read_catalogue(CATALOGUE.read_text(encoding="utf-8")), find_proofs(options.shared)
    if options.check:
        faults = find_faults(catalogue, proofs)
        print("\n".join(faults) or f"each rule has a proof, but for {len(catalogue.open_rules)} open ones")
        return 1 if faults else 0
    for rule in options.rules:
        if rule not in catalogue.rules:
            sys.exit(f"{rule} is not a rule of tests/rules.toml; python -m tools.rules prints them all")
        print(
            rule,
            catalogue.rules[rule],
            *(f"  {proof}" for proof in proofs.get(rule, ["nothing proves it yet"])),
            sep="\n",
        )
    if not options.rules:
        print(render(catalogue, proofs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
