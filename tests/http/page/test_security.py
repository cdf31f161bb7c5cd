"""What hostile text and other sites cannot do to the page, and the policy that it is served with."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, gate, scripted
from cantrip_actors.http.live_page import PAGE_HEADERS, assets
from cantrip_actors.page.texts import read_texts
from cantrip_actors.wards import max_turns
from tests.http.browser import Live, live
from tests.http.page.pages import IN_CHROMIUM, cast, opened, show
from tests.http.serving import ROOT, process

pytestmark = IN_CHROMIUM


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    '"><iframe src=javascript:alert(1)>',
    "[click](javascript:alert(1))",
    "[click](data:text/html,<script>alert(1)</script>)",
    'https://evil.example/"onmouseover=alert(1)//',
    "`<b onclick=alert(1)>`",
    "```\n</pre><script>alert(1)</script>\n```",
    "**<details open ontoggle=alert(1)>**",
    "<base href=//evil.example>",
    "<link rel=stylesheet href=//evil.example/a.css>",
    "<style>@import '//evil.example'</style>",
    "<form action=//evil.example><input type=submit>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
    "{{constructor.constructor('alert(1)')()}}",
    "${alert(1)}",
    "\u202egnp.exe",
    "\u001b[31mred\u001b]8;;http://evil.example\u0007x",
    "a\u200bb\u2066c",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<object data=//evil.example>",
    "<embed src=//evil.example>",
    "<video><source onerror=alert(1)>",
    "<input autofocus onfocus=alert(1)>",
    "<template><script>alert(1)</script></template>",
    "]]><script>alert(1)</script>",
    "%3Cscript%3Ealert(1)%3C/script%3E",
    "javascript:alert(1)",
    "x" * 5000 + "<script>alert(1)</script>",
    "pay \u0430nna",
]


@pytest.mark.rule("PAGE-05")
def test_hostile_content_is_shown_as_text(chrome: Any) -> None:
    @gate
    async def look(at: str) -> str:
        """Look."""
        if at.startswith("<i"):
            raise ValueError(at)
        return at

    def policy(context: Any) -> dict[str, Any]:
        if context[-1].role == "user":
            return {
                "content": "\n\n".join(HOSTILE),
                "thinking": HOSTILE[0],
                "tool_calls": [{"gate": "look", "args": {"at": one}} for one in HOSTILE]
                + [{"gate": "<img src=x onerror=alert(1)>", "args": {"<b>": "<i>"}}],
            }
        return {"content": HOSTILE[1]}

    evil = Cantrip(scripted(policy), circle=Circle(["done", look], [max_turns(5)]), name="<img src=x onerror=alert(1)>")
    with live([evil]) as service:
        entity = cast(service, str(evil.name), "\n".join(HOSTILE), name="<script>alert(1)</script>\u202e")
        with opened(chrome, url=service.link()) as page:
            show(page, entity)
            page.wait_for_selector('#main .step:has-text("Episode: done")')
            page.evaluate("() => document.querySelectorAll('details').forEach(one => { one.open = true })")
            while page.locator("#main button.more:visible").count():
                page.locator("#main button.more:visible").first.click()
            text = page.inner_text("#main")
            assert all(one.splitlines()[0].strip("`*") in text for one in HOSTILE[:17] if one[0] in "<$]")
            assert "U+202E" in text
            assert "U+001B" in text
            assert "U+0430nna" in text  # in a value: a Cyrillic letter in a word with Latin ones
            foreign = page.locator(
                "#main :is(script, iframe, object, embed, base, link, style, form, math, video, img)"
            )
            assert foreign.count() == 0
            # the names of recipes and entities in dialogs
            page.keyboard.press("n")
            page.wait_for_selector("#dialog select")
            assert page.inner_text("#dialog option") == evil.name
            page.keyboard.press("Escape")
            page.wait_for_selector("#dialog", state="hidden")
            page.keyboard.press("x")
            page.wait_for_selector('#dialog h2:has-text("Stop <script>alert(1)</script>")')
            page.keyboard.press("Escape")
            links = page.evaluate("() => [...document.links].map(one => [one.protocol, one.rel, one.target])")
            assert {protocol for protocol, _, _ in links} <= {"http:", "https:"}
            assert page.evaluate(
                "() => [...document.querySelectorAll('*')]"
                ".every(one => [...one.attributes].every(found => !found.name.startsWith('on')))"
            )


@pytest.mark.rule("PAGE-05")
def test_hostile_events_are_shown_as_text_in_every_pane(chrome: Any, service: Live) -> None:
    with opened(chrome, service, is_staged=True) as page:
        page.evaluate("location.hash = '#/e/e1'")
        page.wait_for_selector("#main header.entity")
        page.evaluate(
            """corpus => corpus.forEach((text, n) => {
              const at = new Date(2e12 + n).toISOString(), id = "e1", send = (...event) => stage.send(...event);
              const images = [{ url: text, filename: text, media_type: text, size: 1 }];
              const used = { tokens_prompt: 1, tokens_completion: 1, duration_ms: 1 };
              send("entity", { id: `h${n}`, name: text, cantrip: text, intent: text, crystal: text, parent: "e1",
                parent_turn: `t${n - 1}`, began: at, lasting: true });
              send("steer", { id, text, by: text, at }, `e1:${n * 10 + 1}`);
              send("turn", { id: `t${n}`, entity_id: id, sequence: n + 1, content: text, parent_id: null, utterance: "",
                gate_calls: [{ gate: text, args: { [text]: text }, result: text, is_error: n % 2 > 0, images }],
                thinking: text, code: n % 3 ? null : text, reward: text,
                images, truncated: false, metadata: used }, `e1:${n * 10 + 2}`);
              send("intent", { id, intent: text, by: text, at }, `e1:${n * 10 + 6}`);
              send("fold", { entity: id, marker: text, first: text, last: text, at }, `e1:${n * 10 + 7}`);
              send("reward", { entity: id, turn_id: `t${n}`, reward: text, by: text, at }, `e1:${n * 10 + 8}`);
              const usage = { total_tokens: 1, cost: 0 };
              send("episode", { id, state: text, error: n % 2 ? text : null, summary: text, ward: text, result: text,
                by: text, usage, at }, `e1:${n * 10 + 9}`);
              const request = { entity: id, gate: text, args: { [text]: text }, text, schema: null, asked_at: at };
              send("request", { ...request, id: `a${n}`, kind: "approval" }, `e1:${n * 10 + 3}`);
              send("request", { ...request, id: `q${n}`, kind: "question" }, `e1:${n * 10 + 4}`);
              const decision = { id: "other", entity: id, decision: text, by: text, note: text, at };
              send("decision", decision, `e1:${n * 10 + 5}`);
              for (const type of ["message", "thinking", "tool_call"]) send("upsert", { payload: { type, sessionId: id,
                turnId: "now", itemId: `${type}${n}`, status: "update", content: text, toolName: text,
                toolArguments: { [text]: text }, toolOutput: text } });
              const row = { path: `root/h${n}`, kind: text, state: text, since: 1, mailbox: 1, in_hand: 1,
                restarts: 1 };
              const crash = { at: 1, path: `root/${text}`, what: text, reason: text, report: text };
              send("actor", { rows: [{ ...row, exit: text }], gone: [], crashes: [crash],
                crystals: [{ name: text, breaker: text, waiting: 1, until: 1 }] });
            })""",
            HOSTILE,
        )
        page.wait_for_selector(f'[data-sequence="{len(HOSTILE)}"]')
        page.evaluate("() => document.querySelectorAll('details').forEach(one => { one.open = true })")
        page.wait_for_timeout(100)  # whatever was made has had time to load or run
        shown = page.inner_text("#panes")
        assert shown.count("<script>alert(1)</script>") > 10
        foreign = page.locator("#panes :is(script, iframe, object, embed, base, link, style, math, video, img)")
        assert foreign.count() == 0
        links = page.evaluate("() => [...document.links].map(one => one.protocol)")
        assert set(links) <= {"http:", "https:"}
        assert page.evaluate(
            "() => [...document.querySelectorAll('*')]"
            ".every(one => [...one.attributes].every(found => !found.name.startsWith('on')))"
        )


@pytest.mark.rule("PAGE-05", "PAGE-13")
def test_the_policy_allows_own_files_only_and_the_wheel_has_them_all() -> None:
    policy = PAGE_HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    texts = assets()
    for path, text in texts.items():
        assert not any(word in text for word in ("innerHTML", "insertAdjacentHTML", "document.write", "eval("))
        if path.endswith(".js"):
            for name in re.findall(r'^(?:import|\} from|import .* from) "\./([^"]+)";$', text, re.MULTILINE):
                assert f"{path.rpartition('/')[0]}/{name}" in texts


@pytest.mark.rule("PAGE-13")
def test_the_page_works_from_an_installed_wheel(chrome: Any, tmp_path: Path) -> None:
    built, there = tmp_path / "built", tmp_path / "installed"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    for project in (ROOT, ROOT / "packaging" / "supervisors"):
        subprocess.run(build, cwd=project, check=True, capture_output=True)
    (wheel,) = built.glob("cantrip_actors-*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert {f"cantrip_actors/page/web/{name}" for name in (*read_texts(), "vendor/markdown-it.LICENSE")} <= packed
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    wheels = [str(path) for path in built.glob("*.whl")]
    subprocess.run([*install, "--target", str(there), *wheels], check=True, capture_output=True)
    recipe = tmp_path / "hello.yaml"
    recipe.write_text(
        "name: hello\ncrystal:\n  scripted: [Hello.]\ncircle:\n  gates: [done]\n  wards: [max_turns: 5]\n"
    )
    with process(tmp_path, "asyncio", serves=str(recipe), path=there) as one:
        used = Path(f"/proc/{one.child.pid}/environ")
        assert not used.exists() or f"PYTHONPATH={there}".encode() in used.read_bytes()
        with opened(chrome, url=f"{one.url}/#token={one.token}") as page:
            page.keyboard.press("n")
            page.fill("#dialog textarea", "Say hello")
            page.keyboard.press("Enter")
            page.wait_for_selector('#main article:has-text("Hello.")')
            page.wait_for_selector("#actors .row")


@pytest.mark.rule("PAGE-11")
@pytest.mark.parametrize("other_site", ["http://evil.localhost/", "http://127.0.0.1:1/"])  # the second gets the cookie
def test_a_form_of_another_origin_changes_nothing(chrome: Any, service: Live, other_site: str) -> None:
    before = service.do(lambda: len(service.on.runtime.loom.entities()))
    with opened(chrome, service) as page:
        assert page.evaluate("document.cookie") == ""
        other = page.context.new_page()
        other.route(f"{other_site}**", lambda route: route.fulfill(body=form(service.on.url), content_type="text/html"))
        with other.expect_response(lambda answer: "/api/v1/casts" in answer.url) as answered:
            other.goto(other_site)
        assert answered.value.status == 403
        assert answered.value.json()["type"].endswith("origin")
        other.close()
        page.faults.clear()
    assert service.do(lambda: len(service.on.runtime.loom.entities())) == before


def form(url: str) -> str:
    body = json.dumps({"cantrip": "echo", "intent": "owned", "x": "="})[:-3]
    return f"""<form method=post enctype=text/plain action="{url}/api/v1/casts"><input name='{body}' value='"}}'></form>
      <script>document.forms[0].submit()</script>"""
