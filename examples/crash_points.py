"""Four ways to write a gate that a crash breaks, and one that no crash breaks. docs/testing.md explains the sweep.

Each shop sells an item: one parcel leaves. Its books are outside of the loom, as a database is; the shop itself is an
object in the memory of the process, and a new process has a new one.
"""

from collections import Counter
from dataclasses import dataclass, field

import anyio

from cantrip_actors import Cantrip, Circle, Gate, GateCall, Runtime, gate, scripted
from cantrip_actors.testing import Crash, Process, every_crash_point, run_with_crashes, virtual
from cantrip_actors.wards import max_turns


@dataclass
class Books:
    """A database, which survives the process."""

    parcels: Counter[str] = field(default_factory=Counter)
    keys: set[str] = field(default_factory=set)


class Shop:
    """A shop that keeps the rules: one step, done once for each call. A crash does not change the id of a call."""

    def __init__(self, books: Books) -> None:
        self.books = books

    def make_gate(self) -> Gate:
        """Return the gate that sells."""

        @gate(idempotent=True)
        async def sell(item: str, call: GateCall) -> str:
            """Sell an item."""
            await anyio.sleep(1)
            if call.id not in self.books.keys:  # in one transaction of the database, with a unique index of the keys
                self.books.keys.add(call.id)
                self.books.parcels[item] += 1
            await anyio.sleep(1)
            return f"{item} is on its way"

        return sell

    async def close(self) -> None:
        """End the day."""


class NotIdempotent(Shop):
    """It says that it may run again, and sends a second parcel."""

    def make_gate(self) -> Gate:
        """Return the gate that sells."""

        @gate(idempotent=True)
        async def sell(item: str) -> str:
            """Sell an item."""
            await anyio.sleep(1)
            self.books.parcels[item] += 1
            await anyio.sleep(1)
            return f"{item} is on its way"

        return sell


class MarkedBefore(Shop):
    """It marks the sale as done before the parcel leaves: after a crash between the two, none does."""

    def make_gate(self) -> Gate:
        """Return the gate that sells."""

        @gate(idempotent=True)
        async def sell(item: str) -> str:
            """Sell an item."""
            if item not in self.books.keys:
                self.books.keys.add(item)
                await anyio.sleep(1)
                self.books.parcels[item] += 1
            return f"{item} is on its way"

        return sell


class LostUpdate(Shop):
    """It collects the sales of the day in memory. The loom says that they are done when the books do not have them."""

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self.sold: list[str] = []

    def make_gate(self) -> Gate:
        """Return the gate that sells."""

        @gate(idempotent=True)
        async def sell(item: str) -> str:
            """Sell an item."""
            self.sold.append(item)
            return f"{item} is on its way"

        return sell

    async def close(self) -> None:
        """End the day."""
        self.books.parcels.update(self.sold)


class EffectAfterCancel(Shop):
    """It sends the parcel also if it is cancelled, "to be safe"; and then once more, because the call runs again."""

    def make_gate(self) -> Gate:
        """Return the gate that sells."""

        @gate(idempotent=True)
        async def sell(item: str) -> str:
            """Sell an item."""
            try:
                await anyio.sleep(1)
            finally:
                self.books.parcels[item] += 1
            return f"{item} is on its way"

        return sell


async def find_breaking_crashes(shops: type[Shop]) -> list[Crash]:
    """Return the crashes after which not exactly one parcel has left."""
    books = Books()

    async def program(process: Process) -> None:
        shop = shops(books)
        call = {"tool_calls": [{"gate": "sell", "args": {"item": "tea"}}]}
        crystal = scripted(lambda context: call if context[-1].role == "user" else "sold")
        clerk = Cantrip(crystal, circle=Circle(["done", shop.make_gate()], [max_turns(4)]), name="clerk")
        async with process.attach(Runtime.open("memory:", cantrips=[clerk], recover="resume")) as runtime:
            await runtime.cast(clerk, "sell tea", key="1")
        await shop.close()

    breaking = []
    for crash in await every_crash_point(program):
        books.keys.clear()
        books.parcels.clear()
        await run_with_crashes(program, [crash])
        if books.parcels != {"tea": 1}:
            breaking.append(crash)
    return breaking


def main() -> None:
    """Print how many crashes break each shop, in virtual time."""
    backend, options = virtual("asyncio")
    for shops in (NotIdempotent, MarkedBefore, LostUpdate, EffectAfterCancel, Shop):
        breaking = anyio.run(find_breaking_crashes, shops, backend=backend, backend_options=options)
        print(f"{shops.__name__}: {len(breaking)} {'crash breaks' if len(breaking) == 1 else 'crashes break'} it")


if __name__ == "__main__":
    main()
