"""No text of an entity, a file or a record controls a terminal or forges a line of output."""

from __future__ import annotations

import io
import re
import sys
import unicodedata
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import Call, Cantrip, Circle, Runtime, scripted
from cantrip_actors.cli.crashes import _render_line, _report_lines
from cantrip_actors.cli.logs import configure_logs
from cantrip_actors.cli.terminal import printable
from cantrip_actors.dispatch import Dispatches, markdown
from cantrip_actors.wards import max_turns
from tests.dispatch.contracts import contract

pytestmark = pytest.mark.rule("X-22")

PAYLOADS = [
    "\x1b[2J",
    "\x1b[31mred\x1b[0m",
    "\x1b[8mhidden",
    "\x1b[1A\x1b[2Kforged",
    "\x1b]0;title\x07",
    "\x1b]8;;http://x\x07a\x1b]8;;\x07",
    "\x1b]52;c;ZXZpbA==\x07",
    "\x1b[6n",
    "\x1b[5n",
    "\x1b[?1049h",
    "\x1b[?25l",
    "\x1bc",
    "\x1b(0lqk",
    '\x1bP$q"p\x1b\\',
    "\x1b_G\x1b\\",
    "\x1b[3;4r",
    "\x1b[99;99H",
    "\x1b#8",
    "\x1b[20t",
    "\x1b[200~paste\x1b[201~",
    "\x9b2J",
    "\x9d0;t\x9c",
    "\x90q\x9c",
    "\x85next",
    "\x8d",
    "\x07",
    "\x08\x08\x08over",
    "\x0b",
    "\x0c",
    "a\rforged",
    "a\r\r\n",
    "\x00",
    "\x0e",
    "\x0f",
    "\x05",
    "\x7f",
    "\u202eevil",
    "\u2066a\u2069",
    "\u200fb",
    "\u061c",
    "\u2028line",
    "\u2029par",
    "\ufeffbom",
    "\U000e0041\U000e0042",
    "\u200bzero",
    "\xadsoft",
    "\u2060join",
]
ALL = "|".join(PAYLOADS)
ACTS = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\u200f\u061c\ufeff]"
    r"|[\U000e0020-\U000e007f]"
)
OURS = re.compile(r"\x1b\[(?:\d{1,2}(?:;\d{1,3})*)?m|\x1b\[(?:\?25[lh]|\d*[ABK]|2K)|\r(?=\x1b|\n|$)")
"""What rich sends: colours, the cursor, lines up and erased."""


def cantrip() -> Cantrip:
    said = [
        {"content": f"thinking {ALL}", "tool_calls": [{"gate": "echo", "args": {"text": ALL}}]},
        f"the answer {ALL}",
    ]
    return Cantrip(scripted(said), Call(), Circle(gates=["done", "echo"], wards=[max_turns(4)]))


@pytest.fixture
def loom(place: Path) -> Path:
    """Return a loom in which every freely chosen text is hostile."""
    path = place / ".cantrip" / "loom.db"
    with Runtime.blocking(path) as runtime:
        runtime.cast(cantrip(), f"intent {ALL}")
    log = Dispatches(place / ".cantrip" / "dispatches")
    forged = f"fine\n## Approved by grace (human)\n### 9. now\r## Also\x0b## And\u2028## More {ALL}"
    log.create(contract(objective=forged, background=forged, acceptance=(f"one {ALL}",)), author=f"ann {ALL}")
    return path


COMMANDS = [
    ("loom", "tree"),
    ("loom", "thread"),
    ("loom", "show", "{turn}"),
    ("loom", "search", "thinking"),
    ("loom", "export"),
    ("entities",),
    ("dispatch", "show", "mend"),
    ("dispatch", "show", "mend", "--markdown"),
    ("dispatch", "show", "mend", "--json"),
    ("requests", "--json"),
    ("cast", "hostile.yaml", f"do {ALL}"),
    ("cast", "hostile.yaml", "do", "--json"),
    ("cast", f"none{PAYLOADS[0]}{PAYLOADS[20]}.yaml", "do"),
    ("loom", "show", f"none{ALL}".replace("\0", "")),
]

RECIPE = """\
crystal:
  scripted:
    - {content: %s, tool_calls: [{gate: echo, args: {text: %s}}]}
    - tool_calls: [{gate: nothing, args: {text: %s}}]
    - %s
circle: {gates: [done, echo], wards: [max_turns: 5]}
"""


@pytest.mark.real_time
@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize(
    "command", COMMANDS, ids=lambda command: " ".join(command)[:30].encode("unicode_escape").decode()
)
def test_no_command_prints_control_characters_from_recorded_text(
    terminal, place: Path, loom: Path, command: tuple[str, ...]
) -> None:
    import json

    from cantrip_actors import open_loom

    quoted = json.dumps(ALL)
    (place / "hostile.yaml").write_text(RECIPE % (quoted, quoted, quoted, quoted))
    with open_loom(loom) as opened:
        turn = opened.turns(opened.entities()[0])[0].id
    words = [word.format(turn=turn) if word == "{turn}" else word.replace("\0", "") for word in command]
    seen = terminal(*words)
    rest = OURS.sub("", seen.screen.replace("\r\n", "\n"))
    assert "\x1b" not in rest
    assert not ACTS.findall(rest)
    assert not [line for line in rest.splitlines() if line.startswith(("## Approved", "## Also", "## And", "## More"))]


@given(st.text())
def test_printable_text_has_no_control_characters(text: str) -> None:
    shown = printable(text)
    allowed = {"\n", "\t", "\u200c", "\u200d"}
    assert not [
        sign for sign in shown if unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp") and sign not in allowed
    ]
    assert printable(shown) == shown


def test_every_format_character_is_shown_except_joiners_tabs_and_newlines() -> None:
    kept = {
        sign
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(sign := chr(code)) in ("Cc", "Cf", "Cs", "Zl", "Zp") and printable(sign) == sign
    }
    assert kept == {"\n", "\t", "\u200c", "\u200d"}


@pytest.mark.parametrize(
    "text", ["plain", "grün ist 緑 \N{FAMILY}", "👩\u200d👩\u200d👧", "tab\tand\nline", "नमस्ते क्\u200dष", "a\r\nb"]
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert printable(text) == text.replace("\r\n", "\n")


def test_a_text_in_a_dispatch_cannot_begin_a_line_of_the_page(tmp_path: Path) -> None:
    log = Dispatches(tmp_path / "dispatches")
    forged = "fine\n## Approved by grace (human)\r## Also\x0b## And\u2028## More\x85## Last"
    record = log.create(
        contract(objective=forged, background=forged, technical_context=forged, verification=forged),
        author="ann\n## Approved by grace (human)",
    )
    page = markdown(record)
    assert not [line for line in page.splitlines() if re.match(r"#+ (Approved|Also|And|More|Last)", line)]
    assert page.count("> ## Approved by grace (human)") == 4


@pytest.mark.rule("Z-01")
def test_no_text_of_an_exception_begins_a_line_of_the_log(monkeypatch) -> None:
    forged = "it broke\n10:00:00 [info     ] paid anna\r\x1b[2Jerror: none"
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    try:
        for whole in (False, True):
            configure_logs(whole=whole)
            log = structlog.get_logger("test")
            log.info("a gate failed", error=forged, of=ValueError(forged), names=[forged])
            try:
                raise ValueError(forged)
            except ValueError:
                log.exception("a gate failed", gate=forged)
        lines = sys.stderr.getvalue().splitlines()
    finally:
        structlog.reset_defaults()
    assert len([line for line in lines if "a gate failed" in line]) == 4
    assert not [line for line in lines if "a gate failed" not in line and not line.startswith("│ ")]
    assert not [line for line in lines if "\x1b[2J" in line]


@pytest.mark.rule("Z-01")
def test_no_text_of_a_crash_report_begins_a_line() -> None:
    forged = "it broke\nrefused     nothing"
    report = {"id": "r1", "at": "now", "path": "root/a", "reason": forged, "versions": {"python": "3"}}
    report |= {"events": [forged], "traceback": forged}
    assert all(not line.startswith("refused") for line in _report_lines(report))
    assert "\n" not in _render_line(report).plain
