"""Composition: the parent has children do the work at once. What becomes of a child is the parent's observation."""

import asyncio
import json

from cantrip_actors import Call, Cantrip, Circle, Invocation, Runtime, gate, scripted
from cantrip_actors.wards import max_depth, max_turns

PARENT, CHILD = "You hand out work.", "You measure one word."


@gate(blocking=False)
def measure(word: str) -> int:
    """How long a word is; refuses words with digits."""
    if not word.isalpha():
        raise ValueError(f"{word!r} is no word")
    return len(word)


def policy(context: Invocation) -> dict[str, object]:
    """Stands for a model: what it says depends on what it has seen, and on nothing else."""
    system, intent, last = context[0].content, context[1].content or "", context[-1]
    if system == PARENT and last.role == "user":
        requests = [
            {"intent": word, "system_prompt": CHILD, "gates": ["measure", "done"], "max_turns": 3}
            for word in intent.split()
        ]
        return call("call_agent_batch", intents=requests)
    if system == PARENT:
        return call("done", answer=json.loads(last.content or "[]"))
    if last.role == "user":
        return call("measure", word=intent)
    if last.is_error:
        raise RuntimeError("this child has no idea what to do about that")
    return call("done", answer=int(last.content or 0))


def call(gate: str, **args: object) -> dict[str, object]:
    """One gate call, as a crystal says it."""
    return {"tool_calls": [{"gate": gate, "args": args}]}


CANTRIP = Cantrip(
    crystal=scripted(policy),
    call=Call(system_prompt=PARENT),
    circle=Circle(gates=["done", "call_agent_batch", measure], wards=[max_turns(5), max_depth(1)]),
)


async def main() -> None:
    """Three children, in the order of the request; the second one's crystal fails."""
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(CANTRIP, "apple p34r banana")
        print("answer:", episode.result)
        for entity in runtime.loom.subtree(episode.entity_id):
            print(
                "  " * runtime.loom.header(entity).depth + runtime.loom.state(entity), len(runtime.loom.turns(entity))
            )


if __name__ == "__main__":
    asyncio.run(main())
