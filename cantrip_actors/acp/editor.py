"""Gives the entity of a session the folders, the unsaved files and the terminals of an editor.

The file gates of the recipe are rooted in the session's folders. If the editor offers it, `read` includes unsaved
changes, and `write` appears as a change in the editor. Every path is checked as the gates check it before the editor is
asked: no path leads out of the folders or to the runtime's own files. The folders are dependencies of the gates, so
that a process with the same recipe and other folders, such as a worker, does not run the entity.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
from pydantic import Field

from cantrip_actors import Cantrip, gate
from cantrip_actors.acp.jsonrpc import PeerGone, RequestError, RpcConnection
from cantrip_actors.acp.options import replace_gates
from cantrip_actors.circle.gates.confine import place
from cantrip_actors.gates import GateError
from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.tool_server import ToolServer
from cantrip_actors.user_code.threads import run_for_client

FILE_GATES: Final = ("read", "write", "list", "search")
OUTPUT: Final = 200_000
"""The maximum bytes of a terminal's output."""
LONGEST_DIFF: Final = 1_000_000
"""Bytes of a file up to which its present text is in the diff of a write."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities that an editor announces; it lacks all others."""

    reads: bool = False
    writes: bool = False
    terminal: bool = False
    asks: bool = False
    """True if the editor can show a form to its user."""

    @classmethod
    def of(cls, value: Any) -> Capabilities:
        """Return the capabilities in `initialize`."""
        stated = value if isinstance(value, Mapping) else {}
        fs, elicitation = _check_mapping(stated.get("fs")), _check_mapping(stated.get("elicitation"))
        return cls(
            reads=fs.get("readTextFile") is True,
            writes=fs.get("writeTextFile") is True,
            terminal=stated.get("terminal") is True,
            asks=elicitation.get("form") is not None,
        )


class Editor:
    """The editor of one session."""

    def __init__(
        self,
        connection: RpcConnection,
        capabilities: Capabilities,
        session_id: str,
        cwd: Path,
        further: Sequence[Path],
        servers: Sequence[ToolServer] = (),
    ) -> None:
        self._connection = connection
        self._session_id = session_id
        self.capabilities = capabilities
        self.roots = (cwd, *further)
        self.servers = tuple(servers)
        """The servers of tools that come with the session."""

    def lend(self, cantrip: Cantrip, *, terminal: bool) -> Cantrip:
        """Return the cantrip with this editor's file gates and servers, and with its `terminal` if configured."""
        gates: list[Any] = [
            self._use_editor(gate) if gate.name in FILE_GATES else gate for gate in cantrip.circle.gates
        ]
        if terminal and self.capabilities.terminal:
            gates.append(self._terminal())
        circle = cantrip.circle
        has_files = any(new_gate is not gate for new_gate, gate in zip(gates, circle.gates, strict=False))
        folders = [str(root) for root in self.roots] if has_files else []
        servers = [server.with_folders(folders) for server in (*circle.servers, *self.servers)]
        return replace(cantrip, circle=replace_gates(circle, gates, servers))

    def _use_editor(self, own: Gate) -> Gate:
        if own.function is None or "root" not in own.injected:
            return own  # the recipe's author has a gate with the name of a file gate
        function, dependencies = (
            own.function,
            {name: value for name, value in own.dependencies.items() if name != "root"},
        )
        work: Callable[..., Any]
        if own.name == "read" and self.capabilities.reads:
            work = partial(self._read, function, dependencies)
        elif own.name == "write" and self.capabilities.writes:
            work = self._write
        else:
            work = partial(self._run, function, dependencies)
        folders = {"folders": self.roots}
        return replace(own, function=work, dependencies=folders, injected=(), required_injected=(), blocking=False)

    def locate(self, path: str) -> str:
        """Return the absolute path of a path that a file gate was called with."""
        return os.path.normpath(self.roots[0] / path)

    async def read_old_text(self, path: str) -> str | None:
        """Return the present text of a file that is to be written; None if it is new, long or not a text."""
        return await run_for_client(partial(_read_text, _find_root(self.roots, path), path))

    async def _run(
        self, function: Callable[..., Any], dependencies: Mapping[str, Any], *, folders: Sequence[Path], **args: Any
    ) -> Any:
        root = _find_root(folders, str(args.get("path") or ""))
        return await run_for_client(partial(function, **args, **dependencies, root=root))

    async def _read(
        self, function: Callable[..., Any], dependencies: Mapping[str, Any], *, folders: Sequence[Path], **args: Any
    ) -> Any:
        path, read_from_disk = str(args["path"]), partial(self._run, function, dependencies, folders=folders, **args)
        where = place(_find_root(folders, path), path)
        if not await run_for_client(lambda: where.root.joinpath(*where.parts).is_file()):
            return await read_from_disk()  # its errors say what is wrong
        await run_for_client(lambda: os.close(where.open()))  # it raises for a file that may not be read
        if args.get("column"):  # the editor counts in lines
            return await read_from_disk()
        request = {"path": str(where.root.joinpath(*where.parts)), "line": args.get("offset", 1)}
        if args.get("limit") is not None:
            request["limit"] = args["limit"]
        try:
            answer = await self._ask("fs/read_text_file", request)
        except RequestError:  # a picture, or another file that the editor does not show as text
            return await read_from_disk()
        return str(_check_mapping(answer).get("content") or "")

    async def _write(self, path: str, content: str, *, folders: Sequence[Path]) -> str:
        where = place(_find_root(folders, path), path)
        if not where.parts:
            raise GateError(f'"{path}" is a folder, expected the path of a file')
        await run_for_client(partial(_check_writable, where))
        target = where.root.joinpath(*where.parts)
        try:
            await self._ask("fs/write_text_file", {"path": str(target), "content": content})
        except RequestError as error:
            raise GateError(f'the editor did not write "{where.name}": {error.message}') from error
        return f'wrote "{where.name}" in the editor: {len(content.encode("utf-8", "replace")):,} bytes'

    def _terminal(self) -> Gate:
        async def terminal(
            command: Annotated[str, Field(description="the program")],
            args: Annotated[list[str], Field(description="its arguments, one each")] = [],  # noqa: B006  # read only
        ) -> dict[str, Any]:
            """Run a program in a terminal of the user's editor, in the session's folder; wait for its end."""
            return await self._execute(command, args)

        return gate(terminal)

    async def _execute(self, command: str, args: Sequence[str]) -> dict[str, Any]:
        request = {"command": command, "args": list(args), "cwd": str(self.roots[0]), "outputByteLimit": OUTPUT}
        try:
            created = _check_mapping(await self._ask("terminal/create", request))
            terminal = {"terminalId": str(created.get("terminalId"))}
            try:
                ended = _check_mapping(await self._ask("terminal/wait_for_exit", terminal))
                output = _check_mapping(await self._ask("terminal/output", terminal))
            except BaseException:
                await self._end_terminal("terminal/kill", terminal)
                raise
            finally:
                await self._end_terminal("terminal/release", terminal)
        except RequestError as error:
            raise GateError(f"the editor's terminal: {error.message}") from error
        return {"output": output.get("output", ""), "exit_code": ended.get("exitCode"), "signal": ended.get("signal")}

    async def _end_terminal(self, method: str, terminal: Mapping[str, Any]) -> None:
        """Ask the editor to end a terminal; if it cannot, that hides neither the result nor a cancellation."""
        with anyio.move_on_after(1, shield=True), suppress(RequestError, PeerGone):
            await self.ask(method, terminal)

    async def ask(self, method: str, params: Mapping[str, Any]) -> Any:
        """Return the editor's answer about this session. Raises RequestError, PeerGone."""
        return await self._connection.request(method, {"sessionId": self._session_id, **params})

    async def _ask(self, method: str, params: Mapping[str, Any]) -> Any:
        try:
            return await self.ask(method, params)
        except PeerGone:
            raise GateError("the editor has gone") from None


def _find_root(folders: Sequence[Path], path: str) -> Path:
    """Return the folder that a path is in; the first one for a relative path, and for a path outside all of them."""
    typed = Path(path)
    if typed.is_absolute():
        for root in folders:
            if typed.is_relative_to(root):
                return root
    return folders[0]


def _read_text(root: Path, path: str) -> str | None:
    try:
        with os.fdopen(place(root, path).open(), "rb") as file:
            data = file.read(LONGEST_DIFF + 1)
        return data.decode() if len(data) <= LONGEST_DIFF else None
    except (GateError, OSError, UnicodeDecodeError):
        return None


def _check_writable(where: Any) -> None:
    with where.folder(above=True, make=True) as folder:
        where.check_target(folder)


def _check_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
