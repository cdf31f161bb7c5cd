"""The errors a caller of the public face may meet: one small hierarchy under `CantripError`.

What is *not* here: what an entity meets. A gate that fails, a child that crashes or a ward that refuses is an
observation with `is_error` (D-011), never an exception of the host. A bug of the runtime itself is no `CantripError`
either: it leaves its actor as a crash and is the supervisor's business.

Every message says what was expected, what came, and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CantripError",
    "CrystalError",
    "EntityCrashed",
    "EntityEnded",
    "ImmutableError",
    "InvalidCantrip",
    "InvalidImage",
    "InvalidIntent",
    "LoomError",
    "ProviderError",
    "RuntimeClosed",
    "nearest",
]


class CantripError(Exception):
    """Root of every error that the public face raises on purpose.

    `entity_id` names the entity that the error ended, where there was one: its turns are in the loom.
    """

    entity_id: str | None = None


class InvalidCantrip(CantripError, ValueError):
    """A cantrip, or a part of one, that cannot be: refused when it is made (CANTRIP-1, CANTRIP-3, CIRCLE-1/2)."""


class InvalidImage(CantripError, ValueError):
    """Bytes, a file or an address that is no picture, or none that may be given to an entity."""


class InvalidIntent(CantripError, ValueError):
    """A cast, send or fork without a usable intent (INTENT-1)."""


class ImmutableError(CantripError, AttributeError):
    """An attempt to change what is fixed: the call of a cantrip (CALL-1)."""


class CrystalError(CantripError):
    """The crystal broke its contract (CRYSTAL-3, CRYSTAL-4) or failed in a way that no retry mends."""


class ProviderError(CrystalError):
    """A provider answered with an error, or could not be reached.

    `status` is its HTTP status, None where there was no answer at all; `retry_after` is the wait that it asked for, in
    seconds; `attempts` counts the attempts made before giving up. `retryable` says whether another attempt can mend it,
    where more is known than the status tells: a spent quota comes as 429, and never does.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        attempts: int = 1,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.attempts = attempts
        self.retryable = retryable


class LoomError(CantripError):
    """The loom refused (it is append-only, LOOM-3), does not hold what was asked for, or cannot write."""


class EntityCrashed(CantripError):
    """The entity's actor crashed and its supervisor gave it up. `__cause__` is what it crashed with."""


class EntityEnded(CantripError):
    """A send to an entity that lives no more, or that ended before it had done what was sent."""


class RuntimeClosed(CantripError):
    """The runtime is not open, or no longer."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The hint that ends a message about an unknown name: the nearest right one, and all there are.

    >>> nearest("max_turn", ["max_turns", "max_depth"])
    'did you mean "max_turns"? known: max_depth, max_turns'
    """
    names = sorted(set(known))
    listed = f"known: {', '.join(names)}" if names else "there are none"
    close = difflib.get_close_matches(name, names, n=1)
    return f'did you mean "{close[0]}"? {listed}' if close else listed
