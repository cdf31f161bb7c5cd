"""The tree of trio's tasks while entities work: `cantrip demo --backend trio --tasks`.

It is read as any tool of trio reads it: from the root task down, through the nurseries of each task. The name of an
entity's task is the entity's id, so `cantrip loom tree` shows the same entities, and below each the same children.
"""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import trio

from cantrip_actors import Cantrip, EntityStartedEvent, Episode, Runtime
from cantrip_actors.cli.command import with_thread

__all__ = ["cast_and_read_tasks", "read_tasks"]


def read_tasks() -> Iterator[str]:
    """Yield the tree of all tasks of this run of trio, a line for each task."""
    root = trio.lowlevel.current_root_task()
    assert root is not None, "a run of trio has one"
    yield from _read_below(root, "")


def _read_below(task: trio.lowlevel.Task, indent: str) -> Iterator[str]:
    yield f"{indent}{task.name}"
    for nursery in task.child_nurseries:
        for child in sorted(nursery.child_tasks, key=lambda child: child.name):
            yield from _read_below(child, f"{indent}  ")


async def cast_and_read_tasks(
    runtime: Runtime, cantrip: Cantrip, intent: str, seconds: float
) -> tuple[Episode, list[str]]:
    """Cast a cantrip; return its episode, and the tree of tasks so many seconds after its first child began."""
    tree: list[str] = []

    async def read() -> None:
        async for _ in runtime.events(lambda event: isinstance(event, EntityStartedEvent) and event.depth > 0):
            await anyio.sleep(seconds)
            tree.extend(read_tasks())
            return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        episode = with_thread(await runtime.cast(cantrip, intent))
        tasks.cancel_scope.cancel()
    return episode, tree
