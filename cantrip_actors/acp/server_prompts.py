"""The prompts of a session's MCP servers, as slash commands: `/SERVER__PROMPT ARGUMENTS`.

A server makes a prompt when the user sends the command: the prompt is the intent and its context. Neither a prompt nor
its description gets into a system prompt.

    user messages at the end     the intent
    what comes before them       `conversation` in the context; all of it, if the last message is not the user's
    embedded texts               `resources` in the context, by their URIs, as what an editor embeds
    images and files             parts of the intent
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import anyio

from cantrip_actors import File, Runtime, RuntimeClosed
from cantrip_actors.acp.jsonrpc import INVALID_PARAMS, RequestError
from cantrip_actors.acp.prompts import EditorPrompt
from cantrip_actors.acp.updates import title_of
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.circles.tool_servers import HeldServer
from cantrip_actors.terms.server_prompt import EmbeddedText, PromptMessage
from cantrip_actors.terms.server_prompt import Prompt as ServerPrompt
from cantrip_actors.terms.tool_server import ToolServer, ToolServerError, make_gate_name

PAUSE: Final = 1.0
"""Seconds between two lists of one server's prompts, at least."""

_log = get_logger("cantrip_actors.acp")


class ServerPrompts:
    """The prompts of one session's servers. They are known while `run` runs."""

    def __init__(self, runtime: Runtime, servers: Sequence[ToolServer]) -> None:
        self._runtime = runtime
        self._servers = servers
        self._held: dict[str, HeldServer] = {}
        self._found: dict[str, dict[str, ServerPrompt]] = {}
        """By server, the prompts by the names of their commands."""
        self._scope = anyio.CancelScope()
        self._unlisted = {server.name for server in servers}
        self._listed = anyio.Event()

    async def run(self, tell: Callable[[], Awaitable[None]]) -> None:
        """Hold the servers and follow their prompts until `close`; call `tell` when there are others."""
        with self._scope:
            async with anyio.create_task_group() as tasks:
                for server in self._servers:
                    tasks.start_soon(self._follow, server, tell)

    def close(self) -> None:
        """Release the servers."""
        self._scope.cancel()

    async def _follow(self, server: ToolServer, tell: Callable[[], Awaitable[None]]) -> None:
        with suppress(RuntimeClosed):
            await self._list(server, tell)

    async def _list(self, server: ToolServer, tell: Callable[[], Awaitable[None]]) -> None:
        async with self._runtime.use_server(server) as connection:
            self._held[server.name] = connection
            while True:
                try:
                    commands = _list_commands(server, await connection.prompts())
                except ToolServerError as problem:
                    _log.warning("a server's prompts are not known", server=server.name, error=str(problem))
                    commands = {}
                self._unlisted.discard(server.name)
                if commands != self._found.get(server.name, {}):
                    self._found[server.name] = commands
                    await tell()
                if not self._unlisted:
                    self._listed.set()
                await anyio.sleep(PAUSE)
                await connection.changed()

    async def list_names(self) -> list[str]:
        """Return the names of the commands, once every server has listed its prompts or has failed."""
        if self._unlisted:
            await self._listed.wait()
        return [name for commands in self._found.values() for name in commands]

    def available(self) -> list[dict[str, Any]]:
        """Return the commands as editors list them."""
        return [
            {
                "name": name,
                "description": title_of(prompt.description or prompt.name),
                **({"input": {"hint": title_of(_render_hint(prompt))}} if prompt.arguments else {}),
            }
            for commands in self._found.values()
            for name, prompt in commands.items()
        ]

    def find_maker(self, own_prompt: EditorPrompt) -> Callable[[], Awaitable[EditorPrompt]] | None:
        """Return the function that makes the prompt for a command; None if the text is not one of these commands.

        The function raises RequestError for arguments that do not fit, and ToolServerError.
        """
        if not own_prompt.text.startswith("/"):
            return None
        name, _, typed = own_prompt.text[1:].partition(" ")
        name, _, more = name.partition("\n")
        for server, commands in self._found.items():
            if name in commands:
                return partial(self._make, server, name, commands[name], f"{more} {typed}".strip(), own_prompt)
        return None

    async def _make(
        self, server: str, command: str, prompt: ServerPrompt, typed: str, own_prompt: EditorPrompt
    ) -> EditorPrompt:
        arguments = read_arguments(command, prompt, typed)
        messages = await self._held[server].prompt(prompt.name, arguments)
        source = {"server": server, "name": prompt.name, **({"arguments": arguments} if arguments else {})}
        added: list[str | File] = [typed] if typed and not prompt.arguments else []
        added += [part for part in own_prompt.parts if isinstance(part, File)]
        return _find_prompt(messages, own_prompt._replace(parts=tuple(added)), source, f"/{command} {typed}".strip())


def _list_commands(server: ToolServer, prompts: Sequence[ServerPrompt]) -> dict[str, ServerPrompt]:
    """Return prompts by the names of their commands; of those with one name, the first."""
    commands: dict[str, ServerPrompt] = {}
    for prompt in prompts:
        name = make_gate_name(server, prompt.name)
        if name in commands:
            _log.warning(
                "two prompts of a server have one name", server=server.name, command=name, left_out=prompt.name
            )
        commands.setdefault(name, prompt)
    return commands


def _render_hint(prompt: ServerPrompt) -> str:
    if len(prompt.arguments) == 1:
        ((name, description),) = prompt.arguments.items()
        return description or name
    return prompt.usage


def read_arguments(command: str, prompt: ServerPrompt, typed: str) -> dict[str, str]:
    """Return the arguments of a prompt from the text after its command. Raises RequestError.

    A single argument is all of the text. For several, words are given in their order or as `name=value`; quotes keep a
    word with spaces together.
    """
    if len(prompt.arguments) < 2:
        values = {name: typed for name in prompt.arguments if typed}
    else:
        values = _read_words(command, prompt, typed)
    missing = [name for name in prompt.required if name not in values]
    if missing:
        raise _make_unfit_error(command, prompt, f"{missing[0]} is missing")
    return values


def _read_words(command: str, prompt: ServerPrompt, typed: str) -> dict[str, str]:
    lexer = shlex.shlex(typed, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", ""
    try:
        words = list(lexer)
    except ValueError:
        raise _make_unfit_error(command, prompt, "a quote is not closed") from None
    values: dict[str, str] = {}
    in_order: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if not (equals and name in prompt.arguments):
            in_order.append(word)
        elif name in values:
            raise _make_unfit_error(command, prompt, f"{name} is given twice")
        else:
            values[name] = value
    left = [name for name in prompt.arguments if name not in values]
    if len(in_order) > len(left):
        raise _make_unfit_error(
            command, prompt, "there are more words than arguments: put words that belong together in quotes"
        )
    return values | dict(zip(left, in_order, strict=False))


def _make_unfit_error(command: str, prompt: ServerPrompt, why: str) -> RequestError:
    return RequestError(INVALID_PARAMS, f"/{command} {prompt.usage}: {why}")


def _find_prompt(
    messages: Sequence[PromptMessage], own_prompt: EditorPrompt, source: Mapping[str, Any], command: str
) -> EditorPrompt:
    """Return a server's messages as a prompt, with the user's additions."""
    end = max((at for at, message in enumerate(messages, 1) if message.role == "user"), default=0)
    start = end
    while start and messages[start - 1].role == "user":
        start -= 1
    before = messages[:start] if end == len(messages) else messages
    files = [message.content for message in messages if isinstance(message.content, File)]
    words = [_split_words(message) for message in messages[start:end] if not isinstance(message.content, File)] or [
        command
    ]
    resources = {
        message.content.uri: message.content.text for message in messages if isinstance(message.content, EmbeddedText)
    }
    conversation = [{"role": message.role, "content": _split_words(message)} for message in before]
    data = {"prompt": dict(source), **({"conversation": conversation} if conversation else {})}
    return EditorPrompt((*words, *files, *own_prompt.parts), {**resources, **own_prompt.resources}, data)


def _split_words(message: PromptMessage) -> str:
    match message.content:
        case str(text):
            return text
        case File() as file:
            return file.label
        case EmbeddedText(uri, _):
            return f"[{uri}]"
