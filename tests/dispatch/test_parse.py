"""Contracts from Markdown and YAML: their meaning, and every mistake with its line."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.dispatch import Contract, InvalidContract, Rule
from cantrip_actors.dispatch.parse import from_markdown, from_yaml, load_contract, status_of
from cantrip_actors.dispatch.parse_markdown import contract_template

PAGE = """\
# Dispatch: Mend the search

<!-- WORKER CONTRACT
## Nothing in here counts
-->

## Metadata

| Field | Value |
| --- | --- |
| Project | notes |
| **Repo** | `/srv/notes` |
| Priority | high |
| Dispatched | 2026-02-26 |
| Status | Queued |
| Worker | - |
| Needs Approval | Yes |
| Decision Needed | which index \\| none to change |
| Gates | read, `write` |
| Wards | max_turns: 50, require_done_tool |
| Budget Cap | $2.50 |
| Role | loop |
| Max Iterations | 7 |

## Objective

The search finds notes by their tags.

### Acceptance Criteria

- [ ] a tag finds its notes,
      whatever its case
- [ ] an unknown tag finds none

### Scope Boundaries

Not addressing: the user interface
- nor speed

## Background

Tags were added in May.

### A heading of its own

```
## Tasks
<!-- kept -->
```

## Related Files

### Source Files

- `/srv/notes/search.py` — where the index is built
- `/srv/notes/tags.py`: where tags come from

### Files Modified

(none yet)

## Technical Context

Python 3.11, no new dependency.

## Tasks

1. index the tags
2. test it

## Steps

1. look
   - expected: the place
2. mend

## Verification Gate

pytest tests/test_search.py is green

## Progress

_Nothing yet._
"""


def line_of(page, text):
    return next(number for number, line in enumerate(page.splitlines(), 1) if text in line)


@pytest.mark.rule("F-02")
class TestMarkdown:
    def test_a_page_becomes_a_contract(self):
        made = from_markdown(PAGE)
        assert isinstance(made, Contract), made
        assert made.title == "Mend the search"
        assert (made.project, made.repo, made.needs_approval) == ("notes", "/srv/notes", True)
        assert made.decision_needed == "which index | none to change"
        assert made.gates == ("read", "write")
        assert made.wards == (("max_turns", 50), ("require_done_tool", True))
        assert (made.budget, made.role, made.max_iterations) == (2.5, "loop", 7)
        assert made.acceptance == ("a tag finds its notes,\nwhatever its case", "an unknown tag finds none")
        assert made.scope == ("Not addressing: the user interface", "nor speed")
        assert made.background.endswith("### A heading of its own\n\n```\n## Tasks\n<!-- kept -->\n```")
        assert [source.path for source in made.sources] == ["/srv/notes/search.py", "/srv/notes/tags.py"]
        assert made.tasks == ("index the tags", "test it")
        assert made.steps[0].expected == "the place"

    def test_the_rarer_rows_and_sections_are_read(self):
        rows = {
            "| Wards | max_turns: 50, require_done_tool |": "| Wards | remove_gate: fetch, require_done_tool: true |",
            "| Budget Cap | $2.50 |": "| Intent | find it |\n| Depth | Full |\n| Supersedes | older |",
            "   - expected: the place\n": "   - inputs: search.py\n   - verification: tests\n     are green\n",
            "## Verification Gate": "## Outputs\n\n- search.py\n\n## Lessons\n\n- slow\n\n## Verification Gate",
        }
        page = PAGE
        for old, new in rows.items():
            assert old in page
            page = page.replace(old, new)
        made = from_markdown(page)
        assert isinstance(made, Contract), made
        assert made.wards == (("remove_gate", "fetch"), ("require_done_tool", True))
        assert (made.intent, made.depth, made.supersedes) == ("find it", "full", "older")
        assert (made.outputs, made.lessons) == (("search.py",), ("slow",))
        assert (made.steps[0].inputs, made.steps[0].verification) == ("search.py", "tests\nare green")

    def test_the_template_parses_once_it_is_filled_in(self):
        found = from_markdown(contract_template())
        assert isinstance(found, tuple)
        variables = set(re.findall(r"\{[A-Z_]+\}", contract_template())) - {"{VARIABLE}"}
        assert sum(one.rule is Rule.VARIABLES for one in found) >= len(variables) - 3
        words = {"{DATE}": "2026-02-26", "{REPO}": "/srv/notes", "{SOURCE_FILE}": "/srv/notes/x.py"}
        page = contract_template()
        for variable in variables:
            page = page.replace(variable, words.get(variable, "some words that say it"))
        assert isinstance(from_markdown(page), Contract)


MISTAKES = [
    pytest.param("# Dispatch: Mend", "# Mend", "# Mend", Rule.SECTIONS, id="no dispatch"),
    pytest.param("## Objective", "## Objectives", "## Objectives", Rule.SECTIONS, id="an unknown section"),
    pytest.param("## Tasks\n\n1.", "## Background  \n\n1.", "## Background  ", Rule.SECTIONS, id="a section twice"),
    pytest.param("| Priority | high |", "| Prioritie | high |", "| Prioritie", Rule.METADATA, id="an unknown row"),
    pytest.param("| Priority | high |", "| Priority |", "| Priority |", Rule.METADATA, id="half a row"),
    pytest.param("| Priority | high |", "| Priority | - |", "| Priority", Rule.METADATA, id="an empty row"),
    pytest.param("| Priority | high |", "| Project | x |", "| Project | x", Rule.METADATA, id="a row twice"),
    pytest.param("| Worker | - |", "| Worker | ann |", "| Worker", Rule.METADATA, id="a row of the log's"),
    pytest.param("| Queued |", "| in-progress |", "| Status", Rule.STATUS, id="an alias of another status"),
    pytest.param("| Queued |", "| banana |", "| Status", Rule.STATUS, id="an unknown status"),
    pytest.param("| Queued |", "|  |", "| Status", Rule.STATUS, id="no status"),
    pytest.param("| Yes |", "| perhaps |", "| Needs Approval", Rule.APPROVAL, id="neither yes nor no"),
    pytest.param("`/srv/notes` |", "~/notes |", "**Repo**", Rule.REPO, id="a relative repo"),
    pytest.param("$2.50", "some", "| Budget", Rule.TERMS, id="an amount that is none"),
    pytest.param("- [ ] an unknown", "- [x] an unknown", "- [x]", Rule.ACCEPTANCE, id="a ticked box"),
    pytest.param("- [ ] an unknown", "- an unknown", "- an unknown", Rule.ACCEPTANCE, id="no box"),
    pytest.param("`/srv/notes/tags.py`:", "/srv/notes/tags.py", "/srv/notes/tags.py", Rule.SOURCES, id="no source"),
    pytest.param("`/srv/notes/tags.py`", "`tags.py`", "`tags.py`", Rule.SOURCES, id="a relative source"),
    pytest.param("(none yet)", "- `x.py` — done", "`x.py`", Rule.SECTIONS, id="a modified file"),
    pytest.param("2. test it", "then test it", "then test it", Rule.TASKS, id="a task without number"),
    pytest.param("_Nothing yet._", "### 09:00 — began", "### 09:00", Rule.SECTIONS, id="progress"),
    pytest.param("index the tags", "index {WHAT}", "index {WHAT}", Rule.VARIABLES, id="an open variable"),
    pytest.param(
        "Python 3.11, no new dependency.", "py", "## Technical Context", Rule.TECHNICAL_CONTEXT, id="too short"
    ),
    pytest.param("# Dispatch: Mend", "Hello!\n# Dispatch: Mend", "Hello!", Rule.SECTIONS, id="text before all"),
]


@pytest.mark.rule("F-01")
class TestMistakesInMarkdown:
    @pytest.mark.parametrize(("old", "new", "at", "rule"), MISTAKES)
    def test_a_mistake_is_found_in_its_line(self, old, new, at, rule):
        assert old in PAGE
        page = PAGE.replace(old, new, 1)
        found = from_markdown(page)
        assert isinstance(found, tuple)
        assert (rule, line_of(page, at)) in [(one.rule, one.line) for one in found]

    def test_mistakes_are_reported_together_in_the_order_of_lines(self):
        page = PAGE
        mistakes = [
            case.values for case in MISTAKES if case.id in {"a relative repo", "a ticked box", "progress", "too short"}
        ]
        for old, new, _, _ in mistakes:
            page = page.replace(old, new, 1)
        found = from_markdown(page)
        assert [one.line for one in found] == sorted(line_of(page, at) for _, _, at, _ in mistakes)

    def test_a_missing_section_is_reported_and_an_unreadable_one_is_not_reported_as_missing(self):
        assert any(
            "verification: is missing" in str(one) for one in from_markdown(PAGE.replace("## Verification Gate", ""))
        )
        found = from_markdown(PAGE.replace("- [ ]", "-"))
        assert {one.rule for one in found} == {Rule.ACCEPTANCE}
        assert len(found) == 2

    @given(st.data())
    def test_a_text_with_any_part_removed_is_parsed_or_refused(self, data):
        lines = PAGE.splitlines()
        kept = data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=40))
        noise = data.draw(st.text(max_size=20))
        found = from_markdown("\n".join([*(lines[at] for at in kept), noise]))
        assert isinstance(found, Contract) or all(one.text and (one.line or 1) >= 1 for one in found)

    def test_lines_are_counted_as_editors_do(self):
        page = PAGE.replace("Tags were added", "Tags\u2028were\x0badded").replace("2. test it", "then test it")
        (found,) = from_markdown(page.replace("\n", "\r\n"))
        assert found.line == PAGE[: PAGE.index("2. test it")].count("\n") + 1

    def test_a_heading_of_a_hundred_thousand_blanks_is_read_in_one_pass(self):
        blanks = " " * 100_000
        mistakes = from_markdown(f"# Dispatch: a{blanks}title ##\n## {'#' * 100_000}x\n## a{blanks}b")
        assert all(mistake.rule == Rule.SECTIONS or mistake.line is None for mistake in mistakes)

    def test_an_empty_text_is_refused_with_everything_missing(self):
        assert len(from_markdown("")) == 14


YAML = """\
title: Mend the search
project: notes
repo: /srv/notes
priority: 1
dispatched: 2026-02-26
status: queued
needs_approval: no
objective: The search finds notes by their tags.
acceptance:
  - a tag finds its notes
scope: the user interface
background: Tags were added in May.
sources:
  - {path: /srv/notes/search.py, description: where the index is built}
  - "`/srv/notes/tags.py` — where tags come from"
technical_context: Python 3.11, no new dependency.
tasks: [index the tags, test it]
verification: pytest is green, all of it
wards: [{max_turns: 50}, require_done_tool]
budget: 2.5
steps:
  - look
  - purpose: mend
    expected: tags are found
"""


@pytest.mark.rule("F-01", "F-02")
class TestYaml:
    def test_a_valid_text_becomes_a_contract(self):
        made = from_yaml(YAML)
        assert isinstance(made, Contract), made
        assert (made.priority, made.dispatched_at, made.needs_approval) == ("1", "2026-02-26", False)
        assert made.scope == ("the user interface",)
        assert made.sources[1].path == "/srv/notes/tags.py"
        assert made.wards == (("max_turns", 50), ("require_done_tool", True))
        assert made.steps[1].expected == "tags are found"

    @pytest.mark.parametrize(
        ("old", "new", "at"),
        [
            ("repo: /srv", "repo: ./srv", "repo:"),
            ("priority: 1", "prioritie: 1", "prioritie"),
            ("status: queued", "status: done", "status:"),
            ("status: queued", "title: Another", "title: Another"),
            ("/srv/notes/search.py", "search.py", "search.py"),
            ("  - a tag finds", "  - {a: tag} # finds", "{a: tag}"),
            ("expected: tags", "expects: tags", "purpose: mend"),
            ("max_turns: 50", "max_turns: [1]", "max_turns"),
            ("index the tags,", "'index {WHAT}',", "{WHAT}"),
            ("budget: 2.5", "budget: -1", "budget"),
            ("budget: 2.5", "budget: !!timestamp x", "budget"),
            ("needs_approval: no", "needs_approval: !!bool maybe", "needs_approval"),
            ("status: queued", "status: [queued]", "status:"),
            ("sources:", "sources: {'`/a` — for a reason': b, c: d}\nlessons:", "sources:"),
        ],
    )
    def test_a_mistake_is_found_in_its_line(self, old, new, at):
        page = YAML.replace(old, new, 1)
        assert page != YAML
        found = from_yaml(page)
        assert isinstance(found, tuple)
        assert line_of(page, at) in [one.line for one in found]

    def test_several_mistakes_are_reported_together(self):
        page = (
            YAML.replace("repo: /srv", "repo: ./srv")
            .replace("budget: 2.5", "budget: much")
            .replace("tasks: [", "tosks: [")
        )
        found = from_yaml(page)
        assert [one.line for one in found] == [None, 3, line_of(page, "tosks"), line_of(page, "budget")]

    @pytest.mark.parametrize(
        "text",
        ["", "just words", "- a\n- b", "a: [", "a: 'x", "\ta: b", "&a [*a]", "a: *b", "a: \x00", "[" * 5000, "{}"],
    )
    def test_invalid_yaml_or_an_invalid_contract_is_reported(self, text):
        found = from_yaml(text)
        assert isinstance(found, tuple)
        assert found

    @given(st.text(st.sampled_from("ab:- \n[]{}#&*!|>'\"0")))
    def test_any_text_is_parsed_or_refused(self, text):
        assert isinstance(from_yaml(text), tuple)


class TestFiles:
    @pytest.mark.parametrize(("name", "text"), [("c.md", PAGE), ("c.yaml", YAML), ("c.yml", "\ufeff" + YAML)])
    def test_the_format_follows_from_the_ending(self, tmp_path, name, text):
        path = tmp_path / name
        path.write_text(text)
        assert load_contract(path).title == "Mend the search"

    def test_the_error_lists_every_mistake_with_file_and_line(self, tmp_path):
        path = tmp_path / "c.yaml"
        path.write_text(YAML.replace("repo: /srv", "repo: ./srv").replace("priority: 1\n", ""))
        with pytest.raises(InvalidContract) as raised:
            load_contract(path)
        assert f"{path}:3: repo: expected" in str(raised.value)
        assert f"{path}: priority: is missing" in str(raised.value)
        assert len(raised.value.mistakes) == 2

    @pytest.mark.parametrize(
        ("name", "raw"), [("c.txt", b"x"), ("c.md", b"\xff\xfe"), ("c.yaml", b"a" * 1_000_001), ("none.md", None)]
    )
    def test_a_file_that_is_not_a_contract_is_refused(self, tmp_path, name, raw):
        if raw is not None:
            (tmp_path / name).write_bytes(raw)
        with pytest.raises(InvalidContract):
            load_contract(Path(tmp_path / name))


@pytest.mark.rule("F-17")
def test_status_of_accepts_aliases_of_people():
    assert [status_of(word) for word in ("in progress", "In-Progress", "done", "complete", "Queued", "banana", "")] == [
        "active",
        "active",
        "completed",
        "completed",
        "queued",
        None,
        None,
    ]
