"""Makes the looms of this folder: `python make_loom.py URL`, run in a checkout of the version whose looms are wanted.

`tables1`, `tables2` and `tables3` are looms whose SQL tables have that version. With PROGRAMS=1 in the environment the
loom has an entity of a Python circle too.
"""

import asyncio
import base64
import contextlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))  # the version of the checkout, not an installed one

from cantrip_actors import Call, Cantrip, Circle, CrystalError, Folding, Runtime, gate, scripted
from cantrip_actors.wards import max_depth, max_tokens, max_turns

try:
    from cantrip_actors import Image
except ImportError:  # the versions before images
    Image = None
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@gate
async def double(n: int) -> int:
    """Double a number."""
    return 2 * n


@gate
async def shoot() -> object:
    """Take a picture."""
    return {"picture": Image(PNG), "when": "noon"} if Image else "no camera"


@gate
async def wide() -> object:
    """Return what only the standard library can write."""
    return {"big": 2**70, "odd": "half \ud83d", "inf": float("inf"), "none": None}


@gate
async def broken() -> None:
    """Raise."""
    raise ValueError("it is broken")


U = {"prompt_tokens": 10, "completion_tokens": 5, "cached_tokens": 2, "cost": 0.25}


def say(*calls, text=None):
    return {"content": text, "tool_calls": [{"gate": g, "args": a} for g, a in calls], "usage": U}


def done(answer):
    return say(("done", {"answer": answer}))


def tree(context):
    intent = next(m.content for m in context if m.role == "user")
    if intent.startswith("child"):
        return done(f"{intent} is done") if intent != "child 2" else {"error": {"status": 400, "message": "no"}}
    n = sum(m.role == "assistant" for m in context)
    steps = [
        say(("double", {"n": 21}), ("broken", {}), ("nobody", {}), text="I begin."),
        say(("wide", {}), ("shoot", {})),
        say(
            ("double", {"n": 1}),
            ("call_agent_batch", {"intents": [{"intent": "child 1"}, {"intent": "child 2"}]}),
            ("double", {"n": 2}),
        ),
        done({"sum": 42}),
    ]
    return steps[min(n, 3)]


def memory(context):
    last = [m.content for m in context if m.role == "user"][-1]
    if any("You keep an agent's memory" in (m.content or "") for m in context if m.role == "system"):
        return {"content": "a summary", "usage": {"prompt_tokens": 100, "completion_tokens": 1}}
    if last == "fail":
        return {"error": {"status": 400, "message": "cannot"}}
    n = sum(m.role == "assistant" for m in context)
    return say(("double", {"n": n})) if n % 3 else {"content": f"noted: {last}", "usage": U}


PROGRAM = ["x = double(4)\nprint('x is', x)\nx", "y = x + len(context)\ny", "1 / 0", "done(y)"]


def keeper():
    """The cantrip of the long-lived entities."""
    folding = Folding(trigger_after_turns=2, **({"summary": True} if "summary" in Folding.__slots__ else {}))
    return Cantrip(scripted(memory, name="memory"), circle=Circle(["done", double], [max_turns(9)]), folding=folding)


async def main(url):
    async with Runtime.open(url) as runtime:
        circle = Circle(
            ["done", double, shoot, wide, broken, "call_agent", "call_agent_batch"], [max_turns(9), max_depth(2)]
        )
        cantrip = Cantrip(
            scripted(tree, name="tree"), call=Call(system_prompt="You are terse.", temperature=0.5), circle=circle
        )
        images = {"context": {"look": Image(PNG)}} if Image else {"context": {"look": None}}
        episode = await runtime.cast(cantrip, "parent", **images)
        await runtime.loom.reward(episode.thread[0].id, 0.5)
        await runtime.loom.reward(episode.thread[0].id, 0.75)
        await runtime.fork(episode.thread[1].id, intent="another way")
        lasting = keeper()
        entity = await runtime.invoke(lasting, "keep my notes", name="notes")
        await entity.episode()
        await entity.steer("be brief")
        for intent in ("one", "two", "three", "four"):
            await entity.send(intent)
        with contextlib.suppress(CrystalError):
            await entity.send("fail")
        await entity.send("five")
        gone = await runtime.invoke(lasting, "to be stopped", name="gone")
        await gone.episode()
        await gone.stop("enough")
        budget = Cantrip(scripted(memory, name="memory"), circle=Circle(["done", double], [max_tokens(20)]))
        await runtime.cast(budget, "spend")
        if os.environ.get("PROGRAMS"):
            coder = Cantrip(
                scripted([{"code": code, "usage": U} for code in PROGRAM], name="coder"),
                circle=Circle(["done", double], [max_turns(9)], medium="python"),
            )
            await runtime.cast(coder, "compute", context=[1, 2, 3])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
