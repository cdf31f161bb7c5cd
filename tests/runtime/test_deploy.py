"""The service of docs/deploy.md under load, while all of its workers are replaced by those of another release."""

import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest
from fastapi.testclient import TestClient

from cantrip_actors import open_loom
from examples import deploy_service
from tests.exhaustive import EXHAUSTIVE
from tests.forked import Forked
from tests.loom import postgres

WORKERS = 4
NEW, OLD = 1_000_000, 2_000_000
"""The numbers of the first requests while all workers have the new release, and after the roll back."""
USERS = 6
RATE = 50 if EXHAUSTIVE else 20
"""Requests a second."""
OPEN = 2 * RATE
"""The most requests that the users have open at once: they wait for a machine that is slower."""

WORKER = """
import os, signal, socket, sys

os.environ |= dict(zip(("LOOM", "LEDGER", "RELEASE"), sys.argv[1:4]))
import uvicorn
from examples.deploy_service import app

door = socket.create_server(("127.0.0.1", 0))
print(door.getsockname()[1], flush=True)
signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it again when all is shut down
config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=20)
uvicorn.Server(config).run([door])
"""


class Worker:
    """A worker process of one release."""

    def __init__(self, process: Forked, release: int) -> None:
        self.process, self.release = process, release
        self.url = f"http://127.0.0.1:{process.stdout.readline().strip()}"


@contextmanager
def running(url: str, ledger: Path, release: int) -> Iterator[Worker]:
    process = Forked(WORKER, url, ledger, release, stdout=subprocess.PIPE, text=True)
    try:
        yield Worker(process, release)
    finally:
        process.kill()
        process.communicate()


class Deploy:
    """The load on a service, and the workers that take it, as a load balancer has them."""

    def __init__(self, url: str, ledger: Path, stack: ExitStack) -> None:
        self._url, self._ledger, self._stack = url, ledger, stack
        self.workers: list[Worker] = []
        self.answers: dict[str, str] = {}
        self.refusals: Counter[str] = Counter()
        self.is_over = False
        self._open = anyio.CapacityLimiter(OPEN)

    async def start(self, client: httpx.AsyncClient, release: int) -> Worker:
        worker = self._stack.enter_context(running(self._url, self._ledger, release))
        while True:
            try:
                answer = await client.get(f"{worker.url}/health", timeout=30)
            except httpx.TransportError:
                await anyio.sleep(0.05)
                continue
            assert answer.json() == {"release": release}
            return worker

    async def add(self, client: httpx.AsyncClient, release: int) -> None:
        self.workers.append(await self.start(client, release))

    async def replace_all(self, client: httpx.AsyncClient, release: int) -> None:
        """Start the workers of the other release, and stop those of this one, one after the other."""
        before = list(self.workers)
        async with anyio.create_task_group() as tasks:
            for _ in before:
                tasks.start_soon(self.add, client, release)
        for old in before:
            self.workers.remove(old)
            old.process.send_signal(signal.SIGTERM)
            assert await anyio.to_thread.run_sync(partial(old.process.wait, 40)) == 0

    async def request(self, client: httpx.AsyncClient, number: int) -> None:
        """Send one request until it is answered, to another worker after each refusal, as clients with keys do."""
        user, item, path = f"user{number % USERS}", f"item{number}", ("ask", "jobs")[number // USERS % 2]
        attempt = 0
        while True:
            worker = self.workers[(number + attempt) % len(self.workers)]
            attempt += 1
            headers = {"x-user": user, "idempotency-key": item}
            try:
                answer = await client.post(f"{worker.url}/{path}", content=item, headers=headers, timeout=60)
            except httpx.TransportError as error:  # the worker closed between two requests of a connection
                self.refusals[type(error).__name__] += 1
            else:
                if answer.status_code == 200:
                    self.answers[item] = f"{user} {item} | {answer.json()['answer']}"
                    return
                self.refusals[answer.text[:200]] += 1
                assert answer.status_code == 503, answer.text
            await anyio.sleep(0.1)

    async def ask_each(self, client: httpx.AsyncClient, first: int) -> None:
        """Send two requests of each user; each is answered."""
        asked = len(self.answers)
        async with anyio.create_task_group() as tasks:
            for number in range(first, first + 2 * USERS):
                tasks.start_soon(self.request, client, number)
        assert len(self.answers) == asked + 2 * USERS

    async def keep_asking(self, client: httpx.AsyncClient, number: int = 0) -> None:
        async def send(number: int) -> None:
            try:
                await self.request(client, number)
            finally:
                self._open.release_on_behalf_of(number)

        began, first = anyio.current_time(), number
        async with anyio.create_task_group() as tasks:
            while not self.is_over:
                await self._open.acquire_on_behalf_of(number)
                tasks.start_soon(send, number)
                number += 1
                await anyio.sleep_until(began + (number - first) / RATE)


@pytest.mark.rule("Y-05")
@pytest.mark.real_time
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_rolling_restart_under_load_loses_doubles_and_mixes_nothing(tmp_path: Path, store: str) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}" if store == "sqlite" else postgres.fresh()
    ledger = tmp_path / "ledger.txt"

    async def deploy() -> Deploy:
        service = Deploy(url, ledger, stack)
        limits = httpx.Limits(max_connections=400, max_keepalive_connections=400)
        async with httpx.AsyncClient(limits=limits) as client:
            async with anyio.create_task_group() as tasks:
                for _ in range(WORKERS):
                    tasks.start_soon(service.add, client, 1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(service.keep_asking, client)
                await service.replace_all(client, 2)
                service.is_over = True
            await service.ask_each(client, NEW)
            service.is_over = False
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(service.keep_asking, client, 100_000)
                await service.replace_all(client, 1)
                service.is_over = True
            await service.ask_each(client, OLD)
        return service

    with ExitStack() as stack:
        service = anyio.run(deploy)
        for worker in service.workers:
            worker.process.send_signal(signal.SIGTERM)
        assert [worker.process.wait(40) for worker in service.workers] == [0] * WORKERS

    for item, answer in service.answers.items():
        asker, _, result = answer.partition(" | ")
        user, _ = asker.split()
        assert result in {f"Release {release}: {item} for {user}" for release in (1, 2)}
        number = int(item.removeprefix("item"))
        if number >= NEW:  # asked while all workers had the same release
            assert result.startswith("Release 1:" if number >= OLD else "Release 2:")
    expected = sorted(answer.partition(" | ")[0] for answer in service.answers.values())
    assert sorted(ledger.read_text().splitlines()) == expected, "each item is ordered once, for its own user"
    assert not any("Held" in refusal for refusal in service.refusals), service.refusals
    with open_loom(url) as loom:
        jobs = [one for one in loom.entities() if loom.header(one).name is None]
        assert {loom.state(one) for one in jobs} == {"terminated"}
        assert len(jobs) > 10


@pytest.mark.real_time
@pytest.mark.parametrize("path", ["ask", "jobs"])
def test_a_request_whose_work_takes_long_gets_503_and_the_next_one_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(deploy_service, "LOOM", f"sqlite:{tmp_path / 'loom.db'}")
    monkeypatch.setattr(deploy_service, "LEDGER", tmp_path / "ledger.txt")
    headers = {"x-user": "anna", "idempotency-key": "tea"}
    with TestClient(deploy_service.app) as client:
        with monkeypatch.context() as patience:
            patience.setattr(deploy_service, "PATIENCE", 0.0)
            refused = client.post(f"/{path}", content="tea", headers=headers)
        answered = client.post(f"/{path}", content="tea", headers=headers)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert answered.json() == {"answer": "Release 1: tea for anna"}
    assert (tmp_path / "ledger.txt").read_text() == "anna tea\n"
