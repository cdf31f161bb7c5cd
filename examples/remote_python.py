"""A sandbox elsewhere: Python programs run in another process, at the other end of a stream of bytes.

`RemotePython(["ssh", "sandbox.example.com", "python", "-m", "remote_python", "serve"])` runs them on another machine.
Here the other end is a process of this machine, without a network if the system can give it a namespace of its own.

The gates still run here: the other end only computes. What it computed last is kept here as a snapshot, so nothing is
lost with the other end; an interrupt ends it, and the next program starts a new one.
"""

import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import msgspec

from cantrip_actors import Cantrip, Circle, Runtime, ToolDefinition, gate, scripted
from cantrip_actors.mediums import (
    Answer,
    Exceeded,
    Medium,
    ProgramLimits,
    Sandbox,
    Stepped,
    Suspended,
    medium,
)
from cantrip_actors.wards import max_turns

GRACE = 20.0
"""Seconds that the other end may take beyond a program's own: to start, and to send."""

LARGEST = 64 * 2**20
"""The most bytes of one frame: the other end is not trusted."""

HEAD = struct.Struct(">II")


class RemotePython(Medium):
    """The Python medium, whose programs run in processes that `command` starts. Close it to end them."""

    name = "remote-python"
    fences = ("python", "py", "")

    def __init__(self, command: Sequence[str] = ()) -> None:
        self._python = medium("python")
        self._command = list(command) or make_local_command()
        self._free: list[OtherEnd] = []
        self.engine = self._python.engine

    def capability(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> str:
        """Return the text for the entity: it is the same Python."""
        return self._python.capability(gates, limits)

    def open(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> "RemoteSandbox":
        """Return a new sandbox; its first step starts a process, or takes one that is free."""
        return RemoteSandbox(self, gates, limits)

    def borrow(self) -> "OtherEnd":
        """Return a process that computes nothing. Give it back with `give_back`, unless it is gone."""
        try:
            return self._free.pop()
        except IndexError:
            return OtherEnd(self._command)

    def give_back(self, end: "OtherEnd") -> None:
        """Keep a process for the next step of any sandbox."""
        self._free.append(end)

    def close(self) -> None:
        """End the processes that compute nothing."""
        while self._free:
            self._free.pop().close()


class RemoteSandbox(Sandbox):
    """One entity's sandbox. Between two steps it is bytes, so any process at any other end can compute the next."""

    def __init__(self, remote: RemotePython, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> None:
        self.limits = limits
        self._remote = remote
        self._gates = [msgspec.to_builtins(gate) for gate in gates]
        self._idle = b""
        """The snapshot after the last program; empty before the first one."""
        self._end: OtherEnd | None = None
        self._is_interrupted = False

    @property
    def memory(self) -> int:
        """The bytes of the program's variables."""
        return len(self._idle)

    def begin(self, code: str, variables: Mapping[str, Any] | None = None) -> Stepped:
        """Run a program until it calls a gate or ends."""
        return self._step({"do": "begin", "code": code, "variables": dict(variables or {})})

    def answer(self, suspended: Suspended, answer: Answer) -> Stepped:
        """Continue after a gate."""
        request = {"do": "answer", "value": answer.value, "is_error": answer.is_error, "closed": answer.closed}
        return self._step(request, suspended.image or b"")

    def interrupt(self) -> None:
        """End the step that runs in another thread, by ending the process that computes it."""
        self._is_interrupted = True
        if self._end is not None:
            self._end.close()

    def dump(self) -> bytes:
        """Return the snapshot after the last program."""
        return self._idle

    def load(self, image: bytes) -> None:
        """Restore a snapshot. Raises ValueError for other bytes."""
        before, self._idle = self._idle, image
        try:
            self._ask({"do": "load"}, b"")
        except (OSError, EOFError, ValueError) as problem:
            self._idle = before
            raise ValueError(f"the snapshot cannot be loaded: {problem}") from problem

    def resume(self, image: bytes) -> Suspended:
        """Return the suspended program of a snapshot. Raises ValueError for other bytes."""
        step = self._step({"do": "resume"}, image)
        assert isinstance(step, Suspended), "the other end refuses other snapshots"
        return step

    def close(self) -> None:
        """Drop the state; a step in progress ends as if interrupted."""
        self.interrupt()
        self._idle = b""

    def _step(self, request: dict[str, Any], image: bytes = b"") -> Stepped:
        self._is_interrupted = False
        try:
            reply, new = self._ask(request, image)
        except (OSError, EOFError):  # it was interrupted, or the machine is gone: the variables are as before
            return Exceeded(self.limits.describe("interrupted" if self._is_interrupted else "crash"))
        step: Stepped = msgspec.convert(reply["step"], Stepped)
        if isinstance(step, Suspended):
            return msgspec.structs.replace(step, image=new)
        self._idle = new
        return step

    def _ask(self, request: dict[str, Any], image: bytes) -> tuple[dict[str, Any], bytes]:
        """Send a request to another end, and return its reply. Raises OSError, EOFError and ValueError."""
        end = self._end = self._remote.borrow()
        whole = {**request, "gates": self._gates, "limits": asdict(self.limits), "idle": len(self._idle)}
        try:
            if self._is_interrupted:
                raise EOFError("interrupted before it began")
            reply, new = end.ask(whole, self._idle + image, self.limits.time + GRACE)
        except BaseException:
            end.close()
            raise
        finally:
            self._end = None
        self._remote.give_back(end)
        if "damaged" in reply:
            raise ValueError(reply["damaged"])
        return reply, new


class OtherEnd:
    """A process at the other end of a stream."""

    def __init__(self, command: Sequence[str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=theirs.fileno(), env=make_environment()
            )

    def ask(self, request: dict[str, Any], blob: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """Return the reply to a request. Raises OSError and EOFError if there is none in time."""
        self._socket.settimeout(seconds)
        write_frame(self._socket.sendall, request, blob)
        return read_frame(self._socket.recv)

    def close(self) -> None:
        """End the process, from any thread: a thread that waits for its reply gets EOFError."""
        with suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.kill()
        self._process.wait()
        self._socket.close()


def write_frame(write: Callable[[bytes], object], head: Mapping[str, Any], blob: bytes) -> None:
    """Write a frame: two lengths, JSON, and bytes."""
    data = msgspec.json.encode(head)
    write(HEAD.pack(len(data), len(blob)) + data + blob)


def read_frame(read: Callable[[int], bytes]) -> tuple[dict[str, Any], bytes]:
    """Return the next frame. Raises EOFError if there is none, or if it is too large."""
    length, extra = HEAD.unpack(read_exactly(read, HEAD.size))
    if length + extra > LARGEST:
        raise EOFError("the frame is too large")
    head: dict[str, Any] = msgspec.json.decode(read_exactly(read, length))
    return head, read_exactly(read, extra)


def read_exactly(read: Callable[[int], bytes], count: int) -> bytes:
    """Return so many bytes. Raises EOFError."""
    data = bytearray()
    while len(data) < count:
        part = read(count - len(data))
        if not part:
            raise EOFError("the other end is gone")
        data += part
    return bytes(data)


# -------------------------------------------------------------------------------------------------------- the other end


def serve(read: Callable[[int], bytes], write: Callable[[bytes], object]) -> None:
    """Compute steps until the stream ends. Nothing is kept from one to the next."""
    while True:
        try:
            request, blob = read_frame(read)
        except EOFError:
            return
        idle, image = blob[: request["idle"]], blob[request["idle"] :]
        try:
            step, new = compute(request, idle, image)
        except ValueError as problem:
            write_frame(write, {"damaged": str(problem)}, b"")
        else:
            write_frame(write, {"step": encode_step(step)}, new)


def write_all(data: bytes) -> None:
    """Write to the stream."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def compute(request: Mapping[str, Any], idle: bytes, image: bytes) -> tuple[Stepped | None, bytes]:
    """Return the step that a request asks for, and the snapshot after it. Raises ValueError for a wrong snapshot."""
    gates = [msgspec.convert(gate, ToolDefinition) for gate in request["gates"]]
    with closing(medium("python").open(gates, ProgramLimits(**request["limits"]))) as sandbox:
        if idle:
            sandbox.load(idle)
        step: Stepped | None = None
        if request["do"] == "begin":
            step = sandbox.begin(request["code"], request["variables"])
        elif request["do"] in ("answer", "resume"):
            step = sandbox.resume(image)
        if request["do"] == "answer" and isinstance(step, Suspended):
            step = sandbox.answer(step, Answer(request["value"], request["is_error"], request["closed"]))
        new = step.image if isinstance(step, Suspended) else sandbox.dump()
        return step, new or b""


def encode_step(step: Stepped | None) -> Any:
    """Return a step as JSON, without what only this process can use."""
    if isinstance(step, Suspended):
        step = msgspec.structs.replace(step, state=None, image=None)
    return msgspec.to_builtins(step)


def make_environment() -> dict[str, str]:
    """Return the environment of the other end: the packages of this process, and no secrets."""
    return {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@cache
def make_local_command() -> list[str]:
    """Return the command of a process on this machine, in a network namespace of its own if the system allows it."""
    command = [sys.executable, str(Path(__file__).resolve()), "serve"]
    unshare = shutil.which("unshare")
    alone = [unshare, "--user", "--map-root-user", "--net", "--"] if unshare else []
    works = bool(alone) and subprocess.run([*alone, "true"], capture_output=True, check=False).returncode == 0
    return [*alone, *command] if works else command


def list_interfaces(command: Sequence[str]) -> list[str]:
    """Return the network interfaces that a process has which this command starts: "lo" alone in its own namespace."""
    program = "import socket; print(*(name for _, name in socket.if_nameindex()))"
    python = command.index(sys.executable) + 1
    run = subprocess.run([*command[:python], "-c", program], capture_output=True, text=True, check=True)
    return run.stdout.split()


@gate
async def search(query: str) -> list[str]:
    """Search the notes. It runs here, not where the program runs."""
    return [f"{query} at {os.getpid()}"]


async def main() -> None:
    """An entity's programs run elsewhere, and call a gate here."""
    programs = ["found = search('milk')\nprint(len(found))", "done(found[0])"]
    crystal = scripted([{"code": code} for code in programs])
    with closing(RemotePython()) as remote:
        async with Runtime.open() as runtime:
            circle = Circle(["done", search], [max_turns(5)], medium=remote)
            episode = await runtime.cast(Cantrip(crystal, circle=circle), "Find it.")
    print("the gate ran in this process:", episode.result == f"milk at {os.getpid()}")
    print("network interfaces there:", list_interfaces(make_local_command()))


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve(sys.stdin.buffer.read, write_all)
    else:
        anyio.run(main)
