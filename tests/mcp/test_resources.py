"""What a server has beside tools: its resources, which two gates list and read."""

from typing import Any

import pytest
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import (
    METHOD_NOT_FOUND,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    TextResourceContents,
)

from cantrip_actors import Cantrip, Circle, Runtime, gate, scripted
from cantrip_actors.mcp import ToolServerError, inproc
from cantrip_actors.mcp.resources import FIRST, READ, RESOURCES
from cantrip_actors.terms.tool_server import ListedTools, Tool, read_listed
from cantrip_actors.wards import max_turns
from tests.mcp.tools import PIXEL
from tests.runtime.spells import done, say

ERAS = ["modern", "handshake"]


def library() -> MCPServer:
    server = MCPServer("library")

    @server.tool()
    def lend(title: str) -> str:
        """Lend a book."""
        return title

    @server.resource("book://one", name="One", description="The first book.", mime_type="text/plain")
    def one() -> str:
        return "Once upon a time."

    @server.resource("book://cover", mime_type="image/png")
    def cover() -> bytes:
        return PIXEL

    @server.resource("book://data", mime_type="image/x-unknown")
    def data() -> bytes:
        return b"\x00\x01"

    @server.resource("book://{number}/page")
    def page(number: str) -> str:
        return f"page {number}"

    return server


def spell(*says: Any, server: Any, more: Any = (), **parts: Any) -> Cantrip:
    return Cantrip(scripted([*says, done("ok")]), circle=Circle(["done", server, *more], [max_turns(9)], **parts))


async def seen(*says: Any, server: Any) -> list[Any]:
    async with Runtime.open() as runtime:
        outcome = await runtime.cast(spell(*says, server=server), "go")
    return [one for turn in outcome.thread for one in turn.observations][:-1]


async def gates_with(server: Any) -> list[str]:
    async with Runtime.open() as runtime:
        outcome = await runtime.cast(spell(server=server), "go")
        return [one["name"] for one in runtime.loom.header(outcome.entity_id).circle["gates"]]


@pytest.mark.rule("MCP-18")
@pytest.mark.parametrize("era", ERAS)
async def test_resources_are_listed_and_read_through_two_gates(era: Any) -> None:
    says = say("b__resources"), say("b__read", uri="book://one"), say("b__read", uri="book://7/page")
    listed, text, page = await seen(*says, server=inproc("b", library(), era=era))
    first, *_, template = listed.result["resources"]
    assert first == {"uri": "book://one", "name": "One", "description": "The first book.", "type": "text/plain"}
    assert template["uriTemplate"] == "book://{number}/page"
    assert "next" not in listed.result
    assert (text.result, page.result) == ("Once upon a time.", "page 7")


@pytest.mark.rule("MCP-18")
async def test_a_resource_that_is_a_picture_is_an_image_of_the_observation() -> None:
    (read,) = await seen(say("b__read", uri="book://cover"), server=inproc("b", library()))
    assert [image.media_type for image in read.images] == ["image/png"]


@pytest.mark.rule("MCP-18")
async def test_bytes_that_an_entity_cannot_have_are_described() -> None:
    (read,) = await seen(say("b__read", uri="book://data"), server=inproc("b", library()))
    assert "a file of the type image/x-unknown that cannot be shown" in read.result
    assert not read.is_error


@pytest.mark.rule("MCP-18")
@pytest.mark.parametrize("era", ERAS)
async def test_an_unknown_resource_is_an_error_observation(era: Any) -> None:
    (read,) = await seen(say("b__read", uri="book://none"), server=inproc("b", library(), era=era))
    assert read.is_error
    assert "book://none" in read.result


@pytest.mark.rule("MCP-18")
async def test_a_server_without_resources_has_neither_gate() -> None:
    assert await gates_with(inproc("b", MCPServer("bare"))) == ["done"]


@pytest.mark.rule("MCP-18")
async def test_the_gates_for_resources_are_chosen_like_tools() -> None:
    assert await gates_with(inproc("b", library())) == ["done", "b__lend", "b__read", "b__resources"]
    assert await gates_with(inproc("b", library(), only=["read"])) == ["done", "b__read"]
    assert await gates_with(inproc("b", library(), only=["lend"])) == ["done", "b__lend"]


@pytest.mark.rule("MCP-07", "MCP-18")
async def test_a_tool_that_is_called_read_clashes_until_the_tools_are_named() -> None:
    server = library()

    def read(text: str) -> str:
        return f"the tool read {text}"

    server.add_tool(read, structured_output=False)
    told = r"its tool 'read' and the gate for its resources .* the gate b__read: .* only=\[\"lend\", \"read\"\]$"
    with pytest.raises(ToolServerError, match=told):
        await gates_with(inproc("b", server))
    assert await gates_with(inproc("b", server, only=["lend", "read"])) == ["done", "b__lend", "b__read"]
    (read_by_tool,) = await seen(say("b__read", text="x"), server=inproc("b", server, only=["read"]))
    assert read_by_tool.result == "the tool read x"


@pytest.mark.rule("MCP-07", "MCP-18")
async def test_a_gate_of_the_circle_that_is_called_like_one_for_resources_is_refused() -> None:
    @gate(name="b__read")
    def read() -> None:
        """Read."""

    async with Runtime.open() as runtime:
        with pytest.raises(ToolServerError, match='two gates are called "b__read"'):
            await runtime.cast(spell(server=inproc("b", library()), more=[read]), "go")


@pytest.mark.rule("MCP-08", "MCP-18")
async def test_an_entity_keeps_its_gates_for_resources_and_a_pin_covers_them(tmp_path: Any) -> None:
    loom, server = f"sqlite:{tmp_path}/loom.db", library()
    says = done("hi"), say("b__read", uri="book://one"), done("ok")
    cantrip = Cantrip(scripted([*says]), circle=Circle(["done", inproc("b", server)], [max_turns(9)]))
    async with Runtime.open(loom) as runtime:
        entity = await runtime.invoke(cantrip, "hello", name="reader")
        await entity.result()
        digest = runtime.loom.header(entity.id).circle["servers"][0]["digest"]
    async with Runtime.open(loom, cantrips=[cantrip]) as runtime:
        outcome = await runtime.entity("reader").send("go on")
        assert "Once upon a time." in [one.result for turn in outcome.thread for one in turn.observations]
        bare = MCPServer("library")
        bare.add_tool(lambda title: title, name="lend", description="Lend a book.")
        with pytest.raises(ToolServerError, match="other tools than the pinned ones"):
            await runtime.cast(spell(server=inproc("b", bare, pin=digest)), "go")


@pytest.mark.rule("MCP-08", "MCP-18")
def test_a_header_keeps_the_tools_of_a_server_and_its_gates_for_resources() -> None:
    server = inproc("b", library())
    listed = ListedTools.of(server, [Tool("lend", "", {"type": "object"}), RESOURCES, READ])
    recorded = listed.as_json(server)
    assert [tool["name"] for tool in recorded["tools"]] == ["lend", "read", "resources"]
    recorded["tools"][0]["icons"] = ["a field of a later version"]
    assert read_listed({"servers": [recorded]}, server) == listed


@pytest.mark.rule("MCP-17", "MCP-18")
async def test_programs_read_resources_through_the_same_gates() -> None:
    program = 'done(b__read(b__resources()["resources"][0]["uri"]))'
    circle = Circle(["done", inproc("b", library())], [max_turns(5)], "python")
    async with Runtime.open() as runtime:
        outcome = await runtime.cast(Cantrip(scripted([{"code": program}]), circle=circle), "go")
    assert outcome.result == "Once upon a time."


def shelves(pages: int, each: int) -> Server[Any]:
    """Return a server of so many pages of resources, whose cursors are the numbers of pages."""

    async def listed(_: Any, params: Any) -> ListResourcesResult:
        number = int(params.cursor or 0) if params is not None else 0
        found = [Resource(uri=f"book://{number}/{one}", name="A book") for one in range(each)]
        return ListResourcesResult(resources=found, next_cursor=str(number + 1) if number + 1 < pages else None)

    return Server("shelves", on_list_resources=listed)


@pytest.mark.rule("MCP-18")
@pytest.mark.parametrize(("pages", "each"), [(1, 250), (5, 50), (3, 70)])
async def test_resources_are_listed_a_hundred_at_a_time(pages: int, each: int) -> None:
    server = inproc("b", shelves(pages, each))
    found: list[str] = []
    sizes: list[int] = []
    cursor: dict[str, str] | None = {}
    async with Runtime.open() as runtime:
        while cursor is not None:
            outcome = await runtime.cast(spell(say("b__resources", **cursor), server=server), "go")
            result = outcome.thread[0].observations[0].result
            found += [one["uri"] for one in result["resources"]]
            sizes.append(len(result["resources"]))
            cursor = {"cursor": result["next"]} if "next" in result else None
    assert found == [f"book://{page}/{one}" for page in range(pages) for one in range(each)]
    assert max(sizes) <= 100
    assert len(sizes) <= 4


@pytest.mark.rule("MCP-18")
def test_a_list_of_resources_that_ends_with_an_empty_cursor_is_followed_by_the_templates() -> None:
    _, place = FIRST.take(ListResourcesResult(resources=[], next_cursor=""), 100)
    assert place == FIRST._replace(kind="template")
    assert place.take(ListResourceTemplatesResult(resource_templates=[], next_cursor=""), 100) == ([], None)


@pytest.mark.rule("MCP-18")
async def test_a_list_without_an_end_is_asked_for_ten_pages_at_most() -> None:
    asked: list[Any] = []

    async def listed(_: Any, params: Any) -> ListResourcesResult:
        asked.append(params)
        found = [Resource(uri="book://one", name="One")] if len(asked) == 1 else []
        return ListResourcesResult(resources=found, next_cursor="again")

    (result,) = await seen(say("b__resources"), server=inproc("b", Server("endless", on_list_resources=listed)))
    assert result.result["next"] == "resources 0 again"
    assert len(asked) <= 20


@pytest.mark.rule("MCP-18")
async def test_a_cursor_that_was_never_given_is_an_error_observation() -> None:
    (result,) = await seen(say("b__resources", cursor="x"), server=inproc("b", library()))
    assert result.is_error
    assert "b__resources: cursor: expected `next` of the result before" in result.result


@pytest.mark.rule("MCP-18")
async def test_a_server_that_refuses_to_list_its_resources_keeps_its_tools() -> None:
    async def refuse(_: Any, __: Any) -> ListResourcesResult:
        raise MCPError(METHOD_NOT_FOUND, "not yet")

    assert await gates_with(inproc("b", Server("closed", on_list_resources=refuse))) == ["done"]


def strange(answers: list[Any]) -> Server[Any]:
    async def listed(_: Any, __: Any) -> ListResourcesResult:
        return ListResourcesResult(resources=[Resource(uri="book://one", name="One")])

    async def read(_: Any, params: Any) -> Any:
        answer = answers.pop(0)
        return answer(params) if callable(answer) else answer

    return Server("strange", on_list_resources=listed, on_read_resource=read)


@pytest.mark.rule("MCP-18")
async def test_a_result_of_an_unknown_type_is_an_error_observation() -> None:
    contents: list[Any] = [TextResourceContents(uri="book://one", text="later")]
    server = strange([ReadResourceResult(contents=contents, result_type="task")])
    (result,) = await seen(say("b__read", uri="book://one"), server=inproc("b", server))
    assert result.is_error
    assert "a result of the type task" in result.result


@pytest.mark.rule("MCP-09", "MCP-18")
async def test_a_server_may_ask_a_person_before_it_shows_a_resource() -> None:
    form = {"type": "object", "properties": {"why": {"type": "string"}}, "required": ["why"]}
    asked = ElicitRequest(params=ElicitRequestFormParams(message="Why?", requested_schema=form))

    def show(params: Any) -> ReadResourceResult:
        why = params.input_responses["why"].content["why"]
        return ReadResourceResult(contents=[TextResourceContents(uri="book://one", text=f"since {why}")])

    async def answer(_: Any) -> dict[str, Any]:
        return {"why": "I can"}

    server = strange([InputRequiredResult(input_requests={"why": asked}, request_state="1"), show])
    (result,) = await seen(say("b__read", uri="book://one"), server=inproc("b", server, elicit=answer))
    assert result.result == "since I can"
