"""`cantrip demo approval`: a person allows a payment, although the process that asked was killed.

The entity wants to pay an invoice, and its gate `pay` asks a person first. Four processes take part: one that casts and
is killed while it waits, one that is started in its place, one that runs `cantrip allow`, and the demo itself, which
starts them. `python -m cantrip_demos.approval LOOM FILE KEY` is one of the first two.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import orjson

from cantrip_actors import Call, Cantrip, Circle, Injected, Invocation, Request, Runtime, ask_first, gate
from cantrip_actors.wards import max_turns
from cantrip_demos.script import scripted_demo

__all__ = ["Approval", "approval_cantrip", "run_approval"]

INTENT: Final = "Pay the invoice of the print shop."
AMOUNT: Final = 120
PATIENCE: Final = 60.0
"""Seconds after which the demo gives up on a process."""


@gate
async def pay(to: str, amount: int, file: Injected[str]) -> str:
    """Pay an amount: a line is appended to the file of payments."""
    line = f"{amount} EUR to {to}\n"
    async with await anyio.open_file(file, "a", encoding="utf-8") as payments:
        await payments.write(line)
    return f"paid {line.rstrip()}"


def policy(context: Invocation) -> dict[str, Any]:
    """Return what the crystal says next."""
    if context[-1].role == "user":
        args = {"to": "the print shop", "amount": AMOUNT}
        return {"content": "The invoice is due.", "tool_calls": [{"gate": "pay", "args": args}]}
    return {"content": "That is done.", "tool_calls": [{"gate": "done", "args": {"answer": context[-1].content}}]}


def approval_cantrip(file: Path) -> Cantrip:
    """Return the cantrip of an entity whose payments a person allows; they are appended to `file`."""
    return Cantrip(
        crystal=scripted_demo(policy, 0.0),
        call=Call(system_prompt="You pay invoices.", require_done_tool=True),
        circle=Circle(["done", ask_first(pay.with_(file=str(file)))], [max_turns(5)]),
        name="approval",
    )


async def cast(loom: str, file: Path, key: str) -> None:
    """Cast the entity, or resume the one of that key; print the id of its request as soon as it waits."""
    async with Runtime.open(loom) as runtime, anyio.create_task_group() as tasks:

        def list_own() -> list[Request]:
            return [
                request
                for request in runtime.requests()
                if request.entity and runtime.get_entity(request.entity).loaded
            ]

        async def show_request() -> None:
            while not (mine := list_own()):  # noqa: ASYNC110
                await anyio.sleep(0.05)  # a resumed entity publishes no event
            print(json.dumps({"request": mine[0].id, "gate": mine[0].gate, "args": dict(mine[0].args)}), flush=True)

        tasks.start_soon(show_request)
        episode = await runtime.cast(approval_cantrip(file), INTENT, key=key)
        tasks.cancel_scope.cancel()
        print(json.dumps({"entity_id": episode.entity_id, "result": episode.result}), flush=True)


class Approval(NamedTuple):
    """How the demo ended: the request, the entity and its answer, and the payments that were made."""

    request_id: str
    entity_id: str
    result: str
    payments: list[str]

    @property
    def is_right(self) -> bool:
        """Whether there was exactly one payment."""
        return self.payments == [f"{AMOUNT} EUR to the print shop"]


def run_approval(loom: str, file: Path, key: str) -> Iterator[str | Approval]:
    """Run the demo on `loom`: yield a sentence as each thing happens, and at last how it ended."""
    command = [sys.executable, "-m", "cantrip_demos.approval", loom, str(file), key]
    with _Killed(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as first:
        request = _read(first)
        yield f"Process {first.pid} cast an entity. It wants to call {request['gate']} with {request['args']}."
        yield f"A person decides about that first. It waits for the decision; {_describe_paid(file)}."
        first.kill()
        first.wait()
        yield f"Process {first.pid} was killed with SIGKILL while it waited."
    with _Killed(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as second:
        again = _read(second)
        same = "The same request still waits" if again == request else "Another request waits"
        yield f"Process {second.pid} was started in its place. {same}; {_describe_paid(file)}."
        request_id = str(again["request"])
        allow = [sys.executable, "-m", "cantrip_actors.cli.main", "allow", request_id, "--loom", loom]
        subprocess.run(allow, check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE)
        yield f"Another process ran `cantrip allow {request_id.split(':')[1][-8:]}`."
        ended = _read(second)
        second.wait(PATIENCE)
        yield f"Process {second.pid} went on, and the entity answered: {ended['result']}. Now {_describe_paid(file)}."
    yield Approval(request_id, str(ended["entity_id"]), str(ended["result"]), _list_payments(file))


class _Killed(subprocess.Popen[bytes]):
    """A process that is killed when its `with` block is left."""

    def __exit__(self, *why: object) -> None:
        self.kill()
        super().__exit__(*why)  # type: ignore[arg-type]


def _read(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Return the next line that a process prints, as JSON."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"process {process.pid} ended early; its messages are above")
    return dict(orjson.loads(line))


def _list_payments(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def _describe_paid(file: Path) -> str:
    count = len(_list_payments(file))
    return (
        "nothing is paid" if count == 0 else f"{count} payment is made" if count == 1 else f"{count} payments are made"
    )


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ctrl-C of the terminal ends it, as it ends the demo
    anyio.run(cast, sys.argv[1], Path(sys.argv[2]), sys.argv[3])
