"""The bank: its interface, and a file that stands in for it."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import anyio.to_thread


class Bank(Protocol):
    """What the bank's API does. It makes one transfer of all requests with the same key."""

    async def transfer(self, payer: str, to: str, amount: int, *, key: str) -> None:
        """Move an amount from one account to another."""


class FileBank:
    """A bank in a SQLite file, which the workers of a service share."""

    def __init__(self, file: Path) -> None:
        self._file = file

    async def transfer(self, payer: str, to: str, amount: int, *, key: str) -> None:
        """Move an amount, unless a transfer with this key is there."""
        await anyio.to_thread.run_sync(self._insert, key, payer, to, amount)

    def _insert(self, *row: str | int) -> None:
        with closing(sqlite3.connect(self._file, timeout=30)) as connection, connection:
            connection.execute("create table if not exists transfer (key text primary key, payer, recipient, amount)")
            connection.execute("insert or ignore into transfer values (?, ?, ?, ?)", row)

    def list_transfers(self) -> list[tuple[str, str, int]]:
        """Return payer, recipient and amount of each transfer."""
        with closing(sqlite3.connect(self._file, timeout=30)) as connection:
            return connection.execute("select payer, recipient, amount from transfer order by rowid").fetchall()


@dataclass(frozen=True)
class Account:
    """The account of one user."""

    bank: Bank
    user: str

    async def pay(self, to: str, amount: int, *, key: str) -> None:
        """Transfer an amount from this account."""
        await self.bank.transfer(self.user, to, amount, key=key)
