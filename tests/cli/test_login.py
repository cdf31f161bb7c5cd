"""The user by whose name records name a decision at this machine, at each door."""

import os
import pwd
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.acp.editor import Capabilities, Editor
from cantrip_actors.acp.session import EditorSession
from cantrip_actors.cli.decision_author import author, door
from cantrip_actors.mcp_server.stdio import find_local
from cantrip_actors.wards import max_turns


async def list_doors() -> list[str]:
    """Return the doors of a terminal, of an editor, and of an MCP client."""
    cantrip = Cantrip(scripted([]), circle=Circle(["done"], [max_turns(1)]))
    client: Any = SimpleNamespace(session=SimpleNamespace(client_params=None))
    connection: Any = None
    async with Runtime.open("memory:") as runtime:
        editor = Editor(connection, Capabilities(), "session", Path("/"), ())
        session = EditorSession(runtime, cantrip, editor, "acp:1", connection, by="acp")
        return [door(), session.door, find_local(runtime, {}, client).door]


async def test_every_door_names_the_user_of_the_process_and_not_one_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "mallory")
    login = pwd.getpwuid(os.geteuid()).pw_name
    assert author(None) == login
    assert await list_doors() == [f"terminal:{login}", f"editor:{login}", f"mcp:{login}"]


async def test_a_user_that_the_machine_does_not_list_is_named_by_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none(_number: int) -> Any:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", find_none)
    number = os.geteuid()
    assert await list_doors() == [f"terminal:{number}", f"editor:{number}", f"mcp:{number}"]
