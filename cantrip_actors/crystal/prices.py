"""Facts about models: prices and sizes from the dataset of `genai-prices`, and accepted inputs from `models.toml`.

The dataset is part of the package and is read when the first model is looked up (a fifth of a second, once); nothing
here uses the network. A program that updates it (`genai_prices.UpdatePrices`) changes the prices here too. Prices that
depend on the date or the hour are those of the moment of the look-up. A user's own rows go first.

A price is looked up by the model name in the answer, then by the name in the query; at the provider of the address in
use, else at the family's. No price is guessed: the cost of an unknown model is 0 (`Usage.cost`), and the crystal learns
from refusals which parameters a model lacks.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cantrip_actors.crystal.draft import Counts
from cantrip_actors.terms.arguments import check, check_kind, is_finite
from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo

_DATED: Final = re.compile(r"(?:-(?:\d{4}-\d\d-\d\d|\d{8}|\d{3,4}|latest)|@\w+)?(?:-v\d++(?::\d\w*+)?)?$")
_SELLER: Final = re.compile(r"^(?:.*/)?(?:[a-z-]+\.)*")
"""The prefix to a model's name: `models/`, `us.anthropic.`, the ARN of a profile."""
TRAITS: Final = Path(__file__).with_name("models.toml")

MAKERS: Final = ("anthropic", "google", "openai")
"""The providers to look up a model of an unknown seller at; models of other makers have many sellers, or run
locally."""

_COLUMNS: Final = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cached": "cache_read_mtok",
    "written": "cache_write_mtok",
    "written_long": "cache_write_1h_mtok",
}
"""Our names of prices, and those of the dataset."""

LOOKUPS: Final = 1024
"""How many names of models are cached."""

HALF: Final = 0.5
"""The share of the price that a batch costs, if the dataset does not have it."""


@dataclass(frozen=True, slots=True)
class Model:
    """One model. Prices are in US dollars for a million tokens; None means the price of `input`."""

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
        """Return the cost of a query, in US dollars."""
        prices = {name: getattr(self, name) for name in _COLUMNS}
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

    def at(self, share: float) -> Model:
        """Return the same model at a share of its prices."""
        own: dict[str, Any] = {
            name: None if (price := getattr(self, name)) is None else price * share for name in _COLUMNS
        }
        above = {name: value if name == "tokens" else value * share for name, value in self.above.items()}
        return replace(self, **own, above=above)


UNKNOWN: Final = Model()


class Prices:
    """The prices of models: the dataset, and before it the rows of a user's table.

    `Prices.load(file)` reads such a table, `Prices({...})` takes one. With `alone`, the dataset is not used.

    Raises InvalidCantrip for a row that cannot be read.
    """

    def __init__(self, models: Mapping[str, Model | Mapping[str, Any]] | None = None, *, alone: bool = False) -> None:
        expected = "a table by model, or None; Prices.load(…) reads a file"
        check_kind("prices", models, Mapping | None, expected, InvalidCantrip)
        check_kind("prices: alone", alone, bool, "True or False", InvalidCantrip)
        self._alone = alone
        self._own: dict[str, Model] = {}
        for name, model in (models or {}).items():
            self._own[name] = model if isinstance(model, Model) else _parse_model(name, model)

    @classmethod
    def load(cls, file: str | Path) -> Prices:
        """Return prices with the rows of a TOML file: a table for each model, with the fields of `Model`."""
        try:
            with Path(file).open("rb") as source:
                return cls(tomllib.load(source))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise InvalidCantrip(f"prices: {file}: {error}") from error

    def model(self, *names: object, seller: str | None = None, address: str = "", batch: bool = False) -> Model:
        """Return the first of these models that is known, also by the name of a dated version.

        `seller` is its seller's id in the dataset; the seller with a known `address` takes precedence. None: any of
        `MAKERS`. With `batch`, the prices are those of a batch.
        """
        for name in names:
            if isinstance(name, str) and name:
                bare = name.removeprefix("models/")
                own = self._own.get(bare) or self._own.get(_DATED.sub("", bare))
                if own is not None:
                    return own.at(HALF) if batch else own
                listed = UNKNOWN if self._alone else _lookups.find_model(bare, seller, address, batch)
                if listed is not UNKNOWN:
                    return listed
        return UNKNOWN


def _price_model(name: str, info: ModelInfo | None, batch: bool, now: datetime) -> Model:
    if info is None:
        return UNKNOWN
    traits: dict[str, Any] = {"adaptive": True, **_load_traits().get(_DATED.sub("", _SELLER.sub("", name)), {})}
    price = _convert_prices(info, now, {})
    if batch:
        price = _convert_prices(info, now, {"processing": "batch"}) if info.price_variants else price.at(HALF)
    return replace(price, **{"window": info.context_window, **traits})


class _Lookups:
    """A cache of the dataset: a look-up takes half a millisecond, and every turn looks up the same models."""

    def __init__(self) -> None:
        self._source: tuple[DataSnapshot, datetime] | None = None
        """The data and the minute of the cached models: newer data is another snapshot, and prices change in a day."""
        self._models: dict[tuple[str, str | None, str, bool], Model] = {}

    def find_model(self, name: str, seller: str | None, address: str, batch: bool) -> Model:
        """Return a model of the dataset at its price of this minute; UNKNOWN if the dataset has no prices of it."""
        from genai_prices.data_snapshot import get_snapshot  # takes 0.2 s, which programs without a provider do not pay

        snapshot, minute = get_snapshot(), datetime.now(UTC).replace(second=0, microsecond=0)
        is_cached = self._source is not None and self._source[0] is snapshot and self._source[1] == minute
        if not is_cached or len(self._models) >= LOOKUPS:
            self._source, self._models = (snapshot, minute), {}
        key = (name, seller, address, batch)
        if key not in self._models:
            self._models[key] = _price_model(name, _find_info(snapshot, name, seller, address), batch, minute)
        return self._models[key]


_lookups: Final = _Lookups()


def _find_info(snapshot: DataSnapshot, name: str, seller: str | None, address: str) -> ModelInfo | None:
    tried: list[tuple[str | None, str | None]] = [(None, address)] if address else []
    tried += [(seller, None)] if seller is not None else [(maker, None) for maker in MAKERS] if not address else []
    for seller_id, url in tried:
        try:
            return snapshot.find_provider_model(name, None, seller_id, url)[1]
        except LookupError:
            continue
    return None


def _convert_prices(info: ModelInfo, now: datetime, context: Mapping[str, str]) -> Model:
    """Convert the prices of the dataset. Only the first of several tiers is used: a seller with two reports costs."""
    prices: dict[str, Any] = {}
    above: dict[str, float] = {}
    listed = vars(info.get_prices(now, context or None))
    for ours, theirs in _COLUMNS.items():
        price = listed.get(theirs)
        steps = getattr(price, "tiers", ())
        if steps:
            above.setdefault("tokens", steps[0].start)
            above[ours] = float(steps[0].price)
        base = price.base if steps else price  # type: ignore[union-attr]  # a price with steps has a base
        if base is not None:
            prices[ours] = float(base)
    return Model(**prices, above=above)


@cache
def _load_traits() -> Mapping[str, Mapping[str, Any]]:
    with TRAITS.open("rb") as source:
        return tomllib.load(source)


def _parse_model(name: str, row: Any) -> Model:
    check(isinstance(row, Mapping), f"prices: {name}", "a table", row, InvalidCantrip)
    names = {f.name for f in fields(Model)}
    for key, value in row.items():
        if key not in names:
            raise InvalidCantrip(f"prices: {name}: unknown key {key!r}: {suggest_nearest(key, names)}")
        if key == "above":
            fits = (
                isinstance(value, Mapping)
                and "tokens" in value
                and all(is_finite(number, 0) for number in value.values())
            )
            check(fits, f"prices: {name}: above", "prices and `tokens`", value, InvalidCantrip)
        else:
            check(is_finite(value, 0), f"prices: {name}: {key}", "a number >= 0", value, InvalidCantrip)
    return Model(**row)
