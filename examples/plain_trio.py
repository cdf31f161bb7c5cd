"""A cast in a plain trio program. A deadline around it is trio's own: when it passes, the entity is stopped."""

import trio

from cantrip_actors import Cantrip, Circle, Invocation, Runtime, scripted
from cantrip_actors.wards import max_turns


async def slow(context: Invocation) -> dict[str, object]:
    """A crystal that takes its time when it is asked to."""
    if "slowly" in (context[0].content or ""):
        await trio.sleep(3600)
    return {"content": "Done."}


CANTRIP = Cantrip(crystal=scripted(slow), circle=Circle(gates=["done"], wards=[max_turns(3)]))


async def main() -> None:
    """One cast in time, and one that is cut off."""
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(CANTRIP, "Be quick.")
        print("in time:", episode.result)
        with trio.move_on_after(0.1) as scope:
            await runtime.cast(CANTRIP, "Do it slowly.")
        late = runtime.loom.entities()[-1]
        print("cut off:", scope.cancelled_caught, runtime.loom.state(late))


if __name__ == "__main__":
    trio.run(main)
