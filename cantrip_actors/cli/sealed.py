"""Options and files of sealed looms and dispatches: the key's file, and files of heads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cantrip_actors.cli import output

if TYPE_CHECKING:
    from cantrip_actors.loom import Heads

_VARIABLE = "CANTRIP_SEAL_KEY"

KeyFileOption = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", envvar=_VARIABLE, help="The key of what is sealed: a file of mode 0600."),
]
HeadFileOption = Annotated[
    Path | None, typer.Option("--head", metavar="FILE", help="Heads of an earlier time: has anything gone back since?")
]
OutputFile = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write them to a new file; keep it elsewhere.")
]


def seal_key() -> Path | None:
    """Return the file with the key of sealed looms and dispatches, which the environment names in CANTRIP_SEAL_KEY."""
    named = os.environ.get(_VARIABLE)
    return Path(named) if named else None


def read_heads(file: Path) -> Heads:
    """Return the heads in a file. Raises LoomError."""
    from cantrip_actors.loom import Heads
    from cantrip_actors.terms.errors import LoomError

    try:
        return Heads.from_json(file.read_bytes())
    except OSError as error:
        raise LoomError(f"cannot read the heads in {file}: {error.strerror}") from error


def write_heads(heads: Heads, file: Path | None) -> None:
    """Print heads, or write them to a new file. Raises LoomError."""
    import json

    from cantrip_actors.terms.errors import LoomError

    if file is None:
        output.print_json(json.loads(heads.as_json()))
        return
    try:
        with file.open("xb") as to:
            to.write(heads.as_json())
    except OSError as error:
        raise LoomError(f"cannot write the heads to {file}: {error.strerror}; give the path of a new file") from error
    advice = "keep it where a user who can write here cannot write"
    output.print_lines([f"{file}: the heads of {len(heads.trees):,} histories: {advice}"])
