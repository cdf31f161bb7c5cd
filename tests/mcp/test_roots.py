"""The folders that a server is told of: those of the circle's file gates, and of no other circle."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, InvalidCantrip, Runtime, scripted
from cantrip_actors.acp.editor import Capabilities, Editor
from cantrip_actors.gates import read, write
from cantrip_actors.mcp import http, inproc, stdio
from cantrip_actors.wards import max_turns, remove_gate
from tests.mcp.test_gates import ERAS, seen, servers_of
from tests.mcp.tools import tools
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("MCP-21")


def asking(server: Any, *gates: Any, wards: Any = ()) -> Cantrip:
    says = [say("t__folders"), done("ok")] * 2
    return Cantrip(scripted(says), circle=Circle(["done", server, *gates], [max_turns(9), *wards]))


async def told(cantrip: Cantrip) -> tuple[Any, bool]:
    async with Runtime.open() as runtime:
        return seen(await runtime.cast(cantrip, "go"))[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_that_asks_for_roots_gets_the_folders_of_the_file_gates(era: Any, tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    gates = read.with_(root=tmp_path), write.with_(root=tmp_path / "a b")
    wanted = f"{tmp_path.as_uri()} {(tmp_path / 'a b').as_uri()}"
    assert await told(asking(inproc("t", tools(), era=era), *gates)) == (wanted, False)


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_of_a_circle_without_folders_gets_no_roots(era: Any, tmp_path: Path) -> None:
    _, is_error = await told(asking(inproc("t", tools(), era=era)))
    assert is_error
    circle = asking(inproc("t", tools(), era=era), read.with_(root=tmp_path), wards=[remove_gate("read")])
    assert (await told(circle))[1]
    assert (await told(asking(inproc("t", tools(), era=era, roots=[]), read.with_(root=tmp_path))))[1]


async def test_roots_are_those_that_the_user_names(tmp_path: Path) -> None:
    server = inproc("t", tools(), roots=[tmp_path / "x"])
    assert await told(asking(server, read.with_(root=tmp_path))) == ((tmp_path / "x").as_uri(), False)


@pytest.mark.rule("MCP-06")
async def test_entities_with_other_folders_have_a_connection_of_their_own(tmp_path: Path) -> None:
    server, folders = inproc("t", tools()), [tmp_path / "a", tmp_path / "b", tmp_path / "b"]
    async with Runtime.open() as runtime:
        entities = [await runtime.invoke(asking(server, read.with_(root=one)), "go") for one in folders]
        heard = [seen(await entity.episode())[0][0] for entity in entities]
        assert heard == [one.as_uri() for one in folders]
        assert len(servers_of(runtime)) == 2
        for entity in entities:
            await entity.stop()
        await anyio.sleep(1)
        assert not servers_of(runtime)


def test_a_server_behind_a_url_gets_named_folders_only(tmp_path: Path) -> None:
    def roots(**options: Any) -> Any:
        circle = Circle(["done", http("t", "https://example.org/mcp", risks=[], **options), read.with_(root=tmp_path)])
        return circle.servers[0].told_roots

    assert roots() == ()
    assert roots(roots=[tmp_path]) == (str(tmp_path),)


def test_folders_of_gates_do_not_change_the_content_id(tmp_path: Path) -> None:
    def made(root: Path, **options: Any) -> str:
        circle = Circle(["done", stdio("t", "x", **options), read.with_(root=root)], [max_turns(1)])
        return Cantrip(scripted([done("ok")]), circle=circle).id

    assert made(tmp_path) == made(tmp_path / "b")
    assert made(tmp_path) != made(tmp_path, roots=[])


def test_roots_that_are_not_a_list_are_refused() -> None:
    with pytest.raises(InvalidCantrip, match="roots: expected a list of folders, got 'x'"):
        stdio("t", "x", roots="x")


def test_servers_of_a_session_get_its_folders(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "recipe", (tmp_path / "one", tmp_path / "two")
    given: Any = None
    editor = Editor(given, Capabilities(), "s", theirs[0], theirs[1:], [stdio("e", "x")])

    def roots(*gates: Any) -> Any:
        cantrip = Cantrip(scripted([done("ok")]), circle=Circle(["done", stdio("r", "x"), *gates], [max_turns(1)]))
        return [one.told_roots for one in editor.lend(cantrip, terminal=False).circle.servers]

    assert roots(read.with_(root=ours)) == [tuple(map(str, theirs))] * 2
    assert roots() == [()] * 2
