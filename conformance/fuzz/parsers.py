"""Targets that read text: records of the loom, providers' streams, contracts, recipes."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cantrip_actors import Cantrip, LethalTrifecta, LoomError
from cantrip_actors.crystals import Outcome, Recording, faults, recordings
from cantrip_actors.dispatch.contract import Contract, draft
from cantrip_actors.dispatch.parse import from_markdown, from_yaml
from cantrip_actors.recipes import InvalidRecipe, load_recipe
from cantrip_actors.records.codec import decode, encode
from conformance.fuzz.campaign import Check

__all__ = [
    "check_contract_markdown",
    "check_contract_yaml",
    "check_record",
    "frame_recordings",
    "open_recipes",
    "open_stream",
]


def check_record(line: bytes) -> None:
    """Check that a line is a record or raises LoomError, and that a record is written as one stable line."""
    try:
        record = decode(line)
    except LoomError:
        return
    written = encode(record)
    assert b"\n" not in written, "a record of several lines"
    again = encode(decode(written))
    assert again == written, f"{written[:200]!r} is read and written as {again[:200]!r}"


# ------------------------------------------------------------------------------------------------- providers' streams


def frame_recordings(folder: Path) -> Sequence[bytes]:
    """Return a folder's recordings in the form in which they came over the network."""
    return [recording.framed() for file in sorted(folder.iterdir()) for recording in recordings(file, folder.name)]


@contextmanager
def open_stream(family: str) -> Iterator[Check]:
    """Yield a check of a family: bytes become a valid sequence of events, wherever the network cuts them."""
    recording = Recording(family, (b"{}",))

    def check(data: bytes) -> None:
        whole = recording.play([data])
        problems = faults(whole.payloads)
        assert not problems, f"invalid events: {problems[:3]}"
        size = 1 + len(data) % 61
        parts = recording.play([data[at : at + size] for at in range(0, len(data), size)])
        assert _content_of(parts) == _content_of(whole), (
            f"cut into pieces of {size} bytes it says {_content_of(parts)}, not {_content_of(whole)}"
        )

    yield check


def _content_of(outcome: Outcome) -> tuple[object, ...]:
    response, error = outcome.response, outcome.error
    calls = None if response is None else [(call.gate, call.args, call.raw) for call in response.tool_calls]
    return None if response is None else response.content, calls, None if error is None else type(error)


# ------------------------------------------------------------------------------------------------ contracts, recipes


def check_contract_markdown(data: bytes) -> None:
    """Check that any text is a contract, or has mistakes on existing lines."""
    text = data.decode(errors="replace")
    _check_contract(from_markdown(text), text)


def check_contract_yaml(data: bytes) -> None:
    """Check the same for YAML."""
    text = data.decode(errors="replace")
    _check_contract(from_yaml(text), text)


def _check_contract(contract: object, text: str) -> None:
    if isinstance(contract, Contract):
        again = draft(contract.as_json())
        assert isinstance(again, Contract), f"a contract that does not parse when it is read again: {again}"
        assert again.hash == contract.hash, "a contract that has another hash when it is read again"
        return
    assert isinstance(contract, tuple), "neither a contract nor mistakes"
    assert contract, "neither a contract nor a mistake"
    for mistake in contract:
        assert mistake.line is None or 1 <= mistake.line <= len(text.splitlines()) + 1, f"no such line: {mistake}"


@contextmanager
def open_recipes(suffix: str) -> Iterator[Check]:
    """Yield a check that a recipe is a cantrip or raises InvalidRecipe with all mistakes."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", LethalTrifecta)
        file = Path(folder, f"recipe{suffix}")

        def check(data: bytes) -> None:
            file.write_bytes(data)
            outcome = _recipe(file)
            assert outcome.id if isinstance(outcome, Cantrip) else outcome.mistakes, "refused without a mistake"

        yield check


def _recipe(file: Path) -> Cantrip | InvalidRecipe:
    try:
        return load_recipe(file)
    except InvalidRecipe as error:
        return error
