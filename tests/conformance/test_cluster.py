"""The campaign over a cluster: what it must find, and that the product passes it."""

from pathlib import Path

import anyio
import pytest

from conformance.cluster.campaign import play
from conformance.cluster.compare import Account, compare
from tests.exhaustive import EXHAUSTIVE
from tests.loom import postgres as servers

FAULTS = 300 if EXHAUSTIVE else 6
ENTITIES = 100 if EXHAUSTIVE else 10


def account(recorded: list[str], delivered: dict[str, int] | None = None, unknown: str = "") -> Account:
    """Return the account of a client that posted a, b and c."""
    return Account(["a", "b", "c"], recorded, delivered or dict.fromkeys("abc", 1), frozenset(unknown))


def test_the_comparison_finds_no_fault_in_a_correct_history() -> None:
    assert compare("e", account(["a", "b", "c"])) == []
    assert compare("e", account(["a", "b", "c"], {"a": 1, "c": 1}, unknown="b")) == []


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (account(["a", "c"]), "lost: b was posted"),
        (account(["a", "b", "c", "b"]), "twice: b is recorded 2 times"),
        (account(["a", "c", "b"]), "out of order"),
        (account(["a", "b", "c", "d"]), "invented: d"),
        (account(["a", "b", "c"], {"a": 1, "b": 2, "c": 1}), "twice: the effect of b"),
        (account(["a", "b", "c"], {"a": 1, "c": 1}), "lost: b has no effect"),
    ],
)
def test_the_comparison_finds_lost_doubled_and_moved_intents(broken: Account, found: str) -> None:
    (line,) = compare("e", broken)
    assert found in line


@pytest.mark.rule("N-10", "N-22", "N-23", "N-24", "N-26")
def test_nodes_that_die_freeze_and_leave_lose_and_repeat_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        done = await play(servers.fresh(), tmp_path / "ledger", 1, faults=FAULTS, entities=ENTITIES)
        assert done.wrong == []
        assert done.kills + done.freezes >= FAULTS

    anyio.run(run)
