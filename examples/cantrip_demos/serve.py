"""`cantrip demo serve`: an event stream is cut, and the service killed, and the reader misses nothing.

A process serves a scripted cantrip over HTTP. The demo casts it, reads some events of the stream, kills the service
with SIGKILL in the middle of the work, and starts another on the same loom. It casts again with the same
`Idempotency-Key`, which finds the same entity, and resumes the stream after the last event that it has seen.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import IO, Any, Final, NamedTuple

import anyio
import httpx

from cantrip_actors import Call, Cantrip, Circle, Invocation, gate
from cantrip_actors.wards import max_turns
from cantrip_demos.script import scripted_demo

__all__ = ["COUNTER", "Served", "run_serve"]

INTENT: Final = "Count to six."
TURNS: Final = 6
CUT_AFTER: Final = 3
"""Events after which the stream is cut."""
PATIENCE: Final = 60.0
"""Seconds after which the demo gives up on a process."""


@gate(idempotent=True)
async def count(number: int) -> str:
    """Count, slowly."""
    await anyio.sleep(0.2)
    return f"counted {number}"


def policy(context: Invocation) -> dict[str, Any]:
    """Return what the crystal says next."""
    counted = sum(message.role == "tool" for message in context)
    if counted < TURNS:
        return {"content": f"{counted + 1}!", "tool_calls": [{"gate": "count", "args": {"number": counted + 1}}]}
    return {"tool_calls": [{"gate": "done", "args": {"answer": f"counted to {counted}"}}]}


COUNTER: Final = Cantrip(
    crystal=scripted_demo(policy, 0.0),
    call=Call(system_prompt="You count.", require_done_tool=True),
    circle=Circle(["done", count], [max_turns(20)]),
    name="counter",
)
"""The cantrip that is served."""


class Served(NamedTuple):
    """How the demo ended: the entity, its answer, and the ids of durable events: those read, and those there are."""

    entity_id: str
    result: str
    read: list[str]
    there: list[str]

    @property
    def is_right(self) -> bool:
        """Whether the reader has seen every event once."""
        return self.read == self.there


def run_serve(loom: str, key: str) -> Iterator[str | Served]:
    """Run the demo on `loom`: yield a sentence as each thing happens, and at last how it ended."""
    body = {"cantrip": COUNTER.name, "intent": INTENT}
    headers = {"idempotency-key": key}
    with tempfile.TemporaryFile("w+") as log:
        with _Service(loom, log) as first, first.client() as client:
            yield f"Process {first.pid} serves the cantrip {COUNTER.name} at {first.url}."
            entity = client.post("/casts", json=body, headers=headers).json()["entity_id"]
            read = list(_list_durable(client, entity, "0", CUT_AFTER))
            kinds = ", ".join(kind for _, kind in read)
            yield f"POST /casts began entity {entity[-8:]}; its stream sent {kinds}. The stream is cut here."
            first.kill()
            first.wait()
            yield f"Process {first.pid} was killed with SIGKILL, in the middle of the work."
        with _Service(loom, log) as second, second.client() as client:
            again = client.post("/casts", json={**body, "wait": 30}, headers=headers)
            replayed = "the same entity" if again.headers.get("idempotency-replayed") else "another entity"
            yield f"Process {second.pid} was started in its place. The same POST, with the same key, found {replayed}."
            last = read[-1][0]
            read += _list_durable(client, entity, last)
            there = list(_list_durable(client, entity, "0"))
            yield f"The stream was resumed after event {last}, and sent {len(read) - CUT_AFTER} more, to the end."
            result = str(again.json()["result"])
    yield Served(entity, result, [id for id, _ in read], [id for id, _ in there])


class _Service(subprocess.Popen[str]):
    """`cantrip serve` in a process, which is killed when the `with` block is left."""

    def __init__(self, loom: str, log: IO[str]) -> None:
        command = [sys.executable, "-m", "cantrip_actors.cli.main", "serve", "cantrip_demos.serve:COUNTER"]
        command += ["--loom", loom, "--bind", "127.0.0.1:0"]
        start = log.seek(0, 2)
        super().__init__(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True)
        self.url, self._token = self._read_address(log, start)

    def _read_address(self, log: IO[str], start: int) -> tuple[str, str]:
        """Return the URL and the token that the service prints when it answers."""
        deadline = time.monotonic() + PATIENCE
        while True:
            log.seek(start)
            output = log.read()
            match = re.search(r"serving at (\S+)/api/v1,.*?Bearer (\S+)\n", output, re.DOTALL)
            if match is not None:
                return match[1], match[2]
            if self.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the service did not start: {output}")
            time.sleep(0.05)

    def client(self) -> httpx.Client:
        """Return a client with the service's token."""
        headers = {"authorization": f"Bearer {self._token}"}
        return httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=PATIENCE)

    def __exit__(self, *why: object) -> None:
        self.kill()
        super().__exit__(*why)  # type: ignore[arg-type]


def _list_durable(client: httpx.Client, entity: str, last: str, count: int | None = None) -> Iterator[tuple[str, str]]:
    """Yield the durable events after the id `last`, at most `count`: their ids and kinds."""
    with client.stream("GET", f"/entities/{entity}/events", headers={"last-event-id": last}) as answer:
        id, seen = "", 0
        for line in answer.iter_lines():
            if line.startswith("id: "):
                id = line.removeprefix("id: ")
            elif line.startswith("event: ") and id:
                yield id, line.removeprefix("event: ")
                id, seen = "", seen + 1
                if seen == count:
                    return
