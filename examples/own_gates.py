"""Gates of your own. `Injected` parameters are dependencies: given when the circle is made, unseen by the entity."""

import asyncio
import sqlite3
from typing import Annotated

from pydantic import Field

from cantrip_actors import Cantrip, Circle, Injected, Runtime, gate, scripted
from cantrip_actors.wards import max_turns


@gate(timeout=5)
def query(
    sql: Annotated[str, Field(description="one SELECT")],
    database: Injected[sqlite3.Connection],
    limit: Annotated[int, Field(ge=1, le=100)] = 10,
) -> list[list[object]]:
    """Ask the shop's database."""
    # a plain def runs in a worker thread, so this may block
    return [list(row) for row in database.execute(sql).fetchmany(limit)]


def shop() -> sqlite3.Connection:
    """A database with something in it."""
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.executescript("CREATE TABLE fruit (name, price); INSERT INTO fruit VALUES ('apple', 2), ('pear', 3);")
    return database


async def main() -> None:
    """The entity makes three mistakes; each comes back as an observation that says what was expected."""
    database = shop()
    cantrip = Cantrip(
        crystal=scripted(
            [
                {"tool_calls": [{"gate": "query", "args": {"sql": "SELECT * FROM vegetables"}}]},
                {"tool_calls": [{"gate": "query", "args": {"statement": "SELECT * FROM fruit"}}]},
                {"tool_calls": [{"gate": "query", "args": {"sql": "SELECT name FROM fruit", "limit": 1000}}]},
                {"tool_calls": [{"gate": "query", "args": {"sql": "SELECT sum(price) FROM fruit"}}]},
                {"tool_calls": [{"gate": "done", "args": {"answer": 5}}]},
            ]
        ),
        circle=Circle(gates=["done", query.with_(database=database)], wards=[max_turns(10)]),
    )
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(cantrip, "What does all the fruit cost together?")
    for turn in episode.thread:
        print("error:" if turn.gate_calls[0].is_error else "result:", turn.observation)
    database.close()


if __name__ == "__main__":
    asyncio.run(main())
