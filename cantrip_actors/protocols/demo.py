"""`cantrip demo`: an entity and its children read a folder, and the loom stays on disk to look at.

Only the crystal is scripted (`policy.py`); supervision, gates, children, events and the loom are those of any cast.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio

import cantrip_actors
from cantrip_actors import Call, Cantrip, Circle, Invocation, scripted
from cantrip_actors.model.gate import standard
from cantrip_actors.protocols.policy import FOLDER_READER, INTENT, policy
from cantrip_actors.wards import max_depth, max_turns, timeout

__all__ = ["INTENT", "demo_cantrip", "own_folder", "report"]


def own_folder() -> Path:
    """What the demo reads if it is given nothing: this project's documents and sources, or the installed sources."""
    package = Path(cantrip_actors.__file__).parent
    project = package.parent
    return project if (project / "docs").is_dir() and (project / "pyproject.toml").is_file() else package


def demo_cantrip(folder: Path, pace: float = 0.0) -> Cantrip:
    """A reader of `folder`. Each answer of its crystal takes `pace` seconds, so that people can follow."""

    async def paced(context: Invocation) -> dict[str, Any]:
        await anyio.sleep(pace)
        return policy(context)

    return Cantrip(
        crystal=scripted(paced if pace else policy, name="scripted:demo", record=False),
        call=Call(system_prompt=FOLDER_READER, require_done_tool=True),
        circle=Circle(
            gates=[
                "done",
                standard("list").with_(root=folder),
                standard("read").with_(root=folder),
                "call_agent_batch",
            ],
            wards=[max_turns(20), max_depth(1), timeout(120)],
        ),
        name="demo",
    )


def report(result: Any) -> Iterator[str]:
    """The lines of the report that the root entity answered with."""
    text = result.get("report", "") if isinstance(result, dict) else str(result)
    yield from text.splitlines()
