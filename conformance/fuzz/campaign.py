"""Fuzz one target for some seconds: its seeds unchanged, then edits of them, until an input fails."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from conformance.fuzz.edits import Input, draw, shrink

__all__ = ["Check", "Finding", "Outcome", "Target", "TooSlow", "fuzz"]

SLOW: Final = 5.0
"""CPU seconds that one input may take in this process."""

Check = Callable[[bytes], object]
"""A function that raises if a promise is broken."""


class TooSlow(AssertionError):
    """An input took longer than any input of its size may."""


@dataclass(frozen=True)
class Target:
    """A parser under attack: `open` returns its check, `seeds` its inputs, `words` the words of its format."""

    name: str
    attacks: str
    open: Callable[[], AbstractContextManager[Check]]
    seeds: Callable[[], Sequence[bytes]]
    words: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Finding:
    """An input that broke a promise, and its error."""

    data: bytes
    error: Exception

    def keep(self, folder: Path) -> Path:
        """Write the input into a folder, under a name derived from its content; return the file."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / hashlib.sha256(self.data).hexdigest()[:16]
        file.write_bytes(self.data)
        return file


@dataclass(frozen=True)
class Outcome:
    """How many inputs were tried, and the first failing one, shrunk."""

    tried: int
    finding: Finding | None


def fuzz(target: Target, *, seconds: float = math.inf, inputs: float = math.inf, seed: int = 0) -> Outcome:
    """Fuzz a target for this many seconds or inputs, or until its first failure; return the result.

    The same `seed` gives the same inputs in the same order.
    """
    seeds, chance, tried = target.seeds(), Random(seed), 0
    until = time.monotonic() + seconds
    with target.open() as check:
        unused = [Input(seed_bytes) for seed_bytes in seeds]
        while unused or (time.monotonic() < until and tried < inputs):
            mutated = unused.pop(0) if unused else draw(chance, seeds, target.words)
            tried += 1
            error = failure(check, mutated.data)
            if error is not None:
                return Outcome(tried, _shrink_finding(check, mutated, error))
    return Outcome(tried, None)


def _shrink_finding(check: Check, failing: Input, error: Exception) -> Finding:
    """Return the finding with fewer edits; an input with another error is another finding."""
    data = shrink(failing, lambda data: type(failure(check, data)) is type(error)).data
    return Finding(data, failure(check, data) or error)


def failure(check: Check, data: bytes) -> Exception | None:
    """Return the error of a check, or None; TooSlow if it takes too long."""
    began = time.thread_time()
    try:
        check(data)
    except Exception as error:
        return error
    took = time.thread_time() - began
    return TooSlow(f"an input of {len(data):,} bytes took {took:.1f} s") if took > SLOW else None
