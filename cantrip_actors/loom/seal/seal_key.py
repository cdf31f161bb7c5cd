"""Sealed looms: their hash chains are made with a key, so that only its holders can write history.

A loom is sealed from its beginning or never. Its public part is a `SealMark`: a random salt and a check. The loom's own
keys are made from the salt and the secret, so that no record of another loom with the same secret fits. The check
distinguishes a wrong key from a forged loom.

Besides the chain of each tree a sealed loom has a `Head`: one chain over the links of all lines, in the order of
recording. It is stored apart from the lines, and each append renews it. So it covers the end of every tree: missing
lines or trees at the end are found, because the head of fewer lines cannot be made without the key.

The secret is in a file of mode 0600, or is given as bytes or text. The seal does not cover waiting mail, timers and
leases, which are not history.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final, Literal, NamedTuple

from cantrip_actors.loom.seal.key_file import read_private_file
from cantrip_actors.own_files.claims import claim_file
from cantrip_actors.records.seal import NOTHING, compute_link, split_link
from cantrip_actors.terms.arguments import check_kind
from cantrip_actors.terms.errors import LoomError

SHORTEST: Final = 16
"""The fewest bytes of a secret."""
LONGEST: Final = 4096
"""The most bytes of a key file."""

SealKey = bytes | str | os.PathLike[str]
"""A secret as bytes or text, or the path of a file that contains it."""
GivenKey = SealKey | Literal[False] | None
"""The key for opening a loom. False reads a sealed loom without its key; its links are not checked."""


class WrongSealKey(LoomError):
    """A sealed loom or log was opened without its key or with a wrong one, or a key was given for an unsealed one."""


class SealMark(NamedTuple):
    """The public part of a loom's seal, in hex: a random salt, and the check that the right key makes of it."""

    salt: str
    check: str


class Head(NamedTuple):
    """The end of the chain over all lines of a sealed loom: the number of lines, and the last link."""

    records: int
    link: bytes


@dataclass(frozen=True, slots=True)
class Seal:
    """The keys of one loom. Without a `mark` the loom has no seal; without `chain` its key is not known."""

    mark: SealMark | None = None
    chain: bytes = field(default=b"", repr=False)
    """The key of the chains of trees."""
    end: bytes = field(default=b"", repr=False)
    """The key of the chain over all lines."""
    state: bytes = field(default=b"", repr=False)
    """The key of checkpoints."""

    @property
    def is_locked(self) -> bool:
        """Whether the loom is sealed and its key is not known, so that its links cannot be checked."""
        return self.mark is not None and not self.chain

    @property
    def beginning(self) -> Head:
        """Return the head of no lines."""
        return Head(0, compute_link(b"", NOTHING, self.end))

    def follow(self, head: Head, lines: Iterable[bytes]) -> Head:
        """Return the head after more lines, which have their links."""
        records, link = head
        for line in lines:
            records += 1
            link = compute_link(split_link(line)[1] or NOTHING, link, self.end)
        return Head(records, link)


UNSEALED: Final = Seal()


def read_secret(key: SealKey) -> bytes:
    """Return the secret of a key. From then on, no gate of this process may read the file that contains it.

    Raises LoomError for a secret that is too short, and a file that others may read or that is not one.
    """
    if isinstance(key, bytes):
        return _check_length(key, "seal_key")
    if isinstance(key, str):
        if os.path.exists(key):  # noqa: PTH110  # any text, also one that no path can be
            raise LoomError("seal_key: expected a secret, got the name of a file: give the file as pathlib.Path(…)")
        return _check_length(key.encode(), "seal_key")
    check_kind("seal_key", key, os.PathLike, "secret bytes, a text of them, or a pathlib.Path", LoomError)
    path = Path(key).expanduser()
    try:
        data, _ = read_private_file(path, LONGEST)
    except OSError as error:
        raise LoomError(f"cannot read the key in {path}: {error.strerror}") from error
    claim_file(path)
    return _check_length(data.rstrip(b"\r\n"), str(path))


def _check_length(secret: bytes, where: str) -> bytes:
    if len(secret) < SHORTEST:
        raise LoomError(
            f"{where}: expected at least {SHORTEST} secret bytes, got {len(secret)}: for example those of "
            "`(umask 077; head -c 32 /dev/urandom > seal.key)`"
        )
    return secret


def make_mark(secret: bytes, salt: str = "") -> SealMark:
    """Return the mark of a new loom; with a salt, the mark that this secret gives for it."""
    salt = salt or secrets.token_hex(16)
    return SealMark(salt, _derive(secret, salt, b"check")[:12].hex())


def open_seal(key: GivenKey, found: SealMark | None, where: str, *, is_new: bool) -> Seal:
    """Return the seal of a loom with this mark; a new loom gets one if there is a key.

    `key` is None if none was given, and False to read the loom without checking its links. Raises WrongSealKey for a
    key that is missing, wrong, or given for a loom that is not sealed, and LoomError for an unusable one.
    """
    if key is None and found is not None:
        raise WrongSealKey(
            f"{where} is sealed: give its key, with `seal_key=…`, or on the command line a key file in CANTRIP_SEAL_KEY"
        )
    if key is None or key is False:
        return Seal(found)
    secret = read_secret(key)
    if found is None and not is_new:
        raise WrongSealKey(
            f"{where} is not sealed, and a key was given: its records cannot be checked for forgery. "
            "Open it without one, or copy it to a new sealed loom: cantrip loom copy FROM TO --to-key FILE"
        )
    mark = make_mark(secret, "" if found is None else found.salt)
    if found is not None and mark != found:
        raise WrongSealKey(f"{where} is sealed with another key than the one given, or its mark was changed")
    return Seal(mark, *(_derive(secret, mark.salt, what) for what in (b"chain", b"end", b"state")))


def derive_log_seal(key: SealKey, start: bytes) -> Seal:
    """Return the seal of a log whose first link covers `start`, so that no line of another log with this secret fits.

    Raises LoomError for an unusable key.
    """
    secret, salt = read_secret(key), start.hex()
    return Seal(make_mark(secret, salt), *(_derive(secret, salt, what) for what in (b"chain", b"end")))


def _derive(secret: bytes, salt: str, what: bytes) -> bytes:
    """Return a key for one purpose of one loom. A long secret is hashed first, as BLAKE2b takes 64 bytes."""
    key = blake2b(secret, digest_size=32, person=b"cantrip secret").digest()
    return blake2b(salt.encode(), digest_size=32, key=key, person=b"cantrip " + what).digest()
