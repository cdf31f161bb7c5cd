"""Fuzzing: each target finds a planted bug, begins the same everywhere, and passes with everything it ever found."""

import zlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import orjson
import pytest

from cantrip_actors.circle.javascript import medium as javascript_medium
from cantrip_actors.circle.live_sandbox import LiveSandbox
from cantrip_actors.circle.medium import Exceeded, ProgramLimits, medium
from cantrip_actors.circle.python import medium as python_medium
from cantrip_actors.circle.python import steps as python_steps
from cantrip_actors.circle.shell.files import ShellFiles
from cantrip_actors.cli import loom_views
from cantrip_actors.crystal.replay import DECODERS
from conformance.fuzz import command, parsers, sandboxes
from conformance.fuzz.campaign import Target, fuzz
from conformance.fuzz.edits import draw
from conformance.fuzz.targets import TARGETS

pytestmark = [pytest.mark.rule("X-41"), pytest.mark.real_time]

CONTRACTS = ("contract-markdown", "contract-yaml")
FAMILIES = tuple(DECODERS)
RECIPES = ("recipe-yaml", "recipe-toml")


def worse(where: object, name: str, before: Callable[..., object]) -> Any:
    """Return a patch of a function that does something wrong first."""
    real = getattr(where, name)

    def planted(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        return real(*args, **kwargs)

    return mock.patch.object(where, name, planted)


def plant(target: str) -> Any:  # noqa: PLR0911  # a table
    """Return the patch that breaks what a target attacks."""
    if target in FAMILIES:  # an event without a type of its own
        return worse(DECODERS[target], "feed", lambda _, event: event.data[0])
    if target in CONTRACTS:
        return worse(parsers, f"from_{target.partition('-')[2]}", lambda text: text.index("otes"))
    if target in RECIPES:
        return worse(parsers, "load_recipe", lambda file: file.read_bytes().decode())
    match target:
        case "record":
            return worse(parsers, "decode", lambda line: line[0])
        case "python-snapshot":
            return worse(python_medium, "unpack", lambda image, _: [1][image.count(b'"') % 2])
        case "python-worker":
            return mock.patch.object(python_steps, "_NONSENSE", "words that its client does not use")
        case "javascript-snapshot":
            return worse(
                javascript_medium, "unpack", lambda _, __, image, ___: zlib.decompress(image[image.index(b"\n") + 9 :])
            )
        case "javascript-texts":
            return worse(sandboxes, "parse_report", lambda text, *_, **__: text[0])
        case "shell-snapshot":
            return worse(ShellFiles, "unpack", lambda _, image: [1][image.count(b'"') % 2])
        case "shell-protocol":
            return worse(LiveSandbox, "_call", lambda box, name, _: box._gates[name])
        case "terminal":
            return mock.patch.object(loom_views, "one_line", lambda text, width: text[:width])
    raise AssertionError(target)


@pytest.mark.parametrize("name", TARGETS)
def test_a_planted_bug_is_found(name: str) -> None:
    needs(name)
    target = TARGETS[name]
    with plant(name):
        outcome = fuzz(target, inputs=20_000, seed=3)  # with which each bug is found early
    assert outcome.finding is not None, f"nothing in {outcome.tried:,} inputs"


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_passes_with_its_seeds_and_past_findings(name: str) -> None:
    needs(name)
    outcome = fuzz(TARGETS[name], inputs=0)
    assert outcome.finding is None, outcome.finding
    assert outcome.tried >= 1


def needs(name: str) -> None:
    if name.startswith("shell-") and not sandboxes.has_shell():
        pytest.skip("no shell can be confined by bubblewrap here")


def test_a_run_begins_the_same_with_the_same_number() -> None:
    def tried(seed: int) -> list[bytes]:
        seen: list[bytes] = []
        target = Target("made", "", lambda: nullcontext(seen.append), lambda: [b"abc", b"defgh"], (b"word",))
        assert fuzz(target, inputs=200, seed=seed).finding is None
        return seen

    assert tried(3) == tried(3)
    assert tried(3) != tried(4)
    assert tried(3)[:2] == [b"abc", b"defgh"]  # the seeds come first


def test_an_input_that_fails_is_shrunk_to_the_edits_that_matter() -> None:
    def check(data: bytes) -> None:
        assert b"\xff" not in data

    target = Target("made", "", lambda: nullcontext(check), lambda: [b"abcdefgh" * 50])
    finding = fuzz(target, inputs=10_000).finding
    assert finding is not None
    assert finding.data.replace(b"\xff", b"") == b"abcdefgh" * 50
    assert finding.data.count(b"\xff") <= 2


def test_an_input_that_takes_too_long_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.fuzz.campaign.SLOW", 0.0)
    target = Target("made", "", lambda: nullcontext(lambda data: sum(range(1000))), lambda: [b"abc"])
    finding = fuzz(target, inputs=1).finding
    assert type(finding.error).__name__ == "TooSlow"


def test_a_command_reports_and_keeps_its_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--minutes", "0.02", "--target", "record", "--keep", f"{tmp_path}"]
    assert command.main(arguments) == 0
    assert "passed record, the codec of records:" in capsys.readouterr().out
    with plant("record"):
        assert command.main([*arguments, "--minutes", "5"]) == 1
    out = capsys.readouterr().out
    assert "FAILED record" in out
    assert "IndexError: index out of range" in out
    (kept,) = (tmp_path / "record").iterdir()
    assert kept.read_bytes() == b""


def test_edits_reach_every_part_of_a_seed() -> None:
    chance = Random(1)
    starts = {edit.start for _ in range(2000) for edit in draw(chance, [bytes(100)], ()).edits}
    assert starts == set(range(101))


class TestFound:
    """A fixed finding."""

    def test_a_python_worker_that_answers_nonsense_ends_the_program(self) -> None:
        error = RuntimeError("monty worker protocol error: invalid payload from worker")
        with (
            mock.patch.object(sandboxes, "Monty") as interpreter,
            sandboxes.python_worker_here(Path("never-started")),
        ):
            interpreter.return_value.__enter__.return_value.checkout.side_effect = error
            step = medium("python").open((), ProgramLimits()).begin("1")
        assert isinstance(step, Exceeded)
        assert step.limit == "the interpreter broke down"

    @pytest.mark.parametrize(
        "head",
        [
            {"printed": 0, "awaited": {}},
            {"calls": "1", "printed": 0, "awaited": {}},
            {"calls": 1, "printed": 0, "awaited": []},
            {"calls": 1, "printed": 0, "awaited": {"1": 3}},
        ],
    )
    def test_a_damaged_snapshot_of_a_python_program_is_refused(self, head: dict[str, Any]) -> None:
        image = orjson.dumps({"engine": python_medium.ENGINE, "kind": "suspended", **head}) + b"\n"
        with pytest.raises(ValueError, match="the snapshot is damaged"):
            medium("python").open((), ProgramLimits()).resume(image)
