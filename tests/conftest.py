"""The basis of every test: both backends, virtual time, Hypothesis profiles and the `rule` mark.

An ``async def test_...`` is written for asyncio and trio, each in virtual time: a sleep of an hour takes no time. In
`make test` half of them run on each, and those of the supervisors on both; `EXHAUSTIVE=1` runs all on both
(`tests/exhaustive.py`).
``@pytest.mark.real_time`` puts a test on the real clock, for what virtual time cannot see: subprocesses and sockets.
"""

import gc
import os
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from hypothesis import HealthCheck, settings

from cantrip_actors.crystal.client import Client
from supervisors.testing import virtual
from tests.exhaustive import EXAMPLES, is_in_part
from tests.published import fault
from tests.shuffled import shuffle

gc.disable()  # until all tests are collected: nearly everything that is made until then stays
# jsonschema makes grammars from it at import, for a second, and no test uses formats of IRIs; a tool of ours brings it
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # as if it were not installed

# a module of tests to inherit: pytest has to know of it before anything imports it
pytest.register_assert_rewrite("tests.circle.medium_contract")

ROOT = Path(__file__).parent.parent

# the same for the processes that tests start
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT / "tests" / "absent"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# A first run compiles schemas and imports engines: a deadline for each example would only measure that. That examples
# are made slowly says on a busy machine only that it is busy.
#
# `make test` makes the same examples everywhere and each time; `make search` (SEARCH=1) looks for new ones.
settings.register_profile(
    "same",
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=EXAMPLES,
    derandomize=True,
    print_blob=True,
)
settings.register_profile("search", settings.get_profile("same"), max_examples=1000, derandomize=False, database=None)
settings.load_profile("search" if os.environ.get("SEARCH") else "same")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The backend a test runs on, and its options: a clock that jumps, unless the test asks for the real one."""
    if request.node.get_closest_marker("real_time"):
        return request.param, {}
    slow = request.node.get_closest_marker("thread_rate")
    return virtual(request.param, thread_rate=slow.args[0] if slow else 1.0)


_sent: list[tuple[str, str, bytes]] = []
"""The requests of the test that runs: provider, path and body."""


def _watch_requests() -> None:
    run = Client.run

    async def noted(self: Client, request: Any, *more: Any, **options: Any) -> Any:
        _sent.append((self.provider, request.path, request.body))
        return await run(self, request, *more, **options)

    fetch = Client.fetch

    async def noted_fetch(self: Client, method: str, path: str, body: bytes, *others: Any) -> bytes:
        if method in ("POST", "PUT"):
            _sent.append((self.provider, path, body))
        return await fetch(self, method, path, body, *others)

    Client.run, Client.fetch = noted, noted_fetch  # type: ignore[method-assign]


_watch_requests()

for _clients in (httpx, httpx2):  # reading the certificates takes 20 ms, and the tests make thousands of clients
    _transports: Any = _clients._transports.default
    _transports.create_ssl_context = cache(_transports.create_ssl_context)


@pytest.fixture(autouse=True)
def _published(request: pytest.FixtureRequest) -> Any:
    """Fail a test that sends a provider what it would refuse by its shape, unless that is the test's subject (R-30)."""
    _sent.clear()
    yield
    if _sent and not request.node.get_closest_marker("unpublished"):
        faults = {found for found in (fault(*sent) for sent in dict.fromkeys(_sent)) if found is not None}
        if faults:
            pytest.fail("\n".join(sorted(faults)))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Take the collected tests out of what the garbage collector looks at: each look at thousands costs time."""
    gc.collect()
    gc.freeze()
    # A look at each 700 new objects takes a twentieth of the tests' time, because nearly all of them are soon gone.
    gc.set_threshold(10_000)
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse a misspelt rule id, which would prove nothing, and leave out what `make test` does not do."""
    catalogue = tomllib.loads((ROOT / "tests" / "rules.toml").read_text(encoding="utf-8"))
    known = {rule for section in catalogue["section"] for rule in section["rules"]}
    for item in items:
        for mark in item.iter_markers("rule"):
            if mark.kwargs or not mark.args or (unknown := [rule for rule in mark.args if rule not in known]):
                what = "no rule" if mark.kwargs or not mark.args else ", ".join(map(repr, unknown))
                raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.rule names {what} of tests/rules.toml")
    chosen = is_in_part(items)
    if left := [item for item, is_chosen in zip(items, chosen, strict=True) if not is_chosen]:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item, is_chosen in zip(items, chosen, strict=True) if is_chosen]
    if seed := os.environ.get("SHUFFLE"):
        items[:] = shuffle(items, seed)


def pytest_report_header() -> list[str]:
    """Say how to repeat this order."""
    seed = os.environ.get("SHUFFLE")
    return [f"order: shuffled, and the same again with SHUFFLE={seed}"] if seed else []
