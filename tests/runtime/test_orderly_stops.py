"""However a runtime closes in order, it keeps the work that a kill keeps."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Runtime, gate, scripted
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("Z-03", "Y-04")


@gate(idempotent=True)
async def work() -> str:
    """Work for a minute."""
    await anyio.sleep(60)
    return "worked"


def think(context: Any) -> Any:
    return say("work") if context[-1].role == "user" else done(context[-1].content)


JOB = Cantrip(scripted(think), gates=[work], max_turns=5, name="job")


class AnotherError(Exception):
    """An exception of the host's code."""


async def begin(runtime: Runtime) -> list[str]:
    """Begin work with a key, as a submission, and of a long-lived entity; return the ids of the entities."""
    keyed = await runtime.start(JOB, "go", key="job-1")
    submitted = await runtime.submit("job", "go", key="job-2")
    desk = await runtime.invoke(JOB, "go", name="desk")
    await anyio.sleep(5)
    return [keyed.id, submitted.entity_id, desk.id]


async def leave(url: str) -> list[str]:
    async with Runtime.open(url, cantrips=[JOB]) as runtime:
        return await begin(runtime)


async def close(url: str) -> list[str]:
    runtime = await Runtime.open(url, cantrips=[JOB])
    ids = await begin(runtime)
    await runtime.aclose()
    return ids


async def drain(url: str) -> list[str]:
    async with Runtime.open(url, cantrips=[JOB]) as runtime:
        ids = await begin(runtime)
        assert not await runtime.drain(1)
        return ids


async def raise_inside(url: str) -> list[str]:
    ids: list[str] = []
    with suppress(AnotherError):
        async with Runtime.open(url, cantrips=[JOB]) as runtime:
            ids += await begin(runtime)
            raise AnotherError
    return ids


async def raise_beside(url: str) -> list[str]:
    """Open the runtime in a task whose sibling raises, while a caller waits for the work."""
    ids: list[str] = []

    async def host() -> None:
        async with Runtime.open(url, cantrips=[JOB]) as runtime:
            ids.extend(await begin(runtime))
            await runtime.cast(JOB, "go", key="job-1")

    async def fail() -> None:
        await anyio.sleep(10)
        raise AnotherError

    with suppress(ExceptionGroup):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(host)
            tasks.start_soon(fail)
    return ids


async def cancel(url: str) -> list[str]:
    """Cancel the task that hosts the runtime, as a signal does."""
    ids: list[str] = []
    with anyio.move_on_after(30):
        async with Runtime.open(url, cantrips=[JOB]) as runtime:
            ids += await begin(runtime)
            await anyio.sleep_forever()
    return ids


@pytest.mark.parametrize("end", [leave, close, drain, raise_inside, raise_beside, cancel])
async def test_work_with_a_key_and_submissions_go_on_in_the_next_process(end: Any, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    ids = await end(url)
    assert len(ids) == 3
    async with Runtime.open(url, cantrips=[JOB], recover="resume") as runtime:
        assert [(await runtime.find(entity_id).episode()).result for entity_id in ids] == ["worked"] * 3
        assert (await runtime.cast(JOB, "go", key="job-1")).entity_id == ids[0]


async def test_only_a_stop_ends_work_with_a_key_for_good(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url, cantrips=[JOB]) as runtime:
        entity = await runtime.start(JOB, "go", key="job-1")
        await anyio.sleep(5)
        await entity.stop("no longer needed")
    async with Runtime.open(url, cantrips=[JOB], recover="resume") as runtime:
        assert (await runtime.cast(JOB, "go", key="job-1")).reason == "cancelled"
