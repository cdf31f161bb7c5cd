"""Counting the readers of event streams by dialect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from cantrip_actors.observe.delivery import FellBehind
from cantrip_actors.runtime.events.instrument import Instrument, Reads


@contextmanager
def count_reader(instrument: Instrument | None, dialect: Literal["openai", "acp", "mcp"]) -> Iterator[None]:
    """Count a reader of an event stream while the block runs. If the block raises FellBehind, that is counted too."""
    if instrument is None:
        yield
        return
    instrument.noted(Reads(dialect))
    fell_behind = False
    try:
        yield
    except FellBehind:
        fell_behind = True
        raise
    finally:
        instrument.noted(Reads(dialect, has_left=True, fell_behind=fell_behind))
