"""A bank for tests in virtual time."""

from collections import Counter

import anyio


class SlowBank:
    """A bank that takes a second before it has written a transfer, and a second after it. It outlives a process."""

    def __init__(self) -> None:
        self.transfers: Counter[tuple[str, str, int]] = Counter()
        self._keys: set[str] = set()

    async def transfer(self, payer: str, to: str, amount: int, *, key: str) -> None:
        """Move an amount, unless a transfer with this key is there."""
        await anyio.sleep(1)
        if key not in self._keys:
            self._keys.add(key)
            self.transfers[payer, to, amount] += 1
        await anyio.sleep(1)
