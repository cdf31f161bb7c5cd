"""A cantrip whose gate has a dependency that only the process which offers it can provide, for `test_process.py`."""

from collections.abc import Mapping
from typing import Any

from cantrip_actors import PROVIDED, Cantrip, Circle, EpisodeScope, Injected, gate, scripted
from cantrip_actors.wards import max_turns


@gate
def orders(user: Injected[str]) -> str:
    """List the orders of the user."""
    return f"tea for {user}"


def think(context: Any) -> Any:
    if context[-1].role == "tool":
        return {"content": context[-1].content}
    return {"tool_calls": [{"gate": "orders", "args": {}}]}


desk = Cantrip(scripted(think), circle=Circle(["done", orders.with_(user=PROVIDED)], [max_turns(5)]), name="desk")


def provide(episode: EpisodeScope) -> Mapping[str, Any]:
    return {"user": episode.sender}
