"""Inspection: the current tree, as data and as text.

It reads the supervisors' records without sending messages, so it works even if the system is stuck. It changes nothing.
"""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

import anyio

from supervisors.children import ChildRecord
from supervisors.incarnation import LifePhase, get_call_type

if TYPE_CHECKING:
    from supervisors.mailbox import Caller
    from supervisors.reasons import ExitReason
    from supervisors.system import ActorSystem


@dataclass(frozen=True, slots=True)
class Node:
    """The state of one child at one moment. `state` is `starting`, `up`, `ending`, `restarting` or `stopped`."""

    id: str  # among its siblings
    path: str  # from the top supervisor
    kind: str | None  # the class of the actor; `None` while there is no incarnation
    state: str
    age: float  # seconds since its incarnation began; 0 without one
    mailbox: int  # waiting messages
    in_hand: int  # calls that it has taken and not answered
    restarts: int  # of this identity so far
    last_exit: ExitReason | None
    children: tuple[Node, ...] = ()  # of a supervisor or another host
    call: str | None = None  # the type of an unanswered call's message: that which it handles, else the oldest
    call_age: float | None = None  # seconds since it took that call

    def walk(self) -> Iterator[Node]:
        """Yield this node and all nodes below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


def build_tree(system: ActorSystem) -> Node:
    """Return the tree of the whole system, from its top supervisor down."""
    return _build_node(system.top, system.now())


def _build_node(record: ChildRecord, now: float) -> Node:
    incarnation, ref = record.incarnation, record.ref
    children: tuple[Node, ...] = ()
    state: str = record.state
    call: Caller | None = None
    if incarnation is None:
        kind, age, in_hand = None, 0.0, 0
    else:
        is_ending = incarnation.phase > LifePhase.UP or incarnation.stop_reason is not None
        state = "ending" if is_ending else incarnation.phase.name.lower()
        kind, age, in_hand = type(incarnation.actor).__name__, now - incarnation.since, len(incarnation.in_hand)
        call = incarnation.call_in_hand
        if incarnation.children is not None:
            children = tuple(_build_node(child, now) for child in incarnation.children.records.values())
    return Node(
        id=str(record.spec.id),
        path=str(record.spec.id) if ref is None else ref.path,
        kind=kind,
        state=state,
        age=age,
        mailbox=0 if ref is None else ref.mailbox_depth,
        in_hand=in_hand,
        restarts=record.restarts,
        last_exit=record.last_exit if ref is None else ref.last_exit,
        children=children,
        call=get_call_type(call),
        call_age=None if incarnation is None or call is None else now - incarnation.in_hand[call],
    )


def dump(system: ActorSystem) -> str:
    """Return the tree as text, one line per child."""
    out = io.StringIO()
    _write(out, build_tree(system), "", "")
    return out.getvalue()


def _write(out: TextIO, node: Node, first: str, rest: str) -> None:
    parts = [f"{first}{node.id}", node.kind or "-", node.state]
    if node.kind is not None:
        parts.append(f"{node.age:.1f}s")
    if node.mailbox:
        parts.append(f"mailbox {node.mailbox}")
    if node.in_hand:
        about = [*([node.call] if node.call else []), *([] if node.call_age is None else [f"{node.call_age:.1f}s"])]
        parts.append(f"in hand {node.in_hand}" + (f" ({', '.join(about)})" if about else ""))
    if node.restarts:
        parts.append(f"restarts {node.restarts}")
    if node.last_exit is not None:
        parts.append(f"last exit {node.last_exit}")
    out.write("  ".join(parts) + "\n")
    for at, child in enumerate(node.children, 1):
        last = at == len(node.children)
        _write(out, child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))


async def dump_on_signal(system: ActorSystem, number: signal.Signals, out: TextIO | None = None) -> None:
    """Write the tree whenever the process gets a signal, until cancelled; run it in your own task group.

    Args:
        system: the system to write.
        number: the signal, typically `signal.SIGUSR1`.
        out: the file to write to; standard error by default.
    """
    with anyio.open_signal_receiver(number) as signals:
        async for _ in signals:
            print(dump(system), file=out or sys.stderr, flush=True)
