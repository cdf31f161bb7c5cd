"""The agent's side of the protocol: its methods, and the sessions that are open."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import anyio

from cantrip_actors import Cantrip, CantripError, Entity, InvalidCantrip, Runtime, Selection
from cantrip_actors.acp.commands import available_commands, command_in, read_number
from cantrip_actors.acp.editor import Capabilities, Editor
from cantrip_actors.acp.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    NOT_FOUND,
    InvalidParams,
    RequestError,
    RpcConnection,
    RpcResult,
)
from cantrip_actors.acp.options import config_options, modes
from cantrip_actors.acp.prompts import read_prompt, read_text
from cantrip_actors.acp.session import KEY, EditorSession, SessionHistory, list_entities, workspace_of
from cantrip_actors.acp.tool_servers import servers_of
from cantrip_actors.acp.updates import Update, title_of
from cantrip_actors.records.records import Header
from cantrip_actors.terms.arguments import check, check_kind

VERSION: Final = 1
PAGE: Final = 50
"""The sessions on one page of `session/list`."""

_CAPABILITIES: Final[Mapping[str, Any]] = {
    "loadSession": True,
    "promptCapabilities": {"image": True, "embeddedContext": True, "audio": False},
    "mcpCapabilities": {"http": True, "sse": False},
    "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "delete": {}, "additionalDirectories": {}},
}


class Agent:
    """Answers one editor: a `Handler` of a `RpcConnection`. `run` has to run meanwhile."""

    def __init__(self, runtime: Runtime, recipe: Cantrip, *, terminal: bool = False) -> None:
        self._runtime = runtime
        self._recipe = recipe
        self._terminal = terminal
        self._sessions: dict[str, EditorSession] = {}
        self._capabilities = Capabilities()
        self._by = "acp"
        self._tasks: anyio.abc.TaskGroup
        self.connection: RpcConnection

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Send the requests of the runtime to the editor's user."""
        async with anyio.create_task_group() as tasks, self._runtime.requests(follow=True) as requests:
            self._tasks = tasks
            task_status.started()
            async for request in requests:
                for session in self._sessions.values():
                    if session.concerns(request):
                        tasks.start_soon(session.ask_user, request)
            tasks.cancel_scope.cancel()

    async def server_commands(self, session_id: str) -> list[str]:
        """Return the commands of an open session's servers, once these have listed them."""
        return await self._sessions[session_id].server_prompts.list_names()

    # The connection

    async def answer(self, method: str, params: Any) -> Any:
        """Return the result of a request. Raises RequestError."""
        work = _METHODS.get(method)
        if work is None:
            raise RequestError(METHOD_NOT_FOUND, f"no method is called {method!r}"[:200])
        fields = {} if params is None else params
        check_kind("params", fields, Mapping, "an object", InvalidParams)
        try:
            return await work(self, fields)
        except CantripError as error:
            code = INVALID_PARAMS if isinstance(error, InvalidCantrip) else INTERNAL_ERROR
            raise RequestError(code, title_of(self._runtime.redact(str(error)))) from error

    async def notice(self, method: str, params: Any) -> None:
        """Handle a notification; an unknown one is ignored."""
        if method == "session/cancel" and isinstance(params, Mapping):
            session = self._sessions.get(str(params.get("sessionId")))
            if session is not None:
                session.cancel()

    def cancel(self, method: str, params: Any) -> bool:
        """Cancel a request; return whether its own task still answers it, as for a prompt once its entity has
        stopped.
        """
        session = None
        if method == "session/prompt" and isinstance(params, Mapping):
            session = self._sessions.get(str(params.get("sessionId")))
        if session is not None:
            session.cancel()
        return session is not None

    async def _notify(self, session_id: str, update: Update) -> None:
        await self.connection.notify("session/update", {"sessionId": session_id, "update": update})

    # Methods

    async def _initialize(self, params: Mapping[str, Any]) -> Any:
        self._capabilities = Capabilities.of(params.get("clientCapabilities"))
        client = params.get("clientInfo")
        name = client.get("name") if isinstance(client, Mapping) else None
        self._by = f"acp:{title_of(name)}" if isinstance(name, str) and name.strip() else "acp"
        info = {"name": "cantrip", "title": self._recipe.name or "cantrip", "version": version("cantrip-actors")}
        return {
            "protocolVersion": VERSION,
            "agentCapabilities": _CAPABILITIES,
            "agentInfo": info,
            "authMethods": [],
        }

    async def _new(self, params: Mapping[str, Any]) -> Any:
        session = self._open(f"{KEY}{uuid.uuid4()}", params)  # a new key: it has no forks
        result = {"sessionId": session.id, **self._choices_of(session)}
        return RpcResult(result, partial(self._introduce, session))  # the editor knows the id only then

    async def _load(self, params: Mapping[str, Any]) -> Any:
        session = await self._reopen(params)
        history = await session.read_history()
        await session.replay(history)
        return await self._welcome(session, history)

    async def _resume(self, params: Mapping[str, Any]) -> Any:
        session = await self._reopen(params)
        return await self._welcome(session, await session.read_history())

    async def _welcome(self, session: EditorSession, history: SessionHistory) -> RpcResult:
        await self._tell_commands(session)
        return RpcResult(self._choices_of(session), partial(self._continue, session, history))

    def _choices_of(self, session: EditorSession) -> dict[str, Any]:
        return {"modes": modes(session.choices), "configOptions": config_options(self._recipe, session.choices)}

    async def _tell_commands(self, session: EditorSession) -> None:
        commands = [*available_commands(), *session.server_prompts.available()]
        await session.tell({"sessionUpdate": "available_commands_update", "availableCommands": commands})

    async def _introduce(self, session: EditorSession) -> None:
        await self._tell_commands(session)
        self._follow_servers(session)

    def _follow_servers(self, session: EditorSession) -> None:
        """Have the prompts of a session's servers among its commands, from now on."""
        self._tasks.start_soon(session.server_prompts.run, partial(self._tell_commands, session))

    async def _continue(self, session: EditorSession, history: SessionHistory) -> None:
        """Show what the entity still does, and send the open requests again, which an earlier editor did not answer."""
        self._follow_servers(session)
        self._tasks.start_soon(session.follow, history)
        for request in history.requests:
            self._tasks.start_soon(session.ask_user, request)

    def _open(
        self, key: str, params: Mapping[str, Any], known_roots: list[str] | None = None, forks: int = 0
    ) -> EditorSession:
        cwd = _read_folder(params.get("cwd"), known_roots)
        further = params.get("additionalDirectories") or (known_roots or [])[1:]
        check_kind("additionalDirectories", further, list, "a list of folders", InvalidParams)
        session_id = self._runtime.id_of_key(key)
        roots = [_read_folder(folder, None) for folder in further]
        servers = servers_of(params.get("mcpServers") or [], cwd)
        editor = Editor(self.connection, self._capabilities, session_id, cwd, roots, servers)
        session = EditorSession(
            self._runtime,
            self._recipe,
            editor,
            key,
            self._notify,
            by=self._by,
            terminal=self._terminal,
            forks=forks,
        )
        before = self._sessions.get(session.id)
        if before is not None:
            before.hand_over()
        self._sessions[session.id] = session
        return session

    async def _reopen(self, params: Mapping[str, Any]) -> EditorSession:
        session_id, runtime = read_text(params, "sessionId"), self._runtime

        def look() -> tuple[str, list[str], int, str] | None:
            header = self._header(session_id)
            if header is None or header.key is None:
                return None
            entities = list_entities(runtime, header.key)
            in_force = runtime.loom.header_in_force(entities[-1].id)
            return header.key, list(workspace_of(runtime, session_id)), len(entities) - 1, in_force.cantrip_id

        opened = await runtime.read(look)
        if opened is not None:
            key, roots, forks, cantrip_id = opened
            session = self._open(key, params, roots, forks)
            session.restore(cantrip_id)
            return session
        unbegun = self._sessions.get(session_id)
        if unbegun is None:
            raise RequestError(NOT_FOUND, "no session has this id")
        return unbegun

    def _header(self, session_id: str) -> Header | None:
        loom = self._runtime.loom
        if not loom.has_begun(session_id) or loom.is_over(session_id):
            return None
        header = loom.header(session_id)
        return header if _is_session(header) else None

    async def _list(self, params: Mapping[str, Any]) -> Any:
        cwd, start = params.get("cwd"), _read_cursor(params.get("cursor"))
        sessions = await self._runtime.read(lambda: self._find_sessions(cwd, start + PAGE))
        shown = self._runtime.redact({"sessions": sessions[start : start + PAGE]})
        return {**shown, **({"nextCursor": str(start + PAGE)} if len(sessions) > start + PAGE else {})}

    def _find_sessions(self, cwd: Any, most: int) -> list[dict[str, Any]]:
        """Return the newest sessions, in a folder if it is given: `most` of them, and one more if there are more."""
        loom = self._runtime.loom
        sessions: list[dict[str, Any]] = []
        for header in self._read_headers():
            if not _is_session(header) or header.cantrip_name != self._recipe.name or loom.is_over(header.entity_id):
                continue
            roots = workspace_of(self._runtime, header.entity_id)
            if cwd is not None and cwd not in roots[:1]:
                continue
            intent = loom.first_intent(header.entity_id)
            title = "" if intent is None else title_of(intent.intent)
            entry = {"sessionId": header.entity_id, "cwd": roots[0] if roots else str(Path.cwd()), "title": title}
            sessions.append({**entry, "updatedAt": loom.last_time(header.entity_id)})
            if len(sessions) > most:
                break
        return sessions

    def _read_headers(self) -> Iterator[Header]:
        """Yield the headers of long-lived entities, newest first, a page at a time."""
        loom, cursor = self._runtime.loom, None
        while True:
            page = loom.page(Selection(kind="lasting"), cursor=cursor, limit=2 * PAGE)
            yield from (loom.header(listed.id) for listed in page)
            if (cursor := page.next) is None:
                return

    async def _prompt(self, params: Mapping[str, Any]) -> Any:
        session = self._session(params)
        prompt = read_prompt(params.get("prompt", params.get("content")))
        command = command_in(prompt.text)
        if command is not None:
            await session.refresh()
            await session.answer(await command(session))
            return {"stopReason": "end_turn"}
        return {"stopReason": await session.prompt(session.server_prompts.find_maker(prompt) or prompt)}

    async def _close(self, params: Mapping[str, Any]) -> Any:
        session = self._session(params)
        session.cancel()
        self._sessions.pop(session.id, None)
        await session.leave()
        return {}

    async def _delete(self, params: Mapping[str, Any]) -> Any:
        session_id = read_text(params, "sessionId")
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.server_prompts.close()
            session.cancel()

        def look() -> list[Entity]:
            header = self._header(session_id)
            return [] if header is None else list_entities(self._runtime, str(header.key))

        for entity in await self._runtime.read(look):
            await entity.stop("deleted in the editor", by=self._by)
        return {}

    async def _set_mode(self, params: Mapping[str, Any]) -> Any:
        session = self._session(params)
        session.choices = session.choices.change(self._recipe, "mode", params.get("modeId"))
        options = config_options(self._recipe, session.choices)
        await session.tell({"sessionUpdate": "config_option_update", "configOptions": options})
        return {}

    async def _set_option(self, params: Mapping[str, Any]) -> Any:
        session = self._session(params)
        before = session.choices
        session.choices = before.change(self._recipe, read_text(params, "configId"), params.get("value"))
        if session.choices.mode != before.mode:
            await session.tell({"sessionUpdate": "current_mode_update", "currentModeId": session.choices.mode})
        return {"configOptions": config_options(self._recipe, session.choices)}

    def _session(self, params: Mapping[str, Any]) -> EditorSession:
        session = self._sessions.get(read_text(params, "sessionId"))
        if session is None:
            raise RequestError(NOT_FOUND, "no open session has this id")
        return session


_METHODS: Final[Mapping[str, Callable[[Agent, Mapping[str, Any]], Awaitable[Any]]]] = {
    "initialize": Agent._initialize,  # noqa: SLF001  # the table of this class's own methods
    "session/new": Agent._new,  # noqa: SLF001
    "session/load": Agent._load,  # noqa: SLF001
    "session/resume": Agent._resume,  # noqa: SLF001
    "session/list": Agent._list,  # noqa: SLF001
    "session/prompt": Agent._prompt,  # noqa: SLF001
    "session/close": Agent._close,  # noqa: SLF001
    "session/delete": Agent._delete,  # noqa: SLF001
    "session/set_mode": Agent._set_mode,  # noqa: SLF001
    "session/set_config_option": Agent._set_option,  # noqa: SLF001
}


def _is_session(header: Header) -> bool:
    return header.lasting and not header.forked and (header.key or "").startswith(KEY) and "/" not in (header.key or "")


def _read_folder(value: Any, known_roots: list[str] | None) -> Path:
    if value is None:
        return Path(known_roots[0]) if known_roots else Path.cwd()
    fits = isinstance(value, str) and Path(value).is_absolute() and "\0" not in value
    check(fits, "cwd", "an absolute path", value, InvalidParams)
    return Path(value)


def _read_cursor(value: Any) -> int:
    if value is None:
        return 0
    start = read_number(value) if isinstance(value, str) else None
    check(start is not None and start % PAGE == 0, "cursor", "one of an earlier answer", value, InvalidParams)
    assert start is not None
    return start
