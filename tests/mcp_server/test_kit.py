"""The official conformance kit against our server: the scenarios that need no tools of the kit's own (`make kits`)."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.exhaustive import EXHAUSTIVE
from tests.forked import COMMAND, Forked

ROOT = Path(__file__).parents[2]
KITS = ROOT / ".kits" / "node_modules" / ".bin"

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.rule("MCP-13"),
    pytest.mark.skipif(
        not (KITS / "conformance").exists(),
        reason="NOT JUDGED BY THE MCP CONFORMANCE KIT: it is not in .kits; `make kits` gets it from npm",
    ),
]

HANDSHAKE = ("server-initialize", "server-session-lifecycle", "ping")
ACTIVE = ("tools-list", "server-sse-multiple-streams", "resources-list", "dns-rebinding-protection")
"""In the kit's own suite, which runs in one go; the others in it need tools of the kit's."""
MODERN = ("sep-2164-resource-not-found", "caching", "http-header-validation", "server-stateless")
NEEDS_A_FIXTURE = {"sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400"}
"""Checks of a tool that cannot work without a capability of the client: no cantrip is such a tool."""


@contextmanager
def server(backend: str) -> Iterator[str]:
    """Start the server without tokens, which the kit does not send; its URL."""
    recipes = [f"tests.mcp_server.kit:{name}" for name in ("streaming", "logging")]
    options = ["--http", "--no-auth", "--bind", "127.0.0.1:0", "--loom", "memory:", "--backend", backend]
    process = Forked(COMMAND, "mcp", *recipes, *options, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r"http://\S+/mcp", process.stderr.readline())
        assert found
        yield found[0]
    finally:
        process.kill()
        process.communicate()


def judged(url: str, folder: Path, options: tuple[str, ...]) -> dict[str, set[str]]:
    """Run the kit; return the checks that failed, by scenario."""
    path = f"{KITS}{os.pathsep}{os.environ['PATH']}"  # the kit needs the Node that comes with it
    command = [str(KITS / "conformance"), "server", "--url", url, "-o", str(folder), *options]
    subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, timeout=120, check=False)
    failed: dict[str, set[str]] = {}
    for file in folder.glob("*/checks.json"):
        checks: list[dict[str, Any]] = json.loads(file.read_text())
        scenario = re.sub(r"^server-|-\d{4}-\d\d-\d\dT.*$", "", file.parent.name)
        failed[scenario] = {one["id"] for one in checks if one["status"] not in ("SUCCESS", "SKIPPED", "INFO")}
    return failed


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_official_conformance_kit_passes(backend: str, tmp_path: Path) -> None:
    every = {
        ACTIVE: ("--spec-version", "2026-07-28"),
        **{(name,): ("--scenario", name) for name in HANDSHAKE},
        **{(name,): ("--scenario", name, "--spec-version", "2026-07-28") for name in MODERN},
    }
    names = list(every)  # a run of the kit is a process of Node: in `make test`, each is on one of the backends
    runs = every if EXHAUSTIVE else {one: every[one] for one in names[backend == "trio" :: 2]}
    found: dict[str, set[str]] = {}
    with server(backend) as url, ThreadPoolExecutor(3) as threads:
        folders = [tmp_path / str(number) for number in range(len(runs))]
        for scenarios, failed in zip(runs, threads.map(partial(judged, url), folders, runs.values()), strict=True):
            found |= {name: failed[name] for name in scenarios}
    known = {"server-stateless": NEEDS_A_FIXTURE} if ("server-stateless",) in runs else {}
    assert {name: checks for name, checks in found.items() if checks} == known
