"""The additions of installed packages to the command line, through entry points.

Three groups of entry points count. `cantrip_actors.commands` has commands: the name is the command's, and the object a
`typer.Typer` that has a command or a group of this name. `cantrip_actors.routes` has functions that return what a
package adds to `cantrip serve`, and `cantrip_actors.requests` those that return requests that people decide; both take
the folder of `--dir` and the file of the seal key, or None for those that were left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from cantrip_actors import RequestSource
    from cantrip_actors.http import ServiceExtension


def find_command(name: str) -> EntryPoint | None:
    """Return the entry point of a command; None if no package has a command of this name."""
    return next((entry for entry in _list("commands") if entry.name == name), None)


def load_command(entry: EntryPoint) -> typer.Typer:
    """Return the commands of an entry point. Raises InvalidCantrip."""
    app = _load(entry)
    if not isinstance(app, typer.Typer):
        from cantrip_actors import InvalidCantrip

        raise InvalidCantrip(f"{_describe(entry)}: expected a typer.Typer, got {type(app).__name__}")
    return app


def open_service_extensions(folder: Path | None, seal_key: Path | None) -> tuple[ServiceExtension, ...]:
    """Return what packages add to `cantrip serve`. Raises InvalidCantrip."""
    return tuple(_load(entry)(folder, seal_key) for entry in _list("routes"))


def open_request_sources(folder: Path | None, seal_key: Path | None) -> list[RequestSource]:
    """Return the sources of the requests of packages. Raises InvalidCantrip."""
    sources = (_load(entry)(folder, seal_key) for entry in _list("requests"))
    return [source for source in sources if source is not None]


def _list(group: str) -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points

    return entry_points(group=f"cantrip_actors.{group}")


def _load(entry: EntryPoint) -> Any:
    """Return the object of an entry point. Raises InvalidCantrip, with the package, if it cannot be imported."""
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        from cantrip_actors import InvalidCantrip

        raise InvalidCantrip(f"{_describe(entry)} cannot be loaded: {error}") from error


def _describe(entry: EntryPoint) -> str:
    package = "" if entry.dist is None else f" of {entry.dist.name}"
    return f'entry point "{entry.name}" ({entry.value}){package}'
