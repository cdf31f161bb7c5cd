"""Every case of the project's own suites, and of the SPEC's where it lies beside the project, on both backends."""

import os
import subprocess
from pathlib import Path

import pytest

from conformance.cases import Case, read_suite
from conformance.run import BACKENDS, run_case
from tests.forked import CONFORMANCE, Forked

ROOT = Path(__file__).parent.parent.parent
OWN = sorted((ROOT / "conformance" / "suites").glob("*.yaml"))
SHARED = ROOT.parent / "shared" / "conformance" / "tests.yaml"


def cases(*files: Path) -> list[object]:
    return [
        pytest.param(case, id=f"{file.stem}-{n}-{case.rule.replace(', ', '+')}")
        for file in files
        for n, case in enumerate(read_suite(file), 1)
    ]


def shared_cases() -> list[object]:
    if SHARED.exists():
        return cases(SHARED)
    return [pytest.param(None, id="missing")]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", cases(*OWN))
def test_every_case_of_the_projects_suites_passes(case: Case, backend: str):
    verdict = run_case(case, (backend,))
    assert verdict.problems == ()
    assert verdict.status == "ok"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", shared_cases())
def test_every_case_of_the_specs_suite_passes(case: Case | None, backend: str):
    if case is None:
        if os.environ.get("CI"):
            pytest.fail("../shared/conformance/tests.yaml is missing: the SPEC's behavioural suite was not run")
        pytest.skip("../shared/conformance/tests.yaml is not there")
    verdict = run_case(case, (backend,))
    assert verdict.problems == ()
    if verdict.status == "not yet":
        pytest.skip(f"{case.rule}: {verdict.note}")
    assert verdict.status in {"ok", "text", "skip"}


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/conformance/tests.yaml is not there")
def test_the_command_counts_the_specs_suite_as_documented():
    command = ["suite", "--backend", "asyncio", str(SHARED)]  # the tests above run each case on both
    with Forked(CONFORMANCE, *command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as ran:
        out, _ = ran.communicate(timeout=120)
    *_, last = out.splitlines()
    statuses = [line.split()[0] for line in out.splitlines() if line.startswith(("ok ", "FAIL ", "not yet "))]
    assert last == f"{statuses.count('ok')} passed, {statuses.count('FAIL')} failed"
    assert ran.returncode == (1 if "FAIL" in statuses else 0)
    assert statuses.count("ok") + statuses.count("not") == 51
