"""The page of a loom: its content, and its behaviour in a real browser."""

import html.parser
import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.loom.export.html import family, html_page
from cantrip_actors.loom.export.story import build_item, read_page
from cantrip_actors.loom.reading.redaction import redacted_loom
from cantrip_actors.records.records import Adopted, Committed, IntentGiven, Resumed, Utterance
from cantrip_actors.redact.redactor import Redactor
from tests.http.browser import chromium
from tests.loom.histories import AT, header, histories, run, texts, turn
from tests.loom.test_view import FAMILY, loom_of
from tests.loom.told import written_once

in_chromium = [
    pytest.mark.real_time,
    pytest.mark.skipif(chromium() is None, reason="no chromium on PATH: the page is tested in a real browser"),
]
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
        self.tags, self.data, self.scripts, self.addresses, self._in = [], {}, [], [], None
        self.feed(data.decode())
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("href", "src")]
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

    @pytest.mark.rule("W-54")
    def test_the_page_loads_no_external_resource(self):
        read = Reader(page(written_once().loom))
        assert not {"img", "iframe", "object", "base"} & set(read.tags)
        assert read.addresses == ["data:,", "#main", "#/"]
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
        begun, ended = (item["data"] for item in read.data["e-0"]["items"])
        assert begun["intent"] == said
        assert ended["gate_calls"][0]["result"] == said
        assert len(read.scripts) == 1

    @given(histories())
    def test_a_page_has_every_turn_of_any_history(self, history):
        read = Reader(page(loom_of(*history.batches)))
        items = [item for name, one in read.data.items() if name != "index" for item in one["items"]]
        assert sorted(item["data"]["id"] for item in items if item["event"] == "turn") == sorted(history.owners)

    @pytest.mark.rule("LOOM-5", "LOOM-8", "LOOM-9", "PROD-5")
    def test_a_page_shows_folds_children_tokens_errors_and_rewards(self):
        written = written_once()
        read = Reader(page(written.loom))
        root, child = (read.data[f"e-{n}"]["items"] for n in range(2))
        turns = [item["data"] for item in root if item["event"] == "turn"]
        assert [turn.get("continues", False) for turn in turns] == [False, False, True, False]
        assert [call["gate"] for call in turns[1]["open_calls"]] == ["call_agent", "echo"]
        assert turns[0]["gate_calls"][1]["is_error"] is True
        assert turns[1]["gate_calls"][0]["ephemeral"] is True
        names = ("tokens_prompt", "tokens_completion", "tokens_cached", "cost")
        assert [turns[1]["metadata"][name] for name in names] == [100, 20, 30, 0.01]
        assert turns[1]["gate_calls"][0]["result"] == "the whole of a.txt"
        assert turns[2]["metadata"]["tokens_prompt"] == 0
        assert [item["data"]["reward"] for item in root if item["event"] == "reward"] == [0.25, 0.5]
        assert (root[0]["data"]["context"], child[0]["data"]["intent"]) == ({"list": [1, 2]}, "look it up")
        assert [item["data"]["marker"] for item in read.data["e-6"]["items"] if item["event"] == "fold"] == [
            "[folded: turns 1-3]",
            "[folded: turns 1-6]",
        ]

    @pytest.mark.rule("PAGE-02", "C-01", "W-54")
    def test_a_page_has_the_events_of_the_live_page(self):
        loom = resumed_loom()
        items = Reader(page(loom)).data["e-0"]["items"]
        story = [build_item(one) for one in read_page(loom.records("e"), 100, None, None, None).events]
        for one in story:
            one["data"] = {name: part for name, part in one["data"].items() if name not in ("utterance", "observation")}
        assert items == json.loads(json.dumps(story))
        resumed = next(item for item in items if item["event"] == "resume")
        assert (resumed["data"]["by"], resumed["data"]["at"]) == ("token:ann", AT)

    def test_an_utterance_that_is_not_yet_a_turn_is_in_the_page(self):
        records = run("e", "t1")
        said = next(one for one in turn("e", "t2", "t1", 2, text="unfinished") if isinstance(one, Utterance))
        (item,) = Reader(page(loom_of([*records[:-1], said]))).data["e-0"]["live"]
        assert "unfinished" in item["content"]

    def test_a_family_is_an_entity_with_its_children_and_forks(self):
        assert set(family(loom_of(*FAMILY), "a")) == {"a", "b", "c", "d", "f"}
        assert family(loom_of(*FAMILY), "c") == ["c", "d"]
        assert [one["id"] for one in Reader(page(loom_of(*FAMILY), ["c", "d"])).data["index"]["entities"]] == ["c", "d"]

    def test_a_page_of_a_redacted_loom_shows_no_secret(self):
        data = page(redacted_loom(written_once().loom, Redactor({"file": "whole of a.txt"})))
        assert b"[redacted:file]" in data
        assert b"whole of a" not in data


def text(seen, selector="#main"):
    """Return the text of an element, with single blanks."""
    return " ".join(seen.inner_text(selector).split())


class TestInABrowser:
    pytestmark = in_chromium

    @pytest.mark.rule("W-54")
    def test_the_page_begins_with_the_sums_of_its_loom_and_leads_to_entities(self, shown):
        written = written_once()
        seen = shown(written.loom, title="My loom")
        assert "entities 7" in text(seen)
        assert "fail 1 1 (100 %)" in text(seen)
        seen.click(f'#loom [data-id="{written.root}"]')
        seen.wait_for_selector('#main .step:has-text("what do I need?")')
        assert seen.evaluate("location.hash") == f"#/e/{written.root}"
        seen.go_back()
        seen.wait_for_selector('#main h1:text-is("My loom")')

    @pytest.mark.rule("W-54", "LOOM-4", "LOOM-8")
    def test_a_turn_shows_its_calls_and_what_hangs_from_it(self, shown):
        written = written_once()
        seen = shown(written.loom, f"#/e/{written.root}")
        first, second, third, last = seen.locator("article.turn").all()
        assert "ValueError: no <b>bold</b>" in first.inner_text()
        assert first.locator('.kin:has-text("something else")').count() == 1
        assert "no result" in second.inner_text()
        assert "answers of turn 2" in third.inner_text()
        assert "0.5" in last.locator(".reward").inner_text()
        seen.click('details:has-text("Call, gates and wards") summary')
        assert "Be <terse>." in text(seen, "header.entity")
        second.locator('.kin:has-text("look it up")').click()
        seen.wait_for_selector('#main .step:has-text("intent of its parent")')
        seen.click(".crumbs a")
        seen.wait_for_selector('#main .step:has-text("what do I need?")')

    @pytest.mark.rule("PAGE-02", "C-01", "W-54")
    def test_people_and_moves_are_shown_where_they_acted(self, shown):
        records = resumed_loom().records("e")
        moved = Adopted("e", "c4fe", "c0ffee", AT, "scripted", {}, {}, "brewer")
        lines = text(shown(loom_of([*records, moved]), "#/e/e"))
        assert lines.index("Turn 1") < lines.index("resumed by ann") < lines.index("Turn 2")
        assert lines.index("Turn 3") < lines.index("works from here on with cantrip brewer")

    @pytest.mark.rule("W-54")
    def test_a_partial_loom_says_that_an_entity_is_not_in_it(self, shown):
        written = written_once()
        seen = shown(written.loom, f"#/e/{written.forks[0]}", entities=[written.forks[0]])
        seen.click(".crumbs a")
        seen.wait_for_selector('#main:has-text("this entity is not in it")')

    @pytest.mark.rule("W-54", "W-51")
    def test_search_finds_every_turn_marks_the_words_and_opens_the_turn(self, shown):
        written = written_once()
        seen = shown(written.loom)
        seen.keyboard.press("/")
        seen.keyboard.type("ECHO")
        seen.wait_for_selector('#loom .row:has-text("turn 7")')
        seen.locator('#loom .row:has-text("turn 7")').last.click()
        seen.wait_for_selector("#main article.turn:focus")
        assert seen.evaluate("location.hash").endswith("/t/7")
        seen.wait_for_function("CSS.highlights.get('found').size > 0")
        seen.fill("#loom input", "")
        seen.click('#loom [data-filter="errors"]')
        seen.wait_for_selector('#loom .row:has-text("no <b>bold</b>")')
        assert seen.inner_text("#loom .head .count") == "1 of 7"

    @pytest.mark.rule("W-54")
    def test_the_page_can_be_used_with_the_keyboard_alone(self, shown):
        written = written_once()
        seen = shown(written.loom, f"#/e/{written.notes}")
        seen.wait_for_selector("article.turn")
        seen.keyboard.press("e")
        assert seen.locator("#main details.call:not([open])").count() == 0
        seen.keyboard.press("j")
        assert seen.evaluate("document.activeElement.dataset.sequence") == "1"
        seen.keyboard.press("c")
        assert seen.get_attribute("#main", "data-view") == "chat"
        seen.keyboard.press("Escape")
        assert seen.evaluate("document.activeElement.closest('#loom') !== null")
        seen.keyboard.press("?")
        assert "print" in text(seen, "#dialog")
        assert "deny" not in text(seen, "#dialog")
        controls = "[...document.querySelectorAll('button,a,input,select')]"
        assert seen.evaluate(f"{controls}.filter((one) => !one.textContent && !one.ariaLabel).length") == 0

    @pytest.mark.rule("W-54")
    def test_a_page_prints_all_turns_of_an_entity_with_their_calls_open(self, shown):
        seen = shown(loom_of(run("big", *(f"t{number}" for number in range(1, 251)))))
        seen.wait_for_selector("article.turn")
        seen.evaluate("window.print = () => { window.printed = document.querySelectorAll('article.turn').length }")
        seen.keyboard.press("p")
        seen.wait_for_function("window.printed === 250")
        seen.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert seen.locator("#main details:not([open])").count() == 0
        assert seen.pdf().startswith(b"%PDF")

    @pytest.mark.rule("W-54")
    def test_hostile_texts_are_shown_as_text(self, shown):
        records = [header("e", name=HOSTILE[0]), IntentGiven("e", HOSTILE[2], AT, {"<b>": HOSTILE})]
        parent = None
        for number, said in enumerate(HOSTILE, 1):
            records += turn("e", f"t{number}", parent, number, text=said)
            parent = f"t{number}"
        seen = shown(loom_of(records), title=HOSTILE[0])
        seen.wait_for_selector("article.turn")
        assert seen.title().endswith(HOSTILE[0])
        assert seen.evaluate("document.querySelectorAll('main script, main img').length") == 0
        for number, said in enumerate(HOSTILE, 1):
            shown_text = seen.evaluate(
                "n => document.querySelector(`[data-turn='t${n}'] details.call pre:last-child`).textContent", number
            )
            signs = [sign for sign in said if sign.isprintable() and not "\ud800" <= sign <= "\udfff"]
            assert all(sign in shown_text for sign in signs), (said, shown_text)
            assert not re.search("[\x00-\x08\x1b\x7f\u202a-\u202e\u2066-\u2069]", shown_text)
        assert seen.evaluate("document.querySelector('[data-turn=t6] pre .odd').textContent") == "U+202E"

    @pytest.mark.rule("W-54")
    def test_ten_thousand_turns_stay_usable(self, shown):
        loom = loom_of(run("big", *(f"turn-{number}" for number in range(1, 10_001))))
        seen = shown(loom)
        seen.wait_for_selector("article.turn")
        assert seen.evaluate("performance.now()") < 20_000
        assert seen.locator("article.turn").count() < 500
        began = time.monotonic()
        seen.evaluate("location.hash = '#/e/big/t/7777'")
        seen.wait_for_selector("article.turn[data-sequence='7777']:focus")
        seen.click('button:has-text("Show later turns")')
        seen.wait_for_selector("article.turn[data-sequence='7900']")
        assert time.monotonic() - began < 20

    @pytest.mark.rule("W-54")
    @pytest.mark.parametrize("width", [360, 768, 1400])
    def test_nothing_is_wider_than_the_window(self, shown, width):
        wide = "| " + " | ".join(f"column {n}" for n in range(30)) + " |\n|" + "---|" * 30
        records = run("e", "x" * 3000, "t2")
        records[1] = IntentGiven("e", f"{wide}\n\n{'w' * 500}", AT, {"key" * 200: "value" * 200})
        seen = shown(loom_of(records), "#/e/e", size=(width, 740))
        seen.wait_for_selector("article.turn")
        seen.keyboard.press("e")
        assert seen.evaluate("document.documentElement.scrollWidth") <= width
        body = "document.querySelector('#main .body')"
        assert seen.evaluate(f"{body}.scrollWidth - {body}.clientWidth") <= 0
