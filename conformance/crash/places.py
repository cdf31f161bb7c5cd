"""Where looms lie: a folder for files, a schema for each on a Postgres server.

The server is the one that `CANTRIP_POSTGRES` names, or one of our own (`conformance.postgres`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["DURABILITIES", "STORES", "away", "postgres", "url_of"]

STORES = ("jsonl", "sqlite", "postgres")
DURABILITIES = ("process", "power", "none")


def url_of(store: str, durability: str, folder: Path, server: str | None) -> str:
    """The URL of a loom that is `folder`'s own."""
    if store == "postgres":
        assert server is not None  # the campaign starts one where it is wanted
        name = folder.name.replace("-", "_").lower()
        return f"{server}&schema={name}&durability={durability}&application_name={name}"
    ending = {"jsonl": "jsonl", "sqlite": "db"}[store]
    return f"{store}:{folder}/loom.{ending}?durability={durability}"


def away(url: str) -> None:
    """Away with a loom on a server."""
    if url.startswith("postgresql:"):
        from conformance.postgres import drop

        drop(url)


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a running server, up to its query's last option. Raises FileNotFoundError where none is to be had."""
    given = os.environ.get("CANTRIP_POSTGRES")
    if given:
        yield given if "?" in given else f"{given}?connect_timeout=10"
        return
    from conformance.postgres import Server

    with Server() as ours:
        yield ours.url
