"""How many workers a backlog needs, and the files that workers are started from."""

import asyncio
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import Node, Runtime
from cantrip_actors.cluster.manifests import ENGINES, QUERY, manifest
from cantrip_actors.cluster.scaling import SETTLED, FleetSize, advance, workers_for
from cantrip_actors.recipes import load_recipe
from tests.forked import COMMAND, Forked
from tests.loom.postgres import fresh

RECIPE = """\
name: keeper
crystal:
  scripted: [{tool_calls: [{gate: done, args: {answer: one}}]}]
circle:
  gates: [done]
  wards: [{max_turns: 10}]
"""


@pytest.mark.rule("N-81")
@given(work=st.integers(0, 10_000), capacity=st.integers(1, 500), least=st.integers(0, 5), more=st.integers(0, 20))
def test_workers_have_room_for_the_backlog_within_the_limits(work: int, capacity: int, least: int, more: int) -> None:
    workers = workers_for(work, capacity, least, least + more)
    assert least <= workers <= least + more
    assert workers * capacity >= work or workers == least + more
    assert (workers - 1) * capacity < work or workers == least


@pytest.mark.rule("N-81")
def test_a_backlog_gets_workers_at_once_and_loses_them_one_by_one() -> None:
    size = advance(FleetSize(2), 900, 100, 2, 8)
    assert size.workers == 8
    looks = 0
    while size.workers == 8:
        size, looks = advance(size, 0, 100, 2, 8), looks + 1
    assert (size, looks) == (FleetSize(7), SETTLED)


@pytest.mark.rule("N-80")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_manifest_has_the_requested_settings(engine: str) -> None:
    text = manifest(engine, ["desk.yaml"], nodes=4, most=9, capacity=50, release="41", grace=45, image="desk:41")
    assert "$" not in text.replace("$(POD)", "")
    assert "desk.yaml" in text
    assert "50" in text
    if ENGINES[engine] == "yaml":
        parsed = list(yaml.safe_load_all(text))
        assert all(isinstance(one, dict) for one in parsed)


@pytest.mark.rule("N-80")
def test_kubernetes_waits_for_the_grace_and_looks_at_the_node() -> None:
    deployment, scaled = yaml.safe_load_all(
        manifest("kubernetes", ["desk.yaml"], nodes=4, most=9, capacity=50, grace=45)
    )
    pod = deployment["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 60
    (worker,) = pod["containers"]
    assert worker["command"] == ["cantrip", "worker", "desk.yaml"]
    assert worker["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert worker["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    (trigger,) = scaled["spec"]["triggers"]
    assert (trigger["metadata"]["query"], trigger["metadata"]["targetQueryValue"]) == (QUERY, "50")


@pytest.mark.rule("N-80")
@pytest.mark.parametrize("name", ["@x", "a:", "a:b", "1", "1.5", "true", "null", "-", "2026-11-30"])
@pytest.mark.parametrize("engine", [engine for engine, suffix in ENGINES.items() if suffix == "yaml"])
def test_each_name_is_a_text_in_a_manifest(engine: str, name: str) -> None:
    def list_texts(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, (dict, list)):
            for part in value.values() if isinstance(value, dict) else value:
                yield from list_texts(part)

    text = manifest(engine, [name, "b.yaml"], release=name, image=name)
    texts = [*list_texts(list(yaml.safe_load_all(text)))]
    assert name in texts  # the image
    if engine == "ray":
        assert any(f"cantrip up {name} b.yaml " in one and one.endswith(f"--release={name}") for one in texts)
    else:
        assert f"--release={name}" in texts
        assert texts[texts.index("b.yaml") - 1] == name


@pytest.mark.rule("N-80")
@pytest.mark.parametrize("wrong", [("recipe", ["a b.yaml"], {}), ("release", ["a.yaml"], {"release": "x; rm"})])
def test_names_that_would_need_quotes_are_refused(wrong: Any) -> None:
    what, recipes, options = wrong
    with pytest.raises(ValueError, match=f"{what}: expected letters, digits"):
        manifest("systemd", recipes, **options)


@pytest.mark.rule("N-80")
@pytest.mark.real_time
async def test_the_autoscalers_query_counts_the_same_as_the_cluster(tmp_path: Path) -> None:
    path, url = tmp_path / "keeper.yaml", fresh()
    path.write_text(RECIPE)
    async with Runtime.open(url, cantrips=[load_recipe(path)]) as runtime:
        await runtime.cast(load_recipe(path), "go")
        for n in range(3):
            await runtime.submit("nobody", "wait", key=f"k{n}")
        assert await runtime.cluster.backlog() == 3
        assert await anyio.to_thread.run_sync(_asked, url) == 3


def _asked(url: str) -> int:
    server, _, schema = url.partition("&schema=")
    with psycopg.connect(server) as connection:
        found = connection.execute(QUERY.replace("cantrip.", f"{schema}.").encode()).fetchone()
    assert found is not None
    return int(found[0])


def _commands() -> dict[str, list[str]]:
    """The commands of the manifests that run on this machine, with this Python."""
    unit = manifest("systemd", ["keeper.yaml"], grace=5)
    (line,) = (one for one in unit.splitlines() if one.startswith("ExecStart="))
    systemd = shlex.split(line.removeprefix("ExecStart=/usr/bin/env ").replace("%H", "host").replace("%i", "1"))
    compose = yaml.safe_load(manifest("compose", ["keeper.yaml"], grace=5))["services"]["worker"]["command"]
    return {"systemd": systemd, "compose": [one.replace("0.0.0.0:8080", "127.0.0.1:0") for one in compose]}


@pytest.mark.rule("N-80", "N-82")
@pytest.mark.real_time
@pytest.mark.parametrize("engine", ["systemd", "compose"])
def test_the_command_of_a_manifest_joins_and_drains(engine: str, tmp_path: Path) -> None:
    (tmp_path / "keeper.yaml").write_text(RECIPE)
    loom = f"sqlite:{tmp_path / 'loom.db'}"
    _, *arguments = _commands()[engine]
    worker = Forked(COMMAND, *arguments, cwd=tmp_path, env={"CANTRIP_LOOM": loom, "PATH": "/usr/bin:/bin"})
    try:
        asyncio.run(_joined(loom))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
    finally:
        worker.kill()


@pytest.mark.rule("N-82")
async def test_a_node_that_got_a_signal_before_it_serves_drains_at_once(tmp_path: Path) -> None:
    async with Runtime.open(f"sqlite:{tmp_path / 'loom.db'}", node=Node("host")) as runtime:
        with anyio.fail_after(60):
            await runtime.serve(early=[signal.SIGTERM])


async def _joined(loom: str) -> None:
    async with Runtime.open(loom) as runtime:
        until = time.monotonic() + 30
        while not any(node.is_living for node in await runtime.cluster.nodes()):
            assert time.monotonic() < until, "no node has joined"
            await asyncio.sleep(0.1)
