"""The site of the documentation: its navigation and what it is made of. `make site` builds it, in CI too."""

import re
from pathlib import Path

import pytest

from tests.http.browser import browser, chromium
from tools import site

pytestmark = pytest.mark.rule("L-10")

INDEX = """\
# Documentation

## Start

| page | after it you can |
| --- | --- |
| [A guide](guide.md) | write agents |

## Look it up

| page | describes |
| --- | --- |
| [Reference](reference/README.md) | names |
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "README.md": "# The project\n\nSee [the guide](docs/guide.md) and [a program](examples/first.py).\n",
        "docs/README.md": INDEX,
        "docs/guide.md": "# A guide\n\n```python file=first.py no-run\nx = 1\n```\n\n[first](../examples/first.py)\n",
        "docs/reference/README.md": "# Reference\n",
        "docs/reference/cantrip_actors.wards.md": "# cantrip_actors.wards\n",
        "docs/reference/cantrip_actors.md": "# cantrip_actors\n",
        "examples/first.py": "print('```')\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_navigation_is_what_the_index_lists(root: Path) -> None:
    assert site.make_navigation(root) == [
        {"Home": "README.md"},
        {"Start": [{"All pages": "docs/README.md"}, {"A guide": "docs/guide.md"}]},
        {
            "Look it up": [
                {
                    "Reference": [
                        "docs/reference/README.md",
                        "docs/reference/cantrip_actors.md",
                        "docs/reference/cantrip_actors.wards.md",
                    ]
                }
            ]
        },
    ]


def test_a_page_that_the_index_does_not_list_is_found(root: Path) -> None:
    assert site.find_unlisted(root) == []
    (root / "docs" / "lost.md").write_text("# Lost\n")
    assert site.find_unlisted(root) == ["lost.md"]


def test_each_page_of_this_project_has_a_place() -> None:
    assert site.find_unlisted(site.ROOT) == []


def test_a_link_to_a_program_leads_to_a_page_with_its_source(root: Path, tmp_path: Path) -> None:
    site.copy_page(root, Path("docs/guide.md"), tmp_path / "into")
    assert "[first](../examples/first.py.md)" in (tmp_path / "into" / "docs" / "guide.md").read_text()
    assert (tmp_path / "into" / "examples" / "first.py.md").read_text() == (
        "# examples/first.py\n\n````python\nprint('```')\n````\n"
    )


def test_the_file_of_a_block_is_its_title(root: Path, tmp_path: Path) -> None:
    site.copy_page(root, Path("docs/guide.md"), tmp_path / "into")
    assert '```python title="first.py"\nx = 1\n' in (tmp_path / "into" / "docs" / "guide.md").read_text()


def test_a_page_loads_nothing_from_another_host(tmp_path: Path) -> None:
    (tmp_path / "assets" / "javascripts").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "guide.html"
    page.write_text(
        '<script src="https://unpkg.com/iframe-worker/shim"></script><a href="https://a.example">A</a>'
        '<img src="a.png"><link rel="stylesheet" href="//b.example/c.css">'
    )
    assert list(site.make_offline(tmp_path)) == ["docs/guide.html: //b.example/c.css"]
    assert '<script src="../assets/javascripts/site_worker.js">' in page.read_text()
    assert (tmp_path / "assets" / "javascripts" / "site_worker.js").is_file()


@pytest.mark.real_time
@pytest.mark.skipif(chromium() is None, reason="Chromium is not installed")
def test_a_page_that_is_opened_from_a_disk_runs_a_worker(tmp_path: Path) -> None:
    (tmp_path / "adding.js").write_text("const add = (a, b) => a + b;")
    (tmp_path / "worker.js").write_text(
        "onmessage = async ({ data }) => { await importScripts('adding.js'); postMessage(add(...data)); };"
    )
    (tmp_path / "page.html").write_text(
        f"<title>-</title><body><script>{site.WORKER.read_text(encoding='utf-8')}</script><script>"
        "const worker = new Worker('worker.js');"
        "worker.onmessage = ({ data }) => (document.title = data);"
        "worker.postMessage([2, 3]);</script>"
    )
    with browser() as chrome:
        page = chrome.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_function("document.title === '5'")


@pytest.mark.rule("L-03")
def test_the_glossary_has_each_word_of_the_readme() -> None:
    glossary = (site.ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    readme = (site.ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("## Learn the words\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if line.startswith("|")][2:]
    words = {word.strip() for row in rows for cell in (row[1], row[4]) for word in cell.split(",")}
    explained = {
        word.strip() for line in re.findall(r"^\| ([^|]+) \|", glossary, re.MULTILINE) for word in line.split(",")
    }
    assert words
    assert words <= explained
