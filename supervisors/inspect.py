"""Inspection: the current tree, as data and as text.

It reads the supervisors' records without sending messages, so it works even if the system is stuck. It changes nothing.
"""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import anyio

from supervisors.child import Phase
from supervisors.children import Child

if TYPE_CHECKING:
    from supervisors.reasons import ExitReason
    from supervisors.system import ActorSystem


@dataclass(frozen=True, slots=True)
class Node:
    """The state of one child at one moment.

    Attributes:
        id: its id among its siblings.
        path: its path from the top supervisor.
        kind: the class of the actor; `None` while there is no incarnation.
        state: `starting`, `up`, `ending`, `restarting`, `stopped`.
        age: seconds since its incarnation began; 0 without one.
        mailbox: number of waiting messages.
        in_hand: calls that it has taken and not answered.
        restarts: restarts of this identity so far.
        last_exit: the reason why its last incarnation ended.
        children: its children, if it is a supervisor.
        call: the type of the message of an unanswered call: of the call that it handles now, else of the oldest.
        call_age: seconds since it took that call; `None` without one.
    """

    id: str
    path: str
    kind: str | None
    state: str
    age: float
    mailbox: int
    in_hand: int
    restarts: int
    last_exit: ExitReason | None
    children: tuple[Node, ...] = ()
    call: str | None = None
    call_age: float | None = None

    def walk(self) -> Iterator[Node]:
        """Yield this node and all nodes below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


def build_tree(system: ActorSystem) -> Node:
    """Return the tree of the whole system, from its top supervisor down."""
    return _build_node(system.top, system.backend.now())


def _build_node(child: Child, now: float) -> Node:
    incarnation, ref = child.incarnation, child.ref
    children: tuple[Node, ...] = ()
    state: str = child.state
    if incarnation is None:
        kind, age, in_hand = None, 0.0, 0
    else:
        actor: Any = incarnation.actor
        state = "ending" if incarnation.phase > Phase.UP else incarnation.phase.name.lower()
        kind, age, in_hand = type(actor).__name__, now - incarnation.since, incarnation.in_hand
        if actor.is_supervisor:
            children = tuple(_build_node(grandchild, now) for grandchild in actor.children())
    taken = None if incarnation is None else incarnation.call_taken_at
    return Node(
        id=str(child.spec.id),
        path=str(child.spec.id) if ref is None else ref.path,
        kind=kind,
        state=state,
        age=age,
        mailbox=0 if ref is None else ref.mailbox_depth,
        in_hand=in_hand,
        restarts=child.restarts,
        last_exit=child.last_exit if ref is None else ref.last_exit,
        children=children,
        call=None if incarnation is None else incarnation.call_in_hand,
        call_age=None if taken is None else now - taken,
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
