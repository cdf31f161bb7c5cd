"""The page of a loom: its content, and its behaviour in a real browser."""

import html.parser
import json
import os
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.loom.export.html import family, html_page
from cantrip_actors.loom.redaction import redacted_loom
from cantrip_actors.records.records import Committed, IntentGiven, Resumed
from cantrip_actors.redact.redactor import Redactor
from tests.loom.browser import ENTER, ESCAPE, browsing, missing
from tests.loom.histories import AT, header, histories, run, texts, turn
from tests.loom.test_view import FAMILY, loom_of
from tests.loom.told import written_once

LACKING = missing()
needs_browser = pytest.mark.skipif(
    LACKING is not None and not os.environ.get("CI"), reason=f"THE PAGE WAS NOT LOOKED AT IN A BROWSER: {LACKING}"
)
HOSTILE = [
    "</script><script>document.title='owned'</script>",
    "<!--<script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "&lt;b&gt; &amp; &#60;",
    "]]> --> <![CDATA[",
    "\u202edetrevni\u202c \u2066x\u2069 \u200f\u200b\ufeff",
    "\x00\x01\x1b[31mred\x7f\x85",
    "a\r\nb\rc\u2028d\u2029e",
    "\ud800 lone \udc00",
    "שלום عالم 🏴‍☠️",
    "javascript:document.title='owned'",
    "{{title}}{{style}}${1+1}\\u003c/script\\u003e",
]


def page(loom, *args, **options):
    return b"".join(html_page(loom, *args, **options))


class Reader(html.parser.HTMLParser):
    """What a browser would make of the page: the elements, and the data in its scripts."""

    def __init__(self, data):
        super().__init__(convert_charrefs=True)
        self.tags, self.data, self.scripts, self._in = [], {}, [], None
        self.feed(data.decode())
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "script":
            attributes = dict(attributes)
            assert set(attributes) <= {"type", "id"}, attributes
            self._in = attributes.get("id", "")

    def handle_endtag(self, tag):
        if tag == "script":
            self._in = None

    def handle_data(self, data):
        if self._in:
            self.data[self._in] = json.loads(data)
        elif self._in == "":
            self.scripts.append(data)


def resumed_loom():
    """Return a loom with an entity that a person resumed after its first of three turns."""
    records = run("e", "t1", "t2", "t3")
    after = next(at for at, one in enumerate(records) if isinstance(one, Committed)) + 1
    return loom_of([*records[:after], Resumed("e", AT, "token:ann"), *records[after:]])


class TestBytes:
    def test_a_page_has_one_data_block_per_entity_and_one_program(self):
        written = written_once()
        read = Reader(page(written.loom))
        assert set(read.data) == {"index", *(f"e-{n}" for n in range(7))}
        assert len(read.scripts) == 1
        assert [one["id"] for one in read.data["index"]["entities"]] == written.loom.entities()
        assert read.data["index"]["totals"]["turns"] == 19

    def test_the_page_loads_no_external_resource(self):
        read = Reader(page(written_once().loom))
        assert not {"link", "img", "iframe", "object", "base"} & set(read.tags)
        policy = re.search(rb'Content-Security-Policy" content="([^"]*)"', page(written_once().loom))[1].decode()
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy

    def test_a_page_has_the_same_bytes_each_time(self):
        assert page(written_once().loom) == page(written_once().loom)

    @given(said=st.sampled_from(HOSTILE) | texts, title=st.sampled_from(HOSTILE) | texts)
    def test_texts_of_entities_are_escaped(self, said, title):
        records = [header("e", name=said), IntentGiven("e", said, AT, {said: said}), *turn("e", "t", None, text=said)]
        data = page(loom_of(records), title=title)
        read = Reader(data)
        assert read.tags.count("script") == 3
        assert read.data["e-0"]["items"][0]["text"] == said
        assert read.data["e-0"]["items"][1]["seen"][0]["text"] == said
        assert len(read.scripts) == 1

    @given(histories())
    def test_a_page_has_every_turn_of_any_history(self, history):
        read = Reader(page(loom_of(*history.batches)))
        items = [item for name, one in read.data.items() if name != "index" for item in one["items"]]
        assert sorted(item["id"] for item in items if item["kind"] == "turn") == sorted(history.owners)

    @pytest.mark.rule("LOOM-5", "LOOM-8", "LOOM-9", "PROD-5")
    def test_a_page_shows_folds_children_tokens_errors_and_rewards(self):
        written = written_once()
        read = Reader(page(written.loom))
        root, child = (read.data[f"e-{n}"]["items"] for n in range(2))
        turns = [item for item in root if item["kind"] == "turn"]
        assert [item["goes"] for item in turns] == [False, False, True, False]
        assert turns[0]["seen"][1]["err"] is True
        assert turns[1]["tokens"] == [100, 20, 30]
        assert turns[1]["seen"][0]["text"] == "the whole of a.txt"
        assert turns[2]["tokens"] == [0, 0, 0]
        assert (turns[3]["reward"], turns[3]["rewards"]) == (0.5, [0.25, 0.5])
        assert child[0]["text"] == "look it up"
        notes = read.data["e-6"]["items"]
        assert [item["marker"] for item in notes if item["kind"] == "fold"] == [
            "[folded: turns 1-3]",
            "[folded: turns 1-6]",
        ]

    @pytest.mark.rule("PAGE-02", "C-01")
    def test_a_page_shows_who_resumed_an_entity_at_the_turn_after_it(self):
        items = Reader(page(resumed_loom())).data["e-0"]["items"]
        assert [item.get("resumed") for item in items if item["kind"] == "turn"] == [None, [f"by ann, {AT}"], None]

    def test_a_family_is_an_entity_with_its_children_and_forks(self):
        assert set(family(loom_of(*FAMILY), "a")) == {"a", "b", "c", "d", "f"}
        assert family(loom_of(*FAMILY), "c") == ["c", "d"]
        assert [one["id"] for one in Reader(page(loom_of(*FAMILY), ["c", "d"])).data["index"]["entities"]] == ["c", "d"]

    def test_a_page_of_a_redacted_loom_shows_no_secret(self):
        data = page(redacted_loom(written_once().loom, Redactor({"file": "whole of a.txt"})))
        assert b"[redacted:file]" in data
        assert b"whole of a" not in data


@pytest.fixture(scope="module")
def browser():
    if LACKING is not None:
        pytest.fail(f"the page was not looked at in a browser: {LACKING}")
    with browsing() as one:
        yield one


@pytest.fixture
def shown(browser, tmp_path):
    """Open the page of a loom; at the end the console must be empty."""

    def show(loom, link="", **options):
        path = tmp_path / "loom.html"
        with path.open("wb") as file:
            file.writelines(html_page(loom, **options))
        browser.open(f"{path.as_uri()}{link}")
        return browser

    yield show
    assert browser.complaints() == []


@needs_browser
class TestInABrowser:
    def test_the_overview_leads_to_an_entity(self, shown):
        written = written_once()
        seen = shown(written.loom, title="My loom")
        assert "7 entities" in seen.text("#main")
        seen.click("#main td a")
        seen.until("return document.querySelector('h1').textContent.includes('what do I need?')")
        assert seen.run("return location.hash") == f"#e={written.root}"
        seen.back()
        seen.until("return document.querySelector('h1').textContent === 'My loom'")

    def test_clicking_a_turn_closes_and_opens_it(self, shown):
        written = written_once()
        seen = shown(written.loom, f"#e={written.root}")
        first = written.loom.turns(written.root)[0].id
        assert "ValueError: no <b>bold</b>" in seen.text(f"[data-turn='{first}']")
        seen.click(f"[data-turn='{first}'] > .head")
        assert "ValueError" not in seen.text(f"[data-turn='{first}']")
        assert seen.run("return document.querySelector('.turn > .head').getAttribute('aria-expanded')") == "false"
        seen.click(f"[data-turn='{first}'] > .head")
        assert "ValueError" in seen.text(f"[data-turn='{first}']")
        seen.click("#close-all")
        assert "ValueError" not in seen.text("#main")
        seen.click("#open-all")
        assert "ValueError" in seen.text("#main")
        assert "look it up" in seen.text(f"[data-entity='{written.child}'] .inside")

    @pytest.mark.rule("PAGE-02", "C-01")
    def test_a_turn_shows_who_resumed_its_entity(self, shown):
        seen = shown(resumed_loom(), "#e=e")
        assert f"resumed by ann, {AT}" in " ".join(seen.text("[data-turn='t2']").split())
        assert "resumed" not in seen.text("[data-turn='t1']") + seen.text("[data-turn='t3']")

    @pytest.mark.rule("LOOM-4", "LOOM-8")
    def test_children_and_forks_are_below_their_turns_and_links_lead_there_and_back(self, shown):
        written = written_once()
        turns = written.loom.turns(written.root)
        seen = shown(written.loom, f"#e={written.root}")
        child = f"[data-turn='{turns[1].id}'] [data-entity='{written.child}']"
        seen.click(f"{child} .kin-head button")
        assert "child" in seen.text(f"{child} .inside")
        fork = f"[data-turn='{turns[0].id}'] [data-entity='{written.forks[3]}']"
        seen.click(f"{fork} .kin-head a")
        seen.until("return document.querySelector('h1').textContent.includes('something else')")
        assert "Forked from turn 1" in seen.text(".crumbs")
        seen.click(".crumbs a")
        seen.until("return document.querySelector('.turn.target')")
        assert seen.run("return document.querySelector('.turn.target').dataset.turn") == turns[0].id
        assert seen.run("return document.activeElement.className") == "head"

    def test_a_link_to_a_turn_opens_its_entity_there(self, shown):
        written = written_once()
        last = written.loom.turns(written.child)[-1].id
        seen = shown(written.loom, f"#t={last}")
        assert "look it up" in seen.text("h1")
        assert seen.run("return document.querySelector('.turn.target').dataset.turn") == last

    def test_missing_parts_of_a_partial_loom_are_marked(self, shown):
        written = written_once()
        seen = shown(written.loom, f"#t={written.loom.turns(written.root)[0].id}", entities=[written.forks[0]])
        assert "Not in this page" in seen.text("#main")
        seen.run(f"location.hash = 'e={written.forks[0]}'")
        seen.until("return document.querySelector('.crumbs')")
        assert "not in this page" in seen.text(".crumbs")

    def test_search_finds_turns_and_opens_them(self, shown):
        written = written_once()
        seen = shown(written.loom)
        seen.press("/")
        seen.type("#query", "WHOLE OF")
        seen.until("return document.querySelector('#count').textContent === '1 found'")
        seen.type("#query", ENTER)
        assert seen.run("return document.activeElement.closest('#hits') !== null")
        seen.press(ENTER)
        seen.until("return document.querySelector('.turn.target')")
        assert seen.run("return [...CSS.highlights.get('found')].length") >= 1
        seen.type("#query", ESCAPE)
        seen.until("return document.querySelector('#found').hidden")
        seen.click("#only-errors")
        seen.until("return document.querySelector('#count').textContent === '1 found'")
        assert "ValueError" in seen.text("#hits")

    def test_the_page_can_be_used_with_the_keyboard_alone(self, shown):
        written = written_once()
        seen = shown(written.loom, f"#e={written.notes}")
        seen.press("c")
        assert seen.run("return document.querySelectorAll('.head[aria-expanded=true]').length") == 0
        seen.press("j", "j", ENTER)
        assert seen.run(
            "return [...document.querySelectorAll('.head')].map((one) => one.ariaExpanded).join()"
        ).startswith("false,true,false")
        seen.press("k", "e")
        assert seen.run("return document.querySelectorAll('.head[aria-expanded=false]').length") == 0
        seen.run("document.querySelector('#tree a').focus()")
        seen.press("\ue015")
        assert seen.run("return document.activeElement.closest('li').dataset.node") == written.child
        nameless = (
            "return [...document.querySelectorAll('button,a,input')].map((one) => "
            "one.textContent || one.ariaLabel || one.title || one.labels?.length || one.outerHTML)"
        )
        names = [name for name in seen.run(nameless) if str(name).startswith("<")]
        assert names == []

    def test_a_page_has_a_light_a_dark_and_a_print_theme(self, shown):
        seen = shown(written_once().loom, f"#e={written_once().root}")
        colours = set()
        for name in ("Light", "Dark"):
            seen.click("#theme")
            assert seen.text("#theme") == name
            colours.add(seen.run("return getComputedStyle(document.body).backgroundColor"))
        assert len(colours) == 2
        assert seen.printed().startswith(b"%PDF")

    def test_hostile_texts_are_shown_as_text(self, shown):
        records = [header("e", name=HOSTILE[0]), IntentGiven("e", HOSTILE[2], AT, {"<b>": HOSTILE})]
        parent = None
        for number, said in enumerate(HOSTILE, 1):
            records += turn("e", f"t{number}", parent, number, text=said)
            parent = f"t{number}"
        seen = shown(loom_of(records), title=HOSTILE[0])
        assert seen.run("return document.title").endswith(HOSTILE[0])
        assert seen.run("return document.querySelectorAll('main script, main img, main b:not(.facts b)').length") == 0
        for number, said in enumerate(HOSTILE, 1):
            shown_text = seen.run(
                "return document.querySelector(arguments[0]).textContent", f"[data-turn='t{number}'] .result pre"
            )
            signs = [sign for sign in said if sign.isprintable() and not "\ud800" <= sign <= "\udfff"]
            assert all(sign in shown_text for sign in signs), (said, shown_text)
            assert not re.search("[\x00-\x08\x1b\x7f\u202a-\u202e\u2066-\u2069]", shown_text)
        assert seen.run("return document.querySelector('[data-turn=t6] .odd').textContent") == "U+202E"

    def test_ten_thousand_turns_stay_usable(self, shown):
        ids = [f"turn-{number}" for number in range(1, 10_001)]
        loom = loom_of(run("big", *ids))
        began = time.monotonic()
        seen = shown(loom)
        assert time.monotonic() - began < 20
        assert seen.run("return document.querySelectorAll('.turn').length") < 500
        began = time.monotonic()
        seen.run("location.hash = 't=turn-7777'")
        seen.until("return document.querySelector('.turn.target')")
        assert seen.run("return document.querySelector('.turn.target').dataset.turn") == "turn-7777"
        seen.until(
            "const box = document.querySelector('.turn.target').getBoundingClientRect();"
            "return box.top >= 0 && box.top < innerHeight"
        )
        seen.type("#query", "turn-9999")
        seen.until("return document.querySelector('#count').textContent === '1 found'")
        assert time.monotonic() - began < 20
        assert seen.run("return document.querySelectorAll('.turn').length") < 1000
