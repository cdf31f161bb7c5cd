"""The errors of the command line, and the test whether an error is the user's mistake."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from cantrip_actors import (
    CantripError,
    InvalidCantrip,
    InvalidDecision,
    InvalidFile,
    InvalidImage,
    InvalidIntent,
    InvalidSchedule,
    LoomError,
    UnknownEntity,
)


class Interrupted(Exception):  # not an error: a person asked for it
    """A signal ended the run. `code` is the exit code that shells expect then."""

    def __init__(self, number: int) -> None:
        self.code = 128 + number
        super().__init__(signal.Signals(number).name)


class LoomUnusable(LoomError):
    """The loom of the command cannot be opened."""


class UnknownId(LoomError):
    """An id that matches nothing in the loom, or more than one thing."""


class Unreachable(CantripError):
    """A service or a loom that is watched does not answer; the text says why."""


class UnknownRecipe(InvalidCantrip):
    """The recipe of an entity is not known any more."""


@contextmanager
def opening(hint: str = "") -> Iterator[None]:
    """Make a LoomError of the block, which opens a loom, a LoomUnusable with a hint: a mistake in the command."""
    try:
        yield
    except LoomError as error:
        raise LoomUnusable(f"{error}{hint}") from error


def is_mistake(error: CantripError) -> bool:
    """Return whether an error is a mistake in the command or in the recipe."""
    return isinstance(
        error,
        (
            *(ValueError, LookupError),  # their messages name the actual and the expected value
            *(InvalidCantrip, InvalidDecision, InvalidFile, InvalidImage, InvalidIntent, InvalidSchedule),
            *(UnknownEntity, UnknownId, LoomUnusable, Unreachable),
        ),
    )
