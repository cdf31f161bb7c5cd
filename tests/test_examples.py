"""The examples run, and print the documented output."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import Phase, given, settings

from examples import property_test, web_service
from tests.forked import PROGRAM, Forked

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"

PRINTS = {
    "plain_asyncio": [
        "calls: temperature {'city': 'Rome'}",
        "answer: It is 19 degrees in Rome.",
        "turn 2: temperature failed KeyError: 'Atlantis'",
    ],
    "plain_trio": ["in time: Done.", "cut off: True cancelled"],
    "blocking": ["Is it easy? Yes.", "Number 2? Yes.", "4 entities are in the loom"],
    "own_gates": [
        "error: OperationalError: no such table: vegetables",
        'error: query: missing required argument "sql"; unexpected argument "statement"',
        "result: [[5]]",
    ],
    "composition": [
        "answer: [5, {'is_error': True, 'error': 'child failed: crystal raised RuntimeError: ",
        "terminated 3\n  terminated 2\n  failed 1\n  terminated 2\n",
    ],
    "several_runtimes": ["['WRITE THE REPORT']\n", "FEED THE CAT"],
    "monitor": [
        "   └─ mail  Watch  up",
        "shop: ok, stopped, 1 prober",
        "mail: crashed: no route, ok, stopped, 1 prober",
        "search: too slow, ok, stopped, 1 prober",
    ],
    "property_test": ["it always ends"],
    "sql_medium": [
        "name | price + more\\npear | 5",
        "1 rows changed",
        "the database is read-only here: gate not available: change",
        "result: 7",
    ],
    "remote_python": ["the gate ran in this process: True", "network interfaces there: ['lo"],
    "typed_answers": ["total=3 items=[]", "Mood.GOOD", "no answer: max_turns", "7 8", "11 12\n13\n14\n"],
    "crash_points": ["Shop: 0 crashes break it", "MarkedBefore: 1 crash breaks it"],
    "sentiment": ["I love this wonderful day: POSITIVE, ACCEPT", "The soup was awful: NEGATIVE, ACCEPT"],
}


LATE = "warnings.filterwarnings('ignore', 'It looks like .register_random')"
"""Hypothesis, imported after trio, warns about trio's random numbers."""


@pytest.mark.real_time
@pytest.mark.parametrize("name", PRINTS)
def test_a_program_prints_its_documented_output(name: str, tmp_path: Path) -> None:
    strict = f"import warnings; warnings.simplefilter('error'); {LATE}\n{PROGRAM}"
    pipe = subprocess.PIPE
    with Forked(strict, EXAMPLES / f"{name}.py", cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    for line in PRINTS[name]:
        assert line in out
    assert {left.name for left in tmp_path.iterdir()} <= {".hypothesis"}


def test_the_property_test_finds_a_broken_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(property_test, "stubborn", lambda _: {"content": "I know it all."})
    once: Any = property_test.test_it_always_ends
    check = settings(deadline=None, phases=[Phase.generate])(given(property_test.moods)(once.hypothesis.inner_test))
    with pytest.raises((AssertionError, ExceptionGroup)):  # the first failure is enough, and need not become simpler
        check()


class TestWebService:
    @pytest.fixture
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        async with serving() as client:
            yield client

    async def test_the_web_service_casts_for_its_clients(self, client: httpx.AsyncClient) -> None:
        said = await client.post("/cast", json={"intent": "what?"})
        assert said.status_code == 200
        assert said.json()["answer"] == "You asked: what?"
        assert said.json()["cost"] == {"tokens": 0, "dollars": 0.0}

    async def test_each_request_has_its_own_user(self, client: httpx.AsyncClient) -> None:
        answers = {}

        async def ask(user: str) -> None:
            said = await client.post("/cast", json={"intent": "What did I order?"}, headers={"x-user": user})
            answers[user] = said.json()["answer"]

        async with anyio.create_task_group() as tasks:
            for user in ("anna", "ben"):
                tasks.start_soon(ask, user)
        assert answers == {user: f'You ordered: ["tea for {user}"]' for user in ("anna", "ben")}

    async def test_a_run_can_be_followed_from_any_turn(self, client: httpx.AsyncClient) -> None:
        begun = await client.post("/runs", json={"intent": "What did I order?"})
        assert begun.status_code == 202
        where = begun.headers["location"]
        whole = (await client.get(where)).text
        heads = [line.partition(": ") for line in whole.splitlines() if line and not line.startswith("data")]
        assert [value for name, _, value in heads if name == "event"] == ["turn", "turn", "end"]
        ids = [value for name, _, value in heads if name == "id"]
        again = (await client.get(where, headers={"last-event-id": ids[0]})).text
        assert whole.endswith(again)
        assert again.startswith(f"id: {ids[1]}\n")
        assert (await client.get(where, headers={"last-event-id": "soon"})).status_code == 422
        assert (await client.get("/runs/nobody/events")).status_code == 404

    async def test_a_run_can_be_stopped(self, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
        class Slow:
            name = "slow"

            async def invoke(self, messages: object) -> None:
                await anyio.sleep(50)

        monkeypatch.setattr(web_service, "MODEL", Slow())
        run = (await client.post("/runs", json={"intent": "go"})).json()["run"]
        seen = []

        async def follow() -> None:
            seen.append((await client.get(f"/runs/{run}/events")).text)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await anyio.sleep(20)
            assert (await client.delete(f"/runs/{run}")).status_code == 204
        (text,) = seen
        assert text.startswith(": still here\n\nid: ")
        assert text.endswith('event: end\ndata: {"state": "cancelled"}\n\n')

    @pytest.mark.rule("LOOM-7")
    async def test_a_client_that_hangs_up_cancels_its_cast(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Slow:
            name = "slow"

            async def invoke(self, messages: object) -> None:
                await anyio.sleep(50)

        monkeypatch.setattr(web_service, "MODEL", Slow())
        messages = [{"type": "http.request", "body": b'{"intent": "go"}'}, {"type": "http.disconnect"}]

        async def receive() -> dict[str, object]:
            if len(messages) == 1:
                await anyio.sleep(5)
            return messages.pop(0)

        async def send(_: object) -> None: ...

        async with web_service.app.router.lifespan_context(web_service.app) as state:
            scope = {"type": "http", "method": "POST", "path": "/cast", "query_string": b"", "headers": []}
            began = anyio.current_time()
            await web_service.app({**scope, "state": dict(state)}, receive, send)
            assert anyio.current_time() - began == pytest.approx(5)
            loom = state["runtime"].loom
            assert [loom.state(one) for one in loom.entities()] == ["cancelled"]

    async def test_the_web_service_casts_for_many_clients_at_once(self, client: httpx.AsyncClient) -> None:
        answers = []

        async def ask(n: int) -> None:
            answers.append((await client.post("/cast", json={"intent": f"{n}?"})).json()["answer"])

        async with anyio.create_task_group() as tasks:
            for n in range(20):
                tasks.start_soon(ask, n)
        assert sorted(answers) == sorted(f"You asked: {n}?" for n in range(20))

    async def test_a_request_without_an_intent_is_a_client_error(self, client: httpx.AsyncClient) -> None:
        said = await client.post("/cast", json={})
        assert said.status_code == 422
        assert "intent is required" in said.json()["detail"]


@asynccontextmanager
async def serving() -> AsyncIterator[httpx.AsyncClient]:
    """A client of the service, which runs between the start and the end of its lifespan, as a server would have it."""
    async with web_service.app.router.lifespan_context(web_service.app) as state:

        async def app(scope: dict, receive: object, send: object) -> None:
            await web_service.app({**scope, "state": dict(state)}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
            yield client


@pytest.mark.real_time
def test_the_recipe_can_be_cast(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cantrip_actors.cli.main", "cast", EXAMPLES / "vowels.yaml", "How many?"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "five\n")


def test_every_example_is_listed_and_run() -> None:
    programs = {path.stem for path in EXAMPLES.glob("*.py")}
    assert programs == {*PRINTS, "web_service", "deploy_service"}  # tests/runtime/test_deploy.py runs the last one
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"({name}.py)" in listed for name in programs)
