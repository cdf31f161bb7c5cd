"""Limits that several runtimes on one loom share."""

import subprocess
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, LoomError, Node, Runtime
from cantrip_actors.crystals import Limits, limited
from cantrip_actors.loom.sqlite.sqlite import SqliteStore
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.wards import max_turns
from tests.forked import Forked
from tests.loom.postgres import fresh

DONE = {"tool_calls": [{"gate": "done", "args": {"answer": "yes"}}]}


class Model:
    """A crystal that takes `seconds` for each answer; `at_once` counts those of all models of a test."""

    name = "model"

    def __init__(self, seconds: float, seen: dict[str, Any], says: Any = None) -> None:
        self.seconds = seconds
        self.seen = seen
        self.says = says

    async def invoke(self, messages: Any) -> Any:
        seen = self.seen
        seen.setdefault("asked", []).append(anyio.current_time())
        seen["now"] = seen.get("now", 0) + 1
        seen["most"] = max(seen.get("most", 0), seen["now"])
        try:
            await anyio.sleep(self.seconds)
            if self.says is not None:
                raise self.says
            return DONE
        finally:
            seen["now"] -= 1


def spell(model: Model, **limits: Any) -> Cantrip:
    return Cantrip(limited(model, Limits(**limits)), circle=Circle(["done"], [max_turns(3)]))


@pytest.mark.rule("N-54")
@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_two_runtimes_together_keep_to_the_concurrency_limit(kind: str, tmp_path: Path) -> None:
    url = fresh() if kind == "postgres" else f"sqlite:{tmp_path / 'loom.db'}"
    seen: dict[str, Any] = {}
    async with Runtime.open(url) as one, Runtime.open(url) as two, anyio.create_task_group() as tasks:
        for runtime in (one, two):
            cantrip = spell(Model(0.05, seen), concurrency=3, shared="account")
            for _ in range(6):
                tasks.start_soon(runtime.cast, cantrip, "go")
    assert len(seen["asked"]) == 12
    assert seen["most"] <= 3


@pytest.mark.rule("N-52")
async def test_crystals_of_one_runtime_share_their_limits_by_name() -> None:
    seen: dict[str, Any] = {}
    async with Runtime.open() as runtime, anyio.create_task_group() as tasks:
        for _ in range(3):
            cantrip = spell(Model(0.1, seen), requests_per_minute=30, shared="account")
            for _ in range(20):
                tasks.start_soon(runtime.cast, cantrip, "go")
    first = min(seen["asked"])
    assert len(seen["asked"]) == 60
    assert sum(at < first + 10 for at in seen["asked"]) <= 30 + 5
    assert max(seen["asked"]) - first >= 55


@pytest.mark.rule("N-53")
async def test_a_refusal_of_one_crystal_pauses_the_others_of_its_name() -> None:
    refused: dict[str, Any] = {}
    seen: dict[str, Any] = {}
    says = ProviderError("slow down", status=429, retry_after=30.0)
    async with Runtime.open() as runtime, anyio.create_task_group() as tasks:
        loud = Cantrip(
            limited(Model(0.1, refused, says), Limits(requests_per_minute=6000, shared="account")),
            circle=Circle(["done"], [max_turns(3)]),
        )
        with anyio.move_on_after(5):
            await runtime.cast(loud, "go")
        for _ in range(5):
            tasks.start_soon(runtime.cast, spell(Model(0.1, seen), requests_per_minute=6000, shared="account"), "go")
    assert min(seen["asked"]) >= refused["asked"][0] + 30


@pytest.mark.rule("N-55")
@pytest.mark.real_time
async def test_queries_wait_while_the_account_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    is_away = True
    real = SqliteStore.change_account

    def update(self: Any, *given: Any) -> Any:
        if is_away:
            raise LoomError("the server is away")
        return real(self, *given)

    monkeypatch.setattr(SqliteStore, "change_account", update)
    async with Runtime.open(f"sqlite:{tmp_path / 'loom.db'}") as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(runtime.cast, spell(Model(0.01, seen), requests_per_minute=600, shared="account"), "go")
        await anyio.sleep(0.3)
        assert not seen
        is_away = False
    assert len(seen["asked"]) == 1


@pytest.mark.rule("N-52")
@pytest.mark.real_time
async def test_an_account_outlives_its_processes(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    seen: dict[str, Any] = {}
    for _ in range(2):
        async with Runtime.open(url) as runtime:
            with anyio.move_on_after(1.5):
                async with anyio.create_task_group() as tasks:
                    for _ in range(4):
                        tasks.start_soon(
                            runtime.cast, spell(Model(0.01, seen), requests_per_minute=5, shared="account"), "go"
                        )
    assert len(seen["asked"]) == 5


PER_MINUTE = 120
HAMMER = """
import sys, anyio
from tests.runtime.test_shared_limits import hammer

anyio.run(hammer, *sys.argv[1:])
"""


async def hammer(url: str, name: str, ledger: str) -> None:
    """Ask a model of the shared account as fast as it is allowed to; the ledger has the time of each request."""

    class Noting(Model):
        async def invoke(self, messages: Any) -> Any:
            with Path(ledger).open("a") as file:
                file.write(f"{time.time()} {name}\n")
            return await super().invoke(messages)

    cantrip = spell(Noting(0.01, {}), requests_per_minute=PER_MINUTE, shared="account")
    async with Runtime.open(url, cantrips=[cantrip], node=Node(name)) as runtime, anyio.create_task_group() as tasks:
        for _ in range(PER_MINUTE):
            tasks.start_soon(runtime.cast, cantrip, "go")
        await anyio.sleep_forever()


@pytest.mark.rule("N-52")
@pytest.mark.real_time
async def test_processes_that_are_killed_stay_within_their_shared_limit_together(tmp_path: Path) -> None:
    url, ledger = fresh(), tmp_path / "ledger"
    async with Runtime.open(url):
        pass
    ledger.touch()

    def hammering(name: str) -> Forked:
        return Forked(HAMMER, url, name, ledger, stderr=subprocess.DEVNULL)

    living = {f"w{n}": hammering(f"w{n}") for n in range(3)}
    try:
        for n in range(5):
            oldest = next(iter(living))
            with anyio.fail_after(60):
                while f" {oldest}\n" not in ledger.read_text():
                    await anyio.sleep(0.1)
            dying = living.pop(oldest)
            dying.kill()
            dying.wait()
            living[f"w{n + 3}"] = hammering(f"w{n + 3}")
        with anyio.fail_after(60):  # the nodes use the whole limit
            while ledger.read_text().count("\n") < PER_MINUTE + 6:
                await anyio.sleep(0.1)
    finally:
        for one in living.values():
            one.kill()
            one.wait()
    lines = [line.split() for line in ledger.read_text().splitlines()]
    times = sorted(float(at) for at, _ in lines)
    for first, begin in enumerate(times):
        for last in range(first, len(times)):
            allowed = PER_MINUTE + PER_MINUTE * (times[last] - begin) / 60
            assert last - first + 1 <= allowed + 1, (begin, times[last])


@pytest.mark.rule("N-53")
@pytest.mark.real_time
async def test_a_refusal_that_one_process_hears_pauses_the_others_and_then_one_request_tries_first(
    tmp_path: Path,
) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    refused: dict[str, Any] = {}
    seen: dict[str, Any] = {}
    says = ProviderError("slow down", status=429, retry_after=2.0)
    limits = Limits(requests_per_minute=6000, shared="account")
    loud = Cantrip(limited(Model(0.01, refused, says), limits), circle=Circle(["done"], [max_turns(3)]))
    async with Runtime.open(url) as one, Runtime.open(url) as two, anyio.create_task_group() as tasks:
        with anyio.move_on_after(0.5):
            await one.cast(loud, "go")
        for _ in range(5):
            tasks.start_soon(two.cast, spell(Model(0.3, seen), requests_per_minute=6000, shared="account"), "go")
    first, second, *_ = sorted(seen["asked"])
    assert first >= refused["asked"][0] + 2
    assert second >= first + 0.3
