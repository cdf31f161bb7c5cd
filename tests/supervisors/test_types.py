"""Types of references and messages, as mypy sees them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
from dataclasses import dataclass
from typing import Any, assert_type

from supervisors import (
    Actor, ActorRef, ActorSystem, Caller, ChildSpec, DynamicSupervisor, MessageTo, Supervisor, SupervisorRef,
)


@dataclass
class Join(MessageTo["Room", int]):
    name: str


@dataclass
class Leave(MessageTo["Room", None]):
    name: str


@dataclass
class Open(MessageTo["Door", bool]):
    pass


class Room(Actor):
    async def handle_call(self, message: Join | Leave, caller: Caller) -> int | None:
        return None

    async def handle_cast(self, message: Leave) -> None:
        pass


class LargeRoom(Room):
    pass


class Door(Actor):
    async def handle_call(self, message: Any, caller: Caller) -> Any:
        return True


class House(Actor):
    has_children = True

    async def init(self) -> None:
        assert_type(await self.children.start(ChildSpec("room", Room)), ActorRef[Room])
        assert_type(await self.children.start(ChildSpec("s", Supervisor)), SupervisorRef)


async def main(system: ActorSystem, dynamic: SupervisorRef) -> None:
    room = await system.start(ChildSpec("room", Room))
    assert_type(room, ActorRef[Room])
    assert_type(await room.call(Join("ada")), int)
    assert_type(await room.call(Leave("ada"), 5.0, grace=1.0), None)
    room.cast(Leave("ada"))
    large = await dynamic.start_child(ChildSpec("large", LargeRoom))
    assert_type(await large.call(Join("ada")), int)
    small: ActorRef[Room] = large
    assert_type(await small.call(Join("ada")), int)
    door = await system.start(ChildSpec("door", Door))
    assert_type(await door.call(Open()), bool)
    assert_type(await door.call("knock"), Any)
    door.cast("knock")
    untyped: ActorRef = room
    assert_type(await untyped.call("anything"), Any)
    assert_type(await system.start(ChildSpec("d", DynamicSupervisor)), SupervisorRef)
    made_beforehand: ActorRef[Room] = ActorRef()
    ChildSpec("room", Room, ref=made_beforehand)
    # WRONG
"""


def check(tmp_path: Path, line: str) -> str:
    """Return what mypy says of the program with this line."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("# WRONG", line))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return done.stdout


@pytest.mark.rule("K-07")
def test_messages_of_an_annotated_actor_are_checked_and_have_the_type_of_their_reply(tmp_path):
    wrong = [
        'await room.call("knock")',
        "await room.call(Open())",
        "await door.call(Join('ada'))",
        'room.cast("knock")',
        "room.cast(Open())",
        "assert_type(await room.call(Join('ada')), str)",
    ]
    said = check(tmp_path, "pass")
    assert "Success" in said, said
    said = check(tmp_path, "\n    ".join(wrong))
    first = PROGRAM[: PROGRAM.index("# WRONG")].count("\n") + 1
    lines = {int(number) - first for number in re.findall(r"program\.py:(\d+): error", said)}
    assert lines == set(range(len(wrong))) - {2}, said
