"""An entity uses a browser: it looks at pages, and acts on them."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, Invocation, LethalTrifecta, Node, Runtime, gate, scripted
from cantrip_actors.gates import browser
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.testing import Crash, Process, run_with_crashes
from cantrip_actors.wards import max_turns
from tests.circle.browser.processes import is_running, list_browsers, list_descendants, read_command
from tests.circle.browser.site import Calls, Site, browse, browsing, needs_browser

pytestmark = [pytest.mark.real_time, needs_browser]

SHOP = """<title>Shop</title><h1>Shop</h1>
<form action="/order" method="post"><input name="who" placeholder="Name">
<select name="size"><option>small<option>large</select><button>Buy</button></form><a href="/terms">Terms</a>
<p id="seen"></p>
<button id="more" onclick="document.getElementById('seen').textContent = 'more things'">Show</button>"""


@pytest.mark.rule("B-01")
@pytest.mark.rule("B-03")
async def test_an_entity_orders_in_a_shop_with_refs_texts_and_selectors(site: Site) -> None:
    site.pages |= {"/": SHOP, "/order": "<title>Thanks</title><p>It is on its way.</p>", "/terms": "<p>None.</p>"}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("goto", {"url": f"{site.url}/"}),
        ("fill", {"target": "e4", "text": "Anna"}),
        ("select", {"target": "form select", "option": "large"}),
        ("click", {"target": "text=Buy"}),
        ("back", {}),
        ("click", {"target": "text=Terms"}),
        ("press", {"key": "Alt+ArrowLeft"}),
        ("tabs", {}),
    ]
    shop, filled, chosen, bought, again, terms, _, listed = await browse(calls, [site.place], allow_private=True)
    assert 'e4 textbox "Name"' in shop
    assert 'button "Buy"' in shop
    assert 'link "Terms" -> "/terms"' in shop
    assert '+ e4 textbox "Name" active = "Anna"' in filled
    assert '+ option "large" selected' in chosen
    assert "It is on its way." in bought
    assert '"Thanks"' in bought
    assert "None." in terms
    assert '"Shop"' in again
    (order,) = (got for got in site.got if got.method == "POST")
    assert order.body == "who=Anna&size=large"
    assert listed.startswith("tab 1 (in front)")


@pytest.mark.rule("B-03")
async def test_a_look_marks_what_is_new_and_is_shown_in_parts(site: Site) -> None:
    rows = "".join(f"<li>row {number}</li>" for number in range(400))
    site.pages |= {"/": SHOP, "/long": f"<ul id=all>{rows}</ul><table><tr><td>cell</table>"}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("goto", {"url": f"{site.url}/"}),
        ("click", {"target": "#more"}),
        ("look", {}),
        ("goto", {"url": f"{site.url}/long"}),
        ("look", {"part": 3}),
        ("look", {"within": "table"}),
    ]
    _, clicked, looked, long, third, cell = await browse(calls, [site.place], allow_private=True)
    assert "+ " in clicked
    assert '"more things"' in clicked
    assert 'heading "Shop"' not in clicked
    assert 'heading "Shop"' in looked
    assert "0 new lines" in looked
    assert '"row 1"' in long
    assert '"row 300"' not in long
    assert "part 1 of 3: look(part=2) shows the next" in long
    assert '"row 399"' in third
    assert '"row 1"' not in third
    assert '"cell"' in cell
    assert '"row 1"' not in cell


@pytest.mark.rule("B-03")
async def test_a_target_that_is_stale_ambiguous_or_wrong_is_answered_with_candidates(site: Site) -> None:
    site.pages |= {"/": SHOP + "<button onclick='this.remove()'>Remove me</button>", "/other": "<p>Other."}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("click", {"target": "e1"}),
        ("goto", {"url": f"{site.url}/"}),
        ("click", {"target": "button"}),
        ("click", {"target": "e77"}),
        ("click", {"target": "text=Bye"}),
        ("click", {"target": "]["}),
        ("select", {"target": "select", "option": "huge"}),
        ("fill", {"target": "e4"}),
    ]
    unseen, _, many, stale, missing, wrong, option, empty = await browse(calls, [site.place], allow_private=True)
    assert "look()" in unseen
    assert "matches 3 elements" in many
    assert '"button >> nth=0" is "Buy"' in many
    assert "is not on the page any more" in stale
    assert 'button "Buy"' in stale
    assert "matches nothing" in missing
    assert 'button "Buy"' in missing
    assert "no CSS selector" in wrong
    assert "['small', 'large']" in option
    assert "either a text or the name of a secret" in empty


@pytest.mark.rule("B-03")
async def test_an_action_waits_for_what_it_makes_the_page_request(site: Site) -> None:
    script = "fetch('/slow').then(r => r.text()).then(t => document.body.append(t))"
    site.pages |= {"/": f'<button onclick="{script}">Load</button>', "/slow": "it has come"}
    calls: list[tuple[str, dict[str, Any]]] = [("goto", {"url": f"{site.url}/"}), ("click", {"target": "text=Load"})]
    _, clicked = await browse(calls, [site.place], allow_private=True)
    assert "it has come" in clicked


@pytest.mark.rule("B-03")
async def test_looks_leave_the_context_and_a_screenshot_is_an_image(site: Site) -> None:
    site.pages["/"] = SHOP
    calls: list[tuple[str, dict[str, Any]]] = [("goto", {"url": f"{site.url}/"}), ("screenshot", {}), ("tabs", {})]
    cantrip = browsing(calls, [site.place], allow_private=True)
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(cantrip, "Look.")
    (image,) = episode.thread[1].images
    assert image.media_type == "image/jpeg"
    assert image.width == 1280
    assert "Shop" in episode.thread[0].observation  # the loom keeps it


@pytest.mark.rule("B-03")
async def test_the_model_sees_a_page_for_one_query_and_a_change_for_two(site: Site) -> None:
    site.pages["/"] = SHOP
    script = [("goto", {"url": f"{site.url}/"}), ("click", {"target": "#more"}), ("tabs", {}), ("tabs", {})]
    seen: list[str] = []

    def answer(context: Invocation) -> dict[str, Any]:
        seen.append("\n".join(message.content or "" for message in context))
        if len(seen) > len(script):
            return {"tool_calls": [{"gate": "done", "args": {"answer": "seen"}}]}
        gate, args = script[len(seen) - 1]
        return {"tool_calls": [{"gate": gate, "args": args}]}

    circle = Circle(gates=["done", *browser([site.place], allow_private=True)], wards=[max_turns(9)])
    async with Runtime.open("memory:") as runtime:
        await runtime.cast(Cantrip(crystal=scripted(answer), circle=circle), "Look.")
    assert ['heading "Shop"' in context for context in seen] == [False, True, False, False, False]
    assert ["more things" in context for context in seen] == [False, False, True, True, False]


@pytest.mark.rule("B-02")
async def test_entities_share_a_browser_and_have_cookies_of_their_own(site: Site) -> None:
    site.pages |= {
        "/in": (200, {"set-cookie": "who=anna; path=/"}, "<script>localStorage.who = 'anna'</script>"),
        "/who": "<script>document.write(document.cookie + '|' + localStorage.who)</script>",
    }
    async with Runtime.open("memory:") as runtime, anyio.create_task_group() as tasks:
        seen: dict[str, str] = {}

        async def run(name: str, *paths: str) -> None:
            calls = [("goto", {"url": f"{site.url}{path}"}) for path in paths]
            cantrip = browsing(calls, [site.place], allow_private=True)
            episode = await runtime.cast(cantrip, "Who are you?")
            seen[name] = episode.thread[-2].observation

        tasks.start_soon(run, "anna", "/in", "/who")
        tasks.start_soon(run, "other", "/who", "/who")
    assert '"who=anna|anna"' in seen["anna"]
    assert '"|undefined"' in seen["other"]
    assert len(list_browsers(os.getpid())) == 1


@pytest.mark.rule("B-02")
async def test_the_tabs_of_an_entity_are_closed_when_it_ends(site: Site) -> None:
    site.pages |= {"/": "<script>setInterval(() => fetch('/tick'), 20)</script>", "/tick": ""}
    await browse([("goto", {"url": f"{site.url}/"})], [site.place], allow_private=True)
    await anyio.sleep(0.15)  # until the last request, which was under way, has arrived
    ticks = site.paths().count("/tick")
    await anyio.sleep(0.15)
    assert ticks
    assert site.paths().count("/tick") == ticks


STATE = """<title>State</title><form><input id=who name=who><input type=checkbox id=box>
<input type=password id=word name=word></form>
<p id=p></p><script>
localStorage.visits = Number(localStorage.visits || 0) + 1; sessionStorage.tab = sessionStorage.tab || 'mine'
p.textContent = [document.cookie, localStorage.visits, sessionStorage.tab].join(' ')</script>"""


def fill_in(site: Site) -> Calls:
    """Calls after which a browser has cookies, storage, two tabs and something written in fields."""
    site.pages |= {"/": STATE, "/in": (200, {"set-cookie": "who=anna; path=/"}, "in"), "/other": "<p>the other tab"}
    return [
        ("goto", {"url": f"{site.url}/in"}),
        ("goto", {"url": f"{site.url}/"}),
        ("fill", {"target": "#who", "text": "Anna"}),
        ("click", {"target": "#box"}),
        ("fill", {"target": "#word", "secret": "shop"}),
    ]


def check_restored(looked: str) -> None:
    assert 'textbox active = "Anna"' in looked or 'textbox = "Anna"' in looked
    assert "checkbox checked" in looked
    assert '"who=anna 2 mine"' in looked  # the page was loaded again, with its storage
    assert "secret shop" not in looked


@pytest.mark.rule("B-02", "B-04")
async def test_a_killed_browser_comes_back_with_its_state(site: Site) -> None:
    @gate(blocking=True)
    def kill() -> str:
        """Kill the browser."""
        for process in list_browsers(os.getpid()):
            os.kill(process, signal.SIGKILL)
        return "killed"

    calls: Calls = [*fill_in(site), ("kill", {}), ("look", {}), ("look", {})]
    cantrip = browsing(calls, [site.place], [kill], allow_private=True, secrets={"shop": "hunter2"})
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(cantrip, "Kill it.")
    crashed, looked = (turn.observation for turn in episode.thread[-3:-1])
    assert "the browser was opened again" in crashed + looked
    check_restored(looked)


@pytest.mark.rule("B-04")
async def test_an_entity_has_its_browser_again_in_another_runtime_and_in_a_fork(site: Site, tmp_path: Path) -> None:
    calls: Calls = [*fill_in(site), ("done", {"answer": "filled in"}), ("look", {})]
    cantrip = browsing(calls, [site.place], allow_private=True, secrets={"shop": "hunter2"})
    url = f"sqlite:{tmp_path}/loom.db"
    async with Runtime.open(url, cantrips=[cantrip]) as runtime:
        entity = await runtime.invoke(cantrip, "Fill in the form.", name="clerk")
        before = await entity.episode()
    async with Runtime.open(url, cantrips=[cantrip]) as runtime:
        entity = await runtime.ensure("clerk", cantrip)
        await entity.send("Look again.")
        looked = runtime.loom.turns(entity.id)[-2].observation
        assert "[the browser was opened again" in looked
        check_restored(looked)
        fork = await runtime.fork(before.thread[3].id, intent="Look at it.", crystal=scripted(LOOK))
        forked = next(turn for turn in fork.thread if turn.entity_id == fork.entity_id)
        assert 'textbox = "Anna"' in forked.observation
        assert "checkbox checked" in forked.observation
    assert "hunter2" not in "".join(path.read_bytes().decode("latin-1") for path in tmp_path.iterdir())


@pytest.mark.rule("B-04")
async def test_a_node_that_takes_over_an_entity_restores_its_tabs(site: Site, tmp_path: Path) -> None:
    calls: Calls = [*fill_in(site), ("done", {"answer": "filled in"}), ("look", {})]
    cantrip = browsing(calls, [site.place], allow_private=True, secrets={"shop": "hunter2"})
    url = f"sqlite:{tmp_path}/loom.db"
    async with Runtime.open(url, node=Node("first"), cantrips=[cantrip]) as first:
        entity = await first.invoke(cantrip, "Fill in the form.", name="clerk")
        await entity.episode()
        async with Runtime.open(url, node=Node("second"), cantrips=[cantrip]) as second:
            await first.drain(10)
            there = await second.ensure("clerk", cantrip)
            await there.send("Look again.", timeout=30)
            assert there.loaded
            looked = second.loom.turns(there.id)[-2].observation
    assert "[the browser was opened again" in looked
    check_restored(looked)


@pytest.mark.rule("B-04")
async def test_a_click_that_a_crash_cut_off_is_not_repeated_and_answered_with_a_look(site: Site) -> None:
    site.pages |= {"/": SHOP, "/order": "<p>It is on its way."}
    calls: Calls = [("goto", {"url": f"{site.url}/"}), ("click", {"target": "text=Buy"})]
    cantrip = browsing(calls, [site.place], allow_private=True)

    async def program(process: Process) -> Any:
        async with process.attach(Runtime.open("memory:", cantrips=[cantrip], recover="resume")) as runtime:
            return (await runtime.cast(cantrip, "Buy.", key="1")).thread[1].observation

    survived = await run_with_crashes(program, [Crash(gate="click", at="inside")])
    assert survived.value.startswith("outcome unknown")
    assert 'heading "Shop"' in survived.value
    assert [got.method for got in site.got].count("POST") <= 1


def offer_report(site: Site) -> Calls:
    """Calls that download a report."""
    attached = {"content-type": "text/csv", "content-disposition": "attachment; filename=report.csv"}
    site.pages |= {"/": "<h1>Reports</h1><a href=/report id=a>Get</a>", "/report": (200, attached, "a,b\n1,2\n")}
    return [("goto", {"url": f"{site.url}/"}), ("download", {"target": "#a"})]


@pytest.mark.rule("B-01")
async def test_an_entity_downloads_a_file_into_its_folder(site: Site, tmp_path: Path) -> None:
    calls = [*offer_report(site), ("download", {"target": "text=Get"}), ("download", {"target": "h1"})]
    _, saved, again, none = await browse(calls, [site.place], allow_private=True, downloads=tmp_path)
    assert saved.startswith('saved as "report.csv": 8 bytes\n')
    assert again.startswith('saved as "report-2.csv": 8 bytes\n')
    assert "no download began" in none
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "report.csv": "a,b\n1,2\n",
        "report-2.csv": "a,b\n1,2\n",
    }


@pytest.mark.rule("B-01")
def test_a_browser_without_a_folder_has_no_download() -> None:
    names = [made.name for made in browser(["docs.python.org"])]
    assert [made.name for made in browser(["docs.python.org"], downloads=".")] == [*names, "download"]
    assert "download" not in names


@pytest.mark.rule("B-01", "B-04")
async def test_a_download_that_a_crash_cut_off_is_not_repeated_and_leaves_no_part(site: Site, tmp_path: Path) -> None:
    cantrip = browsing(offer_report(site), [site.place], allow_private=True, downloads=tmp_path)

    async def program(process: Process) -> Any:
        async with process.attach(Runtime.open("memory:", cantrips=[cantrip], recover="resume")) as runtime:
            return (await runtime.cast(cantrip, "Get it.", key="1")).thread[1].observation

    survived = await run_with_crashes(program, [Crash(gate="download", at="inside")])
    assert survived.value.startswith("outcome unknown")
    assert 'heading "Reports"' in survived.value
    assert {path.name for path in tmp_path.iterdir()} <= {"report.csv"}


LOOK = [{"tool_calls": [{"gate": "look", "args": {}}]}, {"tool_calls": [{"gate": "done", "args": {"answer": "seen"}}]}]


PROGRAM = """
import sys, anyio
from tests.circle.browser.processes import is_running, list_browsers, list_descendants, read_command
from tests.circle.browser.site import browsing
from cantrip_actors import Runtime, gate

@gate
async def wait() -> None:
    "Wait."
    print("waiting", flush=True)
    await anyio.sleep(60)

async def main():
    async with Runtime.open("memory:") as runtime:
        calls = [("goto", {"url": sys.argv[1]}), ("wait", {})]
        await runtime.cast(browsing(calls, [sys.argv[2]], [wait], allow_private=True), "Wait.")

anyio.run(main, backend="trio")
"""


@pytest.mark.rule("B-02")
def test_no_process_of_a_browser_outlives_a_killed_runtime(site: Site) -> None:
    site.pages["/"] = SHOP
    command = [sys.executable, "-c", PROGRAM, site.url, site.place]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        started = list_descendants(process.pid)
        process.kill()
    assert any("chrom" in read_command(child) for child in started) or len(started) > 2

    async def wait_for_ends() -> None:
        with anyio.fail_after(10):
            while any(map(is_running, started)):
                await anyio.sleep(0.05)

    anyio.run(wait_for_ends)


@pytest.mark.rule("B-05")
def test_a_browser_counts_for_the_lethal_trifecta() -> None:
    @gate(risks=["private_data"])
    def diary() -> str:
        """Read the diary."""
        return ""

    with pytest.warns(LethalTrifecta, match="goto"):
        Circle(gates=["done", diary, *browser(["*"])], wards=[max_turns(3)])


@pytest.mark.rule("B-01")
@pytest.mark.parametrize(
    "allow",
    ["example.com", ["http://example.com"], ["exa mple"], [""], ["*.*"], ["host:x"], ["host:99999"], ["host:0"]],
)
def test_wrong_hosts_are_refused_when_the_circle_is_made(allow: Any) -> None:
    with pytest.raises(InvalidCantrip, match="browser: allow"):
        browser(allow)


@pytest.mark.rule("B-01")
async def test_a_program_walks_a_site(site: Site) -> None:
    site.pages |= {f"/{number}": f"<p>page {number}</p>" for number in range(3)}
    code = f"""
pages = [goto("{site.url}/" + str(number)) for number in range(3)]
done(len([page for page in pages if "page" in page]))
"""
    circle = Circle(gates=["done", *browser([site.place], allow_private=True)], wards=[max_turns(2)], medium="python")
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(
            Cantrip(crystal=scripted([{"content": f"```python\n{code}```"}]), circle=circle), "Walk."
        )
    assert episode.result == 3
    assert site.paths() == ["/0", "/1", "/2"]
