"""A property test of an agent: whatever its gate does, however long that takes, it ends and the loom holds every turn.

It runs in virtual time: hours of timeouts and retries take no time at all, and every run is the same run. The agent is
real; its crystal is a policy and its gate misbehaves as Hypothesis likes.
"""

from typing import Literal

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors import Cantrip, Circle, Invocation, Runtime, gate, scripted
from cantrip_actors.wards import max_turns, timeout
from supervisors.testing import virtual

Moods = Literal["answers", "raises", "hangs"]
moods = st.lists(st.sampled_from(["answers", "raises", "hangs"]), max_size=8)


def stubborn(context: Invocation) -> dict[str, object]:
    """Tries until the gate answers."""
    if context[-1].role == "tool" and not context[-1].is_error:
        return {"tool_calls": [{"gate": "done", "args": {"answer": context[-1].content}}]}
    return {"tool_calls": [{"gate": "oracle", "args": {}}]}


async def consult(moods: list[Moods]) -> None:
    """Cast once, with an oracle that has these moods one after the other, and check what must hold."""
    left = iter(moods)

    @gate(timeout=60)
    async def oracle() -> str:
        """Ask the oracle."""
        match next(left, "answers"):
            case "raises":
                raise ConnectionError("the oracle is asleep")
            case "hangs":
                await anyio.sleep_forever()
        return "42"

    cantrip = Cantrip(
        crystal=scripted(stubborn), circle=Circle(gates=["done", oracle], wards=[max_turns(6), timeout(3600)])
    )
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(cantrip, "Ask until you know.")
        turns = runtime.loom.turns(episode.entity_id)
    tries = next((n for n, mood in enumerate(moods, 1) if mood == "answers"), len(moods) + 1)
    assert episode.terminated != episode.truncated
    assert episode.terminated == (tries < 6)
    assert len(turns) == min(tries + 1, 6)
    assert [turn.sequence for turn in turns] == list(range(1, len(turns) + 1))
    assert all(turn.gate_calls for turn in turns)


@settings(deadline=None, max_examples=25)
@given(moods)
def test_it_always_ends(moods: list[Moods]) -> None:
    """On both backends, each in virtual time."""
    for backend in ("asyncio", "trio"):
        name, options = virtual(backend)
        anyio.run(consult, moods, backend=name, backend_options=options)


if __name__ == "__main__":
    test_it_always_ends()
    print("it always ends")
