"""docs/cluster.md: what an operator has to find there."""

import re
from pathlib import Path

import pytest

from cantrip_actors import Node
from cantrip_actors.runtime.mail.inboxes import POLL_INTERVAL

PAGE = (Path(__file__).parent.parent.parent / "docs" / "cluster.md").read_text(encoding="utf-8")

FAULTS = {
    "a process is killed": "beat + look",
    "a machine is gone": "ttl + beat + look",
    "freezes for less than its ttl": "its freeze",
    "freezes for longer": "ttl + beat + look",
    "event loop is blocked": "`stall`",
    "cannot reach Postgres": "the outage, or the ttl",
    "synchronous standby": "2 s after it takes writes",
    "asynchronous standby": "warns",
    "clocks differ": "",
    "hints are lost": "look",
    "a zone is gone": "room",
    "a deployment": "`grace`",
    "a sender dies, and sends again": "",
    "a query to a provider": "",
}
"""The faults of the table, and what it says of how long each lasts."""


def section(title: str) -> str:
    """The text below a heading, up to the next one of its level."""
    level = title.split(" ", 1)[0]
    found = re.search(rf"^{re.escape(title)}\n(.*?)(?=^#{{2,{len(level)}}} |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"{title} is missing"
    return found[1]


def rows() -> list[list[str]]:
    table = section("## Know what happens when something fails")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"][2:]


@pytest.mark.rule("N-87")
@pytest.mark.parametrize("fault", FAULTS)
def test_the_page_describes_the_effect_of_each_fault_on_entities_mail_and_gates(fault: str) -> None:
    found = [row for row in rows() if re.search(rf"\b{re.escape(fault)}", row[0])]
    assert len(found) == 1
    _, entities, mail, effects, how_long = found[0]
    assert entities
    assert mail
    assert effects
    assert FAULTS[fault] in how_long


@pytest.mark.rule("N-87")
def test_the_times_of_the_page_are_the_defaults() -> None:
    node = Node("w")
    words = section("## Know what happens when something fails").replace("\n", " ")
    assert f"every `beat` ({node.beat:g} s by default), and they expire after the `ttl` ({node.ttl:g} s)" in words
    assert f"every `look` ({POLL_INTERVAL:g} s). `stall` and `grace` are {node.stall:g} s" in words
    assert node.stall == node.grace


@pytest.mark.rule("N-87")
@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("### Compare the kinds of failover", "node fails over|synchronous standby|asynchronous standby|backup"),
        ("## Size a cluster", "capacity|connections|commits|ttl|bench cluster"),
        ("## Know what is not guaranteed", "you pay for both|exactly once|order|Files|Streamed text|SQLite"),
        ("## Upgrade cantrip-actors while it runs", "readable_by|drain"),
    ],
)
def test_the_page_has_a_section(title: str, words: str) -> None:
    text = section(title)
    for word in words.split("|"):
        assert word in text, word
