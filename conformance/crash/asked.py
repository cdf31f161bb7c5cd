"""Entities that wait for people: gates about which a person decides first, and questions.

The person is a task of each life. It allows the first two calls of a step, denies the third, and answers a question
with the question's text, so that any two runs can be compared. The next life repeats a decision that a kill
interrupted: the loom lists the open requests.
"""

from __future__ import annotations

import contextlib

import anyio

from cantrip_actors import (
    AlreadyDecided,
    Cantrip,
    Circle,
    LoomError,
    Request,
    Runtime,
    UnknownRequest,
    ask_first,
    gate,
    scripted,
)
from conformance.crash.workload import CIRCLE, WARDS, Root, answer, world

__all__ = ["ASKED", "ASKS", "GATES", "be_the_person"]


@gate
async def approve(what: str) -> str:
    """Change the world, once, if a person allows it."""
    world.note("begin", what)
    world.note("done", what)
    return f"did {what}"


GATES = [*CIRCLE, ask_first(approve), "question"]

ASKS = Cantrip(scripted(answer, record=False, name="asks"), circle=Circle(GATES, WARDS))

ASKED = (
    Root(ASKS, "once: a"),
    Root(ASKS, "often: eaa aaa q p", fork_at=1, fork="often+fork: a q"),
    Root(ASKS, "family: k ab q"),
    Root(ASKS, "kept: a", ("kept#2: q pa", "kept#3: k")),
)


async def be_the_person(runtime: Runtime) -> None:
    """Decide all requests, until cancelled; look again if the loom could not be reached."""
    while True:
        with contextlib.suppress(LoomError):
            async with runtime.requests(follow=True) as feed:
                async for request in feed:
                    await _decide(runtime, request)
        await anyio.sleep(0.05)


async def _decide(runtime: Runtime, request: Request) -> None:
    try:
        if request.kind == "question":
            await runtime.decide(request.id, answer=f"answer to {request.text}", by="anna")
        elif str(request.args["what"]).endswith("2"):
            await runtime.decide(request.id, "deny", by="anna", note="not three")
        else:
            await runtime.decide(request.id, "allow", by="anna")
    except (AlreadyDecided, UnknownRequest):  # its entity has ended, or another process was faster
        return
