"""A browser in use for long: several entities on a large site, and a node that is killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from cantrip_actors import Cantrip, Invocation, Node, Runtime, gate, scripted
from cantrip_actors.circle.browser.driver import get_driver
from tests.circle.browser.processes import is_running, list_descendants, read_driver_seconds
from tests.circle.browser.site import Calls, Site, browsing, needs_browser
from tests.exhaustive import FULL
from tests.forked import Forked

pytestmark = [pytest.mark.real_time, needs_browser]

PAGES = 200
EPISODES = 100 if FULL else 6
CALLS = 10 if FULL else 3
"""Pages that one episode opens."""
AT_ONCE = 3
OWN = 0.120
"""Seconds of CPU of a call, without Chromium's."""


def make_pages(site: Site) -> None:
    rows = "".join(f"<tr><td>row {number}<td><button>Choose {number}</button>" for number in range(50))
    for number in range(PAGES):
        following = (number + 1) % PAGES
        site.pages[f"/{number}"] = f"<title>Page {number}</title><a href=/{following}>Next</a><table>{rows}</table>"


def walk(site: Site, episode: int) -> Cantrip:
    first = episode * CALLS % PAGES
    calls: Calls = [("goto", {"url": f"{site.url}/{first}"}), *[("click", {"target": "text=Next"})] * (CALLS - 1)]
    return browsing(calls, [site.place], allow_private=True)


@pytest.mark.rule("B-02")
async def test_three_entities_walk_a_large_site_at_little_cost_and_leave_no_process(site: Site) -> None:
    make_pages(site)
    await anyio.to_thread.run_sync(get_driver().stop)  # one may run from a test before
    before = set(list_descendants(os.getpid()))
    left = iter(range(EPISODES))
    titles: list[bool] = []
    own = 0.0

    async def run(runtime: Runtime) -> None:
        for episode in left:
            thread = (await runtime.cast(walk(site, episode), "Walk.")).thread
            last = (episode * CALLS + CALLS - 1) % PAGES
            titles.append(f'"Page {last}"' in thread[CALLS - 1].observation)

    async with Runtime.open("memory:") as runtime:
        await runtime.cast(walk(site, 0), "Walk.")  # starts the browser
        began = time.process_time() + read_driver_seconds()
        async with anyio.create_task_group() as tasks:
            for _ in range(AT_ONCE):
                tasks.start_soon(run, runtime)
        own = time.process_time() + read_driver_seconds() - began
    assert titles == [True] * EPISODES
    assert own / (EPISODES * CALLS) <= OWN

    started = [each for each in list_descendants(os.getpid()) if each not in before]
    assert started
    await anyio.to_thread.run_sync(get_driver().stop)
    with anyio.fail_after(10):
        while any(map(is_running, started)):
            await anyio.sleep(0.05)


NODE = """
import sys, anyio
from cantrip_actors import Node, Runtime
from tests.circle.browser.test_acceptance import fill_and_wait

async def main():
    url, site, place = sys.argv[1:]
    cantrip = fill_and_wait(site, place)
    async with Runtime.open(url, node=Node("first", beat=0.4, ttl=2.0), cantrips=[cantrip]) as runtime:
        await (await runtime.invoke(cantrip, "Fill in the form.", name="clerk")).episode()

anyio.run(main)
"""


@gate
async def wait() -> None:
    """Wait for ever."""
    sys.stdout.write("waiting\n")
    sys.stdout.flush()
    await anyio.sleep_forever()


def fill_and_wait(url: str, place: str) -> Cantrip:
    """A cantrip whose crystal goes by the conversation, and so continues in another process."""
    calls: Calls = [
        ("goto", {"url": f"{url}/"}),
        ("fill", {"target": "#who", "text": "Anna"}),
        ("wait", {}),
        ("look", {}),
        ("done", {"answer": "seen"}),
    ]

    def answer(context: Invocation) -> dict[str, object]:
        name, args = calls[sum(message.role == "assistant" for message in context)]
        return {"tool_calls": [{"gate": name, "args": args}]}

    return browsing(calls, [place], [wait], allow_private=True).with_crystal(scripted(answer))


@pytest.mark.rule("B-04")
async def test_the_tabs_of_a_killed_node_are_restored_by_the_node_that_takes_over(site: Site, tmp_path: Path) -> None:
    site.pages |= {"/": "<title>Form</title><input id=who>"}
    url, cantrip = f"sqlite:{tmp_path}/loom.db", fill_and_wait(site.url, site.place)
    async with Runtime.open(url, node=Node("second", beat=0.4, ttl=2.0), cantrips=[cantrip]) as runtime:
        with Forked(NODE, url, site.url, site.place, stdout=subprocess.PIPE, text=True) as first:
            assert await anyio.to_thread.run_sync(first.stdout.readline) == "waiting\n"
            first.kill()
        entity = runtime.get_entity("clerk")
        with anyio.fail_after(60):
            episode = await entity.episode()
    waited, looked = (turn.observation for turn in episode.thread[2:4])
    assert "outcome unknown" in waited
    assert "[the browser was opened again" in looked
    assert '"Anna"' in looked
