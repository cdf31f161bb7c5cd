"""Files to start from, for those who run workers with Kubernetes, systemd, Compose or Ray."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import Final

ENGINES: Final = {"kubernetes": "yaml", "systemd": "service", "compose": "yaml", "ray": "yaml"}
"""The kinds of manifests, and how their files end."""

QUERY: Final = (
    "select (select count(*) from cantrip.entities where life = 0 and tree = no) "
    "+ (select count(*) from cantrip.trees join cantrip.entities using (no) "
    "where control + intents > 0 and loads > 0 and life <> 0) "
    "+ (select count(*) from cantrip.timers where due <= extract(epoch from now())) "
    "+ (select count(*) from cantrip.submissions where queue = '')"
)
"""`Cluster.backlog` as a query for Postgres: divided by a worker's capacity, it is how many workers to run."""

_PLAIN: Final = re.compile(r"[\w./:@+-]+")
"""Text that needs no quotes for a shell or for systemd; the YAML files quote it."""

HANDOVER: Final = 15.0
"""Seconds that an engine waits for a worker on top of its grace."""


def manifest(
    engine: str,
    recipes: Sequence[str],
    *,
    nodes: int = 3,
    most: int = 10,
    capacity: int = 200,
    release: str = "1",
    grace: float = 60.0,
    image: str = "cantrip:latest",
) -> str:
    """Return the text of a manifest. Raises ValueError for an unknown engine, and for names that would need quotes."""
    if engine not in ENGINES:
        raise ValueError(f"expected one of {', '.join(ENGINES)}, got {engine!r}")
    for what, value in (*(("recipe", recipe) for recipe in recipes), ("release", release), ("image", image)):
        if not _PLAIN.fullmatch(value):
            raise ValueError(f"{what}: expected letters, digits and any of ./:@+-_, got {value!r}")
    text = files("cantrip_actors.cluster").joinpath(f"templates/{engine}.{ENGINES[engine]}").read_text(encoding="utf-8")
    return Template(text).substitute(
        recipes=" ".join(recipes),
        list=", ".join(f'"{recipe}"' for recipe in recipes),
        nodes=nodes,
        most=max(most, nodes),
        capacity=capacity,
        release=release,
        grace=f"{grace:g}",
        patience=f"{grace + HANDOVER:g}",
        image=image,
        query=QUERY,
    )
