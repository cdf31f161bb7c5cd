"""What is known of models: sizes, prices, and what they refuse. Data, in `models.toml`; a user can bring their own.

A price is looked up by the name that the provider says answered, then by the name that was asked. Nothing is guessed:
where nothing is known, the cost is 0 (`Usage.cost`), and what a model refuses is learnt from its refusal.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

from cantrip_actors.crystal.draft import Counts
from cantrip_actors.terms.errors import InvalidCantrip, nearest

__all__ = ["KNOWN", "Model", "Prices"]

_DATED: Final = re.compile(r"(?:-(?:\d{4}-\d\d-\d\d|\d{8}|\d{3,4}|latest)|@\w+)$")
KNOWN: Final = Path(__file__).with_name("models.toml")


@dataclass(frozen=True, slots=True)
class Model:
    """One model. Prices are in US dollars for a million tokens; those that are None are as `input`."""

    window: int | None = None
    max_output: int | None = None
    input: float = 0.0
    output: float = 0.0
    cached: float | None = None
    written: float | None = None
    written_long: float | None = None
    above: Mapping[str, float] = field(default_factory=dict)
    """Prices of a query whose input has more than `above["tokens"]` tokens."""
    sampling: bool = True
    forced: bool = True
    adaptive: bool = False

    def cost(self, counts: Counts) -> float:
        """What a query costs, in US dollars."""
        prices = {name: getattr(self, name) for name in ("input", "output", "cached", "written", "written_long")}
        if self.above and counts.prompt > self.above["tokens"]:
            prices.update(self.above)
        long = min(counts.written_long, counts.written)
        plain = max(0, counts.prompt - counts.cached - counts.written)
        parts = (("cached", counts.cached), ("written", counts.written - long), ("written_long", long))
        total: float = plain * prices["input"] + counts.completion * prices["output"]
        for name, tokens in parts:
            price = prices[name]
            total += tokens * (prices["input"] if price is None else price)
        return total / 1e6


UNKNOWN: Final = Model()


class Prices:
    """A table of models. `Prices.load(file)` reads one, `Prices({...})` takes one; both go before what is known here.

    Raises InvalidCantrip for a row that cannot be read.
    """

    def __init__(self, models: Mapping[str, Model | Mapping[str, Any]] | None = None, *, alone: bool = False) -> None:
        self._models: dict[str, Model] = {} if alone else dict(_known())
        for name, given in (models or {}).items():
            self._models[name] = given if isinstance(given, Model) else _model(name, given)

    @classmethod
    def load(cls, file: str | Path) -> Prices:
        """What is known here, with the rows of a TOML file in the format of `models.toml`."""
        try:
            with Path(file).open("rb") as source:
                return cls(tomllib.load(source))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise InvalidCantrip(f"prices: {file}: {error}") from error

    def model(self, *names: object) -> Model:
        """The first of these models that is known; its dated versions are it too."""
        for name in names:
            if isinstance(name, str) and name:
                bare = name.removeprefix("models/")
                found = self._models.get(bare) or self._models.get(_DATED.sub("", bare))
                if found is not None:
                    return found
        return UNKNOWN


@cache
def _known() -> Mapping[str, Model]:
    with KNOWN.open("rb") as source:
        return {name: _model(name, row) for name, row in tomllib.load(source).items()}


def _model(name: str, row: object) -> Model:
    if not isinstance(row, Mapping):
        raise InvalidCantrip(f"prices: {name}: expected a table, got {row!r}")
    known = {f.name for f in fields(Model)}
    for key, value in row.items():
        if key not in known:
            raise InvalidCantrip(f"prices: {name}: unknown key {key!r}: {nearest(key, known)}")
        if key == "above":
            if not isinstance(value, Mapping) or "tokens" not in value:
                raise InvalidCantrip(f"prices: {name}: above: expected prices and `tokens`, got {value!r}")
        elif not isinstance(value, (int, float)) or value < 0:
            raise InvalidCantrip(f"prices: {name}: {key}: expected a number >= 0, got {value!r}")
    return Model(**row)
