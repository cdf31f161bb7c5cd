"""`PROVIDED`: the placeholder, in an offered cantrip, for a dependency that only `Runtime.open(dependencies=…)` can
provide.
"""

from __future__ import annotations

from typing import Any, Final


class _Provided:
    """The type of `PROVIDED`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "PROVIDED"


PROVIDED: Final[Any] = _Provided()
"""The value of a dependency that `Runtime.open(dependencies=…)` has to provide: `orders.with_(user=PROVIDED)`."""
