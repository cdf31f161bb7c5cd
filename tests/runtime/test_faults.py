"""Answers that break the contract, gates that exit, and programs that end without closing their runtime."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import CrystalError, Retry, Runtime, gate, scripted
from cantrip_actors.wards import max_tokens, max_turns
from tests.runtime.spells import cantrip, done, say

ROOT = Path(__file__).parents[2]
USAGE = {"prompt_tokens": 300, "completion_tokens": 100}
BROKEN = {"content": "", "usage": USAGE}


# Costs of answers that break the contract


@pytest.mark.rule("C-62")
async def test_the_tokens_of_failed_answers_are_in_the_loom(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as runtime:
        with pytest.raises(CrystalError) as raised:
            await runtime.cast(cantrip([BROKEN], retry=Retry(max_retries=0)), "go")
        entity_id = raised.value.entity_id
        assert runtime.loom.subtree_usage(entity_id).total_tokens == 400
    async with Runtime.open(url) as runtime:
        assert runtime.loom.subtree_usage(entity_id).total_tokens == 400


@pytest.mark.rule("C-62")
async def test_a_budget_counts_the_tokens_of_failed_answers_over_a_life_and_across_processes(tmp_path: Path) -> None:
    """Failed answers count: 100,000 tokens cannot be spent under max_tokens(1000)."""
    asked = 0

    def policy(_: Any) -> Any:
        nonlocal asked
        asked += 1
        return BROKEN if asked > 1 else done("ok")

    url = f"sqlite:{tmp_path / 'loom.db'}"
    spell = cantrip(scripted(policy), wards=(max_turns(10), max_tokens(1000)), retry=Retry(max_retries=0))
    async with Runtime.open(url) as runtime:
        await (await runtime.invoke(spell, "start", name="x")).episode()
    for _ in range(10):
        async with Runtime.open(url, cantrips=[spell]) as runtime:
            entity = runtime.entity("x")
            if entity is None:
                break
            try:
                episode = await entity.send("more")
            except CrystalError:
                continue
            assert episode.ward == "max_tokens"
    assert asked <= 4
    async with Runtime.open(url) as runtime:
        assert sum(runtime.loom.subtree_usage(one).total_tokens for one in runtime.loom.entities()) == 400 * (asked - 1)


@pytest.mark.rule("C-62", "COMP-8")
async def test_a_parents_budget_counts_the_tokens_of_failed_answers_of_its_children() -> None:
    def policy(context: Any) -> Any:
        return BROKEN if context[0].content == "child" else say("call_agent", intent="child")

    spell = cantrip(scripted(policy), "call_agent", wards=(max_turns(20), max_tokens(1000)), retry=Retry(max_retries=0))
    async with Runtime.open() as runtime:
        episode = await runtime.cast(spell, "go")
        assert (episode.ward, len(runtime.loom.entities())) == ("max_tokens", 4)
        assert episode.subtree_usage.total_tokens == 1200


# Exits of user code in long-lived entities


@pytest.mark.rule("C-60")
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit])
async def test_an_entity_handles_its_next_intent_after_a_gate_exits(error: type[BaseException]) -> None:
    @gate
    async def leave() -> str:
        """Exit."""
        raise error("boom")

    def policy(context: Any) -> Any:
        return say("leave") if context[-1].content == "leave" else done(context[-1].content)

    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip(policy, leave), "start")
        with anyio.fail_after(60):
            assert "boom" in (await entity.send("leave")).result
            assert (await entity.send("next")).result == "next"


# Programs that end without closing their runtime

PROGRAM = """
import asyncio, sys
import anyio
from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.wards import max_depth, max_turns
from tests.runtime.spells import done, say

async def policy(context):
    if context[0].content == "a private child":
        return {**done("late"), "delay": 3600.0}
    return say("call_agent", intent="a private child")

SPELL = Cantrip(scripted(policy), circle=Circle(["done", "call_agent"], [max_turns(5), max_depth(1)]))

async def serve(url, ready, how):
    async with Runtime.open(url) as runtime:
        for n in range(3):
            entity = await runtime.invoke(SPELL, "a private intent", name=f"n{n}")
            await entity.post("a private post")
            asyncio.get_running_loop().create_task(entity.send("a private message"))
        await runtime.start(SPELL, "a private intent")
        await anyio.sleep(1.2)
        ready.set()
        if how != "close":
            await anyio.sleep_forever()

async def main(url, how):
    ready = asyncio.Event()
    task = asyncio.get_running_loop().create_task(serve(url, ready, how))
    await ready.wait()
    if how == "close":
        await task

asyncio.run(main(*sys.argv[1:]))
"""


def run(url: str, how: str) -> subprocess.CompletedProcess[str]:
    """Run the program to its end: it closes its runtime, or asyncio cancels all its tasks."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, url, how], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )


@pytest.mark.real_time
@pytest.mark.rule("C-68")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_runtime_ends_with_its_event_loop_in_one_line_and_is_resumed(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    ended = await anyio.to_thread.run_sync(run, url, "cancel")
    assert (ended.returncode, ended.stdout) == (0, "")
    lines = [line for line in ended.stderr.splitlines() if "never retrieved" not in line]
    assert len([line for line in lines if re.match(r"\d{4}-", line)]) == 1, ended.stderr[:2000]
    async with Runtime.open(url) as runtime:
        assert len(runtime.loom.entities()) == 8
        assert len(runtime.interrupted()) == 4
        assert (
            runtime.receipt("n0", runtime._tree.store.pending(runtime.entity("n0").id)[0].mail.key).state == "waiting"
        )
        for header in runtime.interrupted():
            await runtime.abandon(header.entity_id)
        assert runtime.interrupted() == []


@pytest.mark.real_time
@pytest.mark.rule("C-68")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_the_end_of_a_runtime_prints_no_content(tmp_path: Path, how: str) -> None:
    ended = await anyio.to_thread.run_sync(run, f"sqlite:{tmp_path / 'loom.db'}", how)
    assert ended.stdout == ""
    assert "private" not in ended.stderr, ended.stderr[:2000]
