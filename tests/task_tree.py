"""The tree of tasks as the event loop knows it: on trio by its nurseries, on asyncio by anyio's task groups."""

import sys
from collections.abc import Iterator
from typing import Any

import anyio

from supervisors.inspect import Node

Chain = tuple[str, ...]
"""The names from the root of a tree to one of its nodes, or a part of them."""


def list_tasks() -> Iterator[Chain]:
    """Yield the chain of names of each running task."""
    if "trio" in sys.modules:
        import trio

        if trio.lowlevel.in_trio_run():
            root = trio.lowlevel.current_root_task()
            assert root is not None, "a run has one"
            yield from _walk(root, ())
            return
    tasks = {task.id: task for task in anyio.get_running_tasks()}
    for task in tasks.values():
        chain = [str(task.name)]
        while task.parent_id is not None and task.parent_id in tasks:
            task = tasks[task.parent_id]
            chain.append(str(task.name))
        yield tuple(reversed(chain))


def _walk(task: Any, above: Chain) -> Iterator[Chain]:
    chain = (*above, task.name)
    yield chain
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _walk(child, chain)


def list_actors(node: Node, above: Chain = ()) -> Iterator[Chain]:
    """Yield the chain of ids of each actor in a supervision tree."""
    chain = (*above, node.id)
    yield chain
    for child in node.children:
        yield from list_actors(child, chain)


def select_actors(tasks: Iterator[Chain], actors: set[Chain]) -> set[Chain]:
    """Return the chains of the tasks that are named after an actor, without the tasks between that are not."""
    ids = {chain[-1] for chain in actors}
    return {tuple(name for name in chain if name in ids) for chain in tasks if chain[-1] in ids}
