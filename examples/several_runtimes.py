"""Several runtimes in one process: each has its own tree and its own loom, and none knows of the others."""

import asyncio
import tempfile
from pathlib import Path

from cantrip_actors import Cantrip, Circle, Runtime, open_loom, scripted
from cantrip_actors.wards import max_turns

CANTRIP = Cantrip(
    crystal=scripted(lambda context: {"content": (context[0].content or "").upper()}),
    circle=Circle(gates=["done"], wards=[max_turns(3)]),
)


async def main() -> None:
    """The same cantrip in two runtimes at once; a loom can be read when its runtime is gone."""
    with tempfile.TemporaryDirectory() as folder:
        urls = [f"jsonl:{Path(folder, name)}.jsonl" for name in ("work", "home")]
        async with (
            Runtime.open(urls[0]) as work,
            Runtime.open(urls[1]) as home,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(work.cast(CANTRIP, "write the report"))
            tasks.create_task(home.cast(CANTRIP, "buy milk"))
            tasks.create_task(home.cast(CANTRIP, "feed the cat"))
        for url in urls:
            with open_loom(url) as loom:
                print([turn.content for entity in loom.entities() for turn in loom.turns(entity)])


if __name__ == "__main__":
    asyncio.run(main())
