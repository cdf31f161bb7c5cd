"""`cantrip top`: on terminals of two sizes, without one, on a loom and on a service; and the terminal afterwards."""

import json
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from fcntl import ioctl
from pathlib import Path
from typing import Any

import anyio
import pyte
import pytest
from anyio import to_thread
from rich.cells import cell_len
from typer.testing import CliRunner

from cantrip_actors import Cantrip, Circle, ProviderError, Request, Retry, Runtime, ask_first, open_loom, scripted
from cantrip_actors.cli.app import app
from cantrip_actors.cli.errors import Unreachable
from cantrip_actors.cli.service import ServiceClient
from cantrip_actors.cli.top import LoomSource, ServiceSource
from cantrip_actors.cli.top_screen import TopSelections, screen
from cantrip_actors.crystals import Breaker, limited
from cantrip_actors.observe import Telemetry
from cantrip_actors.observe.overview import Overview
from cantrip_actors.runtime.circles.gates_actor import GatesActor
from cantrip_actors.wards import max_turns
from tests.drawings import folder_for, screen_svg
from tests.forked import COMMAND, Forked
from tests.http.serving import ADMIN, echo, served
from tests.observe.test_metrics import look
from tests.runtime.spells import cantrip, done, say

pytestmark = pytest.mark.rule("LOG-07")

HOSTILE = "a\x1b[2J\u202eevil\nforged\r\x07" + "宽" * 200


def fill(url: str) -> None:
    """Write a loom with entities that ended, that wait, and that have a hostile name."""

    async def write() -> None:
        async with Runtime.open(url) as runtime:
            for n in range(40):
                await runtime.cast(cantrip([say("echo", text="x"), done(n)], name=f"worker {n}"), "go")
            spell = Cantrip(scripted([done(1)]), circle=Circle(["done"], [max_turns(3)]), name="hostile")
            object.__setattr__(spell, "name", HOSTILE[:100])  # such names are refused, but older looms have them
            await runtime.cast(spell, HOSTILE)
            await runtime.start(cantrip([say("look"), done(1)], ask_first(look), name="asking"), "go")
            await anyio.sleep(0.3)

    anyio.run(write)


@pytest.fixture(scope="module")
def loom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("top") / "loom.db"
    fill(f"sqlite:{path}")
    return path


class Pty:
    """A command in a terminal, and the screen that it draws."""

    def __init__(self, code: str, arguments: tuple[str, ...], columns: int, rows: int) -> None:
        self.ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs  # kept open, to look at the settings afterwards
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.bytes = b""
        self.process = Forked(
            code,
            *arguments,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "", "LINES": ""},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )

    def read(self, seconds: float = 0.05) -> None:
        ends = time.monotonic() + 1
        while time.monotonic() < ends and select.select([self.ours], [], [], seconds)[0]:
            try:
                piece = os.read(self.ours, 65536)
            except OSError:
                return
            self.bytes += piece
            self._stream.feed(piece)

    def wait_for(self, text: str) -> list[str]:
        ends = time.monotonic() + 40
        while time.monotonic() < ends:
            self.read()
            if any(text in line for line in self.screen.display):
                return list(self.screen.display)
        pytest.fail(f"{text!r} is not on the screen:\n" + "\n".join(self.screen.display))

    def wait_without(self, text: str) -> None:
        ends = time.monotonic() + 40
        while any(text in line for line in self.screen.display):
            assert time.monotonic() < ends, f"{text!r} is still on the screen"
            self.read()

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def end(self) -> int:
        ends = time.monotonic() + 40
        while self.process.poll() is None and time.monotonic() < ends:
            self.read()
        self.read()
        return self.process.wait(10)

    @property
    def is_restored(self) -> bool:
        return termios.tcgetattr(self._theirs) == self.before and self.bytes.rfind(b"\x1b[?1049l") > self.bytes.rfind(
            b"\x1b[?1049h"
        )

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self._theirs)


@contextmanager
def on_terminal(*arguments: str, columns: int = 80, rows: int = 24, code: str = COMMAND) -> Iterator[Pty]:
    shown = Pty(code, arguments, columns, rows)
    try:
        yield shown
    finally:
        shown.close()


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 50)])
def test_a_screen_fits_and_reacts_to_keys_and_q_restores_the_terminal(loom: Path, columns: int, rows: int) -> None:
    with on_terminal("top", "--loom", f"sqlite:{loom}", columns=columns, rows=rows) as shown:
        shown.wait_for("worker 39")
        lines = shown.wait_for("q quit")  # the last line is drawn last
        assert lines[0].startswith("cantrip top")
        assert "q quit" in lines[-1]
        shown.press("s")
        shown.wait_for("by state")
        shown.press("fworker 7\r")
        shown.wait_for("filter 'worker 7'")
        shown.wait_without("worker 39")
        shown.press("\x1b[B")
        shown.wait_for("> ")
        shown.press("\r")
        shown.wait_for("turn 2")
        shown.press("\x1b")
        shown.wait_for("1 entities by")
        shown.press("i")
        shown.wait_for("this is a loom")
        shown.press("p")
        shown.wait_for("paused")
        shown.press("q")
        assert shown.end() == 0
        assert shown.is_restored


def test_ctrl_c_ends_top_and_restores_the_terminal(loom: Path) -> None:
    with on_terminal("top", "--loom", f"sqlite:{loom}") as shown:
        shown.wait_for("q quit")
        shown.press("\x03")
        assert shown.end() == 130
        assert shown.is_restored


def test_top_does_not_close_a_loom_while_a_thread_reads_it(loom: Path) -> None:
    looks = loom.with_name("looks")
    code = (
        "import sys, time; from pathlib import Path; from cantrip_actors.observe import overview\n"
        "read = overview.Overview.look\n"
        f"looks = Path({str(looks)!r})\n"
        "def look(self):\n"
        "    seen = read(self)\n"
        "    if looks.exists():\n"
        "        looks.write_text('second'); time.sleep(1); read(self); looks.write_text('read')\n"
        "    looks.touch()\n"
        "    return seen\n"
        "overview.Overview.look = look\n"
        "from cantrip_actors.cli.main import main\n"
        f"sys.argv = ['cantrip', 'top', '--interval', '0.1', '--loom', 'sqlite:{loom}']; main()"
    )
    with on_terminal(code=code) as shown:
        while not (looks.exists() and looks.read_text() == "second"):
            time.sleep(0.02)
        shown.press("\x03")
        assert shown.end() == 130
    assert looks.read_text() == "read"


def test_a_crash_of_top_restores_the_terminal(loom: Path) -> None:
    code = (
        "from cantrip_actors.cli import top, main\n"
        "def crash(self, key):\n"
        "    raise ZeroDivisionError('a bug')\n"
        "top._Screen._press = crash\n"
        f"main.main(['top', '--loom', {f'sqlite:{loom}'!r}])\n"
    )
    with on_terminal(code=code) as shown:
        shown.wait_for("q quit")
        shown.press("x")
        assert shown.end() != 0
        assert shown.is_restored
        assert b"ZeroDivisionError" in shown.bytes


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (20, 5), (1, 1)])
def test_no_line_is_longer_than_the_screen_and_nothing_moves_the_cursor(loom: Path, size: tuple[int, int]) -> None:
    width, height = size
    with open_loom(f"sqlite:{loom}", read_only=True) as opened:
        overview = Overview(opened).look()
    overview["requests"] = [{"id": "x", "entity": "y", "gate": HOSTILE, "text": HOSTILE, "asked_at": ""}] * 50
    actors = {HOSTILE: {"up": 3, "restarts": 2, "mailbox_max": 9}}
    crystals = {HOSTILE: {"running": 1, "waiting": 2, "paused": 3, "breaker": 2}}
    overview["live"] = {"restarts": 2, "crashes": 1, "backlog": 0, "lag": 0.001, "actors": actors, "crystals": crystals}
    for detail in (None, [HOSTILE] * 100):
        view = TopSelections(
            HOSTILE, filter="", can_act=True, detail=detail, note=HOSTILE, selected=overview["entities"][3]["id"]
        )
        if detail:
            view.request = Request("x", "approval", "y", "t", "c", HOSTILE, {HOSTILE: HOSTILE}, HOSTILE, None, "", None)
        lines = screen(overview, view, width, height)
        assert len(lines) == height
        assert all(cell_len(line.plain) <= width for line in lines)
        assert not [sign for line in lines for sign in line.plain if sign < " " or sign in "\u202e\x7f"]


@pytest.mark.real_time
async def test_top_shows_the_same_for_a_loom_and_a_service(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    telemetry = Telemetry(otel=False)
    async with served([echo()], url, options={"telemetry": telemetry}, telemetry=telemetry) as on:
        await on.post("casts", {"cantrip": "echo", "intent": "hi", "wait": 5}, 200)
        await on.post("casts", {"cantrip": "echo", "intent": "pay 3"}, 201)
        while not (await on.get("requests"))["items"]:
            await anyio.sleep(0.02)
        with closing(ServiceClient(on.url, ADMIN)) as service:
            source = ServiceSource(service)
            from_service = await to_thread.run_sync(source.look)
        with open_loom(url, read_only=True) as opened:
            from_loom = await to_thread.run_sync(LoomSource(opened, url).look)
    for part in ("totals", "entities", "requests"):
        assert from_service[part] == from_loom[part]
    assert from_service["totals"]["states"] == {"terminated": 1, "waiting": 1}
    assert from_service["entities"][0]["tokens"] == 10
    assert from_service["live"]["actors"]["entity"]["up"] == 1
    assert "live" not in from_loom


@pytest.mark.real_time
async def test_once_prints_the_same_json_for_a_loom_and_for_its_service(tmp_path: Path) -> None:
    async def printed(*arguments: str) -> Any:
        environment = {**os.environ, "CANTRIP_TOKEN": ADMIN}
        top = Forked(COMMAND, "top", "--once", "--json", *arguments, env=environment, stdout=subprocess.PIPE, text=True)
        out, _ = await to_thread.run_sync(top.communicate)
        return json.loads(out)

    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with served([echo()], url) as on:
        await on.post("casts", {"cantrip": "echo", "intent": "hi", "wait": 5}, 200)
        await on.post("casts", {"cantrip": "echo", "intent": "pay 3"}, 201)
        while not (await on.get("requests"))["items"]:
            await anyio.sleep(0.02)
        from_service, from_loom = await printed("--url", on.url), await printed("--loom", url)
    assert from_service.keys() == from_loom.keys() == {"at", "totals", "entities", "requests"}
    for part in ("totals", "entities", "requests"):
        assert from_service[part] == from_loom[part]


@pytest.mark.real_time
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 50)])
async def test_keys_on_a_terminal_decide_steer_interrupt_and_stop(columns: int, rows: int) -> None:
    def drive(url: str) -> tuple[int, bool]:
        with on_terminal("top", "--url", url, "--token", ADMIN, columns=columns, rows=rows) as shown:
            for name, keys, said in (
                ("one", "a", "│ amount: 1"),
                ("one", "y\r", "allow is done"),
                ("two", "dtoo much\r", "deny is done"),
                ("nap", "thurry\r", "steer is done"),
                ("nap", "kn\r", "filter 'nap'"),
                ("nap", "i", "interrupt is done"),
                ("nap", "ky\r", "stop is done"),
            ):
                if keys[0] != "y":  # which answers the question that is shown
                    shown.wait_for("q quit")
                    shown.press(f"f{name}\r")
                    shown.wait_for(f"filter '{name}'")
                    shown.press("\x1b[B")
                    shown.wait_for("> ")
                shown.press(keys)
                shown.wait_for(said)
                if said[0] != "│":
                    shown.press("\x1b")  # takes the note away
            shown.press("q")
            return shown.end(), shown.is_restored

    async with served([echo()]) as on:
        made = {
            name: (await on.post("entities", {"cantrip": "echo", "intent": intent, "name": name}, 201))["entity_id"]
            for name, intent in (("one", "pay 1"), ("two", "pay 2"), ("nap", "nap 60"))
        }
        while len((await on.get("requests"))["items"]) < 2:
            await anyio.sleep(0.02)
        assert await to_thread.run_sync(drive, on.url) == (0, True)
        turns = {name: json.dumps((await on.get(f"entities/{one}/turns"))["items"]) for name, one in made.items()}
        state = (await on.get(f"entities/{made['nap']}"))["state"]
    assert "paid 1" in turns["one"]
    assert "too much" in turns["two"]
    assert "paid 2" not in turns["two"]
    assert state == "cancelled"


def test_the_turns_of_an_entity_that_cannot_be_read_are_a_note(loom: Path) -> None:
    with (
        open_loom(f"sqlite:{loom}", read_only=True) as opened,
        pytest.raises(Unreachable, match="entity gone is not in this loom"),
    ):
        LoomSource(opened, "here").turns("gone")


@asynccontextmanager
async def closing_source(url: str) -> AsyncIterator[ServiceSource]:
    with closing(ServiceClient(url, ADMIN)) as service:
        source = ServiceSource(service)
        yield source


@pytest.mark.real_time
async def test_keys_change_entities_of_a_service() -> None:
    async with served([echo()]) as on, closing_source(on.url) as source:
        begun = await on.post("casts", {"cantrip": "echo", "intent": "pay 3"}, 201)
        napping = await on.post("casts", {"cantrip": "echo", "intent": "nap 60"}, 201)

        async def act(what: str, entity: str, text: str = "") -> Any:
            arguments = (entity, text) if text else (entity,)
            return await to_thread.run_sync(getattr(source, what), *arguments)

        while not (await on.get("requests"))["items"]:
            await anyio.sleep(0.02)
        request = await to_thread.run_sync(source.find_request, begun["entity_id"])
        assert request is not None
        assert request.args == {"amount": 3}
        assert "is done" in await to_thread.run_sync(source.decide, request, "allow", "")
        assert await to_thread.run_sync(source.find_request, napping["entity_id"]) is None
        await act("steer", napping["entity_id"], "hurry")
        await act("stop", napping["entity_id"])
        assert (await on.get(f"entities/{napping['entity_id']}"))["state"] == "cancelled"
        turns: list[str] = []
        while "paid 3" not in "".join(turns):
            await anyio.sleep(0.02)
            turns = await to_thread.run_sync(source.turns, begun["entity_id"])


def test_without_a_terminal_it_prints_one_frame(loom: Path) -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    with Forked(COMMAND, "top", "--loom", f"sqlite:{loom}", text=True, **pipes) as top:
        out, _ = top.communicate(timeout=60)
    assert top.returncode == 0
    assert out.startswith("cantrip top  20")
    assert "worker 0" in out
    assert "waiting for a person: 1" in out


async def test_an_overview_reads_only_new_records() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip(lambda _: done(1)), "one", name="mine")
        await entity.episode()
        overview = Overview(runtime.loom)
        assert overview.look()["entities"][0]["turns"] == 1
        await entity.send("two")
        told = overview.look()
        usage = runtime.loom.usage(entity.id)
    (row,) = told["entities"]
    assert (row["turns"], row["name"], row["state"], row["tokens"]) == (2, "mine", "idle", usage.total_tokens)
    assert told["totals"]["turns_per_minute"] == 2


@pytest.mark.rule("L-04")
def test_a_screen_says_done_for_entities_that_are_done_and_finds_them_by_that_word(loom: Path) -> None:
    with open_loom(f"sqlite:{loom}", read_only=True) as opened:
        overview = Overview(opened).look()
    view = TopSelections("loom.db", filter="done")
    lines = [line.plain for line in screen(overview, view, 80, 24)]
    assert any("✓ done" in line for line in lines)
    assert not any("terminated" in line for line in lines)
    assert len(view.shown) == overview["totals"]["states"]["terminated"]


def test_a_screen_of_eighty_columns_has_all_keys_and_all_figures_of_a_service(loom: Path) -> None:
    with open_loom(f"sqlite:{loom}", read_only=True) as opened:
        overview = Overview(opened).look()
    overview["live"] = {"restarts": 2, "crashes": 1, "backlog": 7, "lag": 0.001, "actors": {}, "crystals": {}}
    lines = [line.plain for line in screen(overview, TopSelections("http://127.0.0.1:8000", can_act=True), 80, 24)]
    assert lines[-1].endswith("q quit")
    assert "2 restarts  1 crashes  event loop 1.0 ms late  loom backlog 7" in lines


@pytest.mark.real_time
@pytest.mark.rule("LOG-05")
async def test_the_command_line_prints_the_tree_and_the_crash_reports_of_a_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, crashes = GatesActor.handle_call, iter([True])

    async def crash_once(self: Any, message: Any, caller: Any) -> Any:
        if "nap" in str(message) and next(crashes, False):
            raise RuntimeError("the bed broke")
        return await whole(self, message, caller)

    async def command(*arguments: str) -> str:
        made = [*arguments, "--url", on.url, "--token", ADMIN]
        ended = await to_thread.run_sync(lambda: CliRunner().invoke(app, made))
        assert ended.exit_code == 0, ended.output
        return ended.output

    monkeypatch.setattr(GatesActor, "handle_call", crash_once)
    telemetry = Telemetry(otel=False)
    async with served([echo()], options={"telemetry": telemetry}, telemetry=telemetry) as on:
        begun = await on.post("entities", {"cantrip": "echo", "intent": "nap 0.01", "name": "bob"}, 201)
        while not (await on.get(f"entities/{begun['entity_id']}"))["episode"]:
            await anyio.sleep(0.02)
        tree = await command("system")
        assert tree.splitlines()[:2] == ["root  Supervisor", "  runtime  Supervisor"]
        (entity,) = [line.strip() for line in tree.splitlines() if "EntityActor" in line]
        assert entity.startswith(f"{begun['entity_id']}  EntityActor  1 restart  crash: ")
        assert "RuntimeError: the bed broke" in entity
        rows, known = json.loads(await command("system", "--json"))["items"], (await on.get("system"))["items"]
        assert [(row["path"], row["restarts"]) for row in rows] == [(row["path"], row["restarts"]) for row in known]
        facts = {line.split()[0]: line.split(maxsplit=1)[1] for line in tree.splitlines() if not line.startswith(" ")}
        assert facts["loom"] == "memory:  durability none  backlog 0"
        assert (facts["requests"], facts["readers"]) == ("0 open", "events 0  upserts 1  requests 0  http 0")
        assert any(line.startswith("counter  cantrip.supervisor.restarts 1 ") for line in tree.splitlines())
        assert "the bed broke" in await command("crashes")
        report = next(one for one in telemetry.crashes if one["actor"] == "circle")
        assert "RuntimeError: the bed broke" in await command("crashes", report["id"])


class Down:
    """A provider that is down."""

    name = "anthropic:claude-sonnet-4-5"

    async def invoke(self, _: object) -> object:
        raise ProviderError("overloaded", status=503)


@pytest.mark.real_time
async def test_a_low_screen_shows_an_open_breaker_and_restarts_before_healthy_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`PICTURES=1` writes the picture of docs/alarms.md."""
    whole, crashes = GatesActor.handle_call, iter([True])

    async def crash_once(self: Any, message: Any, caller: Any) -> Any:
        if "nap" in str(message) and next(crashes, False):
            raise RuntimeError("the bed broke")
        return await whole(self, message, caller)

    monkeypatch.setattr(GatesActor, "handle_call", crash_once)
    down = limited(Down(), breaker=Breaker(failures=1, open_for=600))
    writer = Cantrip(down, circle=Circle(["done"], [max_turns(5)]), name="writer", retry=Retry(max_retries=0))
    telemetry = Telemetry(otel=False)
    async with served([echo(), writer], options={"telemetry": telemetry}, telemetry=telemetry) as on:
        for intent in ("hello", "nap 0.01", "pay 3"):
            await on.post("entities", {"cantrip": "echo", "intent": intent, "name": intent.split()[0]}, 201)
        await on.post("casts", {"cantrip": "writer", "intent": "Write the report"}, 201)
        with closing(ServiceClient(on.url, ADMIN)) as service:
            source = ServiceSource(service)
            overview: Any = {}
            while len(overview.get("requests", ())) < 1 or overview["totals"]["states"].get("active"):
                await anyio.sleep(0.02)
                overview = await to_thread.run_sync(source.look)
    shown = screen(overview, TopSelections("http://127.0.0.1:8000", can_act=True), 92, 24)
    picture = screen_svg(shown, 92)
    (folder_for(tmp_path) / "top.svg").write_text(picture, encoding="utf-8")
    lines = [line.plain for line in shown]
    at = lines.index("supervision")
    assert lines[at + 1].strip() == "anthropic:claude-sonnet-4-5  0 running, 0 waiting  breaker open"
    assert lines[at + 2].endswith("1 restart")
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "").replace("http://127.0.0.1:8000", "")
    assert "breaker" in picture
