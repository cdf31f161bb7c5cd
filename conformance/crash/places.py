"""The locations of looms: a folder for files, and a schema for each loom on a Postgres server.

The server is the one that `CANTRIP_POSTGRES` names, or one of our own (`conformance.postgres`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["DURABILITIES", "STORES", "postgres", "remove", "url_of"]

STORES = ("jsonl", "sqlite", "postgres")
DURABILITIES = ("process", "power", "none")


def url_of(store: str, durability: str, folder: Path, server: str | None) -> str:
    """Return the URL of the loom that belongs to `folder`."""
    if store == "postgres":
        assert server is not None  # the campaign starts a server if it needs one
        name = folder.name.replace("-", "_").lower()
        return f"{server}&schema={name}&durability={durability}&application_name={name}"
    ending = {"jsonl": "jsonl", "sqlite": "db"}[store]
    return f"{store}:{folder}/loom.{ending}?durability={durability}"


def remove(url: str, folder: Path) -> None:
    """Remove a loom: its schema on a server, and its folder.

    The watcher of a process that was killed may remove its part of the folder at the same time.
    """
    if url.startswith("postgresql:"):
        from conformance.postgres import drop

        drop(url)
    while folder.exists():
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the URL of a running server, up to its query's last option. Raises FileNotFoundError without one."""
    server = os.environ.get("CANTRIP_POSTGRES")
    if server:
        yield server if "?" in server else f"{server}?connect_timeout=10"
        return
    from conformance.postgres import Server

    with Server() as ours:
        yield ours.url
