"""The plugin for pytest: the fixtures `runtime`, `loom_url` and `virtual_clock`. It does nothing without them.

pytest imports this module at each start, so it imports nothing else of the package until a fixture is used.

Theory of operation. A runtime is a tree of tasks in a task group, which only the task that entered it may leave.
Plugins for async tests call the two halves of an async fixture from different tasks (pytest-asyncio), or cancel a task
that waits for the end of a fixture and is not in its block (pytest-trio). So no task group of ours is open across the
`yield` of a fixture: `await Runtime.open(…)` starts a task that owns the runtime, and `aclose` ends it, each from any
task of the event loop.

Each plugin finds its own async fixtures: anyio's by the fixture `anyio_backend` in the test, pytest-trio by the mark
`trio`, pytest-asyncio by an attribute of the function. `runtime` itself is a plain fixture that asks for the one that
the test's plugin runs.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    import trio.abc

    from cantrip_actors import Runtime

LOOMS = ("memory", "jsonl", "sqlite", "postgres")
_FILES = {"jsonl": "loom.jsonl", "sqlite": "loom.db"}
SERVER = "CANTRIP_TEST_POSTGRES"
"""The environment variable with the URL of a database for tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting of the loom."""
    parser.addini("cantrip_loom", f"loom of the fixtures loom_url and runtime: {', '.join(LOOMS)}", default="memory")


def pytest_configure(config: pytest.Config) -> None:
    """Describe the mark."""
    config.addinivalue_line("markers", f"loom(kind): the loom of loom_url and runtime in this test: {', '.join(LOOMS)}")


@pytest.fixture
def loom_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a new loom for the test: in memory, or as `@pytest.mark.loom("sqlite")` or the setting says."""
    mark = request.node.get_closest_marker("loom")
    kind = mark.args[0] if mark is not None and mark.args else request.config.getini("cantrip_loom")
    if kind == "memory":
        yield "memory:"
    elif kind in _FILES:
        folder: Path = request.getfixturevalue("tmp_path")
        yield f"{kind}:{folder / _FILES[kind]}"
    elif kind == "postgres":
        yield from _make_schema()
    else:
        raise pytest.UsageError(f"loom: expected one of {', '.join(map(repr, LOOMS))}, got {kind!r}")


def _make_schema() -> Iterator[str]:
    """Yield the URL of a loom in a schema of its own, which is dropped afterwards."""
    server = os.environ.get(SERVER)
    if not server:
        raise pytest.UsageError(f"loom: a loom in Postgres needs the URL of a database in {SERVER}")
    import psycopg
    from psycopg.sql import SQL, Identifier

    schema = f"test_{uuid4().hex}"
    yield f"{server}{'&' if '?' in server else '?'}schema={schema}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(SQL("drop schema if exists {} cascade").format(Identifier(schema)))


@pytest.fixture
def runtime_options() -> Mapping[str, Any]:
    """The options of `Runtime.open` for the fixture `runtime`; a test or a conftest.py defines its own."""
    return {}


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> Any:
    """A runtime on `loom_url`, open during the test: for anyio's plugin, pytest-asyncio and pytest-trio."""
    if "anyio_backend" in request.fixturenames or request.node.get_closest_marker("trio") is not None:
        return request.getfixturevalue("_runtime")
    if request.node.get_closest_marker("asyncio") is not None:
        return request.getfixturevalue("_asyncio_runtime")
    raise pytest.UsageError(
        "runtime: expected an `async def` test that a plugin runs: mark it with @pytest.mark.anyio, or with "
        "@pytest.mark.asyncio or @pytest.mark.trio if pytest-asyncio or pytest-trio is installed"
    )


@asynccontextmanager
async def _open_runtime(url: str, options: Mapping[str, Any]) -> AsyncIterator[Runtime]:
    from cantrip_actors import Runtime

    runtime = await Runtime.open(url, **options)
    try:
        yield runtime
    finally:
        await runtime.aclose()


@pytest.fixture
async def _runtime(loom_url: str, runtime_options: Mapping[str, Any]) -> AsyncIterator[Runtime]:
    async with _open_runtime(loom_url, runtime_options) as runtime:
        yield runtime


async def _open_asyncio_runtime(loom_url: str, runtime_options: Mapping[str, Any]) -> AsyncIterator[Runtime]:
    async with _open_runtime(loom_url, runtime_options) as runtime:
        yield runtime


# as `pytest_asyncio.fixture` does, which is not imported here: its strict mode takes no other async fixture
_open_asyncio_runtime._force_asyncio_fixture = True  # type: ignore[attr-defined]  # noqa: SLF001
_open_asyncio_runtime._loop_scope = "function"  # type: ignore[attr-defined]  # noqa: SLF001
_asyncio_runtime = pytest.fixture(name="_asyncio_runtime")(_open_asyncio_runtime)


@pytest.fixture
def virtual_clock() -> trio.abc.Clock:
    """A clock that jumps to the next event, for pytest-trio: a test that has it runs in virtual time."""
    from supervisors.testing import virtual

    clock: trio.abc.Clock = virtual("trio")[1]["clock"]
    return clock
