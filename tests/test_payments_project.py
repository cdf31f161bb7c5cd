"""The project of a user, examples/payments: it is installed from the built wheels, tests its agent, and serves."""

import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import httpx
import pytest

from tests.exhaustive import part
from tests.loom import postgres
from tests.test_examples import PRINTS
from tests.wheels import build

pytestmark = [pytest.mark.rule("Y-07"), pytest.mark.real_time]

ROOT = Path(__file__).parent.parent
PROJECT = ROOT / "examples" / "payments"
WORKERS = 4
BILLS = sorted((f"user{number % 6}", number) for number in range(1, 13))
"""A user and an amount of each payment."""


class Project:
    """A copy of the project, beside an environment in which its wheel, ours and its tools are installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "payments"
        self.python = folder / "environment" / "bin" / "python"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        shutil.copytree(PROJECT, self.folder, ignore=shutil.ignore_patterns("__pycache__", "dist"))
        sources = (ROOT, ROOT / "packaging" / "supervisors", self.folder)
        self._install([build(source, directory=folder / "dist") for source in sources])
        shutil.rmtree(self.folder / "payments_desk")  # what is tested and served is installed

    def _install(self, wheels: list[Path]) -> None:
        uv = [sys.executable, "-m", "uv"]
        home = self.python.parent.parent
        subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, home], check=True)
        command = [
            *uv,
            "pip",
            "install",
            "--quiet",
            "--python",
            self.python,
            "--constraint",
            ROOT / "requirements.lock",
        ]
        command += [*wheels, "--group", f"{self.folder}/pyproject.toml:test"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and re.search("error sending request|dns error|connect error", done.stderr, re.IGNORECASE):
            pytest.skip("the package registry cannot be reached")
        assert done.returncode == 0, done.stderr

    def run(self, *arguments: str) -> str:
        """Run a module of the environment in the project's folder, and return what it printed."""
        command = [self.python, "-m", *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def serve(self, loom: str, bank: Path) -> Iterator[str]:
        """Serve with four workers, and yield the address once each of them is ready."""
        log = self.folder / "service.log"
        with socket.create_server(("127.0.0.1", 0)) as door, log.open("w") as errors:
            command = [self.python, "-m", "uvicorn", "payments_desk.service:app", "--workers", str(WORKERS)]
            process = subprocess.Popen(
                [*command, "--fd", str(door.fileno())],
                cwd=self.folder,
                env={**self.environment, "LOOM": loom, "BANK": str(bank)},
                pass_fds=[door.fileno()],
                stderr=errors,
            )
            try:
                deadline = time.monotonic() + 90
                while log.read_text().count("Application startup complete.") < WORKERS:
                    assert process.poll() is None, log.read_text()
                    assert time.monotonic() < deadline, log.read_text()
                    time.sleep(0.1)
                yield f"http://127.0.0.1:{door.getsockname()[1]}"
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(60)
        assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("project"))


def test_its_own_tests_and_its_evaluation_pass(project: Project) -> None:
    tested = project.run("pytest", "-q", "-p", "no:cacheprovider")
    assert re.search(r"^1\d passed", tested.splitlines()[-1]), tested
    compared = ("eval", "evaluation/desk.yaml", "--compare", "evaluation/baseline.json")
    report = project.run("cantrip_actors.cli.main", *compared)
    assert re.search(r"^exact +0\.750 +1\.000", report, re.MULTILINE), report


@pytest.mark.rule("L-20")
@pytest.mark.parametrize("example", part(["plain_asyncio", "composition", "several_runtimes", "typed_answers"], 2))
def test_an_example_runs_with_nothing_but_the_installed_wheels(project: Project, example: str) -> None:
    shutil.copy(ROOT / "examples" / f"{example}.py", project.folder)
    printed = project.run(example)
    assert all(line in printed for line in PRINTS[example]), printed


@pytest.mark.parametrize("store", part(["sqlite", "postgres"], 2))
def test_its_four_workers_pay_each_bill_once(project: Project, store: str) -> None:
    loom = f"sqlite:{project.folder / 'desk.db'}" if store == "sqlite" else postgres.fresh()
    bank = project.folder / f"{store}-bank.db"
    answers: Counter[str] = Counter()

    async def ask(client: httpx.AsyncClient, user: str, amount: int) -> None:
        headers = {"x-user": user, "idempotency-key": f"bill {amount}"}
        answer = await client.post("/intents", params={"text": f"Pay {amount} to Anna."}, headers=headers)
        answers[answer.json()["answer"]] += 1

    async def send_all(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client, anyio.create_task_group() as tasks:
            for user, amount in BILLS * 2:  # each request is sent twice
                tasks.start_soon(ask, client, user, amount)

    with project.serve(loom, bank) as url:
        anyio.run(send_all, url)
    assert answers == {f"Paid {amount} to Anna.": 2 for _, amount in BILLS}
    with closing(sqlite3.connect(bank)) as connection:
        assert sorted(connection.execute("select payer, amount from transfer")) == BILLS
