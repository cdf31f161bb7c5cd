"""Markdown as models write it becomes nodes of the page, and everything else stays text."""

from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, scripted
from cantrip_actors.wards import max_turns
from tests.http.browser import live
from tests.http.page.pages import IN_CHROMIUM, cast, opened, show

pytestmark = [*IN_CHROMIUM, pytest.mark.rule("W-53")]

SAID = """# The summer

A *quiet* **summer**, ~~1910~~ `1911`:

| letter | pages |
|:--|--:|
| Ada | **12** |

1. letters
   - of Ada
   - of Boyle
2. ledger

> It was warm.

```python
print("<b>")
```

See [the archive](https://example.org/a) or https://example.org/b.
"""

SHAPES: dict[str, list[str]] = {
    ".head[data-level='1']": ["The summer"],
    "p > em": ["quiet"],
    "p > strong": ["summer"],
    "p > s": ["1910"],
    "p > code": ["1911"],
    "th": ["letter", "pages"],
    "td.right > strong": ["12"],
    "ol[start='1'] > li > ul > li": ["of Ada", "of Boyle"],
    "blockquote > p": ["It was warm."],
    "pre": ['print("<b>")'],
    "a": ["the archive example.org", "https://example.org/b"],
}

TEXTS = [
    "<b>bold</b> <img src=x>",
    "[a](javascript:alert(1))",
    "![seen](https://example.org/x.png)",
    "[a]: https://example.org/hidden",
    ">" * 200 + " deep",
    "- " * 200 + "deeper",
    "&lt;i&gt;",
    "*a_" * 1000,
    "[" * 4000,
]


def test_markdown_is_shown_as_nodes(chrome: Any) -> None:
    teller = Cantrip(scripted([{"content": SAID}]), circle=Circle(["done"], [max_turns(3)]), name="teller")
    with live([teller]) as service, opened(chrome, url=service.link()) as page:
        show(page, cast(service, "teller", "tell"))
        page.wait_for_selector("article.turn blockquote")
        shown = page.evaluate(
            """selectors => Object.fromEntries(selectors.map((one) => [one,
              [...document.querySelectorAll(`article.turn .prose ${one}`)].map((node) => node.textContent)]))""",
            list(SHAPES),
        )
        assert shown == SHAPES


@pytest.mark.rule("PAGE-05")
def test_markup_references_and_deep_nesting_stay_text(chrome: Any) -> None:
    teller = Cantrip(
        scripted([{"content": text} for text in TEXTS]), circle=Circle(["done"], [max_turns(3)]), name="teller"
    )
    with live([teller]) as service:
        entities = [cast(service, "teller", f"tell {number}") for number in range(len(TEXTS))]
        with opened(chrome, url=service.link()) as page:
            for entity, text in zip(entities, TEXTS, strict=True):
                show(page, entity)
                said = page.locator("article.turn > :is(.prose, pre)").first
                said.wait_for()
                shown = str(said.text_content())
                words = (
                    ["javascript:alert(1)"]
                    if "javascript" in text
                    else [text.replace("&lt;", "<").replace("&gt;", ">")]
                )
                words = ["seen", "https://example.org/x.png"] if text.startswith("!") else words
                assert all(word.strip() in shown for word in words), (text[:50], shown[:200])
                assert page.locator("article.turn :is(img, b, i)").count() == 0
                assert page.locator("article.turn .prose a").count() == (text.startswith("[a]: "))


LONG_TABLE = """| letter | what it says about the summer of that year | pages |
|:--|:--|--:|
| Ada | It was warm, and nobody came before the end of August | 12 |
| averylongaddresswithoutanyspaces@andalongdomainbehindit.example | It was cold | 3 |
"""


def test_a_wide_table_is_read_sideways_on_a_phone(chrome: Any) -> None:
    """A column is wide enough for some words, so that no cell becomes a tower of them."""
    teller = Cantrip(scripted([{"content": LONG_TABLE}]), circle=Circle(["done"], [max_turns(3)]), name="teller")
    phone = {"viewport": {"width": 360, "height": 780}}
    with live([teller]) as service, opened(chrome, url=service.link(), **phone) as page:
        show(page, cast(service, "teller", "tell"))
        page.wait_for_selector("article.turn table")
        tallest, box, whole = page.evaluate(
            """() => [Math.max(...[...document.querySelectorAll("article.turn :is(th, td)")].map((one) =>
              one.getBoundingClientRect().height / parseFloat(getComputedStyle(one).lineHeight))),
              document.querySelector(".tablebox").clientWidth, document.querySelector(".tablebox").scrollWidth]"""
        )
        assert tallest < 5
        assert whole > box
        assert page.evaluate("document.documentElement.scrollWidth") == 360
