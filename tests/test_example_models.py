"""The models that pages, examples and help texts name: the newest of their line that the table of prices knows."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from genai_prices.data_snapshot import get_snapshot

ROOT = Path(__file__).parent.parent
LINES = {
    "Claude Opus": re.compile(r"\bclaude-opus-(\d+(?:-\d{1,2})?)(?![\w.-])"),
    "Claude Sonnet": re.compile(r"\bclaude-sonnet-(\d+(?:-\d{1,2})?)(?![\w.-])"),
    "Claude Haiku": re.compile(r"\bclaude-haiku-(\d+(?:-\d{1,2})?)(?![\w.-])"),
    "GPT": re.compile(r"\bgpt-(\d+(?:\.\d+)?)(?:-sol)?(?![\w.-])"),
    "Gemini Pro": re.compile(r"\bgemini-(\d+(?:\.\d+)?)-pro(?:-preview)?(?![\w.-])"),
    "Gemini Flash": re.compile(r"\bgemini-(\d+(?:\.\d+)?)-flash(?:-preview)?(?![\w.-])"),
}
"""The lines of models that are named in pages, each with the pattern of its names and their versions."""
PLACES = (
    "README.md",
    "docs/*.md",
    "examples/**/*.md",
    "examples/**/*.py",
    "examples/**/*.yaml",
    "cantrip_actors/**/*.py",
    "tools/*.py",
)


def read_version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.split(r"[-.]", text)))


def find_newest(line: str) -> tuple[int, ...]:
    """Return the newest version of a line among the models whose prices are known."""
    names = [model.id for provider in get_snapshot().providers for model in provider.models]
    return max(read_version(match[1]) for name in names if (match := LINES[line].fullmatch(name)))


def find_outdated(file: str, text: str) -> Iterator[str]:
    """Yield the models of a text of which the table knows a newer version."""
    for line, pattern in LINES.items():
        if pattern.pattern.removeprefix(r"\b").partition("(")[0] not in text:
            continue  # a search for the letters is a hundred times as fast as one for the pattern
        for match in pattern.finditer(text):
            if read_version(match[1]) < find_newest(line):
                yield f"{file}: {match[0]}"


@pytest.mark.rule("L-14")
def test_each_model_that_a_page_or_an_example_names_is_the_newest_of_its_line() -> None:
    files = sorted({path for place in PLACES for path in ROOT.glob(place)})
    outdated = [
        name for path in files for name in find_outdated(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    ]
    assert not outdated, f"the table of models knows newer ones: {', '.join(outdated)}"


@pytest.mark.rule("L-14")
def test_a_model_with_a_newer_version_in_the_table_is_found() -> None:
    assert list(find_outdated("page.md", 'Cantrip("anthropic:claude-sonnet-4")')) == ["page.md: claude-sonnet-4"]
