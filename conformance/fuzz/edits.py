"""Edits of a seed: spans of it are replaced by nothing, by words of its format, by random bytes, by other spans.

These edits are drawn from `random.Random`, not from Hypothesis: Hypothesis takes a millisecond for each input, and most
checks take a hundredth of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

__all__ = ["Edit", "Input", "draw", "shrink"]

AWKWARD: Final = (
    b"\0",
    b"\n",
    b"\r\n",
    b"\x1b[2J",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xe2\x80\xae",
    b"\xc2\x9b",
    b"%00",
    b"\\",
)
AWKWARD_NUMBERS: Final = (b"-1", b"0", b"1e999", b"NaN", b"9" * 30, b"2147483648", b"0.1", b"null", b"true")
AWKWARD_SHAPES: Final = (
    b"[",
    b"{",
    b'"',
    b"[[[[[[[[",
    b"{}",
    b"[]",
    b'""',
    b": ",
    b"- ",
    b"&a ",
    b"*a",
    b"!!python/none ",
)
LENGTHS: Final = (0, 0, 1, 1, 2, 4, 8, 32, 256, 1 << 20)
TIMES: Final = (1, 1, 1, 1, 1, 2, 100)
MOST: Final = 6
"""The most edits of one input."""


class Edit(NamedTuple):
    """Replace `length` bytes from `start` on by `put`, repeated."""

    start: int
    length: int
    put: bytes
    times: int = 1


class Input(NamedTuple):
    """A seed and its edits."""

    seed: bytes
    edits: tuple[Edit, ...] = ()

    @property
    def data(self) -> bytes:
        """The edited seed."""
        edited = self.seed
        for edit in self.edits:
            edited = edited[: edit.start] + edit.put * edit.times + edited[edit.start + edit.length :]
        return edited


def draw(chance: Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> Input:
    """Return an input with random edits, from the `words` of the format and from spans of other seeds."""
    seed = chance.choice(seeds)
    edits = []
    for _ in range(chance.randint(1, MOST)):
        start, length, times = chance.randint(0, len(seed)), chance.choice(LENGTHS), chance.choice(TIMES)
        edits.append(Edit(start, length, _put(chance, seeds, words), times))
    return Input(seed, tuple(edits))


def _put(chance: Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    match chance.randrange(4):
        case 0:
            return b""
        case 1:
            return chance.choice([*AWKWARD, *AWKWARD_NUMBERS, *AWKWARD_SHAPES, *words])
        case 2:
            return chance.randbytes(chance.randint(1, 4))
        case _:
            other = chance.choice(seeds)
            at = chance.randint(0, len(other))
            return other[at : at + chance.choice((1, 4, 16, 64, 1024))]


def shrink(failing: Input, fails: Callable[[bytes], bool]) -> Input:
    """Return a failing input with as few and as small edits as single steps can reach."""
    again = True
    while again:
        again = False
        for simpler in _simpler(failing):
            if fails(simpler.data):
                failing, again = simpler, True
                break
    return failing


def _simpler(failing: Input) -> Sequence[Input]:
    seed, edits = failing
    simpler = [Input(seed, edits[:at] + edits[at + 1 :]) for at in range(len(edits))]
    for at, edit in enumerate(edits):
        smaller = [edit._replace(times=1), edit._replace(put=edit.put[: len(edit.put) // 2])]
        smaller += [edit._replace(length=length) for length in (0, edit.length // 2)]
        simpler += [
            Input(seed, (*edits[:at], smaller_edit, *edits[at + 1 :]))
            for smaller_edit in smaller
            if smaller_edit != edit
        ]
    return simpler
