"""Submissions that no process can begin delay none that another process submits later (N-50).

Two runtimes stand for two processes: they share nothing but the file of the loom.
"""

from pathlib import Path

import anyio
import pytest

from cantrip_actors import Node, Queue, Runtime
from tests.runtime.test_cluster import answering

pytestmark = [pytest.mark.rule("N-50"), pytest.mark.thread_rate(0.01)]


@pytest.mark.parametrize("queue", ["", "mails"])
@pytest.mark.parametrize("node", [None, Node("w1")])
async def test_a_submission_begins_soon_though_an_earlier_one_waits_for_its_cantrip(
    tmp_path: Path, queue: str, node: Node | None
) -> None:
    url = f"sqlite:{tmp_path / 'loom'}"
    async with (
        Runtime.open(url, cantrips=[answering()], node=node, queues=[Queue("mails")]),
        Runtime.open(url) as client,
    ):
        await client.submit("elsewhere", "no process has its cantrip", queue=queue)
        await anyio.sleep(2)
        for number in range(3):
            began = anyio.current_time()
            submission = await client.submit("desk", f"{number}", queue=queue)
            assert (await submission.result()).result == f"{number}"
            assert anyio.current_time() - began < 3
