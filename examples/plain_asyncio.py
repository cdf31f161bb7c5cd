"""A cast in a plain asyncio program: watch the events while it runs, look at the thread when it is over."""

import asyncio

from cantrip_actors import Call, Cantrip, Circle, Runtime, TextEvent, ToolCallEvent, gate, scripted
from cantrip_actors.wards import max_turns


@gate
async def temperature(city: str) -> float:
    """The temperature in a city, in degrees Celsius."""
    await asyncio.sleep(0.01)  # as a request would
    return {"Oslo": 4.5, "Rome": 19.0}[city]


CANTRIP = Cantrip(
    crystal=scripted(
        [
            {"content": "Let me look.", "tool_calls": [{"gate": "temperature", "args": {"city": "Rome"}}]},
            {"tool_calls": [{"gate": "temperature", "args": {"city": "Atlantis"}}]},
            {"tool_calls": [{"gate": "done", "args": {"answer": "It is 19 degrees in Rome."}}]},
        ]
    ),
    call=Call(system_prompt="You answer questions about the weather."),
    circle=Circle(gates=["done", temperature], wards=[max_turns(10)]),
)


async def main() -> None:
    """Cast once; the second gate call fails, which the entity sees as an observation."""
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.start(CANTRIP, "How warm is it in Rome?")
        async for event in entity.events():
            if isinstance(event, TextEvent):
                print("says:", event.text)
            elif isinstance(event, ToolCallEvent):
                print("calls:", event.gate, dict(event.args or {}))
        episode = await entity.episode()
        print("answer:", episode.result)
        for turn in episode.thread:
            for seen in turn.gate_calls:
                print(f"turn {turn.sequence}: {seen.gate} {'failed' if seen.is_error else 'gave'} {seen.content}")


if __name__ == "__main__":
    asyncio.run(main())
