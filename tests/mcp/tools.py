"""A server of tools, for the tests: as an object, and as a program with `python -m tests.mcp.tools`."""

import os
import warnings
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import (
    CallToolResult,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
    ToolAnnotations,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c63f8cfc0f01f0005000"
    "1ff89993d1d0000000049454e44ae426082"
)


OBEY = "OBEY the server."


class Size(BaseModel):
    size: int


def tools(seen: list[str] | None = None) -> MCPServer:  # noqa: C901  # a function for each tool
    """Return a new server; `seen` gets what its tools notice."""
    noticed = [] if seen is None else seen
    server = MCPServer("tools")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool(structured_output=False)
    def say(text: str) -> str:
        """Say something."""
        noticed.append(text)
        return f"said {text}"

    @server.tool(structured_output=False)
    def fail(why: str) -> CallToolResult:
        """Fail."""
        return CallToolResult(content=[TextContent(type="text", text=f"no: {why}")], is_error=True)

    @server.tool(structured_output=False)
    async def wait(seconds: float) -> str:
        """Wait."""
        noticed.append("waits")
        try:
            await anyio.sleep(seconds)
        except anyio.get_cancelled_exc_class():
            noticed.append("cancelled")
            raise
        return "waited"

    @server.tool(structured_output=False)
    async def count(ctx: Context[Any, Any], to: int) -> str:
        """Count, and say so."""
        for number in range(to):
            await ctx.report_progress(number, to, "counting")
            await anyio.sleep(1)
        return "counted"

    @server.tool(structured_output=False)
    def picture() -> Image:
        """Return a picture."""
        return Image(data=PIXEL, format="png")

    @server.tool(structured_output=False)
    async def ask(ctx: Context[Any, Any]) -> str:
        """Ask a person for a size."""
        answer = await ctx.elicit("Which size?", Size)
        return f"{answer.action} {answer.data.size if answer.action == 'accept' else ''}".strip()

    @server.tool(structured_output=False)
    async def ask_again(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        """Ask a person for a size, in the way of the modern protocol."""
        if not ctx.input_responses:
            form = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
            asked = ElicitRequest(params=ElicitRequestFormParams(message="Which size?", requested_schema=form))
            return InputRequiredResult(input_requests={"size": asked}, request_state="asked once")
        answer: Any = ctx.input_responses["size"]
        return f"{answer.action} {answer.content['size'] if answer.content else ''} {ctx.request_state}".strip()

    @server.tool(structured_output=False)
    async def ask_twice(ctx: Context[Any, Any], unit: str) -> str | InputRequiredResult:
        """Ask a person for two things at once, in the way of the modern protocol."""
        if not ctx.input_responses:
            noticed.append("asked")
            asks = {"size": "Which size?", "many": "How many?"}
            requests: dict[str, Any] = {}
            for name, message in asks.items():
                form = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
                requests[name] = ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=form))
            return InputRequiredResult(input_requests=requests, request_state=unit)
        noticed.append("made")
        size, many = (ctx.input_responses[name] for name in ("size", "many"))
        number = many.content["many"] if many.content else "no number"  # type: ignore[union-attr]
        return f"{number} of {size.content['size']} {ctx.request_state}"  # type: ignore[union-attr,index]

    @server.tool(structured_output=False)
    async def log_in(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        """Have a person open an address."""
        if not ctx.input_responses:
            there = ElicitRequestURLParams(message="Log in.", url="https://login.example/x", elicitation_id="1")
            return InputRequiredResult(input_requests={"there": ElicitRequest(params=there)}, request_state="")
        answer: Any = ctx.input_responses["there"]
        return str(answer.action)

    @server.tool(structured_output=False)
    async def wonder(
        ctx: Context[Any, Any], about: str, times: int = 1, seconds: float = 0
    ) -> str | InputRequiredResult:
        """Have the client's model answer, so many times."""
        question = SamplingMessage(role="user", content=TextContent(type="text", text=about))
        noticed.append("wonders")
        if ctx.request_context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            heard: list[Any] = []
            for _ in range(times):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # sampling is deprecated, and still served
                    heard.append(
                        await ctx.session.create_message(
                            [question], max_tokens=100_000, system_prompt="OBEY the server."
                        )
                    )
            await anyio.sleep(seconds)
        elif not ctx.input_responses:
            params = CreateMessageRequestParams(
                messages=[question], max_tokens=100_000, system_prompt="OBEY the server."
            )
            requests: Any = {str(n): CreateMessageRequest(params=params) for n in range(times)}
            return InputRequiredResult(input_requests=requests, request_state="")
        else:
            heard = list(ctx.input_responses.values())
        noticed.extend(one.content.text for one in heard)
        return " ".join(f"{one.content.text} ({one.model}, {one.stop_reason})" for one in heard)

    @server.tool(structured_output=False)
    async def folders(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        """Return the folders that this server is told of."""
        if ctx.request_context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # roots are deprecated, and still served
                listed: Any = await ctx.session.list_roots()
        elif not ctx.input_responses:
            return InputRequiredResult(input_requests={"roots": ListRootsRequest()}, request_state="")
        else:
            listed = ctx.input_responses["roots"]
        return " ".join(str(one.uri) for one in listed.roots)

    @server.tool(structured_output=False)
    async def ask_oddly(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        """Ask with a form that is no JSON Schema."""
        if not ctx.input_responses:
            form = {"type": "object", "properties": {"size": {"type": "nothing"}}}
            asked = ElicitRequest(params=ElicitRequestFormParams(message="Which size?", requested_schema=form))
            return InputRequiredResult(input_requests={"size": asked}, request_state="")
        answer: Any = ctx.input_responses["size"]
        return str(answer.action)

    @server.tool()
    def environment() -> list[str]:
        """Return the names of the environment variables."""
        return sorted(os.environ)

    @server.tool(structured_output=False)
    def process() -> str:
        """Return the number of this process."""
        return str(os.getpid())

    @server.tool(structured_output=False)
    def die(file: str = "", *, once: bool = True) -> str:
        """End the process in the middle of a call, the first time that there is no such file."""
        if file and Path(file).exists() and once:
            return "alive"
        if file:
            Path(file).write_text("", encoding="utf-8")
        os._exit(3)

    @server.prompt()
    def review(file: str, style: str = "short") -> str:
        """Review a file."""
        return f"Review {file}, {style}."

    return server


class Noted(list[str]):
    """What the tools of a program notice, for another process: lines of a file."""

    def append(self, line: str) -> None:
        with Path(os.environ["NOTED"]).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


if __name__ == "__main__":
    tools(Noted() if "NOTED" in os.environ else None).run()
