"""One job of `python -m bench code`, in a process of its own: `code_worker.py turn python sqlite 220`.

What runs is what a user would write: a crystal that is a function, an async gate, a loom. `restore` makes a sandbox
again as the runtime's circle does, by its newest snapshot or by its programs, and prints the milliseconds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import anyio

from bench.code import AGAIN
from cantrip_actors import Cantrip, Circle, Invocation, Runtime, gate, scripted
from cantrip_actors.model.loop import Answer, Called, Compute, Computed, Program
from cantrip_actors.model.snapshot import Image, reference
from cantrip_actors.model.state import Left
from cantrip_actors.runtime.circle import CircleActor
from cantrip_actors.runtime.snapshots import Snapshots
from cantrip_actors.wards import max_turns

PROGRAMS: Mapping[str, str] = {
    "python": "y = look('b')\nz = len(y)\nprint(z)",
    "javascript": "var y = look('b'); var z = y.length; console.log(z)",
    "shell": "y=$(look b); z=${#y}; echo $z",
}
ENDS: Mapping[str, str] = {"python": "done(z)", "javascript": "done(z);", "shell": 'done "$z"'}
ANSWER = "what was found "


@gate
async def look(what: str) -> str:
    """Look for something."""
    return ANSWER + what


async def turns(language: str, store: str, count: int) -> None:
    """An entity of so many turns."""

    def policy(context: Invocation) -> Mapping[str, Any]:
        said = (len(context) - 2) // 2
        return {"code": PROGRAMS[language] if said < count else ENDS[language]}

    circle = Circle(["done", look], [max_turns(count + 1)], medium=language)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        async with Runtime.open("memory:" if store == "memory" else f"sqlite:{folder}/loom.db") as runtime:
            episode = await runtime.cast(Cantrip(scripted(policy, record=False), circle=circle), "go")
            assert str(episode.result) == str(len(ANSWER) + 1), episode


async def restored(language: str, how: str) -> float:
    """Milliseconds that a sandbox of many programs takes to be there again; the engine itself is warm."""
    kept: dict[str, Image] = {}
    snapshots = Snapshots(lambda: b"a key of the bench's own", kept.get)
    circle = Circle(["done", look], [max_turns(1)], medium=language)  # type: ignore[arg-type]
    actor = CircleActor(circle, snapshots=snapshots)
    programs: list[Program] = []
    images: list[Left] = []
    for _ in range(AGAIN[1]):
        step = await actor._compute(Compute(PROGRAMS[language], None, tuple(programs)))  # noqa: SLF001  # as its mail
        answer = Answer(ANSWER + "b")
        assert isinstance(step, Called)
        step = actor._told(await actor._answer(answer))  # noqa: SLF001
        assert isinstance(step, Computed)
        programs.append(Program(PROGRAMS[language], None, (answer,)))
        if step.snapshot is not None and step.snapshot.image is not None:
            kept[step.snapshot.digest] = step.snapshot.image
            images.append(Left(len(programs), reference(step.snapshot)))
    await actor._close()  # noqa: SLF001
    other = CircleActor(circle, snapshots=snapshots)
    began = time.perf_counter()
    again = Compute(ENDS[language], None, tuple(programs), (), tuple(images) if how == "snapshot" else ())
    step = await other._compute(again)  # noqa: SLF001
    took = (time.perf_counter() - began) * 1e3
    assert isinstance(step, Called), step
    assert str((step.args or {})["answer"]) == str(len(ANSWER) + 1)
    await other._close()  # noqa: SLF001
    return took


def main(job: str, language: str, how: str, count: str = "0") -> None:
    """Do the job."""
    if job == "turn":
        anyio.run(turns, language, how, int(count))
    else:
        print(anyio.run(restored, language, how))


if __name__ == "__main__":
    main(*sys.argv[1:])
